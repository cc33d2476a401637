"""Micro-batches: the q largest of all of them, with the memory of one."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from ordered_sgd.core.engines import Backward, Choose, Computed, Score, Scored
from ordered_sgd.errors import ArgumentError, message


def one_pass(batches: Sequence[Any], s: int, score: Score, choose: Choose, backward: Backward) -> Computed:
    """The gradient of the mean over all micro-batches, s samples in all: q keeps everything."""
    scored = []
    for batch in batches:
        losses, correct = score(batch)
        backward(losses.float().sum() / s)
        scored.append(Scored(losses.detach(), correct))
    joined, correct = _join(scored)
    if joined.shape[0] != s:
        remedy = "Pass targets whose first dimension is the batch."
        got = f"{joined.shape[0]} losses for {s} targets"
        raise ArgumentError(message("OrderedStep", "micro-batches", "give one loss per target", got, remedy))
    return Computed(joined, choose(joined), correct)


def two_passes(batches: Sequence[Any], model: nn.Module, score: Score, choose: Choose, backward: Backward) -> Computed:
    """The gradient of the ordered loss of all micro-batches together.

    All are scored without a graph and the q largest of all are chosen; then the micro-batches that hold one of them are
    run again, with the same dropout masks and without a second update of running statistics.
    """
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    states, scored = [], []
    with torch.no_grad():
        for batch in batches:
            states.append(_random_state(device))
            scored.append(score(batch))
    torch.clear_autocast_cache()  # it holds weights that were cast without a graph
    losses, correct = _join(scored)
    rows = choose(losses)
    if rows is None:
        return Computed(losses, None, correct)
    start = 0
    with _replaying(model, device):
        for batch, part, state in zip(batches, scored, states, strict=True):
            stop = start + part.losses.shape[0]
            local = rows[(rows >= start) & (rows < stop)] - start
            start = stop
            if local.shape[0] > 0:
                _restore(state, device)
                kept = score(batch).losses.index_select(0, local)
                backward(kept.float().sum() / rows.shape[0])
    return Computed(losses, rows, correct)


def _join(scored: Sequence[Scored]) -> Scored:
    counts = [part.correct for part in scored if part.correct is not None]
    correct = torch.stack(counts).sum() if len(counts) == len(scored) else None
    return Scored(torch.cat([part.losses for part in scored]), correct)


def _random_state(device: torch.device) -> list[Tensor]:
    """State of the generators that dropout draws from: the CPU's and, on an accelerator, the device's."""
    states = [torch.get_rng_state()]
    if device.type not in ("cpu", "meta"):
        states.append(torch.get_device_module(device).get_rng_state(device))
    return states


def _restore(states: list[Tensor], device: torch.device) -> None:
    torch.set_rng_state(states[0])
    if len(states) > 1:
        torch.get_device_module(device).set_rng_state(states[1], device)


@contextmanager
def _replaying(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Running statistics stand still inside, and randomness goes on after it as if nothing had been drawn."""
    norms = [m for m in model.modules() if isinstance(m, _NormBase) and m.training and m.track_running_stats]
    before = _random_state(device)
    for norm in norms:
        norm.track_running_stats = False
    try:
        yield
    finally:
        for norm in norms:
            norm.track_running_stats = True
        _restore(before, device)
