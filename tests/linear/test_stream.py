"""Streams against plain NumPy: the reservoir, the rate, and the average."""

import copy
import math

import numpy as np
import pytest
from scipy import sparse

from ordered_sgd.linear import stream as module
from ordered_sgd.linear.objective import Batches, Objective, State
from ordered_sgd.linear.reference import train_epoch
from ordered_sgd.linear.stream import Chunk, Stream, advance, joined, together
from ordered_sgd.rules import resolve_q

S, Q = 8, 0.5


def rows(n: int, seed: int = 0, scale: float = 1.0) -> Chunk:
    rng = np.random.default_rng(seed)
    x = scale * rng.normal(size=(n, 3))
    return Chunk(x, x @ np.array([1.0, -2.0, 0.5]) + 0.1 * rng.normal(size=n), np.ones(n))


def begin() -> Stream:
    return Stream.start(State.start(np.zeros((1, 3)), np.zeros(1)))


OBJECTIVE = Objective("squared_error", l2=1e-3, momentum=0.9)


def slow_stream(data: Chunk, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """The stream step by step: its average of weights and intercepts."""
    state, kept, seen, steps, averaged = State.start(np.zeros((1, 3)), np.zeros(1)), [], 0, 0, 0
    coef, intercept, rate, bends, q = np.zeros((1, 3)), np.zeros(1), math.inf, np.empty(0), resolve_q(Q, S)
    for start in range(0, data.size // S * S, S):
        batch = list(range(start, start + S))
        bends = np.append(bends, (data.X[batch] ** 2).sum(axis=1) + 1)
        alone = bends.max() / q
        rate = min(rate, 1 / (max(bends.mean() + alone, alone / (2 * (1 - OBJECTIVE.momentum))) + OBJECTIVE.l2))
        free = max(0, min(S, module.RESERVOIR - len(kept)))
        kept += batch[:free]
        drawn = rng.integers(np.arange(seen + free, seen + S) + 1)
        for row, slot in zip(batch[free:], drawn, strict=True):
            if slot < module.RESERVOIR:
                kept[slot] = row
        seen += S
        repeats = max(module.LEAST_REPEATS, math.ceil(module.REPEATS / (1 + seen / S / module.SETTLED)))
        for number in range(repeats):
            order = np.array(batch if number == 0 else np.array(kept)[rng.integers(len(kept), size=S)])
            lr = rate / math.sqrt(1 + steps / module.DECAY)
            lr = 2 ** (math.floor(math.log2(lr) * 16 + 1e-9) / 16)
            train_epoch(data.X, data.y, data.weight, state, OBJECTIVE, Batches(order, S, q, q), lr=lr)
            steps += 1
            if steps == averaged + 1 + averaged // 64:
                share = 1 - (averaged / steps) ** module.LATER
                coef, intercept = coef + share * (state.coef - coef), intercept + share * (state.intercept - intercept)
                averaged = steps
    return coef, intercept


@pytest.mark.parametrize("room", [1024, 24])
def test_a_stream_is_that_of_the_slow_one(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RESERVOIR", room)
    data, fast = rows(8 * 40 + 5), begin()
    advance(fast, data, OBJECTIVE, Q, S, np.random.default_rng(1))
    coef, intercept = slow_stream(data, np.random.default_rng(1))
    np.testing.assert_allclose(fast.coef, coef, rtol=1e-9)
    np.testing.assert_allclose(fast.intercept, intercept, rtol=1e-9)
    assert fast.waiting is not None
    assert fast.waiting.size == 5
    assert fast.reservoir is not None
    assert fast.reservoir.size == min(room, 320)


def test_losses_and_positions_are_those_of_the_new_samples() -> None:
    stream, data = begin(), rows(20)
    first = advance(stream, data.take(slice(0, 5)), OBJECTIVE, Q, S, np.random.default_rng(0))
    second = advance(stream, data.take(slice(5, 20)), OBJECTIVE, Q, S, np.random.default_rng(0))
    assert (len(first.losses), len(second.losses)) == (0, 16)
    assert second.positions.tolist() == list(range(-5, 11))
    assert second.kept[:8].sum() == second.kept[8:].sum() == 4
    np.testing.assert_allclose(second.losses[:8], data.y[:8] ** 2 / 2)  # the weights were zero
    assert together([first]).accuracy == 0


def test_every_sample_is_kept_with_the_same_probability(monkeypatch: pytest.MonkeyPatch) -> None:
    times = np.zeros(64)
    rng = np.random.default_rng(0)
    for _ in range(2000):
        slots = np.empty(0, np.int64)
        for start in range(0, 64, 8):
            slots = module._keep(slots, np.arange(start, start + 8), start, 16, rng)
        times[slots] += 1
    assert len(slots) == 16
    assert abs(times / 2000 - 0.25).max() < 5 * math.sqrt(0.25 * 0.75 / 2000)


def test_the_rate_is_safe_for_a_batch_before_the_step_on_it() -> None:
    stream = begin()
    advance(stream, rows(64), OBJECTIVE, Q, S, np.random.default_rng(0))
    before = stream.rate
    advance(stream, rows(8, seed=1, scale=1e3), OBJECTIVE, Q, S, np.random.default_rng(0))
    assert stream.rate < 1e-4 * before
    assert np.isfinite(stream.coef).all()
    assert abs(stream.coef).max() < 10


def test_weights_before_the_first_batch_leave_the_stream_as_it_was() -> None:
    stream = begin()
    advance(stream, rows(5), OBJECTIVE, Q, S, np.random.default_rng(0))
    before = copy.deepcopy(stream.state)
    coef, _, rate = module.before_the_first_batch(stream, OBJECTIVE, Q)
    assert (coef != 0).all()
    assert 0 < rate < 1
    np.testing.assert_array_equal(stream.state.memory, before.memory)


def test_rows_join_in_the_layout_of_the_new_ones() -> None:
    dense, later = rows(4), rows(3, seed=1)
    by_row = Chunk(sparse.csr_array(later.X), later.y, later.weight)
    both = joined(dense, by_row)
    assert sparse.issparse(both.X)
    np.testing.assert_array_equal(both.X.toarray(), np.vstack([dense.X, later.X]))
    np.testing.assert_array_equal(joined(by_row, dense).X, np.vstack([later.X, dense.X]))
