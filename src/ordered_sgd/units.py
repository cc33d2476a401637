"""What is ordered: samples, tokens, pixels or groups of them; masked ones never count.

Losses of any shape become units, one value each, of which some may not be valid. `ordered_sgd.kept_units` says which of
them are kept.
"""

import numbers
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from ordered_sgd.errors import ArgumentError, check_choice, message
from ordered_sgd.selection import check_losses, widen

Unit = Literal["sample", "token", "pixel", "group"]
Within = Literal["batch", "sample"]
UNITS = ("sample", "token", "pixel", "group")


def check_unit(unit: str, within: str, group: object, where: str) -> None:
    """Raise unless the unit is known and can be ordered there."""
    check_choice(where, "unit", unit, UNITS)
    check_choice(where, "within", within, ("batch", "sample"))
    if within == "sample" and unit not in ("token", "pixel"):
        remedy = 'Use unit="token" or unit="pixel" to order what is inside a sample.'
        raise ArgumentError(message(where, "within", f'be "batch" for unit={unit!r}', "'sample'", remedy))
    if within == "sample" and group is not None:
        remedy = "Leave group out: what is kept of a sample does not depend on other ranks."
        raise ArgumentError(message(where, "group", 'be None for within="sample"', "a process group", remedy))


def check_mixture(trim: float, mix: float, cap: float | None, where: str, trim_epochs: int = 0) -> None:
    """Raise unless each has a meaning."""
    count = isinstance(trim, numbers.Integral) and not isinstance(trim, bool) and trim >= 0
    if not count and not (isinstance(trim, numbers.Real) and not isinstance(trim, numbers.Integral) and 0 <= trim < 1):
        remedy = "Use trim=0.1 to drop the tenth of the batch with the largest losses."
        raise ArgumentError(message(where, "trim", "be a count or a share in [0, 1)", repr(trim), remedy))
    if not isinstance(trim_epochs, int) or trim_epochs < 0:
        remedy = "Use trim_epochs=0 to trim from the first step."
        raise ArgumentError(message(where, "trim_epochs", "be an int of at least 0", repr(trim_epochs), remedy))
    if not isinstance(mix, numbers.Real) or not 0 <= mix <= 1:
        remedy = "Use mix=0 for the ordered loss alone, mix=1 for the plain mean."
        raise ArgumentError(message(where, "mix", "lie in [0, 1]", repr(mix), remedy))
    if cap is not None and not (isinstance(cap, numbers.Real) and cap > 0):
        raise ArgumentError(message(where, "cap", "be positive", repr(cap), "Use cap=None for no cap."))


def plain_trim(trim: float) -> float:
    """The trim as a plain int, a count, or float, a share."""
    return int(trim) if isinstance(trim, numbers.Integral) else float(trim)


def capped(values: Tensor, cap: float | None) -> Tensor:
    """The losses, none above the cap but those that are infinite, which must not be hidden."""
    return values if cap is None else torch.where(values.isinf(), values, values.clamp(max=cap))


@dataclass(frozen=True)
class Units:
    """Losses of what is ordered, one each, and what is known of them, all of one shape.

    Parameters
    ----------
    losses
        With their graph.
    valid
        Which of them count; None: all.
    scores
        What they are ordered by, detached; None: the losses.
    always
        Which of them are kept whatever their loss; None: none.
    """

    losses: Tensor
    valid: Tensor | None = None
    scores: Tensor | None = None
    always: Tensor | None = None

    @property
    def keys(self) -> Tensor:
        """What they are ordered by, detached."""
        return self.losses.detach() if self.scores is None else self.scores

    @property
    def rest(self) -> Tensor | None:
        """Which valid units are not kept in any case: those that q counts; None: all."""
        if self.always is None:
            return self.valid
        return ~self.always if self.valid is None else self.valid & ~self.always

    @property
    def plain(self) -> bool:
        """Whether all count, and are ordered by their losses."""
        return self.valid is None and self.scores is None and self.always is None

    def capped(self, cap: float | None) -> "Units":
        """The same with no loss above the cap but those that are infinite, which must not be hidden."""
        return self if cap is None else replace(self, losses=capped(self.losses, cap))

    def row(self, number: int) -> "Units":
        """One of the rows, without a graph."""
        parts = self.losses.detach(), self.valid, self.scores, self.always
        return Units(*(None if part is None else part[number] for part in parts))  # type: ignore[arg-type]

    def reshaped(self, *shape: int) -> "Units":
        """The same in another shape."""
        parts = self.losses, self.valid, self.scores, self.always
        return Units(*(None if part is None else part.reshape(shape) for part in parts))  # type: ignore[arg-type]

    def only_valid(self) -> "Units":
        """Those that count, as one dimension; how many there are is waited for."""
        if self.valid is None:
            return self.reshaped(-1)
        scores, always = (None if part is None else part[self.valid] for part in (self.scores, self.always))
        return Units(self.losses[self.valid], None, scores, always)


