"""Line 4 of Algorithm 1 for a step: which of the losses of an engine are kept, here or over all ranks."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ordered_sgd.engines.phases import Ahead, Computed, Kept, KeptRanks, Scored, count_right
from ordered_sgd.joined_units import join_units
from ordered_sgd.loss import WITHOUT_ANSWERS
from ordered_sgd.nonfinite import Verdict, inspect_losses
from ordered_sgd.policy import Policy
from ordered_sgd.present import Present
from ordered_sgd.ranks import Joined, agree_on, no_samples, numbers_of_all
from ordered_sgd.record import StepRecord
from ordered_sgd.rewind import device_of
from ordered_sgd.shared_settings import Settings
from ordered_sgd.traps import has_batchnorm, warn_of_batchnorm
from ordered_sgd.units import Units

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


@dataclass(frozen=True)
class Choice:
    """What was chosen of a batch.

    Parameters
    ----------
    kept
        The kept samples; None when a loss is seen not to be finite.
    verdict
        Whether the losses are finite, as far as is known.
    joined, rows
        Over several ranks: the losses of all of them, and the positions that are kept among these.
    present
        Positions of the samples that count, whose target is not the ignored one; None: all.
    scores
        What the samples that count were ordered by, over several ranks those of all; None: their losses.
    """

    kept: Kept | None
    verdict: Verdict
    joined: Joined | None = None
    rows: Tensor | None = None
    present: Tensor | None = None
    scores: Tensor | None = None


class Selector:
    """Keeps the q largest losses of a batch, tells the rule what it saw, and makes the record of the step.

    Parameters
    ----------
    policy
        Says how many are kept, and which.
    model
        One with BatchNorm is warned of when one or two samples are kept.
    scaler
        Of float16 training.
    counting
        Whether a rule that needs an accuracy lives on the right answers in the batches.
    """

    def __init__(
        self, policy: Policy, model: nn.Module, scaler: torch.amp.GradScaler | None, *, counting: bool = True
    ) -> None:
        self.policy, self.scaler, self._counting = policy, scaler, counting
        self._model, self._couples = model, has_batchnorm(model)

    def begin(self) -> None:
        """A new step begins."""

    def ahead(self, s: int | None, index: Tensor | None) -> Ahead:
        """What is known of a batch before its losses: its size, where the targets tell, and its samples' numbers."""
        if s is None or not self.policy.counts_ahead:
            return Ahead(self._keeps_all(s), index=index)
        q = self.policy.q_for(s)
        return Ahead(self._keeps_all(s), KeptRanks(q, self.policy.trimmed_of(s)), index, share=q / max(s, 1))

    def _keeps_all(self, s: int | None) -> bool:
        """Whether a batch of s samples here will be kept whole; of an unknown number it is known with the losses."""
        return s is not None and self.policy.q_for(s) >= s

    def everything(self, total: int) -> Kept | None:
        """All of `total` samples, if they will be kept; else None."""
        if self.policy.q_for(total) < total:
            return None
        return Kept(torch.arange(total), self._divisor(total), self.scaler)

    def _divisor(self, kept: int) -> float:
        """What the sum of the kept losses is divided by."""
        return kept

    def choose(self, scored: Scored, step: int, present: Present) -> Choice:
        """The q largest losses of the samples that count."""
        losses, scores, at_once = scored.losses, scored.scores, _reads_are_free(scored.losses)
        positions, s = scored.positions or (None, losses.shape[0])
        there = present.of(positions, losses.device)
        if there is not None:
            positions = there if positions is None else positions.index_select(0, there)
            losses = losses.index_select(0, there)
            scores = None if scores is None else scores.index_select(0, there)
        verdict = inspect_losses(losses, step, scores=scores, at_once=at_once, scored=positions, s=s)
        if at_once and verdict.error() is not None:
            return Choice(None, verdict)
        self._expect_answers(scored.right is not None)
        count = present.count(s)
        self.policy.see(count, s)
        rows = self.policy.choose(losses if scores is None else scores, s=count)
        few = rows.shape[0] <= 2 and rows.shape[0] < losses.shape[0]
        if self._couples and few and has_batchnorm(self._model, training=True):
            self._couples = False  # said once
            warn_of_batchnorm("OrderedStep", rows.shape[0])
        if there is not None:
            rows = there.index_select(0, rows)
        kept = Kept(rows, self._divisor(max(rows.shape[0], 1)), self.scaler)
        return Choice(kept, verdict, present=present.of(None, losses.device), scores=scores)

    def _expect_answers(self, found: bool) -> None:
        """Refuse a rule that would get no accuracy."""
        if self._counting:
            self.policy.adaptive.expect_answers(found, WITHOUT_ANSWERS)

    def record(self, computed: Computed, choice: Choice, verdict: Verdict) -> StepRecord:
        """What the step did; the rule is told of a batch that was not skipped."""
        losses, rows, right, engine, estimate = computed
        present = choice.present
        found = losses if present is None else losses.index_select(0, present)
        correct = (None if estimate is None else estimate.correct) or partial(count_right, right)
        if rows is None:
            rows = torch.empty(0, dtype=torch.int64, device=losses.device)
        else:
            right = correct() if self.policy.adaptive.counts_answers else None
            self._observe(found, right, verdict.bad, choice.scores)
        bad, count = verdict.bad, found.shape[0]
        record = StepRecord(rows.shape[0], count, engine, losses, rows, correct, bad, _present=present)
        if estimate is None:
            return record
        mean = estimate.mean_loss
        if mean is not None and present is not None:  # those that do not count have losses of 0
            mean = partial(_scaled, mean, losses.shape[0] / max(count, 1))
        return replace(record, scored=estimate.scored, recall=estimate.recall, _mean=mean)

    def _observe(self, losses: Tensor, right: Tensor | None, bad: Tensor | None, scores: Tensor | None = None) -> None:
        """Show the batch to the rule; not the answers of one that the device may yet find to be skipped."""
        count = None
        if right is not None and bad is not None:
            fine = 1 - bad
            right, count = right * fine, losses.shape[0] * fine
        self.policy.observe(losses, right, count, scores=scores)


