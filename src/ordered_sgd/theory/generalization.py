"""Theorem 3 as numbers: a bound of the expected loss by L_q, its terms, and the comparison with plain SGD's bound.

The theorem speaks of losses without the regulariser, and of a set Theta fixed before the data are seen;
`data_dependent_bound` is for a set chosen afterwards.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ordered_sgd.errors import ArgumentError, message
from ordered_sgd.theory.constants import check_features, check_number
from ordered_sgd.theory.risk import ordered_risk
from ordered_sgd.theory.weights import check_whole, gamma_weights

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class GeneralizationBound:
    """The right-hand side of Theorem 3, term by term.

    Attributes
    ----------
    L_q : float
        The ordered empirical risk.
    complexity : float
        Twice the Rademacher complexity of the losses over Theta.
    deviation : float
        ``(M s / q) sqrt(ln(1 / delta) / (2 n))``.
    Q_n : float
        Subtracted, because L_q is never below the mean loss.
    """

    L_q: float
    complexity: float
    deviation: float
    Q_n: float

    @property
    def total(self) -> float:
        """The bound itself: ``L_q + complexity + deviation - Q_n``."""
        return self.L_q + self.complexity + self.deviation - self.Q_n


@dataclass(frozen=True)
class Estimate:
    """A Monte Carlo estimate.

    Attributes
    ----------
    value : float
        Mean over the draws.
    standard_error : float
        Standard error of the mean.
    """

    value: float
    standard_error: float


def generalization_bound(
    losses: Any, s: int, q: int, *, rademacher: float, M: float, delta: float, Q_n: float = 0.0
) -> GeneralizationBound:
    """Theorem 3: with probability at least ``1 - delta``, no theta in Theta has a larger expected loss than the total.

    ``E[loss] <= L_q + 2 R_n(Theta) + (M s / q) sqrt(ln(1 / delta) / (2 n)) - Q_n``. With q = s this is the standard
    bound of the mean loss (Eq. 5).

    Parameters
    ----------
    losses : array_like or torch.Tensor, shape (n,)
        The training losses of the parameters in question, without regulariser.
    s, q : int
        Batch size and samples kept.
    rademacher : float
        ``R_n(Theta)``, the Rademacher complexity of the losses, an expectation over data sets;
        `rademacher_linear_bound` bounds it for linear models.
    M : float
        Largest difference of two samples' losses under one theta of Theta; see `loss_range`.
    delta : float
        Probability of failure, in (0, 1).
    Q_n : float
        ``Q_n(Theta; s, q)`` or a lower bound of it; 0 is always one.

    Examples
    --------
    >>> bound = generalization_bound([0.0, 0.5, 1.0, 0.5], 2, 1, rademacher=0.1, M=1.0, delta=0.1)
    >>> round(bound.L_q, 4), bound.complexity, round(bound.deviation, 4), round(bound.total, 4)
    (0.75, 0.2, 1.073, 2.023)
    """
    where = "generalization_bound"
    rademacher = check_number(where, "rademacher", rademacher, "See rademacher_linear_bound.", zero=True)
    M = check_number(where, "M", M, "See loss_range.", zero=True)
    delta = _probability(where, delta)
    Q_n = check_number(where, "Q_n", Q_n, "Leave it at 0 when it is not known.", zero=True)
    L_q = ordered_risk(losses, s, q)
    deviation = M * s / q * math.sqrt(math.log(1 / delta) / (2 * len(losses)))
    return GeneralizationBound(L_q, 2 * rademacher, deviation, Q_n)


def _probability(where: str, delta: float) -> float:
    if not 0 < delta < 1:
        raise ArgumentError(
            message(where, "delta", "lie in (0, 1)", delta, "It is the probability that the bound fails.")
        )
    return float(delta)


def union_delta(k: int, delta: float) -> float:
    """Share ``6 delta / (pi^2 k^2)`` of the failure probability that the k-th set receives; the shares sum to delta.

    The paper's last formula has ``ln(pi k^2 / (6 delta'))``: a share of ``6 delta' / (pi k^2)``, and these sum to
    ``pi delta'``. Right is ``ln(pi^2 k^2 / (6 delta'))``, as in the display before it.

    Examples
    --------
    >>> round(sum(union_delta(k, 0.05) for k in range(1, 10_000)), 5)
    0.05
    """
    k = check_whole("union_delta", "k", k, None, "Count the sets from 1.")
    return 6 * _probability("union_delta", delta) / (math.pi * k) ** 2


def data_dependent_bound(
    losses: Any,
    s: int,
    q: int,
    *,
    theta_norm: float,
    radii: ArrayLike,
    rademacher: Callable[[float], float],
    M: Callable[[float], float],
    delta: float,
    Q_n: Callable[[float], float] | None = None,
) -> GeneralizationBound:
    """Theorem 3 for the smallest ball that holds the trained theta, at the price of a union bound (Appendix B).

    The balls ``||theta|| <= c_k``, ``c_1 < c_2 < ...``, are fixed before the data are seen; with probability at least
    ``1 - delta`` the bound holds for all of them at once, each with its `union_delta`.

    Parameters
    ----------
    losses, s, q
        As in `generalization_bound`.
    theta_norm : float
        The norm of the trained parameters.
    radii : array_like
        The radii c_k, increasing.
    rademacher, M, Q_n : callable
        Each takes a radius and gives the quantity of `generalization_bound` for that ball.
    delta : float
        Probability of failure of all the bounds together.

    Examples
    --------
    >>> bound = data_dependent_bound([0.5] * 100, 10, 5, theta_norm=1.5, radii=[1, 2, 4],
    ...     rademacher=lambda c: c / 10, M=lambda c: c, delta=0.05)
    >>> bound.complexity, round(bound.deviation, 4)
    (0.4, 0.6248)
    """
    where = "data_dependent_bound"
    norm = check_number(where, "theta_norm", theta_norm, "Pass the norm of the trained parameters.", zero=True)
    c = np.asarray(radii, dtype=np.float64)
    if c.ndim != 1 or not c.size or c[0] < 0 or (np.diff(c) <= 0).any():
        raise ArgumentError(
            message(where, "radii", "be an increasing vector", radii, "Use for example 2.0**np.arange(9).")
        )
    if norm > c[-1]:
        raise ArgumentError(message(where, "radii", f"reach theta_norm = {norm}", c[-1], "Let the radii go further."))
    k = int(np.searchsorted(c, norm))  # c[k - 1] < norm <= c[k]; counted from 0, the paper's k-bar is k + 1
    radius = float(c[k])
    return generalization_bound(
        losses,
        s,
        q,
        rademacher=rademacher(radius),
        M=M(radius),
        delta=union_delta(k + 1, delta),
        Q_n=0.0 if Q_n is None else Q_n(radius),
    )


def rademacher_linear(
    X: ArrayLike, radius: float, rng: np.random.Generator | int, *, lipschitz: float = 1.0, draws: int = 1000
) -> Estimate:
    """Empirical Rademacher complexity of the linear scores ``theta . x`` over ``||theta|| <= radius``, by Monte Carlo.

    The supremum is known, ``sup_theta (1/n) sum_i xi_i theta . x_i = radius ||sum_i xi_i x_i|| / n``, so only the signs
    xi are drawn. It is that of the given inputs; the theorem wants its expectation over data sets, which
    `rademacher_linear_bound` bounds.

    Parameters
    ----------
    X : array_like, shape (n, d)
        The inputs.
    radius : float
        Bound of ``||theta||``.
    rng : numpy.random.Generator or int
        Draws the signs, or seeds the generator that does.
    lipschitz : float
        Lipschitz constant of a loss in its single score (`loss_lipschitz`). By Talagrand's contraction lemma the
        complexity of the losses is at most this times that of the scores; 1 leaves the scores' own.
    draws : int
        Sign vectors to draw.

    Examples
    --------
    >>> X = np.eye(4)  # every sign vector gives ||xi|| / 4 = 1/2
    >>> rademacher_linear(X, 1.0, np.random.default_rng(0))
    Estimate(value=0.5, standard_error=0.0)
    """
    where = "rademacher_linear"
    features = check_features(where, X)
    radius = check_number(where, "radius", radius, "It bounds the norm of theta.", zero=True)
    lipschitz = check_number(where, "lipschitz", lipschitz, "See loss_lipschitz.")
    _check_draws(where, "draws", draws)
    n, rng = features.shape[0], np.random.default_rng(rng)
    sup = np.empty(draws)
    block = max(1, 2**20 // n)  # sign vectors at a time: about 8 MB
    for start in range(0, draws, block):
        signs = 2.0 * rng.integers(0, 2, size=(min(block, draws - start), n)) - 1.0
        sup[start : start + block] = np.linalg.norm(signs @ features, axis=1)
    return _estimate(lipschitz * radius / n * sup)


def rademacher_linear_bound(n: int, radius: float, x_norm: float, *, lipschitz: float = 1.0) -> float:
    """Upper bound ``lipschitz * radius * x_norm / sqrt(n)`` of the complexity that `rademacher_linear` samples.

    By Jensen's inequality. With the root mean square of the rows' norms as ``x_norm`` it bounds the empirical
    complexity of those rows, ``radius sqrt(sum ||x_i||^2) / n``; with a bound of ``||x||`` over all inputs it bounds
    R_n itself.

    Examples
    --------
    >>> rademacher_linear_bound(100, radius=2.0, x_norm=3.0)
    0.6
    """
    where = "rademacher_linear_bound"
    n = check_whole(where, "n", n, None, "Pass the number of samples.")
    radius = check_number(where, "radius", radius, "It bounds the norm of theta.", zero=True)
    x_norm = check_number(where, "x_norm", x_norm, "It bounds the norm of an input.", zero=True)
    lipschitz = check_number(where, "lipschitz", lipschitz, "See loss_lipschitz.")
    return lipschitz * radius * x_norm / math.sqrt(n)


def q_n_estimate(
    draw_losses: Callable[[np.random.Generator], ArrayLike],
    s: int,
    q: int,
    rng: np.random.Generator | int,
    *,
    repeats: int = 200,
) -> Estimate:
    """Q_n of Theorem 3 by Monte Carlo: the mean over fresh data sets of ``inf_theta (L_q - mean loss)``.

    It is never negative, and it is 0 as soon as Theta holds a theta under which all losses are equal, such as theta = 0
    of a linear classifier: only sets that keep away from such points gain anything from it.

    Parameters
    ----------
    draw_losses : callable
        Draws a data set of n samples from the generator it is given and returns losses: shape (m, n), one row for each
        theta of a finite Theta; or shape (n,), the losses at the minimising theta where the caller solves the infimum.
        An infimum over only some of Theta, or stopped early, is too large, and so is then the estimate.
    s, q : int
        Batch size and samples kept.
    rng : numpy.random.Generator or int
        Generator, or its seed, that is handed to `draw_losses`.
    repeats : int
        Data sets to draw.

    Examples
    --------
    >>> q_n_estimate(lambda rng: rng.permutation([0.0, 1.0, 1.0, 2.0]), 2, 1, np.random.default_rng(0), repeats=3)
    Estimate(value=0.5, standard_error=0.0)
    """
    _check_draws("q_n_estimate", "repeats", repeats)
    rng = np.random.default_rng(rng)
    infima = np.array([_least_excess(draw_losses(rng), s, q) for _ in range(repeats)])
    return _estimate(infima)


def _least_excess(losses: ArrayLike, s: int, q: int) -> float:
    rows = np.atleast_2d(np.asarray(losses, dtype=np.float64))
    weights = gamma_weights(rows.shape[1], s, q) / q - 1 / rows.shape[1]
    # the weights sum to 0, so the mean may go first: what is left does not cancel
    centred = rows - rows.mean(axis=1, keepdims=True)
    return max(0.0, float((-np.sort(-centred, axis=1) @ weights).min()))


def _check_draws(where: str, name: str, value: int) -> None:
    if not isinstance(value, int | np.integer) or value < 2:
        raise ArgumentError(message(where, name, "be an int of at least 2", value, "One draw has no standard error."))


def _estimate(values: FloatArray) -> Estimate:
    return Estimate(float(values.mean()), float(values.std(ddof=1) / math.sqrt(values.size)))


def bound_advantage(losses_sgd: Any, losses_ordered: Any, s: int, q: int, *, Q_n: float = 0.0) -> float:
    """``Q_n + L(theta_s) - L_q(theta_q)``: where positive, ordered SGD's bound is the smaller one as n grows.

    Parameters
    ----------
    losses_sgd : array_like or torch.Tensor, shape (n,)
        Training losses of theta_s, found by plain SGD.
    losses_ordered : array_like or torch.Tensor, shape (n,)
        Training losses of theta_q, found by ordered SGD.
    s, q, Q_n
        As in `generalization_bound`.

    Notes
    -----
    At finite n ordered SGD's bound also carries the larger deviation, by ``M (s / q - 1) sqrt(ln(1 / delta) / (2 n))``.
    The paper's second sufficient condition, ``L(theta_s) - L_q(theta_q) > 0``, is this with Q_n = 0 and cannot hold
    when theta_s minimises L: then ``L(theta_s) <= L(theta_q) <= L_q(theta_q)``.

    Examples
    --------
    >>> bound_advantage([0.5, 0.5], [0.25, 0.5], 2, 1, Q_n=0.125)
    0.125
    """
    Q_n = check_number("bound_advantage", "Q_n", Q_n, "Leave it at 0 when it is not known.", zero=True)
    L = ordered_risk(losses_sgd, s, s)  # all of the mini-batch: the plain mean
    return Q_n + L - ordered_risk(losses_ordered, s, q)
