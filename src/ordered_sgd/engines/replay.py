"""Running some samples of a batch again: their rows of the inputs, and of the random numbers that were drawn."""

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
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


@cache
def _draws(func: Any) -> bool:
    return _DRAWS.match(str(func)) is not None


class Drawn(Watch):
    """Keeps what random operators return; `again` gives the chosen rows of it in the same order.

    Attributes
    ----------
    values, names
        What each operator drew, and its name.
    """

    def __init__(self) -> None:
        super().__init__()
        self.values: list[Tensor] = []
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if _draws(func):
            self.names.append(str(func))
            self.values.append(_drawn(self.names[-1], result))
        return result

    @property
    def kinds(self) -> tuple[tuple[str, int], ...]:
        """The operators that drew, and how many dimensions each filled."""
        return tuple((name, value.dim()) for name, value in zip(self.names, self.values, strict=True))

    def again(self, rows: Tensor, s: int) -> "_Again":
        """A context in which the chosen rows of a batch of s are drawn again."""
        return _Again([(self.values, rows, s)])


def again_together(sources: Sequence[tuple[Drawn, Tensor, int]], dims: Sequence[int]) -> "_Again":
    """A context in which the chosen rows of several batches, each with its s samples, are drawn again as one batch.

    Parameters
    ----------
    sources
        What each batch drew, its chosen rows and its size.
    dims
        The dimension of each drawn tensor that has the samples, as `batch_dims` finds it.
    """
    return _Again([(drawn.values, rows, s) for drawn, rows, s in sources], dims)


def batch_dims(whole: Drawn, s: int, part: Drawn, n: int) -> list[int] | None:
    """The dimension of each drawn tensor that has the samples, as passes over s and over n of them show.

    None where a number is drawn for all samples together: a mask of weights, or a layer that is dropped.
    """
    if whole.kinds != part.kinds:
        return None
    dims = []
    for a, b in zip(whole.values, part.values, strict=True):
        differing = [d for d in range(a.dim()) if a.shape[d] != b.shape[d]]
        if len(differing) != 1 or a.shape[differing[0]] * n != b.shape[differing[0]] * s:
            return None
        dims += differing
    return dims


class _Again(Watch):
    def __init__(self, sources: Sequence[tuple[list[Tensor], Tensor, int]], dims: Sequence[int] | None = None) -> None:
        super().__init__()
        self.sources, self.dims = sources, dims
        self._number = -1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not _draws(func):
            return func(*args, **kwargs)
        self._number += 1
        chosen = self._chosen(_asked(args))
        if chosen is None:
            return func(*args, **kwargs)
        if str(func).startswith("aten.native_dropout"):
            source, p = args[0], args[1]
            return source * chosen * (1 / (1 - p) if p < 1 else 0.0), chosen
        if func._schema.is_mutable:  # bernoulli_ and its like fill their first argument
            return args[0].copy_(chosen)
        return chosen

    def _chosen(self, asked: Any) -> Tensor | None:
        """The chosen rows of what was drawn at this place; None if nothing was."""
        if self.dims is None:
            ((values, rows, s),) = self.sources
            return _rows_of(values[self._number], rows, s, asked) if self._number < len(values) else None
        if self._number >= len(self.dims):
            raise RuntimeError("more random numbers are drawn than before")
        dim = self.dims[self._number]
        found = [_rows_at(values[self._number], dim, rows, s) for values, rows, s in self.sources]
        return found[0] if len(found) == 1 else torch.cat(found, dim)


def _drawn(name: str, result: Any) -> Tensor:
    """What a random operator drew, to be kept."""
    if name.startswith("aten.native_dropout"):
        mask: Tensor = result[1]
        return mask
    if name.startswith("aten.bernoulli_."):  # zeros and ones: a quarter of the memory
        result = result.bool()
    value: Tensor = result.clone()  # an in-place draw returns its own argument, which may be changed later
    return value


def _asked(args: Any) -> Any:
    """The shape that a random operator is to fill: that of its first tensor, or its first list of sizes."""
    sizes = (
        tuple(a.shape) if isinstance(a, Tensor) else tuple(a) for a in args if isinstance(a, Tensor | list | tuple)
    )
    return next(sizes, None)


def _rows_of(value: Tensor, rows: Tensor, s: int, asked: Any) -> Tensor:
    """The chosen rows of a drawn tensor, in the one dimension in which fewer numbers are asked for.

    The batch is all of that dimension or its outer factor. A tensor that is asked for in its own shape, as a mask of
    weights is, does not have the batch in it.
    """
    if value.dim() == 0 or tuple(value.shape) == asked:
        return value
    dims = [0]
    if asked is not None and len(asked) == value.dim():
        dims = [d for d, (size, other) in enumerate(zip(value.shape, asked, strict=True)) if size != other]
    if len(dims) != 1 or value.shape[dims[0]] % s:
        return value
    return _rows_at(value, dims[0], rows, s)


def _rows_at(value: Tensor, dim: int, rows: Tensor, s: int) -> Tensor:
    """The chosen rows of a drawn tensor whose dimension `dim` is a batch of s, or has it as its outer factor."""
    found: Tensor = value.unflatten(dim, (s, -1)).index_select(dim, rows).flatten(dim, dim + 1)
    return found


def take(batch: Any, rows: Tensor, s: int) -> Any:
    """The chosen samples of a batch: of every tensor whose first dimension is the batch."""

    def part(leaf: Any) -> Any:
        return select_rows(leaf, 0, rows) if has_samples(leaf, s) else leaf

    taken = tree_map(part, batch)
    if not any(a is not b for a, b in zip(tree_leaves(taken), tree_leaves(batch), strict=True)):
        remedy = 'Use engine="dense", or put the batch first.'
        rule = f"have the batch of {s} as their first dimension"
        raise ArgumentError(message("OrderedStep", "inputs", rule, "none that has", remedy))
    return taken


def has_samples(leaf: Any, s: int) -> bool:
    """Whether a leaf of a batch of s has a row for each sample."""
    return isinstance(leaf, Tensor) and leaf.dim() > 0 and leaf.shape[0] == s


def length_of(batch: Any) -> int | None:
    """Samples in a batch, as its first tensor tells."""
    return next((leaf.shape[0] for leaf in tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.dim() > 0), None)
