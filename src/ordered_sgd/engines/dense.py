"""The one-liner: one forward and one backward over the whole batch. The reference that every other engine equals."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ordered_sgd.engines import Ahead, Computed, Kept, Right, Score, Stateless
from ordered_sgd.engines.parallel import OneProcess


class Dense(Stateless):
    """The gradient of the ordered loss as autograd computes it."""

    why: str | None = None

    def __init__(self, model: nn.Module, score: Score, parallel: OneProcess | None = None) -> None:
        self.score = score
        self.parallel = parallel or OneProcess(model)

    def forward(self, batch: Any, ahead: Ahead) -> "DenseScored":
        """The losses of one batch with their graph."""
        losses, right = self.parallel.through(self.score, batch)
        return DenseScored(losses, losses.detach(), right, self.parallel)


@dataclass(frozen=True)
class DenseScored:
    """Losses with their graph."""

    graph: Tensor
    losses: Tensor
    right: Right
    parallel: OneProcess
    positions: None = None

    def backward(self, kept: Kept) -> Computed:
        """Back-propagate through the whole batch."""
        kept.pull(self.graph, kept.rows)
        return Computed(self.losses, kept.rows, self.right, "dense")

    def abandon(self) -> Computed:
        """Leave the pass."""
        self.parallel.abandon(self.graph)
        return Computed(self.losses, None, self.right, "dense")
