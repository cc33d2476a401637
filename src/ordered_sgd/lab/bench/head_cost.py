"""What the head of a language model and its loss cost, forward and backward, four ways.

- plain: ``F.cross_entropy(F.linear(hidden, weight), target)``, what the other times are divided by;
- torch: ``F.linear_cross_entropy`` in chunks of a quarter of the tokens;
- one-liner: `ordered_mean` of the losses of all tokens;
- ordered: `ordered_linear_cross_entropy`.

All ways of one shape are measured in turn in one run. By default the process keeps the memory that a call frees, as in
`osgd bench step`. Otherwise glibc gives tensors of more than 32 MiB back at once, and plain, which has the most of
them, pays for getting them again in every call.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import LinearCrossEntropyOptions
from torch.nn import functional as F

from ordered_sgd.agreement import largest_difference
from ordered_sgd.head import ordered_linear_cross_entropy
from ordered_sgd.lab.bench.probe import apart, peak_bytes
from ordered_sgd.lab.bench.timing import Timing, interleave, threads_of_torch
from ordered_sgd.lab.experiments.allocator import keep_freed_memory
from ordered_sgd.mean import ordered_mean

PLAIN, TORCH, ONE_LINER, ORDERED = "plain", "torch", "one-liner", "ordered"
Way = tuple[str, float | None]  # q is None for the ways that keep every token

WORDS, WIDTHS = (8_192, 32_768, 131_072), (256, 768)
WARMUP = 1  # rounds that do not count


@dataclass(frozen=True)
class HeadShape:
    """Tokens in a batch, width of the model and words of the vocabulary."""

    tokens: int
    width: int
    words: int


@dataclass(frozen=True)
class HeadRow:
    """One way to compute the loss of one shape.

    Parameters
    ----------
    tokens, width, words
        The shape.
    way, q
        What was measured; q is a share of the tokens, and None for ``plain`` and ``torch``.
    seconds, low, high
        Of a forward and a backward pass that gives the gradients of input and weight: median and quartiles.
    ratio, ratio_low, ratio_high
        These over the median of ``plain``.
    rounds
        Measurements of which it is the median.
    peak_bytes
        Highest resident memory during one such pass above that before it, the gradients included; None where it was
        not asked for, or the system does not tell.
    error
        Of the gradients of ``ordered``, against those of the one-liner: the largest relative one.
    """

    tokens: int
    width: int
    words: int
    way: str
    q: float | None
    seconds: float
    low: float
    high: float
    ratio: float
    ratio_low: float
    ratio_high: float
    rounds: int
    peak_bytes: int | None = None
    error: float | None = None


class Head:
    """A weight, the inputs of its layer and their targets, drawn as at the start of a training.

    >>> head = Head(HeadShape(tokens=8, width=4, words=16))
    >>> bool(head.loss("one-liner", 0.5) == head.loss("ordered", 0.5) > head.loss("plain", None))
    True
    """

    def __init__(self, shape: HeadShape) -> None:
        generator = torch.Generator().manual_seed(0)
        self.hidden = torch.randn(shape.tokens, shape.width, generator=generator).requires_grad_()
        self.weight = torch.randn(shape.words, shape.width, generator=generator).mul_(0.02).requires_grad_()
        self.target = torch.randint(shape.words, (shape.tokens,), generator=generator)
        # The default, chunks of a few tokens each, adds to the whole gradient of the weight for every one of them: on
        # a CPU that takes several times as long as plain.
        self._chunks = LinearCrossEntropyOptions(batch_chunk_size=max(1, shape.tokens // 4))

    def loss(self, way: str, q: float | None) -> Tensor:
        """The loss, with a graph."""
        hidden, weight, target = self.hidden, self.weight, self.target
        if way == TORCH:
            return F.linear_cross_entropy(hidden, weight, target, options=self._chunks)
        if q is None:
            return F.cross_entropy(F.linear(hidden, weight), target)
        if way == ORDERED:
            return ordered_linear_cross_entropy(hidden, weight, target, q)
        return ordered_mean(F.cross_entropy(F.linear(hidden, weight), target, reduction="none"), q, unit="token")

    def gradients(self, way: str, q: float | None) -> tuple[Tensor | None, Tensor | None]:
        """The gradients of input and weight after a forward and a backward pass."""
        self.hidden.grad = self.weight.grad = None
        self.loss(way, q).backward()
        return self.hidden.grad, self.weight.grad

    def error(self, q: float) -> float | None:
        """Largest relative error of the gradients of ``ordered`` against those of the one-liner."""
        return largest_difference(self.gradients(ORDERED, q), self.gradients(ONE_LINER, q))


def default_shapes(tokens: int) -> list[HeadShape]:
    """Three vocabularies at two widths, and that of GPT-2, padded, at 512.

    >>> [(shape.width, shape.words) for shape in default_shapes(512)][-2:]
    [(768, 131072), (512, 50304)]
    """
    return [*shapes_of(tokens, WIDTHS, WORDS), HeadShape(tokens, width=512, words=50_304)]


def shapes_of(tokens: int, widths: Sequence[int], words: Sequence[int]) -> list[HeadShape]:
    """Every vocabulary at every width, small ones first."""
    return [HeadShape(tokens, width, count) for count, width in itertools.product(words, widths)]


def head_ways(qs: Sequence[float]) -> list[Way]:
    """What is measured of a shape.

    >>> head_ways([0.5])
    [('plain', None), ('torch', None), ('one-liner', 0.5), ('ordered', 0.5)]
    """
    return [(PLAIN, None), (TORCH, None), *((way, q) for way in (ONE_LINER, ORDERED) for q in qs)]


def measure_head(
    shape: HeadShape,
    qs: Sequence[float],
    *,
    rounds: int = 7,
    threads: int = 1,
    keep_freed: bool = True,
    probe: bool = True,
    tick: Callable[[], object] = lambda: None,
) -> list[HeadRow]:
    """The rows of one shape; `tick` is called after each round and each probe.

    With `keep_freed` the process keeps the memory that a call frees, from then on.

    >>> rows = measure_head(HeadShape(tokens=8, width=4, words=16), [0.5], rounds=2, probe=False)
    >>> [row.way for row in rows], rows[0].ratio
    (['plain', 'torch', 'one-liner', 'ordered'], 1.0)
    """
    if keep_freed:
        keep_freed_memory()
    ways, head = head_ways(qs), Head(shape)
    calls: dict[str, Callable[[], object]] = {
        label(way, q): lambda way=way, q=q: head.gradients(way, q)  # type: ignore[misc]
        for way, q in ways
    }
    with threads_of_torch(threads):
        errors = {q: head.error(q) for q in qs}
        seconds = interleave({**calls, "tick": tick}, rounds=rounds, warmup=WARMUP)
    rows = []
    for way, q in ways:
        peak = head_peak_apart(shape, way, q, threads) if probe else None
        if probe:
            tick()
        error = errors[q] if way == ORDERED and q is not None else None
        rows.append(_row(shape, (way, q), seconds[label(way, q)], seconds[PLAIN].median, rounds, peak, error))
    return rows


def _row(
    shape: HeadShape, way: Way, timing: Timing, plain: float, rounds: int, peak: int | None, error: float | None
) -> HeadRow:
    return HeadRow(
        tokens=shape.tokens,
        width=shape.width,
        words=shape.words,
        way=way[0],
        q=way[1],
        seconds=timing.median,
        low=timing.low,
        high=timing.high,
        ratio=timing.median / plain,
        ratio_low=timing.low / plain,
        ratio_high=timing.high / plain,
        rounds=rounds,
        peak_bytes=peak,
        error=error,
    )


def label(way: str, q: float | None) -> str:
    """A name for what is measured.

    >>> label("plain", None), label("ordered", 0.25)
    ('plain', 'ordered 0.25')
    """
    return way if q is None else f"{way} {q:g}"


def head_peak_apart(shape: HeadShape, way: str, q: float | None, threads: int) -> int | None:
    """As `head_peak`, in a new process."""
    sizes = f"tokens={shape.tokens}, width={shape.width}, words={shape.words}"
    call = f"head_cost.head_peak(head_cost.HeadShape({sizes}), {way!r}, {q!r}, threads={threads})"
    peak: int | None = apart(call, f"{label(way, q)}, {sizes}", "osgd bench head --no-probe")
    return peak


def head_peak(shape: HeadShape, way: str, q: float | None, *, threads: int) -> int | None:
    """Highest resident memory during a forward and backward pass above that before it; see `HeadRow`."""
    torch.set_num_threads(threads)
    head = Head(shape)
    head.gradients(way, q)  # what libraries allocate once is not counted
    head.hidden.grad = head.weight.grad = None
    return peak_bytes(lambda: head.gradients(way, q))
