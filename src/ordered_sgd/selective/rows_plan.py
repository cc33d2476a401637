"""Which dimension of every saved tensor is the batch: the plan by which the backward of some rows is run.

AOTAutograd hands over the forward and the backward as graphs whose shapes carry a symbol for the batch size. A tensor
saved for the backward is a row matrix in the dimension whose size is that symbol, or k times it when the batch was
flattened together with other dimensions; then the place of the batch inside is followed through the forward graph.
Nothing is guessed from numbers: what is not certain ends in a reason to run the whole graph.
"""

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch
from torch import Tensor, fx
from torch.utils._sympy.functions import FloorDiv

# Operators that keep positions within the batch in what they save, by name: their kernels would read out of bounds.
_POSITIONS = ("_embedding_bag", "embedding_bag")
_POOL = "aten.max_pool2d_with_indices_backward"
_BATCH_NORM = ("batch_norm", "native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm")


NO_SYMBOL = "the batch has no symbolic dimension"


class NoPlanError(Exception):
    """Why the backward cannot be run for some rows only."""


@dataclass(frozen=True)
class BatchDim:
    """Where the batch is in a tensor: a dimension of size a * s * b, the batch between the two factors."""

    dim: int
    a: int | sympy.Expr  # 1 when the batch is outermost
    b: int | sympy.Expr  # 1 when it is innermost
    read: bool = True  # False when the backward looks at the shape alone


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


def make_plan(forward: fx.GraphModule, backward: fx.GraphModule, *, batchnorm: bool) -> RowsPlan:
    """The plan of a pair of graphs; its reason is set when only the whole backward graph is right."""
    try:
        return _make_plan(forward, backward, batchnorm=batchnorm)
    except NoPlanError as error:
        primals = [node for node in forward.graph.nodes if node.op == "placeholder"]
        untied = len(_first_symbols(primals)) > 1
        return RowsPlan([], [], [], [], {}, (0, 0, 1), reason=str(error), untied=untied)


def _make_plan(forward: fx.GraphModule, backward: fx.GraphModule, *, batchnorm: bool) -> RowsPlan:
    inputs = [node for node in backward.graph.nodes if node.op == "placeholder"]
    tangents = [i for i, node in enumerate(inputs) if node.name.startswith("tangents")]
    primals = [node for node in forward.graph.nodes if node.op == "placeholder"]
    symbol = _batch_symbol([inputs[i] for i in tangents], primals)
    for node in (*forward.graph.nodes, *backward.graph.nodes):
        if node.op == "call_function" and any(word in str(node.target) for word in _POSITIONS):
            raise NoPlanError(f"{_name(node)} keeps positions within the batch")
    for node in backward.graph.nodes:
        if isinstance(node.target, torch._ops.HigherOrderOperator) or is_random(node):
            raise NoPlanError(f"{_name(node)} in the backward draws random numbers or is not an operator of torch")
    places = follow(forward, symbol)
    answers = _outputs_with_gradient(forward, [inputs[i] for i in tangents])
    lenient = _refuse_coupling(forward, backward, symbol, answers, batchnorm=batchnorm)
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
            place = _place(value, symbol, known, node.name)
            arguments.append(place and replace(place, read=same in read))
        elif isinstance(value, torch.SymInt) and symbol in _expr(value).free_symbols:
            if symbol in sympy.simplify(_expr(value) / symbol).free_symbols:
                raise NoPlanError(f"the size {_expr(value)} does not scale with the batch")
            arguments.append("size")
        else:
            arguments.append(None)
    (outputs,) = (node for node in backward.graph.nodes if node.op == "output")
    for node in outputs.args[0]:
        if isinstance(node, fx.Node) and any(v.layout != torch.strided for v in _tensors(node.meta.get("val"))):
            raise NoPlanError("a gradient is sparse")
    results = [
        _place(node.meta["val"], symbol, places.get(primal), node.name)
        if isinstance(node, fx.Node) and isinstance(node.meta.get("val"), Tensor)
        else None
        for node, primal in zip(outputs.args[0], primals, strict=True)
    ]
    others = _first_symbols(primals) - {symbol}
    first, place = next((i, how) for i in tangents if isinstance(how := arguments[i], BatchDim))
    return RowsPlan(
        arguments=arguments,
        same_as=same_as,
        tangents=tangents,
        results=results,
        symbols=_symbols(inputs, symbol),
        batch=(first, place.dim, _plain(place.a * place.b)),
        lenient=lenient,
        dtype=max(_dtypes(backward), key=lambda dtype: torch.finfo(dtype).eps, default=torch.float32),
        aside=frozenset(i for i, answer in zip(tangents, answers, strict=True) if _has_no_part(answer, symbol)),
        untied=_mixes(forward, others | {symbol})
        or any(_batch_dims(answer.meta["val"], other) for answer in answers for other in others),
    )


