"""When a batch is scored whole to measure the recall: at random moments that do not depend on the data.

The steps of an epoch are cut into stretches of about the square root of their number. One step in each stretch is
audited, and its place is drawn before any of its losses is known, so that every step has the same chance.
"""

from collections.abc import Mapping
from typing import Any

import torch

from ordered_sgd.engines.recall import FEWEST


def stretch_of(steps: int) -> int:
    """The length of a stretch, in which one step is audited, in an epoch of so many steps: the square root, at least 4.

    >>> [stretch_of(steps) for steps in (0, 1, 16, 64, 938)]
    [4, 4, 4, 8, 31]
    """
    return max(4, round(float(steps**0.5)))


def audits_of(steps: int) -> int:
    """How many audits a reported recall rests on: those of one epoch, or of a few short ones.

    >>> [audits_of(steps) for steps in (4, 16, 938)]
    [8, 8, 30]
    """
    return max(FEWEST, steps // stretch_of(steps))


class Audits:
    """Says which steps are audited, where they come one by one.

    Examples
    --------
    >>> audits = Audits()
    >>> audits.begin(stretch_of(16), torch.Generator().manual_seed(0))
    >>> sorted(audits.due() for _ in range(4))
    [False, False, False, True]
    >>> audits.left
    0
    """

    def __init__(self) -> None:
        self.left = 0  # steps of the present stretch that are still to come
        self._place = 0  # so many are left after the one that is audited

    def begin(self, stretch: int, generator: torch.Generator) -> None:
        """A new stretch of so many steps begins."""
        self.left, self._place = stretch, int(torch.randint(stretch, (), generator=generator))

    def due(self) -> bool:
        """Whether the next step is audited."""
        self.left -= 1
        return self.left == self._place

    def state_dict(self) -> dict[str, int]:
        """Two numbers."""
        return {"left": self.left, "place": self._place}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self.left, self._place = state["left"], state["place"]
