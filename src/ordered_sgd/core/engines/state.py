"""What a second pass over a batch, or a step that is given up, must not disturb: random numbers and buffers."""

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

Saved = list[tuple[Tensor, Tensor]]


class Buffers:
    """The buffers of a model that its forward pass changes: running statistics, power iterations.

    Those of normalisation are known. Which others change is learnt from their version counters, so that masks and
    tables are not copied at every step.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._none = next(model.buffers(), None) is None
        self._versions: dict[Tensor, int] = {}
        # torch's kernels update running statistics without counting a version
        norms = (module for module in model.modules() if isinstance(module, _NormBase))
        self._changing = {buffer for norm in norms for buffer in norm.buffers()}

    def save(self) -> Saved:
        """Copies of the buffers that may change: all of them the first time, later those that have changed so far."""
        if self._none:
            return []
        buffers = list(self.model.buffers())
        self._learn(buffers)
        saved = [(b, b.clone()) for b in buffers if not self._versions or b in self._changing]
        self._versions = {b: b._version for b in buffers}
        return saved

    @torch.no_grad()
    def load(self, saved: Saved, where: Tensor | None = None) -> None:
        """Put the copies back; with `where`, a 0-dim flag on the device, only if it is set."""
        self._learn([buffer for buffer, _ in saved])
        for buffer, copy in saved:
            if where is None and buffer.device.type == "cpu" and torch.equal(buffer, copy):
                continue  # writing would tell autograd that a saved tensor has changed
            buffer.copy_(copy if where is None else torch.where(where > 0, copy, buffer))
            self._versions[buffer] = buffer._version  # this change was ours

    def _learn(self, buffers: list[Tensor]) -> None:
        self._changing |= {b for b in buffers if b._version != self._versions.get(b, b._version)}


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
