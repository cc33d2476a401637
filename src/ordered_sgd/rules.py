"""Rules that change q during training.

A rule is an immutable value. It gives the q of the first epoch and, at the end of each epoch, the next q as a pure
function of the current q, the batch size s and what was observed. The training loop keeps the state
(`ordered_sgd.OrderedLoss` does). Nothing here needs torch.
"""

import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, cast

from ordered_sgd.errors import ArgumentError, message, warn_trap

Need = Literal["accuracy", "loss_share"]


@dataclass(frozen=True)
class Observed:
    """What a rule can use at the end of an epoch.

    Parameters
    ----------
    epoch : int
        Number of finished epochs.
    accuracy : float or None, default=None
        Training accuracy of the last epoch, in [0, 1]; None if it was not measured.
    loss_share : sequence of float or None, default=None
        Entry j - 1 is the share of a batch's loss carried by its j largest losses, averaged over the epoch.
    """

    epoch: int
    accuracy: float | None = None
    loss_share: Sequence[float] | None = None


class Rule(Protocol):
    """Interface of a rule.

    ``needs`` names the field of `Observed` that the rule requires, or is None.
    """

    @property
    def needs(self) -> Need | None:
        """The observation that the rule requires."""

    def first_q(self, s: int) -> int:
        """The q of the first epoch."""

    def next_q(self, q: int, s: int, observed: Observed) -> int:
        """The q of the next epoch, between 1 and s."""


def check_q(q: float, where: str) -> int | float:
    """The q as a plain int (a count) or float (a share of the batch), or one clear error."""
    if type(q) is int and q >= 1:  # the two usual types first: torch.compile traces through them
        return q
    if type(q) is float and 0 < q <= 1:
        return q
    if isinstance(q, numbers.Integral) and not isinstance(q, bool) and q >= 1:
        return int(q)
    if isinstance(q, numbers.Real) and not isinstance(q, numbers.Integral) and 0 < q <= 1:
        return float(q)
    remedy = "Pass a count such as q=16, or a share such as q=0.25."
    if isinstance(q, numbers.Real) and q <= 0:
        remedy = "Use q=1 for the largest loss alone."
    elif isinstance(q, float) and q > 1:
        remedy = f"Use q={q / 100:g} for {q:g} percent of the batch, q={q:.0f} for a count."
    raise ArgumentError(message(where, "q", "be an int of at least 1 or a fraction in (0, 1]", repr(q), remedy))


def check_level(q: "float | Rule", where: str) -> "int | float | Rule":
    """The q as a plain int or float, or the rule that it is; one clear error for anything else.

    >>> check_level(0.25, "doctest"), check_level(FixedQ(16), "doctest")
    (0.25, FixedQ(q=16, q_min=1))
    """
    if not isinstance(q, type) and all(hasattr(q, name) for name in ("first_q", "next_q", "needs")):
        return cast(Rule, q)
    if isinstance(q, numbers.Real):
        return check_q(cast(float, q), where)
    remedy = "Use q=0.5 to keep half of each batch, or q=AccuracyRule() for the paper's schedule."
    if isinstance(q, type) and hasattr(q, "next_q"):
        remedy = f"Pass an instance: q={q.__name__}()."
    raise ArgumentError(message(where, "q", "be a count, a share in (0, 1] or a rule", repr(q), remedy))


def as_rule(q: "float | Rule", where: str) -> "Rule":
    """The rule that q is; a number is one that never moves.

    >>> as_rule(0.25, "doctest")
    FixedQ(q=0.25, q_min=1)
    """
    level = check_level(q, where)
    return FixedQ(level) if isinstance(level, int | float) else level


def warn_of_one(q: "float | Rule", s: int, where: str) -> bool:
    """Whether q is the integer 1 for a batch of more than 8, and a warning: q=1.0, all of it, may be meant."""
    if type(q) is not int or q != 1 or s <= 8:
        return False
    remedy = "Use q=1.0 to keep all of them."
    warn_trap(where, "q", "be a float to be a share of the batch", f"the integer 1: one of {s} is kept", remedy)
    return True


def resolve_q(q: float, s: int, where: str = "resolve_q") -> int:
    """How many of s samples q keeps: an int is a count, a float in (0, 1] a share of the batch.

    >>> resolve_q(16, 64), resolve_q(0.25, 64), resolve_q(100, 64), resolve_q(0.01, 64)
    (16, 16, 64, 1)
    """
    if type(q) is int and q >= 1:
        return min(q, s)
    checked = check_q(q, where)
    if isinstance(checked, int):
        return min(checked, s)
    return min(s, max(1, floor_share(checked, s)))


def floor_share(share: float, s: int) -> int:
    """A share of s, rounded down.

    >>> floor_share(0.29, 100)  # 28.999... in floating point, and 29 is meant
    29
    """
    return math.floor(share * s * (1 + 1e-12))


