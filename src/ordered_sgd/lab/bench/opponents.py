"""What ordered SGD is measured against: plain SGD, and Selective Backprop as Composer does it."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_map

from ordered_sgd.selection import select_rows


def new_optimizer(model: nn.Module) -> Optimizer:
    """Fused SGD with momentum, the fastest that torch has; a rate so small that random labels are never learnt."""
    return torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, fused=True)


def call(model: nn.Module, x: Any) -> Any:
    """The outputs of the model: ``model(**x)`` for a dict, ``model(*x)`` for a tuple, else ``model(x)``."""
    if isinstance(x, tuple):
        return model(*x)
    return model(**x) if isinstance(x, dict) else model(x)


def first_rows(x: Any, count: int) -> Any:
    """The first samples of a batch, a tensor or a dict or tuple of tensors."""
    return tree_map(lambda part: part[:count], x)


def update(model: nn.Module, optimizer: Optimizer, max_grad_norm: float | None) -> None:
    """An update by the gradients that are there, clipped to this norm unless it is None."""
    if max_grad_norm is not None:
        nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
    optimizer.step()


def sgd_step(
    model: nn.Module,
    mean_loss: Callable[[Any, Tensor], Tensor],
    optimizer: Optimizer,
    x: Any,
    y: Tensor,
    *,
    max_grad_norm: float | None = None,
) -> Tensor:
    """The loss of one plain update, before it.

    >>> model = nn.Linear(4, 3)
    >>> x, y = torch.randn(8, 4), torch.randint(3, (8,))
    >>> first = sgd_step(model, nn.functional.cross_entropy, new_optimizer(model), x, y)
    >>> bool(nn.functional.cross_entropy(model(x), y) < first)
    True
    """
    optimizer.zero_grad()
    loss = mean_loss(call(model, x), y)
    loss.backward()
    update(model, optimizer, max_grad_norm)
    return loss.detach()


def selective_backprop_step(
    model: nn.Module,
    criterion: Callable[[Any, Tensor], Tensor],
    optimizer: Optimizer,
    x: Any,
    y: Tensor,
    *,
    keep: float = 0.5,
    generator: torch.Generator | None = None,
    max_grad_norm: float | None = None,
) -> Tensor:
    """The rows kept in one update of Selective Backprop (Jiang et al., 2019) as MosaicML's Composer does it.

    All samples are scored without a graph; a share `keep` of them is drawn without replacement, the sample of rank
    j from below with probability proportional to ``((j + 1/2) / s) ** (1 / keep - 1)``; these go through a second
    forward and a backward. Composer's default interleaves such steps with plain ones and so gains half of what is
    measured here.

    >>> model, x, y = nn.Linear(4, 3), torch.randn(8, 4), torch.randint(3, (8,))
    >>> def criterion(outputs, y):
    ...     return nn.functional.cross_entropy(outputs, y, reduction="none")
    >>> selective_backprop_step(model, criterion, new_optimizer(model), x, y).shape
    torch.Size([4])
    """
    with torch.no_grad():
        losses = criterion(call(model, x), y)
    rows = draw_by_rank(losses, keep=keep, generator=generator)
    optimizer.zero_grad()
    part = tree_map(lambda tensor: select_rows(tensor, 0, rows), x)  # channels-last stays
    kept = criterion(call(model, part), y.index_select(0, rows))
    kept.mean().backward()
    update(model, optimizer, max_grad_norm)
    return rows


def draw_by_rank(losses: Tensor, *, keep: float, generator: torch.Generator | None = None) -> Tensor:
    """A share `keep` of the positions, drawn without replacement, large losses more often.

    >>> draw_by_rank(torch.arange(10.0), keep=0.2).shape
    torch.Size([2])
    """
    s = losses.shape[0]
    ranks = (torch.arange(s) + 0.5) / s
    drawn = torch.multinomial(ranks ** (1 / keep - 1), int(keep * s), generator=generator)
    return losses.argsort().index_select(0, drawn.to(losses.device))
