"""Semeion: the text file of UCI, with 256 pixels and 10 class columns per row, and the copy that the package brings."""

from importlib import resources
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ordered_sgd.lab.data.files import fault, read_plain
from ordered_sgd.lab.data.npz import read_npy, read_npz

_PIXELS, _CLASSES = 256, 10
_COLUMNS = _PIXELS + _CLASSES
_INCLUDED = resources.files("ordered_sgd.lab.data") / "included"
_WIDEST = 16  # bytes of a value and the blanks beside it; UCI writes 0.0000


def read_semeion(path: Path, most: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images (n, 1, 16, 16) of 0 and 255, and the digit of each, in the order of the file."""
    text = read_plain(path, most * _COLUMNS * _WIDEST)
    rows = text.splitlines()
    while rows and not rows[-1].strip():
        rows.pop()
    if not 1 <= len(rows) <= most:
        raise fault(path, f"hold 1 to {most:,} rows", f"{len(rows):,}")
    values = np.empty((len(rows), _COLUMNS), np.uint8)
    for number, row in enumerate(rows):
        values[number] = _parse(row, number, path)
    hot = values[:, _PIXELS:]
    wrong = np.flatnonzero(hot.sum(axis=1) != 1)
    if wrong.size:
        got = f"{hot[wrong[0]].sum()} in row {wrong[0] + 1}"
        raise fault(path, f"mark one digit in the last {_CLASSES} columns of each row", got)
    return values[:, :_PIXELS].reshape(-1, 1, 16, 16) * np.uint8(255), hot.argmax(axis=1).astype(np.int64)


def included_semeion() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """What `read_semeion` reads from the published file, from the package's own copy, which has a bit per pixel."""
    with resources.as_file(_INCLUDED / "semeion.npz") as path:
        arrays = read_npz(path, (("bits", "digits"),))
    pixels = np.unpackbits(arrays["bits"], axis=1)
    return pixels.reshape(-1, 1, 16, 16) * np.uint8(255), arrays["digits"].astype(np.int64)


def read_order(path: Path | None, n: int) -> NDArray[np.int64]:
    """The permutation of n rows in a file; None stands for the authors' one, which the package brings."""
    if path is None:
        with resources.as_file(_INCLUDED / "random_index.npy") as brought:
            return read_order(brought, n)
    order = read_npy(path, 16 * n + 1024)
    if order.dtype.kind not in "iu" or order.shape != (n,) or not np.array_equal(np.sort(order), np.arange(n)):
        raise fault(path, f"hold a permutation of 0 to {n - 1:,}", f"{order.dtype} of shape {order.shape}")
    return order.astype(np.int64)


def _parse(row: bytes, number: int, path: Path) -> list[bool]:
    """The values of a row, each 0 or 1."""
    cells = row.split(None, _COLUMNS)  # never more than one too many
    if len(cells) != _COLUMNS:
        got = f"{'more' if len(cells) > _COLUMNS else len(cells)} in row {number + 1}"
        raise fault(path, f"hold {_COLUMNS} values a row", got)
    try:
        values = [float(cell) for cell in cells]
    except ValueError:
        values = []
    if not values or not all(value in (0.0, 1.0) for value in values):
        raise fault(path, "hold the values 0 and 1 alone", f"another one in row {number + 1}")
    return [value == 1.0 for value in values]