def _dtypes(graph: fx.GraphModule) -> set[torch.dtype]:
    values = (value for node in graph.graph.nodes for value in _tensors(node.meta.get("val")))
    return {value.dtype for value in values if value.is_floating_point()}


def _batch_symbol(tangents: Sequence[fx.Node], primals: Sequence[fx.Node]) -> sympy.Symbol:
    """The symbol of the batch size: the first dimension of an input that is in the first dimension of an output."""
    inputs = [node.meta["val"] for node in primals]
    known = {_expr(value.shape[0]) for value in inputs if isinstance(value, Tensor) and value.dim() > 0}
    for node in tangents:
        value = node.meta["val"]
        if isinstance(value, Tensor) and value.dim() > 0:
            size = _expr(value.shape[0])
            found = [size] if isinstance(size, sympy.Symbol) else sorted(size.free_symbols & known, key=str)
            if found:
                return found[0]
    raise NoPlanError(NO_SYMBOL)


def _first_symbols(primals: Sequence[fx.Node]) -> set[sympy.Symbol]:
    """The symbols that are the size of an input's first dimension."""
    values = [node.meta["val"] for node in primals]
    sizes = {_expr(value.shape[0]) for value in values if isinstance(value, Tensor) and value.dim() > 0}
    return {size for size in sizes if isinstance(size, sympy.Symbol)}


def _mixes(forward: fx.GraphModule, symbols: set[sympy.Symbol]) -> bool:
    """Whether a size is made of several of the symbols, as that of two inputs one after the other."""
    values = (value for node in forward.graph.nodes for value in _tensors(node.meta.get("val")))
    return len(symbols) > 1 and any(len(_expr(n).free_symbols & symbols) > 1 for v in values for n in v.shape)


def _has_no_part(answer: fx.Node, symbol: sympy.Symbol) -> bool:
    """Whether an output is computed from nothing that depends on the batch, nor on its size."""
    return not any(_carries(node.meta.get("val"), symbol) for node in _ancestors([answer]))


def _carries(value: Any, symbol: sympy.Symbol) -> bool:
    sizes = [value] if isinstance(value, torch.SymInt) else [size for v in _tensors(value) for size in v.shape]
    return any(symbol in _expr(size).free_symbols for size in sizes)


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
    shapes = [[_expr(size) for size in node.meta["val"].shape] for node in (*floats, *tangents)]
    if shapes[: len(tangents)] != shapes[len(tangents) :]:
        raise NoPlanError("an incoming gradient belongs to no output")
    return floats


def _expr(size: Any) -> Any:
    if not isinstance(size, torch.SymInt):
        return sympy.Integer(size)
    expression = size.node.expr
    return expression.replace(FloorDiv, _divided) if expression.has(FloorDiv) else expression


def _divided(base: sympy.Expr, divisor: sympy.Expr) -> sympy.Expr:
    """The quotient without rounding where only a constant is rounded: (2 s + 1) // 2, as `chunk` computes it, is s."""
    constant, rest = sympy.expand(base).as_coeff_Add()
    exact = sympy.expand(rest / divisor)
    whole = divisor.is_Integer and all(term.as_coeff_Mul()[0].is_Integer for term in sympy.Add.make_args(exact))
    return exact + constant // divisor if whole else FloorDiv(base, divisor)


def _name(node: fx.Node) -> str:
    return str(node.target).removesuffix(".default")


def is_random(node: fx.Node) -> bool:
    """Whether a node draws random numbers."""
    tags = getattr(node.target, "tags", ())
    return torch.Tag.nondeterministic_seeded in tags


def _batch_dims(value: Tensor, symbol: sympy.Symbol) -> list[int]:
    return [i for i, size in enumerate(value.shape) if symbol in _expr(size).free_symbols]


