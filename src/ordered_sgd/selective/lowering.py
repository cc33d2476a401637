"""Graphs compiled with inductor: the forward for the whole batch, the backward for some of its rows as well.

Compiled code expects the strides that its graph records, which are expressions of the batch size, and rests on what was
learnt about the batch size while it was compiled. For some rows, both are looked up with their number in place of the
batch size. The graph itself, run node by node, is what compiled code is compared with, and what runs in its place.
"""

import copy
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import sympy
import torch
from torch import Tensor, fx
from torch._dynamo.source import ConstantSource
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import TracingContext
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.utils.checkpoint import CheckpointPolicy

from ordered_sgd.errors import first_line
from ordered_sgd.selective.explain import BackwardReport
from ordered_sgd.selective.lowered import Assumed, Code, LoweredBackward, Sizes
from ordered_sgd.selective.rows_plan import RowsPlan
from ordered_sgd.selective.sizes import carries, expr, first_symbols, tensors_of

# random numbers are those of the model itself: its outputs are compared with it, and dropout trains the same
_SETTINGS: dict[str, Any] = {"fallback_random": True, "triton.cudagraphs": False}
# code from a cache comes without all that was learnt about the batch size
_BACKWARD = _SETTINGS | {"fx_graph_cache": False, "fx_graph_remote_cache": False}


