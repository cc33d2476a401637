"""The q largest losses over all ranks of a process group.

Every rank sends its losses to every other in one collective, then all order the same numbers and know without further
talk what the others know: how many samples there are, which are kept, how many answers are right, whether a loss is not
finite. Ranks may hold different numbers of samples, or none. Ties go to the lower (rank, index).
"""

from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor

from ordered_sgd.errors import ArgumentError, message
from ordered_sgd.selection import mean_of_rows, row_weights, widen

# How many losses a rank sends: the most that a rank of the group has had so far. All ranks learn it from the same
# messages, so that they agree about the size of the next one without asking.
_ROOM: "WeakKeyDictionary[dist.ProcessGroup, int]" = WeakKeyDictionary()
HEAD = 4  # numbers before the losses: how many there are, and how many answers are right (-1: not counted), two each
_DIGIT = 2**20  # float32 does not tell 2**24 from its neighbour


@dataclass(frozen=True)
class Joined:
    """The losses of all ranks.

    Parameters
    ----------
    losses
        Detached, in the order of the ranks; the same on each of them.
    sizes, rank
        Samples of each rank, and which of them this is.
    correct
        Right answers over all ranks, where each could count its own.
    """

    losses: Tensor
    sizes: tuple[int, ...]
    rank: int
    correct: Tensor | None

    def mine(self, rows: Tensor) -> Tensor:
        """Of positions in the joined batch those of this rank, counted from its own first sample."""
        start = sum(self.sizes[: self.rank])
        return rows[(rows >= start) & (rows < start + self.sizes[self.rank])] - start


def join(
    losses: Tensor, correct: Tensor | None, group: "dist.ProcessGroup", where: str, *, empty: bool = False
) -> Joined:
    """The losses of all ranks, and the number of right answers: one collective, two when a rank has more than ever.

    Parameters
    ----------
    losses
        Of this rank, shape (s,); s may be 0 and differ between ranks, the dtype may not.
    correct
        How many answers of this rank are right, or None.
    group
        The ranks: all of them call this together.
    where
        Whom an error message speaks of.
    empty
        Whether all ranks together may have none.
    """
    values, room = widen(losses.detach()), _ROOM.get(group, 0)
    joined = unpack(gather(_packed(values, correct, room), group), group.rank())
    if max(joined.sizes) > room:
        room = _ROOM[group] = max(joined.sizes)
        joined = unpack(gather(_packed(values, correct, room), group), group.rank())
    if not any(joined.sizes) and not empty:
        remedy = "Skip batches that are empty on every rank."
        raise ArgumentError(message(where, "the batch", "hold at least one sample on some rank", "none", remedy))
    return joined


def unpack(received: Tensor, rank: int) -> Joined:
    """The losses of all ranks, out of what each has sent, one row each; `rank` is this one."""
    head = received[:, :HEAD].long()
    counts = _DIGIT * head[:, ::2] + head[:, 1::2]
    sizes, answers = counts.t().tolist()
    losses = received[:, HEAD:]
    if min(sizes) < losses.shape[1]:
        losses = losses[torch.arange(losses.shape[1], device=received.device) < counts[:, :1]]
    total = None if min(answers) < 0 else torch.tensor(sum(answers), device=received.device)
    return Joined(losses.flatten(), tuple(sizes), rank, total)


def mean_over_ranks(losses: Tensor, rows: Tensor, joined: Joined, *, trim: float = 0, mix: float = 0.0) -> Tensor:
    """Mean of the chosen losses of all ranks, with a gradient for those of this rank.

    Data-parallel training averages gradients over ranks, so that of a kept loss is (number of ranks) / q: the average
    is then the gradient of one process on the joined batch. A rank without a kept sample gets zeros, with a graph.
    `mix` of the mean of all is mixed in; if some were trimmed, a NaN among them still makes the mean NaN.
    """
    if not any(joined.sizes):
        return widen(losses).sum()
    ranks = len(joined.sizes)
    weights = row_weights(losses.detach(), joined.mine(rows), rows.shape[0] / ranks)
    value = mean_of_rows(joined.losses, rows)
    if mix:
        weights = (1 - mix) * weights + mix * ranks / joined.losses.shape[0]
        value = (1 - mix) * value + mix * joined.losses.mean()
    if trim:
        value = torch.where(joined.losses.isnan().any(), torch.nan, value)
    with_gradient: Tensor = _WithGradient.apply(losses, weights, value)  # type: ignore[no-untyped-call]
    return with_gradient


class _WithGradient(torch.autograd.Function):
    """A value that is the same on all ranks, and the gradient of this rank's share in it."""

    @staticmethod
    def forward(ctx: Any, losses: Tensor, weights: Tensor, value: Tensor) -> Tensor:
        ctx.save_for_backward(weights)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> Any:
        (weights,) = ctx.saved_tensors
        return (widen(weights) * gradient[0]).to(weights.dtype), None, None  # a scale may be past float16


def check_group(group: Any, where: str) -> "dist.ProcessGroup":
    """The group, if this process is a member of it, or one clear error."""
    if not dist.is_available() or not isinstance(group, dist.ProcessGroup):
        got = f"{group!r}"
        remedy = "Call init_process_group, then pass torch.distributed.group.WORLD."
        raise ArgumentError(message(where, "group", "be a process group that this process belongs to", got, remedy))
    return group


def numbers_of_all(numbers: list[float], group: "dist.ProcessGroup", device: torch.device) -> list[list[float]]:
    """A few numbers of every rank, in the order of the ranks."""
    received: list[list[float]] = gather(torch.tensor(numbers, dtype=torch.float64, device=device), group).tolist()
    return received


def _packed(values: Tensor, correct: Tensor | None, room: int) -> Tensor:
    """What a rank sends: its head, and as many of its losses as there is room for."""
    packed = values.new_zeros(HEAD + room)
    packed[0], packed[1] = divmod(values.shape[0], _DIGIT)
    if correct is None:
        packed[2] = -1
    else:
        packed[2], packed[3] = correct // _DIGIT, correct % _DIGIT
    packed[HEAD : HEAD + values.shape[0]] = values[:room]
    return packed


def gather(sent: Tensor, group: "dist.ProcessGroup") -> Tensor:
    """What every rank sent, one row each."""
    received = sent.new_empty(group.size(), sent.shape[0])
    # the list takes views of one tensor; what replaced it in newer versions of torch is not in older ones
    dist.all_gather(list(received.unbind(0)), sent, group=group)
    return received
