"""Score all s samples without a graph, then forward and backward on the q chosen: less memory, and no compile.

The second pass sees only the chosen samples, so its result is the one-liner's only if samples do not influence each
other and the two passes draw the same random numbers. Both are looked after: random numbers of the first pass (dropout
masks) are kept and their chosen rows used again; on the first batch the gradient of a part is compared with the dense
one, and in every step the losses of the second pass with the scores.
"""

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ordered_sgd.agreement import agree
from ordered_sgd.engines.apart import FAILURES, Apart
from ordered_sgd.engines.dense import DenseEngine
from ordered_sgd.engines.first_difference import first_difference_of
from ordered_sgd.engines.phases import Ahead, Computed, Kept, Losses, Parts, Right, Scored, Stateless
from ordered_sgd.engines.replay import Drawn, take
from ordered_sgd.errors import check_choice
from ordered_sgd.rewind import (
    RandomState,
    Saved,
    device_of,
    is_unfinished,
    random_state,
    restore_host_random_state,
    restore_random_state,
    same_random_state,
)

log = logging.getLogger("ordered_sgd")


@dataclass(frozen=True)
class TwoPass:
    """Score the batch without a graph, then run the kept samples again: less memory, and no compile.

    Parameters
    ----------
    scoring : {"train", "eval"}, default="train"
        ``"train"`` scores the model as it is; ``"eval"`` switches dropout and batch statistics off for the scoring.
    score_dtype : torch.dtype or None, default=None
        Score under autocast to this dtype; None: as the model is.
    replay : bool, default=True
        Use the random numbers of the scoring pass again in the second one.
    batchnorm : str or None, default=None
        ``"subset"`` lets BatchNorm in training through: running statistics from the scoring pass over the whole batch,
        the statistics of the chosen samples in the second pass. That is not the one-liner's gradient.

    Examples
    --------
    >>> TwoPass(replay=False).exact
    False
    """

    scoring: Literal["train", "eval"] = "train"
    score_dtype: torch.dtype | None = None
    replay: bool = True
    batchnorm: Literal["subset"] | None = None

    def __post_init__(self) -> None:
        check_choice("TwoPass", "scoring", self.scoring, ("train", "eval"))
        check_choice("TwoPass", "batchnorm", self.batchnorm, (None, "subset"), 'Pass batchnorm="subset".')

    @property
    def exact(self) -> bool:
        """Whether both passes compute the same losses, so that they can be compared."""
        return self.scoring == "train" and self.score_dtype is None and self.replay and self.batchnorm is None

    def build(self, parts: Parts) -> "TwoPassEngine":
        """The engine of one training."""
        return TwoPassEngine(parts, self)


