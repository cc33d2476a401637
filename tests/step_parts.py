"""What the tests of the step share."""

import torch
from torch import Tensor, nn

CE = nn.CrossEntropyLoss(reduction="none")


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4))


def batch(s: int = 32) -> tuple[Tensor, Tensor]:
    return torch.randn(s, 6), torch.randint(0, 4, (s,))


def sgd(model: nn.Module, **options: object) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4, **options)  # type: ignore[arg-type]


def weights(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


OPTIMIZERS = [
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.Adagrad,
]
