"""The one-liner: one forward and one backward over the whole batch. The reference that every other engine equals."""

from typing import Any

from ordered_sgd.core.engines import Backward, Choose, Computed, Score
from ordered_sgd.core.selection import mean_of_rows


def dense(batch: Any, score: Score, choose: Choose, backward: Backward) -> Computed:
    """The gradient of the ordered loss of one batch, as autograd computes it."""
    losses, correct = score(batch)
    rows = choose(losses.detach())
    if rows is not None:
        backward(mean_of_rows(losses, rows))
    return Computed(losses.detach(), rows, correct)
