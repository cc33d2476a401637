"""Where the batch is in the tensors of a forward graph."""

from dataclasses import dataclass

import sympy
from torch import Tensor, fx

from ordered_sgd.selective.sizes import batch_dims, carries, expr, name_of, plain, value_of


class NoPlanError(Exception):
    """Why the backward cannot be run for some rows only."""


@dataclass(frozen=True)
class BatchDim:
    """Where the batch is in a tensor: a dimension of size a * s * b, the batch between the two factors."""

    dim: int
    a: int | sympy.Expr  # 1 when the batch is outermost
    b: int | sympy.Expr  # 1 when it is innermost
    read: bool = True  # False when the backward looks at the shape alone


def place_of(value: Tensor, symbol: sympy.Symbol, known: BatchDim | None, name: str) -> BatchDim | None:
    """Where the batch is in a saved tensor."""
    dims = batch_dims(value, symbol)
    if not dims:
        return None
    if len(dims) > 1:
        raise NoPlanError(f"{name} carries the batch twice")
    factor = sympy.simplify(expr(value.shape[dims[0]]) / symbol)
    if factor == 1:
        return BatchDim(dims[0], 1, 1)
    if known is None or known.dim != dims[0]:
        raise NoPlanError(f"the place of the batch in a dimension of {name} is not known")
    return BatchDim(known.dim, plain(known.a), plain(known.b))


def follow(forward: fx.GraphModule, symbol: sympy.Symbol) -> dict[fx.Node, BatchDim]:
    """Where the batch is in every tensor of the forward graph that has it once and in a place that is certain."""
    places: dict[fx.Node, BatchDim] = {}
    for node in forward.graph.nodes:
        value = node.meta.get("val")
        if not isinstance(value, Tensor) or (not value.is_floating_point() and value.dim() == 0):
            continue
        dims = batch_dims(value, symbol)
        if len(dims) != 1:
            continue
        (dim,) = dims
        factor = sympy.simplify(expr(value.shape[dim]) / symbol)
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
    kind = name_of(node).removeprefix("aten.").partition(".")[0]
    if kind in _VIEWS and sources:
        source = sources[0].meta["val"]
        place = places[sources[0]]
        before = place.a * sympy.prod([expr(size) for size in source.shape[: place.dim]])
        ratio = sympy.simplify(before / sympy.prod([expr(size) for size in value.shape[:dim]]))
        whole = ratio.is_integer and sympy.simplify(factor / ratio).is_integer
        return ratio if whole else None
    if kind == "cat" and sources and len(node.all_input_nodes) == factor:
        same = all(places.get(arg) == BatchDim(dim, 1, 1) for arg in node.all_input_nodes)
        return factor if same else None
    if kind == "expand" and not any(carries(arg.meta["val"], symbol) for arg in node.all_input_nodes[:1]):
        return sympy.Integer(1)  # the same for every sample: any place will do
    if kind == "repeat":  # of something without the batch, s times: the repetition is the outer factor
        count = node.args[1][dim]  # type: ignore[index]
        return sympy.Integer(1) if not sources and expr(value_of(count)) == symbol else None
    for arg in sources:
        place = places[arg]
        if sympy.simplify(place.a * place.b - factor) == 0:
            return place.a
    return None
