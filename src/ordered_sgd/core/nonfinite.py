"""Losses that are NaN or infinite: found at once on the CPU, without waiting for the device elsewhere."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ordered_sgd.errors import NonFiniteLossError, message


@dataclass
class Verdict:
    """Whether a batch may be stepped on.

    ``skip`` is known on the CPU. On an accelerator ``bad`` says it on the device, 1.0 or 0.0, and `describe` waits
    until the copy that was started with the verdict has arrived.
    """

    step: int
    count: int
    skip: bool = False
    bad: Tensor | None = None
    first: Tensor | None = None  # position (-1: none) and value of the first bad loss
    event: torch.Event | None = None

    def describe(self) -> NonFiniteLossError | None:
        """The error that the batch deserves, or None."""
        if self.first is None:
            return None
        if self.event is not None:
            self.event.synchronize()
        position, value = self.first.tolist()
        if position < 0:
            return None
        got = f"{value} at position {int(position)} of {self.count} in step {self.step}"
        remedy = 'Lower the learning rate, or pass nonfinite="skip".'
        return NonFiniteLossError(message("OrderedStep", "losses", "be finite", got, remedy))


def inspect_losses(losses: Tensor, mean_loss: Tensor, step: int, *, at_once: bool) -> Verdict:
    """The verdict on detached losses: read now, or left on the device when not `at_once`."""
    verdict = Verdict(step=step, count=losses.shape[0])
    if at_once and bool(mean_loss.isfinite()):
        return verdict  # the usual case: one number read, and finite only if every loss is
    bad = ~losses.isfinite()
    position = bad.to(torch.uint8).argmax()
    found = bad.any()
    first = torch.stack([torch.where(found, position, -1).float(), losses[position].float()])
    if at_once:
        verdict.skip, verdict.first = bool(found), first
        return verdict
    verdict.bad = found.float()
    if losses.device.type == "cuda":
        verdict.first = torch.empty(2, pin_memory=True).copy_(first, non_blocking=True)
        verdict.event = torch.Event(losses.device)
        verdict.event.record()
    else:
        verdict.first = first
    return verdict


@torch.no_grad()
def spoil(optimizer: Optimizer, bad: Tensor) -> None:
    """Make every gradient NaN where `bad` is 1.0, decided on the device."""
    factor = torch.where(bad > 0, torch.nan, 1.0)
    for p in _with_gradient(optimizer):
        assert p.grad is not None
        p.grad.mul_(factor)


@torch.no_grad()
def masked_step(optimizer: Optimizer, bad: Tensor) -> None:
    """One update that leaves parameters and state as they were where `bad` is 1.0, decided on the device.

    Fused optimizers take the flag themselves, as from a GradScaler. For the others parameters and state are copied
    first; counters that live on the CPU advance all the same.
    """
    if getattr(optimizer, "_step_supports_amp_scaling", False):
        fused: Any = optimizer
        fused.grad_scale, fused.found_inf = None, bad
        try:
            optimizer.step()
        finally:
            del fused.grad_scale, fused.found_inf
        return
    keep = bad > 0
    parameters = _with_gradient(optimizer)
    before = [p.clone() for p in parameters]
    state_before = {p: {k: v.clone() for k, v in _tensors(optimizer, p).items()} for p in parameters}
    for p in parameters:
        assert p.grad is not None
        p.grad.copy_(torch.where(keep, 0.0, p.grad))
    optimizer.step()
    for p, old in zip(parameters, before, strict=True):
        p.copy_(torch.where(keep, old, p))
        for key, new in _tensors(optimizer, p).items():
            if new.device == keep.device:
                # state that this very step created starts from zero, as if the step had not been
                was = state_before[p].get(key, torch.zeros_like(new))
                new.copy_(torch.where(keep, was, new))


def _with_gradient(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]


def _tensors(optimizer: Optimizer, p: Tensor) -> dict[str, Tensor]:
    return {k: v for k, v in optimizer.state.get(p, {}).items() if isinstance(v, Tensor)}
