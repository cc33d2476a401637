"""What the engine with a memory refuses: one clear error for each."""

from typing import Any

import torch
from torch import Tensor

from ordered_sgd.engines.phases import Parts
from ordered_sgd.errors import ArgumentError, check_choice, message

LARGEST = 2**31  # indices are below: a hash in the place of a position would ask for terabytes


def refuse(parts: Parts) -> None:
    """Raise for what this engine cannot do."""
    if parts.selection != "top":
        rule, remedy = "be 'top' for engine 'memory'", 'Use engine="auto": a random choice needs no candidates.'
        raise ArgumentError(message("OrderedStep", "selection", rule, repr(parts.selection), remedy))
    if parts.group is not None:
        rule = "be None for engine 'memory', which picks candidates before ranks compare losses"
        remedy = "Leave it out: every rank then keeps the largest losses of its own shard, and remembers those."
        raise ArgumentError(message("OrderedStep", "group", rule, "a process group", remedy))
    if parts.by_score or not parts.counts_ahead:
        name, got = ("score", "a function") if parts.by_score else ("q", "a threshold")
        rule = "be None for engine 'memory'" if parts.by_score else "be known before the losses for engine 'memory'"
        remedy = 'Use engine="auto": only losses are remembered, and candidates are picked for a known q.'
        raise ArgumentError(message("OrderedStep", name, rule, got, remedy))


def check_index(index: Any, y: Any, device: torch.device) -> tuple[Tensor, int]:
    """The numbers of a batch's samples, int64 on the device, and the largest of them, or one clear error."""
    if y is None:
        rule, remedy = "be one batch for engine 'memory'", 'Use engine="auto" for micro-batches.'
        raise ArgumentError(message("OrderedStep", "the batch", rule, "a list of micro-batches", remedy))
    s = y.shape[0] if isinstance(y, Tensor) and y.dim() > 0 else None

    def error(rule: str, got: object, remedy: str = "Pass the sample's position in the training set.") -> ArgumentError:
        return ArgumentError(message("OrderedStep", "index", rule, got, remedy))

    if index is None:
        raise error("be given for engine 'memory'", "none", "Call step(x, y, index=...): the positions of the samples.")
    try:
        numbers = torch.as_tensor(index)
    except (TypeError, ValueError, RuntimeError) as reason:
        raise error("be integers, shape (s,)", type(index).__name__) from reason
    if numbers.is_floating_point() or numbers.is_complex() or numbers.dtype == torch.bool:
        raise error("be integers, shape (s,)", numbers.dtype)
    if numbers.dim() != 1 or numbers.shape[0] == 0 or (s is not None and numbers.shape[0] != s):
        raise error(f"have shape ({'s' if s is None else s},), one number per sample", f"shape {tuple(numbers.shape)}")
    numbers = numbers.to(torch.int64)
    ordered = numbers.sort().values
    again = ordered[1:] == ordered[:-1]
    smallest, largest, repeated = torch.stack([ordered[0], ordered[-1], again.sum()]).tolist()  # one read
    if smallest < 0 or largest >= LARGEST:
        raise error(f"be at least 0 and below {LARGEST}", f"{smallest} to {largest}")
    if repeated:
        remedy = "Draw a batch without replacement; number several data sets consecutively, as ConcatDataset does."
        raise error("hold every sample once", f"{int(ordered[1:][again][0])} twice", remedy)
    return numbers.to(device), largest


def check_options(recall: Any, candidates: Any, batchnorm: Any) -> None:
    """Raise unless each has a meaning."""
    check_choice("Memory", "batchnorm", batchnorm, (None, "scored"), 'Pass batchnorm="scored".')
    plain = isinstance(recall, int | float) and not isinstance(recall, bool)
    if not plain or not 0 < recall <= 1:
        remedy = "Use recall=0.95, or candidates= for a fixed number."
        raise ArgumentError(message("Memory", "recall", "be a share in (0, 1]", repr(recall), remedy))
    if candidates is None:
        return
    count = type(candidates) is int and candidates >= 1
    if not count and not (type(candidates) is float and 0 < candidates <= 1):
        rule, remedy = "be an int of at least 1 or a fraction in (0, 1]", "Leave it out: the number then adapts."
        raise ArgumentError(message("Memory", "candidates", rule, repr(candidates), remedy))
