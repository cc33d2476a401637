"""Orders that are computed: permutations, even ones, and the same for every cut of the positions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from ordered_sgd.shuffled import hashed, shuffled


@given(st.integers(1, 3000), st.integers(0, 2**63))
def test_every_number_stands_at_one_position(n: int, key: int) -> None:
    assert np.array_equal(np.sort(shuffled(np.arange(n), n, key)), np.arange(n))


@given(st.integers(1, 10**8), st.integers(0, 100), st.data())
def test_a_part_of_the_positions_gives_the_same_numbers_as_all(n: int, key: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, n - 1))
    positions = np.arange(start, min(start + 50, n))
    together = shuffled(positions, n, key)
    assert together.tolist() == [int(shuffled(positions[i : i + 1], n, key)[0]) for i in range(len(positions))]
    assert together.min() >= 0
    assert together.max() < n


@pytest.mark.parametrize("n", [5, 10, 32, 100, 257])
def test_orders_are_as_even_as_random_ones(n: int) -> None:
    orders = np.array([shuffled(np.arange(n), n, hashed(11, key)) for key in range(3000)])
    at_first = np.bincount(orders[:, 0], minlength=n)
    steps = np.bincount((np.diff(orders, axis=1) % n).ravel(), minlength=n)[1:]  # from one number to the next
    pairs = np.bincount(orders[:, 0] * n + orders[:, -1], minlength=n * n).reshape(n, n)[~np.eye(n, dtype=bool)]
    for counts in (at_first, steps, pairs):
        assert stats.chisquare(counts).pvalue > 1e-4  # 15 tests with fixed keys


def test_two_keys_give_unrelated_orders() -> None:
    first, second = (shuffled(np.arange(10_000), 10_000, hashed(0, epoch)) for epoch in range(2))
    assert abs(stats.spearmanr(first, second).statistic) < 0.04  # four standard errors
    assert abs(stats.spearmanr(first, np.arange(10_000)).statistic) < 0.04


def test_a_hash_depends_on_every_number_and_on_their_order() -> None:
    assert len({hashed(*numbers) for numbers in [(0, 1), (1, 0), (0,), (1,), (0, 0), (0, 1, 0)]}) == 6
