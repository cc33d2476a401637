"""A backend of torch.compile that splits each backward by rows where it can be, and runs graphs as they are.

On request, inductor compiles them.
"""

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import config as functorch_config
from torch._functorch.partitioners import default_partition
from torch.utils.checkpoint import CheckpointPolicy

from ordered_sgd.selective.couplings import check_rows
from ordered_sgd.selective.explain import BackwardReport, NotCompiledError
from ordered_sgd.selective.lowering import Lowering, decompositions, partition
from ordered_sgd.selective.rows_plan import NO_SYMBOL, make_plan
from ordered_sgd.selective.sizes import is_random
from ordered_sgd.selective.split import SplitBackward

MOST_PIECES = 32  # of a model whose forward torch.compile cannot trace in one: each takes a second or so to compile


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
    lower
        Compile the graphs with inductor.

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
        lower: bool = False,
    ) -> None:
        own = DROPOUT if eager_dropout else {}
        self.report, self._batchnorm, self._verify_every = report, batchnorm, verify_every
        self.graphs = self.forwards = self._pieces = 0
        self.untied = self.fixed = False
        self._lower = lower
        self._compile = aot_autograd(
            fw_compiler=self._forward,
            bw_compiler=self._backward,
            partition_fn=self._partition,
            decompositions=decompositions(own) if lower else own,
        )

    def __call__(self, graph: fx.GraphModule, inputs: Any, **options: Any) -> Any:
        """The compiled graph."""
        self._pieces += 1
        if self._pieces > MOST_PIECES:
            raise NotCompiledError(f"torch.compile cuts it into more than {MOST_PIECES} pieces")
        # a backward that is compiled later could not tell torch.compile what it takes for granted
        at_once = self._lower or functorch_config.force_non_lazy_backward_lowering
        with functorch_config.patch(force_non_lazy_backward_lowering=at_once):
            return _marking(self._compile(graph, inputs, **options), graph)

    def begin(self) -> None:
        """The model is about to be run."""
        self._pieces = 0

    def _partition(self, joint: fx.GraphModule, inputs: Any, **options: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
        drawn = _save_draws(joint)
        if self._lower:
            forward, backward = partition(joint, inputs, **options)
            forward.meta["lowering"] = backward.meta["lowering"] = Lowering()
        else:
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
        code = graph.forward
        if self._lower:
            code = graph.meta.get("lowering", Lowering()).forward(graph, inputs, metadata, self.report)

        def run(*arguments: Any) -> Any:
            self.forwards += 1
            return code(*arguments)

        return _boxed(run)

    def _backward(self, graph: fx.GraphModule, inputs: Any) -> Any:
        plan, lowering = graph.meta["rows_plan"], graph.meta.get("lowering")
        lowered = lowering.backward(graph, inputs, plan, self.report) if lowering is not None else None
        _reshape_views(graph)
        return _boxed(SplitBackward(graph, plan, self.report, check_rows, self._verify_every, lowered))


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


DROPOUT: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.native_dropout.default: _dropout,
    torch.ops.aten.native_dropout_backward.default: _dropout_backward,
}
