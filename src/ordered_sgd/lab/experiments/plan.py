"""How q and the learning rate move over a run, as its spec says."""

from dataclasses import dataclass
from typing import ClassVar

from ordered_sgd.lab.experiments.spec import ExperimentSpec
from ordered_sgd.rules import AccuracyRule, FixedQ, Need, Observed, Rule, as_rule

EVALUATE = 1000  # samples in a batch for evaluation
HIDDEN_RULE_FROM = 0.995  # training accuracy at which the authors' scripts lower the rate, once


@dataclass(frozen=True)
class CountsRule:
    """The paper's rule with the numbers of the authors' scripts: q = 32, 16, 8, 4 whatever the batch size is."""

    thresholds: tuple[float, ...] = AccuracyRule.thresholds
    counts: tuple[int, ...] = (32, 16, 8, 4)
    needs: ClassVar[Need] = "accuracy"

    def first_q(self, s: int) -> int:
        """The whole batch."""
        return s

    def next_q(self, q: int, s: int, observed: Observed) -> int:
        """The count of the highest threshold that was reached, or the present one if that is smaller."""
        accuracy = observed.accuracy or 0.0
        return min([q, *(c for t, c in zip(self.thresholds, self.counts, strict=True) if accuracy >= t)])


@dataclass(frozen=True)
class Replay:
    """A rule that repeats the q of another run: the random control must not choose its own."""

    path: tuple[int, ...]
    needs: ClassVar[None] = None

    def first_q(self, s: int) -> int:
        """The other run's first q, or the whole batch if it is smaller."""
        return min(s, self.path[0])

    def next_q(self, q: int, s: int, observed: Observed) -> int:
        """The other run's q in the next epoch."""
        return min(s, self.path[min(observed.epoch, len(self.path) - 1)])


def rule_for(spec: ExperimentSpec) -> Rule:
    """The rule that moves q: plain SGD keeps every sample, and a baseline all that it is given."""
    if spec.method in ("sgd", "infobatch", "last-losses", "infobatch-sampler"):
        return FixedQ(1.0)  # the baselines choose beforehand
    if spec.path:
        return Replay(tuple(q for q, _ in spec.path))
    if spec.counts and spec.fixed_q is None:
        return CountsRule()
    return as_rule(spec.q, "ExperimentSpec")


def learning_rate(spec: ExperimentSpec, epoch: int, *, decayed: bool) -> float:
    """The rate in an epoch, counted from 1; `decayed` once the hidden rule has fired.

    >>> spec = ExperimentSpec(lr=0.01, drops=(10, 100))
    >>> [learning_rate(spec, epoch, decayed=False) for epoch in (9, 10, 100)]
    [0.01, 0.001, 0.0001]
    """
    if spec.path:
        return spec.path[epoch - 1][1]
    steps = sum(epoch >= drop for drop in spec.drops)
    factor = spec.hidden_factor if decayed else 1.0
    return float(f"{spec.lr * factor * 10.0**-steps:.12g}")  # 0.01 / 10 is 0.001, not 0.0010000000000000002
