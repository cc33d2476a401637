"""The kept samples of several micro-batches, gathered into as few micro-batches as they fill.

That gives the gradient of the whole micro-batches only if samples do not influence each other, draw the same random
numbers as when they were scored, and do not depend on what earlier micro-batches changed. All of this is looked at, and
the losses are compared with the scores. Where it does not hold, `Regroup` leaves the work to whole micro-batches.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from ordered_sgd.agreement import agree
from ordered_sgd.engines.apart import FAILURES, Apart, first_difference_of
from ordered_sgd.engines.phases import Kept, Parts
from ordered_sgd.engines.replay import Drawn, again_together, batch_dims, has_samples, take
from ordered_sgd.rewind import (
    RandomState,
    Saved,
    moved,
    same_host_random_state,
    same_random_state,
)
from ordered_sgd.selection import select_rows


@dataclass(frozen=True)
class ScoredPart:
    """A micro-batch that was scored without a graph.

    Parameters
    ----------
    batch, losses
        The micro-batch, and the losses of its samples.
    random, saved
        The state of generators and buffers before it.
    drawn
        The random numbers that it drew, if they were watched.
    """

    batch: Any
    losses: Tensor
    random: RandomState
    saved: Saved
    drawn: Drawn

    @property
    def s(self) -> int:
        """Samples in the micro-batch."""
        return self.losses.shape[0]


Sources = list[tuple[ScoredPart, Tensor]]  # micro-batches, and the positions of some samples in each


@dataclass(frozen=True)
class Gathered:
    """A micro-batch made of samples of others.

    Parameters
    ----------
    sources
        Where the samples come from.
    place
        Which of the losses count; None: all.
    """

    sources: Sources
    place: Tensor | None = None

    @property
    def batch(self) -> Any:
        """The samples as one batch: leaves with a row for each sample are joined, and the others are those of all."""
        flat = [(tree_flatten(part.batch), part.s, rows) for part, rows in self.sources]
        (leaves, spec), s, _ = flat[0]
        joined = []
        for i, leaf in enumerate(leaves):
            if has_samples(leaf, s):
                chosen = [select_rows(others[i], 0, rows) for (others, _), _, rows in flat]
                leaf = torch.cat(chosen) if len(chosen) > 1 else chosen[0]
            joined.append(leaf)
        return tree_unflatten(joined, spec)

    @property
    def losses(self) -> Tensor:
        """The losses that the samples were scored with."""
        return torch.cat([part.losses.index_select(0, rows) for part, rows in self.sources])


def gather(parts: Sequence[ScoredPart], chosen: Sequence[Tensor]) -> list[Gathered]:
    """The chosen samples of micro-batches in as few micro-batches as they fill, none larger than the largest given one.

    Samples of different shapes are not joined: for each shape there are micro-batches of its own.

    Parameters
    ----------
    parts, chosen
        The micro-batches, and the chosen positions in each.
    """
    gathered = []
    for group in _alike(list(zip(parts, chosen, strict=True))):
        largest = max(part.s for part, _ in group)
        total = sum(rows.shape[0] for _, rows in group)
        passes = -(-total // largest)
        for i in range(passes):
            gathered.append(_cut(group, total * i // passes, total * (i + 1) // passes))
    return gathered


def _cut(group: Sources, start: int, end: int) -> Gathered:
    """The samples from one place to another among the chosen ones of a group."""
    sources, first = [], 0
    for part, rows in group:
        few = rows[max(start - first, 0) : max(end - first, 0)]
        if few.shape[0]:
            sources.append((part, few))
        first += rows.shape[0]
    if end - start > 1 or sources[0][0].s == 1:
        return Gathered(sources)
    ((part, few),) = sources  # twice, once without a gradient: some backwards of torch are wrong for a single row
    return Gathered([(part, few.repeat(2))], torch.zeros_like(few))


def _alike(sources: Sources) -> list[Sources]:
    """The micro-batches in groups of the same structure, shapes and types of samples."""
    groups: list[tuple[tuple[list[Any], TreeSpec, int], Sources]] = []
    for part, rows in sources:
        own = (*tree_flatten(part.batch), part.s)
        found = next((group for first, group in groups if _joins(first, own)), None)
        if found is None:
            groups.append((own, [(part, rows)]))
        else:
            found.append((part, rows))
    return [group for _, group in groups]


def _joins(a: tuple[list[Any], TreeSpec, int], b: tuple[list[Any], TreeSpec, int]) -> bool:
    """Whether samples of two flattened batches can be in one: same shapes and types, and the rest is equal."""
    (leaves, spec, s), (others, other_spec, other_s) = a, b
    if spec != other_spec:
        return False
    for leaf, other in zip(leaves, others, strict=True):
        if has_samples(leaf, s) != has_samples(other, other_s):
            return False
        if not (_same_sample(leaf, other) if has_samples(leaf, s) else _same_value(leaf, other)):
            return False
    return True


def _same_sample(a: Tensor, b: Tensor) -> bool:
    """Whether the rows of two tensors can be in one tensor."""
    kinds = [(t.shape[1:], t.dtype, t.device, t.layout, t.requires_grad) for t in (a, b)]
    return type(a) is type(b) and kinds[0] == kinds[1]


def _same_value(a: Any, b: Any) -> bool:
    """Whether two leaves that hold no samples are the same."""
    if a is b:
        return True
    if isinstance(a, Tensor) and isinstance(b, Tensor) and a.shape == b.shape:
        return _same_sample(a, b) and not a.requires_grad and torch.equal(a, b)
    return type(a) is type(b) and isinstance(a, bool | int | float | str) and a == b


class Regroup:
    """Back-propagates the kept samples of micro-batches regrouped, where that is exact.

    Parameters
    ----------
    parts
        What an engine is built from.

    Attributes
    ----------
    watching
        Whether the next scoring passes must be watched for random numbers.
    why
        Why whole micro-batches had to run; None if they did not, or would have been the same.
    """

    def __init__(self, parts: Parts) -> None:
        self.model, self.score, self.parallel, self.buffers = parts.model, parts.score, parts.parallel, parts.buffers
        self.watching = True  # until scoring passes have drawn nothing
        self.why: str | None = None
        remedy = "Whole micro-batches run instead, with the same gradient in more time."
        self._apart = Apart(parts, "regrouped micro-batches", remedy)
        self._dims: dict[tuple[tuple[str, int], ...], list[int]] = {}

    def backward(
        self, parts: Sequence[ScoredPart], chosen: Sequence[Tensor], kept: Kept, after: tuple[RandomState, Saved]
    ) -> bool:
        """Leave the gradient of the chosen samples in the parameters; False, and none, where this is not exact.

        Parameters
        ----------
        parts, chosen
            The micro-batches, and the chosen positions in each.
        kept
            How their losses are back-propagated.
        after
            The state of generators and buffers after the last micro-batch.
        """
        run = [(part, rows) for part, rows in zip(parts, chosen, strict=True) if rows.shape[0]]
        watched, self.why = self.watching, None
        drawing = not same_random_state(parts[0].random, after[0])
        self.watching = drawing or any(part.drawn.values for part in parts)
        if all(rows.shape[0] == part.s for part, rows in run):
            return False  # each micro-batch is kept whole, or not at all
        self.why = self._why_not(parts[0], after)
        if self.why is None and self.watching:
            self.why = self._why_not_replayed([part for part, _ in run], watched)
        if self.why is None and not self._apart.look(max(run, key=lambda source: source[0].s)[0].batch):
            self.why = self._apart.why or "a gradient that is not finite cannot be compared"
        if self.why is None and not self._run(gather(parts, chosen), kept):
            self.why = self._apart.why
        return self.why is None

    def _why_not(self, first: ScoredPart, after: tuple[RandomState, Saved]) -> str | None:
        """Why samples cannot be taken out of their micro-batches, as far as shows without running any."""
        if self.parallel.in_step:
            return "every pass is one of all ranks"
        norms = [module for module in self.model.modules() if isinstance(module, _BatchNorm) and module.training]
        if norms:
            return f"{type(norms[0]).__name__} in training couples the samples of a micro-batch"
        changed = moved(first.saved, after[1])
        if changed is not None:
            return f"every micro-batch changes {changed}"
        if not same_host_random_state(first.random, after[0]):
            return "random numbers come from Python's or NumPy's generator"
        return None

    def _why_not_replayed(self, run: list[ScoredPart], watched: bool) -> str | None:
        """Why random numbers cannot be drawn again for some samples of several micro-batches."""
        if not watched:
            return "random numbers are drawn for the first time"
        if len({part.drawn.kinds for part in run}) > 1:
            return "micro-batches draw different random numbers"
        part = max(run, key=lambda part: part.s)
        if not part.drawn.values:
            return "random numbers come from an operator that cannot be replayed"
        return None if part.drawn.kinds in self._dims else self._learn_dims(part)

    def _learn_dims(self, part: ScoredPart) -> str | None:
        """Find in which dimensions random numbers are drawn for samples, by a pass over a few; else say why not."""
        few = torch.arange(2 if part.s != 2 else 3, device=part.losses.device) % part.s
        drawn, backward = Drawn(), Drawn()
        try:
            with drawn:
                losses = self.score(take(part.batch, few, part.s)).losses
            with backward:
                self.parallel.gradient(losses, torch.ones_like(losses))
        except FAILURES as reason:
            self._apart.cannot_run(reason)
            return self._apart.why
        if backward.values:
            return "random numbers are drawn again in the backward pass, as by checkpointing"
        dims = batch_dims(part.drawn, part.s, drawn, len(few))
        if dims is None:
            return "random numbers are drawn for a whole micro-batch instead of each sample"
        self._dims[part.drawn.kinds] = dims
        return None

    def _run(self, gathered: list[Gathered], kept: Kept) -> bool:
        """Run and back-propagate micro-batches one after the other; False, and no gradient, if one cannot be run."""
        parameters = list(self.model.parameters())
        aside = [(p, p.grad) for p in parameters if p.grad is not None]  # what was there before must survive a failure
        for p, _ in aside:
            p.grad = None
        for one in gathered:
            last = one is gathered[-1]
            with nullcontext() if last else self.parallel.unsynced():
                losses = self._losses(one, last)
                if losses is not None:
                    kept.pull(losses, one.place)
            if losses is None:
                torch.clear_autocast_cache()  # looking for the reason may have cast weights without a graph
                for p in parameters:
                    p.grad = None
                break
        for p, grad in aside:
            p.grad = grad if p.grad is None else grad.add_(p.grad)
        return losses is not None

    def _losses(self, one: Gathered, last: bool) -> Tensor | None:
        """The losses of a micro-batch with their graph; None if they are not those that were scored."""
        sources = one.sources
        self.buffers.load(sources[0][0].saved)
        dims = self._dims.get(sources[0][0].drawn.kinds)
        drawn = [(part.drawn, rows, part.s) for part, rows in sources]
        try:
            with again_together(drawn, dims) if dims else nullcontext():
                score, batch = self.score, one.batch
                losses: Tensor = (self.parallel.through(score, batch) if last else score(batch)).losses
        except FAILURES as reason:
            self._apart.cannot_run(reason)
            return None
        scored = one.losses
        if losses.shape != scored.shape or not agree(losses, scored):
            part, rows = sources[0]
            self._apart.found(first_difference_of(self.model, self.score, part.batch, rows, part.s))
            return None
        return losses
