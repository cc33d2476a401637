"""What is remembered of every sample of a training set, and which samples of a batch are likely to be the hardest.

The loss of each sample is kept as a running mean that forgets fast. Of a batch, `pick` takes the samples with the
largest remembered losses, the candidates, and some of the others at random, the probes.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ordered_sgd.engines.phases import Right, which_right
from ordered_sgd.selection import random_rows, top_rows, widen

FRESH = 0.7  # of the newest loss in what is remembered: one view or dropout mask says less than two (docs/memory.md)
PROBES = 4  # random others that are scored with the candidates
SPARE = 8  # room grows by at least one part in so many: samples that come in order must not copy it every time


class RememberedLosses:
    """The remembered loss of every sample, by its number in the training set.

    Parameters
    ----------
    samples
        How many there are so far: their numbers are below. `reserve` makes room for more.
    fresh
        Share of the newest loss in what is remembered.

    Examples
    --------
    >>> remembered = RememberedLosses(3)
    >>> remembered.take(torch.tensor([0, 2]), torch.tensor([1.0, 4.0]))
    >>> remembered.of(torch.tensor([2, 1, 0]))
    tensor([4., inf, 1.])
    >>> remembered.take(torch.tensor([0]), torch.tensor([2.0]))
    >>> remembered.of(torch.tensor([0]))
    tensor([1.7000])
    """

    def __init__(self, samples: int = 0, fresh: float = FRESH) -> None:
        self.fresh = fresh
        self.samples = samples
        self._losses = _never_seen(samples)  # with room for more

    @property
    def nbytes(self) -> int:
        """Bytes that are held, the spare room included."""
        return self._losses.nbytes

    def of(self, index: Tensor) -> Tensor:
        """The remembered losses of samples, float32; infinite for one that was never seen."""
        return self._losses.index_select(0, index)

    def take(self, index: Tensor, losses: Tensor) -> None:
        """Take new losses of samples, each at most once, into their running means."""
        before, values = self.of(index), losses.float()
        values = torch.where(before.isfinite(), (1 - self.fresh) * before + self.fresh * values, values)
        # a loss that is not finite tells nothing: as if the sample had not been seen
        self._losses.index_copy_(0, index, torch.where(values.isfinite(), values, torch.inf))

    @property
    def seen(self) -> int:
        """How many samples have been seen."""
        return int(self._losses.isfinite().sum())

    @property
    def mean(self) -> float:
        """The mean of what is remembered; 0 before the first loss."""
        seen = self._losses[self._losses.isfinite()]
        return float(seen.mean()) if seen.shape[0] else 0.0

    def resize(self, samples: int) -> None:
        """Forget the samples from this number on, or make room for as many; nothing moves if the number is the same."""
        if samples != self._losses.shape[0]:
            kept = self._losses[:samples]
            self._losses = torch.cat([kept, kept.new_full((samples - kept.shape[0],), torch.inf)])
        self.samples = samples

    def reserve(self, samples: int, device: torch.device) -> None:
        """Have room for at least so many samples, on a device; a few more, so that the next ones need no copy."""
        self.samples = max(self.samples, samples)
        room = self._losses.shape[0]
        if self.samples > room:
            more = _never_seen(max(self.samples, room + room // SPARE) - room).to(device)
            self._losses = torch.cat([self._losses.to(device), more])
        self._losses = self._losses.to(device)

    def state_dict(self) -> dict[str, Tensor]:
        """The remembered losses, without spare room."""
        return {"losses": self._losses[: self.samples].clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self._losses = state["losses"].clone()
        self.samples = self._losses.shape[0]


def _never_seen(samples: int) -> Tensor:
    return torch.full((samples,), torch.inf, dtype=torch.float32)


def memory_bytes(samples: int) -> int:
    """Bytes that the remembered losses of so many samples take at most; the saved state takes 4 a sample.

    >>> memory_bytes(10**6), memory_bytes(10**8)
    (4500000, 450000000)
    """
    return 4 * (samples + samples // SPARE)


class Part(NamedTuple):
    """What is scored of a batch.

    Parameters
    ----------
    scored, probes
        Positions of candidates and probes, ascending, and which of them are probes.
    outside
        For each position of the batch, whether it is no candidate.
    """

    scored: Tensor
    probes: Tensor
    outside: Tensor

    def mean(self, losses: Tensor, remembered: Tensor) -> Tensor:
        """Estimate of the batch's mean, unbiased: the remembered losses outside, corrected by the probes' error."""
        values, guesses = widen(losses), remembered.to(widen(losses).dtype)
        errors = values - torch.where(self.probes, guesses.index_select(0, self.scored), 0.0)
        return (self._total(errors) + guesses[self.outside].sum()) / self.outside.shape[0]

    def correct(self, right: Right) -> Tensor | None:
        """Estimate of the right answers in the batch, unbiased: those outside are as often right as the probes."""
        found = which_right(right)
        return None if found is None else self._total(found.float())

    def _total(self, values: Tensor) -> Tensor:
        """The sum of the candidates' values, and of the probes' scaled to all outside."""
        weight = self.outside.sum() / self.probes.sum()
        return torch.where(self.probes, weight * values, values).sum()


def pick(remembered: Tensor, c: int, probes: int, generator: torch.Generator) -> Part:
    """The c samples with the largest remembered losses, ties to the lower position, and `probes` random others.

    >>> part = pick(torch.tensor([0.1, torch.inf, 0.3, 0.2]), 2, 1, torch.Generator().manual_seed(0))
    >>> part.outside
    tensor([ True, False, False,  True])
    >>> part.scored.shape, int(part.probes.sum())
    (torch.Size([3]), 1)
    """
    s = remembered.shape[0]
    candidates = top_rows(remembered, c)
    outside = torch.ones(s, dtype=torch.bool, device=remembered.device).index_fill_(0, candidates, False)
    drawn = random_rows(max(s - c, 0), probes, generator).to(outside.device)
    every = outside.to(torch.uint8).sort(descending=True, stable=True).indices  # those outside come first
    others = every.index_select(0, drawn)  # without `nonzero`, which waits for the device
    scored = torch.cat([candidates, others]).sort().values
    return Part(scored, outside.index_select(0, scored), outside)
