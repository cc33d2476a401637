"""One forward with a graph for all s samples, then a backward for the q chosen rows only.

A backend of torch.compile on AOTAutograd's split graphs. The forward graph runs on s rows. The backward callable
gathers the chosen rows of what was saved, runs the backward graph with q rows and returns the parameters' gradients
from inside torch's own autograd node: hooks, accumulation, loss scaling and version checks stay torch's. What cannot be
done exactly for some rows runs the whole backward graph, and the reason is logged once.
"""

import logging
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import default_partition
from torch.utils._pytree import tree_leaves

from ordered_sgd.engines import Backward, Choose, Computed, Score
from ordered_sgd.engines.dense import Dense
from ordered_sgd.engines.parallel import OneProcess
from ordered_sgd.engines.rows_check import first_difference, largest_difference
from ordered_sgd.engines.rows_plan import Rows, RowsPlan, make_plan
from ordered_sgd.engines.state import Buffers, Saved, device_of, random_state, restore_random_state
from ordered_sgd.engines.twopass import TwoPassEngine
from ordered_sgd.errors import check_choice, first_line, message
from ordered_sgd.errors import warn as warn_user
from ordered_sgd.selection import agree, rounding, select_rows

log = logging.getLogger("ordered_sgd")


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
        self._batchnorm = batchnorm is not None
        self._verify_every = verify_every
        self._rows: Tensor | None = None
        self._ran: set[str] = set()
        self._said: set[str] = set()
        self._broken = False
        self._graphs = 0
        self._buffers = Buffers(model)
        # LSTM on the CPU cannot be traced; with it in the model torch's default, a graph break, is right
        recurrent = {type(module) for module in model.modules() if isinstance(module, nn.RNNBase)}
        self._recurrent = bool(recurrent) and nn.LSTM not in recurrent
        self._score: Any = torch.compile(_with_code_of_its_own(score), backend=self._backend())

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
        _mark_batch(batch)
        device = device_of(self.model)
        random, saved, graphs = random_state(device), self._buffers.save(), self._graphs
        try:
            with torch._dynamo.config.patch(allow_rnn=True) if self._recurrent else nullcontext():
                losses, right = self.parallel.through(self._score, batch)
        except Exception as error:
            if not _from_compiler(error):
                raise
            self._give_up(f"the model could not be compiled ({first_line(error)})")
        if not self._broken and self._graphs > graphs:  # a new graph: its losses must be those of the model itself
            self._rewind(random, saved, device)
            with torch.no_grad():
                expected = self.dense.score(batch).losses
            if not agree(losses, expected):
                self._give_up("the compiled model gives other losses")
            self._rewind(random, saved, device)
            # once more, since buffers were written after the first time
            losses, right = self.parallel.through(self._score, batch)
        if self._broken:
            self._rewind(random, saved, device)
            return self.dense(batch, keeps_all, choose, backward)
        self._ran.clear()
        values = losses.detach()
        rows = choose(values, right)
        if rows is None:
            self.parallel.abandon(losses)
            return Computed(values, None, right, "rows")
        # a rank without a kept sample takes part with its first one, whose gradient is zero
        self._rows = rows if rows.shape[0] else torch.zeros(1, dtype=torch.int64, device=values.device)
        try:
            backward(losses, rows)
        finally:
            self._rows = None
        if not self._ran:
            self._say("the model could not be traced")
        return Computed(values, rows, right, "rows" if "rows" in self._ran else "dense")

    def _look_at_other_ranks(self, batch: Any) -> None:
        """Run dense where a pass is one of all ranks, or where there is nothing to compute."""
        if self.parallel.shares_statistics():
            self._give_up("SyncBatchNorm in training couples the samples of all ranks")
        elif _length(batch) == 0:
            self._say("this rank has no samples")

    def _give_up(self, reason: str) -> None:
        self._broken = True
        self._say(reason)

    def _rewind(self, random: list[Tensor], saved: Saved, device: torch.device) -> None:
        restore_random_state(random, device)
        self._buffers.load(saved)

    def _say(self, reason: str, *, warn: bool = False) -> None:
        self.why = reason
        if reason in self._said:
            return
        self._said.add(reason)
        log.info("engine rows runs the whole backward: %s", reason)
        if warn:
            remedy = 'Use engine="dense" to silence this.'
            text = message("OrderedStep", "samples", "not influence each other for engine rows", reason, remedy)
            warn_user(text)

    def _backend(self) -> Any:
        def partition(joint: fx.GraphModule, inputs: Any, **options: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
            forward, backward = default_partition(joint, inputs, **options)
            # the graph is copied before it is compiled, so the plan must travel with it
            backward.meta["rows_plan"] = make_plan(forward, backward, batchnorm=self._batchnorm)
            return forward, backward

        def compile_forward(graph: fx.GraphModule, inputs: Any) -> Any:
            self._graphs += 1
            return _boxed(graph.forward)

        def compile_backward(graph: fx.GraphModule, inputs: Any) -> Any:
            return _boxed(_BackwardOfRows(self, graph, graph.meta["rows_plan"]))

        return aot_autograd(fw_compiler=compile_forward, bw_compiler=compile_backward, partition_fn=partition)


class _BackwardOfRows:
    """A backward graph, run for the chosen rows once that has been shown to give the dense gradient."""

    def __init__(self, engine: RowsEngine, graph: fx.GraphModule, plan: RowsPlan) -> None:
        self.engine, self.graph, self.plan = engine, graph, plan
        self.calls = 0

    def __call__(self, *arguments: Any) -> Any:
        plan, engine, rows = self.plan, self.engine, self.engine._rows
        if rows is None:
            return self.graph(*arguments)
        if plan.reason is None and self._must_check():
            (self._check_order if plan.lenient else self._check)(arguments, rows)
        self.calls += 1
        reason = plan.reason
        if reason is None and self._reaches_others(arguments, rows):
            reason = "samples influence each other in a part that is not traced"
        if reason is not None:
            engine._ran.add("dense")
            engine._say(reason)
            return self.graph(*arguments)
        engine._ran.add("rows")
        return self.of_rows(arguments, rows)

    def _reaches_others(self, arguments: Any, rows: Tensor) -> bool:
        """Whether a gradient comes in for a sample that was not chosen, as after a coupling outside this graph."""
        for i in self.plan.tangents:
            place = self.plan.arguments[i]
            if not isinstance(place, Rows):
                continue
            values = {symbol: _read(arguments, where) for symbol, where in self.plan.symbols.items()}
            a, b = _factors(place, values)
            split = arguments[i] if a == b == 1 else arguments[i].unflatten(place.dim, (a, -1, b))
            if bool(split.index_fill(place.dim + (a != 1 or b != 1), rows, 0).any()):
                return True
        return False

    def of_rows(self, arguments: Any, rows: Tensor) -> list[Any]:
        """The results of the backward graph run on the rows alone."""
        plan = self.plan
        s = arguments[plan.batch[0]].shape[plan.batch[1]]
        q = rows.shape[0]
        if q == 1:  # graphs are specialised for sizes of at least 2: the row twice, the second with zero gradient
            rows = rows.expand(2)
        values = {symbol: _read(arguments, where) for symbol, where in plan.symbols.items()}
        gathered: list[Any] = []
        for i, (argument, how) in enumerate(zip(arguments, plan.arguments, strict=True)):
            if how is None:
                gathered.append(argument)
            elif isinstance(how, str):
                gathered.append(argument // s * rows.shape[0])
            elif plan.same_as[i] < i:
                gathered.append(gathered[plan.same_as[i]])
            else:
                part = gather(argument, how, rows, s, values)
                if q == 1 and i in plan.tangents:
                    part = _only_first(part, how, values)
                gathered.append(part)
        results = self.graph(*gathered)
        return [
            scatter(result, how, rows[:q], s, values) if how is not None and result is not None else result
            for result, how in zip(results, plan.results, strict=True)
        ]

    def _must_check(self) -> bool:
        every = self.engine._verify_every
        return self.calls == 0 or (every > 0 and self.calls % every == 0 and not self.plan.lenient)

    def _check(self, arguments: Any, rows: Tensor) -> None:
        """Set the plan's reason if the gradient of the rows is not the dense one on the same saved tensors."""
        plan = self.plan
        s = arguments[plan.batch[0]].shape[plan.batch[1]]
        subset = rows if rows.shape[0] < s else rows[: max(1, s // 2)]
        compared = False
        for change in (_disturbed, _masked):  # both: noise hides a wrong mask of zeros, and zeros hide a coupling
            tried = change(arguments, plan, subset, s)
            try:
                found = self.of_rows(tried, subset)
            except (RuntimeError, IndexError) as error:
                plan.reason = f"the backward cannot run on some rows ({first_line(error)})"
                return
            error_found = largest_difference(found, self.graph(*tried))
            if error_found is not None and error_found > rounding(plan.dtype):
                culprit = first_difference(self, tried, subset)
                plan.reason = f"samples influence each other in {culprit} (gradients differ by {error_found:.0e})"
                self.engine._say(plan.reason, warn=True)
                return
            compared = compared or error_found is not None
        if not compared:
            plan.reason = "the gradient could not be compared: it is not finite"

    def _check_order(self, arguments: Any, rows: Tensor) -> None:
        """Set the plan's reason if the rows cannot be run, or not in another order: BatchNorm does not care for it."""
        plan = self.plan
        s = arguments[plan.batch[0]].shape[plan.batch[1]]
        tried = _masked(arguments, plan, rows, s)
        try:
            error_found = largest_difference(self.of_rows(tried, rows.flip(0)), self.of_rows(tried, rows))
        except (RuntimeError, IndexError) as error:
            plan.reason = f"the backward cannot run on some rows ({first_line(error)})"
            return
        if error_found is not None and error_found > rounding(plan.dtype):
            plan.reason = (
                f"samples influence each other, not by BatchNorm alone (gradients differ by {error_found:.0e})"
            )
            self.engine._say(plan.reason, warn=True)


def gather(tensor: Tensor, place: Rows, rows: Tensor, s: int, values: dict[Any, int]) -> Tensor:
    """The chosen rows of a tensor, in the memory layout that it has."""
    a, b = _factors(place, values)
    if a == b == 1:
        if not place.read:
            return tensor.narrow(place.dim, 0, rows.shape[0])
        return select_rows(tensor, place.dim, rows)
    split = tensor.unflatten(place.dim, (a, s, b))
    return select_rows(split, place.dim + 1, rows).flatten(place.dim, place.dim + 2)


def scatter(part: Tensor, place: Rows, rows: Tensor, s: int, values: dict[Any, int]) -> Tensor:
    """The gradient of the whole batch: that of the rows, and zero elsewhere."""
    a, b = _factors(place, values)
    split = part.unflatten(place.dim, (a, -1, b)).narrow(place.dim + 1, 0, rows.shape[0])
    shape = list(split.shape)
    shape[place.dim + 1] = s
    whole = part.new_zeros(shape)
    return whole.index_copy_(place.dim + 1, rows, split).flatten(place.dim, place.dim + 2)


def _only_first(part: Tensor, place: Rows, values: dict[Any, int]) -> Tensor:
    a, b = _factors(place, values)
    part = part.unflatten(place.dim, (a, 2, b)).clone()
    part.select(place.dim + 1, 1).zero_()
    return part.flatten(place.dim, place.dim + 2)


def _masked(arguments: Any, plan: RowsPlan, rows: Tensor, s: int) -> list[Any]:
    """The arguments with random gradients coming in for the rows and none for the others."""
    generator = torch.Generator().manual_seed(0)
    changed = list(arguments)
    values = {symbol: _read(arguments, where) for symbol, where in plan.symbols.items()}
    for i in plan.tangents:
        place = plan.arguments[i]
        if isinstance(place, Rows):
            noise = torch.randn(arguments[i].shape, generator=generator).to(arguments[i])
            part = gather(noise, place, rows, s, values)
            changed[i] = scatter(part, place, rows, s, values)
    return changed


def _disturbed(arguments: Any, plan: RowsPlan, rows: Tensor, s: int) -> list[Any]:
    """The same with zeros in the saved tensors replaced by noise.

    What is compared must agree for any values, and a scale that is still zero would hide a coupling.
    """
    generator = torch.Generator().manual_seed(1)
    changed = _masked(arguments, plan, rows, s)
    for i, argument in enumerate(changed):
        if plan.same_as[i] < i:  # saved twice: still the same numbers
            changed[i] = changed[plan.same_as[i]]
        elif i not in plan.tangents and isinstance(argument, Tensor) and argument.is_floating_point():
            noise = torch.rand(argument.shape, generator=generator).to(argument) + 0.5
            changed[i] = torch.where(argument == 0, noise, argument)
    return changed


def _factors(place: Rows, values: dict[Any, int]) -> tuple[int, int]:
    """What stands before and after the batch in its dimension, as numbers."""
    a, b = (f if isinstance(f, int) else int(f.subs(values)) for f in (place.a, place.b))
    return a, b


def _read(arguments: Any, where: tuple[int, int | None]) -> int:
    argument, dim = where
    return int(arguments[argument] if dim is None else arguments[argument].shape[dim])


def _boxed(function: Any) -> Any:
    def run(arguments: list[Any]) -> Any:
        taken = list(arguments)
        arguments.clear()  # the caller must not keep what was saved alive
        return function(*taken)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _mark_batch(batch: Any) -> None:
    """Tell torch.compile that the first dimension of the batch's tensors varies."""
    tensors = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.dim() > 0]
    sizes = [tensor.shape[0] for tensor in tensors]
    for tensor, size in zip(tensors, sizes, strict=True):
        if size == sizes[0] and size > 1:
            torch._dynamo.maybe_mark_dynamic(tensor, 0)


def _length(batch: Any) -> int | None:
    """Samples in a batch, as its first tensor tells."""
    return next((leaf.shape[0] for leaf in tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.dim() > 0), None)


def _with_code_of_its_own(score: Score) -> Any:
    """The function with a new code object: torch.compile counts recompiles per code object, over all models."""

    def run(batch: Any) -> Any:
        return score(batch)

    run.__code__ = run.__code__.replace()
    return run


def _from_compiler(error: Exception) -> bool:
    return type(error).__module__.startswith(("torch._dynamo", "torch.fx", "torch._functorch", "torch._subclasses"))
