"""Images of a data set side by side, each with the name of its class, and beside it what augmentation makes of it."""

import io
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ordered_sgd.errors import ArgumentError, message, require
from ordered_sgd.lab.report.canvas import drawable

_COLUMNS = 10
_SIDE = 96  # pixels of the sheet that a small image is enlarged to, about; a large one is thinned out to 256
_LARGEST = 256
_NARROWEST = 480  # pixels of the sheet, for the title
_GAP, _CAPTION, _LINE, _MARGIN = 8, 16, 18, 12  # pixels of the sheet
_PAPER = (224, 229, 234)  # neither white nor black, so that every image shows its edge
_DPI = 100
_LETTER = 6.6  # pixels of the sheet that a letter of the title takes, at most


def contact_sheet(
    images: NDArray[np.uint8],
    labels: NDArray[Any],
    classes: Sequence[str],
    *,
    title: str = "",
    versions: NDArray[np.uint8] | None = None,
) -> bytes:
    """A PNG file of the images, every pixel a sharp square, with the name of its class below each.

    Parameters
    ----------
    images
        (n, channels, height, width): one channel for grey, three for colours, a fourth is left out.
    labels, classes
        Class numbers (n,) and the names of the classes; without names the labels themselves are written.
    title
        Words above the sheet.
    versions
        Changed images (n, k, channels, height, width). Each image then begins a row of its own, and they follow.

    Examples
    --------
    >>> contact_sheet(np.zeros((2, 1, 8, 8), np.uint8), np.array([0, 1]), ("no", "yes"))[1:4]
    b'PNG'
    """
    names = [classes[label] if classes else f"{label:g}" for label in labels]
    if versions is None:
        return _sheet(_prepared(images), names, min(_COLUMNS, len(images)), title, caption_every=1)
    rows = np.concatenate((images[:, None], versions), axis=1)
    k = rows.shape[1]
    return _sheet(_prepared(rows.reshape(-1, *images.shape[1:])), names, k, title, caption_every=k)


def _prepared(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The images (n, height, width, 3), enlarged or thinned out to about the same size."""
    if not len(images) or images.shape[1] not in (1, 3, 4):
        remedy = "Only such images can be shown."
        got = f"an array of shape {images.shape}"
        raise ArgumentError(message("contact_sheet", "images", "be at least one, of 1, 3 or 4 channels", got, remedy))
    side = max(images.shape[2:])
    step, times = -(-side // _LARGEST), max(1, round(_SIDE / side))
    images = images[:, :3, ::step, ::step].transpose(0, 2, 3, 1)
    images = images.repeat(times, axis=1).repeat(times, axis=2)
    return np.broadcast_to(images, (*images.shape[:3], 3))


def _sheet(images: NDArray[np.uint8], names: Sequence[str], columns: int, title: str, caption_every: int) -> bytes:
    """The sheet as a PNG file: images of the same size in rows, a name below every so many of them."""
    n, height, width, _ = images.shape
    rows = -(-n // columns)
    across = max(_NARROWEST, columns * (width + _GAP) - _GAP + 2 * _MARGIN)
    lines = [line for part in title.splitlines() for line in textwrap.wrap(part, int((across - 2 * _MARGIN) / _LETTER))]
    head = _LINE * len(lines) + _MARGIN
    down = head + rows * (height + _CAPTION + _GAP) + _MARGIN
    canvas = np.full((down, across, 3), _PAPER, np.uint8)
    figure = require("matplotlib.figure", extra="lab", where="osgd").Figure(
        figsize=((across + 0.5) / _DPI, (down + 0.5) / _DPI), dpi=_DPI
    )
    for number, line in enumerate(lines):
        weight = "bold" if number == 0 else "normal"
        _write(figure, line, _MARGIN, _MARGIN / 2 + _LINE * (number + 0.5), (across, down), weight=weight)
    for number, image in enumerate(images):
        row, column = divmod(number, columns)
        top, left = head + row * (height + _CAPTION + _GAP), _MARGIN + column * (width + _GAP)
        canvas[top : top + height, left : left + width] = image
        if number % caption_every == 0:
            name = names[number // caption_every]
            _write(figure, name, left, top + height + _CAPTION / 2, (across, down), size=8)
    figure.figimage(canvas)
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=_DPI)
    return stream.getvalue()


def _write(figure: Any, words: str, left: float, middle: float, sheet: tuple[int, int], **style: Any) -> None:
    """Words at a place in pixels of the sheet from its upper left corner."""
    across, down = sheet
    words = drawable(words, 400)  # else matplotlib reads a formula
    figure.text(left / across, 1 - middle / down, words, va="center", **{"size": 9, **style})
