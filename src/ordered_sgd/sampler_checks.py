"""What `OrderedBatchSampler` refuses, each with one clear error."""

from collections.abc import Sized
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ordered_sgd.draws import Cut
from ordered_sgd.errors import ArgumentError, message
from ordered_sgd.rules import check_q

_WHERE = "OrderedBatchSampler"


def check_options(
    batch_size: Any, recall: Any, candidates: Any, others: Any, epochs: Any, whole_last: Any, seed: Any
) -> None:
    """Raise unless each has a meaning."""
    if type(batch_size) is not int or batch_size < 1:
        remedy = "It counts the samples drawn, not those that are kept."
        raise _error("batch_size", "be an int of at least 1", repr(batch_size), remedy)
    if type(seed) is not int:
        raise _error("seed", "be an int", repr(seed), "Pass the same one on every rank.")
    share = isinstance(recall, int | float) and not isinstance(recall, bool) and 0 < recall <= 1
    if recall is not None and not share:
        remedy = "Use recall=0.8, or candidates= for a fixed number."
        raise _error("recall", "be a share in (0, 1]", repr(recall), remedy)
    if recall is not None and candidates is not None:
        remedy = "A fixed number of candidates does not adapt; its recall is measured all the same."
        raise _error("candidates", "be left out with recall=", repr(candidates), remedy)
    for number, name in ((1 if candidates is None else candidates, "candidates"), (others, "others")):
        try:
            check_q(number, _WHERE)
        except ArgumentError:
            remedy = f"Use {name}=8 for a count, {name}=0.1 for a share of the batch."
            raise _error(name, "be a count of at least 1 or a share in (0, 1]", repr(number), remedy) from None
    if isinstance(whole_last, bool) or not isinstance(whole_last, int | float) or not 0 <= whole_last <= 1:
        remedy = "Use whole_last=1/8 for whole batches in the last eighth of the epochs."
        raise _error("whole_last", "be a share in [0, 1]", repr(whole_last), remedy)
    if (epochs is None and whole_last) or not (epochs is None or (type(epochs) is int and epochs >= 1)):
        remedy = "Pass the number of epochs of the training."
        raise _error("epochs", "be an int of at least 1 with whole_last=", repr(epochs), remedy)


def check_rank(rank: int | None, ranks: int | None) -> tuple[int, int]:
    """The rank and the number of ranks; those of torch.distributed where they are None."""
    together = dist.is_available() and dist.is_initialized()
    ranks = (dist.get_world_size() if together else 1) if ranks is None else ranks
    rank = (dist.get_rank() if together else 0) if rank is None else rank
    if type(rank) is not int or type(ranks) is not int or not 0 <= rank < ranks:
        remedy = "Leave both out to use those of torch.distributed."
        raise _error("rank", "be an int from 0 to ranks - 1", f"{rank!r} of {ranks!r}", remedy)
    return rank, ranks


def check_samples(dataset: Any, ranks: int) -> int:
    """How many samples a data set has, or the number itself."""
    remedy = "Pass the training set, or how many samples it has."
    if not isinstance(dataset, int | Sized):
        remedy = "Losses are remembered by position, which a stream of samples does not have."
        raise _error("dataset", "be a map-style data set, with len() and dataset[i]", type(dataset).__name__, remedy)
    n = dataset if isinstance(dataset, int) else len(dataset)
    if n < ranks:
        rule = "have a sample for every rank" if ranks > 1 else "have at least one sample"
        raise _error("dataset", rule, n, remedy)
    return n


def check_cut(now: Cut, saved: Cut) -> None:
    """Raise if an epoch cannot go on because its batches would be others than those before the checkpoint."""
    before = vars(saved)
    changed = [f"{name} = {value} instead of {before[name]}" for name, value in vars(now).items()]
    changed = [text for text, name in zip(changed, before, strict=True) if vars(now)[name] != before[name]]
    if changed:
        remedy = "Call set_epoch(...) first: the epoch then starts at its beginning, and losses stay remembered."
        rule = "cut an epoch as before to go on in the middle of it"
        raise ArgumentError(message(_WHERE, "the sampler", rule, ", ".join(changed), remedy))


def check_update(index: Any, losses: Any, right: Any) -> Tensor:
    """The positions of a batch's samples, int64."""
    where = f"{_WHERE}.update"
    remedy = "Pass the positions in the data set that came with the batch; with_index(dataset) adds them."
    try:
        numbers = torch.as_tensor(index)
    except (TypeError, ValueError, RuntimeError) as reason:
        got = type(index).__name__
        raise ArgumentError(message(where, "index", "be integers, shape (s,)", got, remedy)) from reason
    if numbers.dtype not in (torch.int64, torch.int32, torch.int16, torch.uint8) or numbers.dim() != 1:
        got = f"{numbers.dtype} of shape {tuple(numbers.shape)}"
        raise ArgumentError(message(where, "index", "be integers, shape (s,)", got, remedy))
    shape = (numbers.shape[0],)
    for name, values in (("losses", losses), ("right", right)):
        if values is None and name == "right":
            continue
        if not isinstance(values, Tensor) or tuple(values.shape) != shape:
            got = f"shape {tuple(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
            remedy = (
                'Build the criterion with reduction="none".' if name == "losses" else "Pass outputs.argmax(1) == y."
            )
            raise ArgumentError(message(where, name, f"be one per sample, shape {shape}", got, remedy))
    if not losses.is_floating_point():
        raise ArgumentError(message(where, "losses", "be floating-point", losses.dtype, "Use losses.float()."))
    return numbers.to(torch.int64)


def no_such_batch(index: Tensor, n: int, method: str) -> ArgumentError:
    """The error for samples that are no batch that waits for its losses."""
    ordered = index.sort().values
    again = ordered[1:][ordered[1:] == ordered[:-1]]
    remedy = "Call it once for each batch, in the order of the loader, with the index that came with the batch."
    rule, got = (
        "be that of a batch that the loader gave",
        f"{index.shape[0]} others, or the same twice",
    )
    if index.shape[0] and not 0 <= int(ordered[0]) <= int(ordered[-1]) < n:
        rule, got = f"lie from 0 to {n - 1}, the positions in the data set", f"{int(ordered[0])} to {int(ordered[-1])}"
        remedy = "Use one sampler per data set."
    elif again.shape[0]:
        rule, got = "hold every sample once", f"{int(again[0])} twice"
    return ArgumentError(message(f"{_WHERE}.{method}", "index", rule, got, remedy))


def _error(name: str, rule: str, got: object, remedy: str) -> ArgumentError:
    return ArgumentError(message(_WHERE, name, rule, got, remedy))
