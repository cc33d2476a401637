"""What a linear model minimises, the weights that move, and what an epoch reports; for the reference and the kernels.

Scores are ``a = W x + b``, one for each column of K: one for a regression or for two classes (positive means the second
class), one for each class when there are more. The objective is the mean of the q largest losses of a mini-batch, plus
``l2 / 2 |W|^2 + l1 |W|_1``.
"""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ordered_sgd.errors import ArgumentError, check_choice, message

Array = NDArray[Any]
Loss = Literal["log_loss", "hinge", "squared_error", "huber", "absolute_error"]
LOSSES: tuple[Loss, ...] = ("log_loss", "hinge", "squared_error", "huber", "absolute_error")


@dataclass(frozen=True)
class Objective:
    """The loss, the penalty and the momentum of a training.

    Parameters
    ----------
    loss
        ``"log_loss"``: cross-entropy of the softmax, with one column ``log(1 + exp(-+a))``. ``"hinge"``: the sum over
        the other classes of ``max(0, 1 + a_j - a_y)``, with one column ``max(0, 1 -+ a)``. With ``r = a - y``:
        ``"squared_error"`` is ``r^2 / 2``, ``"absolute_error"`` ``|r|``, and ``"huber"`` the first where ``|r|`` is at
        most `epsilon` and ``epsilon |r| - epsilon^2 / 2`` beyond.
    l2, l1
        Factors of the penalty. The gradient of the first is added to that of the losses, as `torch.optim.SGD` does
        with its weight decay; the second is a proximal step, as in `ordered_sgd.optim.ProximalSGD`.
    l2_intercept
        The same as l2 for b. scikit-learn leaves the intercept alone, hence 0; torch's weight decay of all parameters
        is ``l2_intercept=l2``.
    momentum
        ``v = momentum v + g; w = w - lr v``, as in torch.
    fit_intercept
        Whether b moves.
    epsilon
        Where the Huber loss turns from a parabola into a line.
    input_scale
        What the inputs are multiplied with when they are read: 1 / 255 for bytes.
    """

    loss: Loss = "log_loss"
    l2: float = 0.0
    l1: float = 0.0
    l2_intercept: float = 0.0
    momentum: float = 0.0
    fit_intercept: bool = True
    epsilon: float = 1.0
    input_scale: float = 1.0

    def __post_init__(self) -> None:
        check_choice("Objective", "loss", self.loss, LOSSES)


@dataclass
class State:
    """Weights and their momentum, which an epoch changes in place.

    Parameters
    ----------
    memory
        Weights and momentum in one array: shape (2, K, d) for dense rows; (d, 2, K) for sparse ones, where all that
        belongs to a column of the input is read at once, with K rounded up to a multiple of 8 unless it is 1. Momentum
        is left undefined by an epoch that uses none.
    intercept, intercept_velocity
        Shape (K,).
    by_column
        Whether the memory is laid out for sparse rows.

    Examples
    --------
    >>> state = State.start(np.ones((3, 4)), np.zeros(3), by_column=True)
    >>> state.coef.shape, state.velocity.shape, state.memory.shape
    ((3, 4), (3, 4), (4, 2, 8))
    """

    memory: Array
    intercept: Array
    intercept_velocity: Array
    by_column: bool = False

    @classmethod
    def start(
        cls,
        coef: Array,
        intercept: Array,
        *,
        by_column: bool = False,
        velocity: tuple[Array, Array] | None = None,
    ) -> "State":
        """A state with copies of these weights, shape (K, d), and intercepts; without momentum unless it is given."""
        columns, features = coef.shape
        wide = columns if columns == 1 else -(-columns // 8) * 8
        memory = np.zeros((features, 2, wide) if by_column else (2, columns, features), coef.dtype)
        state = cls(memory, intercept.astype(coef.dtype), np.zeros(columns, coef.dtype), by_column)
        state.coef[:] = coef
        if velocity is not None:
            state.velocity[:], state.intercept_velocity[:] = velocity
        return state

    @property
    def coef(self) -> Array:
        """The weights W, shape (K, d): a view of the memory."""
        return self.memory[:, 0, : len(self.intercept)].T if self.by_column else self.memory[0]

    @property
    def velocity(self) -> Array:
        """The momentum of W, shape (K, d): a view of the memory."""
        return self.memory[:, 1, : len(self.intercept)].T if self.by_column else self.memory[1]


class Batches(NamedTuple):
    """How an epoch is cut: `order` into pieces of s, of which `q` are kept, `q_last` of a smaller last piece."""

    order: Array
    s: int
    q: int
    q_last: int
    keys: Array | None = None  # (n,), not negative, in the place of the losses when the q largest are looked for

    @property
    def last(self) -> int:
        """The size of the last piece."""
        return len(self.order) - (len(self.order) - 1) // self.s * self.s


class Epoch(NamedTuple):
    """What an epoch showed, sample by sample in its order: losses (weighted), which were kept; and how many were right.

    A sample is right when its class has the largest score, the lower class in a tie; nothing is right in a regression.
    """

    losses: Array
    kept: NDArray[np.bool_]
    correct: int

    @property
    def ordered_loss(self) -> float:
        """Mean of the kept losses: what was minimised."""
        return float(self.losses.sum(where=self.kept, dtype=np.float64) / np.count_nonzero(self.kept))

    @property
    def mean_loss(self) -> float:
        """Mean of all losses."""
        return float(self.losses.mean(dtype=np.float64))


def check_batches(batches: Batches, where: str) -> None:
    """Raise unless the batches can be trained on."""
    n = len(batches.order)
    if not 1 <= batches.s <= n:
        raise ArgumentError(message(where, "s", f"be between 1 and n = {n}", batches.s, "Clip it to n."))
    if not 1 <= batches.q <= batches.s or not 1 <= batches.q_last <= batches.last:
        got, rule = f"q={batches.q}, q_last={batches.q_last}", "be between 1 and the size of their batches"
        raise ArgumentError(message(where, "q and q_last", rule, got, "Use rules.resolve_q."))
    if batches.keys is not None and not (len(batches.keys) == n and (np.asarray(batches.keys) >= 0).all()):
        rule, remedy = "be one number of at least 0 for each sample", "Pass rng.random(n) for a random choice."
        raise ArgumentError(message(where, "keys", rule, repr(batches.keys), remedy))
