"""`with_index`: a data set whose samples carry their positions, as a memory of losses needs them."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch.utils.data import Dataset, IterableDataset

from ordered_sgd.errors import ArgumentError, message


def with_index(dataset: Any, key: str = "index") -> "IndexedDataset":
    """The data set with the position of each sample added: ``(x, y)`` becomes ``(x, y, index)``.

    Parameters
    ----------
    dataset : Dataset
        A map-style data set: anything with ``len()`` and ``dataset[i]``.
    key : str, default="index"
        Name of the position in samples that are dicts.

    Examples
    --------
    >>> with_index([("a", 0), ("b", 1)])[1]
    ('b', 1, 1)
    >>> with_index([{"x": 5}])[0]
    {'x': 5, 'index': 0}
    """
    if isinstance(dataset, IterableDataset) or not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        remedy = "Losses are remembered by position, which a stream of samples does not have."
        rule = "be a map-style data set, with len() and dataset[i]"
        raise ArgumentError(message("with_index", "dataset", rule, type(dataset).__name__, remedy))
    if isinstance(dataset, IndexedDataset):
        return dataset
    return IndexedDataset(dataset, key)


class Alone(NamedTuple):
    """A sample that is no tuple and no dict, with its position; a batch of them is one as well."""

    sample: Any
    index: Any


class IndexedDataset(Dataset[Any]):
    """A data set whose samples carry their positions; every other attribute is that of the data set inside."""

    def __init__(self, dataset: Any, key: str) -> None:
        self.dataset = dataset
        self.key = key

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self._with(self.dataset[index], index)

    def __getattr__(self, name: str) -> Any:
        if name in ("dataset", "__getitems__", "__setstate__", "__getstate__"):  # while it is unpickled, it has none
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __getitems__(self, indices: list[int]) -> list[Any]:
        """The samples of a batch, fetched at once where the data set can."""
        inner = getattr(self.dataset, "__getitems__", None)
        samples = [self.dataset[index] for index in indices] if inner is None else inner(indices)
        return [self._with(sample, index) for sample, index in zip(samples, indices, strict=True)]

    def taken_out(self, batch: Any) -> tuple[Any, Any]:
        """A batch as the data set inside would have given it, and what stands where its positions should.

        A collate function may have put them elsewhere, or left them out.
        """
        if isinstance(batch, Alone):
            return batch.sample, batch.index
        if isinstance(batch, Mapping) and self.key in batch:
            rest: Any = copy.copy(batch)
            del rest[self.key]
            return rest, batch[self.key]
        if isinstance(batch, list | tuple) and len(batch) > 1:
            return batch[:-1], batch[-1]
        return batch, None

    def _with(self, sample: Any, index: int) -> Any:
        if isinstance(sample, Mapping):
            if self.key in sample:
                remedy = 'Choose another name, as in with_index(dataset, key="position").'
                raise ArgumentError(message("with_index", "key", "be new to the samples", repr(self.key), remedy))
            return {**sample, self.key: index}
        if isinstance(sample, Sequence) and not isinstance(sample, str | bytes):
            return (*sample, index)
        return Alone(sample, index)
