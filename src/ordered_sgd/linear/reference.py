"""One epoch of ordered SGD on a linear model in NumPy: the readable twin of the kernels.

For each batch: gather the rows, score them, compute the losses, keep the q largest (a tie goes to the lower position),
and step along the mean gradient of the kept samples.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import sparse

from ordered_sgd.errors import NonFiniteLossError, message
from ordered_sgd.linear.objective import Array, Batches, Epoch, Loss, Objective, State, check_batches


def train_epoch(
    X: Array, y: Array, weight: Array, state: State, objective: Objective, batches: Batches, *, lr: float
) -> Epoch:
    """Results of the epoch, which updates the state in place.

    Parameters
    ----------
    X : ndarray or CSR array of shape (n, d)
        Inputs.
    y : ndarray of shape (n,)
        Targets, or class numbers from 0.
    weight : ndarray of shape (n,)
        Factor of the losses, applied before they are ordered.
    state : State
        Weights to update.
    objective : Objective
        Loss, penalty and momentum.
    batches : Batches
        Order of the samples, batch size and q.
    lr : float
        Learning rate.

    Examples
    --------
    Three samples with one feature in one batch, which keeps the worst two:

    >>> X, y = np.array([[1.0], [2.0], [3.0]]), np.array([0.0, 0.0, 3.0])
    >>> state = State.start(np.ones((1, 1)), np.zeros(1))
    >>> objective, batches = Objective("squared_error", fit_intercept=False), Batches(np.arange(3), s=3, q=2, q_last=2)
    >>> epoch = train_epoch(X, y, np.ones(3), state, objective, batches, lr=0.1)
    >>> epoch.losses, epoch.kept, state.coef
    (array([0.5, 2. , 0. ]), array([ True,  True, False]), array([[0.75]]))
    """
    check_batches(batches, "train_epoch")
    order, s = batches.order, batches.s
    losses, kept, correct = np.empty(len(order), state.coef.dtype), np.zeros(len(order), bool), 0
    for start in range(0, len(order), s):
        at = slice(start, min(start + s, len(order)))
        rows = order[at]
        x = _gather(X, rows, state.coef.dtype) * state.coef.dtype.type(objective.input_scale)
        scores = x @ state.coef.T + state.intercept
        loss, slope = PER_SAMPLE[objective.loss](scores, y[rows], objective.epsilon)
        losses[at] = loss * weight[rows]
        check_finite(losses[at], start, "train_epoch")
        correct += _count_right(scores, y[rows], objective.loss)
        q = batches.q if len(rows) == s else batches.q_last
        chosen = largest(losses[at] if batches.keys is None else batches.keys[at], q)
        kept[start + chosen] = True
        slope = slope[chosen] * weight[rows][chosen, None] / q
        _descend(state, objective, slope.T @ x[chosen], slope.sum(axis=0), lr)
    return Epoch(losses, kept, correct)


def largest(values: Array, q: int) -> Array:
    """Positions of the q largest values, ascending; a tie goes to the lower position.

    >>> largest(np.array([1.0, 3.0, 2.0, 3.0, 2.0]), 3)
    array([1, 2, 3])
    """
    order: Array = np.argsort(-values, kind="stable")
    return np.sort(order[:q])


def check_finite(losses: Array, start: int, where: str) -> None:
    """Raise if a loss is NaN or infinite; `start` is the position of the first one in the epoch."""
    bad = np.flatnonzero(~np.isfinite(losses))
    if len(bad):
        got = f"{losses[bad[0]]} at position {start + bad[0]} of the epoch"
        remedy = "Scale the inputs, or lower the learning rate."
        raise NonFiniteLossError(message(where, "losses", "be finite", got, remedy))


def _gather(X: Any, rows: Array, dtype: Any) -> Array:
    """The rows as a dense array of the weights' dtype."""
    picked = X[rows]
    dense: Array = picked.toarray() if sparse.issparse(picked) else picked
    return dense.astype(dtype)


def _descend(state: State, objective: Objective, gradient: Array, slope: Array, lr: float) -> None:
    """One step of the weights, and of the intercept."""
    w, v = state.coef, state.velocity
    v[:] = objective.momentum * v + gradient + objective.l2 * w
    moved = w - lr * v
    w[:] = moved - moved.clip(-lr * objective.l1, lr * objective.l1)
    v += (moved - w) / lr  # momentum of the step actually taken, as in ProximalSGD
    if objective.fit_intercept:
        b, u = state.intercept, state.intercept_velocity
        u[:] = objective.momentum * u + slope + objective.l2_intercept * b
        b -= lr * u


def _count_right(scores: Array, y: Array, loss: Loss) -> int:
    if loss not in ("log_loss", "hinge"):
        return 0
    answers = scores[:, 0] > 0 if scores.shape[1] == 1 else scores.argmax(axis=1)
    return int((answers == y).sum())


# Every loss below returns the losses (s,) and their derivatives in the scores (s, K).


def _log_loss(scores: Array, y: Array, epsilon: float) -> tuple[Array, Array]:
    if scores.shape[1] == 1:
        sign = 2 * y[:, None] - 1
        a = sign * scores
        loss = np.maximum(-a, 0) + np.log1p(np.exp(-np.abs(a)))
        return loss[:, 0], -sign / (1 + np.exp(a.clip(None, 80)))
    top = scores.max(axis=1, keepdims=True)
    share = np.exp(scores - top)
    total = share.sum(axis=1, keepdims=True)
    right = np.arange(len(y)), y.astype(int)
    slope = share / total
    slope[right] -= 1
    return (np.log(total) + top)[:, 0] - scores[right], slope


def _hinge(scores: Array, y: Array, epsilon: float) -> tuple[Array, Array]:
    if scores.shape[1] == 1:
        sign = 2 * y[:, None] - 1
        short = 1 - sign * scores
        return short.clip(0, None)[:, 0], np.where(short >= 0, -sign, 0)
    right = np.arange(len(y)), y.astype(int)
    short = 1 + scores - scores[right][:, None]
    short[right] = -1  # the right class does not compete with itself
    slope = (short >= 0).astype(scores.dtype)  # a margin met exactly still pulls, as torch's clamp has it
    slope[right] = -slope.sum(axis=1)
    return short.clip(0, None).sum(axis=1), slope


def _squared_error(scores: Array, y: Array, epsilon: float) -> tuple[Array, Array]:
    r = scores - y[:, None]
    return (r * r / 2)[:, 0], r


def _absolute_error(scores: Array, y: Array, epsilon: float) -> tuple[Array, Array]:
    r = scores - y[:, None]
    return np.abs(r)[:, 0], np.sign(r)


def _huber(scores: Array, y: Array, epsilon: float) -> tuple[Array, Array]:
    r = scores - y[:, None]
    inner = r.clip(-epsilon, epsilon)
    return (inner * (r - inner / 2))[:, 0], inner


PER_SAMPLE: dict[Loss, Callable[[Array, Array, float], tuple[Array, Array]]] = {
    "log_loss": _log_loss,
    "hinge": _hinge,
    "squared_error": _squared_error,
    "huber": _huber,
    "absolute_error": _absolute_error,
}
