"""The ordered risk L_q of a vector of losses, related risks as spectra, and what a choice of q means.

A *spectrum* says how much each rank of the losses counts: n weights that sum to 1, the largest loss first. Every risk
here is its spectrum times the sorted losses, so comparing risks means comparing spectra. The gamma weights
of the paper sum to q; `ordered_spectrum` is gamma / q.
"""

from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, special

from ordered_sgd.errors import ArgumentError, message
from ordered_sgd.theory.weights import check_nsq, check_sq, check_whole, gamma_limit, gamma_weights


def ordered_risk(
    losses: Any,
    s: int,
    q: int,
    *,
    trim: int = 0,
    mix: float = 0.0,
    cap: float | None = None,
    regularizer: float = 0.0,
) -> float:
    """L_q of Theorem 1: the expected mean of the q largest of s losses drawn without replacement, plus the regularizer.

    Parameters
    ----------
    losses : array_like or torch.Tensor of shape (n,)
        One loss per sample; a tensor may be on any device, with or without grad.
    s : int
        Batch size.
    q : int
        Samples kept per batch.
    trim : int, default=0
        As in `ordered_spectrum`.
    mix : float, default=0.0
        As in `ordered_spectrum`.
    cap : float or None, default=None
        Upper limit of a loss; larger losses count as `cap`.
    regularizer : float, default=0.0
        Value of R.

    Examples
    --------
    >>> ordered_risk([1.0, 2.0, 3.0, 4.0], 2, 1)  # the mean over the six pairs of the larger one: 20 / 6
    3.33333333333333...
    """
    values = _as_losses("ordered_risk", losses)
    n, s, q = check_nsq("ordered_risk", values.size, s, q)
    if cap is not None:
        values = np.minimum(values, cap)
    return _weighted(values, ordered_spectrum(n, s, q, trim=trim, mix=mix)) + float(regularizer)


def sample_weights(losses: Any, s: int, q: int) -> NDArray[np.float64]:
    """The weight r_i of every sample, in the order of the losses: the probability that a step keeps sample i.

    Among equal losses the lower index ranks higher, and NaN ranks above every number.

    Examples
    --------
    >>> sample_weights([0.1, 5.0, 0.2, 5.0, 0.3], 3, 2)
    array([0. , 0.6, 0.3, 0.6, 0.5])
    """
    values = _as_losses("sample_weights", losses)
    n, s, q = check_nsq("sample_weights", values.size, s, q)
    weights = np.empty(n)
    weights[_hardest_first(values)] = gamma_weights(n, s, q)
    return weights


def spectral_risk(losses: Any, spectrum: ArrayLike) -> float:
    """The sorted losses, largest first, weighted by a spectrum of the same length.

    Examples
    --------
    >>> losses = [1.0, 2.0, 3.0, 4.0]
    >>> spectral_risk(losses, average_spectrum(4)), spectral_risk(losses, cvar_spectrum(4, 0.5))
    (2.5, 3.5)
    """
    values = _as_losses("spectral_risk", losses)
    weights = np.asarray(spectrum, dtype=np.float64)
    if weights.shape != values.shape:
        remedy = "Build it with n = len(losses)."
        rule = f"have one weight per loss, shape {values.shape}"
        raise ArgumentError(message("spectral_risk", "spectrum", rule, f"shape {weights.shape}", remedy))
    return _weighted(values, weights)


def ordered_spectrum(n: int, s: int, q: int, *, trim: int = 0, mix: float = 0.0) -> NDArray[np.float64]:
    r"""The spectrum gamma_j / q of L_q, or of one of its variants.

    A step that drops the r largest losses of the mini-batch and keeps the next q keeps rank j with probability
    gamma_j(s, r + q) - gamma_j(s, r), because it is among the r + q largest and not among the r largest:

    .. math:: (1 - m) \, \frac{\gamma_j(s, r + q) - \gamma_j(s, r)}{q} + \frac{m}{n}

    With r > 0 the weights rise before they fall, so the risk of convex losses need not be convex.

    Parameters
    ----------
    n : int
        Number of samples.
    s : int
        Batch size.
    q : int
        Samples kept per batch.
    trim : int, default=0
        r, the number of largest losses per batch that are dropped first, at most s - q.
    mix : float, default=0.0
        m, the share of the plain mean, in [0, 1].

    Examples
    --------
    >>> ordered_spectrum(5, 3, 2)
    array([0.3 , 0.3 , 0.25, 0.15, 0.  ])
    >>> ordered_spectrum(5, 3, 2, trim=1)
    array([0.  , 0.15, 0.25, 0.3 , 0.3 ])
    """
    n, s, q = check_nsq("ordered_spectrum", n, s, q)
    if trim != 0:
        trim = check_whole("ordered_spectrum", "trim", trim, ("s - q", s - q), "Use trim=0 to drop nothing.")
    if not 0 <= mix <= 1:
        remedy = "Use mix=1 for the plain mean."
        raise ArgumentError(message("ordered_spectrum", "mix", "lie in [0, 1]", mix, remedy))
    kept = gamma_weights(n, s, trim + q)
    if trim:
        kept = np.maximum(kept - gamma_weights(n, s, trim), 0)  # the difference of equal weights may round below 0
    return (1 - mix) * kept / q + mix / n


