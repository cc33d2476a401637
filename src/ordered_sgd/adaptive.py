"""The present q, and what a rule will be asked with at the end of the epoch."""

from typing import Any

import torch
from torch import Tensor

from ordered_sgd.amounts import Above, trimmed_counts
from ordered_sgd.errors import ArgumentError, message
from ordered_sgd.rules import Observed, Rule, check_level, resolve_q
from ordered_sgd.shared_settings import shown_setting
from ordered_sgd.traps import warn_of_idle_rule

_CURVE_POINTS = 4096  # of the curve of loss shares: a batch may be millions of pixels


class AdaptiveQ:
    """The state behind a fixed q or a rule: q, s (the largest batch seen), the epoch, and sums over the epoch.

    The sums live on the device of the losses and are read once per epoch, so that no step waits for the device.
    """

    def __init__(self, q: float | Above | Rule, where: str) -> None:
        level = q if isinstance(q, Above) else check_level(q, where)
        self.where = where
        self.fixed = level if isinstance(level, int | float | Above) else None
        self.rule = None if isinstance(level, int | float | Above) else level
        self.q: int | None = None
        self.s = 0
        self.epoch = 0
        self._last: Observed | None = None
        self._accuracies: list[float] = []  # of every epoch that ended
        self._counts = False  # whether answers have been counted in some batch
        self._forget_epoch()

    def _forget_epoch(self) -> None:
        self.began = False  # whether a batch has come since the last epoch ended
        self._correct: Tensor | None = None  # right answers, and answers that were counted
        self._counted: Tensor | None = None
        self._curve: Tensor | None = None  # sum over samples of the share of the loss the j largest carry, (s,)
        self._weight: Tensor | None = None  # how many samples are in that sum

    def q_for(self, s: int) -> int:
        """How many samples of a batch of s are kept, or of those above a value at least; asking changes nothing."""
        if s == 0:  # all of it is ignored
            return 0
        if self.fixed is not None:
            return self._fixed_q(s)
        q = self.q if self.q is not None and s <= self.s else self._q_of_larger(s)
        return min(q, s)

    def see(self, s: int) -> None:
        """A training batch of s came: the largest is what a rule divides."""
        if s > self.s:
            self.q, self.s = self._q_of_larger(s), s
        self.began = True

    def _q_of_larger(self, s: int) -> int:
        """The q for a batch larger than any before: the rule's answer to the last epoch, at no more than q's share."""
        if self.rule is None:
            return self._fixed_q(s)
        q = self._checked(self.rule.first_q(s), s)
        if self._last is None or self.q is None:
            return q
        return self._checked(self.rule.next_q(min(q, -(-self.q * s // self.s)), s, self._last), s)

    def _fixed_q(self, s: int) -> int:
        assert self.fixed is not None
        return resolve_q(self.fixed.at_least if isinstance(self.fixed, Above) else self.fixed, s, self.where)

    def _checked(self, q: int, s: int) -> int:
        """What a rule answered, if it is a count between 1 and s."""
        if not isinstance(q, int) or not 1 <= q <= s:
            remedy = "Clip what first_q and next_q return."
            raise ArgumentError(message(self.where, "the rule's q", f"be an int from 1 to s = {s}", repr(q), remedy))
        return q

    @property
    def counts_answers(self) -> bool:
        """Whether the rule wants to know how many answers are right."""
        return self.rule is not None and self.rule.needs == "accuracy"

    def shown(self) -> str:
        """The fixed q, or the rule and where it stands: the same on every rank that keeps the same samples."""
        if self.rule is None:
            return repr(self.fixed)
        rule = shown_setting(self.rule)
        return rule if self.q is None else f"{self.q} of {self.s} by {rule} in epoch {self.epoch + 1}"

    def expect_answers(self, found: bool, remedy: str) -> None:
        """Raise in the first batch if the rule lives on right answers and none can be counted."""
        self._counts = self._counts or found
        if self.counts_answers and not self._counts:
            got = f"no outputs (s, C) with integer targets (s,), or fewer than two classes, for {self.rule}"
            rule = "find right answers to count in the first batch"
            raise ArgumentError(message(self.where, "the rule", rule, got, remedy))

    def level(self, s: int, *, share: bool) -> float | Above:
        """The q for a batch of which only some may be valid: what was given, or the rule's as a count or a share."""
        if self.fixed is not None:
            return self.fixed
        s = max(s, self.s)
        return float(self.q_for(s) / s) if share else self.q_for(s)

    def observe(
        self,
        losses: Tensor,
        correct: Tensor | None,
        counted: Tensor | None = None,
        valid: Tensor | None = None,
        *,
        scores: Tensor | None = None,
        trim: float = 0,
    ) -> None:
        """Add a batch to the epoch's sums.

        Detached losses, of shape (m,) or (samples, m) where each sample is ordered by itself, which of them q counts,
        and what they are ordered by; the number of right answers, if it can be counted, and of how many, if not one for
        each loss; what is trimmed, a count or a share.
        """
        need = None if self.rule is None else self.rule.needs
        if need == "accuracy" and correct is not None:
            self._correct = _add(self._correct, correct)
            self._counted = _add(
                self._counted, torch.full_like(correct, losses.numel()) if counted is None else counted
            )
        if need == "loss_share" and losses.numel() > 0:
            points = min(self.s, _CURVE_POINTS)
            curve, weight = _share_curve(losses, points, valid, losses if scores is None else scores, trim)
            before = self._curve
            if before is not None and before.shape[0] != points:
                before = _stretch(before, points)
            self._curve = _add(before, curve)
            self._weight = _add(self._weight, weight)

    def end_epoch(self, accuracy: float | None) -> int:
        """The q of the next epoch, by the rule."""
        where = f"{self.where}.end_epoch"
        if self.q is None or not self.began:
            remedy = "Call it once per epoch, after the last batch."
            raise ArgumentError(message(where, "at least one batch", "come before the end of an epoch", "none", remedy))
        if self.rule is not None:
            observed = Observed(self.epoch + 1, self._accuracy(accuracy, where), self._loss_share())
            self.q = self._checked(self.rule.next_q(self.q, self.s, observed), self.s)
            self._last = observed
            self._accuracies.append(observed.accuracy or 0.0)
            if self.q == self.s:
                warn_of_idle_rule(self.where, self.rule, self._accuracies)
        self.epoch += 1
        self._forget_epoch()
        return self.q

    def _accuracy(self, given: float | None, where: str) -> float | None:
        if given is not None:
            if not 0 <= given <= 1:
                remedy = "Divide a percentage by 100."
                raise ArgumentError(message(where, "accuracy", "be a share in [0, 1]", given, remedy))
            return float(given)
        if self._correct is not None and self._counted is not None and float(self._counted) > 0:
            return float(self._correct) / float(self._counted)
        if self.rule is not None and self.rule.needs == "accuracy":
            remedy = "Pass accuracy=: only outputs of shape (s, C) with integer targets of shape (s,) are counted."
            raise ArgumentError(message(where, "accuracy", "be given", None, remedy))
        return None

    def _loss_share(self) -> list[float] | None:
        if self._curve is None or self._weight is None or float(self._weight) == 0:
            return None
        shares: list[float] = (self._curve / self._weight).tolist()
        return shares

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers and tensors, safe for ``torch.load(weights_only=True)``."""
        last = None
        if self._last is not None:
            share = self._last.loss_share
            last = [self._last.epoch, self._last.accuracy, None if share is None else list(share)]
        sums = [self._correct, self._counted, self._curve, self._weight]
        numbers = {"q": self.q, "s": self.s, "epoch": self.epoch, "began": self.began}
        return {**numbers, "last": last, "sums": sums, "accuracies": list(self._accuracies)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self.s, self.epoch, self.began = state["s"], state["epoch"], state["began"]
        self.q = state["q"] if self.fixed is None or self.s == 0 else self._fixed_q(self.s)
        self._last = None if state["last"] is None else Observed(*state["last"])
        self._correct, self._counted, self._curve, self._weight = state["sums"]
        self._accuracies = list(state.get("accuracies", []))


def _add(total: Tensor | None, new: Tensor) -> Tensor:
    return new.clone() if total is None else total.to(new.device) + new


def _share_curve(losses: Tensor, s: int, valid: Tensor | None, keys: Tensor, trim: float) -> tuple[Tensor, Tensor]:
    """The share of the loss carried by the 1, 2, ..., s with the largest keys, and the sizes by which it is weighted.

    Losses (m,), or (rows, m) of which the sum over rows is taken. What is trimmed carries nothing. Both are 0 for a row
    that is not finite, or has nothing valid.
    """
    losses, keys = losses.float().reshape(-1, losses.shape[-1]).clamp(min=0), keys.reshape(-1, losses.shape[-1])
    if valid is not None:
        valid = valid.reshape(losses.shape)
        losses, keys = losses.masked_fill(~valid, 0), keys.masked_fill(~valid, -torch.inf)
    ordered = losses.gather(1, keys.sort(dim=1, descending=True, stable=True).indices)
    # not torch.tensor, which copies the number to the device and waits for its queue
    size = torch.full_like(ordered[:, :1], losses.shape[1], dtype=torch.int64)
    size = size if valid is None else valid.sum(1, keepdim=True)
    carried = _after(ordered, trimmed_counts(trim, size)) if trim else ordered.cumsum(1)
    total = carried[:, -1:]
    finite = ordered.sum(1, keepdim=True).isfinite()
    weight = torch.where(finite, size.float(), 0.0)
    # a batch without any loss is carried by its first sample
    curve = torch.where(total > 0, carried / total, torch.ones_like(carried))
    curve = torch.where(weight > 0, curve * weight, torch.zeros_like(curve))
    return _stretch(curve, s, None if valid is None else size).sum(0), weight.sum()


def _after(ordered: Tensor, r: Tensor) -> Tensor:
    """Sums of the first 1, 2, ... values of each row after the first r."""
    last = ordered.shape[1] - 1
    place = torch.arange(ordered.shape[1], device=ordered.device) + r
    return torch.where(place <= last, ordered.gather(1, place.clamp(max=last)), 0).cumsum(1)


def _stretch(curve: Tensor, s: int, size: Tensor | None = None) -> Tensor:
    """The last dimension of a curve of another size (None: all of the curve) read at j/s for j = 1 ... s."""
    if size is None and curve.shape[-1] == s:
        return curve
    j = torch.arange(1, s + 1, device=curve.device)
    if size is None:
        return curve[..., (j * curve.shape[-1] + s - 1) // s - 1]
    return curve.gather(-1, ((j * size + s - 1) // s - 1).clamp(min=0))
