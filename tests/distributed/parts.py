"""What cases and stories over ranks share."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

CE = nn.CrossEntropyLoss(reduction="none")


def network(width: int = 16) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 4))


def ddp(model: nn.Module, **options: Any) -> nn.parallel.DistributedDataParallel:
    return nn.parallel.DistributedDataParallel(model, **options)


def gradient_of(model: nn.Module) -> list[Tensor]:
    grads = [p.grad for p in model.parameters()]
    return [g.full_tensor() if hasattr(g, "full_tensor") else g for g in grads]


def part(sizes: Sequence[int], rank: int, *tensors: Tensor) -> list[Tensor]:
    """What belongs to a rank."""
    start = sum(sizes[:rank])
    return [t[start : start + sizes[rank]] for t in tensors]


def relative_error(found: list[Tensor], expected: list[Tensor]) -> float:
    """Of all tensors together, as one vector."""
    a, b = (torch.cat([g.detach().flatten().double() for g in grads]) for grads in (found, expected))
    return float((a - b).norm() / b.norm())
