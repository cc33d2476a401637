"""Micro-batches: the q largest of all of them, with the memory of one."""

from collections.abc import Sequence
from typing import Any

import torch

from ordered_sgd.core.engines import Backward, Choose, Computed, Score, Scored, counted
from ordered_sgd.core.engines.state import Buffers, device_of, random_state, restore_random_state
from ordered_sgd.core.selection import agree
from ordered_sgd.errors import ArgumentError, message, warn


def one_pass(batches: Sequence[Any], s: int, score: Score, choose: Choose, backward: Backward) -> Computed:
    """The gradient of the mean over all micro-batches, s samples in all: q keeps everything."""
    scored = []
    for batch in batches:
        losses, correct = score(batch)
        backward(losses, None, s)
        scored.append(Scored(losses.detach(), correct))
    joined, correct = _join(scored)
    if joined.shape[0] != s:
        remedy = "Pass targets whose first dimension is the batch."
        got = f"{joined.shape[0]} losses for {s} targets"
        raise ArgumentError(message("OrderedStep", "micro-batches", "give one loss per target", got, remedy))
    return Computed(joined, choose(joined), correct, "micro-batches")


def two_passes(batches: Sequence[Any], buffers: Buffers, score: Score, choose: Choose, backward: Backward) -> Computed:
    """The gradient of the ordered loss of all micro-batches together.

    All are scored without a graph and the q largest of all are chosen; then the micro-batches that hold one of them are
    run again as they were run before: with the same dropout masks and buffers, which are updated once.
    """
    device = device_of(buffers.model)
    before, scored = [], []
    with torch.no_grad():
        for batch in batches:
            before.append((random_state(device), buffers.save()))
            scored.append(score(batch))
    torch.clear_autocast_cache()  # it holds weights that were cast without a graph
    losses, correct = _join(scored)
    rows = choose(losses)
    if rows is None:
        return Computed(losses, None, correct, "micro-batches")
    after = random_state(device), buffers.save()
    host = rows.cpu()  # which micro-batches to run again must be known here: the one wait of the step
    start = 0
    for batch, part, (random, saved) in zip(batches, scored, before, strict=True):
        stop = start + part.losses.shape[0]
        local = (host[(host >= start) & (host < stop)] - start).to(rows.device)
        start = stop
        if local.shape[0] == 0:
            continue
        restore_random_state(random, device)
        buffers.load(saved)
        again = score(batch).losses
        if not agree(again, part.losses):
            _warn_of_other_losses()
        backward(again, local, rows.shape[0])
    restore_random_state(after[0], device)
    buffers.load(after[1])
    return Computed(losses, rows, correct, "micro-batches")


def _join(scored: Sequence[Scored]) -> Scored:
    counts = [count for part in scored if (count := counted(part.correct)) is not None]
    correct = torch.stack(counts).sum() if len(counts) == len(scored) else None
    return Scored(torch.cat([part.losses for part in scored]), correct)


def _warn_of_other_losses() -> None:
    remedy = "Draw from torch's default generators, or pass one batch instead of micro-batches."
    got = "other losses for the chosen samples"
    rule = "give the same losses when it is run again"
    warn(message("OrderedStep", "the model", rule, got, remedy))
