"""How many candidates are scored: as many as held the wanted recall in the last batches that were scored whole."""

from collections import deque
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ordered_sgd.engines.phases import KeptRanks, Recall
from ordered_sgd.selection import widen

WINDOW = 32  # batches scored whole that count: the oldest are forgotten, as the model they were scored with is
FEWEST = 8  # of them before anything is concluded


class Candidates:
    """The number of candidates, adapted to hold a recall, or fixed.

    A batch that was scored whole tells of every kept sample at which place it stood among the remembered losses. The
    places of the last batches give the recall of *any* number of candidates, and so the number that is needed. Where
    the present one falls short of the target there, it grows at once. It shrinks slowly: with each such batch by a
    quarter of the way to the number whose recall is above the target by its standard error. When q changes, the number
    is found anew from the same places.

    Parameters
    ----------
    target
        The recall to hold.
    """

    def __init__(self, target: float) -> None:
        self.target = target
        self.count: int | None = None  # of a full batch; None until it is known
        self.recall: Recall | None = None  # over the last audits; None before the first
        self._kept: KeptRanks | None = None  # for which the count was found
        self.s = 0  # the largest batch that was learnt from
        self._places: deque[NDArray[np.int64]] = deque(maxlen=WINDOW)  # of the hardest, the second hardest, ...
        self._found: deque[tuple[int, int]] = deque(maxlen=WINDOW)  # see `rest_on`

    def of(self, s: int, kept: KeptRanks) -> int:
        """How many candidates of a batch of s there are now."""
        if kept != self._kept and s >= self.s and len(self._places) >= FEWEST:
            self.count, self._kept = self._needed(kept, deviations=1.0), kept
        return s if self.count is None else min(s, max(kept.last, self.count))

    def look(self, remembered: Tensor, losses: Tensor, kept: KeptRanks) -> None:
        """Learn from a batch that was scored whole, of which every sample had been seen before."""
        s = losses.shape[0]
        self.s = max(s, self.s)
        if 2 * s < self.s:
            return  # places in the small last batch of an epoch are others
        places = np.empty(s, np.int64)
        places[_order(remembered)] = np.arange(1, s + 1)
        self._places.append(places[_order(losses)])
        if self.count is None or kept != self._kept:
            return
        self.count = max(self.count, self._needed(kept, deviations=0.0))
        spare = self.count - self._needed(kept, deviations=1.0)
        self.count -= max(0, -(-spare // 4))

    def audit(self, found: int, q: int) -> None:
        """Take note of an audit: so many of the q that are truly kept were among those to be scored."""
        self._found.append((found, q))
        self.recall = interval(self._found)

    def rest_on(self, audits: int) -> None:
        """Let the reported recall rest on the last so many audits."""
        self._found = deque(self._found, maxlen=audits)
        self.recall = interval(self._found) if self._found else None

    def _needed(self, kept: KeptRanks, *, deviations: float) -> int:
        """The fewest whose recall over the window, less so many standard errors, is the target; else all."""
        places = np.sort(np.concatenate([batch[kept.trim : kept.last] for batch in self._places]))
        n = len(places)
        lower, _ = wilson(np.arange(1, n + 1) / n, n, deviations)
        enough = np.flatnonzero(lower >= self.target - 1e-12)
        return int(places[enough[0]]) if len(enough) else self.s

    def state_dict(self) -> dict[str, Any]:
        """Numbers and tensors."""
        return {
            "count": self.count,
            "kept": None if self._kept is None else list(self._kept),
            "s": self.s,
            "places": [torch.from_numpy(batch.copy()) for batch in self._places],
            "found": [list(pair) for pair in self._found],
            "audits": self._found.maxlen,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self.count, self.s = state["count"], state["s"]
        self._kept = None if state["kept"] is None else KeptRanks(*state["kept"])
        self._places = deque((batch.cpu().numpy().copy() for batch in state["places"]), maxlen=WINDOW)
        self._found = deque(((found, q) for found, q in state["found"]), maxlen=state["audits"])
        self.recall = interval(self._found) if self._found else None


def interval(audits: "deque[tuple[int, int]] | list[tuple[int, int]]", deviations: float = 1.96) -> Recall:
    """The recall over audits of (found, q), with Wilson's interval.

    Samples of a batch are missed together: the interval is that of as many independent samples as would spread like the
    audits do.

    >>> interval([(4, 4), (4, 4), (3, 4), (4, 4)])
    Recall(mean=0.9375, low=0.716..., high=0.988..., audits=4)
    """
    found, of = np.array(audits, dtype=float).T
    n, mean = of.sum(), found.sum() / of.sum()
    if 0 < mean < 1:
        n /= max(1.0, float((of * (found / of - mean) ** 2).mean() / (mean * (1 - mean))))
    low, high = wilson(mean, n, deviations)
    return Recall(float(mean), max(0.0, float(low)), min(1.0, float(high)), len(audits))  # rounding may pass them


def wilson(share: Any, n: float, deviations: float) -> tuple[Any, Any]:
    """Wilson's interval of a share of n: so many standard errors to both sides."""
    z = deviations**2 / n
    middle = share + z / 2
    half = np.sqrt(z * share * (1 - share) + z**2 / 4)
    return (middle - half) / (1 + z), (middle + half) / (1 + z)


def _order(values: Tensor) -> NDArray[np.int64]:
    """Positions from the largest to the smallest, ties by position, as `top_rows` takes them."""
    return widen(values).sort(descending=True, stable=True).indices.cpu().numpy()
