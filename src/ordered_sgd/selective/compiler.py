"""A backend of torch.compile that runs graphs as they are, with each backward split by rows where it can be."""

import operator
from typing import Any

import torch
from torch import Tensor, fx
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import default_partition
from torch.utils.checkpoint import CheckpointPolicy

from ordered_sgd.selective.couplings import check_rows
from ordered_sgd.selective.explain import BackwardReport, NotCompiledError
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
