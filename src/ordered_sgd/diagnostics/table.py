"""Tables written to files atomically."""

import csv
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray


def write_table(path: str | Path, columns: Mapping[str, NDArray[Any]]) -> None:
    """Write columns of the same length as CSV with a header, replacing an existing file atomically.

    Numbers are written with full precision; an empty cell stands for NaN.
    """
    path = Path(path)
    if path.exists() and not path.is_file():  # a device or a pipe is written to, not put out of its place
        _write(path, columns)
        return
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        _write(part, columns)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _write(path: Path, columns: Mapping[str, NDArray[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        lists = [["" if value != value else value for value in column.tolist()] for column in columns.values()]
        writer.writerows(zip(*lists, strict=True))
