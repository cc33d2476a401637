"""Linear regression with a squared, Huber or absolute loss."""

from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar, Literal, Self

import numpy as np
from sklearn.base import RegressorMixin, _fit_context
from sklearn.metrics import r2_score
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import _check_sample_weight, validate_data

from ordered_sgd.linear.estimator import READ, OrderedLinearModel, Start
from ordered_sgd.linear.objective import Array, Loss


@dataclass(kw_only=True, eq=False, repr=False)
class OrderedRegressor(RegressorMixin, OrderedLinearModel):  # type: ignore[misc]
    """Linear regression by ordered SGD: each step uses the q samples of a batch with the largest losses.

    A small q moves the fit from the mean towards the middle between the extremes, so outliers weigh more, not less. If
    they are errors, plain SGD (``q=1.0``) with the Huber or the absolute loss is the better choice.

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
    loss : {"squared_error", "huber", "absolute_error"}, default="squared_error"
        Loss of a residual r: ``"squared_error"`` is ``r^2 / 2``, ``"absolute_error"`` is ``|r|``, and ``"huber"`` is
        squared up to ``|r| = epsilon`` and linear beyond.
    epsilon : float, default=1.35
        Where the Huber loss becomes linear, in the unit of y.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,)
        Weights; float32 for float32 and uint8 input, otherwise float64.
    intercept_ : ndarray of shape (1,)
        Intercept.
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
    >>> X, y = np.array([[0.0], [1.0], [2.0], [3.0]]), np.array([1.0, 3.0, 5.0, 7.0])
    >>> model = OrderedRegressor(max_iter=200, alpha=0.0, random_state=0).fit(X, y)
    >>> np.round(model.predict([[4.0]]), 2)
    array([9.])
    """

    loss: Literal["squared_error", "huber", "absolute_error"] = "squared_error"
    epsilon: float = 1.35

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **OrderedLinearModel._parameter_constraints,
        "loss": [StrOptions({"squared_error", "huber", "absolute_error"})],
        "epsilon": [Interval(Real, 0, None, closed="neither")],
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
            Targets.
        sample_weight : array-like of shape (n_samples,) or None, default=None
            Factor of the losses, applied before they are ordered.
        coef_init : array-like or None, default=None
            Weights to start from, in the shape of `coef_`, instead of zeros or those of a warm start.
        intercept_init : array-like or None, default=None
            Intercept to start from, in the shape of `intercept_`.
        """
        X, y = validate_data(self, X, y, y_numeric=True, **READ)
        return self._fit_targets(X, y, sample_weight, start=(coef_init, intercept_init))

    @_fit_context(prefer_skip_nested_validation=True)  # type: ignore[untyped-decorator]
    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
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
            Targets.
        sample_weight : array-like of shape (n_samples,) or None, default=None
            As in `fit`.
        """
        X, y = validate_data(self, X, y, y_numeric=True, reset=not hasattr(self, "coef_"), **READ)
        return self._fit_targets(X, y, sample_weight, partial=True)

    def predict(self, X: Any) -> Array:
        """Predictions, shape (n_samples,)."""
        return self._scores(X)[:, 0]

    def _fit_targets(
        self, X: Array, y: Array, sample_weight: Any, *, partial: bool = False, start: Start = (None, None)
    ) -> Self:
        weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        self._train(X, y, weight, 1, partial=partial, start=start)
        self.coef_ = self.coef_[0]  # one target: a vector, as in scikit-learn
        return self

    def _loss(self) -> Loss:
        return self.loss

    def _judge(self, y: Array, scores: Array, weight: Array) -> float:
        return float(r2_score(y, scores[:, 0], sample_weight=weight))
