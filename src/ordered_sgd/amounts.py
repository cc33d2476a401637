"""How many units are kept: a count, a share, all above a value, or a count for each sample."""

import math
import numbers
from dataclasses import dataclass

import torch
from torch import Tensor

from ordered_sgd.errors import ArgumentError, message
from ordered_sgd.rules import check_q, floor_share, resolve_q
from ordered_sgd.selection import widen


@dataclass(frozen=True)
class Above:
    """Keep every loss above a value, but at least so many: a value of q.

    Where scores are given, these are compared with the value.

    Parameters
    ----------
    value : float
        What is larger is kept. A probability p of the right class is a cross-entropy of -ln p: 0.7 is 0.357.
    at_least : float, default=1
        The least that is kept, a count or a share in (0, 1]: the largest, where fewer are above the value.

    Examples
    --------
    >>> from ordered_sgd import ordered_mean
    >>> losses = torch.tensor([0.1, 2.0, 0.3, 1.0])
    >>> ordered_mean(losses, q=Above(0.9))
    tensor(1.5000)
    >>> ordered_mean(losses, q=Above(5.0, at_least=0.75))
    tensor(1.1000)
    """

    value: float
    at_least: float = 1

    def __post_init__(self) -> None:
        if not isinstance(self.value, numbers.Real) or not math.isfinite(self.value):
            remedy = "Use -math.log(0.7) for a probability of 0.7."
            raise ArgumentError(message("Above", "value", "be a finite number", repr(self.value), remedy))
        try:
            object.__setattr__(self, "at_least", check_q(self.at_least, "Above"))  # a plain number
        except ArgumentError as error:
            rule, remedy = "be an int of at least 1 or a fraction in (0, 1]", "Use at_least=1 for no floor."
            raise ArgumentError(message("Above", "at_least", rule, repr(self.at_least), remedy)) from error


Amount = float | Above | Tensor


def check_amount(q: Amount, where: str, samples: int | None = None) -> Amount:
    """The q as a plain number, a threshold, or a count for each of so many samples; one clear error for other values.

    Counts for each sample come back as int64, one row each; where samples are not ordered by themselves, `samples` is
    None.
    """
    if isinstance(q, Above):
        return q
    if not isinstance(q, Tensor):
        return check_q(q, where)
    remedy = 'Pass one count per sample, with within="sample".'
    if samples is None or q.shape != (samples,):
        got = f"a tensor of shape {tuple(q.shape)}"
        rule = "be a number" if samples is None else f"be a number, or hold one for each of {samples} samples"
        raise ArgumentError(message(where, "q", rule, got, remedy))
    if q.is_floating_point() or q.dtype == torch.bool:
        raise ArgumentError(message(where, "q", "be integers if it is a tensor", q.dtype, remedy))
    if q.is_cpu and not torch.compiler.is_compiling() and bool((q < 0).any()):
        remedy = "Use 0 where nothing is to be kept."
        raise ArgumentError(message(where, "q", "be at least 0", int(q.min()), remedy))
    return q.long().reshape(-1, 1)


def kept_count(q: Amount, keys: Tensor, r: int, where: str) -> int:
    """How many of detached keys (m,) are kept after the r largest; at least one, if there is one. Reads the keys.

    >>> kept_count(Above(1.0, at_least=0.5), torch.tensor([0.1, 3.0, 2.0, 4.0]), 0, "doctest")
    3
    """
    m = keys.shape[0]
    if isinstance(q, Tensor):
        return min(int(q), m - r)
    if isinstance(q, Above):
        # a loss that is NaN ranks as the largest
        above = m - int((widen(keys) <= q.value).count_nonzero()) - r
        return min(max(above, resolve_q(q.at_least, max(m, 1), where)), m - r)
    return min(resolve_q(q, max(m, 1), where), m - r)


def kept_counts(q: Amount, keys: Tensor, there: Tensor, trim: float) -> tuple[Tensor, Tensor]:
    """How many of the keys that are there are trimmed, and kept, in each row of (rows, units); nothing is read."""
    count = there.sum(1, keepdim=True)
    r = trimmed_counts(trim, count)
    if isinstance(q, Tensor):
        return r, torch.minimum(q, count - r)
    least = _counts(q.at_least if isinstance(q, Above) else q, count).clamp(min=1)
    if isinstance(q, Above):
        above = (~(widen(keys) <= q.value) & there).sum(1, keepdim=True)
        least = torch.maximum(least, above - r)
    return r, torch.minimum(least, count - r)


def trimmed_counts(trim: float, count: Tensor) -> Tensor:
    """How many of so many valid units are trimmed: as `trimmed` says, for numbers on a device."""
    return torch.minimum(_counts(trim, count), count - 1).clamp(min=0)


def _counts(share: float, count: Tensor) -> Tensor:
    """A count, or a share of each of the counts, rounded down as `ordered_sgd.rules.resolve_q` does."""
    if not isinstance(share, float):
        return torch.full_like(count, min(share, 2**62))
    exact = (count.cpu() if count.device.type == "mps" else count).double()  # which MPS does not have
    return (share * exact * (1 + 1e-12)).floor().long().to(count.device)


def trimmed(trim: float, m: int) -> int:
    """How many of m units `trim`, a count or a share, drops; at least one is left.

    >>> trimmed(0.1, 64), trimmed(3, 64), trimmed(3, 2), trimmed(0.9, 0)
    (6, 3, 1, 0)
    """
    return max(0, min(floor_share(trim, m) if isinstance(trim, float) else trim, m - 1))
