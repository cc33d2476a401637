"""Score only likely candidates: samples whose loss was large when they were last scored, and a few others at random.

The hardest samples of a batch are mostly those that were hard the last time. The loss of each sample is remembered, as
a running mean that forgets fast; of a batch only the largest remembered ones are scored, and `PROBES` random others.
The q largest of these are kept, and an exact engine computes their gradient. What is missed is measured: at random
moments, which do not depend on the data (`Audits`), a batch is scored whole and used whole, and the share of its q
largest that would have been found is the recall. `Candidates` adapts their number to it.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from ordered_sgd.engines.apart import Apart
from ordered_sgd.engines.audits import Audits, audits_of, stretch_of
from ordered_sgd.engines.auto import Auto, AutoEngine
from ordered_sgd.engines.memory_checks import check_index, check_options, refuse
from ordered_sgd.engines.phases import (
    Ahead,
    Around,
    Computed,
    Kept,
    KeptRanks,
    PartlyScored,
    Parts,
    Recall,
    Scored,
)
from ordered_sgd.engines.recall import Candidates
from ordered_sgd.engines.remembered import PROBES, Part, RememberedLosses, pick
from ordered_sgd.engines.replay import take
from ordered_sgd.rewind import device_of
from ordered_sgd.rules import resolve_q

log = logging.getLogger("ordered_sgd")

MOST = 0.75  # of the batch: where more must be scored, all are


@dataclass(frozen=True)
class Memory:
    """Score only samples whose loss was large when they were last seen: not exact, and never chosen by `Auto`.

    Parameters
    ----------
    recall : float, default=0.95
        Share of the q largest losses of a batch that is to be found: the number of candidates adapts to it.
    candidates : float or None, default=None
        A fixed number of candidates instead, a count or a share of the batch, but never fewer than are kept. The recall
        is measured all the same.
    batchnorm : str or None, default=None
        ``"scored"`` lets BatchNorm in training through: candidates and probes are normalised by the statistics of what
        is scored, and the gradient is that of the kept ones in that smaller batch. None: the whole batch is scored.

    Examples
    --------
    >>> Memory(recall=0.8)
    Memory(recall=0.8, candidates=None, batchnorm=None)
    """

    recall: float = 0.95
    candidates: float | None = None
    batchnorm: Literal["scored"] | None = None

    def __post_init__(self) -> None:
        check_options(self.recall, self.candidates, self.batchnorm)

    def build(self, parts: Parts) -> "MemoryEngine":
        """The engine of one training."""
        return MemoryEngine(parts, self)


class MemoryEngine:
    """The gradient of the mean of the q largest losses among candidates, as `Auto` computes it for them."""

    def __init__(self, parts: Parts, options: Memory) -> None:
        refuse(parts)
        self.model = parts.model
        self.inner = AutoEngine(parts, Auto(), told=True)  # this engine warns of BatchNorm itself
        self.fixed = options.candidates
        self.why: str | None = None
        self._said = False
        remedy = 'Use engine="dense" to silence this, or Memory(batchnorm="scored") for BatchNorm.'
        self._apart = Apart(parts, "engine memory", remedy, subset=options.batchnorm is not None)
        self._generator = parts.generator or torch.Generator().manual_seed(0)
        self._candidates, self._audits = Candidates(options.recall), Audits()
        self.remembered = RememberedLosses()

    def checked_index(self, index: Any, y: Any) -> Tensor:
        """The numbers of the batch's samples, or one clear error."""
        numbers, largest = check_index(index, y, device_of(self.model))
        self.remembered.reserve(largest + 1, numbers.device)
        return numbers

    def forward(self, batch: Any, ahead: Ahead) -> Scored:
        """The losses of one batch, or of its candidates alone."""
        assert ahead.index is not None
        assert ahead.ranks is not None
        remembered, s = self.remembered.of(ahead.index), ahead.index.shape[0]
        part = None if ahead.keeps_all else self._part(batch, remembered, ahead.ranks)
        if part is not None and not self._audited(s):
            inner = self.inner.forward(take(batch, part.scored, s), Ahead(keeps_all=False))
            return CandidatesScored(inner, self, part, remembered, ahead.index)
        return AuditScored(self.inner.forward(batch, ahead), self, part, remembered, ahead.index, ahead.ranks)

    def _audited(self, s: int) -> bool:
        """Whether a batch of s of which some could be left out is scored whole, to measure what would be missed."""
        if self._audits.left == 0:
            steps = -(-self.remembered.seen // max(s, self._candidates.s))  # of an epoch of all that was seen so far
            self._candidates.rest_on(audits_of(steps))
            self._audits.begin(stretch_of(steps), self._generator)
        return self._audits.due()

    @property
    def recall(self) -> Recall | None:
        """The recall over the last audits; None before the first."""
        return self._candidates.recall

    def _part(self, batch: Any, remembered: Tensor, kept: KeptRanks) -> Part | None:
        """What to score, or None for the whole batch."""
        s, unseen = remembered.shape[0], int(remembered.isinf().sum())
        full = s >= self._candidates.s  # what is said is of full batches, not of the small last one
        self.why = None if full else self.why
        if self.fixed is not None:
            c = max(kept.last, resolve_q(self.fixed, s, "OrderedStep"))
        else:
            c = self._candidates.of(s, kept)
            if self._candidates.count is not None and c + PROBES > MOST * s:
                if full:
                    self._say(f"a recall of {self._candidates.target:g} needs {c} of {s} samples as candidates")
                return None
        c = max(c, unseen)
        if c + PROBES >= s or not self._may_be_alone(batch):
            return None
        return pick(remembered, c, PROBES, self._generator)

    def _may_be_alone(self, batch: Any) -> bool:
        """Whether the losses of samples do not depend on the others in the batch."""
        apart = self._apart.look(batch)
        if not apart:
            self._say(self._apart.why or "a loss that is not finite does not tell whether samples influence each other")
        return apart

    def _say(self, why: str) -> None:
        self.why = why
        if not self._said:
            log.info("engine memory scores all samples: %s", why)
        self._said = True

    def learn(self, whole: "AuditScored", computed: Computed) -> None:
        """What a batch that was scored whole tells of the recall and of its samples."""
        assert computed.rows is not None
        if whole.part is not None:
            self._candidates.audit(int(torch.isin(computed.rows, whole.part.scored).sum()), whole.ranks.q)
        if whole.ranks.last < whole.index.shape[0] and bool(whole.remembered.isfinite().all()):
            self._candidates.look(whole.remembered, computed.losses, whole.ranks)
        self.remembered.take(whole.index, computed.losses)

    def state_dict(self) -> dict[str, Any]:
        """What is remembered, how many candidates there are, and which exact engine runs."""
        candidates = self._candidates.state_dict()
        audits = self._audits.state_dict()
        return {**self.remembered.state_dict(), "candidates": candidates, "audits": audits, **self.inner.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self.remembered.load_state_dict(state)
        self._candidates.load_state_dict(state["candidates"])
        self._audits.load_state_dict(state["audits"])
        self.inner.load_state_dict(state)


@dataclass(frozen=True)
class AuditScored(Around):
    """A batch that was scored whole, and used whole: it tells how many of the largest losses candidates would find."""

    engine: MemoryEngine
    part: Part | None
    remembered: Tensor
    index: Tensor
    ranks: KeptRanks

    def backward(self, kept: Kept) -> Computed:
        """The exact gradient; the losses are remembered."""
        computed = self.inner.backward(kept)
        self.engine.learn(self, computed)
        return computed._replace(estimate=PartlyScored(None, None, None, 1.0))

    def abandon(self) -> Computed:
        """Nothing is remembered of a batch that is skipped."""
        return self.inner.abandon()._replace(estimate=PartlyScored(None, None, None, 1.0))


@dataclass(frozen=True)
class CandidatesScored(Around):
    """The scored part of a batch; the rest of it is remembered."""

    engine: MemoryEngine
    part: Part
    remembered: Tensor
    index: Tensor

    @property
    def positions(self) -> tuple[Tensor, int]:
        """Where they are in the batch, and its size."""
        return self.part.scored, self.index.shape[0]

    def backward(self, kept: Kept) -> Computed:
        """The gradient of the kept candidates; their losses are remembered."""
        computed = self.inner.backward(kept)
        assert computed.rows is not None
        self.engine.remembered.take(self.index.index_select(0, self.part.scored), computed.losses)
        return self._of_batch(computed, self.part.scored.index_select(0, computed.rows))

    def abandon(self) -> Computed:
        """Nothing is remembered of a batch that is skipped."""
        return self._of_batch(self.inner.abandon(), None)

    def _of_batch(self, computed: Computed, rows: Tensor | None) -> Computed:
        part, found, recall = self.part, computed.losses, self.engine.recall
        estimate = PartlyScored(
            part.scored,
            mean_loss=partial(part.mean, found, self.remembered),
            correct=partial(part.correct, computed.right),
            recall=None if recall is None else recall.mean,
        )
        losses = self.remembered.to(found.dtype).index_copy(0, part.scored, found)
        return Computed(losses, rows, None, "memory", estimate)
