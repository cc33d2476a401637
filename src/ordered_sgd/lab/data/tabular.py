"""A user's table as data sets: what a model is given is fitted on the training part alone."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ordered_sgd.errors import require
from ordered_sgd.lab.data.columns import MOST_WORDS, TypedColumn, typed
from ordered_sgd.lab.data.dataset import Dataset
from ordered_sgd.lab.data.delimited import FIX, Cells, read_delimited
from ordered_sgd.lab.data.files import fault
from ordered_sgd.lab.data.naming import listed, shortened
from ordered_sgd.lab.data.parquet import read_parquet
from ordered_sgd.lab.data.raw import Table
from ordered_sgd.lab.data.target import Task, labels_of, place_of

_MOST = 1 << 31  # bytes of what a model is given


class Sheet(NamedTuple):
    """A whole table with its labels, before it is split: classes are empty for a regression."""

    name: str
    table: Table
    y: NDArray[Any]
    classes: tuple[str, ...]


def read_sheet(path: Path, target: str | int = -1, task: Task = "auto") -> Sheet:
    """The table of a text or Parquet file; one that was just read is not read again."""
    about = path.stat()
    return _read_sheet(path, str(target), task, about.st_mtime_ns, about.st_size)


def fitted(train: Dataset, test: Dataset) -> tuple[Dataset, Dataset]:
    """Both parts as a model is given them: medians, scales and categories are those of the training part."""
    if train.table is None or test.table is None:
        return train, test
    encoder = train.table.encoder()
    _check_size(train.name, train.table, len(train) + len(test))
    with np.errstate(over="ignore", invalid="ignore"):
        x = np.asarray(encoder.fit_transform(train.table.frame), np.float32)
        tested = np.asarray(encoder.transform(test.table.frame), np.float32)
    for part in (x, tested):
        if not np.isfinite(part).all():
            place = int(np.argwhere(~np.isfinite(part))[0, 1])
            name = shortened(encoder.get_feature_names_out()[place].partition("__")[2])
            got = "numbers so large that their mean or variance is infinite"
            raise fault(Path(train.name), f"hold numbers that can be standardised in {name!r}", got, "Rescale it.")
    return replace(train, x=x), replace(test, x=tested)


def whole_table(path: str | Path, target: str | int = -1, task: Task = "auto") -> Dataset:
    """All rows of a table as a `Dataset`: its columns are encoded and standardised over all of them.

    For looking at a table as a whole; a part that judges a model must not be among what its columns are fitted on, and
    `load` keeps it apart.
    """
    sheet = read_sheet(Path(path).expanduser(), target, task)
    data = as_read(sheet)
    return fitted(data, data)[0]


def as_read(sheet: Sheet) -> Dataset:
    """The rows with their columns as they are; `fitted` gives `x`."""
    nothing = np.zeros((len(sheet.y), 0), np.float32)
    return Dataset(nothing, sheet.y, sheet.classes, sheet.name, table=sheet.table)


@lru_cache(maxsize=1)
def _read_sheet(path: Path, target: str, task: Task, changed: int, size: int) -> Sheet:
    cells = (read_parquet if path.suffix.lower() in (".parquet", ".pq") else read_delimited)(path)
    names, repeated = _told_apart(cells.names)
    rows = cells.table.num_rows
    if len(names) < 2 or not rows:
        got = f"{len(names):,} columns and {rows:,} rows"
        raise fault(path, "hold a target, a column of features at least, and rows", got, FIX)
    place = place_of(path, cells.names, names, target)
    y = labels_of(path, cells.table.column(place), names[place], task)
    features = [at for at in range(len(names)) if at != place]
    found = {names[at]: typed(cells.table.column(at), cells.names[at]) for at in features}
    table = _table(found, [*_opening(cells, rows, len(names), repeated), *y.notes])
    if not (table.numbers or table.words):
        left = listed([f"{name} ({column.remark})" for name, column in found.items()])
        raise fault(path, "have a column that a model can learn from", f"none: {left}", "Add columns that vary.")
    known = np.flatnonzero(y.known)
    return Sheet(path.name, table.take(known), y.values[known], y.classes)


def _opening(cells: Cells, rows: int, columns: int, repeated: int) -> list[str]:
    how = ", ".join(["", *cells.remarks])
    notes = [f"{rows:,} rows, {columns:,} columns{how}"]
    return [*notes, f"{repeated:,} columns with a name that came before have a number after it"] if repeated else notes


def _told_apart(names: Sequence[str]) -> tuple[list[str], int]:
    """A different name for every column: those without one by their number from 0, repeated ones with a number."""
    found: dict[str, None] = {}
    repeated = 0
    for at, given in enumerate(names):
        name, times = given or str(at), 2
        repeated += name in found and bool(given)
        while name in found:
            name, times = f"{given or at}.{times}", times + 1
        found[name] = None
    return list(found), repeated


def _table(columns: dict[str, TypedColumn], notes: list[str]) -> Table:
    """The columns that are used, with a sentence about all of them."""
    pd = require("pandas", extra="lab", where="load")
    used = {name: column.values for name, column in columns.items() if column.kind != "left out"}
    frame = pd.DataFrame(used, copy=False)
    numbers = tuple(name for name, column in columns.items() if column.kind == "number")
    words = tuple(name for name, column in columns.items() if column.kind == "word")
    return Table(frame, numbers, words, (*notes, *_told(frame, columns, numbers, words)))


def _told(frame: Any, columns: dict[str, TypedColumn], numbers: Sequence[str], words: Sequence[str]) -> list[str]:
    """What is done to which column."""
    said = []
    if numbers:
        odd = {name: f" ({columns[name].remark})" if columns[name].remark else "" for name in numbers}
        said.append(f"standardised: {listed([shortened(name) + odd[name] for name in numbers])}")
        gaps = {name: int(frame[name].isna().sum()) for name in numbers}
        if any(gaps.values()):
            gapped = [f"{shortened(name)} ({count:,})" for name, count in gaps.items() if count]
            said.append(f"missing numbers become the median, and a column says so: {listed(gapped)}")
    if words:
        counts = {name: frame[name].nunique() for name in words}
        shown = [f"{shortened(name)} ({count:,})" for name, count in counts.items()]
        said.append(f"one column for each word: {listed(shown)}")
        wide = [shortened(name) for name, count in counts.items() if count > MOST_WORDS]
        if wide:
            said.append(f"of more than {MOST_WORDS} words the rarest share a column: {listed(wide)}")
    left = [f"{shortened(name)} ({column.remark})" for name, column in columns.items() if column.kind == "left out"]
    return [*said, f"left out: {listed(left)}"] if left else said


def _check_size(name: str, table: Table, rows: int) -> None:
    width = 2 * len(table.numbers) + sum(min(MOST_WORDS, table.frame[word].nunique()) for word in table.words)
    if (needed := 4 * width * rows) > _MOST:
        got = f"{needed:,} for {rows:,} rows of {width:,} columns"
        raise fault(Path(name), f"take at most {_MOST:,} bytes as numbers", got, "Use fewer rows or columns.")
