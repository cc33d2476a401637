"""A model in generic position: noise in place of its parameters, on a few samples, in float64.

Samples that are apart are so for any parameters; samples that influence each other may seem apart for those of a step,
as behind a gate of 1e-5. Noise hides nothing, and in float64 rounding hides next to nothing.
"""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ordered_sgd.watch import eagerly

SAMPLES = 6
# Not symmetric: pairs of neighbours, halves and a reversed batch must not look the same among the kept rows.
KEPT = (1, 2, 4)
# Of gradients in float64; models of the engine contracts without a coupling differ by less than 3e-13.
TOLERANCE = 1e-10
# A result may also differ by this many times what one rounding error of the numbers that go in does to it.
ROUNDINGS = 100
WIDER = {
    **dict.fromkeys((torch.float32, torch.float16, torch.bfloat16), torch.float64),
    torch.complex64: torch.complex128,
}


@contextmanager
def in_generic_position(modules: Iterable[nn.Module], *, moved: bool = False) -> Iterator[None]:
    """Inside, the parameters are noise, the same each time; they and the buffers are in float64.

    The modules hold other tensors meanwhile: what an optimizer, a wrapper or a hook holds is not touched. With `moved`
    the noise differs by about one rounding error.
    """
    every = list(dict.fromkeys(inner for module in modules for inner in module.modules()))
    generator, rounding = (torch.Generator().manual_seed(seed) for seed in (1, 2))
    parameters = dict.fromkeys(p for module in every for p in module._parameters.values() if p is not None)
    noise = {p: _in_place_of(p, generator, rounding if moved else None) for p in parameters}
    with ExitStack() as undo:
        undo.enter_context(eagerly(every))
        for module in every:
            for name, p in list(module._parameters.items()):
                if p is not None and noise[p] is not p:
                    setattr(module, name, noise[p])  # a recurrent layer notes it in its list of weights, too
                    undo.callback(setattr, module, name, p)
            undo.callback(module._buffers.update, dict(module._buffers))
            module._buffers.update({name: _copy(buffer) for name, buffer in module._buffers.items()})
        yield


def widened(value: Any) -> Any:
    """A tensor of real or complex numbers in float64; anything else as it is."""
    return value.to(WIDER[value.dtype]) if isinstance(value, Tensor) and value.dtype in WIDER else value


def positive(shape: torch.Size, generator: torch.Generator) -> Tensor:
    """Noise between 1/4 and 3/4."""
    return torch.rand(shape, generator=generator).mul_(0.5).add_(0.25)


def sketch(gradient: Tensor) -> Tensor:
    """A gradient times a random vector, the same for the same shape: as good for a comparison, and small."""
    if gradient.dim() < 2:
        return gradient
    rows = gradient.flatten(1)
    vector = torch.randn(rows.shape[1], generator=torch.Generator().manual_seed(rows.shape[1]), dtype=torch.float64)
    return rows @ vector.to(rows)


def _in_place_of(p: nn.Parameter, generator: torch.Generator, rounding: torch.Generator | None) -> nn.Parameter:
    """Noise in the place of a parameter, moved by a rounding error if asked for; one of integers stays."""
    if type(p) is not nn.Parameter or not (p.is_floating_point() or p.is_complex()):
        return p
    noise = positive(p.shape, generator).double()
    if rounding is not None:
        noise *= 1 + 4 * torch.finfo(noise.dtype).eps * (torch.rand(p.shape, generator=rounding).double() - 0.5)
    if p.dim() > 1:
        noise /= p.numel() ** 0.5  # a product with many weights must not grow from layer to layer
    noise = torch.complex(noise, noise.flip(-1)) if p.is_complex() and p.dim() else noise
    return nn.Parameter(noise.to(p.device, WIDER.get(p.dtype, p.dtype)), requires_grad=p.requires_grad)


def _copy(buffer: Tensor | None) -> Tensor | None:
    return None if buffer is None else widened(buffer).clone()
