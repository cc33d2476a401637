"""What `osgd compare` runs on a user's table: the loss and the model that fit its target, and more arms by default."""

from collections.abc import Sequence

import numpy as np

from ordered_sgd.lab.data.dataset import Dataset
from ordered_sgd.lab.experiments.spec import ExperimentSpec
from ordered_sgd.rules import LossMassRule

FIXED = 0.5  # the share that is kept where the paper's rule may never move
_LINEAR = ("logistic", "svm", "linear")


def fitting(
    base: ExperimentSpec, train: Dataset, *, qs: Sequence[float] = (), engine: bool = False, rate: bool = False
) -> ExperimentSpec:
    """The spec that fits the data: a regression has its own loss and a fixed q, as it has no accuracy for a rule.

    Linear models of a table are trained by the compiled kernels unless an `engine` was asked for. Squared losses of
    many columns diverge at the usual rate: unless a `rate` was asked for it is at most `stable_rate`.
    """
    if not train.classes:
        model = "linear" if base.model == "logistic" else base.model
        loss = base.loss if base.model == "svm" else "squared"
        base = base.but(loss=loss, model=model, q=qs[0] if qs else FIXED)
        if model == "linear" and base.optimizer == "sgd" and not rate:
            base = base.but(lr=min(base.lr, stable_rate(train, base.momentum)))
    if train.table is not None and base.model in _LINEAR and not engine:
        base = base.but(engine="kernels")
    return base


def stable_rate(train: Dataset, momentum: float) -> float:
    """A rate at which SGD on the squared losses of a linear model does not diverge: (1 - momentum) / (2 E |x|^2).

    >>> import numpy as np
    >>> stable_rate(Dataset(np.ones((5, 24)), np.arange(5.0), (), "ones"), 0.9)  # 0.1 / (2 * 25): 1 for the intercept
    0.002
    """
    norms = float((train.x.reshape(len(train), -1).astype(np.float64) ** 2).sum(axis=1).mean())
    return float(f"{(1 - momentum) / (2 * (norms + 1)):.1g}")


def by_default(base: ExperimentSpec, train: Dataset, qs: Sequence[float], class_weight: str) -> list[ExperimentSpec]:
    """More arms: every fixed q that was asked for, else half of the batch, and loss mass; class weights if asked for.

    The paper's rule waits for an accuracy of 80 %, which many tables never reach.
    """
    own = train.table is not None or not train.classes
    fixed = [*qs] or ([FIXED] if own else [])
    found = [base.but(q=q) for q in fixed if q != base.q]
    if own:
        found.append(base.but(q=LossMassRule()))
    if class_weight != "none":
        found += [base.but(method=method, class_weight=class_weight) for method in ("sgd", "ordered")]
    return found
