"""Linear classifiers: multinomial logistic regression, and a support vector machine with the multiclass hinge."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import numpy as np
from scipy.special import expit, log_expit, log_softmax, softmax
from sklearn.base import ClassifierMixin, _fit_context
from sklearn.utils import compute_class_weight
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.multiclass import _check_partial_fit_first_call, check_classification_targets
from sklearn.utils.validation import _check_sample_weight, validate_data

from ordered_sgd.linear.estimator import READ, OrderedLinearModel
from ordered_sgd.linear.objective import Array, Loss


@dataclass(kw_only=True, eq=False, repr=False)
class _OrderedClassifier(ClassifierMixin, OrderedLinearModel):  # type: ignore[misc]
    """Labels to numbers and back; two classes share one column of weights, positive for the second."""

    class_weight: dict[Any, float] | Literal["balanced"] | None = None

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **OrderedLinearModel._parameter_constraints,
        "class_weight": [StrOptions({"balanced"}), dict, None],
    }

    @_fit_context(prefer_skip_nested_validation=True)  # type: ignore[untyped-decorator]
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train from the start, or with ``warm_start=True`` from the present weights.

        Parameters
        ----------
        X
            Shape (n_samples, n_features), dense or sparse.
        y
            Labels, shape (n_samples,).
        sample_weight
            Multiplies the losses before they are ordered, after `class_weight`.
        """
        X, y = validate_data(self, X, y, **READ)
        check_classification_targets(y)
        before, classes = getattr(self, "classes_", None), np.unique(y)
        if self.warm_start and before is not None and not np.array_equal(before, classes):
            raise ValueError(f"warm_start needs the classes of the last fit, {before}; got {classes}.")
        self.classes_ = classes
        return self._fit_labels(X, y, sample_weight)

    @_fit_context(prefer_skip_nested_validation=True)  # type: ignore[untyped-decorator]
    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Train one more epoch, on these samples; momentum, rule and the order of samples go on where they were.

        Parameters
        ----------
        X, y, sample_weight
            As in `fit`.
        classes
            All classes that will ever come; needed in the first call. A cosine plan stays at its first rate, since no
            end is known.
        """
        if self.class_weight == "balanced":
            raise ValueError(
                "class_weight='balanced' is not supported for partial_fit, which never sees all labels. "
                "Pass the weights of compute_class_weight('balanced', classes=classes, y=y) as a dict."
            )
        X, y = validate_data(self, X, y, reset=not hasattr(self, "coef_"), **READ)
        _check_partial_fit_first_call(self, classes)
        unseen = np.setdiff1d(y, self.classes_)
        if len(unseen):
            raise ValueError(f"The labels {unseen} in y are not among the classes {self.classes_}.")
        return self._fit_labels(X, y, sample_weight, partial=True)

    def decision_function(self, X: Any) -> Array:
        """Scores, shape (n_samples, n_classes); for two classes (n_samples,), positive for the second."""
        scores = self._scores(X)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict(self, X: Any) -> Array:
        """The class with the largest score, shape (n_samples,)."""
        answers = _answers(self._scores(X))
        labels: Array = self.classes_[answers]
        return labels

    def _fit_labels(self, X: Array, y: Array, sample_weight: Any, *, partial: bool = False) -> Self:
        count = len(self.classes_)
        if count < 2:
            raise ValueError(f"The number of classes has to be greater than one; got {count} class.")
        weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        by_class = compute_class_weight(self.class_weight, classes=self.classes_, y=y)
        numbers = np.searchsorted(self.classes_, y)
        columns = 1 if count == 2 else count
        return self._train(X, numbers, weight * by_class[numbers], columns, partial=partial, stratify=True)

    def _judge(self, y: Array, scores: Array, weight: Array) -> float:
        return float(np.average(_answers(scores) == y, weights=weight))


def _answers(scores: Array) -> Array:
    """Class numbers."""
    return (scores[:, 0] > 0).astype(int) if scores.shape[1] == 1 else scores.argmax(axis=1)


@dataclass(kw_only=True, eq=False, repr=False)
class OrderedLogisticRegression(_OrderedClassifier):
    """Multinomial logistic regression by ordered SGD: every step is on the q samples of a batch it gets most wrong.

    The loss is the cross-entropy of the softmax; for two classes ``log(1 + exp(-a))`` with one column of weights. With
    ``q=1.0`` it is plain mini-batch SGD.

    Parameters
    ----------
    class_weight
        Factor of the losses by class, before they are ordered: a dict, or ``"balanced"``.

    All others are described in `ordered_sgd.linear.estimator.OrderedLinearModel`.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = OrderedLogisticRegression(random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.95)
    True
    >>> model.predict_proba(X[:2]).shape, model.selection_counts_.shape
    ((2, 3), (150,))
    """

    def predict_proba(self, X: Any) -> Array:
        """Probabilities, shape (n_samples, n_classes), in the order of `classes_`."""
        scores = self._scores(X)
        if scores.shape[1] > 1:
            return np.asarray(softmax(scores, axis=1))
        return np.hstack([expit(-scores), expit(scores)])

    def predict_log_proba(self, X: Any) -> Array:
        """Logarithms of the probabilities."""
        scores = self._scores(X)
        if scores.shape[1] > 1:
            return np.asarray(log_softmax(scores, axis=1))
        return np.hstack([log_expit(-scores), log_expit(scores)])

    def _loss(self) -> Loss:
        return "log_loss"


@dataclass(kw_only=True, eq=False, repr=False)
class OrderedLinearSVC(_OrderedClassifier):
    """A linear support vector machine by ordered SGD: every step is on the q samples of a batch it gets most wrong.

    The loss is the multiclass hinge of Weston & Watkins, the sum over the other classes of ``max(0, 1 + a_j - a_y)``;
    for two classes ``max(0, 1 - a)`` with one column of weights. In the project's own runs with this loss ordering did
    not help, and on MNIST at the paper's rate it hurt: compare with ``q=1.0``.

    Parameters
    ----------
    class_weight
        Factor of the losses by class, before they are ordered: a dict, or ``"balanced"``.

    All others are described in `ordered_sgd.linear.estimator.OrderedLinearModel`.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> bool(OrderedLinearSVC(random_state=0).fit(X, y).score(X, y) > 0.95)
    True
    """

    def _loss(self) -> Loss:
        return "hinge"