class RanksSelector(Selector):
    """Keeps the q largest losses of the batches of all ranks together.

    Parameters
    ----------
    policy, model, scaler, counting
        As of `Selector`.
    group
        The ranks.
    settings
        What must be the same on all of them besides the policy.
    """

    def __init__(
        self,
        policy: Policy,
        model: nn.Module,
        scaler: torch.amp.GradScaler | None,
        group: "ProcessGroup",
        settings: Settings,
        *,
        counting: bool = True,
    ) -> None:
        super().__init__(policy, model, scaler, counting=counting)
        self.group = group
        self._others, self._met = settings, False

    def begin(self) -> None:
        """Compare settings before the first step of a resumed run, which need not be dense as that of a new one."""
        if not self._met and self.policy.adaptive.s:
            agree_on(self._settings(), self.group, device_of(self._model), "OrderedStep")
        self._met = True

    def _settings(self) -> Settings:
        return {**self.policy.settings(), **self._others}

    def ahead(self, s: int | None, index: Tensor | None) -> Ahead:
        """What all ranks know of their batches: this one's own size would lead it to another engine than theirs."""
        largest = self.policy.adaptive.s
        share = self.policy.q_for(largest) / largest if largest and self.policy.counts_ahead else None
        return Ahead(self._keeps_all(s), index=index, share=share)

    def _keeps_all(self, s: int | None) -> bool:
        """Whether the batches of all ranks will be kept whole.

        The global batch size is only known once the losses are gathered, so go by the largest one seen so far.
        """
        return self.policy.keeps_all

    def _divisor(self, kept: int) -> float:
        """Their number on each rank: DDP and FSDP average over the ranks."""
        return kept / self.group.size()

    def choose(self, scored: Scored, step: int, present: Present) -> Choice:
        """The positions of the q largest losses that are this rank's."""
        mine, there = Units(scored.losses, None, scored.scores), present.of(None, scored.losses.device)
        if there is not None:
            scores = None if mine.scores is None else mine.scores.index_select(0, there)
            mine = Units(mine.losses.index_select(0, there), None, scores)
        joined, units = self._joined(mine, scored)
        verdict = inspect_losses(joined.losses, step, scores=units.scores, at_once=True, sizes=joined.sizes)
        if verdict.error() is not None:
            return Choice(None, verdict, joined)
        self._expect_answers(joined.correct is not None)
        self.policy.see(joined.losses.shape[0], scored.losses.shape[0])
        rows = self.policy.choose(units.keys)
        own = joined.mine(rows)
        if there is not None:
            own = there.index_select(0, own)
        kept = Kept(own, self._divisor(max(rows.shape[0], 1)), self.scaler)
        return Choice(kept, verdict, joined, rows, scores=units.scores)

    def _joined(self, mine: Units, scored: Scored) -> tuple[Joined, Units]:
        """The losses of all ranks; there may be none if all targets are ignored ones, but not if there are no targets.

        Whether there are is asked only then, by all ranks.
        """
        correct, settings = count_right(scored.right), self._settings()
        joined, units = join_units(mine, correct, self.group, "OrderedStep", settings=settings, empty=True)
        if not any(joined.sizes):
            samples = numbers_of_all([scored.losses.shape[0]], self.group, device_of(self._model), "the batch sizes")
            if not any(s for (s,) in samples):
                raise no_samples("OrderedStep")
        return joined, units

    def record(self, computed: Computed, choice: Choice, verdict: Verdict) -> StepRecord:
        """What the step did on this rank, and on all of them."""
        joined, rows = choice.joined, computed.rows
        assert joined is not None
        none = torch.empty(0, dtype=torch.int64, device=computed.losses.device)
        if rows is not None:
            self.policy.observe(joined.losses, joined.correct, scores=choice.scores)
        kept = none if rows is None or choice.rows is None else choice.rows
        mine, q, count = none if rows is None else rows, kept.shape[0], joined.losses.shape[0]
        everywhere = joined.losses, kept
        return StepRecord(q, count, computed.engine, computed.losses, mine, joined.correct, None, everywhere)


def _scaled(mean: Callable[[], Tensor], factor: float) -> Tensor:
    return mean() * factor


def _reads_are_free(losses: Tensor) -> bool:
    """Whether reading a number does not make the host wait for a queue of work."""
    return losses.is_cpu
