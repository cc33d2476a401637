"""Lines 3 and 5 of Algorithm 1: how losses are computed, and the gradient of the kept ones without that of the others.

An engine works in two phases, and line 4 stands between them:

    scored = engine.forward(batch, ahead)   # line 3: the losses of a batch, with what their gradient needs
    kept = selector.choose(scored, ...)     # line 4
    computed = scored.backward(kept)        # line 5: leaves the gradient in the parameters; or scored.abandon()

A `Strategy` such as ``Rows(verify_every=50)`` is a value; ``strategy.build(parts)`` makes the engine of one training.
Every engine runs one pass ``parts.parallel.through(score, batch)`` per step and back-propagates it, or abandons it.
Results are returned: nothing is left on the engine between the two phases.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from ordered_sgd.engines.parallel import OneProcess
from ordered_sgd.rewind import Buffers
from ordered_sgd.selection import row_weights

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

# Which answers are right, shape (s,), or a function that tells when somebody asks; None where nobody can tell.
Right = Tensor | Callable[[], Tensor | None] | None


# What samples are ordered by instead of their losses, detached, shape (s,), or a function that computes it: once in a
# step, after the pass that scores the batch. None where samples are ordered by their losses.
Scores = Tensor | Callable[[], Tensor | None] | None


def which_right(right: Right) -> Tensor | None:
    """Which answers are right, found out now if need be."""
    return right() if callable(right) else right


def count_right(right: Right) -> Tensor | None:
    """The number of right answers."""
    found = which_right(right)
    return None if found is None else found.sum()


class Losses(NamedTuple):
    """Losses of a batch with their graph, which answers are right, and scores: what ``score(batch)`` gives."""

    losses: Tensor
    right: Right
    scores: Scores = None

    def ordered_by(self) -> Tensor | None:
        """The scores, computed now if need be: a pass that runs samples again does not ask for them."""
        return self.scores() if callable(self.scores) else self.scores


Score = Callable[[Any], Losses]


class KeptRanks(NamedTuple):
    """Which of the ordered losses of a batch are kept: the `q` largest after the `trim` largest."""

    q: int
    trim: int = 0

    @property
    def last(self) -> int:
        """The lowest place that is kept, counted from 1."""
        return self.q + self.trim


@dataclass(frozen=True)
class Ahead:
    """What is known of a step before its losses.

    Parameters
    ----------
    keeps_all
        Whether q will keep the whole batch, as far as is known: then every engine runs the plain step.
    ranks
        Which of the ordered losses will be kept; None where only the losses tell.
    index
        The numbers of the batch's samples in the training set, where the caller gave them.
    share
        The share of the batch that will be kept; over several ranks that of the largest batch so far, and the same on
        each. None where it is not known.
    """

    keeps_all: bool
    ranks: KeptRanks | None = None
    index: Tensor | None = None
    share: float | None = None


@dataclass(frozen=True)
class Kept:
    """The kept samples of a batch.

    Parameters
    ----------
    rows
        Their positions among the losses, ascending. Over several ranks those of this rank: there may be none.
    divisor
        What the sum of the kept losses is divided by: q, or over several ranks q divided by their number.
    scaler
        Scales the loss for float16 training, if given.
    """

    rows: Tensor
    divisor: float
    scaler: torch.amp.GradScaler | None = None

    def pull(self, losses: Tensor, rows: Tensor | None) -> None:
        """Back-propagate the sum over the given rows (None: all) of losses / divisor.

        The gradient is given to the losses themselves instead of through a graph for their mean.
        """
        weights = row_weights(losses, rows, self.divisor)
        if self.scaler is not None:
            weights = self.scaler.scale(weights)
        torch.autograd.backward(losses, weights)


class PartlyScored(NamedTuple):
    """What an engine with a memory did not compute.

    Parameters
    ----------
    scored
        Positions that were scored, ascending; None: all. The losses of the others are remembered ones.
    mean_loss
        Gives the estimate of the batch's mean; None where all were scored.
    correct
        Gives the estimate of the number of right answers; None where all were scored.
    recall
        The share of the truly kept samples that such a step finds, as far as is known; 1 where all were scored.
    """

    scored: Tensor | None
    mean_loss: Callable[[], Tensor] | None
    correct: Callable[[], Tensor | None] | None
    recall: float | None


class Computed(NamedTuple):
    """What a step computed, detached.

    All losses, the kept positions (None: skipped), which answers are right, what ran, and what is only an estimate.
    """

    losses: Tensor
    rows: Tensor | None
    right: Right
    engine: str
    estimate: PartlyScored | None = None


class Scored(Protocol):
    """The first phase of a step: its losses, and how their gradient is computed.

    ``losses`` are detached, and ``right`` says which answers are right. ``positions`` are the places of the losses in a
    batch of which only some were scored; None: all were.
    """

    @property
    def losses(self) -> Tensor:
        """The losses that were computed, shape (s,) or fewer, detached."""

    @property
    def right(self) -> Right:
        """Which answers are right."""

    @property
    def scores(self) -> Tensor | None:
        """What the samples are ordered by, detached; None: by their losses."""

    @property
    def positions(self) -> tuple[Tensor, int] | None:
        """The losses' positions in the batch, and its size, where only some samples were scored."""

    def backward(self, kept: Kept) -> Computed:
        """Leave the gradient of the kept losses in the parameters."""

    def abandon(self) -> Computed:
        """Leave the parameters without a gradient: the step is skipped."""


