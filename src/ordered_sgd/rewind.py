"""What a second pass over a batch, or a step that is given up, must not disturb: random numbers and buffers."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase


class Copy(NamedTuple):
    """A buffer of a module by its name, the tensor that it was, and what that held."""

    module: nn.Module
    name: str
    buffer: Tensor
    value: Tensor


Saved = list[Copy]
LEARNT_IN = 4  # times that buffers are saved: with micro-batches it is more than once before the model is run


class Buffers:
    """The buffers that a forward pass changes: running statistics, power iterations.

    They are those of the model and of other modules that a pass runs, such as a criterion. Those of normalisation are
    known. Which others change is learnt, so that masks and tables are not copied at every step: from their values in
    the first steps, and later from their version counters, or when another tensor is in their place.
    """

    def __init__(self, model: nn.Module, *others: nn.Module) -> None:
        self.model, self._modules = model, (model, *others)
        self._none = all(next(module.buffers(), None) is None for module in self._modules)
        self._all: Saved = []  # copies of all, while it is learnt
        self._saves = 0
        self._seen: dict[tuple[nn.Module, str], tuple[Tensor, int]] = {}
        self._changing: set[tuple[nn.Module, str]] = set()

    def save(self) -> Saved:
        """Copies of the buffers that may change: all of them at first, later those that have changed so far."""
        if self._none:
            return []
        self._learn()
        self._saves += 1
        learning = self._saves <= LEARNT_IN
        modules = [m for module in self._modules for m in module.modules()]
        found = [(m, name, b) for m in modules for name, b in m._buffers.items() if b is not None]
        # torch's kernels update running statistics without counting a version
        saved = [
            Copy(m, name, b, b.clone())
            for m, name, b in found
            if learning or (m, name) in self._changing or isinstance(m, _NormBase)
        ]
        self._all = saved if learning else []
        self._seen = {(m, name): (b, b._version) for m, name, b in found}
        return saved

    @torch.no_grad()
    def load(self, saved: Saved, where: Tensor | None = None) -> None:
        """Put the copies back; with `where`, a 0-dim flag on the device, only if it is set."""
        self._learn()
        for module, name, buffer, value in saved:
            now = module._buffers[name]
            if where is not None and now is not None:
                new = torch.where(where > 0, value, now)
                if now is buffer:
                    buffer.copy_(new)
                else:
                    module._buffers[name] = buffer = new
            else:
                module._buffers[name] = buffer
                # writing would tell autograd that a saved tensor has changed
                if buffer.device.type != "cpu" or not torch.equal(buffer, value):
                    buffer.copy_(value)
            self._seen[module, name] = buffer, buffer._version  # this change was ours
        self._all = []

    def _learn(self) -> None:
        """Note which buffers have changed since they were last looked at."""
        for (module, name), (buffer, version) in self._seen.items():
            if module._buffers.get(name) is not buffer or buffer._version != version:
                self._changing.add((module, name))
        for module, name, buffer, value in self._all:
            if not torch.equal(buffer, value):  # by way of .data no version is counted
                self._changing.add((module, name))


def random_state(device: torch.device) -> list[Tensor]:
    """State of the generators that dropout draws from: the CPU's and, on an accelerator, the device's."""
    states = [torch.get_rng_state()]
    if device.type not in ("cpu", "meta"):
        states.append(torch.get_device_module(device).get_rng_state(device))
    return states


def restore_random_state(states: list[Tensor], device: torch.device) -> None:
    """Put the generators back."""
    torch.set_rng_state(states[0])
    if len(states) > 1:
        torch.get_device_module(device).set_rng_state(states[1], device)


def device_of(model: nn.Module) -> torch.device:
    """Where the model's first parameter lives."""
    return next((p.device for p in model.parameters()), torch.device("cpu"))
