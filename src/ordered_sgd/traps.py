"""One-line warnings for what is allowed and known to go wrong."""

import functools
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.loss import _Loss

from ordered_sgd.errors import warn_trap
from ordered_sgd.rules import Rule

_PATIENCE = 5  # epochs without progress, after as many others, before a rule is called idle
_PROGRESS = 0.01  # of accuracy
_LONGEST_EPOCH = 25_000  # batches: ImageNet has 20,000 of 64


def warn_of_small_q(where: str, q: int, s: int) -> bool:
    """Whether less than a quarter is kept in the first epoch, and a warning: large losses tell little yet."""
    if q < s // 4:  # a quarter is rounded down as q is
        remedy = "Start from all with q=AccuracyRule() or LinearDecay(epochs); a wrong label has the largest loss."
        warn_trap(where, "q", f"be a quarter of the batch or more in the first epoch (s = {s})", q, remedy)
        return True
    return False


def warn_of_weights(where: str, criterion: Callable[..., Any]) -> None:
    """Warn if the criterion weights its losses: a class of large weight is then kept however easy it is."""
    keywords = criterion.keywords if isinstance(criterion, functools.partial) else {}
    for name in ("weight", "pos_weight"):
        given = getattr(criterion, name, None) if isinstance(criterion, _Loss) else keywords.get(name)
        if given is not None:
            remedy = "Order by the plain loss, or expect mostly the classes of large weight to be kept."
            warn_trap(
                where, "criterion", "not be weighted, for losses are ordered as it returns them", f"{name}=", remedy
            )


def warn_of_idle_rule(where: str, rule: Rule, accuracies: list[float]) -> None:
    """Warn, once, if accuracy has settled below all thresholds, as that of mixed images does: q will never move."""
    thresholds = getattr(rule, "thresholds", None)
    if not thresholds or len(accuracies) != 2 * _PATIENCE:
        return
    before, lately = max(accuracies[:_PATIENCE]), max(accuracies[_PATIENCE:])
    if lately < thresholds[0] and lately <= before + _PROGRESS:
        remedy = (
            "After mixup pass accuracy= of a pass over clean samples; else lower the thresholds, or use LossMassRule."
        )
        rule_ = f"reach {thresholds[0]:g} for q to move"
        warn_trap(
            f"{where}.end_epoch", "accuracy", rule_, f"{lately:.2f} at most after {len(accuracies)} epochs", remedy
        )


class ForgottenEpochs:
    """Notices that `end_epoch` is never called where it would move something, and warns once.

    That an epoch has passed shows by a smaller last batch that comes again after as many batches as before, by
    evaluations between training batches, or by the number of batches.
    """

    def __init__(self, where: str, moved: str) -> None:
        self._where, self._moved = where, moved
        self._batches = self._largest = self._evaluations = 0
        self._ends = [(0, 0)]  # size of each smaller batch, and how many batches had come
        self._done = self._evaluating = False

    def end(self) -> None:
        """An epoch was ended: it is not forgotten."""
        self._done = True

    def evaluated(self) -> None:
        """A batch was evaluated."""
        self._evaluations += self._batches > 0 and not self._evaluating
        self._evaluating = True

    def saw(self, s: int) -> None:
        """A training batch of s came."""
        if self._done:
            return
        again = len(self._ends) > 2 and _periodic(self._ends[-3:]) and s == self._largest
        if again or self._evaluations > 1 or self._batches >= _LONGEST_EPOCH:
            self._done = True
            rule, got = f"be called once per epoch for {self._moved}", f"{self._batches} batches and no call"
            warn_trap(self._where, "end_epoch", rule, got, "Call it after the last batch of each epoch.")
        self._batches, self._evaluating = self._batches + 1, False
        if s < self._largest:
            self._ends.append((s, self._batches))
        self._largest = max(s, self._largest)


def _periodic(ends: list[tuple[int, int]]) -> bool:
    """Whether the last two smaller batches have one size, and the same number of batches before each."""
    (_, start), (size, first), (same, second) = ends
    return size == same and first - start == second - first > 1


def warn_of_no_grad(where: str) -> None:
    """Warn that an ordered loss in training mode and without gradients is not the plain mean."""
    got = "training mode without gradients, and so the mean of the largest losses"
    remedy = "Call loss_fn.eval() for validation, and loss_fn.train() after it."
    warn_trap(where, "the mode", "be eval for the plain mean", got, remedy)


def warn_of_batchnorm(where: str, q: int) -> None:
    """Warn that BatchNorm meets one or two kept samples."""
    remedy = "Give the rule a floor such as q_min=4, or use GroupNorm."
    warn_trap(where, "q", "be at least 3 for a model with BatchNorm", q, remedy)


def has_batchnorm(model: nn.Module, *, training: bool = False) -> bool:
    """Whether a layer of the model normalises over the batch, if need be now: in eval mode it does not."""
    return any(isinstance(module, _BatchNorm) and (module.training or not training) for module in model.modules())
