"""What ordered SGD is measured against: plain SGD, and Selective Backprop as Composer does it."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ordered_sgd.selection import select_rows


def new_optimizer(model: nn.Module) -> Optimizer:
    """Fused SGD with momentum, the fastest that torch has; a rate so small that random labels are never learnt."""
    return torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, fused=True)


def sgd_step(
    model: nn.Module, mean_loss: Callable[[Tensor, Tensor], Tensor], optimizer: Optimizer, x: Tensor, y: Tensor
) -> Tensor:
    """The loss of one plain update, before it.

    >>> model = nn.Linear(4, 3)
    >>> x, y = torch.randn(8, 4), torch.randint(3, (8,))
    >>> first = sgd_step(model, nn.functional.cross_entropy, new_optimizer(model), x, y)
    >>> bool(nn.functional.cross_entropy(model(x), y) < first)
    True
    """
    optimizer.zero_grad()
    loss = mean_loss(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.detach()


def selective_backprop_step(
    model: nn.Module,
    criterion: Callable[[Tensor, Tensor], Tensor],
    optimizer: Optimizer,
    x: Tensor,
    y: Tensor,
    *,
    keep: float = 0.5,
    generator: torch.Generator | None = None,
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
        losses = criterion(model(x), y)
    rows = draw_by_rank(losses, keep=keep, generator=generator)
    optimizer.zero_grad()
    kept = criterion(model(select_rows(x, 0, rows)), y.index_select(0, rows))  # channels-last stays
    kept.mean().backward()
    optimizer.step()
    return rows


def draw_by_rank(losses: Tensor, *, keep: float, generator: torch.Generator | None = None) -> Tensor:
    """A share `keep` of the positions, drawn without replacement, large losses more often.

    >>> draw_by_rank(torch.arange(10.0), keep=0.2).shape
    torch.Size([2])
    """
    s = losses.shape[0]
    ranks = (torch.arange(s) + 0.5) / s
    drawn = torch.multinomial(ranks ** (1 / keep - 1), int(keep * s), generator=generator)
    return losses.argsort().index_select(0, drawn)