def as_units(
    losses: Tensor,
    mask: Tensor | None,
    unit: str,
    ids: Tensor | None,
    where: str,
    *,
    scores: Tensor | None = None,
    always: Tensor | None = None,
    reduce: str | None = None,
    empty: bool = False,
) -> Units:
    """One loss per unit, and what is known of each.

    Tokens and pixels keep the shape of the losses; samples and groups come back as one dimension, each the mean of its
    valid elements. Scores are averaged as losses are, and a unit with an element that is always kept is kept.
    """
    if not isinstance(losses, Tensor) or losses.dim() == 0:
        check_losses(losses, where)
    valid = None if mask is None else check_mask(losses, mask, where)
    if (ids is None) != (unit != "group"):
        got = "none" if ids is None else f"some with unit={unit!r}"
        remedy = 'Pass unit="group" and ids= of the same shape as the losses.'
        raise ArgumentError(message(where, "ids", 'be given for unit="group" and no other', got, remedy))
    if unit == "sample" and losses.dim() > 1 and (valid is not None or reduce is not None):
        check_losses(losses.reshape(-1), where, empty=empty or valid is not None)
        return _samples(losses, valid, scores, always, where)
    if unit == "sample":
        values = check_losses(losses, where, empty=empty or valid is not None)
        valid = None if valid is None else valid.reshape(values.shape)
    else:
        check_losses(losses.reshape(-1), where, empty=empty or valid is not None)
        values = losses
    if scores is not None:
        scores = check_scores(values if _like(scores, values) else losses, scores, where).reshape(values.shape)
    if always is not None:
        always = check_always(values if _like(always, values) else losses, always, where).reshape(values.shape)
    if ids is not None:
        return _groups(Units(values, valid, scores, always), ids, where)
    return Units(values, valid, scores, always)


def _samples(losses: Tensor, valid: Tensor | None, scores: Tensor | None, always: Tensor | None, where: str) -> Units:
    """The mean of the valid elements of each sample; scores, and what is always kept, may be given by sample."""
    there = None if valid is None else valid.flatten(1)
    counts = None if there is None else there.sum(1)
    values = _mean_of_elements(losses, there, counts)
    if scores is not None:
        scores = check_scores(values if _like(scores, values) else losses, scores, where)
        scores = scores if scores.dim() == 1 else _mean_of_elements(scores, there, counts)
    if always is not None:
        always = check_always(values if _like(always, values) else losses, always, where)
        if always.dim() > 1:
            always = (always.flatten(1) if there is None else always.flatten(1) & there).any(1)
    return Units(values, None if counts is None else counts > 0, scores, always)


def _mean_of_elements(values: Tensor, there: Tensor | None, counts: Tensor | None) -> Tensor:
    values = widen(values).flatten(1)
    if there is None or counts is None:
        return values.mean(1)
    return values.masked_fill(~there, 0).sum(1) / counts.clamp(min=1)


def check_mask(losses: Tensor, mask: Tensor, where: str) -> Tensor:
    """The mask as booleans, if it has the shape of the losses."""
    if not isinstance(mask, Tensor) or mask.shape != losses.shape:
        got = f"shape {tuple(mask.shape)}" if isinstance(mask, Tensor) else type(mask).__name__
        rule = f"be a tensor of the shape of the losses, {tuple(losses.shape)}"
        remedy = "It is true where an element counts; expand that of a whole sample."
        raise ArgumentError(message(where, "mask", rule, got, remedy))
    if mask.is_floating_point() and mask.numel():
        _check_floats(mask, where)
    return mask if mask.dtype == torch.bool else mask != 0


