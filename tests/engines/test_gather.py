"""Chosen samples of micro-batches of any structure, as micro-batches of their own."""

from typing import Any

import numpy as np
import pytest
import torch

from ordered_sgd.engines.gather import ScoredPart, gather
from ordered_sgd.engines.replay import Drawn
from ordered_sgd.rewind import random_state


def scored(part: Any, s: int) -> ScoredPart:
    return ScoredPart(part, torch.zeros(s), random_state(torch.device("cpu")), [], Drawn())


def test_kept_samples_fill_as_few_micro_batches_as_possible_of_nearly_equal_sizes() -> None:
    parts = [scored((torch.arange(i, i + 4), None), 4) for i in range(0, 16, 4)]
    chosen = [torch.tensor(rows) for rows in ([0, 2], [1], [], [0, 3])]
    first, second = gather(parts, [rows.long() for rows in chosen])
    assert [first.batch[0].tolist(), second.batch[0].tolist()] == [[0, 2], [5, 12, 15]]
    assert first.batch[1] is None
    (one,) = gather(parts, [rows[:0].long() for rows in chosen[:3]] + [torch.tensor([3])])
    assert one.batch[0].tolist() == [15, 15]  # never a single row
    assert one.place is not None
    assert one.place.tolist() == [0]


def test_samples_are_gathered_from_dicts_tuples_and_lists_and_the_rest_is_passed_on() -> None:
    table = torch.randn(7, 2)

    def part(s: int) -> ScoredPart:
        x = {"ids": torch.arange(s), "nested": ([torch.ones(s, 2) * s], "name", 3), "table": table}
        return scored((x, torch.arange(s), torch.rand(s)), s)

    (found,) = gather([part(3), part(5)], [torch.tensor([2]), torch.tensor([0, 4])])
    x, y, weight = found.batch
    assert x["ids"].tolist() == y.tolist() == [2, 0, 4]
    assert x["nested"][0][0].tolist() == [[3.0, 3.0], [5.0, 5.0], [5.0, 5.0]]
    assert x["nested"][1:] == ("name", 3)
    assert x["table"] is table
    assert weight.shape == (3,)


@pytest.mark.parametrize(
    "other",
    [
        {"x": torch.zeros(3, 5)},
        {"x": torch.zeros(3, 4, dtype=torch.float64)},
        {"x": torch.zeros(3, 4), "more": 1},
        {"x": torch.zeros(3, 4).requires_grad_()},
        {"x": (torch.zeros(3, 4),)},
        {"x": torch.zeros(2, 4)},
    ],
)
def test_samples_of_another_shape_type_or_structure_are_not_joined(other: Any) -> None:
    parts = [scored({"x": torch.zeros(3, 4)}, 3), scored(other, 3)]
    assert len(gather(parts, [torch.tensor([0]), torch.tensor([1])])) == 2


@pytest.mark.parametrize(
    ("one", "other", "joined"),
    [(0.5, 0.5, True), (0.5, 0.7, False), (torch.ones(2), torch.ones(2), True), (torch.ones(2), torch.zeros(2), False),
     (1, True, False), (np.ones(2), np.ones(2), False)],
)  # fmt: skip
def test_what_is_not_per_sample_must_be_equal(one: Any, other: Any, joined: bool) -> None:
    parts = [scored((torch.zeros(3, 4), value), 3) for value in (one, other)]
    assert (len(gather(parts, [torch.tensor([0]), torch.tensor([1])])) == 1) == joined


def test_long_sequences_are_not_gathered_into_larger_micro_batches_than_they_came_in() -> None:
    parts = [scored(torch.zeros(s, length), s) for s, length in ((8, 3), (2, 9), (2, 9))]
    gathered = gather(parts, [torch.arange(5), torch.arange(2), torch.arange(1)])
    assert [tuple(one.batch.shape) for one in gathered] == [(5, 3), (2, 9), (2, 9)]
