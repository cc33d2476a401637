"""Data sets whose samples carry their positions."""

import pickle
from collections import namedtuple
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from ordered_sgd import with_index
from ordered_sgd.errors import ArgumentError

Pair = namedtuple("Pair", "x y")


class Batched:
    """A data set that fetches a batch at once."""

    classes = ("a", "b")

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("the batch is fetched at once")

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [(10 * index, index % 2) for index in indices]


@pytest.mark.parametrize(
    ("sample", "expected"),
    [
        ((5.0, 1), (5.0, 1, 0)),
        ([5.0, 1], (5.0, 1, 0)),
        (Pair(5.0, 1), (5.0, 1, 0)),
        ({"x": 5.0}, {"x": 5.0, "index": 0}),
        (5.0, (5.0, 0)),
        ("text", ("text", 0)),
    ],
)
def test_a_sample_of_any_kind_gets_its_position(sample: Any, expected: Any) -> None:
    assert with_index([sample])[0] == expected
    assert with_index([sample]).__getitems__([0]) == [expected]


def test_a_loader_gives_positions_as_a_tensor() -> None:
    data = TensorDataset(torch.arange(6.0), torch.arange(6) % 2)
    x, _y, index = next(iter(DataLoader(with_index(data), batch_size=6)))
    assert torch.equal(x, index.float())


def test_a_data_set_that_fetches_batches_at_once_goes_on_doing_so() -> None:
    assert with_index(Batched()).__getitems__([1, 3]) == [(10, 1, 1), (30, 1, 3)]


def test_other_attributes_are_those_of_the_data_set() -> None:
    assert with_index(Batched()).classes == ("a", "b")
    assert len(with_index(Batched())) == 4
    assert not hasattr(with_index(Batched()), "targets")


@pytest.mark.parametrize(
    ("sample", "expected"),
    [
        ((5.0, 1), [torch.tensor([5.0, 5.0]).double(), torch.tensor([1, 1])]),
        ((5.0,), [torch.tensor([5.0, 5.0]).double()]),
        (5.0, torch.tensor([5.0, 5.0]).double()),
        ({"x": 5.0}, {"x": torch.tensor([5.0, 5.0]).double()}),
    ],
)
def test_positions_are_taken_out_of_a_batch_again(sample: Any, expected: Any) -> None:
    data = with_index([sample, sample])
    for workers in (0, 1):
        (batch,) = DataLoader(data, batch_size=2, num_workers=workers)
        rest, index = data.taken_out(batch)
        torch.testing.assert_close(rest, expected)
        assert index.tolist() == [0, 1]
    assert data.taken_out("no batch of tensors") == ("no batch of tensors", None)


def test_an_indexed_data_set_is_not_indexed_again_and_survives_a_pickle() -> None:
    data = with_index([(1, 2)])
    assert with_index(data) is data
    assert pickle.loads(pickle.dumps(data))[0] == (1, 2, 0)


def test_a_stream_of_samples_is_refused() -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter(range(3))

    with pytest.raises(ArgumentError, match="must be a map-style data set"):
        with_index(Stream())


def test_a_key_that_the_samples_have_is_refused() -> None:
    with pytest.raises(ArgumentError, match="Choose another name"):
        with_index([{"index": 7}])[0]
    assert with_index([{"index": 7}], key="position")[0] == {"index": 7, "position": 0}
