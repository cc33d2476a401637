"""Samples whose label may be wrong, by what their losses did over a training."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

# Share of the variance that a cut in two must explain. Of one heap it explains 0.64 (normal) to 0.66 (skewed gamma; of
# an exponential one 0.65), of two heaps that stand apart nearly all. Set by trial on digits and Fashion-MNIST; how
# it does on other data is in docs/diagnostics.md.
TWO_HEAPS = 0.7


class Suspects(NamedTuple):
    """Suspected label errors.

    Parameters
    ----------
    indices
        The suspects, the most suspicious first; empty where the losses do not fall into two heaps. Rather more
        labels are wrong than are named (docs/diagnostics.md).
    suspicion
        Of every sample, shape (n,): how far its mean loss lies above the median of its class; NaN where it was not
        seen.
    threshold
        The suspicion above which a sample is a suspect, where there are any.
    explained
        Share of the variance of the suspicion that the cut at the threshold explains. Below 0.7 nobody is named: one
        heap with a long tail looks like that.
    """

    indices: NDArray[np.int64]
    suspicion: NDArray[np.float64]
    threshold: float
    explained: float


def find_suspects(mean_loss: ArrayLike, y: ArrayLike | None = None) -> Suspects:
    """Samples whose loss, averaged over a training, stands apart from that of the others of their class.

    The suspicion of a sample is its mean loss less the median of its class: a whole class that is hard is not suspect.
    A wrong label costs most while the others of its class are learnt and before it is learnt by heart, so the mean is
    over all epochs. The threshold is Otsu's: the cut in two that explains most of the variance.

    Parameters
    ----------
    mean_loss
        Mean loss of every sample over epochs, shape (n,); NaN where it was not seen.
    y
        Class numbers, shape (n,); without them all samples are one class.

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
    """Of every sample the median of the losses of its class."""
    found = np.full(len(losses), np.nan)
    for label in np.unique(y):
        own = y == label
        known = losses[own & np.isfinite(losses)]
        if len(known):
            found[own] = np.median(known)
    return found
