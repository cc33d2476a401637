"""What the leaves share: a criterion made to return one loss per sample, and an ordered loss that keeps both means."""

import copy
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ordered_sgd.criterion import right_answers, setting_of
from ordered_sgd.draws import DrawnBatch
from ordered_sgd.errors import ArgumentError, message
from ordered_sgd.integrations._drawn import check_by_losses, check_loaded, ordered_mean_of_drawn, plain_mean
from ordered_sgd.loss import OrderedLoss
from ordered_sgd.policy import Policy
from ordered_sgd.units import Units


def unreduced(criterion: Any, where: str) -> Callable[..., Tensor]:
    """The criterion with one loss per sample: a copy that shares its parameters, or a partial function.

    >>> unreduced(nn.MSELoss(), "doctest").reduction
    'none'
    """
    reduction = setting_of(criterion, "reduction") if callable(criterion) else None
    if reduction == "sum":
        remedy = 'Build it with reduction="mean", and raise the learning rate by the batch size.'
        raise ArgumentError(message(where, "criterion", "be a mean over the batch", "reduction='sum'", remedy))
    if reduction in (None, "none"):
        return criterion  # type: ignore[no-any-return]
    if not isinstance(criterion, nn.Module):
        return functools.partial(criterion, reduction="none")
    copied = copy.copy(criterion)
    copied.reduction = "none"  # type: ignore[assignment]
    return copied


class UnitLosses(NamedTuple):
    """Losses of the units of a batch, which are valid (None: all), and the right answers of how many, if counted.

    Scores, and what is always kept, are as in `Units`.
    """

    values: Tensor
    valid: Tensor | None
    correct: Tensor | None
    counted: Tensor | None
    scores: Tensor | None = None
    always: Tensor | None = None

    @property
    def units(self) -> Units:
        """Without the answers."""
        return Units(self.values, self.valid, self.scores, self.always)

    @classmethod
    def joined(cls, parts: "Sequence[UnitLosses]") -> "UnitLosses":
        """Those of several batches as one."""
        values = torch.cat([part.values for part in parts])
        valid = [torch.ones_like(p.values, dtype=torch.bool) if p.valid is None else p.valid for p in parts]
        scores, always = (_joined([part[place] for part in parts]) for place in (4, 5))
        known = [(p.correct, p.counted) for p in parts if p.correct is not None and p.counted is not None]
        if len(known) < len(parts):
            return cls(values, torch.cat(valid), None, None, scores, always)
        correct, counted = (torch.stack(numbers).sum() for numbers in zip(*known, strict=True))
        return cls(values, torch.cat(valid), correct, counted, scores, always)


def _joined(parts: list[Any]) -> Tensor | None:
    """The tensors as one, or None where no batch has one."""
    return None if parts[0] is None else torch.cat(parts)