def _place(value: Tensor, symbol: sympy.Symbol, known: BatchDim | None, name: str) -> BatchDim | None:
    """Where the batch is in a saved tensor."""
    dims = _batch_dims(value, symbol)
    if not dims:
        return None
    if len(dims) > 1:
        raise NoPlanError(f"{name} carries the batch twice")
    factor = sympy.simplify(_expr(value.shape[dims[0]]) / symbol)
    if factor == 1:
        return BatchDim(dims[0], 1, 1)
    if known is None or known.dim != dims[0]:
        raise NoPlanError(f"the place of the batch in a dimension of {name} is not known")
    return BatchDim(known.dim, _plain(known.a), _plain(known.b))


def _plain(factor: Any) -> Any:
    """The factor as an int where it is a number: sympy is slow, and it is looked at in every step."""
    return int(factor) if sympy.sympify(factor).is_Integer else factor


_INDEXES = ("aten.index.Tensor", "aten.index_put", "aten._unsafe_index.Tensor", "aten._unsafe_index_put")


def _indexes_batch(node: fx.Node, origin: fx.Node | None, symbol: sympy.Symbol) -> bool:
    """Whether a saved tensor is ``torch.arange(s)`` and only says which sample is meant: ``h[arange(s), ends]``."""
    if origin is None or not _name(origin).startswith("aten.arange"):
        return False
    *start, end = [_expr(_value(argument)) for argument in origin.args[:2]]
    if end != symbol or start not in ([], [0]) or origin.args[2:] not in ((), (1,)):
        return False

    def only_there(user: fx.Node) -> bool:
        if _name(user) not in _INDEXES or user.all_input_nodes.count(node) != 1:
            return False
        source, indices = user.args[0], user.args[1]
        if not isinstance(source, fx.Node) or not isinstance(indices, list | tuple) or node not in indices:
            return False
        value, dim = source.meta["val"], indices.index(node)
        return _batch_dims(value, symbol) == [dim] and _expr(value.shape[dim]) == symbol

    return bool(node.users) and all(only_there(user) for user in node.users)


def _is_read(node: fx.Node) -> bool:
    """Whether the backward reads a saved tensor's values; what max-pooling was given is kept for its shape."""
    return not all(_name(user) == _POOL and user.args[1] is node and node not in user.args[2:] for user in node.users)


def follow(forward: fx.GraphModule, symbol: sympy.Symbol) -> dict[fx.Node, BatchDim]:
    """Where the batch is in every tensor of the forward graph that has it once and in a place that is certain."""
    places: dict[fx.Node, BatchDim] = {}
    for node in forward.graph.nodes:
        value = node.meta.get("val")
        if not isinstance(value, Tensor) or (not value.is_floating_point() and value.dim() == 0):
            continue
        dims = _batch_dims(value, symbol)
        if len(dims) != 1:
            continue
        (dim,) = dims
        factor = sympy.simplify(_expr(value.shape[dim]) / symbol)
        if symbol in factor.free_symbols:
            continue
        if factor == 1:
            places[node] = BatchDim(dim, sympy.Integer(1), sympy.Integer(1))
            continue
        before = _inherited(node, value, dim, factor, places, symbol)
        if before is not None:
            places[node] = BatchDim(dim, before, sympy.simplify(factor / before))
    return places


def _through_tuple(node: fx.Node) -> list[fx.Node]:
    """The node, or what an operator with several results was computed from."""
    return node.all_input_nodes if isinstance(node.meta.get("val"), tuple | list) else [node]


_VIEWS = ("view", "_unsafe_view", "reshape", "flatten", "unflatten", "_reshape_alias")


def _inherited(
    node: fx.Node, value: Tensor, dim: int, factor: sympy.Expr, places: dict[fx.Node, BatchDim], symbol: sympy.Symbol
) -> sympy.Expr | None:
    """The factor before the batch in dimension `dim` of the node's value, as its inputs tell; None if they do not."""
    inputs = [arg for part in node.all_input_nodes for arg in _through_tuple(part)]
    sources = [arg for arg in inputs if arg in places]
    kind = _name(node).removeprefix("aten.").partition(".")[0]
    if kind in _VIEWS and sources:
        source = sources[0].meta["val"]
        place = places[sources[0]]
        before = place.a * sympy.prod([_expr(size) for size in source.shape[: place.dim]])
        ratio = sympy.simplify(before / sympy.prod([_expr(size) for size in value.shape[:dim]]))
        whole = ratio.is_integer and sympy.simplify(factor / ratio).is_integer
        return ratio if whole else None
    if kind == "cat" and sources and len(node.all_input_nodes) == factor:
        same = all(places.get(arg) == BatchDim(dim, 1, 1) for arg in node.all_input_nodes)
        return factor if same else None
    if kind == "expand" and not any(_carries(arg.meta["val"], symbol) for arg in node.all_input_nodes[:1]):
        return sympy.Integer(1)  # the same for every sample: any place will do
    if kind == "repeat":  # of something without the batch, s times: the repetition is the outer factor
        count = node.args[1][dim]  # type: ignore[index]
        return sympy.Integer(1) if not sources and _expr(_value(count)) == symbol else None
    for arg in sources:
        place = places[arg]
        if sympy.simplify(place.a * place.b - factor) == 0:
            return place.a
    return None


