"""Running the kept samples of several micro-batches in as few micro-batches as they fill.

That gives the gradient of the whole micro-batches only if samples do not influence each other, draw the same random
numbers as when they were scored, and do not depend on what earlier micro-batches changed. All of this is looked at, and
the losses are compared with the scores. Where it does not hold, `Regroup` leaves the work to whole micro-batches.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ordered_sgd.agreement import agree
from ordered_sgd.engines.apart import FAILURES, Apart
from ordered_sgd.engines.first_difference import first_difference_of
from ordered_sgd.engines.gather import Gathered, ScoredPart, gather
from ordered_sgd.engines.phases import Kept, Parts
from ordered_sgd.engines.replay import Drawn, again_together, batch_dims, take
from ordered_sgd.rewind import (
    RandomState,
    Saved,
    moved,
    same_host_random_state,
    same_random_state,
)
from ordered_sgd.selective.call import SelectiveCall


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
        if not self.parallel.in_step and all(rows.shape[0] == part.s for part, rows in run):
            return False  # each micro-batch is kept whole, or not at all
        self.why = self._why_not(parts[0], after)
        if self.why is None:
            with _plainly(self.model):
                self.why = self._why_not_apart([part for part, _ in run], watched)
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

    def _why_not_apart(self, run: list[ScoredPart], watched: bool) -> str | None:
        """Why samples cannot be run without the others of their micro-batch; the first time it takes some passes."""
        largest = max(run, key=lambda part: part.s)
        why = self._why_not_replayed(run, largest, watched) if self.watching else None
        if why is None and not self._apart.look(largest.batch):
            return self._apart.why or "a gradient that is not finite cannot be compared"
        return why

    def _why_not_replayed(self, run: list[ScoredPart], part: ScoredPart, watched: bool) -> str | None:
        """Why random numbers cannot be drawn again for some samples of several micro-batches."""
        if not watched:
            return "random numbers are drawn for the first time"
        if len({part.drawn.kinds for part in run}) > 1:
            return "micro-batches draw different random numbers"
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


@contextmanager
def _plainly(model: nn.Module) -> Iterator[None]:
    """Inside, a model that is selective is called as it is: every sample has a gradient, so it has nothing to skip."""
    calls = [(module, module._compiled_call_impl) for module in model.modules()]
    selective = [(module, call) for module, call in calls if isinstance(call, SelectiveCall)]
    for module, call in selective:
        call.forget()
        module._compiled_call_impl = None
    try:
        yield
    finally:
        for module, call in selective:
            module._compiled_call_impl = call
