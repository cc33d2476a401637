"""How lines 4 and 5 of Algorithm 1 are computed.

An engine is built once with the model and ``score(batch)``, which gives the losses of a batch, shape (s,), with their
graph, and which answers are right. It is then called for each mini-batch,
``engine(batch, keeps_all, choose, backward)``, and leaves the gradient of the ordered loss in the parameters:

- ``keeps_all`` says that q will keep the whole batch as far as is known, which is the plain step for every engine;
- ``choose(losses, right)`` gives the positions to keep, or None when the step is to be skipped. Over several ranks
  these are the ones of this rank: there may be none of them, and no samples either;
- ``backward(losses, rows)`` back-propagates the sum over the given rows (None: all) of losses / q, with loss scaling
  where it is used; q is what was chosen last.

``parallel`` says how the model shares gradients with other ranks (``engines/parallel.py``): every engine runs one pass
``parallel.through(score, batch)`` in each step and back-propagates it, or abandons it.

Its attribute ``why`` says why another way of computing ran than its name promises, or is None.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from torch import Tensor

# Which answers are right, shape (s,), or a function that tells when somebody asks; None where nobody can tell.
Right = Tensor | Callable[[], Tensor | None] | None


def which_right(right: Right) -> Tensor | None:
    """Which answers are right, found out now if need be."""
    return right() if callable(right) else right


def count_right(right: Right) -> Tensor | None:
    """The number of right answers."""
    found = which_right(right)
    return None if found is None else found.sum()


class Scored(NamedTuple):
    """Losses of a batch with their graph, and which answers are right."""

    losses: Tensor
    right: Right


class Computed(NamedTuple):
    """What an engine found, detached.

    All losses, the kept positions (None: skipped), which answers are right, what ran, and what is only an estimate.
    """

    losses: Tensor
    rows: Tensor | None
    right: Right
    engine: str
    estimate: "PartlyScored | None" = None


class PartlyScored(NamedTuple):
    """What an engine with a memory did not compute.

    Parameters
    ----------
    scored
        Positions that were scored, ascending; None: all. The losses of the others are remembered ones.
    mean_loss
        Gives the estimate of the batch's mean; None where all were scored.
    correct
        Gives the estimate of the number of right answers; None where all were scored.
    recall
        The share of the truly kept samples that such a step finds, as far as is known; 1 where all were scored.
    """

    scored: Tensor | None
    mean_loss: Callable[[], Tensor] | None
    correct: Callable[[], Tensor | None] | None
    recall: float | None


Score = Callable[[Any], Scored]
Choose = Callable[[Tensor, Right], Tensor | None]
Backward = Callable[[Tensor, Tensor | None], None]


class Engine(Protocol):
    """What every engine offers."""

    why: str | None

    def __call__(self, batch: Any, keeps_all: bool, choose: Choose, backward: Backward) -> Computed:
        """The gradient of the ordered loss of one batch."""
