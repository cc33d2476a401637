"""One forward with a graph for all s samples, then a backward for the q chosen rows only.

A backend of torch.compile on AOTAutograd's split graphs. The forward graph runs on s rows. The backward callable
gathers the chosen rows of what was saved, runs the backward graph with q rows and returns the parameters' gradients
from inside torch's own autograd node: hooks, accumulation, loss scaling and version checks stay torch's. What cannot be
done exactly for some rows runs the whole backward graph, and the reason is logged once.
"""

from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ordered_sgd.engines import Backward, Choose, Computed, Score
from ordered_sgd.engines.dense import Dense
from ordered_sgd.engines.parallel import OneProcess
from ordered_sgd.engines.twopass import TwoPassEngine
from ordered_sgd.errors import check_choice
from ordered_sgd.selective.compiler import CheckedRuns, NotCompiledError, SelectiveBackend
from ordered_sgd.selective.explain import BackwardReport


class RowsEngine:
    """The gradient of the ordered loss with the backward work of q rows.

    Parameters
    ----------
    batchnorm
        ``"full-batch"`` lets BatchNorm in training through: full-batch statistics, with its backward over the chosen
        rows. That is not the one-liner's gradient, which also flows through the rows that were not chosen.
    verify_every
        Repeat the comparison with the dense backward every so many steps; 0: only for each new graph.
    """

    def __init__(
        self,
        model: nn.Module,
        score: Score,
        parallel: OneProcess | None = None,
        *,
        batchnorm: str | None = None,
        verify_every: int = 0,
    ) -> None:
        check_choice("OrderedStep", "batchnorm", batchnorm, (None, "full-batch"), 'Pass batchnorm="full-batch".')
        self.model = model
        self.dense = Dense(model, score, parallel)
        self.parallel = self.dense.parallel
        self.why = self.parallel.why_not_rows
        self._instead = None if self.why is None else TwoPassEngine(model, score, parallel)
        self._report = BackwardReport(name="engine rows", remedy='Use engine="dense" to silence this.')
        backend = SelectiveBackend(self._report, batchnorm=batchnorm is not None, verify_every=verify_every)
        self._runs = CheckedRuns(model, score, backend)
        self._broken = False

    def __call__(self, batch: Any, keeps_all: bool, choose: Choose, backward: Backward) -> Computed:
        """Lines 4 and 5 for one batch."""
        if self._instead is not None:
            computed = self._instead(batch, keeps_all, choose, backward)
            self.why = self._instead.why or self.why
            return computed
        if not (keeps_all or self._broken) and self.parallel.over_ranks:
            self._look_at_other_ranks(batch)
        if keeps_all or self._broken or _length(batch) == 0:
            return self.dense(batch, keeps_all, choose, backward)
        through = partial(self.parallel.through, self._runs.compiled, batch)
        try:
            losses, right = self._runs(through, partial(self.dense.score, batch), batch)
        except NotCompiledError as error:
            self._give_up(str(error))
            return self.dense(batch, keeps_all, choose, backward)
        values = losses.detach()
        rows = choose(values, right)
        if rows is None:
            self.parallel.abandon(losses)
            return Computed(values, None, right, "rows")
        passes, skipping = self._report.passes, self._report.skipping
        backward(losses, rows)
        if self._report.passes == passes:
            self._report.say("the model could not be traced")
        self.why = next(reversed(self._report.reasons), None) or self.why
        return Computed(values, rows, right, "rows" if self._report.skipping > skipping else "dense")

    def _look_at_other_ranks(self, batch: Any) -> None:
        """Run dense where a pass is one of all ranks, or where there is nothing to compute."""
        if self.parallel.shares_statistics():
            self._give_up("SyncBatchNorm in training couples the samples of all ranks")
        elif _length(batch) == 0:
            self.why = "this rank has no samples"

    def _give_up(self, reason: str) -> None:
        self._broken = True
        self._report.say(reason)
        self.why = reason


def _length(batch: Any) -> int | None:
    """Samples in a batch, as its first tensor tells."""
    return next((leaf.shape[0] for leaf in tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.dim() > 0), None)
