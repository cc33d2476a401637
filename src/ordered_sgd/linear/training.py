"""The loop over epochs, with its learning rate, q and stopping rule."""

import logging
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
from scipy import sparse

from ordered_sgd.errors import ArgumentError, message
from ordered_sgd.linear.kernels import train_epoch
from ordered_sgd.linear.objective import Array, Batches, Epoch, Objective, State
from ordered_sgd.rules import Observed, Rule, resolve_q

logger = logging.getLogger("ordered_sgd.linear")
RatePlan = Literal["constant", "cosine"] | Mapping[int, float]
_EXPLODED = 1e9  # times the loss of the first batch
_BLOCK = 1 << 20  # bytes of input squared at a time


@dataclass
class History:
    """Results of the epochs so far, from which training can continue."""

    losses: list[float] = field(default_factory=list)
    ordered_losses: list[float] = field(default_factory=list)
    qs: list[int] = field(default_factory=list)
    next_q: int | None = None  # set by a rule

    def add(self, losses: Array, kept: Array, q: int) -> None:
        """Add the result of an epoch, or of a chunk of a stream."""
        self.losses.append(float(losses.mean(dtype=np.float64)))
        self.ordered_losses.append(float(losses[kept].mean(dtype=np.float64)))
        self.qs.append(q)


class ExplodedError(Exception):
    """The loss has grown beyond anything that training could mean; it would overflow some epochs later."""


class Samples(NamedTuple):
    """Training samples: rows, targets, weights, and the positions to train on (None: all)."""

    X: Array
    y: Array
    weight: Array
    positions: Array | None = None

    @property
    def size(self) -> int:
        """Number of samples to train on."""
        return len(self.y) if self.positions is None else len(self.positions)


@dataclass(frozen=True)
class Schedule:
    """How to train: batch size, q or the rule that sets it, the learning rate of each epoch, number of epochs."""

    s: int
    q: float | Rule
    rate: Callable[[int], float]
    epochs: int
    log_level: int = logging.DEBUG
    name: str = "train"  # in the log
    shuffle: bool = True


def train(
    samples: Samples,
    state: State,
    objective: Objective,
    schedule: Schedule,
    rng: np.random.Generator,
    history: History,
    counts: Array,
    stop: Callable[[State, float], bool] | None = None,
) -> None:
    """Train for `schedule.epochs` epochs, updating the state, the history and how often each sample was kept.

    `stop` is called after every epoch with the state and the mean loss; True ends training.
    """
    n, rule, level = samples.size, None, schedule.q
    start: float | None = None  # the loss of the first batch, before any step
    s = min(schedule.s, n)
    last = n - (n - 1) // s * s
    if not isinstance(level, int | float):
        rule, level = level, history.next_q or level.first_q(schedule.s)
    for _ in range(schedule.epochs):
        number = len(history.losses) + 1
        order = rng.permutation(n) if schedule.shuffle else np.arange(n)
        if samples.positions is not None:
            order = samples.positions[order]
        q, lr = resolve_q(level, s), schedule.rate(number)
        batches = Batches(order, s, q, resolve_q(level, last))
        epoch = train_epoch(samples.X, samples.y, samples.weight, state, objective, batches, lr=lr)
        counts[order[epoch.kept]] += 1
        history.add(epoch.losses, epoch.kept, q)
        mean, ordered = history.losses[-1], history.ordered_losses[-1]
        start = float(epoch.losses[:s].mean()) if start is None else start
        if mean > _EXPLODED * start > 0:
            raise ExplodedError
        if rule is not None:
            level = history.next_q = rule.next_q(int(level), schedule.s, observe(epoch, number, s, rule, objective))
        text = "%s: epoch %d, loss %.6g, of the kept %.6g, q %d of %d, learning rate %.3g"
        logger.log(schedule.log_level, text, schedule.name, number, mean, ordered, q, s, lr)
        if stop is not None and stop(state, mean):
            return