@dataclass(frozen=True)
class Around:
    """The losses of another engine's first phase, for one that does more with them."""

    inner: Scored

    @property
    def losses(self) -> Tensor:
        """The losses that were computed, detached."""
        return self.inner.losses

    @property
    def right(self) -> Right:
        """Which answers are right."""
        return self.inner.right

    @property
    def scores(self) -> Tensor | None:
        """What the samples are ordered by."""
        return self.inner.scores

    @property
    def positions(self) -> tuple[Tensor, int] | None:
        """Where the losses are in the batch."""
        return self.inner.positions


class Engine(Protocol):
    """What every engine offers."""

    @property
    def recall(self) -> "Recall | None":
        """The measured share of the q largest losses that are found, of an engine that does not score all samples."""

    def checked_index(self, index: Any, y: Any) -> Tensor | None:
        """The numbers of the batch's samples, for an engine that needs them; None for the others, which ignore them."""

    @property
    def why(self) -> str | None:
        """Why another way of computing ran than the engine's name promises; None when it did not."""

    def forward(self, batch: Any, ahead: Ahead) -> Scored:
        """The losses of one batch."""

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must carry of the engine; empty for one that keeps nothing."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up where `state_dict` left off."""


class Recall(NamedTuple):
    """Share of the truly kept samples that was found, its 95 % interval, and the audits behind it."""

    mean: float
    low: float
    high: float
    audits: int


class Stateless:
    """What an engine that scores all samples and keeps no state need not say."""

    recall: Recall | None = None

    def checked_index(self, index: Any, y: Any) -> Tensor | None:
        """None: the numbers of samples are not needed."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing to take up."""


@dataclass(frozen=True)
class Parts:
    """What an engine is built from.

    Parameters
    ----------
    model
        The module inside a wrapper for several ranks.
    score
        ``score(batch)`` gives the losses of a batch, shape (s,), with their graph, and which answers are right.
    parallel
        How the model shares gradients with other ranks.
    buffers
        What a pass may change: an engine that runs several in a step puts them back.
    generator
        Source of an engine's random choices, on the CPU.
    selection
        ``"top"`` or ``"random"``: what is kept.
    group
        The process group over whose ranks samples are kept; None: each rank keeps its own.
    counts_ahead
        Whether how many samples are kept is known before their losses.
    by_score
        Whether samples are ordered by a score instead of their losses.
    """

    model: nn.Module
    score: Score
    parallel: OneProcess
    buffers: Buffers
    generator: torch.Generator | None = None
    selection: str = "top"
    group: "ProcessGroup | None" = None
    counts_ahead: bool = True
    by_score: bool = False


class Strategy(Protocol):
    """A way to compute the gradient of the kept losses, with its options: what ``OrderedStep(engine=...)`` takes."""

    def build(self, parts: Parts) -> Engine:
        """The engine of one training."""
