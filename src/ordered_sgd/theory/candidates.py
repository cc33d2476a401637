"""What is minimised when candidates are picked by a memory that is not quite right: the weights over ranks, simulated.

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
    """The weight of every rank, shape (n,), that of the largest loss first, and the recall: the share of q found."""

    weights: NDArray[np.float64]
    recall: float


def memory_weights(
    n: int,
    s: int,
    q: int,
    candidates: int,
    *,
    noise: float,
    rng: np.random.Generator,
    probes: int = 4,
    batches: int = 10_000,
) -> MemoryWeights:
    """How often each rank is kept when only candidates and probes are scored, by simulation; the weights sum to q.

    Losses are normal, and a remembered loss is the true one plus normal noise: only the order matters, so that `noise`
    says how well ranks are remembered, not how losses are distributed. As in Theorem 1, a step follows an estimate of
    the gradient of (1/q) sum_j weights_j L_(j), as long as the errors of the memory are chance. With all of the batch
    as candidates, or without noise, the weights are those of `gamma_weights`.

    Parameters
    ----------
    n, s, q
        Samples in all, in a mini-batch, and kept of it.
    candidates, probes
        Samples that are scored: so many with the largest remembered losses, and so many others at random.
    noise
        Standard deviation of a remembered loss about the true one, in standard deviations of the losses.
    rng, batches
        Source of the draws, and how many mini-batches are drawn.

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
    """Which samples are scored, a row for each batch."""
    scored = np.zeros(remembered.shape, np.bool_)
    places = np.argsort(-remembered, axis=1)
    np.put_along_axis(scored, places[:, :candidates], True, axis=1)
    others = rng.permuted(places[:, candidates:], axis=1)
    np.put_along_axis(scored, others[:, :probes], True, axis=1)
    return scored
