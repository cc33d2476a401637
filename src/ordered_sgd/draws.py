"""What a batch sampler draws: the order of an epoch, its audits, and one batch with what is left out of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ordered_sgd.engines.audits import audits_of, stretch_of
from ordered_sgd.engines.phases import KeptRanks
from ordered_sgd.engines.remembered import Part
from ordered_sgd.selection import widen
from ordered_sgd.shuffled import hashed, shuffled

_AHEAD = 64  # batches whose order is computed at once: NumPy's cost per call is then shared
_ORDER, _AUDITS, _OTHERS = range(3)  # what random numbers are for


@dataclass(frozen=True)
class Cut:
    """How an epoch is cut into batches: every rank has its own samples, and all ranks equally many batches.

    Rank r of R has the samples r, r + R, r + 2R, ...; their number in this list is their slot.

    >>> [Cut(n=9, s=4, rank=rank, ranks=2).batches for rank in (0, 1)]
    [2, 2]
    """

    n: int
    s: int
    rank: int = 0
    ranks: int = 1
    drop_last: bool = False
    seed: int = 0

    @property
    def slots(self) -> int:
        """The samples of this rank."""
        return max(0, -((self.rank - self.n) // self.ranks))

    @property
    def batches(self) -> int:
        """Batches of an epoch, the same on every rank."""
        if self.drop_last:
            return self.n // self.ranks // self.s
        most = -(-self.n // self.ranks)  # samples of the rank that has most
        return -(-most // self.s)

    @property
    def audits(self) -> int:
        """How many audits the recall of an epoch rests on: those of one epoch, or a few more of a short one."""
        return audits_of(self.batches)

    def together(self, number: int) -> int:
        """How many samples all ranks draw for their batches of this number.

        >>> [Cut(n=9, s=4, ranks=2).together(number) for number in (0, 1)]
        [8, 2]
        """
        fewest, longer = divmod(self.n, self.ranks)  # so many ranks have one sample more
        sizes = [max(1, min(self.s, slots - number * self.s)) for slots in (fewest, fewest + 1)]
        return (self.ranks - longer) * sizes[0] + longer * sizes[1]

    def audited(self, epoch: int, number: int) -> bool:
        """Whether a batch is yielded whole to measure what is missed: one in each stretch of the epoch, at random.

        The place depends on nothing but the seed, and is the same on every rank.
        """
        stretch = stretch_of(self.batches)
        return number % stretch == hashed(self.seed, _AUDITS, epoch, number // stretch) % stretch

    def generator(self, epoch: int, number: int) -> torch.Generator:
        """The source of a batch's random choices."""
        return torch.Generator().manual_seed(hashed(self.seed, _OTHERS, epoch, number, self.rank))


class Order:
    """The order of an epoch, computed for some batches at a time."""

    def __init__(self, cut: Cut, epoch: int) -> None:
        self.cut, self.epoch = cut, epoch
        self._key = hashed(cut.seed, _ORDER, epoch, cut.rank)
        self._first, self._slots = 0, np.empty(0, np.int64)

    def slots(self, number: int) -> NDArray[np.int64]:
        """The samples of a batch, as slots.

        A rank that has one sample fewer than the others may have none left for the last batch: its first one comes
        again.
        """
        s, slots = self.cut.s, self.cut.slots
        start = number * s - self._first
        if not 0 <= start < len(self._slots):
            self._first, start = number * s, 0
            positions = np.arange(self._first, min(self._first + _AHEAD * s, slots))
            self._slots = shuffled(positions if len(positions) else np.zeros(1, np.int64), slots, self._key)
        return self._slots[start : start + s]


