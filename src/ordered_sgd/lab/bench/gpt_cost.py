"""What a whole training step of a small GPT costs with each loss: forward, backward and AdamW.

The losses are those of `head_cost` without torch's: the mean over all tokens, and the q largest token losses by the
one-liner and by `ordered_linear_cross_entropy`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ordered_sgd.head import ordered_linear_cross_entropy
from ordered_sgd.lab.bench.head_cost import ONE_LINER, ORDERED, PLAIN, WARMUP, Way, label
from ordered_sgd.lab.bench.timing import interleave, threads_of_torch
from ordered_sgd.lab.bench.workloads import CausalTransformer, fused_adamw, sequences
from ordered_sgd.lab.experiments.allocator import keep_freed_memory
from ordered_sgd.mean import ordered_mean


@dataclass(frozen=True)
class GptShape:
    """Layers, width and attention heads of the model, words of the vocabulary, sequences in a batch, their length."""

    layers: int = 6
    width: int = 256
    heads: int = 4
    words: int = 50_304
    s: int = 4
    length: int = 128


GPT = GptShape()


@dataclass(frozen=True)
class GptRow:
    """A training step with one kind of loss.

    Parameters
    ----------
    way, q
        The loss; q is a share of the tokens, and None for ``plain``.
    seconds, low, high
        Of one step: median and quartiles.
    speedup, speedup_low, speedup_high
        The median of ``plain`` over them.
    rounds
        Measurements of which it is the median.
    """

    way: str
    q: float | None
    seconds: float
    low: float
    high: float
    speedup: float
    speedup_low: float
    speedup_high: float
    rounds: int


class Gpt:
    """A small GPT whose head has a weight of its own, its optimizer and one batch.

    All kinds of step train the same model: the learning rate is so small that none changes the work of the others.

    >>> gpt = Gpt(GptShape(layers=1, width=8, heads=2, words=50, s=2, length=6))
    >>> bool(gpt.step("ordered", 0.5) > gpt.step("plain", None))
    True
    """

    def __init__(self, shape: GptShape) -> None:
        torch.manual_seed(0)
        self.model = CausalTransformer(
            layers=shape.layers, width=shape.width, heads=shape.heads, vocabulary=shape.words, length=shape.length
        )
        self.optimizer = fused_adamw(self.model)
        self.batch = sequences(shape.words, shape.length)(shape.s, torch.Generator().manual_seed(0))

    def loss(self, way: str, q: float | None) -> Tensor:
        """The loss of the batch, with a graph."""
        x, y = self.batch
        if way == ORDERED and q is not None:
            head = self.model.head
            return ordered_linear_cross_entropy(self.model.hidden(x), head.weight, y, q, linear_bias=head.bias)
        logits, target = self.model(x).flatten(0, 1), y.flatten()
        if q is None:
            return F.cross_entropy(logits, target)
        return ordered_mean(F.cross_entropy(logits, target, reduction="none"), q, unit="token")

    def step(self, way: str, q: float | None) -> Tensor:
        """The loss before one update."""
        self.optimizer.zero_grad()
        loss = self.loss(way, q)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def measure_gpt(
    qs: Sequence[float],
    *,
    shape: GptShape = GPT,
    rounds: int = 7,
    threads: int = 1,
    keep_freed: bool = True,
    tick: Callable[[], object] = lambda: None,
) -> list[GptRow]:
    """A row for each loss, measured in turn; `tick` is called after each round.

    >>> rows = measure_gpt([0.5], shape=GptShape(layers=1, width=8, heads=2, words=50, s=2, length=6), rounds=2)
    >>> [row.way for row in rows], rows[0].speedup
    (['plain', 'one-liner', 'ordered'], 1.0)
    """
    if keep_freed:
        keep_freed_memory()
    gpt = Gpt(shape)
    ways: list[Way] = [(PLAIN, None), *((way, q) for way in (ONE_LINER, ORDERED) for q in qs)]
    calls: dict[str, Callable[[], object]] = {
        label(way, q): lambda way=way, q=q: gpt.step(way, q)  # type: ignore[misc]
        for way, q in ways
    }
    with threads_of_torch(threads):
        found = interleave({**calls, "tick": tick}, rounds=rounds, warmup=WARMUP)
    plain = found[PLAIN].median
    rows = []
    for way, q in ways:
        timing = found[label(way, q)]
        rows.append(
            GptRow(
                way=way,
                q=q,
                seconds=timing.median,
                low=timing.low,
                high=timing.high,
                speedup=plain / timing.median,
                speedup_low=plain / timing.high,
                speedup_high=plain / timing.low,
                rounds=rounds,
            )
        )
    return rows
