"""Baselines that choose samples before anything is computed, by the losses of the last time they were trained on.

- ``"infobatch"``: the rule of InfoBatch (Qin et al., 2024). A sample whose last loss is below the mean of all is
  dropped with probability 1/2; one that stays counts twice, so that the expected gradient is that of all samples. In
  the last eighth of the epochs nothing is dropped, as published. There samples are dropped from the epoch and batches
  stay full; here they are dropped from their batch, which is then smaller.
- ``"last-losses"``: the q samples of a batch with the largest last losses, without any scoring: only what is trained on
  gets a new one. It repeats the q of an ordered run, for what it computes tells nothing of the accuracy.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ordered_sgd.lab.experiments.spec import ExperimentSpec
from ordered_sgd.record import StepRecord
from ordered_sgd.selection import select_rows, top_rows
from ordered_sgd.step import OrderedStep

DROPPED = 0.5  # probability, for a sample of small loss
ANNEALED = 0.875  # share of the epochs after which nothing is dropped


class Picked(NamedTuple):
    """Positions in a batch, ascending, and the weight of each in the mean; None: all alike."""

    rows: Tensor
    weight: Tensor | None = None


class Baseline:
    """A step that chooses by remembered losses, and trains on what it chose.

    Parameters
    ----------
    spec, n
        Of the run, and the size of its training set.
    step
        Keeps all of what it is given.
    """

    def __init__(self, spec: ExperimentSpec, n: int, step: OrderedStep) -> None:
        self.spec, self.step = spec, step
        self.losses = torch.full((n,), torch.inf)  # infinite: never seen
        self.generator = torch.Generator().manual_seed(spec.seed)

    def __call__(self, x: Tensor, y: Tensor, index: Tensor, epoch: int) -> StepRecord:
        """One update; `epoch` is counted from 1. Losses that were not computed are remembered ones in the record."""
        remembered, s = self.losses[index], index.shape[0]
        rows, weight = self._choose(remembered, epoch)
        record = self.step(select_rows(x, 0, rows), select_rows(y, 0, rows), sample_weight=weight)
        found = record.losses if weight is None else record.losses / weight
        self.losses[index[rows]] = found
        losses = remembered.index_copy(0, rows, found)
        losses = torch.where(losses.isfinite(), losses, found.mean())
        return StepRecord(rows.shape[0], s, record.engine, losses, rows, None, None)

    def _choose(self, remembered: Tensor, epoch: int) -> Picked:
        if self.spec.method == "last-losses":
            return last_losses(remembered, self.spec.path[epoch - 1][0])
        if epoch > ANNEALED * self.spec.epochs:
            return Picked(torch.arange(remembered.shape[0]))
        seen = self.losses[self.losses.isfinite()]
        return infobatch(remembered, float(seen.mean()) if len(seen) else 0.0, self.generator)

    def state_dict(self) -> dict[str, Any]:
        """What is remembered, and what is drawn next."""
        return {"losses": self.losses.clone(), "generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self.losses.copy_(state["losses"])
        self.generator.set_state(state["generator"])


def baseline_for(spec: ExperimentSpec, n: int, step: OrderedStep) -> Baseline | None:
    """The baseline that a spec names; None for the other methods."""
    return Baseline(spec, n, step) if spec.method in ("infobatch", "last-losses") else None


def last_losses(remembered: Tensor, q: int) -> Picked:
    """The q largest remembered losses.

    >>> last_losses(torch.tensor([0.5, 2.0, 1.0]), 2).rows
    tensor([1, 2])
    """
    return Picked(top_rows(remembered, q))


def infobatch(remembered: Tensor, mean: float, generator: torch.Generator) -> Picked:
    """What is left when losses below the mean are dropped by chance; of them, those left count 1 / (1 - `DROPPED`).

    The weights are such that the mean over what is left is, in expectation, the mean over the batch.

    >>> chosen = infobatch(torch.tensor([0.1, 3.0, 0.1, 0.1]), 1.0, torch.Generator().manual_seed(4))
    >>> chosen.rows, chosen.weight
    (tensor([0, 1]), tensor([1.0000, 0.5000]))
    """
    s, easy = remembered.shape[0], remembered < mean
    left = ~easy | (torch.rand(s, generator=generator) >= DROPPED)
    if not bool(left.any()):
        left[0] = True  # a step needs a sample: once in 2**s batches
    rows = left.nonzero().squeeze(1)
    weight = torch.where(easy[rows], 1 / (1 - DROPPED), 1.0) * (rows.shape[0] / s)
    return Picked(rows, weight)
