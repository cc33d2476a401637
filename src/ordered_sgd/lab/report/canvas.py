"""What every figure shares: a canvas without global state, and files that are the same bytes when drawn again."""

import base64
import io
import struct
import unicodedata
from collections.abc import Container
from functools import lru_cache
from pathlib import Path
from typing import Any

from ordered_sgd.errors import require
from ordered_sgd.lab.data.naming import shortened

# Okabe and Ito's colours: distinct for colour-blind readers and in print.
COLOURS = ("#56B4E9", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")


def new_figure(columns: int, *, width: float = 4.0, height: float = 3.2) -> tuple[Any, list[Any]]:
    """A matplotlib figure with one row of axes."""
    figure, (axes,) = figure_grid(1, columns, width=width, height=height)
    return figure, axes


def figure_grid(rows: int, columns: int, *, width: float = 4.0, height: float = 3.2) -> tuple[Any, list[list[Any]]]:
    """A matplotlib figure with rows of axes, each of its own."""
    figure_module = require("matplotlib.figure", extra="lab", where="osgd")
    figure = figure_module.Figure(figsize=(width * columns, height * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25, linewidth=0.6)
    return figure, axes.tolist()


def drawable(text: str, longest: int = 40) -> str:
    r"""Words for matplotlib: no formula, on one line, and symbols that its font lacks by their names.

    >>> print(drawable("$a_1$ <b>"), drawable("my cat 🐈"))
    \$a_1\$ <b> my cat [cat]
    """
    known = _glyphs()
    return "".join(_drawn(letter, known) for letter in shortened(text, longest)).replace("$", r"\$")


def _drawn(letter: str, known: Container[int]) -> str:
    if ord(letter) in known:
        return letter
    if unicodedata.category(letter) in ("Mn", "Cf"):  # selects a variant of what comes before, or joins two
        return ""
    name = unicodedata.name(letter, "").lower()
    return f"[{name}]" if unicodedata.category(letter) == "So" and name else f"U+{ord(letter):04X}"


@lru_cache
def _glyphs() -> Container[int]:
    """The characters of the font in which figures are written."""
    fonts = require("matplotlib.font_manager", extra="lab", where="osgd")
    found: Container[int] = fonts.get_font(fonts.findfont(fonts.FontProperties())).get_charmap()
    return found


def as_svg(figure: Any) -> str:
    """The figure, or the content of a PNG file, as an SVG element to be put into a page."""
    if isinstance(figure, bytes):
        width, height = struct.unpack(">II", figure[16:24])  # of PNG's first chunk
        content = base64.b64encode(figure).decode()
        image = f'<image width="{width}" height="{height}" href="data:image/png;base64,{content}"/>'
        return f'<svg width="{width}" height="{height}" viewBox="0 0 {width} {height}">{image}</svg>'
    matplotlib = require("matplotlib", extra="lab", where="osgd")
    text = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "ordered-sgd", "svg.fonttype": "path"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue().partition("<svg")[1] + text.getvalue().partition("<svg")[2]


def save(figure: Any, stem: Path, suffixes: tuple[str, ...] = (".png", ".svg")) -> list[Path]:
    """The figure as PNG and SVG beside each other, a PNG file's content as it is; the folder is made if need be."""
    matplotlib = require("matplotlib", extra="lab", where="osgd")
    if stem.suffix in (".png", ".svg"):
        stem = stem.with_suffix("")
    stem.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(figure, bytes):
        path = stem.with_name(f"{stem.name}.png")
        path.write_bytes(figure)
        return [path]
    paths = [stem.with_name(stem.name + suffix) for suffix in suffixes]
    with matplotlib.rc_context({"svg.hashsalt": "ordered-sgd", "svg.fonttype": "path"}):
        for path in paths:
            figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
    return paths
