"""`Dataset`: samples and labels in memory, with their origin and terms."""

import hashlib
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ordered_sgd.errors import ArgumentError, message

Split = Literal["train", "test"]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples and labels in memory, with the origin and terms that results must state.

    Parameters
    ----------
    x : ndarray
        Images of shape (n, channels, height, width) in uint8, or a table of shape (n, features) in float32 or float64.
    y : ndarray of shape (n,)
        Class numbers in int64, or floats for regression.
    classes : tuple of str
        Names of the classes; empty for regression.
    name : str
        ``"cifar10"`` for example; for a user's own data the file name or ``"arrays"``.
    split : {"train", "test"}, default="train"
        Part of the data set.
    missing : str, default=""
        What is missing from the published set, such as ``"40,000 of 50,000 training samples"``; empty if complete.
    licence : str, default=""
        Terms of the collection, as stated by its authors.

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
        """Whether part of the published set is missing."""
        return bool(self.missing)

    @property
    def label(self) -> str:
        """The name to print, including what is missing."""
        return f"{self.name} (partial: without {self.missing})" if self.partial else self.name

    @property
    def images(self) -> bool:
        """Whether the samples are images, (n, channels, height, width)."""
        return self.x.ndim == 4

    @property
    def fingerprint(self) -> str:
        """Hash of the samples and labels in their order, twelve hexadecimal digits."""
        found = hashlib.sha256()
        for array in (self.x, self.y):
            found.update(f"{array.dtype} {array.shape}".encode())
            found.update(np.ascontiguousarray(array).data)
        return found.hexdigest()[:12]

    def take(self, rows: NDArray[np.int64]) -> "Dataset":
        """The samples at these positions, in this order."""
        return replace(self, x=self.x[rows], y=self.y[rows])
