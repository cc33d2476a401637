"""Linear regression with a squared, Huber or absolute loss."""

from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar, Literal, Self

import numpy as np
from sklearn.base import RegressorMixin, _fit_context
from sklearn.metrics import r2_score
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import _check_sample_weight, validate_data

from ordered_sgd.linear.estimator import READ, OrderedLinearModel
from ordered_sgd.linear.objective import Array, Loss


@dataclass(kw_only=True, eq=False, repr=False)
class OrderedRegressor(RegressorMixin, OrderedLinearModel):  # type: ignore[misc]
    """Linear regression by ordered SGD: every step is on the q samples of a batch it gets most wrong.

    A small q moves the fit from the mean towards the middle between the extremes: outliers weigh more, not less. Where
    they are errors, plain SGD (``q=1.0``) with the Huber or the absolute loss is the better choice.

    Parameters
    ----------
    loss
        Of the residual r: ``"squared_error"`` is ``r^2 / 2``, ``"absolute_error"`` ``|r|``, ``"huber"`` the first up
        to ``|r| = epsilon`` and a straight line from there.
    epsilon
        See `loss`; in the unit of y.

    All others are described in `ordered_sgd.linear.estimator.OrderedLinearModel`.

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
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train from the start, or with ``warm_start=True`` from the present weights.

        Parameters
        ----------
        X
            Shape (n_samples, n_features), dense or sparse.
        y
            Targets, shape (n_samples,).
        sample_weight
            Multiplies the losses before they are ordered.
        """
        X, y = validate_data(self, X, y, y_numeric=True, **READ)
        return self._fit_targets(X, y, sample_weight)

    @_fit_context(prefer_skip_nested_validation=True)  # type: ignore[untyped-decorator]
    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train one more epoch, on these samples; momentum, rule and the order of samples go on where they were.

        A cosine plan stays at its first rate, since no end is known.

        Parameters
        ----------
        X, y, sample_weight
            As in `fit`.
        """
        X, y = validate_data(self, X, y, y_numeric=True, reset=not hasattr(self, "coef_"), **READ)
        return self._fit_targets(X, y, sample_weight, partial=True)

    def predict(self, X: Any) -> Array:
        """Predictions, shape (n_samples,)."""
        return self._scores(X)[:, 0]

    def _fit_targets(self, X: Array, y: Array, sample_weight: Any, *, partial: bool = False) -> Self:
        weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        self._train(X, y, weight, 1, partial=partial)
        self.coef_ = self.coef_[0]  # one target: a vector, as in scikit-learn
        return self

    def _loss(self) -> Loss:
        return self.loss

    def _judge(self, y: Array, scores: Array, weight: Array) -> float:
        return float(r2_score(y, scores[:, 0], sample_weight=weight))
