"""Calibration of a classifier's probabilities: cross-entropy, temperature scaling, calibration error."""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, special

from ordered_sgd.diagnostics.arrays import as_array
from ordered_sgd.errors import ArgumentError, message

Array = NDArray[np.float64]


def cross_entropy(scores: ArrayLike, y: ArrayLike, *, temperature: float = 1.0) -> float:
    """Mean of -log p(y) with p the softmax of scores / temperature.

    Parameters
    ----------
    scores : array_like of shape (n, classes)
        Class scores.
    y : array_like of shape (n,)
        Class numbers.
    temperature : float, default=1.0
        A temperature above 1 makes the model less confident.

    Examples
    --------
    >>> round(cross_entropy([[0.0, 0.0], [0.0, 0.0]], [0, 1]), 4)  # log 2
    0.6931
    """
    scores, labels = _checked("cross_entropy", scores, y, temperature)
    logs = special.log_softmax(scores / temperature, axis=1)
    return float(-logs[np.arange(len(labels)), labels].mean())


def best_temperature(scores: ArrayLike, y: ArrayLike) -> float:
    """The temperature with the least cross-entropy (Guo et al., 2017), between 1/100 and 100.

    Fit it on other samples than those used to evaluate it.

    >>> scores = np.log([[0.7, 0.3]] * 10)
    >>> round(best_temperature(3 * scores, [0] * 7 + [1] * 3), 2)
    3.0
    """
    scores, labels = _checked("best_temperature", scores, y)

    right = scores[np.arange(len(labels)), labels].mean()

    def slope(log_beta: float) -> float:
        """Derivative of the cross-entropy, convex in beta = 1 / temperature: mean of E[score] - score of y."""
        p = special.softmax(np.exp(log_beta) * scores, axis=1)
        return float(np.einsum("ij,ij->", p, scores) / len(labels) - right)

    most, near, sign = np.log(100), 0.0, np.sign(slope(0.0))
    for width in (0.2, 0.8, most):  # most temperatures are near 1, and each slope costs a pass
        far = -sign * width
        if np.sign(slope(far)) != sign:
            low, high = sorted((near, far))
            return float(np.exp(-optimize.brentq(slope, low, high, xtol=1e-4)))  # the minimum is flat: 1e-8 off in it
        near = far
    return float(np.exp(sign * most))


def calibration_error(scores: ArrayLike, y: ArrayLike, *, bins: int = 15, temperature: float = 1.0) -> float:
    """Expected calibration error: how far confidence is from accuracy, averaged over bins of equal width.

    ``sum over bins of (samples in it / n) * |accuracy - mean confidence|``, with the probability of the predicted
    class as confidence.

    >>> sure = np.array([[9.0, -9.0]] * 4)
    >>> round(calibration_error(sure, [0, 0, 1, 1]), 3)
    0.5
    """
    scores, labels = _checked("calibration_error", scores, y, temperature)
    if bins < 1:
        raise ArgumentError(message("calibration_error", "bins", "be at least 1", bins, "Use bins=15, as is usual."))
    probabilities = special.softmax(scores / temperature, axis=1)
    confidence, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == labels
    place = np.minimum((confidence * bins).astype(int), bins - 1)
    gap = np.bincount(place, weights=right - confidence, minlength=bins)  # n_bin * (accuracy - confidence)
    return float(np.abs(gap).sum() / len(labels))


def _checked(where: str, scores: ArrayLike, y: ArrayLike, temperature: float = 1.0) -> tuple[Array, NDArray[np.int64]]:
    if not 0 < temperature < np.inf:
        remedy = "Fit one by best_temperature."
        raise ArgumentError(message(where, "temperature", "be positive and finite", temperature, remedy))
    values, labels = as_array(scores).astype(np.float64, copy=False), as_array(y)
    if values.ndim != 2 or labels.shape != values.shape[:1] or len(labels) == 0:
        got = f"shapes {values.shape} and {labels.shape}"
        remedy = "Pass scores (n, classes) and labels (n,)."
        raise ArgumentError(message(where, "scores and y", "hold one row and one label per sample", got, remedy))
    if not np.isfinite(values).all():
        row, column = np.argwhere(~np.isfinite(values))[0]
        got = f"{values[row, column]} for class {column} of sample {row}"
        raise ArgumentError(message(where, "scores", "be finite", got, "Look for an overflow in the model."))
    if labels.dtype.kind not in "iu" or labels.min() < 0 or labels.max() >= values.shape[1]:
        remedy = "Labels are the positions of the scores: np.searchsorted(model.classes_, y)."
        got = f"{labels.dtype} from {labels.min()} to {labels.max()}" if labels.dtype.kind in "iuf" else repr(labels[0])
        rule = f"be class numbers below {values.shape[1]}"
        raise ArgumentError(message(where, "y", rule, got, remedy))
    return values, labels.astype(np.int64)
