"""Samples whose label may be wrong, judged by their losses during training."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

# Share of the variance that a cut in two must explain. Of one heap it explains 0.64 (normal) to 0.66 (skewed gamma; of
# an exponential one 0.65), of two heaps that stand apart nearly all. Set by trial on digits and Fashion-MNIST; how
# it does on other data is in docs/diagnostics.md.
TWO_HEAPS = 0.7


class Suspects(NamedTuple):
    """Suspected label errors.

    Attributes
    ----------
    indices : ndarray of int
        The suspects, the most suspicious first; empty if the losses do not form two separate groups. Usually more
        labels are wrong than are listed (docs/diagnostics.md).
    suspicion : ndarray of shape (n,)
        How far the mean loss of each sample lies above the median of its class; NaN for a sample that was not seen.
    threshold : float
        Suspicion above which a sample is a suspect.
    explained : float
        Share of the variance of the suspicion explained by the cut at the threshold. Below 0.7 there are no suspects,
        because a single group with a long tail gives such a value.
    """

    indices: NDArray[np.int64]
    suspicion: NDArray[np.float64]
    threshold: float
    explained: float


def find_suspects(mean_loss: ArrayLike, y: ArrayLike | None = None) -> Suspects:
    """Samples whose mean loss over training is far above that of other samples of their class.

    The suspicion of a sample is its mean loss minus the median of its class, so a class that is hard as a whole is not
    suspect. A wrong label has its largest loss while the rest of its class is learned and before it is memorized, so
    the mean is over all epochs. The threshold is Otsu's: the cut in two that explains most of the variance.

    Parameters
    ----------
    mean_loss : array_like of shape (n,)
        Mean loss of each sample over epochs; NaN for a sample that was not seen.
    y : array_like of shape (n,) or None, default=None
        Class numbers; None treats all samples as one class.

    Examples
    --------
    >>> losses = [0.1, 0.2, 0.1, 0.3, 4.0, 0.2, 0.1, 3.5]
    >>> find_suspects(losses).indices
    array([4, 7])
    >>> find_suspects([0.1, 0.2, 0.3, 0.3, 0.4, 0.4, 0.4, 0.5, 0.6, 0.9]).indices  # one heap
    array([], dtype=int64)
    """
    losses = np.asarray(mean_loss, dtype=np.float64)
    labels = np.zeros(len(losses), np.int64) if y is None else np.asarray(y)
    suspicion = losses - _medians(losses, labels)
    known = suspicion[np.isfinite(suspicion)]
    threshold, explained = best_cut(known)
    above = np.flatnonzero(suspicion > threshold)
    if explained < TWO_HEAPS:
        above = above[:0]
    return Suspects(above[np.argsort(-suspicion[above], kind="stable")], suspicion, threshold, explained)


def best_cut(values: NDArray[np.float64]) -> tuple[float, float]:
    """Where to cut numbers in two so that the two means explain most of the variance, and the share they explain.

    >>> best_cut(np.array([0.0, 0.0, 1.0, 1.0]))
    (0.5, 1.0)
    """
    ordered, n = np.sort(values), len(values)
    if n < 2 or ordered[0] == ordered[-1]:
        return float("nan"), 0.0
    ordered -= ordered.mean()
    below, sums = np.arange(1, n), np.cumsum(ordered)[:-1]
    between = sums**2 * n / (below * (n - below))  # n_1 m_1^2 + n_2 m_2^2, since the sums of both parts cancel
    place = int(between.argmax())
    cut = (ordered[place] + ordered[place + 1]) / 2 + values.mean()
    return float(cut), float(between[place] / (ordered**2).sum())


def _medians(losses: NDArray[np.float64], y: NDArray[np.int64]) -> NDArray[np.float64]:
    """For each sample, the median loss of its class."""
    found = np.full(len(losses), np.nan)
    for label in np.unique(y):
        own = y == label
        known = losses[own & np.isfinite(losses)]
        if len(known):
            found[own] = np.median(known)
    return found
