"""The one-liner: one forward and one backward over the whole batch. The reference that every other engine equals."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ordered_sgd.engines.parallel import OneProcess
from ordered_sgd.engines.phases import Ahead, Computed, Kept, Losses, Parts, Right, Stateless


@dataclass(frozen=True)
class Dense:
    """Back-propagate through the whole batch.

    Examples
    --------
    >>> Dense()
    Dense()
    """

    def build(self, parts: Parts) -> "DenseEngine":
        """The engine of one training."""
        return DenseEngine(parts)


class DenseEngine(Stateless):
    """The gradient of the ordered loss as autograd computes it."""

    why: str | None = None

    def __init__(self, parts: Parts) -> None:
        self.score, self.parallel = parts.score, parts.parallel

    def forward(self, batch: Any, ahead: Ahead) -> "DenseScored":
        """The losses of one batch with their graph."""
        return DenseScored.of(self.parallel.through(self.score, batch), self.parallel)


@dataclass(frozen=True)
class DenseScored:
    """Losses with their graph."""

    graph: Tensor
    losses: Tensor
    right: Right
    parallel: OneProcess
    scores: Tensor | None = None
    positions: None = None

    @classmethod
    def of(cls, found: Losses, parallel: OneProcess) -> "DenseScored":
        """What a pass gave."""
        return cls(found.losses, found.losses.detach(), found.right, parallel, found.ordered_by())

    def backward(self, kept: Kept) -> Computed:
        """Back-propagate through the whole batch."""
        kept.pull(self.graph, kept.rows)
        return Computed(self.losses, kept.rows, self.right, "dense")

    def abandon(self) -> Computed:
        """Leave the pass."""
        self.parallel.abandon(self.graph)
        return Computed(self.losses, None, self.right, "dense")