def _check_floats(mask: Tensor, where: str) -> None:
    """Raise unless it is clear what a mask of floats means: one that is added to scores is 0 where an element counts.

    That one looks like a mask of 0 and 1 in a batch without padding, where both are 0 everywhere.
    """
    clear = ((mask == 0) | (mask == 1)).all() & (mask != 0).any()
    remedy = "Pass booleans: mask == 0 for a mask that is added to scores, else mask != 0."
    rule = "be 1 where an element counts and else 0, and not 0 everywhere if it holds floats"
    if torch.compiler.is_compiling():
        torch._assert_async(clear, message(where, "mask", rule, "other floats", remedy))
    elif not clear:
        odd = mask[(mask != 0) & (mask != 1)]
        got = f"{odd[0].item():g}" if odd.shape[0] else "only zeros"
        raise ArgumentError(message(where, "mask", rule, got, remedy))


def _like(given: object, values: Tensor) -> bool:
    return isinstance(given, Tensor) and given.shape == values.shape


def check_scores(losses: Tensor, scores: Tensor, where: str) -> Tensor:
    """The scores without a graph, if they are floating-point numbers of the shape of the losses."""
    if not isinstance(scores, Tensor) or scores.shape != losses.shape or not scores.is_floating_point():
        got = f"{scores.dtype} of shape {tuple(scores.shape)}" if isinstance(scores, Tensor) else type(scores).__name__
        rule = f"be floating-point numbers of the shape of the losses, {tuple(losses.shape)}"
        remedy = "What has the largest scores is kept."
        raise ArgumentError(message(where, "scores", rule, got, remedy))
    return scores.detach()


def check_always(losses: Tensor, always: Tensor, where: str) -> Tensor:
    """What is always kept as booleans, if it has the shape of the losses."""
    if not isinstance(always, Tensor) or always.shape != losses.shape or always.is_floating_point():
        got = f"{always.dtype} of shape {tuple(always.shape)}" if isinstance(always, Tensor) else type(always).__name__
        rule = f"be booleans of the shape of the losses, {tuple(losses.shape)}"
        remedy = "It is true where an element is kept whatever its loss."
        raise ArgumentError(message(where, "always_keep", rule, got, remedy))
    return always if always.dtype == torch.bool else always != 0


def _groups(units: Units, ids: Tensor, where: str) -> Units:
    """The means of each group that has a valid element, in the order of their numbers."""
    if not isinstance(ids, Tensor) or ids.shape != units.losses.shape or ids.is_floating_point():
        got = f"{ids.dtype} of shape {tuple(ids.shape)}" if isinstance(ids, Tensor) else type(ids).__name__
        remedy = "Elements with the same number are one group."
        raise ArgumentError(message(where, "ids", f"be integers of shape {tuple(units.losses.shape)}", got, remedy))
    numbers = ids.flatten() if units.valid is None else ids[units.valid]
    names, place = numbers.unique(return_inverse=True)
    sizes, units = torch.bincount(place, minlength=names.shape[0]), units.only_valid()

    def mean_of(values: Tensor) -> Tensor:
        sums: Tensor = widen(values).new_zeros(names.shape[0]).index_add(0, place, widen(values))
        return sums / sizes

    scores = None if units.scores is None else mean_of(units.scores)
    always = None if units.always is None else torch.bincount(place[units.always], minlength=names.shape[0]) > 0
    return Units(mean_of(units.losses), None, scores, always)


def check_reduce(reduce: str | None, unit: str, where: str) -> None:
    """Raise unless it says how the elements of a sample are reduced."""
    check_choice(where, "reduce", reduce, (None, "mean"), 'Use reduce="mean".')
    if reduce is not None and unit != "sample":
        remedy = "Leave it out: groups are means already." if unit == "group" else "Every element is ordered by itself."
        raise ArgumentError(message(where, "reduce", f"be None for unit={unit!r}", repr(reduce), remedy))
