"""`Dataset`: samples and labels in memory, with their origin and terms."""

import hashlib
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ordered_sgd.errors import ArgumentError, message
from ordered_sgd.lab.data.naming import listed, shortened
from ordered_sgd.lab.data.raw import Table

Split = Literal["train", "test"]


@dataclass(frozen=True, eq=False, repr=False)
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
    scale : tuple of float, default=(0.0, 1.0)
        Of a regression whose targets are standardised: the mean and the standard deviation that they had.
    table : Table or None, default=None
        Of a user's table the columns as they are in the file, from which `lab.data.tabular.fitted` makes `x`.

    Examples
    --------
    >>> one = Dataset(np.zeros((3, 2), np.float32), np.array([0, 1, 1]), ("no", "yes"), "arrays")
    >>> len(one), one.partial, one.label
    (3, False, 'arrays')
    >>> one
    <Dataset arrays, training part: 3 samples of 2 features, 2 classes: yes (2), no (1)>
    """

    x: NDArray[Any]
    y: NDArray[Any]
    classes: tuple[str, ...]
    name: str
    split: Split = "train"
    missing: str = ""
    licence: str = ""
    scale: tuple[float, float] = (0.0, 1.0)
    table: Table | None = None

    def __repr__(self) -> str:
        part = "training" if self.split == "train" else "test"
        shape = " x ".join(map(str, self.x.shape[1:]))
        what = f"images of {shape}" if self.images else f"samples of {shape} features"
        return f"<Dataset {shortened(self.label, 80)}, {part} part: {len(self):,} {what}, {self._targets()}>"

    def _targets(self) -> str:
        if not self.classes:
            span = f", {np.min(self.y):.4g} to {np.max(self.y):.4g}" if len(self) else ""
            return f"a number to be predicted{span}"
        counts = np.bincount(self.y, minlength=len(self.classes))
        order = np.argsort(-counts, kind="stable")
        named = [f"{shortened(self.classes[at])} ({counts[at]:,})" for at in order]
        return f"{len(self.classes):,} classes: {listed(named, 5)}"

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

    def standardised(self, scale: tuple[float, float]) -> "Dataset":
        """The same samples with the targets of a regression in standard deviations from this mean."""
        return replace(self, y=((self.y - scale[0]) / scale[1]).astype(np.float32), scale=scale)

    def take(self, rows: NDArray[np.int64]) -> "Dataset":
        """The samples at these positions, in this order."""
        table = None if self.table is None else self.table.take(rows)
        return replace(self, x=self.x[rows], y=self.y[rows], table=table)
