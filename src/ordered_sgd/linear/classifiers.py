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

from ordered_sgd.linear.estimator import READ, OrderedLinearModel, Start
from ordered_sgd.linear.objective import Array, Loss


@dataclass(kw_only=True, eq=False, repr=False)
class _OrderedClassifier(ClassifierMixin, OrderedLinearModel):  # type: ignore[misc]
    """Encodes the labels; two classes share one column of weights, whose score is positive for the second class."""

    class_weight: dict[Any, float] | Literal["balanced"] | None = None

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **OrderedLinearModel._parameter_constraints,
        "class_weight": [StrOptions({"balanced"}), dict, None],
    }

    @_fit_context(prefer_skip_nested_validation=True)  # type: ignore[untyped-decorator]
    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, *, coef_init: Any = None, intercept_init: Any = None
    ) -> Self:
        """Train for `max_iter` epochs, from zero or with ``warm_start=True`` from the current weights.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            Inputs.
        y : array-like of shape (n_samples,)
            Labels.
        sample_weight : array-like of shape (n_samples,) or None, default=None
            Factor of the losses, applied with `class_weight` before they are ordered.
        coef_init : array-like or None, default=None
            Weights to start from, in the shape of `coef_`, instead of zeros or those of a warm start.
        intercept_init : array-like or None, default=None
            Intercept to start from, in the shape of `intercept_`.
        """
        X, y = validate_data(self, X, y, **READ)
        check_classification_targets(y)
        before, classes = getattr(self, "classes_", None), np.unique(y)
        if self.warm_start and before is not None and not np.array_equal(before, classes):
            raise ValueError(f"warm_start needs the classes of the last fit, {before}; got {classes}.")
        self.classes_ = classes
        return self._fit_labels(X, y, sample_weight, start=(coef_init, intercept_init))

    @_fit_context(prefer_skip_nested_validation=True)  # type: ignore[untyped-decorator]
    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Continue training on a chunk of a stream, of any size.

        With ``eta0="auto"`` samples are collected to full batches, the rate falls and is never too large for what was
        seen so far, up to 1,024 samples are kept to be trained on again, and the weights are an average. A rule is
        asked once for every thousand samples. With a number for `eta0` it is one more epoch on these samples, in which
        a cosine schedule stays at `eta0`, because the number of epochs is not known.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            Inputs.
        y : array-like of shape (n_samples,)
            Labels.
        classes : array-like of shape (n_classes,) or None, default=None
            All classes that will occur in any call; required in the first one.
        sample_weight : array-like of shape (n_samples,) or None, default=None
            As in `fit`.
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

    def _fit_labels(
        self, X: Array, y: Array, sample_weight: Any, *, partial: bool = False, start: Start = (None, None)
    ) -> Self:
        count = len(self.classes_)
        if count < 2:
            raise ValueError(f"The number of classes has to be greater than one; got {count} class.")
        weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        by_class = compute_class_weight(self.class_weight, classes=self.classes_, y=y)
        numbers = np.searchsorted(self.classes_, y)
        columns = 1 if count == 2 else count
        weight = weight * by_class[numbers]
        return self._train(X, numbers, weight, columns, partial=partial, stratify=True, start=start)

    def _judge(self, y: Array, scores: Array, weight: Array) -> float:
        return float(np.average(_answers(scores) == y, weights=weight))


def _answers(scores: Array) -> Array:
    """Class numbers."""
    return (scores[:, 0] > 0).astype(int) if scores.shape[1] == 1 else scores.argmax(axis=1)


