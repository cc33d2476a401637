"""Training on a stream: what `partial_fit` does when the learning rate is found by itself.

Samples are collected to full batches, so that chunks of any size give the same steps. What makes it safe and good
without knowing what will come:

- the rate is one over the largest curvature seen so far, that of the present batch included; it never rises, and falls
  with the square root of the number of steps;
- every batch is followed by steps on samples drawn from all samples so far (a reservoir; Vitter, "Random sampling with
  a reservoir", ACM TOMS 1985): many at first, when there have been few steps, and one later. A stream that is sorted
  by its target then does not undo what was learned;
- the weights are an average of those after the steps, in which later ones count more.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from ordered_sgd.linear.kernels import train_epoch
from ordered_sgd.linear.objective import Array, Batches, Epoch, Objective, State
from ordered_sgd.linear.reference import PER_SAMPLE, check_finite
from ordered_sgd.linear.training import curvatures, loss_share, rate_for
from ordered_sgd.rules import Observed, Rule, resolve_q

RESERVOIR, RESERVOIR_BYTES = 1024, 1 << 24  # samples and bytes at most, but a batch at least
REPEATS, LEAST_REPEATS, SETTLED = 16, 2, 20  # steps on the first and on late batches; batches until half of the first
DECAY = 100  # steps after which the rate has fallen by the square root of two
ASKED_EVERY = 1000  # samples
FITTED = 1000  # steps that weights of a fit before the stream count as
LATER = 4  # a step's weight in the average is its number to this power, minus one
_FINENESS = 16  # parts of an octave to which rates are rounded down: steps of one rate are one call of the kernels
_PIECE = 64  # batches that are joined with the reservoir at a time


class Chunk(NamedTuple):
    """Samples: inputs, dense or sparse, targets and weights."""

    X: Any
    y: Array
    weight: Array

    @property
    def size(self) -> int:
        """Number of samples."""
        return len(self.y)

    def take(self, rows: Any) -> "Chunk":
        """The samples at these positions."""
        return Chunk(self.X[rows], self.y[rows], self.weight[rows])


class ChunkResult(NamedTuple):
    """The samples of the batches that were completed: their positions, losses, and whether they were kept.

    Positions count from the first row of the call; those of samples that had waited are negative. The accuracy is that
    of all steps, on samples that were seen again too.
    """

    positions: Array
    losses: Array
    kept: Array
    accuracy: float


@dataclass
class Stream:
    """What a stream leaves behind: weights, their average, samples that wait, and samples to be seen again."""

    state: State
    coef: Array
    intercept: Array
    rate: float = math.inf  # never raised
    waiting: Chunk | None = None
    reservoir: Chunk | None = None
    seen: int = 0  # samples in full batches
    steps: int = 0
    averaged: int = 0  # steps that are in the average
    bend: float = 0.0  # sum of the curvatures of all samples
    sharpest: float = 0.0  # the largest of them
    unasked: list[ChunkResult] = field(default_factory=list)  # since a rule was asked
    asked: int = 0  # how often
    fitted: bool = False  # whether it began with weights
    told: bool = False  # whether the user was warned of `held_up`

    @classmethod
    def start(cls, state: State) -> "Stream":
        """A stream that begins with these weights; what was fitted counts as many steps."""
        fitted = bool(state.coef.any())
        steps = FITTED if fitted else 0
        return cls(state, state.coef.copy(), state.intercept.copy(), steps=steps, averaged=steps, fitted=fitted)

    def saved(self) -> "Stream":
        """The stream as it is now; samples are shared, because they are replaced and never changed."""
        state, coef, intercept = copy.deepcopy(self.state), self.coef.copy(), self.intercept.copy()
        return replace(self, state=state, coef=coef, intercept=intercept, unasked=list(self.unasked))

    @property
    def held_up(self) -> bool:
        """Whether one sample alone makes the rate a hundred times smaller, or more, than the others would."""
        others = (self.bend - self.sharpest) / max(1, self.seen - 1)
        return self.sharpest > 1e4 * others > 0

    def lay_out(self, *, by_column: bool, dtype: Any) -> None:
        """Give the state the layout and the dtype of the next rows."""
        old = self.state
        if (old.by_column, old.memory.dtype) != (by_column, np.dtype(dtype)):
            velocity = old.velocity, old.intercept_velocity
            self.state = State.start(old.coef.astype(dtype), old.intercept, by_column=by_column, velocity=velocity)
            self.coef, self.intercept = self.coef.astype(dtype), self.intercept.astype(dtype)


def advance(
    stream: Stream, new: Chunk, objective: Objective, level: float, s: int, rng: np.random.Generator
) -> ChunkResult:
    """Train on the batches of s that the new samples complete; the rest of them waits for the next call.

    Samples whose loss or curvature overflows are refused before anything changes.
    """
    _check_finite(stream, new, objective)
    found = []
    for start in range(0, new.size, _PIECE * s):
        waited = 0 if stream.waiting is None else stream.waiting.size
        rows = joined(stream.waiting, new.take(slice(start, start + _PIECE * s)))
        whole = rows.size // s * s
        if whole:
            found.append(_train(stream, rows.take(slice(0, whole)), start - waited, objective, level, s, rng))
        stream.waiting = rows.take(slice(whole, rows.size))
    return together(found)


def together(found: Sequence[ChunkResult]) -> ChunkResult:
    """Several as one."""
    if not any(len(part.losses) for part in found):
        return ChunkResult(np.empty(0, np.int64), np.empty(0), np.empty(0, bool), 0.0)
    accuracy = sum(part.accuracy * len(part.losses) for part in found) / sum(len(part.losses) for part in found)
    positions, losses, kept = (np.concatenate(parts) for parts in list(zip(*found, strict=True))[:3])
    return ChunkResult(positions, losses, kept, accuracy)


def observed(stream: Stream, trained: ChunkResult, s: int, rule: Rule, objective: Objective) -> Observed | None:
    """What a rule sees of a stream, once for every thousand samples: fewer tell it too little."""
    stream.unasked.append(trained)
    recent = together(stream.unasked)
    if len(recent.losses) < ASKED_EVERY:
        return None
    stream.unasked.clear()
    accuracy = recent.accuracy if objective.loss in ("log_loss", "hinge") else None
    stream.asked += 1
    return Observed(stream.asked, accuracy, loss_share(recent.losses, s) if rule.needs == "loss_share" else None)


def before_the_first_batch(stream: Stream, objective: Objective, level: float) -> tuple[Array, Array, float]:
    """Weights, intercept and rate for a stream that has not filled a batch: the steps on what waits are taken back."""
    assert stream.waiting is not None
    rows, state, weights = stream.waiting, copy.deepcopy(stream.state), stream.state.coef
    q, order = resolve_q(level, rows.size), np.tile(np.arange(rows.size), REPEATS)
    bends = curvatures(rows.X, rows.weight, objective, len(weights))
    rate = min(stream.rate, rate_for(bends.mean(), bends.max(), q, objective))
    train_epoch(rows.X, rows.y, rows.weight, state, objective, Batches(order, rows.size, q, q), lr=rate)
    return state.coef.copy(), state.intercept, rate


def joined(before: Chunk | None, new: Chunk) -> Chunk:
    """The samples of both, in the layout of the new ones."""
    if before is None or before.size == 0:
        return new
    dtype = new.y.dtype  # that of the weights, in which inputs of different kinds meet
    y = np.concatenate([before.y.astype(dtype), new.y])
    weight = np.concatenate([before.weight.astype(dtype), new.weight])
    old, fresh = before.X, new.X
    if old.dtype != fresh.dtype:
        old, fresh = old.astype(dtype), fresh.astype(dtype)
    if not sparse.issparse(fresh):
        old = old.toarray() if sparse.issparse(old) else old
        return Chunk(np.concatenate([old, fresh]), y, weight)
    return Chunk(sparse.vstack([sparse.csr_array(old), fresh], format="csr"), y, weight)


def _check_finite(stream: Stream, new: Chunk, objective: Objective) -> None:
    """Raise if the loss or the curvature of a new sample overflows."""
    with np.errstate(over="ignore", invalid="ignore"):
        scores = (new.X @ stream.coef.T) * objective.input_scale + stream.intercept
        losses, _ = PER_SAMPLE[objective.loss](scores, new.y, objective.epsilon)
        check_finite(losses, 0, "partial_fit")
        check_finite(curvatures(new.X, new.weight, objective, len(stream.intercept)), 0, "partial_fit")


def _train(
    stream: Stream, rows: Chunk, first: int, objective: Objective, level: float, s: int, rng: np.random.Generator
) -> ChunkResult:
    """Steps on whole batches, each followed by steps on what is kept of the stream."""
    pool = joined(stream.reservoir, rows)
    offset, q = pool.size - rows.size, resolve_q(level, s)
    slots, room = np.arange(offset), max(s, min(RESERVOIR, RESERVOIR_BYTES // _row_bytes(rows.X)))
    bends = curvatures(rows.X, rows.weight, objective, len(stream.intercept))
    orders: list[Array] = []
    rates: list[float] = []
    fresh: list[bool] = []
    for start in range(0, rows.size, s):
        batch = np.arange(offset + start, offset + start + s)
        _see(stream, bends[start : start + s], q, objective)
        slots = _keep(slots, batch, stream.seen, room, rng)
        stream.seen += s
        most = LEAST_REPEATS if stream.fitted else REPEATS
        repeats = max(LEAST_REPEATS, math.ceil(most / (1 + stream.seen / s / SETTLED)))
        for number in range(repeats):
            orders.append(batch if number == 0 else slots[rng.integers(len(slots), size=s)])
            rates.append(_rounded(stream.rate / math.sqrt(1 + (stream.steps + len(rates)) / DECAY)))
            fresh.append(number == 0)
    epochs = _run(stream, pool, objective, orders, rates, s, q)
    stream.reservoir = pool.take(slots)
    new = np.repeat(fresh, s)
    losses, kept = (np.concatenate([getattr(epoch, name) for epoch in epochs])[new] for name in ("losses", "kept"))
    accuracy = sum(epoch.correct for epoch in epochs) / len(new)
    return ChunkResult(first + np.arange(rows.size), losses, kept, accuracy)


def _run(
    stream: Stream, pool: Chunk, objective: Objective, orders: list[Array], rates: list[float], s: int, q: int
) -> list[Epoch]:
    """Take the steps, those of one rate in one call, up to the next step that is averaged."""
    epochs, at = [], 0
    while at < len(orders):
        until = stream.averaged + 1 + stream.averaged // 64 - stream.steps  # steps to the next average
        end = at + 1
        while end < min(len(orders), at + until) and rates[end] == rates[at]:
            end += 1
        batches = Batches(np.concatenate(orders[at:end]), s, q, q)
        epochs.append(train_epoch(pool.X, pool.y, pool.weight, stream.state, objective, batches, lr=rates[at]))
        stream.steps += end - at
        if end - at == until:
            share = 1 - (stream.averaged / stream.steps) ** LATER
            stream.coef += share * (stream.state.coef - stream.coef)
            stream.intercept += share * (stream.state.intercept - stream.intercept)
            stream.averaged = stream.steps
        at = end
    return epochs


def _see(stream: Stream, bends: Array, q: int, objective: Objective) -> None:
    """Add the curvatures of a batch, and lower the rate if they ask for it."""
    stream.bend += float(bends.sum())
    stream.sharpest = max(stream.sharpest, float(bends.max()))
    mean = stream.bend / (stream.seen + len(bends))
    stream.rate = min(stream.rate, rate_for(mean, stream.sharpest, q, objective))


def _rounded(rate: float) -> float:
    """The rate, rounded down to a part of an octave.

    >>> _rounded(0.25), 0.95 < _rounded(0.99) < 0.99
    (0.25, True)
    """
    return math.exp2(math.floor(math.log2(rate) * _FINENESS + 1e-9) / _FINENESS)


def _keep(slots: Array, batch: Array, seen: int, room: int, rng: np.random.Generator) -> Array:
    """The slots of a reservoir after a batch: each sample so far is in it with the same probability.

    >>> _keep(np.arange(2), np.array([2, 3]), 2, room=4, rng=np.random.default_rng(0))
    array([0, 1, 2, 3])
    """
    free = max(0, min(len(batch), room - len(slots)))
    slots = np.concatenate([slots, batch[:free]])
    drawn = rng.integers(np.arange(seen + free, seen + len(batch)) + 1)
    for row, slot in zip(batch[free:], drawn, strict=True):
        if slot < room:
            slots[slot] = row
    return slots


def _row_bytes(X: Any) -> int:
    """Bytes of a row, of a sparse one on the average."""
    count = (
        X.nnz / X.shape[0] * (X.data.itemsize + X.indices.itemsize) if sparse.issparse(X) else X.shape[1] * X.itemsize
    )
    return int(max(1, round(count)))
