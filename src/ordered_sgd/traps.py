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


def warn_of_batchnorm(where: str, q: int) -> None:
    """Warn that BatchNorm meets one or two kept samples."""
    remedy = "Give the rule a floor such as q_min=4, or use GroupNorm."
    warn_trap(where, "q", "be at least 3 for a model with BatchNorm", q, remedy)


def has_batchnorm(model: nn.Module, *, training: bool = False) -> bool:
    """Whether a layer of the model normalises over the batch, if need be now: in eval mode it does not."""
    return any(isinstance(module, _BatchNorm) and (module.training or not training) for module in model.modules())
