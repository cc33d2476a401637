"""One forward with a graph for all s samples, then a backward for the q chosen rows only.

A backend of torch.compile on AOTAutograd's split graphs. The forward graph runs on s rows. The backward callable
gathers the chosen rows of what was saved, runs the backward graph with q rows and returns the parameters' gradients
from inside torch's own autograd node: hooks, accumulation, loss scaling and version checks stay torch's. What cannot be
done exactly for some rows runs the whole backward graph, and the reason is logged once.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from ordered_sgd.engines.dense import DenseEngine, DenseScored
from ordered_sgd.engines.phases import Ahead, Around, Computed, Kept, Parts, Scored, Stateless
from ordered_sgd.engines.replay import length_of
from ordered_sgd.engines.twopass import TwoPass
from ordered_sgd.errors import ArgumentError, check_choice, message
from ordered_sgd.rewind import is_unfinished
from ordered_sgd.selective.explain import BackwardFailedError, BackwardReport, NotCompiledError, hint_for


@dataclass(frozen=True)
class Rows:
    """One forward for all samples, and a backward for the kept ones only.

    Parameters
    ----------
    batchnorm : str or None, default=None
        ``"full-batch"`` lets BatchNorm in training through: full-batch statistics, with its backward over the chosen
        rows. That is not the one-liner's gradient, which also flows through the rows that were not chosen.
    verify_every : int, default=0
        Compare with the dense backward again every `verify_every` steps; 0: only for each new graph.

    Examples
    --------
    >>> Rows(verify_every=50)
    Rows(batchnorm=None, verify_every=50)
    """

    batchnorm: Literal["full-batch"] | None = None
    verify_every: int = 0

    def __post_init__(self) -> None:
        check_choice("Rows", "batchnorm", self.batchnorm, (None, "full-batch"), 'Pass batchnorm="full-batch".')
        check_verify_every("Rows", self.verify_every)

    def build(self, parts: Parts) -> "RowsEngine":
        """The engine of one training."""
        return RowsEngine(parts, self)


def check_verify_every(where: str, verify_every: int) -> None:
    """Raise unless it is a number of steps."""
    if not isinstance(verify_every, int) or isinstance(verify_every, bool) or verify_every < 0:
        remedy = "Use verify_every=50, or 0 to compare only once for each graph."
        raise ArgumentError(message(where, "verify_every", "be an int of at least 0", repr(verify_every), remedy))


class RowsEngine(Stateless):
    """The gradient of the ordered loss with the backward work of q rows."""

    def __init__(self, parts: Parts, options: Rows) -> None:
        # torch's compiler takes seconds to load
        from ordered_sgd.selective.compiler import SelectiveBackend
        from ordered_sgd.selective.runs import CheckedRuns
        from ordered_sgd.selective.versions import why_not

        self._parts, self._options = parts, options
        self.dense = DenseEngine(parts)
        self.parallel = parts.parallel
        needs_another = self.parallel.why_not_rows is not None
        self._instead = TwoPass().build(parts) if needs_another else None
        remedy, hint = 'Use engine="dense" to silence this.', hint_for(parts.model)
        self.report = BackwardReport(name="engine rows", remedy=remedy, hint=hint)
        through = options.batchnorm is not None
        backend = SelectiveBackend(self.report, batchnorm=through, verify_every=options.verify_every)
        self._runs = CheckedRuns(parts.model, parts.buffers, parts.score, backend)
        self._model, self._broken, self._unfinished = parts.model, False, True
        reason = why_not()
        if reason is not None:
            self._give_up(reason)

    def __deepcopy__(self, memo: dict[int, Any]) -> "RowsEngine":
        """An engine that compiles the copied model itself, because compiled graphs cannot be copied."""
        return RowsEngine(copy.deepcopy(self._parts, memo), self._options)

    @property
    def why(self) -> str | None:
        """Why the whole backward ran, at last."""
        if self._instead is not None:
            return self._instead.why or self.parallel.why_not_rows
        reason = next(reversed(self.report.reasons), None)
        if reason is None and self.report.eager:
            reason = "torch.compile leaves a part of the model alone"
        return reason if reason is None or not self.report.hint else f"{reason}. {self.report.hint}"

    def forward(self, batch: Any, ahead: Ahead) -> Scored:
        """The losses of one batch, with a graph whose backward can be run for some rows."""
        if self._instead is not None:
            return self._instead.forward(batch, ahead)
        if not (ahead.keeps_all or self._broken) and self.parallel.over_ranks:
            self._look_at_other_ranks(batch)
        self._unfinished = self._unfinished and is_unfinished(self._model)
        if ahead.keeps_all or self._broken or self._unfinished or length_of(batch) == 0:
            return self.dense.forward(batch, ahead)
        through = partial(self.parallel.through, self._runs.compiled, batch)
        try:
            found, undo = self._runs(through, partial(self.dense.score, batch), batch)
        except NotCompiledError as error:
            self._give_up(str(error))
            return self.dense.forward(batch, ahead)
        scored = DenseScored.of(found, self.parallel)
        return RowsScored(scored, self.report, partial(self._again, batch, ahead, undo))

    def _again(self, batch: Any, ahead: Ahead, undo: Callable[[], None]) -> Scored:
        """The losses of a batch whose compiled backward failed, without torch.compile."""
        self._give_up(self.report.plain or "its compiled backward failed")
        undo()
        return self.dense.forward(batch, ahead)

    def _look_at_other_ranks(self, batch: Any) -> None:
        """Run dense where a pass is one of all ranks, or where there is nothing to compute."""
        if self.parallel.shares_statistics():
            self._give_up("SyncBatchNorm in training couples the samples of all ranks")
        elif length_of(batch) == 0:
            self.report.say("this rank has no samples")

    def _give_up(self, reason: str) -> None:
        self._broken = True
        self.report.say(reason)


@dataclass(frozen=True)
class RowsScored(Around):
    """Losses with a graph whose backward reads off its incoming gradient which rows to run."""

    inner: DenseScored
    report: BackwardReport
    again: Callable[[], Scored]

    def backward(self, kept: Kept) -> Computed:
        """Back-propagate through the kept rows, or all where that is not exact."""
        passes, skipping = self.report.passes, self.report.skipping
        model = self.inner.parallel.model
        fresh = all(p.grad is None for p in model.parameters())
        try:
            computed = self.inner.backward(kept)
        except BackwardFailedError:
            if not fresh or self.inner.parallel.over_ranks:  # what a part of it has added cannot be taken back
                raise
            model.zero_grad(set_to_none=True)
            return self.again().backward(kept)
        if self.report.passes == passes:
            self.report.say("the model could not be traced")
        if self.report.skipping == skipping:
            return computed
        whole = self.report.eager or self.report.passes - passes > self.report.skipping - skipping
        return computed._replace(engine="rows in part" if whole else "rows")

    def abandon(self) -> Computed:
        """Leave the pass."""
        return self.inner.abandon()._replace(engine="rows")