def _value(argument: Any) -> Any:
    """What an argument of a node is while the graph is traced."""
    return argument.meta["val"] if isinstance(argument, fx.Node) else argument


def _refuse_coupling(
    forward: fx.GraphModule,
    backward: fx.GraphModule,
    symbol: sympy.Symbol,
    answers: Sequence[fx.Node],
    *,
    batchnorm: bool,
) -> bool:
    """Raise for a trained value that loses the batch, or carries it twice, on its way to an output that has it.

    Returns whether BatchNorm was let through by name.
    """
    (results,) = (node for node in backward.graph.nodes if node.op == "output")
    primals = [node for node in forward.graph.nodes if node.op == "placeholder"]
    trained = {node for node, grad in zip(primals, results.args[0], strict=False) if grad is not None}
    reach = _ancestors([node for node in answers if _batch_dims(node.meta["val"], symbol)])
    lenient = False
    for node in forward.graph.nodes:
        if node.op != "call_function" or _name(node) == "aten.detach":
            continue
        sources = [arg for arg in node.all_input_nodes if arg in trained]
        if not sources:
            continue
        trained.add(node)
        if any(word in _name(node) for word in _BATCH_NORM) and _in_training(node) and _over_batch(node, symbol):
            if not batchnorm:
                raise NoPlanError(f"{_name(node)} takes statistics over the batch")
            lenient = True
            continue
        values = _tensors(node.meta.get("val"))
        if node in reach and any(len(_batch_dims(v, symbol)) > 1 for v in values):
            raise NoPlanError(f"{_name(node)} carries the batch twice")
        had = any(_batch_dims(v, symbol) for arg in sources for v in _tensors(arg.meta.get("val")))
        if node in reach and had and values and not any(_batch_dims(v, symbol) for v in values):
            origin = node if node.target is not operator.getitem else node.args[0]
            if any(word in _name(origin) for word in _BATCH_NORM) and lenient:
                continue
            raise NoPlanError(f"{_name(origin)} loses the batch dimension")
    return lenient


def _in_training(node: fx.Node) -> bool:
    """Whether a batch_norm node takes statistics of the batch; the argument is named in the operator's schema."""
    schema = getattr(node.target, "_schema", None)
    names = [argument.name for argument in schema.arguments] if schema is not None else []
    for flag in ("training", "train"):
        if flag in names:
            place = names.index(flag)
            return bool(node.args[place] if place < len(node.args) else node.kwargs.get(flag, True))
    return "no_training" not in str(node.target)


def _over_batch(node: fx.Node, symbol: sympy.Symbol) -> bool:
    """Whether a batch_norm node reduces the batch: InstanceNorm has it among the channels, standardized weights not."""
    source = node.args[0]
    return not isinstance(source, fx.Node) or any(dim != 1 for dim in _batch_dims(source.meta["val"], symbol))


def _tensors(value: Any) -> list[Tensor]:
    return [v for v in (value if isinstance(value, tuple | list) else [value]) if isinstance(v, Tensor)]


def _ancestors(nodes: Sequence[fx.Node]) -> set[fx.Node]:
    found, waiting = set(nodes), list(nodes)
    while waiting:
        for arg in waiting.pop().all_input_nodes:
            if arg not in found:
                found.add(arg)
                waiting.append(arg)
    return found


def _aliases(inputs: Sequence[fx.Node], forward: dict[str, fx.Node]) -> list[int]:
    """For each argument the first one that is the same tensor: a saved value and its detached twin."""
    first: dict[str, int] = {}
    same = []
    for i, node in enumerate(inputs):
        origin = forward.get(node.name, node)
        while origin.op == "call_function" and _name(origin) in ("aten.detach", "aten.alias"):
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
            if isinstance(size, torch.SymInt) and isinstance(_expr(size), sympy.Symbol) and _expr(size) != batch:
                found.setdefault(_expr(size), (i, dim))
    return found
