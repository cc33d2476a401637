"""One-line warnings for what is allowed and known to go wrong."""

import functools
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.loss import _Loss

from ordered_sgd.errors import TrapWarning, message, warn
from ordered_sgd.rules import Rule

_SILENCE = 'Silence: warnings.simplefilter("ignore", ordered_sgd.errors.TrapWarning).'
_PATIENCE = 5  # epochs without progress, after as many others, before a rule is called idle
_PROGRESS = 0.01  # of accuracy


def _trap(where: str, name: str, rule: str, got: object, remedy: str) -> None:
    warn(f"{message(where, name, rule, got, remedy)} {_SILENCE}", TrapWarning)


def warn_of_small_q(where: str, q: int, s: int) -> bool:
    """Whether less than a quarter is kept in the first epoch, and a warning: large losses tell little yet."""
    if q < s // 4:  # a quarter is rounded down as q is
        remedy = "Start from all with rule=AccuracyRule() or LinearDecay(epochs); a wrong label has the largest loss."
        _trap(where, "q", f"be a quarter of the batch or more in the first epoch (s = {s})", q, remedy)
        return True
    return False


def warn_of_weights(where: str, criterion: Callable[..., Any]) -> None:
    """Warn if the criterion weights its losses: a class of large weight is then kept however easy it is."""
    keywords = criterion.keywords if isinstance(criterion, functools.partial) else {}
    for name in ("weight", "pos_weight"):
        given = getattr(criterion, name, None) if isinstance(criterion, _Loss) else keywords.get(name)
        if given is not None:
            remedy = "Order by the plain loss, or expect mostly the classes of large weight to be kept."
            _trap(where, "criterion", "not be weighted, for losses are ordered as it returns them", f"{name}=", remedy)


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
        _trap(f"{where}.end_epoch", "accuracy", rule_, f"{lately:.2f} at most after {len(accuracies)} epochs", remedy)


def warn_of_batchnorm(where: str, q: int) -> None:
    """Warn that BatchNorm meets one or two kept samples."""
    remedy = "Give the rule a floor such as q_min=4, or use GroupNorm."
    _trap(where, "q", "be at least 3 for a model with BatchNorm", q, remedy)


def has_batchnorm(model: nn.Module) -> bool:
    """Whether a layer of the model normalises over the batch."""
    return any(isinstance(module, _BatchNorm) for module in model.modules())
