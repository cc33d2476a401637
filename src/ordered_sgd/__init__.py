"""Ordered SGD: train on what the model still gets wrong.

At every step take a mini-batch of s samples, keep the q with the largest losses, step on their mean
(Kawaguchi & Lu, AISTATS 2020). Start with `ordered_mean` for one line in a loop, `OrderedLoss` for a criterion whose
q follows a rule, `OrderedStep` for a whole update; `ordered_sgd.theory` has the weights, the risk and the bounds.
"""

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

# Importing the package loads nothing heavy: names are resolved on first use.
# Public name -> module of this package that defines it. The imports below repeat the table for type checkers;
# a test keeps the two equal.
_DOOR = {
    "select_top_q": "selection",
    "ordered_mean": "mean",
    "ordered_linear_cross_entropy": "head",
    "OrderedLoss": "loss",
    "OrderedStep": "step",
    "StepRecord": "record",
    "selective_backward": "selective",
    "explain_backward": "selective",
    "restore_backward": "selective",
    "OrderedBatchSampler": "sampler",
    "with_index": "indexed",
    "multiclass_hinge": "hinge",
    "Above": "amounts",
    "AccuracyRule": "rules",
    "FixedQ": "rules",
    "LinearDecay": "rules",
    "CosineDecay": "rules",
    "LossMassRule": "rules",
    "SelectionTracker": "diagnostics.tracker",
}
# Reachable as ordered_sgd.<name> without an import of their own.
_MODULES = ("errors", "rules", "batches", "theory", "engines", "scores", "linear", "optim", "diagnostics")

if TYPE_CHECKING:
    from . import batches as batches
    from . import diagnostics as diagnostics
    from . import engines as engines
    from . import errors as errors
    from . import linear as linear
    from . import optim as optim
    from . import rules as rules
    from . import scores as scores
    from . import theory as theory
    from .amounts import Above as Above
    from .diagnostics.tracker import SelectionTracker as SelectionTracker
    from .head import ordered_linear_cross_entropy as ordered_linear_cross_entropy
    from .hinge import multiclass_hinge as multiclass_hinge
    from .indexed import with_index as with_index
    from .loss import OrderedLoss as OrderedLoss
    from .mean import ordered_mean as ordered_mean
    from .record import StepRecord as StepRecord
    from .rules import AccuracyRule as AccuracyRule
    from .rules import CosineDecay as CosineDecay
    from .rules import FixedQ as FixedQ
    from .rules import LinearDecay as LinearDecay
    from .rules import LossMassRule as LossMassRule
    from .sampler import OrderedBatchSampler as OrderedBatchSampler
    from .selection import select_top_q as select_top_q
    from .selective import explain_backward as explain_backward
    from .selective import restore_backward as restore_backward
    from .selective import selective_backward as selective_backward
    from .step import OrderedStep as OrderedStep

__all__ = [*_DOOR, *_MODULES, "__version__"]


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _DOOR:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f"{__name__}.{_DOOR[name]}"), name)
    globals()[name] = value  # the next use is an ordinary attribute
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
