"""The slow, readable twin of the selection over ranks."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ordered_sgd import select_top_q


def rows_of_rank(losses: Tensor, q: float, group: Any) -> Tensor:
    """Gather all losses, join them, select the q largest, and cut out what belongs to this rank."""
    gathered: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(gathered, losses, group=group)
    return cut(gathered, q)[dist.get_rank(group)]


def cut(losses: list[Tensor], q: float) -> list[Tensor]:
    """The positions of the q largest of all, by rank."""
    rows = select_top_q(torch.cat(losses), q).tolist()
    owners = [(rank, index) for rank, part in enumerate(losses) for index in range(len(part))]
    chosen = [owners[row] for row in rows]
    return [torch.tensor([i for owner, i in chosen if owner == rank], dtype=torch.int64) for rank in range(len(losses))]