def _at_least(q_min: int, q: int, s: int) -> int:
    """q, raised to q_min and limited to s."""
    return min(s, max(q_min, q))


def _check_q_min(where: str, q_min: int) -> None:
    if not isinstance(q_min, int) or isinstance(q_min, bool) or q_min < 1:
        remedy = "Use q_min=1 for no floor."
        raise ArgumentError(message(where, "q_min", "be an int of at least 1", repr(q_min), remedy))


@dataclass(frozen=True)
class FixedQ:
    """The same q in every epoch.

    As in every rule, a share refers to the largest batch seen: a smaller batch keeps the same count, or all of its
    samples. A plain ``q=0.25`` is a share of each batch instead.

    Parameters
    ----------
    q : float
        A count, or a share of the batch in (0, 1].
    q_min : int, default=1
        Smallest q, as a count.

    Examples
    --------
    >>> FixedQ(0.25).first_q(64)
    16
    """

    q: float
    q_min: int = 1
    needs: ClassVar[None] = None

    def __post_init__(self) -> None:
        check_q(self.q, "FixedQ")
        _check_q_min("FixedQ", self.q_min)

    def first_q(self, s: int) -> int:
        """The fixed q."""
        return _at_least(self.q_min, resolve_q(self.q, s), s)

    def next_q(self, q: int, s: int, observed: Observed) -> int:
        """The fixed q."""
        return self.first_q(s)


