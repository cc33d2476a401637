"""Which module lets samples influence each other: the first whose output for some depends on the rest of the batch."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ordered_sgd.engines.phases import Score
from ordered_sgd.engines.replay import take
from ordered_sgd.rewind import device_of, random_state, restore_random_state


def first_difference_of(
    model: nn.Module, score: Score, batch: Any, rows: Tensor, s: int, tolerance: float = 1e-4
) -> str:
    """The first module whose output for the chosen samples depends on the others, by name and kind."""
    names = {module: name for name, module in model.named_modules()}
    outputs: list[list[tuple[nn.Module, Tensor]]] = []
    device = device_of(model)
    state = random_state(device)
    for part in (batch, take(batch, rows, s)):
        seen: list[tuple[nn.Module, Tensor]] = []

        def keep(module: nn.Module, inputs: Any, output: Any, seen: Any = seen) -> None:
            if isinstance(output, Tensor) and output.is_floating_point():
                seen.append((module, output.detach()))

        hooks = [module.register_forward_hook(keep) for module in names]
        try:
            with torch.no_grad(), _evaluating_dropout(model):
                score(part)
        finally:
            for hook in hooks:
                hook.remove()
        outputs.append(seen)
    restore_random_state(state, device)
    for (module, whole), (other, part) in zip(*outputs, strict=False):
        comparable = module is other and whole.dim() > 0 and whole.shape[0] == s and part.shape[0] == rows.shape[0]
        comparable = comparable and whole.shape[1:] == part.shape[1:]
        if comparable and not torch.allclose(whole.index_select(0, rows), part, rtol=10 * tolerance, atol=tolerance):
            return f"{type(module).__name__} {names[module]!r}"
    return "the model or the criterion"


@contextmanager
def _evaluating_dropout(model: nn.Module) -> Iterator[None]:
    dropouts = [m for m in model.modules() if isinstance(m, nn.modules.dropout._DropoutNd) and m.training]
    for module in dropouts:
        module.training = False
    try:
        yield
    finally:
        for module in dropouts:
            module.training = True
