"""What a case of the engine matrix is, and the parts that cases are made of."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

CLASSES = 4
CE = nn.CrossEntropyLoss(reduction="none")
Batch = Callable[[int, Generator], tuple[Any, Any]]


@dataclass(frozen=True)
class Case:
    """A model with its data and loss, and what each engine may do with it.

    Every case is legal for plain autograd at any batch size of at least 2.
    """

    name: str
    build: Callable[[], nn.Module]
    batch: Batch
    criterion: Callable[..., Tensor] = CE
    coupled: bool = False  # samples influence each other's gradient
    expects: Literal["rows", "dense", "either"] = "rows"  # what engine="rows" is to run
    twopass: bool | None = True  # whether two passes are exact; None: either, as long as the gradient is right
    tolerance: float = 5e-5
    slow: bool = True  # only in the long run
    context: Callable[[], AbstractContextManager[Any]] = nullcontext  # the step runs inside it

    def __str__(self) -> str:
        return self.name


def coupled(name: str, build: Callable[[], nn.Module], batch: Batch, **more: Any) -> Case:
    """A case whose samples influence each other: every engine has to run it dense."""
    return Case(name, build, batch, **{"coupled": True, "expects": "dense", "twopass": False, **more})


class Model(nn.Module):
    """Parts, and a function ``run(model, *inputs)`` that puts them together."""

    def __init__(self, run: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self.run(self, *inputs, **named)


class Lambda(nn.Module):
    """A function as a layer."""

    def __init__(self, run: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.run = run

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x)


def param(*shape: int) -> nn.Parameter:
    return nn.Parameter(0.5 * torch.randn(*shape))


def stack(*layers: nn.Module | Callable[[Tensor], Tensor]) -> nn.Sequential:
    """A sequence of layers and functions."""
    return nn.Sequential(*(layer if isinstance(layer, nn.Module) else Lambda(layer) for layer in layers))


def around(middle: Callable[[Tensor], Tensor]) -> Callable[[], nn.Module]:
    """A function of the 16 hidden values of a small classifier of 6 features."""
    return lambda: stack(nn.Linear(6, 16), nn.Tanh(), middle, nn.Linear(16, CLASSES))


def around_layer(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """The same with a layer, made anew for each model."""
    return lambda: around(make())()


def classes(s: int, generator: Generator, *more: int, count: int = CLASSES) -> Tensor:
    return torch.randint(0, count, (s, *more), generator=generator)


def floats(*shape: int) -> Batch:
    """Normal inputs of this shape per sample, and a class."""
    return lambda s, g: (torch.randn(s, *shape, generator=g), classes(s, g))


def tokens(length: int, vocabulary: int = 11) -> Batch:
    """Token ids of shape (s, length), and a class."""
    return lambda s, g: (classes(s, g, length, count=vocabulary), classes(s, g))


def language(length: int, vocabulary: int = 11) -> Batch:
    """Token ids of shape (s, length), and themselves as the target."""

    def batch(s: int, g: Generator) -> tuple[Tensor, Tensor]:
        ids = classes(s, g, length, count=vocabulary)
        return ids, ids

    return batch


def regression(features: int, targets: int) -> Batch:
    return lambda s, g: (torch.randn(s, features, generator=g), torch.randn(s, targets, generator=g))


def next_token(outputs: Tensor, ids: Tensor) -> Tensor:
    """Mean cross entropy of each sequence, shape (s,)."""
    return F.cross_entropy(outputs[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none").mean(1)


def next_token_flat(outputs: Tensor, ids: Tensor) -> Tensor:
    """The same through one long list of tokens, as training scripts write it."""
    kept = outputs[:, :-1]
    flat = F.cross_entropy(kept.reshape(-1, kept.shape[-1]), ids[:, 1:].reshape(-1), reduction="none")
    return flat.view(ids.shape[0], -1).mean(1)
