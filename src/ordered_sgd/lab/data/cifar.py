"""CIFAR's batches: a pickled dictionary of pixels and labels, read without running the pickle."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ordered_sgd.lab.data.files import fault
from ordered_sgd.lab.data.unpickle import PickledArray, read_pickle

_PIXELS = 3 * 32 * 32
_NAME = 256  # bytes left for the name, the labels and the bookkeeping of a sample; CIFAR itself takes about 35
_STEPS = 20  # instructions likewise; CIFAR itself takes about 4
_FRAME = 1 << 16  # and for what a file has once


def read_batch(path: Path, most: int, labels: str, classes: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images (n, 3, 32, 32), read-only, and class numbers (n,) of a batch of at most `most` samples.

    `labels` is the key of the class numbers: ``"labels"`` in CIFAR-10, ``"fine_labels"`` in CIFAR-100.
    """
    # Python 3 writes bytes for Python 2 as text, where a pixel takes up to two bytes
    batch = read_pickle(path, most * (2 * _PIXELS + _NAME) + _FRAME, most * _STEPS + _FRAME)
    absent = [key for key in ("data", labels) if key not in batch]
    if absent:
        raise fault(path, f"have the keys 'data' and {labels!r}", f"no {absent[0]!r}")
    if not isinstance(batch["data"], PickledArray):
        raise fault(path, "hold an array under 'data'", type(batch["data"]).__name__)
    x = batch["data"].uint8(path)
    if x.ndim != 2 or x.shape[1] != _PIXELS or not 1 <= len(x) <= most:
        raise fault(path, f"hold 1 to {most:,} rows of {_PIXELS} pixels", f"shape {x.shape}")
    y = _class_numbers(path, batch[labels], classes)
    if len(x) != len(y):
        raise fault(path, "hold as many labels as images", f"{len(y):,} for {len(x):,}")
    return x.reshape(-1, 3, 32, 32), y


def _class_numbers(path: Path, given: object, classes: int) -> NDArray[np.int64]:
    if not isinstance(given, list) or not all(type(label) is int for label in given):
        raise fault(path, "hold its labels as a list of int", "something else")
    wrong = next((place for place, label in enumerate(given) if not 0 <= label < classes), None)
    if wrong is not None:
        raise fault(path, f"hold labels from 0 to {classes - 1}", f"another one at position {wrong}")
    return np.array(given, np.int64)
