"""Micro-batches: the q largest of all of them, with the memory of one."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from ordered_sgd.agreement import agree
from ordered_sgd.engines import Backward, Choose, Computed, Score, Scored, which_right
from ordered_sgd.engines.parallel import OneProcess
from ordered_sgd.errors import ArgumentError, message, warn
from ordered_sgd.rewind import Buffers, device_of, random_state, restore_random_state


def samples_in_all(s: int | None, parts: int, parallel: OneProcess) -> int | None:
    """Samples in the micro-batches of all ranks; None where the targets of some rank do not tell.

    Parameters
    ----------
    s, parts
        Samples of this rank, if they are known, and in how many micro-batches they come.
    parallel
        What the passes have to do with other ranks.
    """
    every = parallel.numbers(-1 if s is None else s, parts)
    if parallel.in_step and len({count for _, count in every}) > 1:
        got = ", ".join(f"{count:.0f}" for _, count in every)
        rule = "be as many on every rank for fully_shard and SyncBatchNorm"
        raise ArgumentError(message("OrderedStep", "micro-batches", rule, got, "Add empty micro-batches."))
    return None if min(size for size, _ in every) < 0 else int(sum(size for size, _ in every))


def one_pass(
    batches: Sequence[Any], s: int, score: Score, choose: Choose, backward: Backward, parallel: OneProcess
) -> Computed:
    """The gradient of the mean over all micro-batches, of s samples here: q keeps everything."""
    scored = []
    for batch in batches[:-1]:
        with parallel.unsynced():
            losses, right = score(batch)
            backward(losses, None)
        scored.append(Scored(losses.detach(), right))
    losses, right = parallel.through(score, batches[-1])
    backward(losses, None)
    scored.append(Scored(losses.detach(), right))
    joined, right = _join(scored)
    if joined.shape[0] != s:
        remedy = "Pass targets whose first dimension is the batch."
        got = f"{joined.shape[0]} losses for {s} targets"
        raise ArgumentError(message("OrderedStep", "micro-batches", "give one loss per target", got, remedy))
    return Computed(joined, choose(joined, right), right, "micro-batches")


def two_passes(
    batches: Sequence[Any], buffers: Buffers, score: Score, choose: Choose, backward: Backward, parallel: OneProcess
) -> Computed:
    """The gradient of the ordered loss of all micro-batches together.

    All are scored without a graph and the q largest of all are chosen; then the micro-batches that hold one of them are
    run again as they were run before: with the same dropout masks and buffers, which are updated once. Over several
    ranks the gradient of the last one is averaged, so that a rank without a chosen sample runs one as well.
    """
    device = device_of(buffers.model)
    before, scored = [], []
    with torch.no_grad():
        for batch in batches:
            before.append((random_state(device), buffers.save()))
            scored.append(score(batch))
    torch.clear_autocast_cache()  # it holds weights that were cast without a graph
    losses, right = _join(scored)
    rows = choose(losses, right)
    if rows is None:
        return Computed(losses, None, right, "micro-batches")
    after = random_state(device), buffers.save()
    chosen = _of_each(rows.cpu(), scored)  # which to run again must be known here: the one wait of the step
    in_step = parallel.in_step
    run = [i for i, local in enumerate(chosen) if in_step or local.shape[0] > 0] or [0]
    for i in run:
        random, saved = before[i]
        restore_random_state(random, device)
        buffers.load(saved)
        last = i == run[-1]
        with nullcontext() if last else parallel.unsynced():
            again = (parallel.through(score, batches[i]) if last else score(batches[i])).losses
            if not agree(again, scored[i].losses):
                _warn_of_other_losses()
            backward(again, chosen[i].to(rows.device))
    restore_random_state(after[0], device)
    buffers.load(after[1])
    return Computed(losses, rows, right, "micro-batches")


def _of_each(rows: Tensor, scored: Sequence[Scored]) -> list[Tensor]:
    """The positions in each micro-batch, of positions in all of them together."""
    ends = torch.tensor([part.losses.shape[0] for part in scored]).cumsum(0).tolist()
    starts = [0, *ends[:-1]]
    return [rows[(rows >= start) & (rows < end)] - start for start, end in zip(starts, ends, strict=True)]


def _join(scored: Sequence[Scored]) -> Scored:
    rights = [right for part in scored if (right := which_right(part.right)) is not None]
    right = torch.cat(rights) if len(rights) == len(scored) else None
    return Scored(torch.cat([part.losses for part in scored]), right)


def _warn_of_other_losses() -> None:
    remedy = "Draw from torch's default generators, or pass one batch instead of micro-batches."
    got = "other losses for the chosen samples"
    rule = "give the same losses when it is run again"
    warn(message("OrderedStep", "the model", rule, got, remedy))
