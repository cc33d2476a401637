"""Weights of the ranks when an inexact memory of past losses picks the candidates, by simulation.

(`ordered_sgd.engines.memory` is the engine.)
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from ordered_sgd.errors import ArgumentError, message
from ordered_sgd.theory.weights import check_nsq, check_whole

_AT_ONCE = 2**22  # numbers that are drawn at a time


class MemoryWeights(NamedTuple):
    """Result of `memory_weights`.

    Attributes
    ----------
    weights : ndarray of shape (n,)
        Weight of each rank, the largest loss first.
    recall : float
        Share of the q largest losses of a batch that were scored.
    """

    weights: NDArray[np.float64]
    recall: float


def memory_weights(
    n: int,
    s: int,
    q: int,
    candidates: int,
    *,
    noise: float,
    rng: np.random.Generator | int,
    probes: int = 4,
    batches: int = 10_000,
) -> MemoryWeights:
    """How often each rank is kept when only candidates and probes are scored, by simulation; the weights sum to q.

    Losses are normal, and a remembered loss is the true one plus normal noise. Only the order matters, so `noise` says
    how well ranks are remembered, not how losses are distributed. As in Theorem 1, a step follows an estimate of the
    gradient of (1/q) sum_j weights_j L_(j), as long as the errors of the memory are random. With the whole batch as
    candidates, or without noise, the weights are those of `gamma_weights`.

    Parameters
    ----------
    n : int
        Number of samples.
    s : int
        Batch size.
    q : int
        Samples kept per batch.
    candidates : int
        Samples per batch that are scored because their remembered losses are the largest.
    noise : float
        Standard deviation of a remembered loss about the true one, in standard deviations of the losses.
    rng : numpy.random.Generator or int
        Source of the draws, or its seed.
    probes : int, default=4
        Other samples per batch that are scored, chosen at random.
    batches : int, default=10_000
        Number of batches to draw.

    Examples
    --------
    >>> found = memory_weights(100, 10, 2, 3, noise=0.5, rng=np.random.default_rng(0), probes=1)
    >>> round(float(found.weights.sum()), 6), 0.7 < found.recall < 1
    (2.0, True)
    """
    n, s, q = check_nsq("memory_weights", n, s, q)
    candidates = check_whole("memory_weights", "candidates", candidates, ("s", s), "All of the batch is s.")
    if candidates + probes < q or probes < 0 or not noise >= 0:
        rule, got = "be at least q with the probes, and noise at least 0", f"{candidates}, {probes} and noise {noise}"
        raise ArgumentError(message("memory_weights", "candidates", rule, got, "Score at least the q that are kept."))
    losses = special.ndtri((n - np.arange(n) - 0.5) / n)  # of the ranks, the largest first
    kept, found, size = np.zeros(n), 0, max(1, _AT_ONCE // n)
    rng = np.random.default_rng(rng)
    for first in range(0, batches, size):
        count = min(size, batches - first)
        drawn = rng.random((count, n)).argpartition(s - 1, axis=1)[:, :s]
        ranks = np.sort(drawn, axis=1)  # in a batch, too, the largest loss first
        remembered = losses[ranks] + noise * rng.standard_normal((count, s))
        scored = _scored(remembered, candidates, probes, rng)
        chosen = scored & (np.cumsum(scored, axis=1) <= q)
        kept += np.bincount(ranks[chosen], minlength=n)
        found += int(scored[:, :q].sum())
    return MemoryWeights(kept / batches, found / (q * batches))


def _scored(
    remembered: NDArray[np.float64], candidates: int, probes: int, rng: np.random.Generator
) -> NDArray[np.bool_]:
    """Which samples are scored, one row per batch."""
    scored = np.zeros(remembered.shape, np.bool_)
    places = np.argsort(-remembered, axis=1)
    np.put_along_axis(scored, places[:, :candidates], True, axis=1)
    others = rng.permuted(places[:, candidates:], axis=1)
    np.put_along_axis(scored, others[:, :probes], True, axis=1)
    return scored
