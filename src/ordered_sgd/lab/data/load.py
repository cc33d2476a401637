"""`load`: a data set by name, or a user's own file."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ordered_sgd.errors import DataError, check_choice, message, require
from ordered_sgd.lab.data.catalog import CATALOG, IDX_FILES, Entry, data_root, find
from ordered_sgd.lab.data.cifar import read_batch
from ordered_sgd.lab.data.custom import held_out, is_file_name, read_table
from ordered_sgd.lab.data.dataset import Dataset, Split
from ordered_sgd.lab.data.figure1 import figure1
from ordered_sgd.lab.data.files import fault
from ordered_sgd.lab.data.idx import read_images, read_labels
from ordered_sgd.lab.data.semeion import included_semeion, read_order, read_semeion
from ordered_sgd.lab.data.svhn import read_svhn
from ordered_sgd.lab.data.target import Task

_SPLITS: tuple[Split, ...] = ("train", "test")
_ADJECTIVE = {"train": "training", "test": "test"}
Arrays = tuple[NDArray[Any], NDArray[Any]]


def load(
    name: str | Path,
    split: Split = "train",
    partial: bool = False,
    *,
    target: str | int = -1,
    seed: int = 0,
    task: Task = "auto",
) -> Dataset:
    """A data set in memory: images as uint8 (n, channels, height, width), tables and points as floats (n, features).

    Parameters
    ----------
    name
        ``"semeion"``, which comes with the package; ``"mnist"``, ``"kmnist"``, ``"fashion-mnist"``, ``"cifar10"``,
        ``"cifar100"``, ``"svhn"``, read from `data_root`; ``"digits"``, which scikit-learn brings; ``"figure1a"`` to
        ``"figure1d"``, which are drawn; or the path of a .npz file, of a table in text (.csv, .tsv, .data, ..., packed
        with gzip or not) or of a Parquet file.
    split
        ``"train"`` or ``"test"``, as published. Semeion: the first 1000 of the authors' permutation, and the other
        593. Digits: `tables.held_out`, 359 of 1797 for the test. Figure 1: the test part is a second draw. A file: its
        own parts, if it is a .npz file with the arrays x_train, y_train, x_test and y_test; of arrays x and y and of a
        table a fifth is held out for the test by `tables.held_out`, of each class or, for regression, of all.
    partial
        Whether a set of which only part is here is welcome; its `missing` then says what is not. Without it that is an
        error.
    target
        Of a table the column of labels, by name or by number; the last one unless told otherwise. Words and a few
        whole numbers are classes, other numbers are targets of a regression; all other columns are features.
    seed
        Which fifth is held out, and what is drawn for Figure 1; a published split does not depend on it.
    task
        Of a table whether the target is ``"classification"`` or ``"regression"``; ``"auto"`` looks at its values.

    Raises
    ------
    DataError
        When a file is missing, damaged or not what it claims to be. Structure is checked, checksums are not: that is
        what ``osgd data verify`` does.

    Examples
    --------
    >>> data = load("figure1b")
    >>> data.x.shape, data.classes, data.y.sum()
    ((200, 2), ('0', '1'), np.int64(4))
    """
    check_choice("load", "split", split, _SPLITS)
    if str(name) not in CATALOG and is_file_name(name):
        return read_table(Path(name).expanduser(), split, target, seed=seed, task=task)
    near = str(name).lower().replace("_", "-")
    remedy = f"Did you mean {near!r}?" if near in CATALOG else "Of a file give the path, such as pets.csv."
    check_choice("load", "name", str(name), tuple(CATALOG), remedy)
    entry = CATALOG[str(name)]
    if not entry.downloads:
        return _made(entry, split, seed)
    root = data_root()
    (x, y), absent = _READERS[entry.name](entry, split, root)
    missing = ""
    if len(x) < entry.counts[split]:
        missing = f"{entry.counts[split] - len(x):,} of {entry.counts[split]:,} {_ADJECTIVE[split]} samples"
    if missing and not partial:
        files = f" (no {', '.join(absent)})" if absent else ""
        got = f"a set without {missing}{files} in {root}"
        remedy = f"Run: osgd data fetch {entry.name}, or pass partial=True."
        raise DataError(message("load", entry.name, "be whole", got, remedy))
    return Dataset(x, y, entry.classes, entry.name, split, missing, entry.licence)


def _made(entry: Entry, split: Split, seed: int) -> Dataset:
    """A set that needs no file of ours."""
    if entry.name != "digits":
        draw = 2 * seed + _SPLITS.index(split)
        points = figure1(entry.name.removeprefix("figure1"), seed=draw)  # type: ignore[arg-type]
        return replace(points, split=split, licence=entry.licence)
    digits = require("sklearn.datasets", extra="linear", where="load").load_digits()
    x = np.rint(digits.images * (255 / 16)).astype(np.uint8)[:, None]  # from 0 ... 16
    y = digits.target.astype(np.int64)
    test = held_out(y, stratify=True, seed=seed)
    rows = np.flatnonzero(test if split == "test" else ~test)
    return Dataset(x, y, entry.classes, entry.name, split, licence=entry.licence).take(rows)


def _present(entry: Entry, path: str, root: Path) -> Path:
    """Where a file of the set is; an error that says how to get it if it is not."""
    found = find(root, path)
    if found is None:
        remedy = f"Run: osgd data fetch {entry.name}"
        raise DataError(message("load", entry.name, "be in the data folder", f"no {path} in {root}", remedy))
    return found


def _idx(entry: Entry, split: Split, root: Path) -> tuple[Arrays, list[str]]:
    folder = PurePosixPath(entry.downloads[0].path).parent
    images = _present(entry, f"{folder}/{IDX_FILES[split, 'images']}", root)
    labels = _present(entry, f"{folder}/{IDX_FILES[split, 'labels']}", root)
    most = entry.counts[split]
    x, y = read_images(images, most, entry.shape), read_labels(labels, most, len(entry.classes))
    if len(x) != len(y):
        raise fault(labels, f"hold a label for each of {len(x):,} images", f"{len(y):,}")
    return (x, y), []


def _cifar(entry: Entry, split: Split, root: Path) -> tuple[Arrays, list[str]]:
    key = "labels" if entry.name == "cifar10" else "fine_labels"
    # cifar10: data_batch_1 ... data_batch_5, test_batch; cifar100: train, test
    kinds = {"train": ("data_batch", "train"), "test": ("test",)}[split]
    paths = [path for path in entry.downloads[0].members if PurePosixPath(path).name.startswith(kinds)]
    found = [place for path in paths if (place := find(root, path)) is not None]
    if not found:
        _present(entry, paths[0], root)
    whole = entry.counts[split]
    x = np.empty((whole, *entry.shape), np.uint8)  # filled batch by batch: no second copy of everything
    y, n = np.empty(whole, np.int64), 0
    for place in found:
        images, labels = read_batch(place, whole // len(paths), key, len(entry.classes))
        x[n : n + len(images)], y[n : n + len(images)] = images, labels
        n += len(images)
    absent = [PurePosixPath(path).name for path in paths if find(root, path) is None]
    return (x[:n], y[:n]), absent


def _svhn(entry: Entry, split: Split, root: Path) -> tuple[Arrays, list[str]]:
    path = _present(entry, f"svhn/{split}_32x32.mat", root)
    return read_svhn(path, entry.counts[split]), []


def _semeion(entry: Entry, split: Split, root: Path) -> tuple[Arrays, list[str]]:
    """From the data folder if it has the file, else from the package; both are the same bits."""
    data, permutation = (download.path for download in entry.downloads)
    n, given = sum(entry.counts.values()), find(root, data)
    x, y = included_semeion() if given is None else read_semeion(given, n)
    order = read_order(find(root, permutation), n)
    cut = entry.counts["train"]
    rows = order[:cut] if split == "train" else order[cut:]
    rows = rows[rows < len(x)]  # of a partial file, those that are here
    return (x[rows], y[rows]), []


_READERS: dict[str, Callable[[Entry, Split, Path], tuple[Arrays, list[str]]]] = {
    "semeion": _semeion,
    "mnist": _idx,
    "kmnist": _idx,
    "fashion-mnist": _idx,
    "cifar10": _cifar,
    "cifar100": _cifar,
    "svhn": _svhn,
}
