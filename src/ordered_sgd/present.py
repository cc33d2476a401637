"""Samples whose target is the ignored one: they are in the batch, but are never kept and never counted."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ordered_sgd.nonfinite import sent


class Present:
    """Which samples of a batch count; nobody waits for it before it is asked.

    Parameters
    ----------
    targets
        Of each micro-batch. Only classes, integers of shape (s,), can be ignored by sample.
    ignored
        The target that the criterion ignores, or None.
    elements
        Whether targets may be (s, ...), because samples are means over elements: one counts unless all of its targets
        are the ignored one.

    Examples
    --------
    >>> Present([torch.tensor([3, -100, 1])], -100).rows
    tensor([0, 2])
    >>> Present([torch.tensor([3, 0, 1])], -100).rows is None
    True
    """

    def __init__(self, targets: Sequence[Any], ignored: int | None, *, elements: bool = False) -> None:
        self._sent = None
        if ignored is not None and all(_are_classes(target, elements) for target in targets):
            there = [target != ignored for target in targets]
            there = [part if part.dim() == 1 else part.flatten(1).any(1) for part in there]
            self._sent = sent(there[0] if len(there) == 1 else torch.cat(there))

    @cached_property
    def rows(self) -> Tensor | None:
        """The positions of those that count, on the CPU; None where all do."""
        there = None if self._sent is None else self._sent.read().numpy()
        return None if there is None or there.all() else torch.from_numpy(np.flatnonzero(there))

    def count(self, s: int) -> int:
        """How many of s samples count."""
        return s if self.rows is None else self.rows.shape[0]

    def of(self, positions: Tensor | None, device: torch.device) -> Tensor | None:
        """Which of the samples at ascending positions in the batch (None: all) count, as places among these."""
        if self.rows is None:
            return None
        rows = self.rows
        if positions is not None:
            rows = torch.isin(positions.cpu(), rows).nonzero().squeeze(1)
        return rows.to(device, non_blocking=True)


def _are_classes(target: Any, elements: bool) -> bool:
    """Whether a target has one integer per sample, or per element."""
    integers = isinstance(target, Tensor) and not target.is_floating_point() and target.dtype != torch.bool
    return integers and (target.dim() == 1 or (elements and target.dim() > 1))
