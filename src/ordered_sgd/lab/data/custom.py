"""A user's own data, in arrays or in a file, as a `Dataset`: which file, and which part of it."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ordered_sgd.errors import ArgumentError, DataError, check_choice, message
from ordered_sgd.lab.data.dataset import Dataset, Split
from ordered_sgd.lab.data.delimited import FIX
from ordered_sgd.lab.data.files import opened
from ordered_sgd.lab.data.naming import beside
from ordered_sgd.lab.data.npz import read_npz
from ordered_sgd.lab.data.tabular import as_read, fitted, read_sheet
from ordered_sgd.lab.data.target import Task

SUFFIXES = (".npz", ".csv", ".parquet", ".pq", ".tsv", ".tab", ".txt", ".data", ".dat", ".tra", ".test", ".tst", ".gz")
_REFUSED = (".xlsx", ".xls", ".ods", ".json", ".jsonl", ".feather", ".arff", ".zip", ".bz2", ".xz", ".h5", ".hdf5")
_PARTS = ("x_train", "y_train", "x_test", "y_test")
_CHANNELS = (1, 3, 4)

Fail = Callable[[str, str, object, str], Exception]  # (name, rule, got, remedy)


def from_arrays(
    x: ArrayLike, y: ArrayLike, *, classes: Sequence[str] = (), name: str = "arrays", split: Split = "train"
) -> Dataset:
    """The `Dataset` of arrays in memory.

    Parameters
    ----------
    x
        A table (n, features) of numbers: float64 stays, everything else becomes float32. Or images of uint8,
        (n, channels, height, width) or, grey, (n, height, width).
    y
        Labels (n,): words, booleans and integers are classes, numbered in sorted order; floats are targets of a
        regression.
    classes
        A name for every class, when y already holds class numbers from 0.
    name, split
        What the data set is called, and which part of it this is.

    Examples
    --------
    >>> data = from_arrays([[0.5, 1.0], [2.0, 3.0], [4.0, 5.0]], ["yes", "no", "yes"])
    >>> data.classes, data.y
    (('no', 'yes'), array([1, 0, 1]))
    >>> from_arrays([[0.5], [1.5]], [0.1, 0.7]).classes
    ()
    """

    def fail(what: str, rule: str, got: object, remedy: str) -> Exception:
        return ArgumentError(message("from_arrays", what, rule, got, remedy))

    check_choice("from_arrays", "split", split, ("train", "test"))
    samples, given = _samples(np.asarray(x), fail), np.asarray(y)
    (labels,), names = _labels([given], fail)
    if len(samples) != len(labels):
        raise fail("y", "hold one label per sample", f"{len(labels)} for {len(samples)}", "Check the two arrays.")
    if classes:
        labels, names = _named(given, len(classes), fail), tuple(classes)
    return Dataset(samples, labels, names, name, split)


def is_file_name(name: str | Path) -> bool:
    """Whether this names a file of the user's: by its ending, by a folder in it, or because it is there.

    >>> is_file_name("pets.csv"), is_file_name("data/adult.data.gz"), is_file_name("mnist")
    (True, True, False)
    """
    path = Path(name).expanduser()
    return isinstance(name, Path) or bool(path.suffix) or len(path.parts) > 1 or path.is_file()


def read_table(path: Path, split: Split, target: str | int = -1, *, seed: int = 0, task: Task = "auto") -> Dataset:
    """The training or test part of a user's .npz, text or Parquet file.

    A .npz file with the arrays x_train, y_train, x_test and y_test has its own parts. Of any other the test part is a
    fifth chosen by `held_out`, the training part the rest. The columns of a table are encoded, filled in and
    standardised by what the training part holds.
    """
    _check_there(path)
    if path.suffix.lower() == ".npz":
        return _read_npz(path, split, seed)
    sheet = read_sheet(path, target, task)
    test = held_out(sheet.y, stratify=bool(sheet.classes), seed=seed)
    if not test.any() or test.all():
        got = f"{len(test)} samples of {len(sheet.classes) or 'no'} classes"
        rule = "have samples for a training and a test part"
        raise DataError(message("load", f"the target in {path}", rule, got, "Use a larger table."))
    data = as_read(sheet)
    train, tested = fitted(data.take(np.flatnonzero(~test)), data.take(np.flatnonzero(test)))
    return train if split == "train" else replace(tested, split="test")


def _check_there(path: Path) -> None:
    """Refuse a path at which no file of a known kind lies; the message names the files beside it."""
    if not path.exists():
        got, remedy = beside(path, SUFFIXES)
        raise DataError(message("load", str(path), "exist", got, remedy))
    if path.suffix.lower() in _REFUSED:
        rule = "be a table in text, Parquet or .npz"
        raise DataError(message("load", str(path), rule, path.suffix, "Save it as .csv; .gz is the one packing read."))
    with opened(path, None):
        pass  # a file, and open to us


def _read_npz(path: Path, split: Split, seed: int) -> Dataset:
    def fail(what: str, rule: str, got: object, remedy: str) -> Exception:
        return DataError(message("load", f"{what} in {path}", rule, got, remedy))

    arrays = read_npz(path, (_PARTS, ("x", "y")))
    keys = [key for key in arrays if key.startswith("y")]
    for key in keys:
        rows = len(arrays["x" + key[1:]])
        if len(arrays[key]) != rows:
            raise fail(key, "hold one label per sample", f"{len(arrays[key])} for {rows}", FIX)
    # classes are numbered over both parts, so that a number means the same in each
    labels, classes = _labels([arrays[key] for key in keys], fail)
    if len(keys) == 2:
        samples = _samples(arrays[f"x_{split}"], fail)
        return Dataset(samples, labels[keys.index(f"y_{split}")], classes, path.name, split)
    test = held_out(labels[0], stratify=bool(classes), seed=seed)
    if not test.any() or test.all():
        got = f"{len(test)} samples of {len(classes) or 'no'} classes"
        raise fail("y", "have samples for a training and a test part", got, "Use a larger table.")
    data = Dataset(_samples(arrays["x"], fail), labels[0], classes, path.name, split)
    return data.take(np.flatnonzero(test if split == "test" else ~test))


def held_out(y: NDArray[Any], *, stratify: bool, seed: int = 0) -> NDArray[np.bool_]:
    """Which samples form the test part: a fifth of each class, or of all, drawn by NumPy's generator of that seed.

    >>> held_out(np.array([0, 0, 0, 0, 0, 1, 1, 1, 1, 1]), stratify=True).reshape(2, 5).sum(axis=1)
    array([1, 1])
    """
    rng = np.random.default_rng(seed)
    chosen = np.zeros(len(y), np.bool_)
    # a stable sort brings the samples of a class together, in their order
    order = np.argsort(y, kind="stable") if stratify else np.arange(len(y))
    counts = np.unique(y, return_counts=True)[1] if stratify else np.array([len(y)])
    for rows in np.split(order, np.cumsum(counts)[:-1]):
        chosen[rng.permutation(rows)[: (len(rows) + 2) // 5]] = True  # a fifth, rounded
    return chosen


def _samples(x: NDArray[Any], fail: Fail) -> NDArray[Any]:
    """Images as (n, channels, height, width), tables as floats."""
    if x.dtype.kind not in "biuf":
        raise fail("x", "hold numbers", f"dtype {x.dtype}", "Encode words as numbers first.")
    if x.ndim == 3:
        x = x[:, None]
    if x.ndim not in (2, 4) or 0 in x.shape:
        rule = "have shape (n, features) or (n, channels, height, width)"
        raise fail("x", rule, x.shape, "Reshape it.")
    if x.ndim == 4:
        if x.dtype != np.uint8:
            raise fail("x", "hold images as uint8", f"dtype {x.dtype}", "Scale them to 0 ... 255 and cast.")
        if x.shape[1] not in _CHANNELS and x.shape[3] in _CHANNELS:
            raise fail("x", "have the channels first", f"shape {x.shape}", "Use x.transpose(0, 3, 1, 2).")
        return np.ascontiguousarray(x)
    with np.errstate(over="ignore"):  # what does not fit is refused below
        x = np.ascontiguousarray(x, _float(x))
    odd = np.argwhere(~np.isfinite(x))
    if len(odd):
        row, column = odd[0]
        got = f"{x[row, column]} in row {row}, column {column}, counted from 0"
        raise fail("x", f"be finite in {x.dtype}", got, "Fill in or leave out what is missing.")
    return x


def _labels(parts: list[NDArray[Any]], fail: Fail) -> tuple[list[NDArray[Any]], tuple[str, ...]]:
    """For each part its class numbers, and the classes' names in sorted order; targets and no names for regression."""
    kinds = {"number" if y.dtype.kind in "biu" else "target" if y.dtype.kind == "f" else "word" for y in parts}
    for y in parts:
        word = y.dtype.kind in "SU" or (y.dtype == object and all(isinstance(label, str) for label in y.flat))
        if y.ndim != 1 or not y.size or not (y.dtype.kind in "biuf" or word) or len(kinds) > 1:
            got = f"dtype {y.dtype} and shape {y.shape}"
            remedy = "Pass class numbers, words or targets, of one kind; no one-hot rows."
            raise fail("y", "hold one number or word per sample, shape (n,)", got, remedy)
    if kinds == {"target"}:
        return [_targets(y, fail) for y in parts], ()
    found = [np.unique(y, return_inverse=True) for y in parts]
    try:
        values = [[v.decode() if isinstance(v, bytes) else v for v in value.tolist()] for value, _ in found]
        "".join(str(v) for part in values for v in part).encode()  # half a surrogate pair could not even be printed
    except ValueError as error:
        raise fail("y", "hold words in UTF-8", "other bytes", FIX) from error
    classes = sorted(set().union(*values))
    number = {value: at for at, value in enumerate(classes)}
    numbers = [
        np.array([number[v] for v in part], np.int64)[inverse] for part, (_, inverse) in zip(values, found, strict=True)
    ]
    return numbers, tuple(map(str, classes))


def _float(values: NDArray[Any]) -> type[np.floating[Any]]:
    return np.float64 if values.dtype.kind == "f" and values.dtype.itemsize >= 8 else np.float32


def _targets(y: NDArray[Any], fail: Fail) -> NDArray[Any]:
    if not np.isfinite(y).all():
        place = np.flatnonzero(~np.isfinite(y))[0]
        raise fail("y", "be finite", f"{y[place]} at position {place}", "Leave out samples without a label.")
    return y.astype(_float(y))


def _named(y: NDArray[Any], classes: int, fail: Fail) -> NDArray[np.int64]:
    """Class numbers that the given names belong to."""
    if y.dtype.kind not in "iu" or y.min() < 0 or y.max() >= classes:
        got = f"dtype {y.dtype}" if y.dtype.kind not in "iu" else f"{y.min()} to {y.max()}"
        raise fail("y", f"hold class numbers from 0 to {classes - 1}", got, "Leave classes out to number them.")
    return y.astype(np.int64)
