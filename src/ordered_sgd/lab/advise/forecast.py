"""The expected time of a whole training, from the times of steps and the accuracies of a short training."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ordered_sgd.lab.advise.steps import DENSE, StepCosts, levels
from ordered_sgd.lab.advise.warmup import WarmUp
from ordered_sgd.lab.bench.subjects import SGD
from ordered_sgd.rules import AccuracyRule, FixedQ, Observed, Rule

PAPER, HALF, QUARTER = "the paper's rule", "q = s/2", "q = s/4"
WORTH = 0.85  # of plain SGD's time: what has to be saved for a change to a training to be worth it
RECOMMENDED = (PAPER, HALF)  # a smaller q from the first step on can harm
_STEEPEST, _FITTED = 1.5, 0.5  # of the power law; share of the curve, from its end, that it is fitted to


@dataclass(frozen=True)
class Expected:
    """The expected time of a whole training.

    Parameters
    ----------
    way
        Plain SGD, the paper's rule, or a fixed q.
    engine
        How the gradient is computed: the engine that makes this way fastest, of those asked for.
    seconds
        Of the training, loading and compiling included.
    ratio
        Of plain SGD's.
    qs
        The q of every epoch.
    """

    way: str
    engine: str
    seconds: float
    ratio: float
    qs: tuple[int, ...]


def forecast(
    costs: StepCosts, warm: WarmUp, *, s: int, epochs: int, workers: bool, engines: Sequence[str]
) -> list[Expected]:
    """Plain SGD, the paper's rule where there is an accuracy, and fixed q; each by the fastest engine.

    Parameters
    ----------
    costs, warm
        What was measured.
    s, epochs
        Batch size, and epochs of the whole training.
    workers
        Whether batches are loaded while steps are computed.
    engines
        Those to choose from.
    """
    clock = _Clock(costs, warm, s, workers)
    plain = clock.training(SGD, [s] * epochs)
    found = [Expected("plain SGD", SGD, plain, 1.0, (s,) * epochs)]
    ways: dict[str, tuple[int, ...]] = {}
    if warm.curve:
        ways[PAPER] = tuple(expected_qs(warm, AccuracyRule(), s=s, epochs=epochs))
    for way, share in ((HALF, 0.5), (QUARTER, 0.25)):
        ways[way] = tuple(expected_qs(warm, FixedQ(share), s=s, epochs=epochs))
    for way, qs in ways.items():
        seconds, engine = min((clock.training(engine, qs), engine) for engine in engines)
        found.append(Expected(way, engine, seconds, seconds / plain, qs))
    return found


def expected_qs(warm: WarmUp, rule: Rule, *, s: int, epochs: int) -> Iterator[int]:
    """The q of every epoch: by the accuracies of the warm-up, then by the power law that their errors follow."""
    q = rule.first_q(s)
    for epoch in range(epochs):
        yield q
        accuracy = accuracy_of(warm.curve, epoch * warm.per_epoch, (epoch + 1) * warm.per_epoch) if warm.curve else None
        q = rule.next_q(q, s, Observed(epoch + 1, accuracy))


def accuracy_of(curve: Sequence[tuple[float, float]], start: float, stop: float) -> float:
    """The mean training accuracy between two steps: as measured, and beyond by a power law of the error.

    >>> curve = [(step, 1 - step**-0.5) for step in range(1, 101)]
    >>> round(accuracy_of(curve, 390, 410), 3)
    0.95
    """
    at = np.linspace(start, stop, 21)[1:] - (stop - start) / 40
    steps, errors = np.array([step for step, _ in curve]), np.array([1 - accuracy for _, accuracy in curve])
    measured = np.interp(at, steps, errors)
    level, slope = power_law(steps, errors)
    return float(1 - np.where(at <= steps[-1], measured, np.minimum(1.0, level * (at / steps[-1]) ** -slope)).mean())


def power_law(steps: np.ndarray, errors: np.ndarray) -> tuple[float, float]:
    """The error at the last step and the exponent by which it falls, fitted to the second half of a curve.

    An error of 0 counts as one in ten thousand. The exponent is between 0 and 1.5.
    """
    first = min(int(len(steps) * (1 - _FITTED)), max(0, len(steps) - 4))
    x, y = np.log(steps[first:] / steps[-1]), np.log(np.maximum(errors[first:], 1e-4))
    if len(x) < 2 or np.ptp(x) == 0:
        return float(errors[-1]), 0.0
    slope = float(np.clip(-np.polyfit(x, y, 1)[0], 0.0, _STEEPEST))
    return float(np.exp(np.mean(y + slope * x))), slope


class _Clock:
    """Seconds of a training, by the q of its epochs."""

    def __init__(self, costs: StepCosts, warm: WarmUp, s: int, workers: bool) -> None:
        self.costs, self.warm, self.s, self.workers = costs, warm, s, workers
        self.plain = warm.seconds / (costs.at(DENSE, s).ratio or 1.0)  # seconds of a plain step in a training

    def training(self, engine: str, qs: Sequence[int]) -> float:
        """Seconds of a training with this q in each epoch; compiled once if q ever leaves something out."""
        compiling = self.costs.compile_seconds if engine == "selective" and min(qs) < self.s else 0.0
        return compiling + sum(self.warm.per_epoch * self.batch(engine, q) for q in qs)

    def batch(self, engine: str, q: int) -> float:
        """Seconds of loading a batch and its step: one after the other, or the longer of the two."""
        step = self.plain * self.ratio(engine, q)
        return max(step, self.warm.loading) if self.workers else step + self.warm.loading

    def ratio(self, engine: str, q: int) -> float:
        """A step's share of a plain step's time, between the levels of q that were measured."""
        known = sorted((level, self.costs.at(engine, level).ratio) for level in levels(self.s))
        shares = [float("inf") if ratio is None else ratio for _, ratio in known]
        return float(np.interp(q, [level for level, _ in known], shares))
