"""CSV and Parquet files as features and labels."""

import csv
import importlib
import io
import re
from array import array
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from ordered_sgd.errors import ArgumentError, MissingExtraError, check_choice, message
from ordered_sgd.lab.data.files import fault, opened, reason

FIX = "Correct the file."
_LONGEST = 1 << 24  # characters of a line: a table has rows, not one endless one
_INTEGER = re.compile(r"[+-]?\d{1,18}")
_GAPS = ("", "na", "n/a", "nan", "null", "none", "?")
_ENCODE = "Encode it as numbers, or name the column of labels with target=."


def read_csv(path: Path, target: str | int) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """Features (n, columns - 1) and labels (n,) of a CSV file, commas between values.

    The first row is a header if `target` is a name or one of its features is no number. Labels are integers where all
    of them are, floats where all are numbers, else words.
    """
    with opened(path, None) as handle:
        text = io.TextIOWrapper(handle, encoding="utf-8-sig", newline="")
        try:
            return _parse(path, (row for row in csv.reader(_lines(path, text)) if row), target)
        except (csv.Error, UnicodeError) as error:
            raise fault(path, "be a CSV file in UTF-8", reason(error), FIX) from error


def read_parquet(path: Path, target: str | int) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """Features and labels of a Parquet file, through pandas."""
    try:
        frame = importlib.import_module("pandas").read_parquet(path)
    except ImportError as error:  # pandas itself, or the engine that it reads Parquet with
        got = f"no module {error.name!r}" if error.name else reason(error)
        remedy = "Run: pip install pandas pyarrow"
        raise MissingExtraError(message("load", "pandas", "be installed to read Parquet", got, remedy)) from error
    except Exception as error:  # Parquet engines promise no exception types
        raise fault(path, "be a Parquet file that pandas reads", reason(error), FIX) from error
    names = [str(column) for column in frame.columns]
    _check_size(path, len(names), len(frame))
    place = column_number(path, names, target)
    for at, name in enumerate(names):
        if frame.iloc[:, at].isna().any():
            raise fault(path, f"have no gaps in column {name[:40]!r}", "missing values", FIX)
    columns = [frame.iloc[:, at].to_numpy() for at in range(len(names))]
    for at, values in enumerate(columns):
        if at != place and values.dtype.kind not in "biuf":
            raise fault(path, f"hold numbers in column {names[at][:40]!r}", f"dtype {values.dtype}", _ENCODE)
    with np.errstate(over="ignore"):  # what does not fit is refused when the samples are checked
        x = np.stack([values.astype(np.float32) for at, values in enumerate(columns) if at != place], axis=1)
    return x, columns[place]


def column_number(path: Path, names: list[str], target: str | int) -> int:
    """The position of the column of labels, given by name or by number, negative from the end."""
    if isinstance(target, str):
        if target not in names:  # of a wide table the first are named
            check_choice(f"load: {path}", "target", target, names[:100], "Name the column of the classes.")
        return names.index(target)
    if not -len(names) <= target < len(names):
        got, remedy = f"{target} of {len(names)}", "Use target=-1 for the last column."
        raise ArgumentError(message(f"load: {path}", "target", "be the name or the number of a column", got, remedy))
    return target % len(names)


def _lines(path: Path, text: TextIO) -> Iterator[str]:
    while line := text.readline(_LONGEST):
        if len(line) == _LONGEST:
            raise fault(path, f"have lines of less than {_LONGEST:,} characters", "a longer one", FIX)
        yield line


def _check_size(path: Path, columns: int, rows: int) -> None:
    if columns < 2 or not rows:
        got = f"{columns} columns and {rows} rows"
        raise fault(path, "hold a column of labels, one of features at least, and rows", got, FIX)


def _parse(path: Path, rows: Iterator[list[str]], target: str | int) -> tuple[NDArray[np.float32], NDArray[Any]]:
    first = [cell.strip() for cell in next(rows, [])]
    _check_size(path, len(first), 1)
    place = column_number(path, first, target)
    header = isinstance(target, str) or not all(_is_number(cell) for at, cell in enumerate(first) if at != place)
    names = first if header else [str(at) for at in range(len(first))]
    features, labels, words = array("d"), list[str](), dict[str, str]()
    for number, row in enumerate(rows if header else chain([first], rows), start=2 if header else 1):
        if len(row) != len(names):
            raise fault(path, f"hold {len(names)} values in row {number}", len(row), FIX)
        label = row[place].strip()
        try:
            features.extend(map(float, chain(row[:place], row[place + 1 :])))
        except ValueError as error:
            raise _odd_cell(path, names, row, number, place) from error
        if label.lower() in _GAPS:
            raise _odd_cell(path, names, row, number, place)
        labels.append(words.setdefault(label, label))  # equal words once in memory
    _check_size(path, len(names), len(labels))
    with np.errstate(over="ignore"):  # what does not fit is refused when the samples are checked
        x = np.frombuffer(features, np.float64).astype(np.float32)
    return x.reshape(len(labels), -1), _typed(labels, words)


def _odd_cell(path: Path, names: list[str], row: list[str], number: int, place: int) -> Exception:
    """The fault of a row whose features are not all numbers, or whose label is not there."""
    for at, cell in enumerate(row):
        got = f"{cell[:40]!r} in row {number}"
        if cell.strip().lower() in _GAPS:
            return fault(path, f"have no gaps in column {names[at][:40]!r}", got, FIX)
        if at != place and not _is_number(cell):
            return fault(path, f"hold numbers in column {names[at][:40]!r}", got, _ENCODE)
    raise AssertionError("a row without a fault")


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _typed(labels: list[str], words: Iterable[str]) -> NDArray[Any]:
    """Labels as integers if all of them are, else as floats if all are numbers, else as words."""
    if all(_INTEGER.fullmatch(word) for word in words):
        return np.array([int(label) for label in labels], np.int64)
    if all(_is_number(word) for word in words):
        return np.array([float(label) for label in labels], np.float64)
    return np.array(labels, dtype=object)
