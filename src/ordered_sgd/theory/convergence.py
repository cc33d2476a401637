"""Theorem 2 as numbers: how close ordered SGD comes to the least L_q, and the Moreau envelope it is measured by.

Outside the theorem: momentum, a q that changes during training, epochs of shuffled data, dropout, augmentation,
BatchNorm.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ordered_sgd.errors import ArgumentError, message
from ordered_sgd.theory.constants import check_number

FloatArray = NDArray[np.float64]
Oracle = Callable[[FloatArray], tuple[float, ArrayLike]]


def _step_sizes(where: str, etas: ArrayLike) -> FloatArray:
    steps = np.asarray(etas, dtype=np.float64)
    if steps.ndim != 1 or not np.isfinite(steps).all() or (steps < 0).any() or not steps.sum() > 0:
        rule = "be a vector of finite step sizes eta_0, ..., eta_T, none negative, not all 0"
        raise ArgumentError(message(where, "etas", rule, np.array2string(steps, threshold=6), "List every step taken."))
    return steps


def convergence_bound(
    etas: ArrayLike,
    G1: float,
    G2: float = 0.0,
    *,
    distance: float | None = None,
    gap: float | None = None,
    rho: float | None = None,
    rho_hat: float | None = None,
) -> float:
    """Right-hand side of Theorem 2 after the steps ``eta_0, ..., eta_T``.

    Convex losses, ``distance = ||theta* - theta^0||`` given::

        min_{0<=t<=T} E[L_q(theta^t) - L_q(theta*)] <= (2 (G1^2 + G2^2) sum eta_t^2 + distance^2) / (2 sum eta_t)

    rho-weakly convex losses, ``gap = L_q^{1/rho_hat}(theta^0) - L_q(theta*)`` given, t drawn by `draw_iterate`::

        E ||grad L_q^{1/rho_hat}(theta^t)||^2 <= rho_hat / (rho_hat - rho)
                                                 * (gap + rho_hat (G1^2 + G2^2) sum eta_t^2) / sum eta_t

    The paper prints the first minimum over ``t <= n``, which is false: later steps cannot help the first n iterates.
    Both bounds also hold when each step is followed by a projection onto a closed convex set, on which the
    constants are then taken, because a projection never increases the distance to a point of the set; the envelope is
    then that of L_q on the set.

    Parameters
    ----------
    etas : array_like, shape (T + 1,)
        The step sizes, in any pattern.
    G1, G2 : float
        Lipschitz constants of the losses L_i and of the regulariser; see `linear_lipschitz`, `regularizer_lipschitz`.
    distance : float, optional
        Convex setting: ``||theta* - theta^0||``, or an upper bound of it.
    gap : float, optional
        Weakly convex setting: as above, or an upper bound; ``L_q(theta^0)`` is one, as losses are not negative.
    rho : float, optional
        Weakly convex setting: the weak convexity; see `tanh_network_weak_convexity`.
    rho_hat : float, optional
        Weakly convex setting: any number above rho; twice rho unless given.

    Examples
    --------
    >>> convergence_bound([0.5] * 16, G1=1.0, distance=2.0)
    0.75
    >>> convergence_bound([0.5] * 16, G1=1.0, gap=2.0, rho=0.5)
    1.5
    """
    where = "convergence_bound"
    steps = _step_sizes(where, etas)
    G1 = check_number(where, "G1", G1, "See linear_lipschitz.", zero=True)
    G2 = check_number(where, "G2", G2, "See regularizer_lipschitz.", zero=True)
    total, squares = float(steps.sum()), float(steps @ steps)
    if (distance is None) == (gap is None):
        remedy = "Pass distance for convex losses, gap and rho for weakly convex ones."
        raise ArgumentError(message(where, "distance or gap", "be given, one of the two", (distance, gap), remedy))
    if distance is not None:
        distance = check_number(where, "distance", distance, "Pass the norm of theta* - theta^0.", zero=True)
        return (2 * (G1**2 + G2**2) * squares + distance**2) / (2 * total)
    gap = check_number(where, "gap", gap, "Pass the envelope at theta^0 less the least L_q.", zero=True)
    rho = check_number(where, "rho", rho, "Pass the weak convexity of the losses.", zero=True)
    rho_hat = check_number(where, "rho_hat", 2 * rho if rho_hat is None else rho_hat, "Pass a number above rho.")
    if rho_hat <= rho:
        raise ArgumentError(message(where, "rho_hat", f"be above rho = {rho}", rho_hat, "Twice rho is a usual choice."))
    return rho_hat / (rho_hat - rho) * (gap + rho_hat * (G1**2 + G2**2) * squares) / total


def draw_iterate(etas: ArrayLike, rng: np.random.Generator | int) -> int:
    """Index t of the random iterate of Theorem 2(2): ``P(t) = eta_t / sum eta``.

    Examples
    --------
    >>> draw_iterate([0.0, 0.0, 0.5], np.random.default_rng(0))
    2
    """
    steps = _step_sizes("draw_iterate", etas)
    return int(np.random.default_rng(rng).choice(steps.size, p=steps / steps.sum()))


@dataclass(frozen=True)
class MoreauEnvelope:
    """Result of `moreau_envelope`.

    Attributes
    ----------
    value : float
        The envelope, at most ``gap`` too large.
    prox : numpy.ndarray
        The minimiser, up to a distance of ``lam * gradient_error``.
    gradient : numpy.ndarray
        ``(theta - prox) / lam``, the envelope's gradient up to ``gradient_error`` in norm.
    gap : float
        Certified: the envelope lies between ``value - gap`` and ``value``.
    gradient_error : float
        Certified, from gap and strong convexity.
    """

    value: float
    prox: FloatArray
    gradient: FloatArray
    gap: float
    gradient_error: float


def _both(where: str, found: Any) -> tuple[float, ArrayLike]:
    """A value and a subgradient, or one clear error."""
    if isinstance(found, tuple | list) and len(found) == 2:
        return found[0], found[1]
    got, remedy = type(found).__name__, "Return the gradient as well: lambda b: (value(b), gradient(b))."
    raise ArgumentError(message(where, "f", "return a value and a subgradient", got, remedy))


def moreau_envelope(
    f: Oracle, theta: ArrayLike, lam: float, *, rho: float = 0.0, tol: float = 1e-10, max_cuts: int = 1000
) -> MoreauEnvelope:
    """Value, minimiser and gradient of ``min_beta f(beta) + ||beta - theta||^2 / (2 lam)``, with an error bar.

    f need not be smooth. With ``mu = 1 / lam - rho > 0`` the objective is ``h(beta) + (mu / 2) ||beta - theta||^2``
    with ``h = f + (rho / 2) ||. - theta||^2`` convex. Every value and subgradient of f gives a plane below h; the
    maximum of the planes plus the quadratic is minimised exactly, a new plane is cut at the minimiser, and so on until
    that lower bound meets the best value seen.

    For small problems: each plane costs one call of f, and the number of planes, a dozen to several hundred, grows with
    the number of parameters and with lam. Below a gap of about 1e-13 of the value, rounding takes over.

    Parameters
    ----------
    f : callable
        ``f(beta) -> (value, subgradient)``. If L_q is not differentiable (ties), the gradient of
        ``sum_i r_i L_i / q + R`` with ``r = sample_weights(losses, s, q)`` is a subgradient.
    theta : array_like, shape (d,)
        Point at which to compute the envelope.
    lam : float
        Its parameter: ``1 / rho_hat`` in Theorem 2.
    rho : float
        Weak convexity of f, 0 for a convex f; below ``1 / lam``.
    tol : float
        The gap to reach, relative to the value where that exceeds 1.
    max_cuts : int
        Planes after which to give up, with an error.

    Examples
    --------
    >>> absolute = lambda x: (abs(x[0]), np.sign(x))
    >>> far = moreau_envelope(absolute, [3.0], lam=1.0)  # Huber's function: |x| - lam / 2 outside [-lam, lam]
    >>> round(far.value, 9), far.gradient.round(9)
    (2.5, array([1.]))
    """
    where = "moreau_envelope"
    center = np.array(theta, dtype=np.float64, ndmin=1)
    lam = check_number(where, "lam", lam, "The envelope tends to f as lam tends to 0.")
    rho = check_number(where, "rho", rho, "Use rho=0 for a convex f.", zero=True)
    mu = 1 / lam - rho
    if mu <= 0:
        raise ArgumentError(message(where, "rho", f"be below 1 / lam = {1 / lam}", rho, "Make lam smaller."))
    slopes, heights = np.empty((0, center.size)), np.empty(0)  # the planes: heights + slopes . (beta - theta)
    weights = np.empty(0)
    best, gap, prox, beta = np.inf, np.inf, center, center
    for _ in range(max_cuts):
        value, subgradient = _both(where, f(beta))
        offset = beta - center
        slope = np.asarray(subgradient, dtype=np.float64) + rho * offset
        objective = float(value + offset @ offset / (2 * lam))
        if not np.isfinite(objective) or not np.isfinite(slope).all():
            raise ArgumentError(message(where, "f", "be finite", value, f"It was asked at {beta}."))
        if objective < best:
            best, prox = objective, beta
        slopes = np.vstack([slopes, slope])
        heights = np.append(heights, objective - mu / 2 * (offset @ offset) - slope @ offset)
        weights = _model_weights(slopes, heights, mu, np.append(weights, 0.0 if weights.size else 1.0))
        pull = weights @ slopes
        gap = best - float(weights @ heights - pull @ pull / (2 * mu))  # weak duality: any weights give a lower bound
        scale = max(1.0, abs(best))
        if gap < -1e-9 * scale:
            remedy = "Raise rho, or check the subgradient."
            raise ArgumentError(message(where, "f", f"be {rho}-weakly convex", f"a plane {-gap:.3g} above it", remedy))
        if gap <= tol * scale:
            gap = max(gap, 0.0)
            return MoreauEnvelope(best, prox, (center - prox) / lam, gap, float(np.sqrt(2 * gap / mu)) / lam)
        beta = center - pull / mu
    remedy = "Raise max_cuts or tol."
    raise ArgumentError(message(where, "tol", f"be reached within {max_cuts} cuts", f"a gap of {gap:.3g}", remedy))


def _model_weights(slopes: FloatArray, heights: FloatArray, mu: float, weights: FloatArray) -> FloatArray:
    """Convex weights of the planes that maximise ``w . heights - ||w @ slopes||^2 / (2 mu)``, starting from `weights`.

    The dual of minimising the model, by an active-set method: the last plane enters, planes whose weight would turn
    negative leave, and the plane most violated comes next.
    """
    scale = max(1.0, float((slopes**2).sum(axis=1).max()) / mu)
    weights = weights.copy()
    active = weights > 0
    active[-1] = True
    for _ in range(20 * weights.size):
        index = np.flatnonzero(active)
        m = index.size
        system = np.ones((m + 1, m + 1))
        # the ridge keeps the system regular when planes repeat; it moves the weights, not the bound's validity
        system[:m, :m] = slopes[index] @ slopes[index].T / mu + 1e-13 * scale * np.eye(m)
        system[m, m] = 0.0
        solution = np.linalg.solve(system, np.append(heights[index], 1.0))
        aim, level = solution[:m], solution[m]
        if (aim < 0).any():
            now = weights[index]
            falling = aim < 0
            fractions = np.where(falling, now / np.where(falling, now - aim, 1.0), np.inf)
            leaving = int(np.argmin(fractions))
            weights[index] = now + fractions[leaving] * (aim - now)
            weights[index[leaving]] = 0.0
            active[index[leaving]] = False
            continue
        weights[:] = 0.0
        weights[index] = aim / aim.sum()
        violation = heights - slopes @ (weights @ slopes) / mu - level
        violation[index] = -np.inf
        entering = int(np.argmax(violation))
        if violation[entering] <= 1e-14 * scale:
            break
        active[entering] = True
    weights = np.maximum(weights, 0.0)  # rounding may leave -1e-17
    return np.asarray(weights / weights.sum())