def decompositions(own: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """What inductor replaces operators with; those of one's own come first, unless they return `NotImplemented`."""
    import torch._inductor.compile_fx  # decompositions look for modules that it loads
    from torch._inductor import config
    from torch._inductor.decomposition import select_decomp_table

    with config.patch(_SETTINGS):
        table = dict(select_decomp_table())
    table.pop(torch.ops.aten.detach.default, None)  # an alias would not say that no gradient goes through it
    return table | {operator: _first(replace, table.get(operator)) for operator, replace in own.items()}


def _first(own: Callable[..., Any], other: Callable[..., Any] | None) -> Callable[..., Any]:
    def replace(*args: Any, **kwargs: Any) -> Any:
        found = own(*args, **kwargs)
        return other(*args, **kwargs) if found is NotImplemented and other is not None else found

    return replace


def partition(joint: fx.GraphModule, inputs: Any, **options: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Forward and backward as inductor likes them: what costs little is computed again instead of being saved.

    Statistics of the batch are saved whatever they cost: computed again, they would be those of some rows.
    """
    symbols = first_symbols([node for node in joint.graph.nodes if node.op == "placeholder"])
    behind: set[fx.Node] = set()  # the incoming gradients
    for node in joint.graph.nodes:
        sources = node.all_input_nodes
        if node.name.startswith("tangents") or not behind.isdisjoint(sources):
            behind.add(node)
        elif _loses(node, symbols):
            for one in (node, *(user for user in node.users if user.target is operator.getitem)):
                one.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    return min_cut_rematerialization_partition(joint, inputs, compiler="inductor", **options)


def _loses(node: fx.Node, symbols: set[Any]) -> bool:
    """Whether none of a node's results has a batch dimension that one of its arguments has."""
    results = tensors_of(node.meta.get("val"))
    return bool(results) and any(
        not any(carries(one, symbol) for one in results)
        and any(carries(one, symbol) for source in node.all_input_nodes for one in tensors_of(source.meta.get("val")))
        for symbol in symbols
    )


class Lowering:
    """What inductor makes of a forward graph and its backward graph; they have to come in this order.

    It may be copied in between, with the graphs; the report, which is told why a graph is not compiled, may not.
    """

    def __init__(self) -> None:
        self._strides: dict[str, Any] | None = None  # of the forward's results, by name; None if it is not compiled

    def forward(
        self, graph: fx.GraphModule, inputs: Sequence[Any], metadata: Any, report: BackwardReport
    ) -> Callable[..., Any]:
        """A function that does what the forward graph does."""
        lowered = _copied(graph)
        (output,) = (node for node in lowered.graph.nodes if node.op == "output")
        results = output.args[0]
        trained = metadata.num_symints_saved_for_bw is not None
        visible = metadata.tensors_saved_for_backwards_slice.start if trained else len(results)
        # what the model returns keeps its strides; what is saved need not
        output.meta["user_visible_output_idxs"] = [i for i in range(visible) if isinstance(results[i], fx.Node)]
        code = _compiled(lowered, inputs, report, _SETTINGS)
        if code is None:
            return graph.forward
        names = [node.name if isinstance(node, fx.Node) else None for node in results]
        strides = getattr(code, "output_strides", None) or [None] * len(names)
        self._strides = {name: one for name, one in zip(names, strides, strict=True) if name is not None}
        return lambda *arguments: code(list(arguments))

    def backward(
        self, graph: fx.GraphModule, inputs: Sequence[Any], plan: RowsPlan, report: BackwardReport
    ) -> LoweredBackward | None:
        """A function that does what the backward graph does, for any number of rows; None if it is not compiled."""
        if self._strides is None:
            return None
        names = [node.name for node in graph.graph.nodes if node.op == "placeholder"]
        placed = [self._as_saved(name, value) for name, value in zip(names, inputs, strict=True)]
        strides = [tuple(map(expr, v.stride())) if isinstance(v, Tensor) else None for v in placed]
        code = _compiled(_copied(graph), placed, report, _BACKWARD, is_backward=True)
        if code is None:
            return None
        report.lowered += 1
        batch = plan.symbol
        assumed = None if batch is None else Assumed.of(_shape_env(), batch, {batch: batch})
        again = partial(_lower_again, graph, strides, plan, report)
        return LoweredBackward(graph, Code(code, assumed), strides, plan, report, again)

    def _as_saved(self, name: str, value: Any) -> Any:
        """A traced argument of the backward with the strides that the compiled forward gives it, whatever the batch.

        AOTAutograd has put in those of this batch, as numbers.
        """
        saved = (self._strides or {}).get(name)
        if saved is None or not isinstance(value, Tensor):
            return value
        env = _shape_env()
        strides = [env.deserialize_symexpr(one) for one in saved] if env is not None else [int(one) for one in saved]
        if [expr(one) for one in strides] == [expr(one) for one in value.stride()]:
            return value
        return value.as_strided(value.shape, strides)


def _lower_again(
    graph: fx.GraphModule, strides: Sequence[Any], plan: RowsPlan, report: BackwardReport, sizes: Sizes
) -> Code | None:
    """The backward graph compiled for other sizes than those that it was traced with; None if that fails."""
    assert plan.symbol is not None
    try:
        env = ShapeEnv()
        names = {
            symbol: env.create_symbol(size, ConstantSource(f"size_{i}"), dynamic_dim=DimDynamic.DYNAMIC)
            for i, (symbol, size) in enumerate(sizes.items())
        }
        values = {symbol: sympy.Integer(size) for symbol, size in sizes.items()}

        def size(traced: Any) -> Any:
            return env.create_symintnode(traced.xreplace(names), hint=int(traced.xreplace(values)))

        inputs = [node.meta["val"] for node in graph.graph.nodes if node.op == "placeholder"]
        with FakeTensorMode(shape_env=env):
            for i, (value, steps) in enumerate(zip(inputs, strides, strict=True)):
                if isinstance(value, Tensor):
                    shape = [size(expr(one)) for one in value.shape]
                    steps = [size(one) for one in steps]
                    inputs[i] = torch.empty_strided(shape, steps, dtype=value.dtype, device=value.device)
                elif isinstance(value, torch.SymInt):
                    inputs[i] = size(expr(value))
    except Exception as error:  # whatever those that are not public raise
        report.say_unlowered(f"the backward cannot be compiled again ({first_line(error)})")
        return None
    with torch.no_grad(), torch._C._DisableAutocast():
        code = _compiled(_copied(graph), inputs, report, _BACKWARD, is_backward=True)
    if code is None:
        return None
    report.lowered += 1
    return Code(code, Assumed.of(env, plan.symbol, names))


def _compiled(
    graph: fx.GraphModule, inputs: Sequence[Any], report: BackwardReport, settings: dict[str, Any], **options: Any
) -> Callable[[list[Any]], Any] | None:
    """The graph as inductor compiles it; None, with a reason in the report, if that fails."""
    try:
        from torch._inductor import config
        from torch._inductor.compile_fx import compile_fx_inner
        from torch._inductor.utils import BoxedBool

        with config.patch(settings):
            code: Any = compile_fx_inner(graph, inputs, cudagraphs=BoxedBool(False), **options)
    except Exception as error:  # whatever a compiler raises
        if isinstance(error, torch.OutOfMemoryError):
            raise
        kind = "backward" if options else "forward"
        cause = getattr(error, "inner_exception", None) or error
        report.say_unlowered(f"inductor cannot compile the {kind} ({first_line(cause)})")
        return None
    return code  # type: ignore[no-any-return]


def _copied(graph: fx.GraphModule) -> fx.GraphModule:
    """The graph, to be changed while it is compiled."""
    with unset_fake_temporarily():
        return copy.deepcopy(graph)


def _shape_env() -> Any:
    return TracingContext.get().fake_mode.shape_env  # type: ignore[union-attr]
