"""torch.compile with graphs as they are, each backward split by rows where it can be, and checked against the model."""

import logging
import operator
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, fx, nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import default_partition
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.checkpoint import CheckpointPolicy

from ordered_sgd.agreement import agree
from ordered_sgd.errors import first_line
from ordered_sgd.rewind import Buffers, Writes, device_of, random_state, restore_random_state
from ordered_sgd.selective.couplings import check_rows
from ordered_sgd.selective.explain import BackwardReport, NotCompiledError
from ordered_sgd.selective.rows_plan import NO_SYMBOL, is_random, make_plan
from ordered_sgd.selective.split import SplitBackward


class SelectiveBackend:
    """What torch.compile is given as ``backend=``.

    Parameters
    ----------
    report
        Told what every backward pass ran.
    batchnorm
        Let BatchNorm in training through: full-batch statistics, with its backward over the rows that are computed.
    verify_every
        Repeat the comparison with the whole backward every so many passes; 0: only for each new graph.
    eager_dropout
        Compute dropout as the model does without torch.compile, bit for bit; it is faster, too.

    Attributes
    ----------
    graphs : int
        Forward graphs that were compiled.
    forwards : int
        Forward graphs that were run.
    untied : bool
        Whether a graph whose inputs have batch sizes of their own needs to know that they are equal.
    fixed : bool
        Whether a graph has a number in place of the batch size, as one behind a part that is not traced.
    """

    def __init__(
        self,
        report: BackwardReport,
        *,
        batchnorm: bool = False,
        verify_every: int = 0,
        eager_dropout: bool = False,
    ) -> None:
        self.report, self._batchnorm, self._verify_every = report, batchnorm, verify_every
        self.graphs = self.forwards = self._pieces = 0
        self.untied = self.fixed = False
        self._compile = aot_autograd(
            fw_compiler=self._forward,
            bw_compiler=self._backward,
            partition_fn=self._partition,
            decompositions=DROPOUT if eager_dropout else None,
        )

    def __call__(self, graph: fx.GraphModule, inputs: Any, **options: Any) -> Any:
        """The compiled graph."""
        self._pieces += 1
        if self._pieces > MOST_PIECES:
            raise NotCompiledError(f"torch.compile cuts it into more than {MOST_PIECES} pieces")
        return _marking(self._compile(graph, inputs, **options), graph)

    def begin(self) -> None:
        """The model is about to be run."""
        self._pieces = 0

    def _partition(self, joint: fx.GraphModule, inputs: Any, **options: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
        drawn = _save_draws(joint)
        forward, backward = default_partition(joint, inputs, **options)
        if any(node.op == "call_function" and node.name in drawn for node in backward.graph.nodes):
            raise NotCompiledError("random numbers of a checkpoint would be drawn twice")
        # the graph is copied before it is compiled, so the plan must travel with it
        plan = backward.meta["rows_plan"] = make_plan(forward, backward, batchnorm=self._batchnorm)
        self.untied, self.fixed = self.untied or plan.untied, self.fixed or plan.reason == NO_SYMBOL
        return forward, backward

    def _forward(self, graph: fx.GraphModule, inputs: Any) -> Any:
        self.graphs += 1
        metadata: Any = torch._guards.TracingContext.get().fw_metadata
        metadata.bw_donated_idxs = []  # nothing saved is overwritten: a graph may be kept and run twice

        def run(*arguments: Any) -> Any:
            self.forwards += 1
            return graph.forward(*arguments)

        return _boxed(run)

    def _backward(self, graph: fx.GraphModule, inputs: Any) -> Any:
        _reshape_views(graph)
        return _boxed(SplitBackward(graph, graph.meta["rows_plan"], self.report, check_rows, self._verify_every))


def _save_draws(joint: fx.GraphModule) -> set[str]:
    """Mark what is drawn inside a checkpoint as saved: the backward must use the same numbers, and some rows of them.

    Returns the names of the nodes that draw.
    """
    drawn = [node for node in joint.graph.nodes if "recompute" in node.meta and is_random(node)]
    for node in drawn:
        results = [user for user in node.users if user.target is operator.getitem]
        for one in (node, *results):
            one.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    return {node.name for node in drawn}


def _reshape_views(graph: fx.GraphModule) -> None:
    """Replace `view` by `reshape`, which copies where needed; nothing in the graph is written to.

    Kernels do not always lay their results out as torch's tracing says, nor for some rows as for all of them.
    """
    views = (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default)
    for node in graph.graph.nodes:
        if node.target in views:
            node.target = torch.ops.aten.reshape.default
    graph.recompile()


def _marking(run: Any, graph: fx.GraphModule) -> Any:
    """The compiled graph, whose results tell a graph after it which of their dimensions is the batch."""
    (output,) = (node for node in graph.graph.nodes if node.op == "output")
    values = [node.meta.get("example_value") if isinstance(node, fx.Node) else None for node in output.args[0]]
    dims = {
        i: dim
        for i, value in enumerate(values)
        if isinstance(value, Tensor)
        for dim, size in enumerate(value.shape)
        if isinstance(size, torch.SymInt)
    }

    def marked(*arguments: Any) -> Any:
        results = run(*arguments)
        for i, dim in dims.items():
            torch._dynamo.maybe_mark_dynamic(results[i], dim)
        return results

    return marked if dims else run


def _boxed(function: Any) -> Any:
    def run(arguments: list[Any]) -> Any:
        taken = list(arguments)
        arguments.clear()  # the caller must not keep what was saved alive
        return function(*taken)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _dropout(x: Tensor, p: float, train: bool | None) -> Any:
    """Dropout as an eager model on the CPU computes it: one product with a scaled mask, not two with one of booleans.

    Only where `torch.bernoulli` draws in the same order: it makes a contiguous tensor.
    """
    if not train or not 0 < p < 1 or not x.is_contiguous() or x.device.type != "cpu":
        return NotImplemented
    kept = torch.bernoulli(x, 1 - p).div(1 - p)
    return x * kept, kept


def _dropout_backward(gradient: Tensor, kept: Tensor, scale: float) -> Any:
    return NotImplemented if kept.dtype == torch.bool else gradient * kept


DROPOUT = {
    torch.ops.aten.native_dropout.default: _dropout,
    torch.ops.aten.native_dropout_backward.default: _dropout_backward,
}


Outputs = TypeVar("Outputs")

# nodes of autograd: compiled graphs, parameters, and views that AOTAutograd makes of a graph's results
_COMPILED = re.compile(
    r"(CompiledFunction|.*AccumulateGrad|(\w*View|Alias|T|Transpose|Permute|Slice|Select|Split|Squeeze|Unsqueeze|Expand|"
    r"AsStrided|Detach)(WithSizes)?Backward)"
)


STEADY_AFTER = 8  # calls without a new graph
MOST_PIECES = 32  # of a model whose forward torch.compile cannot trace in one: each takes a second or so to compile


class CheckedRuns:
    """Runs of a compiled function of a model, whose outputs are compared with those of the model for every new graph.

    Parameters
    ----------
    model
        What is run; the generators are as after a single run.
    buffers
        Of the model and what else is run: they, too, are as after a single run.
    function
        Calls the model with a batch.
    backend
        Compiles the function.
    """

    def __init__(
        self, model: nn.Module, buffers: Buffers, function: Callable[[Any], Any], backend: SelectiveBackend
    ) -> None:
        self.backend, self._buffers = backend, buffers
        self._function, self._tied, self._resized = function, False, False
        self._compiled = torch.compile(_with_code_of_its_own(function), backend=backend)
        # LSTM on the CPU cannot be traced; with it in the model torch's default, a graph break, is right
        recurrent = {type(module) for module in model.modules() if isinstance(module, nn.RNNBase)}
        changed = {"allow_rnn": True} if recurrent and nn.LSTM not in recurrent else {}
        changed["skip_nnmodule_hook_guards"] = False  # hooks may be added later
        changed["allow_unspec_int_on_nn_module"] = True  # a counter of calls is not worth a graph for every value
        self._config = torch._dynamo.config.patch(changed)
        self._steady = 0  # calls since the last new graph

    def compiled(self, batch: Any) -> Any:
        """What the function returns, by compiled code."""
        return self._compiled(batch)

    def __call__(
        self, run: Callable[[], Outputs], reference: Callable[[], Any], batch: Any
    ) -> tuple[Outputs, Callable[[], None]]:
        """What `run`, which calls `compiled` with the batch, returns, and a function that undoes the run.

        Raises `NotCompiledError`, with everything as before, where it cannot be compiled or differs from `reference`,
        the same without torch.compile.
        """
        undo = partial(self._rewind, random_state(device_of(self._buffers.model)), self._buffers.save())
        first = self.backend.graphs == 0 and not _saves_elsewhere()
        expected = self._expected(reference, undo) if first else None
        mark_batch(batch)
        self.backend.begin()
        graphs, forwards = self.backend.graphs, self.backend.forwards
        self._steady += 1
        try:
            with self._settings():
                outputs = run()
        except Exception as error:
            if _saves_elsewhere():
                raise
            undo()
            if not (first or _from_compiler(error)):
                self._expected(reference, undo)  # raises what the model itself raises
            cause = getattr(error, "inner_exception", None) or error  # the backend's own, if that is where it failed
            raise NotCompiledError(f"the model could not be compiled ({first_line(cause)})") from error
        if self.backend.forwards == forwards:  # what was run is the model itself: past the limit of recompiles, say
            return outputs, undo
        if self.backend.graphs == graphs or _saves_elsewhere():
            return outputs, undo
        self._steady = 0
        if self.backend.untied and not self._tied:
            self._tied = True
            self._compiled = torch.compile(_with_code_of_its_own(partial(_tied, self._function)), backend=self.backend)
            undo()
            return self(run, reference, batch)
        if self.backend.fixed and not self._resized:
            self._resized = True
            undo()
            self._run_smaller(batch)
            undo()
            with self._settings():
                outputs = run()
        self.backend.report.eager = not _traced(outputs, batch)
        if expected is None:  # a later graph, which nobody could foresee
            undo()
            expected = self._expected(reference, undo)
            with self._settings():
                outputs = run()
        if not _agree(outputs, expected):
            undo()
            raise NotCompiledError("the compiled model gives other outputs")
        return outputs, undo

    def _run_smaller(self, batch: Any) -> None:
        """Run all samples but one: a size that has changed once gets a symbol in every graph."""
        s = next((leaf.shape[0] for leaf in tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.dim() > 0), 0)
        if s < 3:  # sizes of 0 and 1 never have a symbol
            return

        def part(leaf: Any) -> Any:
            has_batch = isinstance(leaf, Tensor) and leaf.dim() > 0 and leaf.shape[0] == s
            return leaf[:-1] if has_batch else leaf

        smaller = tree_map(part, batch)
        mark_batch(smaller)
        with suppress(Exception), self._settings():  # whatever a model raises of a batch size that it does not expect
            self.compiled(smaller)

    def _expected(self, reference: Callable[[], Any], undo: Callable[[], None]) -> Any:
        """The outputs of the model itself; everything is as before."""
        writes = Writes(self._buffers.model)
        with torch.no_grad(), writes:
            expected = reference()
        written = writes.undone()
        undo()
        if written is not None:
            raise NotCompiledError(f"a pass changes the parameter {written!r}")
        return expected

    @contextmanager
    def _settings(self) -> Iterator[None]:
        # torch prints pages about graph breaks, which are ours to explain; a change of level is slow, so only at first
        quiet = self._steady <= STEADY_AFTER and not os.environ.get("TORCH_LOGS")
        logger = logging.getLogger("torch._dynamo")
        level = logger.level
        if quiet:
            logger.setLevel(logging.ERROR)
        try:
            with self._config:
                yield
        finally:
            if quiet:
                logger.setLevel(level)

    def _rewind(self, random: list[Tensor], saved: Any) -> None:
        restore_random_state(random, device_of(self._buffers.model))
        self._buffers.load(saved)


def _with_code_of_its_own(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The function with a new code object: torch.compile counts recompiles per code object, over all models."""

    def run(batch: Any) -> Any:
        return function(batch)

    run.__code__ = run.__code__.replace()
    return run


def _tied(function: Callable[[Any], Any], batch: Any) -> Any:
    """What the function returns, traced with the knowledge that inputs of equal batch size have one batch."""
    tensors = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.dim() > 0]
    for tensor in tensors[1:]:
        if tensor.shape[0] == tensors[0].shape[0]:  # comparing is enough: torch.compile adds a guard for the answer
            continue
    return function(batch)


def _traced(outputs: Any, batch: Any) -> bool:
    """Whether all that leads from the batch to the outputs was computed by compiled graphs, but for views of them."""
    inputs = {leaf.grad_fn for leaf in tree_leaves(batch) if isinstance(leaf, Tensor)}
    waiting = {leaf.grad_fn for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor)} - inputs - {None}
    seen = set(waiting)
    while waiting:
        node: Any = waiting.pop()
        if not _COMPILED.match(node.name()):
            return False
        before = {function for function, _ in node.next_functions} - seen - inputs - {None}
        seen |= before
        waiting |= before
    return True


def _saves_elsewhere() -> bool:
    """Whether hooks take what is saved, as those of checkpointing, which count it: nothing may be run twice."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def _agree(outputs: Any, expected: Any) -> bool:
    pairs = zip(tree_leaves(outputs), tree_leaves(expected), strict=True)
    floats = [(a, b) for a, b in pairs if isinstance(a, Tensor) and a.is_floating_point()]
    return all(a.shape == b.shape and agree(a, b) for a, b in floats)


def mark_batch(batch: Any) -> None:
    """Tell torch.compile that the first dimension of the batch's tensors varies, and no other."""
    tensors = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.dim() > 0]
    sizes = [tensor.shape[0] for tensor in tensors]
    for tensor, size in zip(tensors, sizes, strict=True):
        if size == sizes[0] and size > 1:
            torch._dynamo.maybe_mark_dynamic(tensor, 0)


def _from_compiler(error: Exception) -> bool:
    """Whether torch's compiler raised it, and not the model."""
    return type(error).__module__.startswith(("torch._dynamo", "torch.fx", "torch._functorch", "torch._subclasses"))
