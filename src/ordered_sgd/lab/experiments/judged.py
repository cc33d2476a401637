"""What rare classes and a regression need beside the error: recalls, balanced accuracy, AUC; R² and absolute error."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

MOST = 100  # classes whose recalls are recorded


class OfClasses(NamedTuple):
    """Recall of each class of which the set has samples (NaN of another), their mean, and of two classes the AUC."""

    recalls: tuple[float, ...]
    balanced_accuracy: float
    auc: float | None

    @property
    def text(self) -> str:
        """The recalls as they are recorded."""
        return " ".join(f"{recall:.4f}" for recall in self.recalls)


def of_classes(scores: NDArray[Any], y: NDArray[np.int64]) -> OfClasses:
    """Recalls of class scores (n, classes).

    >>> of_classes(np.array([[2.0, 1.0], [2.0, 1.0], [0.0, 1.0], [2.0, 3.0]]), np.array([0, 0, 0, 1]))
    OfClasses(recalls=(0.666..., 1.0), balanced_accuracy=0.833..., auc=0.833...)
    """
    classes = scores.shape[1]
    counts = np.bincount(y, minlength=classes)
    right = np.bincount(y[scores.argmax(axis=1) == y], minlength=classes)
    recalls = np.where(counts > 0, right / np.maximum(counts, 1), np.nan)
    auc = area(scores[:, 1] - scores[:, 0], y) if classes == 2 else None
    return OfClasses(tuple(recalls.tolist()), float(np.nanmean(recalls)), auc)


def area(margin: NDArray[Any], y: NDArray[np.int64]) -> float | None:
    """The area under the ROC curve: how often a sample of class 1 has the larger margin; ties count half.

    >>> area(np.array([0.1, 0.4, 0.4, 0.8]), np.array([0, 0, 1, 1]))
    0.875
    """
    positive = int(y.sum())
    negative = len(y) - positive
    if not positive or not negative:
        return None
    above = stats.rankdata(margin)[y == 1].sum() - positive * (positive + 1) / 2
    return float(above / (positive * negative))


def of_regression(predicted: NDArray[Any], y: NDArray[Any]) -> tuple[float, float]:
    """R² and the mean absolute error; R² against the mean of this set.

    >>> of_regression(np.array([1.0, 2.0, 2.0]), np.array([1.0, 2.0, 3.0]))
    (0.5, 0.333...)
    """
    predicted, y = predicted.astype(np.float64), y.astype(np.float64)
    residual = predicted - y
    spread = float(((y - y.mean()) ** 2).sum())
    r2 = 1 - float((residual**2).sum()) / spread if spread else 0.0
    return r2, float(np.abs(residual).mean())


def read_recalls(text: str) -> tuple[float, ...]:
    """The recalls that `OfClasses.text` wrote.

    >>> read_recalls("0.5000 nan")
    (0.5, nan)
    """
    return tuple(map(float, text.split()))


def class_weights(y: NDArray[np.int64], classes: int) -> NDArray[np.float32]:
    """N / (classes * samples of the class), as scikit-learn's ``"balanced"``; 1 for a class without samples.

    >>> class_weights(np.array([0, 0, 0, 1]), 2)
    array([0.6666667, 2.       ], dtype=float32)
    """
    counts = np.bincount(y, minlength=classes)
    return np.where(counts > 0, len(y) / (classes * np.maximum(counts, 1)), 1.0).astype(np.float32)


def mean_recalls(texts: Sequence[str]) -> NDArray[np.float64]:
    """Recalls by class, averaged over seeds of which each has samples of the class; NaN where none has."""
    rows = np.array([read_recalls(text) for text in texts])
    known = np.isfinite(rows)
    return np.where(
        known.any(axis=0), np.where(known, rows, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1), np.nan
    )