@dataclass(frozen=True)
class AccuracyRule:
    """The paper's rule: q is s at first, then s/2, s/4, s/8, s/16 as accuracy reaches 80, 90, 95, 99.5 %.

    The accuracy is that of the last training epoch. q may skip levels and never grows again.

    Parameters
    ----------
    thresholds : tuple of float, default=(0.80, 0.90, 0.95, 0.995)
        Training accuracies in [0, 1], ascending.
    divisors : tuple of int, default=(2, 4, 8, 16)
        Divisor of s for each threshold; the quotient is rounded down.
    q_min : int, default=1
        Smallest q: s/16 of a batch of fewer than 16 samples would be 0.

    Examples
    --------
    >>> rule = AccuracyRule()
    >>> rule.first_q(64), rule.next_q(64, 64, Observed(epoch=1, accuracy=0.96))
    (64, 8)
    """

    thresholds: tuple[float, ...] = (0.80, 0.90, 0.95, 0.995)
    divisors: tuple[int, ...] = (2, 4, 8, 16)
    q_min: int = 1
    needs: ClassVar[Need] = "accuracy"

    def __post_init__(self) -> None:
        thresholds, divisors = tuple(self.thresholds), tuple(self.divisors)
        if any(not 0 <= t <= 1 for t in thresholds) or list(thresholds) != sorted(thresholds):
            remedy = "Give shares, not percentages: 0.8, not 80."
            rule = "be accuracies in [0, 1] in ascending order"
            raise ArgumentError(message("AccuracyRule", "thresholds", rule, thresholds, remedy))
        if len(divisors) != len(thresholds) or any(not isinstance(d, int) or d < 1 for d in divisors):
            remedy = "Use 2 for half of the batch, 4 for a quarter."
            rule = f"be {len(thresholds)} ints of at least 1, one for each threshold"
            raise ArgumentError(message("AccuracyRule", "divisors", rule, divisors, remedy))
        _check_q_min("AccuracyRule", self.q_min)
        object.__setattr__(self, "thresholds", thresholds)  # lists become tuples: a rule is a hashable value
        object.__setattr__(self, "divisors", divisors)

    def first_q(self, s: int) -> int:
        """The whole batch."""
        return s

    def next_q(self, q: int, s: int, observed: Observed) -> int:
        """The q of the highest threshold reached, or the current q if that is smaller."""
        accuracy = observed.accuracy
        if accuracy is None:
            remedy = "Pass accuracy=, or use LossMassRule, which needs none."
            raise ArgumentError(message("AccuracyRule", "accuracy", "be observed", None, remedy))
        levels = [s // d for t, d in zip(self.thresholds, self.divisors, strict=True) if accuracy >= t]
        return _at_least(self.q_min, min([q, *levels]), s)


@dataclass(frozen=True)
class _Decay:
    """q/s falls from `start` in the first epoch to `end` in epoch number `epochs` and stays there."""

    epochs: int
    start: float = 1.0
    end: float = 1 / 16
    q_min: int = 1
    needs: ClassVar[None] = None

    def __post_init__(self) -> None:
        where = type(self).__name__
        if not isinstance(self.epochs, int) or isinstance(self.epochs, bool) or self.epochs < 1:
            remedy = "Give the number of epochs you train for."
            raise ArgumentError(message(where, "epochs", "be an int of at least 1", repr(self.epochs), remedy))
        if not 0 < self.end <= self.start <= 1:
            got = f"start={self.start!r}, end={self.end!r}"
            remedy = "Use start=1.0, end=1/16 for the range of the paper's rule."
            raise ArgumentError(message(where, "start and end", "satisfy 0 < end <= start <= 1", got, remedy))
        _check_q_min(where, self.q_min)

    def _fall(self, progress: float) -> float:
        """Fraction of the way from start to end, for progress in [0, 1]."""
        raise NotImplementedError

    def _q(self, epochs_done: int, s: int) -> int:
        progress = min(1.0, epochs_done / max(1, self.epochs - 1))
        share = self.start + (self.end - self.start) * self._fall(progress)
        return _at_least(self.q_min, resolve_q(min(1.0, share), s), s)

    def first_q(self, s: int) -> int:
        """The share `start` of the batch."""
        return self._q(0, s)

    def next_q(self, q: int, s: int, observed: Observed) -> int:
        """The q of the epoch after `observed.epoch`; other observations are ignored."""
        return self._q(observed.epoch, s)


@dataclass(frozen=True)
class LinearDecay(_Decay):
    """Linear schedule: q/s falls along a straight line.

    Parameters
    ----------
    epochs : int
        Epoch, counted from 1, in which q reaches `end`: usually the number of training epochs.
    start : float, default=1.0
        Share of the batch in the first epoch.
    end : float, default=1 / 16
        Share of the batch in epoch number `epochs` and after it.
    q_min : int, default=1
        Smallest q, as a count.

    Examples
    --------
    >>> rule = LinearDecay(epochs=3, end=0.5)
    >>> rule.first_q(64), rule.next_q(64, 64, Observed(epoch=1)), rule.next_q(48, 64, Observed(epoch=2))
    (64, 48, 32)
    """

    def _fall(self, progress: float) -> float:
        return progress


@dataclass(frozen=True)
class CosineDecay(_Decay):
    """Cosine schedule: q/s falls along half a cosine, slowly at both ends.

    Parameters
    ----------
    epochs : int
        Epoch, counted from 1, in which q reaches `end`: usually the number of training epochs.
    start : float, default=1.0
        Share of the batch in the first epoch.
    end : float, default=1 / 16
        Share of the batch in epoch number `epochs` and after it.
    q_min : int, default=1
        Smallest q, as a count.

    Examples
    --------
    >>> rule = CosineDecay(epochs=5, end=0.5)
    >>> [rule.next_q(64, 64, Observed(epoch=e)) for e in range(5)]
    [64, 59, 48, 36, 32]
    """

    def _fall(self, progress: float) -> float:
        return (1 - math.cos(math.pi * progress)) / 2


@dataclass(frozen=True)
class LossMassRule:
    """The smallest q whose samples carry a given share of the batch's loss, averaged over the last epoch.

    The rule needs no accuracy, so it works for regression. When the loss spreads over more samples again, q grows
    again. Negative losses count as zero.

    Parameters
    ----------
    mass : float, default=0.9
        Share of the loss that the kept samples carry, in (0, 1].
    q_min : int, default=1
        Smallest q, as a count.

    Examples
    --------
    >>> rule = LossMassRule(0.9)
    >>> rule.next_q(4, 4, Observed(epoch=1, loss_share=[0.7, 0.95, 1.0, 1.0]))
    2
    """

    mass: float = 0.9
    q_min: int = 1
    needs: ClassVar[Need] = "loss_share"

    def __post_init__(self) -> None:
        if not isinstance(self.mass, numbers.Real) or isinstance(self.mass, bool) or not 0 < self.mass <= 1:
            remedy = "Use mass=0.9 for nine tenths of the loss."
            raise ArgumentError(message("LossMassRule", "mass", "be a share in (0, 1]", repr(self.mass), remedy))
        _check_q_min("LossMassRule", self.q_min)

    def first_q(self, s: int) -> int:
        """The whole batch, because nothing has been observed yet."""
        return s

    def next_q(self, q: int, s: int, observed: Observed) -> int:
        """The smallest number of the s samples that carried the mass."""
        curve = observed.loss_share
        if curve is None or len(curve) == 0:
            remedy = "Train at least one batch before the epoch ends."
            raise ArgumentError(message("LossMassRule", "loss_share", "be observed", curve, remedy))
        # float32 sums reach 1 only to rounding, so mass = 1 would never be carried without the slack
        carried = next((j for j, share in enumerate(curve, 1) if share >= self.mass - 1e-6), len(curve))
        return _at_least(self.q_min, math.ceil(carried * s / len(curve)), s)


RULES: tuple[type[Rule], ...] = (AccuracyRule, FixedQ, LinearDecay, CosineDecay, LossMassRule)
