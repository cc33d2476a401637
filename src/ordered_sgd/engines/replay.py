"""Running some samples of a batch again: their rows of the inputs, and of the random numbers that were drawn."""

import re
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from ordered_sgd.errors import ArgumentError, message
from ordered_sgd.selection import select_rows
from ordered_sgd.watch import Watch

# Operators that only draw. Others that may draw, such as attention with dropout, compute from samples as well: they are
# not replayed, and the comparison tells if that matters.
_DRAWS = re.compile(
    r"aten\.(native_dropout|bernoulli|rand|randn|randint|normal|uniform|exponential|geometric|cauchy|log_normal|random)"
    r"(_like)?_?(\.|$)"
)


def _draws(func: Any) -> bool:
    return _DRAWS.match(str(func)) is not None


class Drawn(Watch):
    """Keeps what random operators return; `again` gives the chosen rows of it in the same order."""

    def __init__(self) -> None:
        super().__init__()
        self.values: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if _draws(func):
            # an in-place draw returns its own argument, which may be changed later
            self.values.append(tree_map(lambda t: t.clone() if isinstance(t, Tensor) else t, result))
        return result

    def again(self, rows: Tensor, s: int) -> "_Again":
        """A context in which the chosen rows of a batch of s are drawn again."""
        return _Again(self.values, rows, s)


class _Again(Watch):
    def __init__(self, values: list[Any], rows: Tensor, s: int) -> None:
        super().__init__()
        self.values, self.rows, self.s = iter(values), rows, s

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not _draws(func):
            return func(*args, **kwargs)
        recorded = next(self.values, None)
        if recorded is None:
            return func(*args, **kwargs)
        asked = _asked(args)
        chosen = tree_map(lambda t: _rows_of(t, self.rows, self.s, asked), recorded)
        name = str(func)
        if name.startswith("aten.native_dropout"):
            source, p = args[0], args[1]
            mask = chosen[1]
            return source * mask * (1 / (1 - p) if p < 1 else 0.0), mask
        if func._schema.is_mutable:  # bernoulli_ and its like fill their first argument
            return args[0].copy_(chosen)
        return chosen


def _asked(args: Any) -> Any:
    """The shape that a random operator is to fill: that of its first tensor, or its first list of sizes."""
    sizes = (
        tuple(a.shape) if isinstance(a, Tensor) else tuple(a) for a in args if isinstance(a, Tensor | list | tuple)
    )
    return next(sizes, None)


def _rows_of(value: Any, rows: Tensor, s: int, asked: Any) -> Any:
    """The chosen rows of a drawn tensor, in the one dimension in which fewer numbers are asked for.

    The batch is all of that dimension or its outer factor. A tensor that is asked for in its own shape, as a mask of
    weights is, does not have the batch in it.
    """
    if not isinstance(value, Tensor) or value.dim() == 0 or tuple(value.shape) == asked:
        return value
    dims = [0]
    if asked is not None and len(asked) == value.dim():
        dims = [d for d, (size, other) in enumerate(zip(value.shape, asked, strict=True)) if size != other]
    if len(dims) != 1 or value.shape[dims[0]] % s:
        return value
    (dim,) = dims
    return value.unflatten(dim, (s, -1)).index_select(dim, rows).flatten(dim, dim + 1)


def take(batch: Any, rows: Tensor, s: int) -> Any:
    """The chosen samples of a batch: of every tensor whose first dimension is the batch."""

    def part(leaf: Any) -> Any:
        if isinstance(leaf, Tensor) and leaf.dim() > 0 and leaf.shape[0] == s:
            return select_rows(leaf, 0, rows)
        return leaf

    taken = tree_map(part, batch)
    if not any(a is not b for a, b in zip(tree_leaves(taken), tree_leaves(batch), strict=True)):
        remedy = 'Use engine="dense", or put the batch first.'
        rule = f"have the batch of {s} as their first dimension"
        raise ArgumentError(message("OrderedStep", "inputs", rule, "none that has", remedy))
    return taken


def length_of(batch: Any) -> int | None:
    """Samples in a batch, as its first tensor tells."""
    return next((leaf.shape[0] for leaf in tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.dim() > 0), None)
