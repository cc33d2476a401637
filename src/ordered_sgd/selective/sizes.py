"""What the nodes of traced graphs hold: their values, and sizes as expressions of symbols."""

from collections.abc import Sequence
from typing import Any

import sympy
import torch
from torch import Tensor, fx
from torch.utils._sympy.functions import FloorDiv


def name_of(node: fx.Node) -> str:
    """The operator of a node."""
    return str(node.target).removesuffix(".default")


def is_random(node: fx.Node) -> bool:
    """Whether a node draws random numbers."""
    tags = getattr(node.target, "tags", ())
    return torch.Tag.nondeterministic_seeded in tags


def tensors_of(value: Any) -> list[Tensor]:
    """The tensors that an operator returns."""
    return [v for v in (value if isinstance(value, tuple | list) else [value]) if isinstance(v, Tensor)]


def value_of(argument: Any) -> Any:
    """What an argument of a node is while the graph is traced."""
    return argument.meta["val"] if isinstance(argument, fx.Node) else argument


def ancestors(nodes: Sequence[fx.Node]) -> set[fx.Node]:
    """The nodes, and all that they are computed from."""
    found, waiting = set(nodes), list(nodes)
    while waiting:
        for arg in waiting.pop().all_input_nodes:
            if arg not in found:
                found.add(arg)
                waiting.append(arg)
    return found


def expr(size: Any) -> Any:
    """A size as an expression of symbols."""
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


def batch_dims(value: Tensor, symbol: sympy.Symbol) -> list[int]:
    """The dimensions of a tensor whose size depends on a symbol."""
    return [i for i, size in enumerate(value.shape) if symbol in expr(size).free_symbols]


def carries(value: Any, symbol: sympy.Symbol) -> bool:
    """Whether a size, or a size of a tensor, depends on a symbol."""
    sizes = [value] if isinstance(value, torch.SymInt) else [size for v in tensors_of(value) for size in v.shape]
    return any(symbol in expr(size).free_symbols for size in sizes)


def first_symbols(primals: Sequence[fx.Node]) -> set[sympy.Symbol]:
    """The symbols that are the size of an input's first dimension."""
    values = [node.meta["val"] for node in primals]
    sizes = {expr(value.shape[0]) for value in values if isinstance(value, Tensor) and value.dim() > 0}
    return {size for size in sizes if isinstance(size, sympy.Symbol)}


def mixes(forward: fx.GraphModule, symbols: set[sympy.Symbol]) -> bool:
    """Whether a size is made of several of the symbols, as that of two inputs one after the other."""
    values = (value for node in forward.graph.nodes for value in tensors_of(node.meta.get("val")))
    return len(symbols) > 1 and any(len(expr(n).free_symbols & symbols) > 1 for v in values for n in v.shape)


def plain(factor: Any) -> Any:
    """The factor as an int where it is a number: sympy is slow, and it is looked at in every step."""
    return int(factor) if sympy.sympify(factor).is_Integer else factor
