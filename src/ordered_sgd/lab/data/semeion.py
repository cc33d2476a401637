"""Semeion's text file: a row is 256 pixels and 10 columns of which one says the digit."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ordered_sgd.lab.data.files import fault, read_plain

_PIXELS, _CLASSES = 256, 10
_COLUMNS = _PIXELS + _CLASSES
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
