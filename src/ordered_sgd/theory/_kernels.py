"""The gamma weights as numba kernels: the functions of the same names in `_recurrence`, as loops.

Imported on first use, never by ``import ordered_sgd.theory``; needs numba. Coverage cannot see into compiled code.
"""

import numpy as np
from numpy.typing import NDArray

from ordered_sgd.jit import compiled
from ordered_sgd.theory._recurrence import FLOOR, PEAK, mode_of_differences


def weights_numba(n: int, s: int, q: int) -> NDArray[np.float64]:
    """The n weights of Eq. 3, for q < s."""
    weights = np.zeros(n)  # by NumPy: zero pages from the system, which numba would write once more
    _fill(weights, s, q, mode_of_differences(n, s, q))
    return weights


@compiled
def _fall(d: NDArray[np.float64], at: int, step: int, n: int, s: int, q: int, start: int) -> None:  # pragma: no cover
    value, error = PEAK, 0.0  # written to d[at], d[at + step], ...
    d[at] = value
    for k in range(start, n - s + q):
        denominator = float(k - q + 1) * float(n - k - 1)
        delta = float((q - 1) * (n - 1) - k * (s - 2)) / denominator
        if delta > -0.5:
            new = value + value * delta
            error += error * delta + ((value - new) + value * delta)
            value = new
        else:  # 1 + delta would cancel
            ratio = float(k) * float(n - s + q - k) / denominator
            value *= ratio
            error *= ratio
        if value < FLOOR:
            return
        at += step
        d[at] = value + error


@compiled
def _sum_from_tail(x: NDArray[np.float64]) -> None:  # pragma: no cover
    total, error, largest = 0.0, 0.0, 0.0
    for i in range(x.size - 1, -1, -1):
        after = total + x[i]
        part = after - total
        error += (total - (after - part)) + (x[i] - part)
        total = after
        largest = max(largest, total + error)
        x[i] = largest


@compiled
def _fill(weights: NDArray[np.float64], s: int, q: int, mode: int) -> None:  # pragma: no cover
    n = weights.size
    _fall(weights, mode - 1, 1, n, s, q, mode)
    _fall(weights, mode - 1, -1, n, s, s - q, n - mode)
    _sum_from_tail(weights[q - 1 : n - s + q])
    total, top = weights[q - 1], s / n
    weights[:q] = top
    for j in range(q, n - s + q):
        weights[j] = weights[j] / total * top
