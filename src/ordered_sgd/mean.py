"""`ordered_mean`: the mean of the q largest losses of a batch, of samples, tokens, pixels or groups."""

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from ordered_sgd.amounts import Amount
from ordered_sgd.joined_units import join_units, mean_of_joined
from ordered_sgd.kept_units import mean_of_units
from ordered_sgd.ranks import check_group
from ordered_sgd.rules import resolve_q, warn_of_one
from ordered_sgd.selection import check_losses, mean_of_rows, top_rows
from ordered_sgd.units import Unit, Within, as_units, check_mixture, check_reduce, check_unit, plain_trim

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def ordered_mean(
    losses: Tensor,
    q: Amount,
    *,
    mask: Tensor | None = None,
    scores: Tensor | None = None,
    always_keep: Tensor | None = None,
    reduce: Literal["mean"] | None = None,
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
        `Above` keeps what is above a value. With ``within="sample"``, integers of shape (s,) are a count for each
        sample, which may be 0.
    mask
        Of the shape of `losses`, true or not zero where an element counts: padding and ignored pixels are never kept
        and never counted. A batch without any valid element gives 0, with a graph. A mask of floats that could be meant
        to be added to scores (0 where an element counts) is refused.
    scores
        What the units are ordered by instead of their losses, of the shape of `losses` (or (s,) for samples): those
        with the largest scores are kept, and the mean is of their losses. Scores get no gradient.
    always_keep
        Booleans of the shape of `losses` (or (s,) for samples): valid units that are kept whatever their loss, such as
        the positives of a detector. q and trim then count the others, and the mean is over both.
    reduce
        ``"mean"`` orders samples of losses (s, ...) by the mean over the other dimensions, which are refused otherwise.
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
    >>> ordered_mean(losses, q=1, always_keep=losses == 1)  # and the largest of the others
    tensor(2.5000, grad_fn=<MeanBackward0>)
    >>> pixels = torch.tensor([[5.0, 1.0], [2.0, 9.0]])
    >>> ordered_mean(pixels, q=0.67, unit="pixel", mask=pixels < 9)  # two of the three that count
    tensor(3.5000)
    """
    where = "ordered_mean"
    if type(q) is int and not torch.compiler.is_compiling():
        warn_of_one(q, losses.numel() if isinstance(losses, Tensor) else 0, where)
    of_samples = unit == "sample" and within == "batch" and mask is None and ids is None and scores is None
    if of_samples and not (group or trim or mix or reduce) and cap is None and always_keep is None:
        values = check_losses(losses, where)
        if isinstance(q, int | float):
            return mean_of_rows(values, top_rows(values.detach(), resolve_q(q, values.shape[0], where)))
    check_unit(unit, within, group, where)
    check_mixture(trim, mix, cap, where)
    check_reduce(reduce, unit, where)
    empty = group is not None
    units = as_units(
        losses, mask, unit, ids, where, scores=scores, always=always_keep, reduce=reduce, empty=empty
    ).capped(cap)
    trim = plain_trim(trim)
    if group is None:
        return mean_of_units(units, q, within=within, trim=trim, mix=mix, where=where)
    mine = units.only_valid()
    settings = {"q": q, "trim": trim, "unit": unit, "mix": mix, "cap": cap}
    given = check_group(group, where)
    joined, everything = join_units(mine, None, given, where, settings=settings, empty=units.valid is not None)
    return mean_of_joined(mine, joined, everything, q, trim=trim, mix=mix, where=where)
