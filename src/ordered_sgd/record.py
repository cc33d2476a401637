"""What one update did."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ordered_sgd.selection import mean, mean_of_rows


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What one update did. Tensors are detached and stay on the device: a record waits for nothing.

    Over several ranks (``OrderedStep(..., group=...)``) `losses` and `rows` are those of this rank; q, count, both
    means and the right answers are of all ranks together, and the same on each.

    Parameters
    ----------
    q : int
        Samples kept; 0 when the update was skipped.
    count : int
        Samples in the batch.
    engine : str
        How the gradient was computed: an engine's name, ``"rows in part"`` where only some pieces of the model skipped
        samples, ``"micro-batches, regrouped"``, or ``"micro-batches"`` where they ran whole.
    losses : Tensor
        All losses, shape (s,).
    rows : Tensor
        Kept positions, ascending.
    scored : Tensor or None, default=None
        Positions that were scored, ascending, where ``engine="memory"`` left some out; None: all were. The losses of
        the others are remembered ones, and `mean_loss` and `correct` are then estimates, without bias.
    recall : float or None, default=None
        Of ``engine="memory"``: the share of the q largest losses that a step like this one finds, as measured lately;
        1 where the whole batch was scored, None before the first measurement and for every other engine.
    """

    q: int
    count: int
    engine: str
    losses: Tensor = field(repr=False)
    rows: Tensor = field(repr=False)
    _correct: Tensor | Callable[[], Tensor | None] | None = field(repr=False)
    _bad: Tensor | None = field(repr=False)
    _all: tuple[Tensor, Tensor] | None = field(default=None, repr=False)  # losses and kept positions of all ranks
    scored: Tensor | None = field(default=None, repr=False)
    recall: float | None = None
    _mean: Callable[[], Tensor] | None = field(default=None, repr=False)

    @property
    def estimated(self) -> bool:
        """Whether `mean_loss` and `correct` are estimates, because only some samples were scored."""
        return self.scored is not None

    @property
    def ordered_loss(self) -> Tensor:
        """Mean of the kept losses: what was minimised. NaN when the update was skipped."""
        if self._all is not None:
            return mean_of_rows(*self._all)
        mean = mean_of_rows(self.losses, self.rows)
        return mean if self._bad is None else torch.where(self._bad > 0, torch.nan, mean)

    @property
    def mean_loss(self) -> Tensor:
        """Plain mean over the batch: what people compare; an estimate where only some samples were scored."""
        if self._mean is not None:
            return self._mean()
        return mean(self.losses if self._all is None else self._all[0])

    @property
    def correct(self) -> Tensor | None:
        """Right answers in the batch, where outputs (s, C) and integer targets (s,) allow to count them.

        Where only some samples were scored, an estimate: not a whole number.
        """
        return self._correct() if callable(self._correct) else self._correct
