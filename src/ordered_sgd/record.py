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
        Samples kept; 0 when the update was skipped, or every target is the ignored one.
    count : int
        Samples in the batch that count: those with the ignored target do not.
    engine : str
        How the gradient was computed: an engine's name, ``"rows in part"`` where only some pieces of the model skipped
        samples, ``"micro-batches, regrouped"``, or ``"micro-batches"`` where they ran whole.
    losses : Tensor
        All losses, shape (s,), those of samples with the ignored target among them.
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
    _present: Tensor | None = field(default=None, repr=False)  # positions of the samples that count; None: all

    def to_dict(self) -> dict[str, float | int | str]:
        """Plain numbers and the engine's name, for any logger; reads from the device once.

        ``q``, ``count``, ``engine``, ``ordered_loss`` and ``mean_loss``; ``correct`` and ``recall`` where known.
        The q of an update that the device skipped, because a loss was not finite, is 0.

        Examples
        --------
        >>> from ordered_sgd import OrderedStep
        >>> model = torch.nn.Linear(1, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        >>> step = OrderedStep(model, torch.nn.MSELoss(reduction="none"), optimizer, q=1)
        >>> list(step(torch.ones(4, 1), torch.zeros(4, 1)).to_dict())
        ['q', 'count', 'engine', 'ordered_loss', 'mean_loss']
        """
        losses, correct, skipped = [self.ordered_loss, self.mean_loss], self.correct, self._bad
        dtype = losses[0].dtype  # in float32 whole numbers up to 2**24 are exact
        read = [value.to(dtype) for value in (*losses, correct, skipped) if value is not None]
        ordered, mean_loss, *others = torch.stack(read).tolist()
        bad = others.pop() if skipped is not None else 0.0
        found: dict[str, float | int | str] = {"q": 0 if bad else self.q, "count": self.count, "engine": self.engine}
        found |= {"ordered_loss": ordered, "mean_loss": mean_loss}
        if correct is not None:
            found["correct"] = others[0] if correct.is_floating_point() else int(others[0])
        if self.recall is not None:
            found["recall"] = self.recall
        return found

    @property
    def estimated(self) -> bool:
        """Whether `mean_loss` and `correct` are estimates, because only some samples were scored."""
        return self.scored is not None

    @property
    def ordered_loss(self) -> Tensor:
        """Mean of the kept losses: what was minimised. NaN when the update was skipped, or nothing was kept."""
        if self._all is not None:
            return mean_of_rows(*self._all)
        mean = mean_of_rows(self.losses, self.rows)
        return mean if self._bad is None else torch.where(self._bad > 0, torch.nan, mean)

    @property
    def mean_loss(self) -> Tensor:
        """Plain mean over the batch: what people compare; an estimate where only some samples were scored."""
        if self._mean is not None:
            return self._mean()
        if self._all is not None:
            return mean(self._all[0])
        return mean(self.losses) if self._present is None else mean_of_rows(self.losses, self._present)

    @property
    def correct(self) -> Tensor | None:
        """Right answers in the batch, where outputs (s, C) and integer targets (s,) allow to count them.

        Where only some samples were scored, an estimate: not a whole number.
        """
        return self._correct() if callable(self._correct) else self._correct
