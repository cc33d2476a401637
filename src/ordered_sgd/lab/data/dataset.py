"""`Dataset`: samples and labels in memory, and what must be said about them."""

import hashlib
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ordered_sgd.errors import ArgumentError, message

Split = Literal["train", "test"]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples, labels, and what must be said about them wherever something is computed from them.

    Parameters
    ----------
    x
        Images (n, channels, height, width) uint8, or a table (n, features) of float32 or float64.
    y
        Class numbers (n,) int64; float for regression.
    classes
        Name of every class; empty for regression.
    name
        ``"cifar10"``; for a user's own data the file's name or ``"arrays"``.
    split
        ``"train"`` or ``"test"``.
    missing
        What of the published set is not here, ``"40,000 of 50,000 training samples"``; empty when it is whole.
    licence
        Terms of the collection, as its makers state them.

    Examples
    --------
    >>> one = Dataset(np.zeros((3, 2), np.float32), np.array([0, 1, 1]), ("no", "yes"), "arrays")
    >>> len(one), one.partial, one.label
    (3, False, 'arrays')
    """

    x: NDArray[Any]
    y: NDArray[Any]
    classes: tuple[str, ...]
    name: str
    split: Split = "train"
    missing: str = ""
    licence: str = ""

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y) or self.y.ndim != 1:
            got = f"{len(self.x)} samples and labels of shape {self.y.shape}"
            raise ArgumentError(message(self.name, "y", "hold one label per sample", got, "Check the two arrays."))

    def __len__(self) -> int:
        return len(self.x)

    @property
    def partial(self) -> bool:
        """Whether some of the published set is not here."""
        return bool(self.missing)

    @property
    def label(self) -> str:
        """The name to print: it says what is missing."""
        return f"{self.name} (partial: without {self.missing})" if self.partial else self.name

    @property
    def images(self) -> bool:
        """Whether the samples are images, (n, channels, height, width)."""
        return self.x.ndim == 4

    @property
    def fingerprint(self) -> str:
        """Twelve hexadecimal digits that change with the samples, the labels or their order."""
        found = hashlib.sha256()
        for array in (self.x, self.y):
            found.update(f"{array.dtype} {array.shape}".encode())
            found.update(np.ascontiguousarray(array).data)
        return found.hexdigest()[:12]

    def take(self, rows: NDArray[np.int64]) -> "Dataset":
        """The samples at these positions, in this order."""
        return replace(self, x=self.x[rows], y=self.y[rows])
