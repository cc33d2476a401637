"""IDX files, packed or not: the format of MNIST and its relatives."""

import math
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ordered_sgd.lab.data.files import fault, opened, take


def read_idx(path: Path, most: int, sample: tuple[int, ...]) -> NDArray[np.uint8]:
    """The array of an IDX file of bytes: at most `most` samples of the given shape, ``()`` for labels.

    The file begins with two zero bytes, the type (8: unsigned byte) and the number of dimensions; then the dimensions,
    four bytes each, most significant first; then the values, the last dimension fastest.
    """
    dims = 1 + len(sample)
    magic, size = bytes((0, 0, 8, dims)), 4 + 4 * dims
    with opened(path, size + most * math.prod(sample), unpack=True) as handle:
        head = handle.read(size)
        if head[:4] != magic:
            raise fault(path, f"begin with the IDX magic number {magic.hex()}", head[:4].hex() or "no bytes")
        if len(head) < size:
            raise fault(path, f"hold a header of {size} bytes", len(head))
        n, *rest = struct.unpack(f">{dims}I", head[4:])
        if tuple(rest) != sample:
            raise fault(path, f"hold samples of shape {sample}", tuple(rest))
        if not 1 <= n <= most:
            raise fault(path, f"hold 1 to {most:,} samples", f"{n:,} in its header")
        return take(handle, n * math.prod(sample), path).reshape(n, *sample)


def read_images(path: Path, most: int, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Images (n, 1, height, width); `shape` is that of one."""
    images = read_idx(path, most, shape[1:])
    return images.reshape(-1, *shape)


def read_labels(path: Path, most: int, classes: int) -> NDArray[np.int64]:
    """Class numbers (n,), each below `classes`."""
    labels = read_idx(path, most, ())
    wrong = np.flatnonzero(labels >= classes)
    if wrong.size:
        raise fault(path, f"hold labels from 0 to {classes - 1}", f"{labels[wrong[0]]} at position {wrong[0]}")
    return labels.astype(np.int64)