def average_spectrum(n: int) -> NDArray[np.float64]:
    """The spectrum of the plain mean: 1/n everywhere, which is also `ordered_spectrum` with q = s.

    >>> average_spectrum(4)
    array([0.25, 0.25, 0.25, 0.25])
    """
    n = _check_n("average_spectrum", n)
    return average_top_k_spectrum(n, n)


def average_top_k_spectrum(n: int, k: int) -> NDArray[np.float64]:
    """The spectrum of the mean of the k largest of all n losses: 1/k, then zero.

    >>> average_top_k_spectrum(4, 2)
    array([0.5, 0.5, 0. , 0. ])
    """
    n = _check_n("average_top_k_spectrum", n)
    k = check_whole("average_top_k_spectrum", "k", k, ("n", n), "Pass the number of largest losses to average.")
    return np.where(np.arange(n) < k, 1 / k, 0.0)


def cvar_spectrum(n: int, alpha: float) -> NDArray[np.float64]:
    """The spectrum of CVaR at level alpha: the mean of the hardest share alpha of the samples, 1 for all of them.

    The sample on the border counts in part, so the spectrum is continuous in alpha; for alpha = k/n it is the spectrum
    of the mean of the k largest losses.

    >>> cvar_spectrum(4, 0.625)
    array([0.4, 0.4, 0.2, 0. ])
    """
    n = _check_n("cvar_spectrum", n)
    alpha = _check_share("cvar_spectrum", "alpha", alpha)
    return _counted(alpha, n) / (alpha * n)


def maximal_spectrum(n: int) -> NDArray[np.float64]:
    """The spectrum of the maximal loss: 1 for the largest, which is also `ordered_spectrum` with s = n and q = 1.

    >>> maximal_spectrum(4)
    array([1., 0., 0., 0.])
    """
    return average_top_k_spectrum(_check_n("maximal_spectrum", n), 1)


def effective_sample_size(n: int | None, s: int, q: int) -> float:
    r"""Number of equally weighted samples that is equivalent to the n weighted ones: (sum w)^2 / sum w^2.

    With ``n=None``, its share of n in the limit of large n:

    .. math:: \frac{q^2}{s (q - 2R)}, \qquad R = \frac{B(s, s)}{B(q, q)\, B(s-q, s-q)}.

    Examples
    --------
    >>> round(effective_sample_size(60_000, 64, 16)), round(effective_sample_size(None, 64, 16), 4)
    (17066, 0.2845)
    """
    if n is not None:
        n, s, q = check_nsq("effective_sample_size", n, s, q)
        return q**2 / float(np.sum(gamma_weights(n, s, q) ** 2))
    s, q = check_sq("effective_sample_size", s, q)
    if q == s:
        return 1.0
    r = np.exp(special.betaln(s, s) - special.betaln(q, q) - special.betaln(s - q, s - q))
    return float(q**2 / (s * (q - 2 * r)))


