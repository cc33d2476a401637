"""The units of all ranks of a process group together: what each has of them is sent in one message."""

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ordered_sgd.amounts import Amount, check_amount
from ordered_sgd.kept_units import Draw, hidden_faults, kept_rows
from ordered_sgd.ranks import Joined, join, mean_over_ranks
from ordered_sgd.shared_settings import Settings
from ordered_sgd.units import Units

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def join_units(
    mine: Units, correct: Tensor | None, group: "ProcessGroup", where: str, *, settings: Settings, empty: bool
) -> tuple[Joined, Units]:
    """The losses of all ranks as `ordered_sgd.ranks.join` gives them, and all that is known of the units.

    `mine` are the valid units of this rank, in one dimension.
    """
    beside = {"scores": mine.scores, "always_keep": mine.always}
    given = {name: part for name, part in beside.items() if part is not None}
    settings = {**settings, **dict.fromkeys(given, "given")}
    if not given:
        joined = join(mine.losses, correct, group, where, settings=settings, empty=empty)
        return joined, Units(joined.losses)
    dtype = mine.losses.dtype if mine.scores is None else torch.promote_types(mine.losses.dtype, mine.scores.dtype)
    sent = torch.cat([part.to(dtype) for part in (mine.losses.detach(), *given.values())])
    joined = join(sent, correct, group, where, settings=settings, empty=empty)
    each, sizes = 1 + len(given), tuple(size // (1 + len(given)) for size in joined.sizes)
    parts = [part.reshape(each, size) for part, size in zip(joined.losses.split(joined.sizes), sizes, strict=True)]
    losses, *others = torch.cat(parts, dim=1).unbind(0)
    found = dict(zip(given, others, strict=True))
    losses, always = losses.to(mine.losses.dtype), found.get("always_keep")
    units = Units(losses, None, found.get("scores"), None if always is None else always != 0)
    return replace(joined, losses=losses, sizes=sizes), units


def mean_of_joined(
    mine: Units,
    joined: Joined,
    units: Units,
    q: Amount,
    *,
    trim: float,
    mix: float,
    draw: Draw | None = None,
    where: str,
) -> Tensor:
    """The ordered mean of the units of all ranks, with a gradient for those of this rank."""
    q = check_amount(q, where)
    rows = kept_rows(units, None if draw is None else draw(units.keys), q, trim, where)
    return mean_over_ranks(mine.losses, rows, joined, faults=hidden_faults(units, q, trim), mix=mix)
