"""How lines 4 and 5 of Algorithm 1 are computed.

An engine is a function ``engine(batch, score, choose, backward) -> Computed`` that leaves the gradient of the ordered
loss in the parameters:

- ``score(batch)`` gives the losses of a batch, shape (s,), with their graph, and how many answers are right;
- ``choose(losses)`` gives the positions to keep, or None when the step is to be skipped;
- ``backward(loss)`` back-propagates, with loss scaling where it is used.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor


class Scored(NamedTuple):
    """Losses of a batch with their graph, and how many answers are right (None where that cannot be counted)."""

    losses: Tensor
    correct: Tensor | None


class Computed(NamedTuple):
    """What an engine found, detached: all losses, the kept positions (None: skipped), and the right answers."""

    losses: Tensor
    rows: Tensor | None
    correct: Tensor | None


Score = Callable[[Any], Scored]
Choose = Callable[[Tensor], Tensor | None]
Backward = Callable[[Tensor], None]
Engine = Callable[[Any, Score, Choose, Backward], Computed]