@dataclass(frozen=True)
class DrawnBatch:
    """A batch that was drawn: its samples, how many are to be kept, and which are loaded.

    Parameters
    ----------
    number
        Of the batch in its epoch.
    index
        The samples that were drawn, shape (s,): their positions in the data set.
    remembered
        Their losses when they were drawn; infinite for one never seen.
    kept
        Which of the ordered losses of all s are to be kept.
    part
        The candidates and some others at random; None where none are told apart.
    positions
        Which of the s are loaded, ascending; None: all.
    together
        How many samples were drawn by all ranks.
    weight
        How much each of those that are loaded counts in the mean over s; None: as `part` says.
    """

    number: int
    index: Tensor
    remembered: Tensor
    kept: KeptRanks
    part: Part | None
    positions: Tensor | None
    together: int
    weight: Tensor | None = None

    @classmethod
    def joined(cls, batches: "Sequence[DrawnBatch]", kept: KeptRanks) -> "DrawnBatch":
        """Several batches as one, of which so many samples are kept."""
        index, guesses = (torch.cat([getattr(b, name) for b in batches]) for name in ("index", "guesses"))
        whole = cls(batches[0].number, index, guesses, kept, None, None, sum(b.together for b in batches))
        if all(b.positions is None for b in batches):
            return whole
        starts = accumulate((b.s for b in batches[:-1]), initial=0)
        rows = torch.cat([b._rows + start for b, start in zip(batches, starts, strict=True)])
        counts = [torch.full(b.loaded.shape, b.s / len(b.loaded)) if b._counts is None else b._counts for b in batches]
        part = None
        if any(b.part is not None for b in batches):
            probes, outside = (torch.cat(parts) for parts in zip(*map(cls._left_out, batches), strict=True))
            part = Part(rows, probes, outside)
        return replace(whole, part=part, positions=rows, weight=torch.cat(counts) * (len(rows) / whole.s))

    @property
    def _rows(self) -> Tensor:
        """Which of the s are loaded."""
        return torch.arange(self.s) if self.positions is None else self.positions

    def _left_out(self) -> tuple[Tensor, Tensor]:
        """Which of those that are loaded stand for others, and which of the s are no candidates."""
        if self.positions is None or self.part is None:
            return torch.zeros(self._rows.shape, dtype=torch.bool), torch.zeros(self.s, dtype=torch.bool)
        return self.part.probes, self.part.outside

    @property
    def s(self) -> int:
        """How many were drawn."""
        return self.index.shape[0]

    @cached_property
    def loaded(self) -> Tensor:
        """The positions in the data set of those that are loaded."""
        return self.index if self.positions is None else self.index.index_select(0, self.positions)

    @cached_property
    def guesses(self) -> Tensor:
        """The remembered losses, with the mean of the others for one never seen."""
        seen = self.remembered.isfinite()
        return torch.where(seen, self.remembered, self.remembered[seen].mean() if bool(seen.any()) else 0.0)

    @cached_property
    def _counts(self) -> Tensor | None:
        """How much each of those that are loaded counts in a sum over s, shape (m,); None: as much as each other."""
        if self.weight is not None:
            return self.weight * (self.s / self.weight.shape[0])
        if self.positions is None or self.part is None:
            return None
        return torch.where(self.part.probes, self.part.outside.sum() / self.part.probes.sum(), 1.0)

    def losses(self, found: Tensor) -> Tensor:
        """The losses of all s: those that were found, and guesses for the others."""
        return found if self.positions is None else self.spread(found, self.guesses)

    def spread(self, found: Tensor, others: Tensor) -> Tensor:
        """Values of all s: those that were found for what was loaded, and those of the others."""
        if self.positions is None:
            return found
        return _there(others.to(found.dtype), found).index_copy(0, _there(self.positions, found), found)

    def mean(self, found: Tensor) -> Tensor:
        """The mean loss of all s, estimated without bias from the losses of those that were loaded."""
        counts = self._counts
        if counts is None:
            return widen(found).mean()
        if self.part is None:
            return self.total(found) / self.s
        # the guesses of those outside, corrected by what was found of some of them
        guesses = torch.where(self.part.probes, self.guesses.index_select(0, self.part.scored), 0.0)
        counts, guesses = _there(torch.stack([counts, guesses]), found).unbind()
        errors = (counts * (widen(found) - guesses)).sum()
        return (errors + float(self.guesses[self.part.outside].sum())) / self.s

    def total(self, found: Tensor) -> Tensor:
        """The sum over all s of a number that each has, estimated without bias from those that were loaded."""
        values = widen(found)
        if self._counts is None:
            return values.sum() * (self.s / values.shape[0])
        return (_there(self._counts, found) * values).sum()

    def correct(self, right: Tensor) -> Tensor:
        """How many of all s are right, estimated without bias from those that were loaded."""
        return self.total(right.float())

    def state_dict(self) -> dict[str, Any]:
        """Numbers and tensors."""
        state = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**state, "kept": list(self.kept), "part": None if self.part is None else list(self.part)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "DrawnBatch":
        """What `state_dict` was taken of."""
        part = None if state["part"] is None else Part(*state["part"])
        return cls(**{**state, "kept": KeptRanks(*state["kept"]), "part": part})


def _there(values: Tensor, like: Tensor) -> Tensor:
    """Values of the CPU where other ones are, without waiting for that device: from pinned memory."""
    if like.is_cuda:
        values = values.pin_memory()
    return values.to(like.device, non_blocking=True)