class WatchedLoss(OrderedLoss):
    """An `OrderedLoss` that keeps both means of the last training batch, and refuses a rule that would see nothing.

    Attributes
    ----------
    ordered_loss, mean_loss
        Of the last training batch, detached; the plain mean is over the valid units.
    samples, kept_q
        How many that batch had, of this rank, and the q for a full one then: the rule may have moved since.
    counting
        Whether the rule must live on the answers counted here: nobody else will tell it the accuracy.
    answers
        How many answers of the last training batch were right, and how many there were, if the rule wants to know.
    """

    ordered_loss: Tensor | None = None
    mean_loss: Tensor | None = None
    samples: int = 0
    kept_q: int | None = None
    counting: bool
    _without_answers = "Use LossMassRule, which needs none, or a fixed q."
    answers: tuple[Tensor | None, Tensor | None] = None, None
    _drawn: DrawnBatch | None = None  # which is being trained on
    _whole = False
    _seen: list[Tensor] | None = None  # the losses of what was loaded of it, of each call
    _found: list[UnitLosses] | None = None  # where losses go that are not reduced

    @property
    def policy(self) -> Policy:
        """How many are kept and which, with the state that a checkpoint carries."""
        return self._policy

    @property
    def ignored(self) -> int | None:
        """The target that the criterion ignores."""
        return self._ignored

    @property
    def skips_nothing(self) -> str | None:
        """Why nearly every sample has a gradient, whatever its loss; None if those that are not kept have none."""
        if self.unit != "sample":
            return f"kept {self.unit}s lie in nearly every sample"
        if self.mix:
            return "mix gives every sample a gradient"
        fixed = self.policy.adaptive.fixed
        return "q keeps every sample" if isinstance(fixed, float) and fixed == 1 and not self.policy.trim else None

    def expect(self, drawn: DrawnBatch, *, whole: bool) -> None:
        """The next losses are those of what a batch sampler loaded; `whole`: all of them are kept."""
        self._drawn, self._whole, self._seen = drawn, whole, []

    def seen(self) -> list[Tensor]:
        """The losses of the batch that was expected, of each call; none is expected any more."""
        found, self._drawn, self._seen = self._seen or [], None, None
        return found

    @contextmanager
    def by_unit(self) -> Iterator[list[UnitLosses]]:
        """Within, calls return the losses of their units, and add to the list what is needed to order them."""
        found: list[UnitLosses] = []
        self._found = found
        try:
            yield found
        finally:
            self._found = None

    def order(self, units: UnitLosses) -> Tensor:
        """The ordered loss of losses that were found `by_unit`, in training."""
        self.train()
        return self._reduced(units.units, units.correct, units.counted, masked=True)

    def train(self, mode: bool = True) -> "WatchedLoss":
        """Set the mode; losses are found by unit for training, with a graph or without."""
        return super().train(mode or self._found is not None)

    def _scores_first(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        return self._found is None and self._drawn is None and super()._scores_first(args, kwargs)

    def _answers(self, args: tuple[Any, ...], losses: Tensor, valid: Tensor | None) -> tuple[Tensor | None, Tensor]:
        drawn = self._drawn
        if drawn is None:
            correct, counted = super()._answers(args, losses, valid)
        else:
            right = right_answers(self.criterion, *args, like=losses)
            there = torch.ones_like(losses) if valid is None else valid.to(losses.dtype)
            correct = None if right is None else drawn.total((there * right).reshape(len(losses), -1).sum(1))
            counted = drawn.total(there.reshape(len(losses), -1).sum(1))
        self.answers = correct, counted
        return correct, counted

    def _reduced(self, units: Units, correct: Tensor | None, counted: Tensor | None, **options: Any) -> Tensor:
        if self._found is not None:
            found = UnitLosses(units.losses, units.valid, correct, counted, units.scores, units.always)
            self._found.append(found)
            return units.losses
        drawn, seen = self._drawn if torch.is_grad_enabled() else None, units.losses.detach()
        if drawn is not None:
            self.mean_loss = plain_mean(seen, units.valid, drawn)
            loss = self._of_loaded(drawn, units, correct, counted, **options)
        else:
            valid = torch.ones_like(seen, dtype=torch.bool) if units.valid is None else units.valid
            self.mean_loss = torch.where(valid, seen, 0).sum() / valid.sum().clamp(min=1)  # nothing is read back
            loss = super()._reduced(units, correct, counted, **options)
        if not torch.is_grad_enabled():
            return loss
        self.ordered_loss, self.kept_q = loss.detach(), self.q
        return loss

    def _of_loaded(
        self, drawn: DrawnBatch, units: Units, correct: Tensor | None, counted: Tensor | None, **options: Any
    ) -> Tensor:
        """The ordered loss of what was loaded of a batch; that of a batch loaded whole is the usual one."""
        assert self._seen is not None
        losses = units.losses.detach()
        self._seen.append(losses if units.valid is None else torch.where(units.valid, losses, 0))
        self.samples = drawn.s
        if drawn.positions is None and not self._whole and self.group is None:
            return super()._reduced(units, correct, counted, **options)
        check_by_losses(units, self.policy, self._where)
        values = units.losses, units.valid
        return ordered_mean_of_drawn(self, self.policy, drawn, *values, correct, counted, whole=self._whole)

    def _saw(self, losses: Tensor) -> None:
        self.mean_loss = losses.sum() / max(losses.shape[0], 1)  # of all ranks, in place of this one's

    def _units(self, losses: Tensor, *given: Tensor | None) -> Units:
        units = super()._units(losses, *given)
        if self._drawn is not None:
            check_loaded(units.losses, self._drawn, self._where)
        if self.training:
            self.samples = losses.shape[0]
        return units


def world() -> "dist.ProcessGroup | None":
    """All ranks, or None in a process of its own."""
    return dist.group.WORLD if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1 else None
