"""The q largest losses over all ranks of a process group.

Every rank sends its losses to every other in one collective, then all order the same numbers and know without further
talk what the others know: how many samples there are, which are kept, how many answers are right, whether a loss is not
finite. Ranks may hold different numbers of samples, or none. Ties go to the lower (rank, index).

All messages of a group have the same number of float32 words, and the head of each says what it is about. Ranks whose
settings differ therefore still receive each other's messages, and all of them raise the same error.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor

from ordered_sgd.errors import ArgumentError, message
from ordered_sgd.selection import mean, mean_of_rows, row_weights, widen
from ordered_sgd.shared_settings import ABOUT, Settings, by_rank, different_settings, mark_of, shown_setting

# Words for losses in a message: the most that a rank of the group has needed so far. All ranks learn it from the same
# messages, so that they agree about the size of the next one without asking.
_ROOM: "WeakKeyDictionary[dist.ProcessGroup, int]" = WeakKeyDictionary()
_FIRST_ROOM = 4  # two numbers of an engine in float64
# Words before the losses: how many losses, and how many right answers (-1: not counted), two each; the dtype; the mark
# of the settings, two.
HEAD = 7
_DIGIT, _MARK_DIGIT = 2**20, 2**24  # float32 does not tell 2**24 from its neighbour
_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


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


class Sent(NamedTuple):
    """What a rank says of its losses: their number and dtype, its right answers (-1: not counted), its settings."""

    size: int
    correct: int
    dtype: torch.dtype
    mark: int

    @property
    def words(self) -> int:
        """Words that the losses take."""
        return self.size * _width(self.dtype)


def join(
    losses: Tensor,
    correct: Tensor | None,
    group: "dist.ProcessGroup",
    where: str,
    *,
    settings: Settings,
    empty: bool = False,
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
    settings
        What must be the same on every rank, by name.
    empty
        Whether all ranks together may have none.
    """
    settings = {ABOUT: "the losses of a batch", **settings}
    joined = _exchange(losses.detach(), correct, group, where, settings, losses.device)
    if not any(joined.sizes) and not empty:
        raise no_samples(where)
    return joined


def no_samples(where: str) -> ArgumentError:
    """The error for a batch that is empty on every rank."""
    remedy = "Skip batches that are empty on every rank."
    return ArgumentError(message(where, "the batch", "hold at least one sample on some rank", "none", remedy))


def agree_on(settings: Settings, group: "dist.ProcessGroup", device: torch.device, where: str) -> None:
    """Raise on all ranks if their settings differ: before a run that was resumed computes anything."""
    settings = {ABOUT: "the settings of a resumed run", **settings}
    _exchange(torch.empty(0), None, group, where, settings, device)


def numbers_of_all(
    numbers: list[float], group: "dist.ProcessGroup", device: torch.device, about: str
) -> list[list[float]]:
    """A few numbers of every rank, in the order of the ranks."""
    sent = torch.tensor(numbers, dtype=torch.float64)
    joined = _exchange(sent, None, group, "OrderedStep", {ABOUT: about}, device)
    received: list[list[float]] = joined.losses.view(group.size(), -1).tolist()
    return received


def _exchange(
    losses: Tensor,
    correct: Tensor | None,
    group: "dist.ProcessGroup",
    where: str,
    settings: Settings,
    device: torch.device,
) -> Joined:
    """What all ranks sent over the given device, once it is known that they mean the same."""
    shown = {name: shown_setting(value) for name, value in settings.items()}
    mark, room = mark_of(shown), _ROOM.setdefault(group, _FIRST_ROOM)
    received = gather(_packed(losses, correct, mark, room).to(device), group).to(losses.device)
    heads = _heads(received)
    if any(head.mark != mark for head in heads):
        raise different_settings(shown, group, where)
    _check_dtypes(heads, where)
    if max(head.words for head in heads) > room:
        room = _ROOM[group] = max(head.words for head in heads)
        received = gather(_packed(losses, correct, mark, room).to(device), group).to(losses.device)
    return _joined(received, heads, group.rank())


def unpack(received: Tensor, rank: int) -> Joined:
    """The losses of all ranks, out of what each has sent, one row each; `rank` is this one."""
    return _joined(received, _heads(received), rank)


