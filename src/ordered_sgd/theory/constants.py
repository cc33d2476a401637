"""Constants the theorems ask for: Lipschitz constants G1 and G2, the loss range M, weak convexity rho.

`loss_lipschitz` and `loss_range` see a loss as a function of the model's scores; `linear_lipschitz` turns the first
into the G1 of Theorem 2 for a linear model, and `loss_range` is the M of Theorem 3 once the scores are bounded. With
one score ``a`` and a label or target ``y``:

- ``"logistic"``: ``log(1 + exp(-y a))``, y = +-1;
- ``"hinge"``: ``max(0, 1 - y a)``, y = +-1;
- ``"huber"``: ``(a - y)^2 / 2`` where ``|a - y| <= delta``, ``delta (|a - y| - delta / 2)`` beyond;
- ``"square"``: ``(a - y)^2``, Lipschitz on bounded sets only.

With a vector of K scores, y one of K classes:

- ``"softmax"``: the cross-entropy;
- ``"multiclass_hinge"``: ``sum_{k != y} max(0, 1 + a_k - a_y)``; for the mean over classes divide its constants by K.

All norms are Euclidean.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ordered_sgd.errors import ArgumentError, message
from ordered_sgd.theory.weights import check_whole

LOSSES = ("logistic", "hinge", "huber", "square", "softmax", "multiclass_hinge")


def check_number(where: str, name: str, value: float | None, remedy: str, *, zero: bool = False) -> float:
    """The value as a float, or an error unless it is finite and positive (``zero=True``: or zero).

    >>> check_number("doctest", "G1", 2, "")
    2.0
    """
    rule = "be a finite number of at least 0" if zero else "be a finite number above 0"
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if value is None or not number or not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        raise ArgumentError(message(where, name, rule, repr(value), remedy))
    return float(value)


def check_features(where: str, X: ArrayLike) -> NDArray[np.float64]:
    """The features as a float64 matrix, or an error unless they are finite, with a row per sample.

    >>> check_features("doctest", [[1, 2]])
    array([[1., 2.]])
    """
    features = np.asarray(X, dtype=np.float64)
    if features.ndim != 2 or not features.size or not np.isfinite(features).all():
        rule = "be a finite matrix with a row per sample"
        got = f"shape {features.shape}" if features.ndim != 2 or not features.size else "nan or inf"
        raise ArgumentError(message(where, "X", rule, got, "Reshape it, and impute or drop missing values."))
    return features


def _check_loss(where: str, loss: str) -> None:
    if loss not in LOSSES:
        rule = "be one of " + ", ".join(LOSSES)
        raise ArgumentError(message(where, "loss", rule, repr(loss), "Other losses need constants of your own."))


def _check_classes(where: str, classes: int | None) -> int:
    if not isinstance(classes, int | np.integer) or classes < 2:
        remedy = "Say how many scores the model gives."
        raise ArgumentError(message(where, "classes", "be an int of at least 2 for a multiclass loss", classes, remedy))
    return int(classes)


def loss_lipschitz(
    loss: str,
    *,
    delta: float = 1.0,
    score_bound: float | None = None,
    target_bound: float | None = None,
    classes: int | None = None,
) -> float:
    """Lipschitz constant of a loss in the score (in the score vector for several classes).

    The largest norm of a subgradient in ``a``, attained or approached:

    - logistic and hinge: 1;
    - Huber: ``delta``;
    - square: ``2 (score_bound + target_bound)``;
    - softmax: sqrt(2), as the gradient ``p - e_y`` tends to ``e_k - e_y``;
    - multiclass hinge: with m violated margins the subgradient has m entries 1 and one entry -m, so
      ``sqrt(K (K - 1))`` at m = K - 1.

    Parameters
    ----------
    loss : str
        One of the names above.
    delta : float
        Huber's threshold.
    score_bound, target_bound : float, optional
        Bounds of ``|a|`` and ``|y|``; the square loss needs both.
    classes : int, optional
        Number of classes K; the multiclass hinge needs it.

    Examples
    --------
    >>> loss_lipschitz("logistic"), loss_lipschitz("huber", delta=0.5)
    (1.0, 0.5)
    >>> loss_lipschitz("square", score_bound=3.0, target_bound=1.0)
    8.0
    """
    where = "loss_lipschitz"
    _check_loss(where, loss)
    if loss in ("logistic", "hinge"):
        return 1.0
    if loss == "huber":
        return check_number(where, "delta", delta, "torch's default is 1.0.")
    if loss == "square":
        return 2.0 * sum(_residual_bounds(where, score_bound, target_bound))
    if loss == "softmax":
        return math.sqrt(2.0)
    K = _check_classes(where, classes)
    return math.sqrt(K * (K - 1))


def _residual_bounds(where: str, score_bound: float | None, target_bound: float | None) -> tuple[float, float]:
    score_bound = check_number(where, "score_bound", score_bound, "Pass a bound of the scores |a|.", zero=True)
    target_bound = check_number(where, "target_bound", target_bound, "Pass a bound of the targets |y|.", zero=True)
    return score_bound, target_bound


def loss_range(
    loss: str,
    score_bound: float,
    *,
    delta: float = 1.0,
    target_bound: float | None = None,
    classes: int | None = None,
) -> float:
    """M of Theorem 3: how far two samples' losses can be apart under one parameter vector.

    With B = ``score_bound``, the bound of ``|a|`` (of ``||a||`` for several classes) over the set Theta and all inputs;
    for a linear model with ``||theta|| <= radius`` and ``||x|| <= x_norm`` it is ``radius * x_norm``.

    - logistic: ``log(1 + e^B) - log(1 + e^-B) = B``.
    - hinge: ``1 + B - max(0, 1 - B)``.
    - Huber and square: the loss of the residual ``B + target_bound``; the least loss is 0.
    - softmax: no difference of two scores exceeds ``D = sqrt(2) B``, so the loss lies between
      ``log(1 + (K - 1) e^-D)`` and ``log(1 + (K - 1) e^D)``; exact for K = 2, an upper bound of M beyond.
    - multiclass hinge: ``K - 1 + H - max(0, K - 1 - H)`` with ``H = B sqrt(K (K - 1))``, by its Lipschitz constant
      around ``a = 0``; the largest loss is attained, the least may lie higher.

    Examples
    --------
    >>> loss_range("logistic", 4.0), loss_range("hinge", 4.0), loss_range("hinge", 0.25)
    (4.0, 5.0, 0.5)
    """
    where = "loss_range"
    _check_loss(where, loss)
    remedy = "Bound the scores: radius * x_norm for a linear model."
    B = check_number(where, "score_bound", score_bound, remedy, zero=True)
    if loss == "logistic":
        return B
    if loss == "hinge":
        return 1.0 + B - max(0.0, 1.0 - B)
    if loss in ("huber", "square"):
        residual = sum(_residual_bounds(where, B, target_bound))
        if loss == "square":
            return residual**2
        delta = check_number(where, "delta", delta, "torch's default is 1.0.")
        return residual**2 / 2 if residual <= delta else delta * (residual - delta / 2)
    K = _check_classes(where, classes)
    if loss == "softmax":
        D = math.sqrt(2.0) * B
        rest = math.log(K - 1)
        return float(np.logaddexp(0.0, rest + D) - np.logaddexp(0.0, rest - D))
    H = B * math.sqrt(K * (K - 1))
    return K - 1 + H - max(0.0, K - 1 - H)


def linear_lipschitz(
    loss: str,
    X: ArrayLike,
    y: ArrayLike | None = None,
    *,
    radius: float | None = None,
    delta: float = 1.0,
    classes: int | None = None,
) -> float:
    """G1 of Theorem 2 for a linear model: every ``L_i(theta) = loss(theta . x_i, y_i)`` is G1-Lipschitz in theta.

    ``G1 = max_i ||x_i|| * loss_lipschitz(loss)``. With several classes theta is the matrix of weights and its norm the
    Frobenius norm. An intercept is a column of ones in X.

    Parameters
    ----------
    loss : str
        One of the names above.
    X : array_like, shape (n, d)
        The features.
    y : array_like, shape (n,), optional
        The targets; only the square loss needs them.
    radius : float, optional
        The ball ``||theta|| <= radius`` the iterates stay in; only the square loss needs it.
    delta, classes
        As in `loss_lipschitz`.

    Examples
    --------
    >>> linear_lipschitz("logistic", [[3.0, 4.0], [1.0, 0.0]])
    5.0
    """
    where = "linear_lipschitz"
    x_norm = float(np.linalg.norm(check_features(where, X), axis=1).max())
    if loss != "square":
        return x_norm * loss_lipschitz(loss, delta=delta, classes=classes)
    if y is None:
        raise ArgumentError(message(where, "y", "be given for the square loss", None, "Pass the targets."))
    remedy = "The square loss is Lipschitz on a ball only: pass the radius of one that holds the iterates."
    radius = check_number(where, "radius", radius, remedy)
    target = float(np.abs(np.asarray(y, dtype=np.float64)).max())
    return x_norm * loss_lipschitz(loss, score_bound=radius * x_norm, target_bound=target)


def regularizer_lipschitz(kind: str, lam: float, *, d: int | None = None, radius: float | None = None) -> float:
    """G2 of Theorem 2: the Lipschitz constant of a regulariser.

    ``"l2"``: ``R = lam ||theta||``, constant lam. ``"l1"``: ``R = lam ||theta||_1``, constant ``lam sqrt(d)``.
    ``"squared_l2"``: ``R = (lam / 2) ||theta||^2``, the usual weight decay, constant ``lam * radius`` on the ball
    ``||theta|| <= radius``.

    Examples
    --------
    >>> regularizer_lipschitz("l2", 0.1), regularizer_lipschitz("l1", 0.1, d=4)
    (0.1, 0.2)
    """
    where = "regularizer_lipschitz"
    lam = check_number(where, "lam", lam, "Use G2=0 without a regulariser.", zero=True)
    if kind == "l2":
        return lam
    if kind == "l1":
        return lam * math.sqrt(check_whole(where, "d", d, None, "Pass the number of parameters."))
    if kind == "squared_l2":
        return lam * check_number(where, "radius", radius, "Pass the radius of a ball that holds the iterates.")
    raise ArgumentError(message(where, "kind", "be one of l2, l1, squared_l2", repr(kind), "The names say R."))


def tanh_network_lipschitz(x_norm: float, hidden: int, output_bound: float) -> float:
    """G1 of a tanh network with one hidden layer under the logistic loss, where output weights are bounded.

    The network is ``f = sum_k v_k tanh(w_k . x) + c`` with parameters ``(w_1, ..., w_h, v, c)``; a hidden bias is one
    more input equal to 1, counted in ``x_norm``. The set is ``|v_k| <= output_bound``; the w_k and c are free. With
    ``u_k = tanh(w_k . x)`` a unit adds ``v_k^2 (1 - u_k^2)^2 ||x||^2 + u_k^2`` to ``||grad f||^2``, convex in ``u_k^2``
    and therefore largest at 0 or 1; c adds 1; the logistic loss has slope at most 1. So
    ``G1^2 = h max(1, (output_bound x_norm)^2) + 1``.

    Examples
    --------
    >>> tanh_network_lipschitz(x_norm=1.0, hidden=3, output_bound=1.0)
    2.0
    """
    where = "tanh_network_lipschitz"
    x_norm = check_number(where, "x_norm", x_norm, "Pass the largest norm of an input.")
    hidden = check_whole(where, "hidden", hidden, None, "Pass the number of hidden units.")
    k = x_norm * check_number(where, "output_bound", output_bound, "Pass the bound of the output weights.", zero=True)
    return math.sqrt(hidden * max(1.0, k * k) + 1.0)


def tanh_network_weak_convexity(x_norm: float, output_bound: float) -> float:
    """Least rho with ``L_i + (rho / 2) ||theta||^2`` convex, for the network of `tanh_network_lipschitz`.

    The Hessian of ``loss(f)`` is ``loss'' grad f grad f^T + loss' Hess f``. The first term is positive semidefinite and
    ``|loss'| <= 1``, so ``rho = sup ||Hess f||`` is enough. ``Hess f`` has one block a unit, over ``(w_k, v_k)``; with
    ``r = ||x||``, ``u = tanh(w_k . x)`` and ``tanh'' = -2 u (1 - u^2)`` a block's nonzero eigenvalues are those of
    ``[[-2 v u (1 - u^2) r^2, (1 - u^2) r], [(1 - u^2) r, 0]]``, the largest in size being

        ``r (1 - u^2) (k |u| + sqrt(k^2 u^2 + 1))`` with ``k = |v| r``.

    It grows with k, so ``k = output_bound * x_norm``; its maximum over u lies where
    ``3 k^2 u^4 + (4 + 2 k^2) u^2 - k^2 = 0``. No smaller constant does: a c far on the wrong side brings loss' near -y
    and loss'' near 0. For large output_bound rho grows like ``0.77 output_bound x_norm^2``: a tanh network is weakly
    convex on such bounded sets only, not everywhere as the paper has it, unless the output weights are fixed.

    Examples
    --------
    >>> tanh_network_weak_convexity(x_norm=2.0, output_bound=0.0)  # only the cross terms are left
    2.0
    """
    where = "tanh_network_weak_convexity"
    x_norm = check_number(where, "x_norm", x_norm, "Pass the largest norm of an input.")
    k = x_norm * check_number(where, "output_bound", output_bound, "Pass the bound of the output weights.", zero=True)
    # the root u^2 of the quadratic, written without cancellation for small k
    u2 = k * k / (2 + k * k + math.sqrt((2 + k * k) ** 2 + 3 * k**4))
    return x_norm * (1 - u2) * (k * math.sqrt(u2) + math.sqrt(k * k * u2 + 1))
