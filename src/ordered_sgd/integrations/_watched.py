"""What the leaves share: a criterion made to return one loss per sample, and an ordered loss that keeps both means."""

import copy
import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ordered_sgd.criterion import setting_of
from ordered_sgd.errors import ArgumentError, message
from ordered_sgd.loss import OrderedLoss
from ordered_sgd.policy import Policy


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
    """

    ordered_loss: Tensor | None = None
    mean_loss: Tensor | None = None
    samples: int = 0
    kept_q: int | None = None
    counting: bool = True

    @property
    def policy(self) -> Policy:
        """How many are kept and which, with the state that a checkpoint carries."""
        return self._policy

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """The ordered loss; see `OrderedLoss`."""
        loss = super().forward(*args, **kwargs)
        if not self.training or not torch.is_grad_enabled():
            return loss
        adaptive = self.policy.adaptive
        if self.counting and adaptive.counts_answers and self.ordered_loss is None and not adaptive.has_counted:
            rule = "find right answers to count in the first batch"
            got = f"no outputs (s, C) with integer targets (s,), or fewer than two classes, for {adaptive.rule}"
            remedy = "Use LossMassRule, which needs none, or a fixed q."
            raise ArgumentError(message(self._where, "the rule", rule, got, remedy))
        self.ordered_loss, self.kept_q = loss.detach(), self.q
        return loss

    def _units(self, losses: Tensor, valid: Tensor | None, ids: Tensor | None) -> tuple[Tensor, Tensor | None]:
        values, units = super()._units(losses, valid, ids)
        if self.training:
            self.samples, seen = losses.shape[0], values.detach()
            valid = torch.ones_like(seen, dtype=torch.bool) if units is None else units
            self.mean_loss = torch.where(valid, seen, 0).sum() / valid.sum().clamp(min=1)  # nothing is read back
        return values, units


def world() -> "dist.ProcessGroup | None":
    """All ranks, or None in a process of its own."""
    return dist.group.WORLD if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1 else None
