"""Micro-batches: the q largest of all of them, with the memory of one."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ordered_sgd.agreement import agree
from ordered_sgd.engines.gather import ScoredPart
from ordered_sgd.engines.parallel import OneProcess, Replicated
from ordered_sgd.engines.phases import Computed, Kept, Losses, Parts, Right, Score, Scored, which_right
from ordered_sgd.engines.regroup import Regroup
from ordered_sgd.engines.replay import Drawn
from ordered_sgd.errors import ArgumentError, message, warn
from ordered_sgd.rewind import Buffers, device_of, random_state, restore_random_state


def samples_in_all(s: int | None, parts: int, parallel: OneProcess) -> int | None:
    """Samples in the micro-batches of all ranks; None where the targets of some rank do not tell.

    Parameters
    ----------
    s, parts
        Samples of this rank, if they are known, and in how many micro-batches they come.
    parallel
        What the passes have to do with other ranks.
    """
    every = parallel.numbers(-1 if s is None else s, parts)
    if parallel.in_step and len({count for _, count in every}) > 1:
        got = ", ".join(f"{count:.0f}" for _, count in every)
        rule = "be as many on every rank for fully_shard and SyncBatchNorm"
        raise ArgumentError(message("OrderedStep", "micro-batches", rule, got, "Add empty micro-batches."))
    return None if min(size for size, _ in every) < 0 else int(sum(size for size, _ in every))


class MicroBatches:
    """Micro-batches as one batch: the q largest of all of them.

    Each is scored without a graph; then the kept samples are run again, regrouped where that is exact, else by running
    the micro-batches that hold them.

    Parameters
    ----------
    score, parallel
        As for every engine.
    buffers
        Of the model.
    """

    def __init__(self, score: Score, parallel: OneProcess, buffers: Buffers) -> None:
        self.score, self.parallel, self.buffers = score, parallel, buffers
        self.regroup = Regroup(Parts(parallel.model, score, parallel, buffers))

    @property
    def why(self) -> str | None:
        """Why whole micro-batches ran in the last step; None if they did not, or nothing was to be gained."""
        return self.regroup.why

    def forward(self, batches: Sequence[Any], s: int | None, everything: Callable[[int], Kept | None]) -> Scored:
        """The losses of all micro-batches, of s samples if that is known.

        Where ``everything(total)`` says that all will be kept, each is back-propagated at once: only one has a graph at
        a time.
        """
        if isinstance(self.parallel, Replicated) and not self.parallel.over_ranks:
            rule = "not be wrapped in DistributedDataParallel for micro-batches without a group"
            raise ArgumentError(message("OrderedStep", "model", rule, "a wrapped one", "Pass one batch, or group=."))
        self.regroup.why = None
        total = samples_in_all(s, len(batches), self.parallel)
        whole = everything(total) if s is not None and total else None
        if whole is not None:
            joined = AllScored(*_join(self._one_pass(batches, whole)))
            if joined.losses.shape[0] != s:
                got = f"{joined.losses.shape[0]} losses for {s} targets"
                remedy = "Pass targets whose first dimension is the batch."
                raise ArgumentError(message("OrderedStep", "micro-batches", "give one loss per target", got, remedy))
            return joined
        device, parts, scored = device_of(self.buffers.model), [], []
        with torch.no_grad():
            for batch in batches:
                before, drawn = (random_state(device), self.buffers.save()), Drawn()
                with drawn if self.regroup.watching else nullcontext():
                    found = self.score(batch)
                parts.append(ScoredPart(batch, found.losses, *before, drawn))
                scored.append(found._replace(scores=found.ordered_by()))
        torch.clear_autocast_cache()  # it holds weights that were cast without a graph
        return PartsScored(*_join(scored), self, parts)

    def _one_pass(self, batches: Sequence[Any], everything: Kept) -> list[Losses]:
        """The losses of each, back-propagated at once: q keeps everything."""
        scored = []
        for batch in batches[:-1]:
            with self.parallel.unsynced():
                found = self.score(batch)
                everything.pull(found.losses, None)
            scored.append(_detached(found))
        found = self.parallel.through(self.score, batches[-1])
        everything.pull(found.losses, None)
        return [*scored, _detached(found)]


@dataclass(frozen=True)
class AllScored:
    """Micro-batches that were back-propagated one after the other."""

    losses: Tensor
    right: Right
    scores: Tensor | None
    positions: None = None

    def backward(self, kept: Kept) -> Computed:
        """The gradient is there."""
        return Computed(self.losses, kept.rows, self.right, "micro-batches")

    def abandon(self) -> Computed:
        """The caller forgets the gradient, as after any other step that is skipped."""
        return Computed(self.losses, None, self.right, "micro-batches")


@dataclass(frozen=True)
class PartsScored:
    """Micro-batches that were scored without a graph, with the state of generators and buffers before each."""

    losses: Tensor
    right: Right
    scores: Tensor | None
    engine: MicroBatches
    parts: list[ScoredPart]
    positions: None = None

    def backward(self, kept: Kept) -> Computed:
        """Run the kept samples again, with the dropout masks and buffers they were scored with: regrouped if exact."""
        return self._again(kept, self.engine.regroup.backward)

    def whole(self, kept: Kept) -> Computed:
        """The slow twin: run the micro-batches that hold a kept sample again as they were. Exact for any model."""
        return self._again(kept, lambda *given: False)

    def _again(self, kept: Kept, regroup: Callable[..., bool]) -> Computed:
        """The gradient by `regroup`, else by whole micro-batches; buffers and generators stand as after the scoring."""
        buffers = self.engine.buffers
        device = device_of(buffers.model)
        after = random_state(device), buffers.save()
        chosen = _of_each(kept.rows, [part.s for part in self.parts])
        regrouped = regroup(self.parts, chosen, kept, after)
        if not regrouped:
            self._run_whole(chosen, kept)
        restore_random_state(after[0], device)
        buffers.load(after[1])
        return Computed(self.losses, kept.rows, self.right, f"micro-batches{', regrouped' * regrouped}")

    def _run_whole(self, chosen: Sequence[Tensor], kept: Kept) -> None:
        """Run the micro-batches that hold a chosen sample.

        Over several ranks the gradient of the last one is averaged, so that a rank without a kept sample runs one as
        well.
        """
        parallel, score, buffers = self.engine.parallel, self.engine.score, self.engine.buffers
        run = [i for i, rows in enumerate(chosen) if parallel.in_step or rows.shape[0] > 0] or [0]
        for i in run:
            part, last = self.parts[i], i == run[-1]
            restore_random_state(part.random, device_of(buffers.model))
            buffers.load(part.saved)
            with nullcontext() if last else parallel.unsynced():
                again = (parallel.through(score, part.batch) if last else score(part.batch)).losses
                if not agree(again, part.losses):
                    _warn_of_other_losses()
                kept.pull(again, chosen[i])

    def abandon(self) -> Computed:
        """Nothing has to be undone."""
        return Computed(self.losses, None, self.right, "micro-batches")


def micro_batches(given: Any, sample_weight: Tensor | None) -> list[tuple[Any, Any, Tensor | None]]:
    """A list of micro-batches as (x, y, sample_weight), or one clear error."""
    pairs = isinstance(given, list | tuple) and len(given) > 0
    if not pairs or not all(isinstance(part, list | tuple) and len(part) in (2, 3) for part in given):
        got = f"{type(given).__name__} without y"
        remedy = "Call step(x, y), or step([(x1, y1), (x2, y2)]) for micro-batches."
        raise ArgumentError(message("OrderedStep", "the batch", "be x and y, or a list of (x, y) pairs", got, remedy))
    if sample_weight is not None:
        remedy = "Pass [(x1, y1, weight1), (x2, y2, weight2)]."
        rule = "be inside the list"
        raise ArgumentError(message("OrderedStep", "weights of micro-batches", rule, "sample_weight=", remedy))
    return [(*part, None)[:3] for part in given]


def samples_of(batches: Sequence[tuple[Any, Any, Tensor | None]]) -> int | None:
    """Samples in micro-batches, as their targets tell; None when they do not."""
    sizes = [y.shape[0] if isinstance(y, Tensor) and y.dim() > 0 else None for _, y, _ in batches]
    return None if None in sizes else sum(size for size in sizes if size is not None)


def _of_each(rows: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """The positions in each micro-batch, of ascending positions in all of them together."""
    ends = torch.tensor(sizes).cumsum(0)
    here = rows.cpu()  # how many each one has must be known on the host: one read
    cuts = [0, *torch.searchsorted(here, ends).tolist()]
    starts = [0, *ends.tolist()]
    return [rows[cuts[i] : cuts[i + 1]] - starts[i] for i in range(len(sizes))]


def _detached(found: Losses) -> Losses:
    return Losses(found.losses.detach(), found.right, found.ordered_by())


def _join(scored: Sequence[Losses]) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The losses of all micro-batches, which answers are right, and the scores."""
    rights = [right for part in scored if (right := which_right(part.right)) is not None]
    right = torch.cat(rights) if len(rights) == len(scored) else None
    scores = [part.scores for part in scored if isinstance(part.scores, Tensor)]
    return torch.cat([part.losses for part in scored]), right, torch.cat(scores) if scores else None


def _warn_of_other_losses() -> None:
    remedy = "Draw from torch's default generators, or pass one batch instead of micro-batches."
    got = "other losses for the chosen samples"
    rule = "give the same losses when it is run again"
    warn(message("OrderedStep", "the model", rule, got, remedy))
