"""Losses that are NaN or infinite: found at once on the CPU, and elsewhere without waiting for the device's queue."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from ordered_sgd.errors import NonFiniteLossError, message


@dataclass(frozen=True)
class Verdict:
    """Whether a batch may be stepped on.

    Parameters
    ----------
    step, count
        Which step, and how many losses.
    bad
        1.0 or 0.0 on the device; None where the verdict was read at once.
    first
        Position (-1: none) and value of the first loss that is not finite; None when all were seen to be finite.
    event
        Marks the arrival of `first` on the host.
    sizes
        How the losses are spread over ranks; empty when they are of one process.
    what
        What was looked at.
    """

    step: int = 0
    count: int = 0
    bad: Tensor | None = None
    first: Tensor | None = None
    event: Any = None
    sizes: tuple[int, ...] = ()
    what: str = "losses"

    def error(self) -> NonFiniteLossError | None:
        """The error that the batch deserves, or None; waits until the losses of the batch are known, and no longer."""
        if self.first is None:
            return None
        if self.event is not None:
            self.event.synchronize()
        position, value = self.first.tolist()
        if position < 0:
            return None
        place, rank = int(position), 0
        while self.sizes and place >= self.sizes[rank]:
            place, rank = place - self.sizes[rank], rank + 1
        where = f"{place} of {self.sizes[rank]} on rank {rank}" if self.sizes else f"{place} of {self.count}"
        got = f"{value} at position {where} in step {self.step}"
        remedy = 'Lower the learning rate, or pass nonfinite="skip".'
        return NonFiniteLossError(message("OrderedStep", self.what, "be finite", got, remedy))


def inspect_losses(
    losses: Tensor,
    step: int,
    *,
    at_once: bool,
    sizes: tuple[int, ...] = (),
    scores: Tensor | None = None,
    scored: Tensor | None = None,
    s: int | None = None,
) -> Verdict:
    """The verdict on detached losses: read now, or left on the device when not `at_once`.

    Losses of some samples only have the positions `scored` in a batch of s. A score that is NaN stands for its loss.
    """
    what = "losses" if scores is None else "losses and scores"
    if scores is not None:
        losses = torch.where(scores.isnan(), torch.nan, losses)
    if losses.shape[0] == 0 or (at_once and math.isfinite(losses.sum().item())):
        return _FINE  # the usual case: one number read, and finite only if every loss is
    bad = ~losses.isfinite()
    found, position = bad.any(), bad.to(torch.uint8).argmax().view(1)
    value = losses.index_select(0, position).float()
    if scored is not None:
        position = scored.index_select(0, position)
    first = torch.cat([torch.where(found, position, -1).float(), value])
    first, event = (first, None) if at_once else sent(first)
    return Verdict(step, s or losses.shape[0], None if at_once else found.float(), first, event, sizes, what)


class OnItsWay(NamedTuple):
    """Values on their way to the host, and an event that marks their arrival."""

    values: Tensor
    event: Any = None

    def read(self) -> Tensor:
        """The values on the host, once they have arrived."""
        if self.event is not None:
            self.event.synchronize()
        return self.values.cpu()


def sent(values: Tensor) -> OnItsWay:
    """The values on their way to the host.

    Where the device has no streams they stay on it, and reading them waits for its queue.
    """
    if values.is_cpu:
        return OnItsWay(values)
    device: Any = torch.get_device_module(values.device)
    if not (hasattr(device, "current_stream") and hasattr(device, "Event")):
        return OnItsWay(values)
    host = torch.empty(values.shape, dtype=values.dtype, device="cpu", pin_memory=values.is_cuda)
    host.copy_(values, non_blocking=True)
    event = device.Event()
    event.record(device.current_stream(values.device))
    return OnItsWay(host, event)


_FINE = Verdict()


def masks_itself(optimizer: Optimizer) -> bool:
    """Whether the optimizer can skip its update by a flag on the device: fused, past its first step, and no wrapper.

    In its first step a fused optimizer makes its state, and would leave it unwritten. A wrapper, as Accelerate's, shows
    the groups of a fused optimizer, which would not see a flag that is set on the wrapper.
    """
    if not vars(optimizer).get("_step_supports_amp_scaling"):
        return False
    groups = optimizer.param_groups
    with_gradient = [p for group in groups for p in group["params"] if p.grad is not None]
    return all(group.get("fused") for group in groups) and all(optimizer.state.get(p) for p in with_gradient)


def masked_step(optimizer: Optimizer, bad: Tensor) -> None:
    """One update of a fused optimizer that does nothing where `bad` is 1.0, as GradScaler asks for it."""
    fused: Any = optimizer
    fused.grad_scale, fused.found_inf = None, bad
    try:
        optimizer.step()
    finally:
        del fused.grad_scale, fused.found_inf
