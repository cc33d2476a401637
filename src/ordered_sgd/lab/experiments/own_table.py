"""What `osgd compare` runs on a user's table: the loss and the model that fit its target, and more arms by default."""

from collections.abc import Sequence

from ordered_sgd.lab.data.dataset import Dataset
from ordered_sgd.lab.experiments.spec import ExperimentSpec
from ordered_sgd.rules import LossMassRule

FIXED = 0.5  # the share that is kept where the paper's rule may never move
_LINEAR = ("logistic", "svm", "linear")


def fitting(base: ExperimentSpec, train: Dataset, *, qs: Sequence[float] = (), engine: bool = False) -> ExperimentSpec:
    """The spec that fits the data: a regression has its own loss and a fixed q, as it has no accuracy for a rule.

    Linear models of a table are trained by the compiled kernels unless an `engine` was asked for.
    """
    if not train.classes:
        model = "linear" if base.model == "logistic" else base.model
        loss = base.loss if base.model == "svm" else "squared"
        base = base.but(loss=loss, model=model, q=qs[0] if qs else FIXED)
    if train.table is not None and base.model in _LINEAR and not engine:
        base = base.but(engine="kernels")
    return base


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
