"""What a step of gradient accumulation costs: all samples, or the q largest of all micro-batches in two ways.

- plain: a forward and a backward pass over each micro-batch, and an update; what the other times are divided by;
- whole: all micro-batches are scored without a graph, and those that hold a kept sample are run again;
- regrouped: the kept samples are run again in as few micro-batches as they fill, as `OrderedStep` does.

All of them train one model, with a rate so small that nothing is learnt, and are measured in turn in one run.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ordered_sgd.agreement import largest_difference
from ordered_sgd.engines.accumulate import MicroBatches, PartsScored
from ordered_sgd.engines.parallel import OneProcess
from ordered_sgd.engines.phases import Kept
from ordered_sgd.errors import TrapWarning
from ordered_sgd.lab.bench.opponents import call, update
from ordered_sgd.lab.bench.timing import Timing, interleave, threads_of_torch
from ordered_sgd.lab.bench.workloads import WORKLOADS, Batch
from ordered_sgd.lab.experiments.allocator import keep_freed_memory
from ordered_sgd.rewind import Buffers
from ordered_sgd.scoring import Scoring
from ordered_sgd.selection import select_top_q
from ordered_sgd.step import OrderedStep

PLAIN, WHOLE, REGROUPED = "plain", "whole", "regrouped"
WARMUP = 2  # rounds that do not count: the first one looks whether samples are apart


@dataclass(frozen=True)
class AccumulationRow:
    """One way to accumulate the gradient of one model.

    Parameters
    ----------
    model, parts, s
        A name in `WORKLOADS`, micro-batches in a step, and samples in each.
    way, q
        What was measured; q is a share of all samples, and None for ``plain``.
    seconds, low, high
        Of a step: median and quartiles.
    ratio, ratio_low, ratio_high
        These over the median of ``plain``.
    rounds
        Measurements of which it is the median.
    ran, why
        What the step says that ran, and why it was not what was asked for.
    error
        Of the gradient of ``regrouped``, against that of ``whole``: the largest relative one.
    """

    model: str
    parts: int
    s: int
    way: str
    q: float | None
    seconds: float
    low: float
    high: float
    ratio: float
    ratio_low: float
    ratio_high: float
    rounds: int
    ran: str = ""
    why: str | None = None
    error: float | None = None


class Accumulation:
    """A model, its optimizer, and the micro-batches of a step.

    >>> accumulation = Accumulation("logistic", parts=3, s=4)
    >>> accumulation.ordered(0.25)(accumulation.batches).engine, accumulation.whole(0.25)()
    ('micro-batches, regrouped', 'micro-batches')
    """

    def __init__(self, model: str, *, parts: int, s: int) -> None:
        self.workload = WORKLOADS[model]
        torch.manual_seed(0)
        self.model = self.workload.build()
        self.optimizer = self.workload.optimizer(self.model)
        generator = torch.Generator().manual_seed(0)
        self.batches = [self.workload.make_batch(s, generator) for _ in range(parts)]

    def plain(self) -> str:
        """One step of ordinary accumulation."""
        self.optimizer.zero_grad()
        for x, y in self.batches:
            (self.workload.mean_loss(call(self.model, x), y) / len(self.batches)).backward()
        self._update()
        return PLAIN

    def whole(self, q: float) -> Callable[[], str]:
        """A function that makes one step on the q largest, by running whole micro-batches again."""
        score = Scoring(self.model, self.workload.criterion, None, cap=None, counts=False, empty=False)
        micro = MicroBatches(score, OneProcess(self.model), Buffers(self.model))
        batches = [(x, y, None) for x, y in self.batches]

        def step() -> str:
            self.optimizer.zero_grad()
            scored = micro.forward(batches, None, lambda total: None)
            assert isinstance(scored, PartsScored)
            rows = select_top_q(scored.losses, q)
            ran = scored.whole(Kept(rows, rows.shape[0])).engine
            self._update()
            return ran

        return step

    def ordered(self, q: float) -> OrderedStep:
        """A step on the q largest that regroups them where that is exact."""
        limit = self.workload.max_grad_norm
        return OrderedStep(self.model, self.workload.criterion, self.optimizer, q=q, max_grad_norm=limit)

    def gradient(self, step: Callable[[], str]) -> list[Tensor | None]:
        """The gradient of one step, from the same weights and random numbers each time; the weights stay."""
        before = [p.detach().clone() for p in self.model.parameters()]
        torch.manual_seed(1)
        step()
        with torch.no_grad():
            for p, value in zip(self.model.parameters(), before, strict=True):
                p.copy_(value)
        return [None if p.grad is None else p.grad.clone() for p in self.model.parameters()]

    def _update(self) -> None:
        update(self.model, self.optimizer, self.workload.max_grad_norm)


def accumulation_ways(qs: Sequence[float]) -> list[tuple[str, float | None]]:
    """What is measured of a model.

    >>> accumulation_ways([0.5])
    [('plain', None), ('whole', 0.5), ('regrouped', 0.5)]
    """
    return [(PLAIN, None), *((way, q) for way in (WHOLE, REGROUPED) for q in qs)]


def measure_accumulation(
    model: str,
    qs: Sequence[float],
    *,
    parts: int = 8,
    s: int = 4,
    rounds: int = 7,
    threads: int = 1,
    tick: Callable[[], object] = lambda: None,
) -> list[AccumulationRow]:
    """The rows of one model; `tick` is called after each round. The process keeps freed memory from then on.

    >>> rows = measure_accumulation("logistic", [0.5], parts=2, s=4, rounds=2)
    >>> [row.way for row in rows], rows[0].ratio
    (['plain', 'whole', 'regrouped'], 1.0)
    """
    keep_freed_memory()
    ways, subject = accumulation_ways(qs), Accumulation(model, parts=parts, s=s)
    steps = {q: subject.ordered(q) for q in qs}
    calls: dict[tuple[str, float | None], Callable[[], str]] = {(PLAIN, None): subject.plain}
    for q in qs:
        calls[WHOLE, q] = subject.whole(q)
        calls[REGROUPED, q] = partial(_regrouped, steps[q], subject.batches)
    with threads_of_torch(threads), warnings.catch_warnings():
        warnings.simplefilter("ignore", TrapWarning)  # a small q from the first step on is what is measured
        errors = {
            q: largest_difference(subject.gradient(calls[REGROUPED, q]), subject.gradient(calls[WHOLE, q])) for q in qs
        }
        ran = {way: call() for way, call in calls.items()}
        named = {str(way): calls[way] for way in ways}
        seconds = interleave({**named, "tick": tick}, rounds=rounds, warmup=WARMUP)
    plain = seconds[str((PLAIN, None))].median
    return [
        AccumulationRow(
            model=model,
            parts=parts,
            s=s,
            way=way,
            q=q,
            **_figures(seconds[str((way, q))], plain),
            rounds=rounds,
            ran=ran[way, q],
            why=steps[q].why if way == REGROUPED and q is not None else None,
            error=errors[q] if way == REGROUPED and q is not None else None,
        )
        for way, q in ways
    ]


def _regrouped(step: OrderedStep, batches: list[Batch]) -> str:
    return step(batches).engine


def _figures(timing: Timing, plain: float) -> dict[str, float]:
    numbers = {"": timing.median, "_low": timing.low, "_high": timing.high}
    ratios = {f"ratio{name}": value / plain for name, value in numbers.items()}
    return {"seconds": timing.median, "low": timing.low, "high": timing.high, **ratios}
