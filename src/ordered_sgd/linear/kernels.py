"""One epoch of ordered SGD on a linear model, compiled: `reference.train_epoch`, fast. The loops are in `loops`."""

from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from ordered_sgd.linear.intrinsics import announced
from ordered_sgd.linear.loops import dense_epoch, sparse_epoch
from ordered_sgd.linear.objective import LOSSES, Array, Batches, Epoch, Objective, State, check_batches
from ordered_sgd.linear.reference import check_finite


class EpochSamples(NamedTuple):
    """Input: the order, targets and weights in that order, batch size and q."""

    order: Array
    y: Array
    weight: Array
    s: int
    q: int
    q_last: int


class Report(NamedTuple):
    """Output, in the order of training; `ranks` are the losses, or the keys if given, as integers."""

    losses: Array
    ranks: Array
    kept: Array


class Intercept(NamedTuple):
    """The intercept, its momentum, and whether it moves."""

    b: Array
    velocity: Array
    moves: bool


class Modes(NamedTuple):
    """The eigenvectors (1, v_of_w) and (w_of_v, 1) of A with their eigenvalues, and (-lr, 1) in their directions."""

    first: float
    second: float
    v_of_w: float
    w_of_v: float
    step_first: float
    step_second: float


class Numbers(NamedTuple):
    """The scalars of an epoch, in the dtype of the weights: a wider one would widen the loops."""

    lr: float
    momentum: float
    l2: float
    l1: float
    l2_intercept: float
    epsilon: float
    scale: float


def train_epoch(
    X: Any, y: Array, weight: Array, state: State, objective: Objective, batches: Batches, *, lr: float
) -> Epoch:
    """As `reference.train_epoch`, to rounding.

    `y` and `weight` have the dtype of the weights, and the state is laid out `by_column` exactly when X is sparse.
    """
    check_batches(batches, "train_epoch")
    dtype, n = state.memory.dtype, len(batches.order)
    o = objective
    scalars = (lr, o.momentum, o.l2, o.l1, o.l2_intercept, o.epsilon, o.input_scale)
    numbers = Numbers(*(dtype.type(scalar) for scalar in scalars))
    losses, kept = np.empty(n, dtype), np.zeros(n, bool)
    keys = losses if batches.keys is None else np.ascontiguousarray(batches.keys, dtype)
    # Non-negative floats have the same order as their bits.
    report = Report(losses, keys.view(f"i{dtype.itemsize}"), kept)
    order = _read_only(batches.order)
    samples = EpochSamples(order, _read_only(y[order]), _read_only(weight[order]), batches.s, batches.q, batches.q_last)
    intercept = Intercept(state.intercept, state.intercept_velocity, o.fit_intercept)
    loss = LOSSES.index(o.loss)
    with announced():
        if sparse.issparse(X):
            rows = tuple(map(_read_only, (X.data, X.indices, X.indptr)))
            modes = _modes(lr, o) or Modes(*[0.0] * 6)
            correct = sparse_epoch(rows, samples, state.memory, intercept, report, numbers, loss, modes)
        else:
            correct = dense_epoch(_read_only(X), samples, state.memory, intercept, report, numbers, loss)
    if correct < 0:
        check_finite(losses[:-correct], 0, "train_epoch")
    return Epoch(losses, kept, correct)


def _read_only(array: Array) -> Array:
    """A read-only view: numba compiles once per kind of array, and some input is read-only."""
    view = array.view()
    view.flags.writeable = False
    return view


def _modes(lr: float, objective: Objective) -> Modes | None:
    """The eigenvalues and eigenvectors of A = [[1 - lr l2, -lr mu], [l2, mu]]; None if they are of no use."""
    mu, l2 = objective.momentum, objective.l2
    trace = 1 + mu - lr * l2
    root = trace * trace - 4 * mu
    # Near a double eigenvalue the directions are almost the same; a negative one comes with a useless learning rate.
    if objective.l1 > 0 or trace <= 0 or root <= (0.1 * (1 - mu)) ** 2:
        return None
    first = (trace + root**0.5) / 2
    v_of_w, w_of_v = l2 / (first - mu), lr * mu / (first - mu)
    det = 1 - v_of_w * w_of_v
    if mu == 0:  # this direction vanishes after one step
        return Modes(first, 1.0, v_of_w, 0.0, -lr, 0.0)
    return Modes(first, mu / first, v_of_w, w_of_v, -(lr + w_of_v) / det, (1 + v_of_w * lr) / det)
