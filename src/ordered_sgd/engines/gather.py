"""Chosen samples of several micro-batches as micro-batches of their own."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from ordered_sgd.engines.replay import Drawn, has_samples
from ordered_sgd.rewind import RandomState, Saved
from ordered_sgd.selection import select_rows


@dataclass(frozen=True)
class ScoredPart:
    """A micro-batch that was scored without a graph.

    Parameters
    ----------
    batch, losses
        The micro-batch, and the losses of its samples.
    random, saved
        The state of generators and buffers before it.
    drawn
        The random numbers that it drew, if they were watched.
    """

    batch: Any
    losses: Tensor
    random: RandomState
    saved: Saved
    drawn: Drawn

    @property
    def s(self) -> int:
        """Samples in the micro-batch."""
        return self.losses.shape[0]


Sources = list[tuple[ScoredPart, Tensor]]  # micro-batches, and the positions of some samples in each


@dataclass(frozen=True)
class Gathered:
    """A micro-batch made of samples of others.

    Parameters
    ----------
    sources
        Where the samples come from.
    place
        Which of the losses count; None: all.
    """

    sources: Sources
    place: Tensor | None = None

    @property
    def batch(self) -> Any:
        """The samples as one batch: leaves with a row for each sample are joined, and the others are those of all."""
        flat = [(tree_flatten(part.batch), part.s, rows) for part, rows in self.sources]
        (leaves, spec), s, _ = flat[0]
        joined = []
        for i, leaf in enumerate(leaves):
            if has_samples(leaf, s):
                chosen = [select_rows(others[i], 0, rows) for (others, _), _, rows in flat]
                leaf = torch.cat(chosen) if len(chosen) > 1 else chosen[0]
            joined.append(leaf)
        return tree_unflatten(joined, spec)

    @property
    def losses(self) -> Tensor:
        """The losses that the samples were scored with."""
        return torch.cat([part.losses.index_select(0, rows) for part, rows in self.sources])


def gather(parts: Sequence[ScoredPart], chosen: Sequence[Tensor]) -> list[Gathered]:
    """The chosen samples of micro-batches in as few micro-batches as they fill, none larger than the largest given one.

    Samples of different shapes are not joined: for each shape there are micro-batches of its own.

    Parameters
    ----------
    parts, chosen
        The micro-batches, and the chosen positions in each.
    """
    gathered = []
    for group in _alike(list(zip(parts, chosen, strict=True))):
        largest = max(part.s for part, _ in group)
        total = sum(rows.shape[0] for _, rows in group)
        passes = -(-total // largest)
        for i in range(passes):
            gathered.append(_cut(group, total * i // passes, total * (i + 1) // passes))
    return gathered


def _cut(group: Sources, start: int, end: int) -> Gathered:
    """The samples from one place to another among the chosen ones of a group."""
    sources, first = [], 0
    for part, rows in group:
        few = rows[max(start - first, 0) : max(end - first, 0)]
        if few.shape[0]:
            sources.append((part, few))
        first += rows.shape[0]
    if end - start > 1 or sources[0][0].s == 1:
        return Gathered(sources)
    ((part, few),) = sources  # twice, once without a gradient: some backwards of torch are wrong for a single row
    return Gathered([(part, few.repeat(2))], torch.zeros_like(few))


def _alike(sources: Sources) -> list[Sources]:
    """The micro-batches in groups of the same structure, shapes and types of samples."""
    groups: list[tuple[tuple[list[Any], TreeSpec, int], Sources]] = []
    for part, rows in sources:
        own = (*tree_flatten(part.batch), part.s)
        found = next((group for first, group in groups if _joins(first, own)), None)
        if found is None:
            groups.append((own, [(part, rows)]))
        else:
            found.append((part, rows))
    return [group for _, group in groups]


def _joins(a: tuple[list[Any], TreeSpec, int], b: tuple[list[Any], TreeSpec, int]) -> bool:
    """Whether samples of two flattened batches can be in one: same shapes and types, and the rest is equal."""
    (leaves, spec, s), (others, other_spec, other_s) = a, b
    if spec != other_spec:
        return False
    for leaf, other in zip(leaves, others, strict=True):
        if has_samples(leaf, s) != has_samples(other, other_s):
            return False
        if not (_same_sample(leaf, other) if has_samples(leaf, s) else _same_value(leaf, other)):
            return False
    return True


def _same_sample(a: Tensor, b: Tensor) -> bool:
    """Whether the rows of two tensors can be in one tensor."""
    kinds = [(t.shape[1:], t.dtype, t.device, t.layout, t.requires_grad) for t in (a, b)]
    return type(a) is type(b) and kinds[0] == kinds[1]


def _same_value(a: Any, b: Any) -> bool:
    """Whether two leaves that hold no samples are the same."""
    if a is b:
        return True
    if isinstance(a, Tensor) and isinstance(b, Tensor) and a.shape == b.shape:
        return _same_sample(a, b) and not a.requires_grad and torch.equal(a, b)
    return type(a) is type(b) and isinstance(a, bool | int | float | str) and a == b