def equivalent_cvar_level(s: int, q: int, *, norm: Literal["l1", "l2"] = "l2") -> float:
    """The level alpha whose CVaR spectrum is closest to that of L_q for large n; 1.0 for q = s.

    L_q is CVaR with a random level, Beta(q+1, s-q). Its median is the closest level in the squared distance (``"l2"``).
    In the absolute distance (``"l1"``) it solves z = alpha^2 phi(alpha), phi(z) = 1/alpha, phi = gamma_limit / q.

    Examples
    --------
    >>> round(equivalent_cvar_level(64, 16), 4), round(equivalent_cvar_level(64, 16, norm="l1"), 4)
    (0.2591, 0.2506)
    """
    s, q = check_sq("equivalent_cvar_level", s, q)
    if norm not in ("l1", "l2"):
        remedy = "The median of the mixture's levels is 'l2'."
        raise ArgumentError(message("equivalent_cvar_level", "norm", "be 'l1' or 'l2'", repr(norm), remedy))
    if q == s:
        return 1.0
    if norm == "l2":
        return float(special.betaincinv(q + 1, s - q, 0.5))

    def slope(log_excess: float) -> float:
        # alpha = (1 + x) q/s with x > 0: in x, because alpha itself can be within 1e-12 of q/s.
        x = np.exp(log_excess)
        alpha = (1 + x) * q / s
        crossing = special.betaincinv(q, s - q, x / (1 + x))  # where phi falls to 1 / alpha
        return float(crossing / alpha**2 - s / q * special.betaincc(q, s - q, min(alpha, 1.0)))

    if slope(-40.0) >= 0:
        return q / s  # to within 1e-17
    log_excess = optimize.brentq(slope, -40.0, np.log(s / q - 1), xtol=1e-13)
    return float((1 + np.exp(log_excess)) * q / s)


def share_of_hardest(fraction: float, n: int | None, s: int, q: int) -> float:
    """The share of the gradient's weight that goes to the hardest fraction of the samples.

    A sample on the border counts in part. With ``n=None`` the limit of large n,
    (z gamma_limit(z) + q P(Beta(q+1, s-q) <= z)) / q at z = fraction.

    Examples
    --------
    >>> round(share_of_hardest(0.25, 60_000, 64, 16), 4), round(share_of_hardest(0.25, None, 64, 16), 4)
    (0.9142, 0.9141)
    """
    fraction = _check_share("share_of_hardest", "fraction", fraction)
    if n is not None:
        n, s, q = check_nsq("share_of_hardest", n, s, q)
        return float(np.sum(ordered_spectrum(n, s, q) * _counted(fraction, n)))
    s, q = check_sq("share_of_hardest", s, q)
    if q == s:
        return fraction
    return float(fraction * gamma_limit(fraction, s, q) / q + special.betainc(q + 1, s - q, fraction))


def _as_losses(where: str, losses: Any) -> NDArray[np.float64]:
    """The losses as a float64 array of shape (n,), n >= 1; a tensor is recognised by what it can do."""
    if hasattr(losses, "detach"):
        losses = losses.detach().cpu().double().numpy()  # double first: NumPy has no bfloat16
    try:
        values = np.asarray(losses, dtype=np.float64)
        got = f"shape {values.shape}"
    except (TypeError, ValueError):  # words, or rows of different lengths
        values = np.empty(0)
        got = f"a {type(losses).__name__} that is no array of numbers"
    if values.ndim != 1 or values.size == 0:
        remedy = 'A torch criterion returns them with reduction="none".'
        raise ArgumentError(message(where, "losses", "be one number per sample, shape (n,)", got, remedy))
    return values


def _hardest_first(values: NDArray[np.float64]) -> NDArray[np.intp]:
    """The indices in descending order of the values, ties by index, NaN first."""
    # A stable ascending sort of the reversed array, reversed: negating the values instead would send NaN to the end.
    return (values.size - 1 - np.argsort(values[::-1], kind="stable"))[::-1]


def _counted(share: float, n: int) -> NDArray[np.float64]:
    """How much of each rank lies in the hardest share: 1, then a part of one rank, then 0."""
    counted: NDArray[np.float64] = np.clip(share * n - np.arange(n), 0.0, 1.0)
    return counted


def _weighted(values: NDArray[np.float64], spectrum: NDArray[np.float64]) -> float:
    used = spectrum != 0  # what does not count stays out even when it is infinite
    return float(np.sum(spectrum[used] * np.sort(values)[::-1][used]))


def _check_n(where: str, n: int) -> int:
    return check_whole(where, "n", n, None, "Pass the number of samples in all.")


def _check_share(where: str, name: str, value: float) -> float:
    try:
        share = float(value)
    except (TypeError, ValueError):
        share = np.nan
    if not 0 < share <= 1:
        raise ArgumentError(message(where, name, "lie in (0, 1]", repr(value), "Pass 1.0 for all samples."))
    return share
