"""The objective of a linear model, its weights, and what an epoch reports; for the reference and the kernels.

Scores are ``a = W x + b`` with K columns: one for a regression or two classes (positive means the second class), and
one per class if there are more. The objective is the mean of the q largest losses of a mini-batch, plus
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
    loss : str, default="log_loss"
        ``"log_loss"``: cross-entropy of the softmax, with one column ``log(1 + exp(-+a))``. ``"hinge"``: the sum over
        the other classes of ``max(0, 1 + a_j - a_y)``, with one column ``max(0, 1 -+ a)``. With ``r = a - y``,
        ``"squared_error"`` is ``r^2 / 2``, ``"absolute_error"`` is ``|r|``, and ``"huber"`` is ``r^2 / 2`` up to
        ``|r| = epsilon`` and ``epsilon |r| - epsilon^2 / 2`` beyond.
    l2 : float, default=0.0
        Factor of the L2 penalty. Its gradient is added to that of the losses, like the weight decay of
        `torch.optim.SGD`.
    l1 : float, default=0.0
        Factor of the L1 penalty, a proximal step as in `ordered_sgd.optim.ProximalSGD`.
    l2_intercept : float, default=0.0
        Factor of the L2 penalty on b. scikit-learn does not penalize the intercept; torch's weight decay of all
        parameters is ``l2_intercept=l2``.
    momentum : float, default=0.0
        ``v = momentum v + g; w = w - lr v``, as in torch.
    fit_intercept : bool, default=True
        Whether b is trained.
    epsilon : float, default=1.0
        Where the Huber loss becomes linear.
    input_scale : float, default=1.0
        Factor applied to the inputs as they are read: 1 / 255 for bytes.
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
    """Weights and their momentum, updated in place by an epoch.

    Parameters
    ----------
    memory : ndarray
        Weights and momentum in one array: shape (2, K, d) for dense rows; (d, 2, K) for sparse rows, so that everything
        for one input column is read at once, with K rounded up to a multiple of 8 unless it is 1. An epoch without
        momentum leaves the momentum undefined.
    intercept : ndarray of shape (K,)
        Intercepts.
    intercept_velocity : ndarray of shape (K,)
        Momentum of the intercepts.
    by_column : bool, default=False
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
    """Batches of an epoch: `order` in pieces of s, keeping `q` of each and `q_last` of a smaller last piece."""

    order: Array
    s: int
    q: int
    q_last: int
    keys: Array | None = None  # (n,), non-negative: selects the q largest keys instead of losses

    @property
    def last(self) -> int:
        """The size of the last piece."""
        return len(self.order) - (len(self.order) - 1) // self.s * self.s


class Epoch(NamedTuple):
    """Results of an epoch, in the order of its samples: weighted losses, which were kept, and the number correct.

    A sample is correct if its class has the largest score, the lower class in a tie; in a regression none is.
    """

    losses: Array
    kept: NDArray[np.bool_]
    correct: int

    @property
    def ordered_loss(self) -> float:
        """Mean of the kept losses, which the epoch minimises."""
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
