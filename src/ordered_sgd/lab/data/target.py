"""The target of a table: where it is, and whether it is classes or a number to be predicted."""

from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ordered_sgd.errors import ArgumentError, message, require
from ordered_sgd.lab.data.columns import numbers_of, words_of
from ordered_sgd.lab.data.files import fault
from ordered_sgd.lab.data.naming import listed, nearest, shortened

Task = Literal["auto", "classification", "regression"]
_FEW = 20  # whole numbers that are classes without a doubt
_MOST = 1000  # classes
_EACH = 20  # samples of each class, on average, that more classes need


class Labels(NamedTuple):
    """Class numbers or targets, the classes' names, which rows have one, and sentences about them."""

    values: NDArray[Any]
    classes: tuple[str, ...]
    known: NDArray[np.bool_]
    notes: tuple[str, ...]


def place_of(path: Path, given: list[str], names: list[str], target: str) -> int:
    """The position of the target, by name or by number, negative from the end.

    `given` are the names in the file, `names` those by which columns are told apart.
    """
    for known in (given, names):
        if target in known:
            return known.index(target)
    number = int(target) if target.lstrip("-").isdecimal() and len(target) < 10 else None
    if number is not None and -len(names) <= number < len(names):
        return number % len(names)
    near = nearest(target, names)
    remedy = f"Did you mean {shortened(near)!r}?" if near else "Name one, or give its number; -1 is the last."
    there = f"{len(names):,} columns: {listed([shortened(name) for name in names])}"
    got = f"{shortened(target)!r}; it has {there}"
    raise ArgumentError(message(f"load: {path}", "target", "be the name or the number of a column", got, remedy))


def labels_of(path: Path, cells: Any, name: str, task: Task) -> Labels:
    """The labels of a column; rows without one are left out of training and test."""
    pa = require("pyarrow", extra="lab", where="load")
    cells = cells.combine_chunks()
    numbers, remark = numbers_of(pa, cells)
    short = shortened(name)
    if task == "regression" and numbers is None:
        words = [shortened(word) for word in words_of(pa, cells).dictionary.to_pylist() if word is not None]
        got = f"words such as {listed(words, 3)}"
        raise fault(path, f"hold numbers in the target {short!r} for a regression", got, "Use --task classification.")
    wanted = task
    if task == "auto":
        wanted = "regression" if numbers is not None and _continuous(numbers) else "classification"
    found = _targets(numbers) if wanted == "regression" else _classes(pa, cells, numbers)
    if not found.known.any():
        raise fault(path, f"hold labels in the target {short!r}", "none", "Name another target.")
    _check(path, found, short, wanted)
    notes = [_said(found, short, wanted, chosen=task == "auto", remark=remark)]
    missing = int((~found.known).sum())
    notes += [f"{missing:,} rows without a target are left out"] if missing else []
    return found._replace(notes=tuple(notes))


def _continuous(numbers: NDArray[Any]) -> bool:
    """Whether numbers are to be predicted: broken ones, or more whole ones than classes have."""
    distinct, counts = np.unique(numbers[np.isfinite(numbers)], return_counts=True)
    if len(distinct) <= 2:
        return False
    if not (distinct == np.floor(distinct)).all():
        return True
    if len(distinct) <= _FEW:
        return bool(counts.sum() < 2 * len(distinct))  # hardly one of them comes twice
    numbered = distinct[0] in (0, 1) and len(distinct) == distinct[-1] - distinct[0] + 1
    return not (numbered and len(distinct) <= _MOST and counts.min() >= _EACH)


def _targets(numbers: NDArray[Any]) -> Labels:
    return Labels(numbers, (), np.isfinite(numbers), ())


def _classes(pa: Any, cells: Any, numbers: NDArray[Any] | None) -> Labels:
    """Classes in the order of their numbers or words, named as they are written in the file."""
    words = words_of(pa, cells)
    places = words.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    if numbers is not None:
        distinct = np.unique(numbers[np.isfinite(numbers)])
        y = np.searchsorted(distinct, np.nan_to_num(numbers))
        return Labels(y.astype(np.int64), tuple(f"{value:.15g}" for value in distinct), np.isfinite(numbers), ())
    names = words.dictionary.to_pylist()
    order = sorted((at for at, word in enumerate(names) if word is not None), key=lambda at: names[at])
    rank = np.full(len(names) + 1, -1, np.int64)
    rank[order] = np.arange(len(order))
    y = rank[places]
    return Labels(y, tuple(names[at] for at in order), y >= 0, ())


def _check(path: Path, found: Labels, name: str, task: str) -> None:
    values = found.values[found.known]
    if task == "regression":
        if len(np.unique(values)) < 2:
            raise fault(path, f"have a target {name!r} that varies", f"{values[0]:g} in every row", "Name another one.")
        return
    if len(found.classes) < 2:
        got = f"{shortened(found.classes[0])!r} alone"
        raise fault(path, f"hold two classes or more in the target {name!r}", got, "Name another target.")
    if len(found.classes) > _MOST or (len(values) >= 2 * _FEW and len(found.classes) > len(values) / 2):
        some = listed([shortened(name) for name in found.classes], 3)
        got = f"{len(found.classes):,} in {len(values):,} rows, such as {some}"
        rule = f"hold classes that come again in the target {name!r}, at most {_MOST:,}"
        raise fault(path, rule, got, "Name another target, or use --task regression for numbers.")


def _said(found: Labels, name: str, task: str, *, chosen: bool, remark: str) -> str:
    values = found.values[found.known]
    extra = f" ({remark})" if remark else ""
    if task == "regression":
        other = "; --task classification makes them classes" if chosen else ""
        return f"target {name}: a number to be predicted{extra}, {values.min():.4g} to {values.max():.4g}{other}"
    counts = np.bincount(values, minlength=len(found.classes))
    order = np.argsort(-counts, kind="stable")
    shares = [f"{shortened(found.classes[at])} ({100 * counts[at] / len(values):.3g} %)" for at in order]
    return f"target {name}: {len(found.classes):,} classes, {listed(shares, 4)}"
