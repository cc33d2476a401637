"""The gamma weights by a ratio recurrence, in NumPy: what `_kernels` does in loops, and what it is tested against.

The differences d_k = gamma_k - gamma_{k+1} = C(k-1, q-1) C(n-k-1, s-q-1) / C(n, s) live on k = q .. n-s+q, rise to one
mode, then fall, and sum to gamma_q = s/n. So no binomial is ever needed: start with any number at the mode, multiply
outwards by the ratios d_{k+1} / d_k, sum from the tail, and scale the first sum to s/n.

The work goes block by block, each some passes over arrays that stay in the cache; memory beyond the result is small.
"""

import numpy as np
from numpy.typing import NDArray

PEAK = 2.0**900  # d at the mode: a weight of 1e-299 is then far from underflow, and 1e30 such terms do not overflow
FLOOR = 2.0**-300  # a d below it is less than 2**-1200 of the mode: it changes no weight that is not zero
BLOCK = 2**14  # elements at a time: some ten arrays of this length fit the second-level cache


def mode_of_differences(n: int, s: int, q: int) -> int:
    """The k with the largest d_k: the first k where d_{k+1} <= d_k, by the sign of (q-1)(n-1) - k(s-2)."""
    if s == 2:
        return q  # n - 1 equal differences
    return min(max(-((q - 1) * (n - 1) // -(s - 2)), q), n - s + q)


def weights_numpy(n: int, s: int, q: int) -> NDArray[np.float64]:
    """The n weights of Eq. 3, for q < s."""
    mode = mode_of_differences(n, s, q)
    weights = np.zeros(n)  # weights[k-1] holds d_k first, then gamma_k
    fall(weights[mode - 1 : n - s + q], n, s, q, mode)
    # Counted from the other end, rank k is n - k and the q largest are the s - q smallest: the same fall, mirrored.
    fall(weights[q - 1 : mode][::-1], n, s, s - q, n - mode)
    sum_from_tail(weights[q - 1 : n - s + q])
    weights /= weights[q - 1]  # before the product, so that no rounding lifts a weight above s/n
    weights *= s / n
    weights[:q] = s / n
    return weights


def fall(d: NDArray[np.float64], n: int, s: int, q: int, start: int) -> None:
    """Fills d with d_k for k = start .. n-s+q, scaled to `PEAK` at k = start, which is at or past the mode."""
    d[0] = PEAK
    value, error = PEAK, 0.0
    for first in range(0, d.size - 1, BLOCK):
        k = np.arange(start + first, min(start + first + BLOCK, n - s + q))
        denominator = (k - q + 1) * (n - k - 1)
        delta = ((q - 1) * (n - 1) - k * (s - 2)) / denominator  # d_{k+1} / d_k - 1; in integers, so nothing cancels
        products, errors = compensated_cumprod(value, delta, k * (n - s + q - k) / denominator)
        errors += error
        d[first + 1 : first + 1 + k.size] = products * (1 + errors)
        value, error = products[-1], errors[-1]
        if value < FLOOR:
            return


def compensated_cumprod(
    start: float, delta: NDArray[np.float64], ratio: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The products start * ratio_1 * ratio_2 * ... along the last axis, and their relative errors to first order.

    A rounded 1 + delta is wrong by up to 1e-16, often in the same direction for a million factors in a row; delta is
    known to 1e-16 of its own small size. So the error of a step is product_before * (1 + delta) - product_after.
    """
    near_one = np.abs(delta) < 0.5  # elsewhere 1 + delta cancels, and a thousand such factors exhaust the range
    factor = np.where(near_one, 1 + delta, ratio)
    factor[..., :1] *= start
    after = np.cumprod(factor, axis=-1, dtype=np.float64)
    before = np.concatenate([np.full_like(after[..., :1], start), after[..., :-1]], axis=-1)
    in_range = near_one & (after > 2.0**-900) & (after < 2.0**1000)
    error = np.divide((before - after) + before * delta, after, out=np.zeros_like(after), where=in_range)
    return after, np.cumsum(error, axis=-1)


def sum_from_tail(x: NDArray[np.float64]) -> None:
    """Replaces x[i] >= 0 by x[i] + x[i+1] + ... in place, as if in twice the precision, and non-increasing in i."""
    total, error, largest = 0.0, 0.0, 0.0
    for stop in range(x.size, 0, -BLOCK):
        block = x[max(stop - BLOCK, 0) : stop][::-1]
        sums = np.cumsum(np.concatenate([[total], block]))
        before, after = sums[:-1], sums[1:]
        part = after - before  # what arrived of the block's element; Knuth's exact error of an addition follows
        errors = np.cumsum(np.concatenate([[error], (before - (after - part)) + (block - part)]))[1:]
        # Adding the errors rounds once more, which may undo a last bit; the running maximum keeps the sums in order.
        block[:] = np.maximum.accumulate(np.maximum(after + errors, largest))
        total, error, largest = after[-1], errors[-1], block[-1]


def weights_of_ranks(n: int, s: int, q: int, ranks: NDArray[np.int64]) -> NDArray[np.float64]:
    """The weights of the given ranks (1-based, one axis), each from its s terms of Eq. 3, for n * s < 2**62."""
    weights = np.where(ranks <= q, s / n, 0.0)
    (inside,) = np.nonzero((ranks > q) & (ranks <= n - s + q))
    for chunk in np.array_split(inside, -(-inside.size * s // 2**18) or 1):  # 2 MiB an array, however many ranks
        weights[chunk] = s / n / (1 + _odds_against(n, s, q, ranks[chunk, np.newaxis]))
    return weights


def _odds_against(n: int, s: int, q: int, j: NDArray[np.int64]) -> NDArray[np.float64]:
    """P(q or more of the s - 1 others rank above j) / P(fewer do), for q < j <= n-s+q of shape (m, 1).

    The terms t_l = C(j-1, l) C(n-j, s-1-l) are taken relative to t_{q-1}. They have one mode, so at most one of the two
    sums overflows, and infinite odds mean a weight of zero, odds of zero the weight s/n.
    """
    below = np.arange(q - 1, 0, -1)  # from t_l to t_{l-1}
    above = np.arange(q, s)  # from t_{l-1} to t_l
    with np.errstate(over="ignore", invalid="ignore"):
        fewer = 1 + _sum_of_products(below * (n - j - s + below + 1), (j - below) * (s - below))
        more = _sum_of_products((j - above) * (s - above), above * (n - j - s + above + 1))
        return more / fewer


def _sum_of_products(numerator: NDArray[np.int64], denominator: NDArray[np.int64]) -> NDArray[np.float64]:
    """r_1 + r_1 r_2 + ... along the last axis, with r = numerator / denominator, and zero from the first r <= 0 on."""
    ratio = np.maximum(numerator, 0) / denominator
    products, errors = compensated_cumprod(1.0, (numerator - denominator) / denominator, ratio)
    sums: NDArray[np.float64] = np.sum(products * (1 + errors), axis=-1)
    return sums
