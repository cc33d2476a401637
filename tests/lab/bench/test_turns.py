"""Trainings that take turns: one update per turn, whatever a loader fetches ahead."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from ordered_sgd.errors import OrderedSGDError
from ordered_sgd.lab.bench.turns import Turns


def ahead(turns: Turns, by: int) -> Iterator[Any]:
    """A loader that fetches some batches before it hands out the first."""
    fetched = [turns() for _ in range(by)]
    while True:
        fetched.append(turns())
        yield fetched.pop(0)


@pytest.mark.parametrize("by", [0, 1, 2])
@pytest.mark.parametrize("parts", [1, 3])
def test_a_turn_is_one_update_whatever_is_fetched_ahead(by: int, parts: int) -> None:
    updates: list[list[int]] = []

    def train(turns: Turns) -> None:
        loader = ahead(turns, by)
        while True:
            updates.append([next(loader) for _ in range(parts)])

    with Turns(range(100), parts).start(train) as turns:
        done = []
        for _ in range(6):
            done.append(len(updates))
            turns.next()
    first = (by + parts - 1) // parts  # turns that only fetch
    assert done == [max(0, turn - first) for turn in range(6)]
    assert [batch for update in updates for batch in update] == list(range(parts * len(updates)))


def test_trainings_run_in_turn_and_never_at_once() -> None:
    seen: list[tuple[str, int]] = []

    def training(name: str) -> Turns:
        def train(turns: Turns) -> None:
            while True:
                batch = turns()
                seen.append((name, batch))

        return Turns([1, 2]).start(train)

    with training("a") as a, training("b") as b:
        for turns in (a, b, b, a, a):
            turns.next()
    assert seen == [("a", 1), ("b", 1), ("b", 2), ("a", 2), ("a", 1)]


def test_a_turn_draws_the_same_random_numbers_in_every_training() -> None:
    drawn: list[float] = []

    def train(turns: Turns) -> None:
        while True:
            turns()
            drawn.append(torch.rand(()).item())

    with Turns([0]).start(train) as a, Turns([0]).start(train) as b:
        for turns in (a, b, a, b):
            turns.next()
    assert drawn[0] == drawn[1]
    assert drawn[2] == drawn[3] != drawn[0]


def test_a_batch_keeps_what_a_trainer_takes_out_of_it() -> None:
    batch = {"labels": 1}

    def train(turns: Turns) -> None:
        while True:
            turns().pop("labels")

    with Turns([batch]).start(train) as turns:
        turns.next()
        turns.next()
    assert batch == {"labels": 1}


def test_an_error_of_the_training_is_raised_where_the_turn_is_given() -> None:
    def train(turns: Turns) -> None:
        turns()
        raise ValueError("of the training")

    turns = Turns([0]).start(train)
    with pytest.raises(ValueError, match="of the training"):
        turns.next()
    turns.close()
    with pytest.raises(ZeroDivisionError):
        Turns([0]).start(lambda _: 1 // 0)


def test_a_training_that_ends_before_its_turns_is_an_error() -> None:
    with (
        Turns([0]).start(lambda turns: turns()) as turns,
        pytest.raises(OrderedSGDError, match="a training ended before its last turn"),
    ):
        turns.next()


def test_closing_ends_a_training_that_catches_every_exception() -> None:
    def train(turns: Turns) -> None:
        while True:
            with contextlib.suppress(Exception):
                turns()

    before = threading.active_count()
    with Turns([0]).start(train) as turns:
        turns.next()
        assert threading.active_count() == before + 1
    assert threading.active_count() == before
