"""Which dimension of every saved tensor is the batch: the plan by which the backward of some rows is run.

AOTAutograd hands over the forward and the backward as graphs whose shapes carry a symbol for the batch size. A tensor
saved for the backward is a row matrix in the dimension whose size is that symbol, or k times it when the batch was
flattened together with other dimensions; then the place of the batch inside is followed through the forward graph.
Nothing is guessed from numbers: what is not certain ends in a reason to run the whole graph.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch
from torch import Tensor, fx

from ordered_sgd.selective.places import BatchDim, NoPlanError, follow, place_of
from ordered_sgd.selective.refusals import refuse_coupling
from ordered_sgd.selective.sizes import (
    ancestors,
    batch_dims,
    carries,
    expr,
    first_symbols,
    is_random,
    mixes,
    name_of,
    plain,
    tensors_of,
    value_of,
)

# Operators that keep positions within the batch in what they save, by name: their kernels would read out of bounds.
_POSITIONS = ("_embedding_bag", "embedding_bag")
_POOL = "aten.max_pool2d_with_indices_backward"

NO_SYMBOL = "the batch has no symbolic dimension"


@dataclass
class RowsPlan:
    """What to do with the arguments and the results of a backward graph.

    Parameters
    ----------
    arguments
        For each argument: `BatchDim` to gather, ``"size"`` for a size that scales with the batch, ``"positions"`` for
        the numbers 0 to s - 1 that index the batch, None to pass it on.
    same_as
        The first argument that is the same tensor, so that it is gathered once.
    tangents
        Positions of the gradients that come in.
    aside
        Those of outputs that no sample has a part in, as a table of positions: they are passed on as they are.
    results
        For each result: `BatchDim` to scatter into a gradient of the whole batch, or None.
    symbols
        Where the values of the symbols other than the batch can be read: symbol -> (argument, dimension or None).
    batch
        An argument, a dimension of it, and the factor by which it is larger than s.
    reason
        Why the whole graph must run instead; None when rows will do.
    lenient
        BatchNorm's treatment was asked for by name, so that the gradient cannot equal the dense one.
    dtype
        The coarsest that the backward computes in, as under autocast: what rounding may do goes by it.
    untied
        The inputs have batch sizes of their own, and that is in the way: the graph has to know that they are equal.
    symbol
        That of the batch size; None if there is no plan.
    """

    arguments: list[BatchDim | str | None]
    same_as: list[int]
    tangents: list[int]
    results: list[BatchDim | None]
    symbols: dict[sympy.Symbol, tuple[int, int | None]]
    batch: tuple[int, int, Any]
    reason: str | None = None
    lenient: bool = False
    dtype: torch.dtype = torch.float32
    untied: bool = False
    aside: frozenset[int] = frozenset()
    symbol: sympy.Symbol | None = None


def make_plan(forward: fx.GraphModule, backward: fx.GraphModule, *, batchnorm: bool) -> RowsPlan:
    """The plan of a pair of graphs; its reason is set when only the whole backward graph is right."""
    try:
        return _make_plan(forward, backward, batchnorm=batchnorm)
    except NoPlanError as error:
        primals = [node for node in forward.graph.nodes if node.op == "placeholder"]
        untied = len(first_symbols(primals)) > 1
        return RowsPlan([], [], [], [], {}, (0, 0, 1), reason=str(error), dtype=_coarsest(backward), untied=untied)


def _make_plan(forward: fx.GraphModule, backward: fx.GraphModule, *, batchnorm: bool) -> RowsPlan:
    inputs = [node for node in backward.graph.nodes if node.op == "placeholder"]
    tangents = [i for i, node in enumerate(inputs) if node.name.startswith("tangents")]
    primals = [node for node in forward.graph.nodes if node.op == "placeholder"]
    symbol = _batch_symbol([inputs[i] for i in tangents], primals)
    for node in (*forward.graph.nodes, *backward.graph.nodes):
        if node.op == "call_function" and any(word in str(node.target) for word in _POSITIONS):
            raise NoPlanError(f"{name_of(node)} keeps positions within the batch")
    for node in backward.graph.nodes:
        if isinstance(node.target, torch._ops.HigherOrderOperator) or is_random(node):
            raise NoPlanError(f"{name_of(node)} in the backward draws random numbers or is not an operator of torch")
    places = follow(forward, symbol)
    answers = _outputs_with_gradient(forward, [inputs[i] for i in tangents])
    lenient = refuse_coupling(forward, backward, symbol, answers, batchnorm=batchnorm)
    by_name = {node.name: node for node in forward.graph.nodes}
    shaped_like = {**by_name, **{inputs[i].name: answer for i, answer in zip(tangents, answers, strict=True)}}
    same_as = _aliases(inputs, by_name)
    read = {same for node, same in zip(inputs, same_as, strict=True) if _is_read(node)}  # by itself, or as its twin
    arguments: list[BatchDim | str | None] = []
    for node, same in zip(inputs, same_as, strict=True):
        value = node.meta["val"]
        if isinstance(value, Tensor) and _indexes_batch(node, by_name.get(node.name), symbol):
            arguments.append("positions")
        elif isinstance(value, Tensor):
            known = places.get(shaped_like.get(node.name, node))
            place = place_of(value, symbol, known, node.name)
            arguments.append(place and replace(place, read=same in read))
        elif isinstance(value, torch.SymInt) and symbol in expr(value).free_symbols:
            if symbol in sympy.simplify(expr(value) / symbol).free_symbols:
                raise NoPlanError(f"the size {expr(value)} does not scale with the batch")
            arguments.append("size")
        else:
            arguments.append(None)
    (outputs,) = (node for node in backward.graph.nodes if node.op == "output")
    for node in outputs.args[0]:
        if isinstance(node, fx.Node) and any(v.layout != torch.strided for v in tensors_of(node.meta.get("val"))):
            raise NoPlanError("a gradient is sparse")
    results = [
        place_of(node.meta["val"], symbol, places.get(primal), node.name)
        if isinstance(node, fx.Node) and isinstance(node.meta.get("val"), Tensor)
        else None
        for node, primal in zip(outputs.args[0], primals, strict=True)
    ]
    others = first_symbols(primals) - {symbol}
    first, place = next((i, how) for i in tangents if isinstance(how := arguments[i], BatchDim))
    return RowsPlan(
        arguments=arguments,
        same_as=same_as,
        tangents=tangents,
        results=results,
        symbols=_symbols(inputs, symbol),
        batch=(first, place.dim, plain(place.a * place.b)),
        lenient=lenient,
        dtype=_coarsest(backward),
        aside=frozenset(i for i, answer in zip(tangents, answers, strict=True) if _has_no_part(answer, symbol)),
        untied=mixes(forward, others | {symbol})
        or any(batch_dims(answer.meta["val"], other) for answer in answers for other in others),
        symbol=symbol,
    )


def _coarsest(graph: fx.GraphModule) -> torch.dtype:
    """The coarsest dtype that a graph computes in."""
    values = (value for node in graph.graph.nodes for value in tensors_of(node.meta.get("val")))
    dtypes = {value.dtype for value in values if value.is_floating_point()}
    return max(dtypes, key=lambda dtype: torch.finfo(dtype).eps, default=torch.float32)


def _batch_symbol(tangents: Sequence[fx.Node], primals: Sequence[fx.Node]) -> sympy.Symbol:
    """The symbol of the batch size: the first dimension of an input that is in the first dimension of an output."""
    inputs = [node.meta["val"] for node in primals]
    known = {expr(value.shape[0]) for value in inputs if isinstance(value, Tensor) and value.dim() > 0}
    for node in tangents:
        value = node.meta["val"]
        if isinstance(value, Tensor) and value.dim() > 0:
            size = expr(value.shape[0])
            found = [size] if isinstance(size, sympy.Symbol) else sorted(size.free_symbols & known, key=str)
            if found:
                return found[0]
    raise NoPlanError(NO_SYMBOL)


def _has_no_part(answer: fx.Node, symbol: sympy.Symbol) -> bool:
    """Whether an output is computed from nothing that depends on the batch, nor on its size."""
    return not any(carries(node.meta.get("val"), symbol) for node in ancestors([answer]))


def _outputs_with_gradient(forward: fx.GraphModule, tangents: Sequence[fx.Node]) -> list[fx.Node]:
    """The output of the forward graph that each incoming gradient belongs to."""
    (outputs,) = (node for node in forward.graph.nodes if node.op == "output")
    described = [getattr(node.meta.get("desc"), "output", None) for node in tangents]
    if outputs.meta.get("desc") and all(described):
        by_description = dict(zip(outputs.meta["desc"], outputs.args[0], strict=True))
        return [by_description[one] for one in described]
    floats = [  # before torch 2.9: in their order, unless buffers that change come first
        node
        for node in outputs.args[0]
        if isinstance(node, fx.Node) and isinstance(v := node.meta.get("val"), Tensor) and v.is_floating_point()
    ][: len(tangents)]
    shapes = [[expr(size) for size in node.meta["val"].shape] for node in (*floats, *tangents)]
    if shapes[: len(tangents)] != shapes[len(tangents) :]:
        raise NoPlanError("an incoming gradient belongs to no output")
    return floats


_INDEXES = ("aten.index.Tensor", "aten.index_put", "aten._unsafe_index.Tensor", "aten._unsafe_index_put")


def _indexes_batch(node: fx.Node, origin: fx.Node | None, symbol: sympy.Symbol) -> bool:
    """Whether a saved tensor is ``torch.arange(s)`` and only says which sample is meant: ``h[arange(s), ends]``."""
    if origin is None or not name_of(origin).startswith(("aten.arange", "prims.iota")):
        return False
    if (origin.kwargs.get("start", 0), origin.kwargs.get("step", 1)) != (0, 1):
        return False
    *start, end = [expr(value_of(argument)) for argument in origin.args[:2]]
    if end != symbol or start not in ([], [0]) or origin.args[2:] not in ((), (1,)):
        return False

    def only_there(user: fx.Node) -> bool:
        if name_of(user) not in _INDEXES or user.all_input_nodes.count(node) != 1:
            return False
        source, indices = user.args[0], user.args[1]
        if not isinstance(source, fx.Node) or not isinstance(indices, list | tuple) or node not in indices:
            return False
        value, dim = source.meta["val"], indices.index(node)
        return batch_dims(value, symbol) == [dim] and expr(value.shape[dim]) == symbol

    return bool(node.users) and all(only_there(user) for user in node.users)


def _is_read(node: fx.Node) -> bool:
    """Whether the backward reads a saved tensor's values; what max-pooling was given is kept for its shape."""
    return not all(name_of(user) == _POOL and user.args[1] is node and node not in user.args[2:] for user in node.users)


def _aliases(inputs: Sequence[fx.Node], forward: dict[str, fx.Node]) -> list[int]:
    """For each argument the first one that is the same tensor: a saved value and its detached twin."""
    first: dict[str, int] = {}
    same = []
    for i, node in enumerate(inputs):
        origin = forward.get(node.name, node)
        while origin.op == "call_function" and name_of(origin) in ("aten.detach", "aten.alias"):
            (origin,) = origin.all_input_nodes
        same.append(first.setdefault(origin.name, i))
    return same


def _symbols(inputs: Sequence[fx.Node], batch: sympy.Symbol) -> dict[sympy.Symbol, tuple[int, int | None]]:
    """Where the values of symbols other than the batch can be read when the backward runs."""
    found: dict[sympy.Symbol, tuple[int, int | None]] = {}
    for i, node in enumerate(inputs):
        value = node.meta["val"]
        sizes = list(enumerate(value.shape)) if isinstance(value, Tensor) else [(None, value)]
        for dim, size in sizes:
            if isinstance(size, torch.SymInt) and isinstance(expr(size), sympy.Symbol) and expr(size) != batch:
                found.setdefault(expr(size), (i, dim))
    return found