@contextmanager
def spoken(*, aloud: bool) -> Iterator[None]:
    """A block in which what is logged is also printed, without any logging being configured."""
    if not aloud:
        yield
        return
    printer, level = logging.StreamHandler(sys.stdout), logger.level
    printer.setFormatter(logging.Formatter("%(message)s"))
    logger.addHandler(printer)
    logger.setLevel(min(level, logging.INFO) or logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(printer)
        logger.setLevel(level)


@dataclass
class Patience:
    """Stops training when a score has not grown by more than `tol` for `epochs` epochs; remembers the best weights.

    The score is `judge` of the state, or without a judge minus the mean training loss.
    """

    epochs: int
    tol: float
    judge: Callable[[State], float] | None = None
    best: float = -math.inf
    waited: int = 0
    weights: tuple[Array, Array] | None = None

    def __call__(self, state: State, loss: float) -> bool:
        """Whether to stop."""
        value = -loss if self.judge is None else self.judge(state)
        self.waited = 0 if value > self.best + self.tol else self.waited + 1
        if value > self.best:
            self.best = value
            self.weights = state.coef.copy(), state.intercept.copy()
        return self.waited >= self.epochs


def observe(epoch: Epoch, number: int, s: int, rule: Rule, objective: Objective) -> Observed:
    """What a rule sees of an epoch: the accuracy of a classifier, and the loss shares if the rule needs them."""
    accuracy = epoch.correct / len(epoch.losses) if objective.loss in ("log_loss", "hinge") else None
    return Observed(number, accuracy, loss_share(epoch.losses, s) if rule.needs == "loss_share" else None)


def loss_share(losses: Array, s: int) -> list[float]:
    """Entry j - 1 is the share of a batch's loss that its j largest losses carry, on average over the epoch.

    A smaller last batch counts by its size, and is read at j/s of its length.

    >>> loss_share(np.array([1.0, 3.0, 0.0, 0.0, 5.0]), 2)
    [0.9, 1.0]
    """
    full = len(losses) // s * s
    total = np.zeros(s)
    for part in (losses[:full].reshape(-1, s), losses[full:].reshape(1, -1)):
        size = part.shape[1]
        if part.size == 0:
            continue
        carried = np.sort(part.astype(np.float64), axis=1)[:, ::-1].cumsum(axis=1)
        some = carried[:, -1:] > 0  # in a batch without any loss the first sample carries it all
        share = np.where(some, carried / np.where(some, carried[:, -1:], 1), 1).sum(axis=0)
        at = (np.arange(1, s + 1) * size + s - 1) // s - 1
        total += size * share[at]
    return list((total / len(losses)).tolist())


def rate_of(plan: RatePlan, first: float, epochs: int, where: str) -> Callable[[int], float]:
    """The learning rate as a function of the epoch, counted from 1.

    >>> rate = rate_of({10: 0.1}, 0.5, epochs=20, where="doctest")
    >>> rate(9), rate(10)
    (0.5, 0.05)
    >>> rate = rate_of("cosine", 1.0, epochs=2, where="doctest")
    >>> rate(1), rate(2)
    (1.0, 0.5)
    """
    if isinstance(plan, Mapping):
        steps = sorted(plan.items())
        if any(not isinstance(epoch, int) or epoch < 1 or not factor > 0 for epoch, factor in steps):
            rule = "map epochs, counted from 1, to positive factors of eta0"
            raise ArgumentError(message(where, "learning_rate", rule, plan, "Use {10: 0.1} for a tenth from epoch 10."))
        return lambda number: first * next((factor for epoch, factor in reversed(steps) if epoch <= number), 1.0)
    if plan == "constant":
        return lambda number: first
    return lambda number: first * (1 + math.cos(math.pi * (number - 1) / epochs)) / 2


def safe_rate(samples: Samples, objective: Objective, columns: int, q: int) -> float:
    """The learning rate for the samples: `rate_for` their curvatures."""
    bends = curvatures(samples.X, samples.weight, objective, columns)
    if samples.positions is not None:
        bends = bends[samples.positions]
    return rate_for(float(bends.mean()), float(bends.max()), q, objective)


def rate_for(mean: float, sharpest: float, q: int, objective: Objective) -> float:
    """One over the largest curvature that the loss of a batch is likely to have, but safe for the sharpest sample.

    The mean over q samples has at most their mean curvature, and one of them may be the sharpest of all. Momentum goes
    on moving the weights by what that one sample did: in all ``rate * sharpest / q / (1 - momentum)`` times as far as
    its minimum is away, which must not exceed 2, or a rare sample is further off each time it comes.
    """
    alone = sharpest / q
    curvature = max(mean + alone, alone / (2 * (1 - objective.momentum))) + objective.l2
    return float(1 / curvature) if curvature > 0 else 1.0


def curvatures(X: Array, weight: Array, objective: Objective, columns: int) -> Array:
    """The largest curvature that the loss of each sample can have.

    It is at most c |x|^2 with c = 1 for the squared and the Huber loss, 1/4 for two classes, 1/2 for the softmax;
    losses with corners are treated like the squared one.
    """
    bend = 1.0
    if objective.loss == "log_loss":
        bend = 0.25 if columns == 1 else 0.5
    found: Array = bend * (squared_norms(X) * objective.input_scale**2 + objective.fit_intercept) * weight
    return found


def squared_norms(X: Array) -> Array:
    """The squared length of every row, in float64.

    >>> squared_norms(np.array([[3, 4], [200, 0]], np.uint8))
    array([2.5e+01, 4.0e+04])
    """
    if sparse.issparse(X):
        squares = sparse.csr_array((X.data.astype(np.float64) ** 2, X.indices, X.indptr), X.shape)  # type: ignore[attr-defined]
        return np.asarray(squares.sum(axis=1)).ravel()
    n, step = len(X), max(1, _BLOCK // (8 * X.shape[1]))
    blocks = (X[start : start + step].astype(np.float64) for start in range(0, n, step))
    return np.concatenate([np.einsum("ij,ij->i", block, block) for block in blocks])
