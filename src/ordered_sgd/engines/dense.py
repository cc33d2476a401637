"""The one-liner: one forward and one backward over the whole batch. The reference that every other engine equals."""

from typing import Any

from torch import nn

from ordered_sgd.engines import Backward, Choose, Computed, Score
from ordered_sgd.engines.parallel import OneProcess


class Dense:
    """The gradient of the ordered loss as autograd computes it."""

    why: str | None = None

    def __init__(self, model: nn.Module, score: Score, parallel: OneProcess | None = None) -> None:
        self.score = score
        self.parallel = parallel or OneProcess(model)

    def __call__(self, batch: Any, keeps_all: bool, choose: Choose, backward: Backward) -> Computed:
        """Lines 4 and 5 for one batch."""
        losses, right = self.parallel.through(self.score, batch)
        values = losses.detach()
        rows = choose(values, right)
        if rows is None:
            self.parallel.abandon(losses)
        else:
            backward(losses, rows)
        return Computed(values, rows, right, "dense")
