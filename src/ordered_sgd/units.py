"""What is ordered: samples, tokens, pixels or groups of them; masked ones never count.

Losses of any shape become units, one value each, of which some may not be valid; then as in Algorithm 1 the q largest
are kept and their mean is taken. On an accelerator, and while torch.compile traces, the units are sorted and counts
stay on the device (groups, and masks of floats, are waited for); on the CPU only the valid units are looked at, by
partition.
"""

import numbers
from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from ordered_sgd.errors import ArgumentError, check_choice, message
from ordered_sgd.rules import check_q, floor_share, resolve_q
from ordered_sgd.selection import check_losses, mean, top_rows, widen

Unit = Literal["sample", "token", "pixel", "group"]
Within = Literal["batch", "sample"]
UNITS = ("sample", "token", "pixel", "group")
# Rows of fewer units than this are sorted together when each sample is ordered by itself; longer ones one by one.
_SORT_ROWS_BELOW = 2048


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


def as_units(
    losses: Tensor, mask: Tensor | None, unit: str, ids: Tensor | None, where: str, *, empty: bool = False
) -> tuple[Tensor, Tensor | None]:
    """One loss per unit, and which units are valid (None: all).

    Tokens and pixels keep the shape of the losses; samples and groups come back as one dimension, each the mean of its
    valid elements.
    """
    if not isinstance(losses, Tensor) or losses.dim() == 0:
        check_losses(losses, where)
    valid = None if mask is None else check_mask(losses, mask, where)
    if (ids is None) != (unit != "group"):
        got = "none" if ids is None else f"some with unit={unit!r}"
        remedy = 'Pass unit="group" and ids= of the same shape as the losses.'
        raise ArgumentError(message(where, "ids", 'be given for unit="group" and no other', got, remedy))
    if unit == "sample" and (valid is None or losses.dim() == 1):
        values = check_losses(losses, where, empty=empty or valid is not None)
        return values, None if valid is None else valid.reshape(values.shape)
    check_losses(losses.reshape(-1), where, empty=empty or valid is not None)
    if ids is not None:
        return _groups(losses, valid, ids, where)
    if unit == "sample":
        assert valid is not None
        counts = valid.flatten(1).sum(1)
        sums = widen(losses).masked_fill(~valid, 0).flatten(1).sum(1)
        return sums / counts.clamp(min=1), counts > 0
    return losses, valid


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


def _groups(losses: Tensor, valid: Tensor | None, ids: Tensor, where: str) -> tuple[Tensor, None]:
    """The mean loss of each group that has a valid element, in the order of their numbers."""
    if not isinstance(ids, Tensor) or ids.shape != losses.shape or ids.is_floating_point():
        got = f"{ids.dtype} of shape {tuple(ids.shape)}" if isinstance(ids, Tensor) else type(ids).__name__
        remedy = "Elements with the same number are one group."
        raise ArgumentError(message(where, "ids", f"be integers of shape {tuple(losses.shape)}", got, remedy))
    values, numbers = (losses.flatten(), ids.flatten()) if valid is None else (losses[valid], ids[valid])
    names, place = numbers.unique(return_inverse=True)
    sums = widen(values).new_zeros(names.shape[0]).index_add(0, place, widen(values))
    return sums / torch.bincount(place, minlength=names.shape[0]), None


def mean_of_units(
    values: Tensor,
    valid: Tensor | None,
    q: float,
    *,
    within: str = "batch",
    trim: float = 0,
    mix: float = 0.0,
    draw: Callable[[Tensor], Tensor] | None = None,
    where: str,
) -> Tensor:
    """Mean of the q largest valid units after the `trim` largest, mixed with the mean of all valid ones.

    No valid unit at all gives 0, with a graph. A NaN is never trimmed away: it makes the mean NaN.

    Parameters
    ----------
    values, valid
        What `as_units` returns.
    q, trim, within, mix
        As in `ordered_sgd.ordered_mean`.
    draw
        Replaces the values by other numbers of the same shape to order by: the random control.
    where
        Whom an error message speaks of.
    """
    q = check_q(q, where)
    keys = values.detach() if draw is None else draw(values.detach())
    if within == "batch":
        values, keys = values.reshape(1, -1), keys.reshape(1, -1)
    elif values.dim() < 2:
        got, remedy = f"shape {tuple(values.shape)}", "Do not flatten them."
        raise ArgumentError(message(where, "losses", 'be (s, ...) for within="sample"', got, remedy))
    values, keys = values.flatten(1), keys.flatten(1)
    valid = None if valid is None else valid.reshape(values.shape)
    choose = _mean_by_rows if values.is_cpu and not torch.compiler.is_compiling() else _mean_by_sorting
    top = choose(values, keys, valid, q, trim, where)
    return mixed(top, values, trim, mix, valid)


def mixed(top: Tensor, values: Tensor, trim: float, mix: float, valid: Tensor | None = None) -> Tensor:
    """The ordered mean, not finite if a trimmed loss was NaN, with so much of the mean of all valid values."""
    if trim:
        faults = values.detach().isnan() if valid is None else values.detach().isnan() & valid
        top = torch.where(faults.any(), torch.nan, top)
    if not mix:
        return top
    everything = mean_or_zero(values) if valid is None else _mean_where(values, valid)
    return (1 - mix) * top + mix * everything


def mean_or_zero(values: Tensor) -> Tensor:
    """The mean, or of none at all 0, with a graph."""
    return mean(values) if values.numel() else widen(values).sum()