@dataclass(kw_only=True, eq=False, repr=False)
class OrderedLogisticRegression(_OrderedClassifier):
    """Multinomial logistic regression by ordered SGD: each step uses the q samples of a batch with the largest losses.

    The loss is the cross-entropy of the softmax; for two classes ``log(1 + exp(-a))`` with one column of weights.

    Parameters
    ----------
    q : float or Rule, default=0.5
        Samples kept per batch: an int is a count, a float in (0, 1] a share of the batch, and a rule such as
        `ordered_sgd.AccuracyRule` changes the count after every epoch. ``q=1.0`` is plain mini-batch SGD.
    batch_size : int, default=64
        Samples per mini-batch, at most the number of samples.
    max_iter : int, default=50
        Number of epochs.
    learning_rate : str or dict, default="cosine"
        Schedule of the learning rate. ``"cosine"`` decays from `eta0` towards zero over `max_iter` epochs,
        ``"constant"`` stays at `eta0`, and ``{10: 0.1}`` continues with a tenth of `eta0` from epoch 10 on.
    eta0 : float or "auto", default="auto"
        Initial learning rate. ``"auto"`` is one over the largest curvature that a batch is likely to have.
    momentum : float, default=0.9
        Momentum in [0, 1), as in torch: ``v = momentum v + g; w = w - rate v``.
    penalty : str or None, default="l2"
        ``"l2"`` adds ``alpha / 2 |w|^2``; ``"l1"`` adds ``alpha |w|_1`` by a proximal step, which gives exact zeros;
        ``"elasticnet"`` mixes the two. The intercept is not penalized. On sparse input, an L1 part makes every step
        visit all weights.
    alpha : float, default=1e-4
        Strength of the penalty.
    l1_ratio : float or None, default=0.15
        Share of the L1 part in ``penalty="elasticnet"``, in [0, 1]; None with the other penalties.
    fit_intercept : bool, default=True
        Whether to fit an intercept.
    shuffle : bool, default=True
        Whether to shuffle the samples in every epoch, and those of each `partial_fit`.
    input_scale : float, default=1.0
        Factor applied to every input as it is read, in training and prediction. Use 1/255 for bytes (uint8), which are
        read without a copy.
    early_stopping : bool, default=False
        Whether to hold out some samples, stop when their score no longer improves, and keep the best weights.
    validation_fraction : float, default=0.1
        Share of the samples that `early_stopping` holds out.
    n_iter_no_change : int, default=5
        Epochs without improvement after which training stops.
    tol : float or None, default=None
        Smallest improvement that counts: of the validation score with `early_stopping`, where None means 0, otherwise
        of the mean training loss, where None means that training never stops early.
    random_state : int, RandomState instance or None, default=None
        Seed for the order of the samples.
    warm_start : bool, default=False
        Whether `fit` starts from the current weights.
    verbose : int, default=0
        If not 0, print every epoch. The logger ``ordered_sgd.linear`` gets the same lines, at level INFO, and at level
        DEBUG otherwise.
    class_weight : dict or "balanced" or None, default=None
        Factor of the losses of each class, applied before they are ordered. ``"balanced"`` is inverse to
        the class frequencies.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels, sorted.
    coef_ : ndarray of shape (n_classes, n_features)
        Weights, for two classes of shape (1, n_features); float32 for float32 and uint8 input, otherwise float64.
    intercept_ : ndarray of shape (n_classes,)
        Intercepts, for two classes of shape (1,).
    n_iter_ : int
        Epochs trained.
    eta0_ : float
        Initial learning rate.
    loss_curve_ : list of float
        Mean loss of all samples in each epoch, every loss taken when its batch was scored.
    ordered_loss_curve_ : list of float
        Mean loss of the kept samples in each epoch.
    q_curve_ : list of int
        Samples kept per batch in each epoch.
    selection_counts_ : ndarray of shape (n_samples,)
        How often each sample was kept in the last call of `fit` or `partial_fit`; hard samples have large counts.
    n_features_in_ : int
        Number of features seen during `fit`.
    feature_names_in_ : ndarray of shape (n_features,)
        Names of the features, if X has column names that are all strings.

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
    """A linear support vector machine by ordered SGD: each step uses the q samples of a batch with the largest losses.

    The loss is the multiclass hinge of Weston & Watkins, the sum over the other classes of ``max(0, 1 + a_j - a_y)``;
    for two classes ``max(0, 1 - a)`` with one column of weights. In the project's own runs ordering did not help with
    this loss, and on MNIST at the paper's learning rate it hurt: compare with ``q=1.0``.

    Parameters
    ----------
    q : float or Rule, default=0.5
        Samples kept per batch: an int is a count, a float in (0, 1] a share of the batch, and a rule such as
        `ordered_sgd.AccuracyRule` changes the count after every epoch. ``q=1.0`` is plain mini-batch SGD.
    batch_size : int, default=64
        Samples per mini-batch, at most the number of samples.
    max_iter : int, default=50
        Number of epochs.
    learning_rate : str or dict, default="cosine"
        Schedule of the learning rate. ``"cosine"`` decays from `eta0` towards zero over `max_iter` epochs,
        ``"constant"`` stays at `eta0`, and ``{10: 0.1}`` continues with a tenth of `eta0` from epoch 10 on.
    eta0 : float or "auto", default="auto"
        Initial learning rate. ``"auto"`` is one over the largest curvature that a batch is likely to have.
    momentum : float, default=0.9
        Momentum in [0, 1), as in torch: ``v = momentum v + g; w = w - rate v``.
    penalty : str or None, default="l2"
        ``"l2"`` adds ``alpha / 2 |w|^2``; ``"l1"`` adds ``alpha |w|_1`` by a proximal step, which gives exact zeros;
        ``"elasticnet"`` mixes the two. The intercept is not penalized. On sparse input, an L1 part makes every step
        visit all weights.
    alpha : float, default=1e-4
        Strength of the penalty.
    l1_ratio : float or None, default=0.15
        Share of the L1 part in ``penalty="elasticnet"``, in [0, 1]; None with the other penalties.
    fit_intercept : bool, default=True
        Whether to fit an intercept.
    shuffle : bool, default=True
        Whether to shuffle the samples in every epoch, and those of each `partial_fit`.
    input_scale : float, default=1.0
        Factor applied to every input as it is read, in training and prediction. Use 1/255 for bytes (uint8), which are
        read without a copy.
    early_stopping : bool, default=False
        Whether to hold out some samples, stop when their score no longer improves, and keep the best weights.
    validation_fraction : float, default=0.1
        Share of the samples that `early_stopping` holds out.
    n_iter_no_change : int, default=5
        Epochs without improvement after which training stops.
    tol : float or None, default=None
        Smallest improvement that counts: of the validation score with `early_stopping`, where None means 0, otherwise
        of the mean training loss, where None means that training never stops early.
    random_state : int, RandomState instance or None, default=None
        Seed for the order of the samples.
    warm_start : bool, default=False
        Whether `fit` starts from the current weights.
    verbose : int, default=0
        If not 0, print every epoch. The logger ``ordered_sgd.linear`` gets the same lines, at level INFO, and at level
        DEBUG otherwise.
    class_weight : dict or "balanced" or None, default=None
        Factor of the losses of each class, applied before they are ordered. ``"balanced"`` is inverse to
        the class frequencies.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels, sorted.
    coef_ : ndarray of shape (n_classes, n_features)
        Weights, for two classes of shape (1, n_features); float32 for float32 and uint8 input, otherwise float64.
    intercept_ : ndarray of shape (n_classes,)
        Intercepts, for two classes of shape (1,).
    n_iter_ : int
        Epochs trained.
    eta0_ : float
        Initial learning rate.
    loss_curve_ : list of float
        Mean loss of all samples in each epoch, every loss taken when its batch was scored.
    ordered_loss_curve_ : list of float
        Mean loss of the kept samples in each epoch.
    q_curve_ : list of int
        Samples kept per batch in each epoch.
    selection_counts_ : ndarray of shape (n_samples,)
        How often each sample was kept in the last call of `fit` or `partial_fit`; hard samples have large counts.
    n_features_in_ : int
        Number of features seen during `fit`.
    feature_names_in_ : ndarray of shape (n_features,)
        Names of the features, if X has column names that are all strings.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> bool(OrderedLinearSVC(random_state=0).fit(X, y).score(X, y) > 0.95)
    True
    """

    def _loss(self) -> Loss:
        return "hinge"