class TwoPassEngine(Stateless):
    """The gradient of the ordered loss by a scoring pass and a pass over the chosen samples."""

    def __init__(self, parts: Parts, options: TwoPass) -> None:
        self.model, self.score, self.parallel = parts.model, parts.score, parts.parallel
        self.options = options
        self.dense = DenseEngine(parts)
        self.buffers = parts.buffers
        self._subset = options.batchnorm is not None
        remedy = 'Use engine="dense" to silence this, or TwoPass(batchnorm="subset") for BatchNorm.'
        self._apart = Apart(parts, "engine twopass", remedy, compares=options.exact, subset=self._subset)
        if not options.exact:
            log.info("engine twopass does not compare its second pass with its scores: scoring, dtype or batchnorm")
        self._unfinished = True  # until the model has all its parameters
        self._random = True  # until a scoring pass has drawn nothing

    @property
    def why(self) -> str | None:
        """Why the whole batch runs."""
        return self._apart.why

    def forward(self, batch: Any, ahead: Ahead) -> Scored:
        """The losses of one batch without a graph, and what it takes to run some samples again."""
        self._unfinished = self._unfinished and is_unfinished(self.model)
        if self._unfinished:
            return self.dense.forward(batch, ahead)
        if not (ahead.keeps_all or self._apart.looked):
            self._apart.look(batch)
            self._apart.agree_with_other_ranks()
        if ahead.keeps_all or self._apart.everywhere:
            return self.dense.forward(batch, ahead)
        device, drawn = device_of(self.model), Drawn()
        random, saved = random_state(device), self.buffers.save()
        found = self._scored(batch, drawn, saved, device)
        return TwoPassScored(found.losses, found.right, self, batch, drawn, random, saved, found.ordered_by())

    def again(self, first: "TwoPassScored", run: Tensor) -> tuple[Tensor, str]:
        """The losses of some samples with a graph, by a second pass, and the engine that this is."""
        s = len(first.losses)
        alone = self._subset and run.unique().shape[0] == 1  # one sample has no statistics of its own
        if not (self._apart.coupled or alone):
            self.buffers.load(first.saved)
            kept = self._alone(first, run)
            differs = kept is not None and self.options.exact and not agree(kept, first.losses.index_select(0, run))
            if kept is not None and not self._on_some_rank(differs):
                return kept, "twopass"
            if kept is not None:
                where = first_difference_of(self.model, self.score, first.batch, run, s)
                self._apart.found(where if differs else "a batch of another rank")
        restore_random_state(first.random, device_of(self.model))
        self.buffers.load(first.saved)
        return self.parallel.through(self.score, first.batch).losses.index_select(0, run), "dense"

    def _alone(self, first: "TwoPassScored", run: Tensor) -> Tensor | None:
        """The losses of some samples without the others, with the same random numbers; None if the model fails."""
        s = len(first.losses)
        restore_host_random_state(first.random)
        try:
            with first.drawn.again(run, s) if first.drawn.values else nullcontext():
                kept: Tensor = self.parallel.through(self.score, take(first.batch, run, s)).losses
        except FAILURES as reason:
            if self.parallel.in_step:  # the other ranks are in the middle of a pass
                raise
            self._apart.cannot_run(reason)
            return None
        return kept

    def _on_some_rank(self, differs: bool) -> bool:
        """Whether the second pass gave other losses than the first: here, or on a rank whose passes ours must meet."""
        return self.parallel.any(differs)[0] if self.options.exact and self.parallel.in_step else differs

    def _scored(self, batch: Any, drawn: Drawn, saved: Saved, device: torch.device) -> Losses:
        """The losses without a graph; what is drawn on the way is kept in `drawn` if it is to be used again."""
        # a rank without samples draws nothing, and must not score less often than the others
        watching = self.options.replay and (self._random or self.parallel.in_step)
        state = random_state(device)
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            if self.options.scoring == "eval":
                stack.enter_context(_evaluating(self.model))
            if self.options.score_dtype is not None:
                stack.enter_context(torch.autocast(device.type, dtype=self.options.score_dtype))
            if watching:
                stack.enter_context(drawn)
            scored = self.score(batch)
        torch.clear_autocast_cache()  # it holds weights that were cast without a graph
        if watching:
            self._random = bool(drawn.values)
        elif self.options.replay and not same_random_state(state, random_state(device)):
            # randomness appeared that the first steps did not have: watch from now on, and score again
            self._random = True
            restore_random_state(state, device)
            self.buffers.load(saved)
            return self._scored(batch, drawn, saved, device)
        return scored


@dataclass(frozen=True)
class TwoPassScored:
    """Losses without a graph, and what a second pass over some samples needs."""

    losses: Tensor
    right: Right
    engine: TwoPassEngine
    batch: Any
    drawn: Drawn
    random: RandomState
    saved: Saved
    scores: Tensor | None = None
    positions: None = None

    def backward(self, kept: Kept) -> Computed:
        """Run the kept samples again, with a graph."""
        rows, buffers = kept.rows, self.engine.buffers
        changed = buffers.save()
        run, place = rows, None
        if rows.shape[0] == 1:  # twice, once without a gradient: some backwards of torch are wrong for a single row
            run, place = rows.repeat(2), torch.zeros_like(rows)
        elif rows.shape[0] == 0 and self.losses.shape[0]:  # this rank takes part with its first one, without a gradient
            run, place = torch.zeros_like(self.losses[:1]).long(), rows
        again, engine = self.engine.again(self, run)
        kept.pull(again, place)
        buffers.load(changed)  # after the backward, which may have saved them
        return Computed(self.losses, rows, self.right, engine)

    def abandon(self) -> Computed:
        """Nothing has to be undone."""
        return Computed(self.losses, None, self.right, "twopass")


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