def _mean_by_sorting(values: Tensor, keys: Tensor, valid: Tensor | None, q: float, trim: float, where: str) -> Tensor:
    """The specification, and what runs on accelerators and inside torch.compile: nothing depends on what is valid."""
    valid = torch.ones_like(values, dtype=torch.bool) if valid is None else valid
    return _mean_where(values, kept_units(keys, valid, q, trim))


def kept_units(keys: Tensor, valid: Tensor, q: float, trim: float) -> Tensor:
    """Which units of each row are kept, as booleans of the same shape (rows, units)."""
    r, k = _counts_of(q, trim, valid.sum(1, keepdim=True))
    order = widen(keys).masked_fill(~valid, -torch.inf).sort(dim=1, descending=True, stable=True).indices
    rank = torch.arange(keys.shape[1], device=keys.device)
    return torch.zeros_like(valid).scatter(1, order, (rank >= r) & (rank < r + k)) & valid


def _counts_of(q: float, trim: float, count: Tensor) -> tuple[Tensor, Tensor]:
    """How many of so many valid units are trimmed, and kept."""
    r = trimmed_counts(trim, count)
    return r, torch.minimum(_counts(q, count).clamp(min=1), count - r)


def trimmed_counts(trim: float, count: Tensor) -> Tensor:
    """How many of so many valid units are trimmed: as `trimmed` says, for numbers on a device."""
    return torch.minimum(_counts(trim, count), count - 1).clamp(min=0)


def _counts(share: float, count: Tensor) -> Tensor:
    """A count, or a share of each of the counts, rounded down as `ordered_sgd.rules.resolve_q` does."""
    if not isinstance(share, float):
        return torch.full_like(count, min(share, 2**62))
    exact = (count.cpu() if count.device.type == "mps" else count).double()  # which MPS does not have
    return (share * exact * (1 + 1e-12)).floor().long().to(count.device)


def _mean_where(values: Tensor, chosen: Tensor) -> Tensor:
    return torch.where(chosen, widen(values), 0).sum() / chosen.sum().clamp(min=1)


def _mean_by_rows(values: Tensor, keys: Tensor, valid: Tensor | None, q: float, trim: float, where: str) -> Tensor:
    """The same on the CPU, faster: only valid units are ordered, and only kept ones are in the graph."""
    if values.shape[0] != 1 and values.shape[1] < _SORT_ROWS_BELOW:
        try:
            return _mean_where(values, _kept_numpy(keys, valid, q, trim))
        except RuntimeError:  # a tensor without plain memory of its own, as inside torch.func
            return _mean_by_sorting(values, keys, valid, q, trim, where)
    size, rows = values.shape[1], [torch.empty(0, dtype=torch.int64)]
    for number in range(values.shape[0]):
        there = None if valid is None else valid[number]
        rows.append(kept_rows(keys[number], there, q, trim, where) + number * size)
    kept = torch.cat(rows)
    if kept.shape[0] == values.numel():
        return mean_or_zero(values)
    return mean_or_zero(values.flatten().index_select(0, kept))


def _kept_numpy(keys: Tensor, valid: Tensor | None, q: float, trim: float) -> Tensor:
    """What `kept_units` says, for many short rows on the CPU: sorts values only, and gives ties to the lower index."""
    values = widen(keys).numpy()
    there = np.ones(values.shape, bool) if valid is None else valid.numpy()
    # NaN above all others, and what is not valid below
    values = np.where(there, np.nan_to_num(values, nan=np.inf, posinf=np.finfo(values.dtype).max), -np.inf)
    ordered, count = np.sort(values, axis=1), torch.from_numpy(there.sum(1, keepdims=True))
    r, k = (part.numpy() for part in _counts_of(q, trim, count))
    return torch.from_numpy(_largest(values, ordered, r + k) & ~_largest(values, ordered, r) & there)


def _largest(values: np.ndarray, ordered: np.ndarray, count: np.ndarray) -> np.ndarray:
    """The so many largest of each row, as booleans; `ordered` are the rows in ascending order."""
    size = values.shape[1]
    threshold = np.take_along_axis(ordered, np.clip(size - count, 0, size - 1), axis=1)
    above, ties = values > threshold, values == threshold
    room = count - above.sum(1, keepdims=True)
    kept: np.ndarray = above | (ties & (ties.cumsum(1) <= room))
    return kept & (count > 0)


def kept_rows(keys: Tensor, valid: Tensor | None, q: float, trim: float, where: str) -> Tensor:
    """Positions of the units of shape (m,) that are kept, ascending."""
    if valid is None:
        return rows_after_trim(keys, q, trim, where)
    place = valid.nonzero().squeeze(1)
    return place.index_select(0, rows_after_trim(keys.index_select(0, place), q, trim, where))


def rows_after_trim(values: Tensor, q: float, trim: float, where: str) -> Tensor:
    """Positions of the q largest of detached values (m,) after the `trim` largest, ascending; m may be 0."""
    m = values.shape[0]
    q = resolve_q(q, max(m, 1), where)
    r = trimmed(trim, m)
    return top_rows(values, min(q, m - r), r)


def trimmed(trim: float, m: int) -> int:
    """How many of m units `trim`, a count or a share, drops; at least one is left.

    >>> trimmed(0.1, 64), trimmed(3, 64), trimmed(3, 2), trimmed(0.9, 0)
    (6, 3, 1, 0)
    """
    return max(0, min(floor_share(trim, m) if isinstance(trim, float) else trim, m - 1))
