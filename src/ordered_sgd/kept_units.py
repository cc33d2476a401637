"""Which units are kept, and their mean: the q with the largest keys, and those that are kept in any case.

On an accelerator, and while torch.compile traces, the units are sorted and counts stay on the device; on the CPU only
the valid units are looked at, by partition.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ordered_sgd.amounts import Amount, check_amount, kept_count, kept_counts, trimmed
from ordered_sgd.errors import ArgumentError, message
from ordered_sgd.selection import mean, top_rows, widen
from ordered_sgd.units import Units

# Rows of fewer units than this are sorted together when each sample is ordered by itself; longer ones one by one.
_SORT_ROWS_BELOW = 2048
Draw = Callable[[Tensor], Tensor]


def mean_of_units(
    units: Units,
    q: Amount,
    *,
    within: str = "batch",
    trim: float = 0,
    mix: float = 0.0,
    draw: Draw | None = None,
    where: str,
) -> Tensor:
    """Mean of the q valid units with the largest keys after the `trim` largest, mixed with the mean of all valid ones.

    No valid unit at all gives 0, with a graph. A NaN is never hidden by what is kept: it makes the mean NaN.

    Parameters
    ----------
    units
        What `as_units` returns.
    q, trim, within, mix
        As in `ordered_sgd.ordered_mean`.
    draw
        Gives other numbers of the same shape to order by: the random control.
    where
        Whom an error message speaks of.
    """
    if within == "batch":
        q, units = check_amount(q, where), units.reshaped(1, -1)
    elif units.losses.dim() < 2:
        got, remedy = f"shape {tuple(units.losses.shape)}", "Do not flatten them."
        raise ArgumentError(message(where, "losses", 'be (s, ...) for within="sample"', got, remedy))
    else:
        s = units.losses.shape[0]
        q, units = check_amount(q, where, s), units.reshaped(s, units.losses.shape[1:].numel())
    order = None if draw is None else draw(units.keys)
    choose = _mean_by_rows if units.losses.is_cpu and not torch.compiler.is_compiling() else _mean_by_sorting
    top = choose(units, order, q, trim, where)
    return finished(top, units, q, trim, mix)


def finished(top: Tensor, units: Units, q: Amount, trim: float, mix: float) -> Tensor:
    """The ordered mean with so much of the mean of all valid units; NaN where what is kept may hide a NaN."""
    faults = hidden_faults(units, q, trim)
    if faults is not None:
        top = top * torch.where(faults, torch.nan, 1.0)  # and so is the gradient, which a GradScaler looks at
    if not mix:
        return top
    everything = mean_or_zero(units.losses) if units.valid is None else _mean_where(units.losses, units.valid)
    return (1 - mix) * top + mix * everything


def hidden_faults(units: Units, q: Amount, trim: float) -> Tensor | None:
    """Whether a valid loss or score is NaN, or a count negative; None where that would show in what is kept.

    A loss that is NaN ranks as the largest, but may be trimmed, have a small score, or be in a sample of count 0.
    """
    if not trim and units.scores is None and not isinstance(q, Tensor):
        return None
    faults = units.losses.detach().isnan()
    if units.scores is not None:
        faults = faults | units.scores.isnan()
    found = (faults if units.valid is None else faults & units.valid).any()
    return found | (q < 0).any() if isinstance(q, Tensor) else found


def mean_or_zero(values: Tensor) -> Tensor:
    """The mean, or of none at all 0, with a graph."""
    return mean(values) if values.numel() else widen(values).sum()


def _mean_by_sorting(units: Units, order: Tensor | None, q: Amount, trim: float, where: str) -> Tensor:
    """The specification, and what runs on accelerators and inside torch.compile: nothing depends on what is valid."""
    return _mean_where(units.losses, kept_by_sorting(units, order, q, trim))


def kept_by_sorting(units: Units, order: Tensor | None, q: Amount, trim: float) -> Tensor:
    """Which units of each row are kept, as booleans of shape (rows, units); `order` holds other numbers to order by."""
    keys = units.keys
    rest = torch.ones_like(keys, dtype=torch.bool) if units.rest is None else units.rest
    r, k = kept_counts(q, keys, rest, trim)
    place = widen(keys if order is None else order).sort(dim=1, descending=True, stable=True).indices
    there = rest.gather(1, place)
    rank = there.cumsum(1) - 1  # among those that q counts
    kept = torch.zeros_like(rest).scatter(1, place, there & (rank >= r) & (rank < r + k))
    return _with_always(kept, units)


def _with_always(kept: Tensor, units: Units) -> Tensor:
    if units.always is None:
        return kept
    return kept | (units.always if units.valid is None else units.always & units.valid)


def _mean_where(values: Tensor, chosen: Tensor) -> Tensor:
    return torch.where(chosen, widen(values), 0).sum() / chosen.sum().clamp(min=1)


def _mean_by_rows(units: Units, order: Tensor | None, q: Amount, trim: float, where: str) -> Tensor:
    """The same on the CPU, faster: only valid units are ordered, and only kept ones are in the graph."""
    values = units.losses
    if values.shape[0] != 1 and 0 < values.shape[1] < _SORT_ROWS_BELOW:
        try:
            places = _kept_numpy(units, order, q, trim).numpy()
        except RuntimeError:  # a tensor without plain memory of its own, as inside torch.func
            return _mean_by_sorting(units, order, q, trim, where)
        return mean_or_zero(values.flatten().index_select(0, torch.from_numpy(np.flatnonzero(places))))
    rows = [torch.empty(0, dtype=torch.int64)]
    for number in range(values.shape[0]):
        one = units.row(number)
        amount = q[number] if isinstance(q, Tensor) else q
        among = None if order is None else order[number]
        rows.append(kept_rows(one, among, amount, trim, where) + number * values.shape[1])
    kept = torch.cat(rows)
    if kept.shape[0] == values.numel():
        return mean_or_zero(values)
    return mean_or_zero(values.flatten().index_select(0, kept))


def _kept_numpy(units: Units, order: Tensor | None, q: Amount, trim: float) -> Tensor:
    """What `kept_by_sorting` says, for many short rows on the CPU: sorts values, and gives ties to the lower index."""
    keys, rest = units.keys, units.rest
    values = widen(keys if order is None else order).numpy()
    there = None if rest is None else rest.numpy()
    if there is not None:  # what does not count is below all others
        values = np.where(there, values, -np.inf)
    ordered = np.sort(values, axis=1)
    if np.isnan(ordered[:, -1:]).any():  # which NumPy sorts last, but does not compare
        return kept_by_sorting(units, order, q, trim)
    counted = torch.ones_like(keys, dtype=torch.bool) if rest is None else rest
    r, k = (part.numpy() for part in kept_counts(q, keys, counted, trim))
    kept = _largest(values, ordered, r + k, there)
    if r.any():
        kept &= ~_largest(values, ordered, r, there)
    return _with_always(torch.from_numpy(kept), units)


def _largest(values: np.ndarray, ordered: np.ndarray, count: np.ndarray, there: np.ndarray | None) -> np.ndarray:
    """The so many largest that are there of each row, as booleans; `ordered` are the rows in ascending order."""
    size = values.shape[1]
    threshold = np.take_along_axis(ordered, np.clip(size - count, 0, size - 1), axis=1)
    kept: np.ndarray = (values >= threshold) & (count > 0)
    if there is not None:
        kept &= there
    rows = np.flatnonzero(np.count_nonzero(kept, axis=1) > count[:, 0])  # not all that tie are kept
    if rows.size:
        above = values[rows] > threshold[rows]
        ties = kept[rows] & ~above
        room = count[rows] - np.count_nonzero(above, axis=1)[:, None]
        kept[rows] = above | (ties & (ties.cumsum(1) <= room))
    return kept


def kept_rows(units: Units, order: Tensor | None, q: Amount, trim: float, where: str) -> Tensor:
    """Positions of the units of shape (m,) that are kept, ascending; `order` holds other numbers to order by."""
    rest = units.rest
    if rest is None:
        return _rows_after_trim(units.keys, order, q, trim, where)
    place = rest.nonzero().squeeze(1)
    among = None if order is None else order.index_select(0, place)
    rows = _rows_after_trim(units.keys.index_select(0, place), among, q, trim, where)
    if units.always is None:
        return place.index_select(0, rows)
    kept = torch.zeros_like(rest).index_fill_(0, place.index_select(0, rows), True)
    return _with_always(kept, units).nonzero().squeeze(1)


def _rows_after_trim(keys: Tensor, order: Tensor | None, q: Amount, trim: float, where: str) -> Tensor:
    """Positions of the q of shape (m,) that are kept after the `trim` largest, ascending; m may be 0."""
    r = trimmed(trim, keys.shape[0])
    k = kept_count(q, keys, r, where)
    if k == 0:
        return torch.empty(0, dtype=torch.int64, device=keys.device)
    return top_rows(keys if order is None else order, k, r)
