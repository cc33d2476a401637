"""The weights gamma_j of Theorem 1: how much each rank of the losses counts in the objective of ordered SGD.

Draw s of n samples without replacement and keep the q with the largest losses. The sample with the j-th largest loss
of all is kept with probability gamma_j (Eq. 3), so a step follows an unbiased estimate of the gradient of
L_q = (1/q) sum_j gamma_j L_(j) + R.
"""

import operator

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from ordered_sgd.errors import ArgumentError, message
from ordered_sgd.theory._recurrence import weights_numpy, weights_of_ranks

_NUMBA_FROM = 2**17  # weights; for fewer the import of numba takes longer than NumPy needs for all of them


def gamma_weights(n: int, s: int, q: int, *, ranks: ArrayLike | None = None) -> NDArray[np.float64]:
    r"""The n weights of Eq. 3, the largest loss first; they sum to q.

    .. math:: \gamma_j = \sum_{l=0}^{q-1} \binom{j-1}{l} \binom{n-j}{s-l-1} \Big/ \binom{n}{s}

    The first q weights equal s/n, then they fall, and from rank n-s+q+1 on they are zero. Time and memory are O(n). The
    relative error is below 1e-13 for weights down to 1e-299; smaller ones may round to zero.

    Parameters
    ----------
    n : int
        Number of samples.
    s : int
        Batch size.
    q : int
        Samples kept per batch.
    ranks : array_like of int or None, default=None
        Compute only the weights of these ranks, counted from 1, in O(s) each; any shape. None computes all n.

    Examples
    --------
    >>> gamma_weights(5, 3, 2)
    array([0.6, 0.6, 0.5, 0.3, 0. ])
    >>> gamma_weights(10**12, 64, 16, ranks=[1, 5 * 10**11]) * 10**12
    array([6.40000000e+01, 1.20339588e-03])
    """
    n, s, q = check_nsq("gamma_weights", n, s, q)
    if ranks is not None:
        chosen = _check_ranks(ranks, n, s)
        return weights_of_ranks(n, s, q, chosen.reshape(-1)).reshape(chosen.shape)
    if q == s:
        return np.full(n, s / n)
    if n < _NUMBA_FROM:
        return weights_numpy(n, s, q)
    try:
        from ordered_sgd.theory._kernels import weights_numba
    except ImportError:  # numba is not installed, or not for this NumPy
        return weights_numpy(n, s, q)
    return weights_numba(n, s, q)


def gamma_limit(z: ArrayLike, s: int, q: int) -> NDArray[np.float64]:
    r"""The limit of n gamma_j as n grows with j/n = z (Proposition 1), in the shape of z.

    It is s times the probability that a Beta(q, s-q) variable exceeds z, and s everywhere when q = s. (The paper states
    the limit for gamma_j itself, which tends to 0.) At finite n the difference is O(1/n).

    Parameters
    ----------
    z : array_like
        Ranks as shares of n: 0 for the hardest sample, 1 for the easiest.
    s : int
        Batch size.
    q : int
        Samples kept per batch.

    Examples
    --------
    >>> gamma_limit([0.0, 0.5, 1.0], 10, 3)
    array([10.       ,  0.8984375,  0.       ])
    """
    s, q = check_sq("gamma_limit", s, q)
    z = np.asarray(z, dtype=np.float64)
    if not np.all((z >= 0) & (z <= 1)):
        outside = z[~((z >= 0) & (z <= 1))].flat[0]
        raise ArgumentError(message("gamma_limit", "z", "lie in [0, 1]", outside, "Pass z = j / n for rank j."))
    if q == s:
        return np.full(z.shape, float(s))
    return np.asarray(s * special.betaincc(q, s - q, z))


def check_nsq(where: str, n: int, s: int, q: int) -> tuple[int, int, int]:
    """The three as plain ints, if 1 <= q <= s <= n.

    >>> check_nsq("gamma_weights", 5, 6, 1)
    Traceback (most recent call last):
    ordered_sgd.errors.ArgumentError: gamma_weights: s must be an int from 1 to n = 5; got 6. A mini-batch has ...
    """
    n = check_whole(where, "n", n, None, "Pass the number of samples in all.")
    s = check_whole(where, "s", s, ("n", n), "A mini-batch has s of the n samples, none of them twice.")
    return n, *check_sq(where, s, q)


def check_sq(where: str, s: int, q: int) -> tuple[int, int]:
    """The two as plain ints, if 1 <= q <= s.

    >>> check_sq("gamma_limit", 64, 16)
    (64, 16)
    """
    s = check_whole(where, "s", s, None, "Pass the number of samples in a mini-batch.")
    return s, check_whole(where, "q", q, ("s", s), "For a share of the mini-batch pass max(1, floor(share * s)).")


def check_whole(where: str, name: str, value: object, limit: tuple[str, int] | None, remedy: str) -> int:
    """The value as a plain int, if it is at least 1 and at most the limit, a pair of name and number.

    >>> check_whole("average_top_k_spectrum", "k", 3, ("n", 5), "Pass fewer.")
    3
    """
    bounds = "of at least 1" if limit is None else f"from 1 to {limit[0]} = {limit[1]}"
    fault = ArgumentError(message(where, name, f"be an int {bounds}", repr(value), remedy))
    if isinstance(value, bool | np.bool_):
        raise fault
    try:
        whole = operator.index(value)  # type: ignore[arg-type]  # any type may come in; index refuses the wrong ones
    except TypeError:
        raise fault from None
    if whole < 1 or (limit is not None and whole > limit[1]):
        raise fault
    return whole


def _check_ranks(ranks: ArrayLike, n: int, s: int) -> NDArray[np.int64]:
    chosen = np.asarray(ranks)
    wrong: object = None
    if chosen.dtype.kind not in "iu":
        wrong = f"dtype {chosen.dtype}"
    elif np.any(outside := (chosen < 1) | (chosen > n)):
        wrong = chosen[outside][0]
    if wrong is not None:
        rule = f"be integers from 1 to n = {n}"
        raise ArgumentError(message("gamma_weights", "ranks", rule, wrong, "Rank 1 is the largest loss."))
    if n * s >= 2**62:  # products of n and s are formed in int64
        remedy = "Use gamma_limit(j / n, s, q) / n: they differ by about 1/n."
        raise ArgumentError(message("gamma_weights", "n * s", "be below 2**62 when ranks are given", n * s, remedy))
    return chosen.astype(np.int64)