def _heads(received: Tensor) -> list[Sent]:
    """What each rank says of its losses: one read."""
    heads = []
    for words in received[:, :HEAD].tolist():
        count, count_low, correct, correct_low, dtype, mark, mark_low = map(int, words)
        counts = _DIGIT * count + count_low, -1 if correct < 0 else _DIGIT * correct + correct_low
        heads.append(Sent(*counts, _DTYPES[dtype], _MARK_DIGIT * mark + mark_low))
    return heads


def _joined(received: Tensor, heads: list[Sent], rank: int) -> Joined:
    sizes, answers = tuple(head.size for head in heads), [head.correct for head in heads]
    # a rank without losses may have another dtype than those that have some
    width = _width(next((head.dtype for head in heads if head.size), torch.float32))
    losses = received[:, HEAD : HEAD + width * max(sizes)]
    if width == 2:
        losses = losses.clone(memory_format=torch.contiguous_format).view(torch.float64)
    if min(sizes) < max(sizes):
        high, low = received[:, :2].long().split(1, dim=1)
        losses = losses[torch.arange(losses.shape[1], device=received.device) < _DIGIT * high + low]
    total = None if min(answers) < 0 else torch.tensor(sum(answers), device=received.device)
    return Joined(losses.flatten(), sizes, rank, total)


def _check_dtypes(heads: list[Sent], where: str) -> None:
    """Raise if ranks that have losses have different dtypes."""
    dtypes = [str(head.dtype).removeprefix("torch.") if head.size else None for head in heads]
    if len({*dtypes} - {None}) > 1:
        remedy = "Use losses.float(), or the same autocast on every rank."
        raise ArgumentError(message(where, "losses", "have one dtype on all ranks", by_rank(dtypes), remedy))


def mean_over_ranks(
    losses: Tensor, rows: Tensor, joined: Joined, *, faults: Tensor | None = None, mix: float = 0.0
) -> Tensor:
    """Mean of the chosen losses of all ranks, with a gradient for those of this rank.

    Data-parallel training averages gradients over ranks, so that of a kept loss is (number of ranks) / q: the average
    is then the gradient of one process on the joined batch. A rank without a kept sample gets zeros, with a graph.
    `mix` of the mean of all is mixed in; `faults`, where true, make the mean NaN.
    """
    if not any(joined.sizes):
        return widen(losses).sum()
    ranks = len(joined.sizes)
    weights = row_weights(losses.detach(), joined.mine(rows), rows.shape[0] / ranks)
    value = mean_of_rows(joined.losses, rows)
    if mix:
        weights = (1 - mix) * weights + mix * ranks / joined.losses.shape[0]
        value = (1 - mix) * value + mix * mean(joined.losses)
    if faults is not None:
        broken = torch.where(faults, torch.nan, 1.0)
        value, weights = value * broken, weights * broken.to(weights.dtype)
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


def _width(dtype: torch.dtype) -> int:
    """Words that a loss takes; half precision is sent as float32."""
    return 2 if dtype == torch.float64 else 1


def _packed(losses: Tensor, correct: Tensor | None, mark: int, room: int) -> Tensor:
    """What a rank sends: its head, and as many words of its losses as there is room for."""
    kind = _DTYPES.index(losses.dtype) if losses.dtype in _DTYPES else 0
    words = widen(losses).contiguous().view(torch.float32)
    packed = torch.zeros(HEAD + room, dtype=torch.float32, device=losses.device)
    packed[0], packed[1] = divmod(losses.shape[0], _DIGIT)
    if correct is None:
        packed[2] = -1
    else:
        packed[2], packed[3] = correct // _DIGIT, correct % _DIGIT
    packed[4] = kind
    packed[5], packed[6] = divmod(mark, _MARK_DIGIT)
    packed[HEAD : HEAD + words.shape[0]] = words[:room]
    return packed


def gather(sent: Tensor, group: "dist.ProcessGroup") -> Tensor:
    """What every rank sent, one row each."""
    received = sent.new_empty(group.size(), sent.shape[0])
    # the list takes views of one tensor; what replaced it in newer versions of torch is not in older ones
    dist.all_gather(list(received.unbind(0)), sent, group=group)
    return received
