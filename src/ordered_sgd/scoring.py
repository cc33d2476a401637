"""Line 3 of Algorithm 1: the losses of a batch, one per sample, as the criterion gives them for the model's outputs."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ordered_sgd.criterion import countable, ignore_index, not_ignored, right_answers, weighted_losses
from ordered_sgd.engines.phases import Losses, Scores
from ordered_sgd.units import as_units

Batch = tuple[Any, Any, Tensor | None]  # x, y and the samples' weights


class Asked(NamedTuple):
    """Computes what samples are ordered by, when called: by code of the user's, which torch.compile never traces.

    Outputs, targets, losses and which of these count are those of one pass, without a graph.
    """

    score: Callable[..., Tensor]
    outputs: Any
    y: Any
    losses: Tensor
    valid: Tensor | None
    reduce: str | None
    empty: bool

    def __call__(self) -> Tensor | None:
        """The scores, shape (s,)."""
        with torch.no_grad():
            scores, options = self.score(self.outputs, self.y), {"reduce": self.reduce, "empty": self.empty}
            units = as_units(self.losses, self.valid, "sample", None, "OrderedStep", scores=scores, **options)  # type: ignore[arg-type]
        return units.scores


class Scoring:
    """``scoring(batch)`` gives the losses of a batch with their graph, and which answers are right.

    Parameters
    ----------
    model, criterion, forward, cap, score, reduce
        As of `ordered_sgd.OrderedStep`; the model is the one inside a wrapper.
    counts
        Whether right answers are counted in every step, because a rule asks for them.
    empty
        Whether a batch may be empty, as that of one rank of several.
    """

    def __init__(
        self,
        model: nn.Module,
        criterion: Callable[..., Tensor],
        forward: Callable[[Any, Any], Any] | None,
        *,
        cap: float | None = None,
        score: Callable[..., Tensor] | None = None,
        reduce: str | None = None,
        counts: bool,
        empty: bool,
    ) -> None:
        self.model, self.criterion, self.forward = model, criterion, forward or _call
        self.cap, self._counts, self._empty = cap, counts, empty
        self.ignored, self.score, self.reduce = ignore_index(criterion), score, reduce

    def __call__(self, batch: Batch) -> Losses:
        """Line 3."""
        x, y, sample_weight = batch
        outputs = self.forward(self.model, x)
        found = weighted_losses(self.criterion, (outputs, y), {}, sample_weight, "OrderedStep")
        # whole samples that are ignored are left out by `Present`
        valid = None if self.reduce is None else not_ignored(found, self.ignored, (outputs, y), {})
        units = as_units(found, valid, "sample", None, "OrderedStep", reduce=self.reduce, empty=self._empty)
        losses = units.capped(self.cap).losses
        scores: Scores = None
        if self.score is not None:
            seen = tree_map(_without_graph, outputs)
            asked = Asked(self.score, seen, y, found.detach(), valid, self.reduce, self._empty)
            scores = asked  # type: ignore[assignment]  # mypy does not take a tuple for a function
        if self._counts or torch.compiler.is_compiling() or not isinstance(outputs, Tensor):
            return Losses(losses, self._right(outputs, y, losses), scores)
        if not countable(self.criterion, outputs, y, losses):
            return Losses(losses, None, scores)  # a record would hold the outputs for nothing
        # if somebody asks
        return Losses(losses, partial(self._right, outputs.detach(), y, losses.detach()), scores)

    def _right(self, outputs: Any, y: Any, losses: Tensor) -> Tensor | None:
        """Which answers are right; one with the ignored target is not."""
        right = right_answers(self.criterion, outputs, y, like=losses)
        return right if right is None or self.ignored is None else right & (y != self.ignored)


def _without_graph(leaf: Any) -> Any:
    return leaf.detach() if isinstance(leaf, Tensor) else leaf


def _call(model: nn.Module, x: Any) -> Any:
    if isinstance(x, Mapping):
        return model(**x)
    return model(*x) if type(x) in (tuple, list) else model(x)  # a PackedSequence is a tuple too
