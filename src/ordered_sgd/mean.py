"""`ordered_mean`: the mean of the q largest losses of a batch, of samples, tokens, pixels or groups."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ordered_sgd.ranks import check_group, join, mean_over_ranks
from ordered_sgd.rules import resolve_q, warn_of_one
from ordered_sgd.selection import check_losses, mean_of_rows, top_rows
from ordered_sgd.units import (
    Unit,
    Within,
    as_units,
    capped,
    check_mixture,
    check_unit,
    mean_of_units,
    plain_trim,
    rows_after_trim,
)

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def ordered_mean(
    losses: Tensor,
    q: float,
    *,
    mask: Tensor | None = None,
    unit: Unit = "sample",
    ids: Tensor | None = None,
    within: Within = "batch",
    trim: float = 0,
    mix: float = 0.0,
    cap: float | None = None,
    group: "ProcessGroup | None" = None,
) -> Tensor:
    """Mean of the q largest losses.

    Differentiable: the gradient of each kept loss is 1/q, of the others zero. Half-precision losses are averaged in
    float32. A NaN loss is kept and makes the mean NaN.

    Parameters
    ----------
    losses
        One loss per sample, shape (s,) or (s, 1): build the criterion with ``reduction="none"``. Any shape with another
        `unit`.
    q
        A count, or a share in (0, 1] of the batch, that is of its valid units; more than there are means all of them.
    mask
        Of the shape of `losses`, true or not zero where an element counts: padding and ignored pixels are never kept
        and never counted. A batch without any valid element gives 0, with a graph. A mask of floats that could be meant
        to be added to scores (0 where an element counts) is refused.
    unit
        What is ordered: ``"sample"`` (of further dimensions, which then need a mask, the mean of its valid elements),
        ``"token"`` or ``"pixel"`` (every element), ``"group"`` (the mean of the elements with the same number in
        `ids`).
    ids
        For groups, integers of the shape of `losses`.
    within
        ``"sample"`` keeps q of the tokens or pixels of each sample, ``"batch"`` q of all; the mean is over the kept.
    trim
        A count, or a share in [0, 1) of the valid units: the largest are dropped first, because they are often wrong
        labels, then the q largest of the rest are kept; a q that is a share is one of all valid units. It does harm
        before the model has learned anything: see `trim_epochs` of `ordered_sgd.OrderedLoss`.
    mix
        (1 - mix) times the ordered mean plus mix times the plain one.
    cap
        Losses above it count as the cap and have no gradient; one that is infinite stays so.
    group
        A process group of torch.distributed: the batch is then that of all its ranks together, of which each calls
        this with its own losses, how many it may have, or none; q counts over all of them and ties go to the lower
        (rank, index). Every rank gets the mean over all, with a gradient whose average over ranks, as
        DistributedDataParallel and fully_shard take it, is that of one process on the joined batch.

    Examples
    --------
    >>> losses = torch.tensor([1.0, 4.0, 2.0, 3.0], requires_grad=True)
    >>> loss = ordered_mean(losses, q=2)
    >>> loss.item()
    3.5
    >>> loss.backward()
    >>> losses.grad
    tensor([0.0000, 0.5000, 0.0000, 0.5000])
    >>> pixels = torch.tensor([[5.0, 1.0], [2.0, 9.0]])
    >>> ordered_mean(pixels, q=0.67, unit="pixel", mask=pixels < 9)  # two of the three that count
    tensor(3.5000)
    """
    where = "ordered_mean"
    if type(q) is int and not torch.compiler.is_compiling():
        warn_of_one(q, losses.numel() if isinstance(losses, Tensor) else 0, where)
    of_samples = unit == "sample" and within == "batch" and mask is None and ids is None
    if of_samples and group is None and not trim and not mix and cap is None:
        values = check_losses(losses, where)
        return mean_of_rows(values, top_rows(values.detach(), resolve_q(q, values.shape[0], where)))
    check_unit(unit, within, group, where)
    check_mixture(trim, mix, cap, where)
    values, valid = as_units(losses, mask, unit, ids, where, empty=group is not None)
    values, trim = capped(values, cap), plain_trim(trim)
    if group is None:
        return mean_of_units(values, valid, q, within=within, trim=trim, mix=mix, where=where)
    mine = values.flatten() if valid is None else values[valid]
    settings = {"q": q, "trim": trim, "unit": unit, "mix": mix, "cap": cap}
    joined = join(mine, None, check_group(group, where), where, settings=settings, empty=valid is not None)
    return mean_over_ranks(mine, rows_after_trim(joined.losses, q, trim, where), joined, trim=trim, mix=mix)
