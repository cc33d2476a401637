"""What an update costs in other people's trainers, with an ordered loss against the same trainer without it.

Every trainer runs its own loop, in a thread that waits for its turn at each update (`ordered_sgd.lab.bench.turns`); the
updates of the plain trainer and of those with the ordered loss are measured in turn. The first updates, in which the
model is compiled, are measured by themselves.

After that every training is repeated with ``selective=False``, or by hand where that is not enough. The gradients that
the optimizer is given in the last of the first updates must be the same.
"""

import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ordered_sgd.agreement import largest_difference
from ordered_sgd.lab.bench.step_cost import forget_compiled
from ordered_sgd.lab.bench.timing import Timing, every, measurements, summary, threads_of_torch
from ordered_sgd.lab.bench.trainer_inputs import FULL, TrainerSizes
from ordered_sgd.lab.bench.trainer_subjects import SUBJECTS, TrainerRun
from ordered_sgd.lab.experiments.allocator import keep_freed_memory

Gradients = list[Tensor | None]
FIRST = 4  # turns before those that are compared: some loaders fetch a batch before the first update
_SHORTEST = 0.1  # seconds of one measurement: shorter updates are repeated within it


@dataclass(frozen=True)
class TrainerRow:
    """One trainer, plain or with an ordered loss.

    Parameters
    ----------
    trainer, title, q
        What was measured, by its name in `SUBJECTS` and in words; q is the share that is kept, and None for the plain
        trainer.
    seconds, low, high
        Of one update with all that the trainer does around it: median and quartiles.
    speedup, speedup_low, speedup_high
        The plain trainer's median over them.
    rounds
        Measurements of which it is the median.
    compile_seconds
        Of the first updates, beyond what as many later ones take.
    ran
        What the trainer says that its updates computed; empty for the plain trainer.
    error
        Of the gradient, against that of whole backward passes from the same seed: the largest relative one. None for
        the plain trainer, and for gradients that are not finite.
    """

    trainer: str
    title: str
    q: float | None
    seconds: float
    low: float
    high: float
    speedup: float
    speedup_low: float
    speedup_high: float
    rounds: int
    compile_seconds: float
    ran: str
    error: float | None


def trainer_ticks(qs: Sequence[float], rounds: int) -> int:
    """How often `measure_trainer` ticks."""
    return 1 + len(qs) + rounds + len(qs)


def measure_trainer(
    name: str,
    qs: Sequence[float] = (),
    *,
    sizes: TrainerSizes = FULL,
    rounds: int = 7,
    threads: int = 1,
    tick: Callable[[], object] = lambda: None,
) -> list[TrainerRow]:
    """The rows of one trainer, plain and for every q (its own list when empty); `tick` is called after each part.

    With one thread of torch the clock is the processor time of the process. A partner that is not installed is a
    `MissingExtraError`. The process keeps the memory that it frees, from then on.
    """
    keep_freed_memory()
    forget_compiled()
    clock = time.process_time if threads == 1 else time.perf_counter
    subject = SUBJECTS[name]
    kept = list(qs or subject.qs)
    with threads_of_torch(threads), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what partners say about loaders without workers
        found = _measured(partial(subject.build, sizes), kept, rounds, clock, tick)
        build = subject.reference or partial(subject.build, selective=False)
        errors: dict[float | None, float | None] = {}
        for share in kept:
            errors[share] = _error(partial(build, sizes, share), found[share].gradients)
            tick()
    plain = found[None].timing.median
    rows = []
    for q, one in found.items():
        timing = one.timing
        rows.append(
            TrainerRow(
                trainer=name,
                title=subject.title,
                q=q,
                seconds=timing.median,
                low=timing.low,
                high=timing.high,
                speedup=plain / timing.median,
                speedup_low=plain / timing.high,
                speedup_high=plain / timing.low,
                rounds=rounds,
                compile_seconds=one.first_seconds - FIRST * timing.median,
                ran=one.ran,
                error=errors.get(q),
            )
        )
    return rows


@dataclass(frozen=True)
class _Measured:
    """Seconds of an update, those of the first turns together, the gradients of the last of them, and what ran."""

    timing: Timing
    first_seconds: float
    gradients: Gradients
    ran: str


def _measured(
    build: Callable[..., TrainerRun],
    qs: Sequence[float],
    rounds: int,
    clock: Callable[[], float],
    tick: Callable[[], object],
) -> dict[float | None, _Measured]:
    """The plain training and one for every q, measured in turn."""
    runs: dict[float | None, TrainerRun] = {}
    firsts = {}
    with ExitStack() as stack:
        for q in (None, *qs):
            runs[q] = _seeded(partial(build, q))
            stack.enter_context(runs[q].turns)
            start = clock()
            gradients = _first_turns(runs[q])
            firsts[q] = clock() - start, gradients
            tick()
        start = clock()
        runs[None].turns.next()
        inner = max(1, round(_SHORTEST / (clock() - start)))
        settle = int(inner > 1)  # short updates find what the one before them has left in the cache
        calls: dict[str, Callable[[], object]] = {str(q): run.turns.next for q, run in runs.items()}
        calls["tick"] = every(inner + settle, tick)
        seconds = measurements(calls, rounds=rounds, inner=inner, warmup=0, settle=settle, clock=clock)
    return {q: _Measured(summary(seconds[str(q)]), *firsts[q], run.ran()) for q, run in runs.items()}


def _seeded(build: Callable[[], TrainerRun]) -> TrainerRun:
    """A training that starts from the same weights as others of its kind."""
    torch.manual_seed(0)
    return build()


def _first_turns(run: TrainerRun) -> Gradients:
    """Take the first turns; returns the gradients that the optimizer is given in the last."""
    gradients: Gradients = []

    def keep(*_: object) -> None:
        gradients[:] = [None if p.grad is None else p.grad.clone() for p in run.model.parameters()]

    for _ in range(FIRST - 1):
        run.turns.next()
    handle = register_optimizer_step_pre_hook(keep)
    try:
        run.turns.next()
    finally:
        handle.remove()
    return gradients


def _error(build: Callable[[], TrainerRun], gradients: Gradients) -> float | None:
    """The largest relative error of the gradients, against those of a training by whole backward passes."""
    run = _seeded(build)
    with run.turns:
        return largest_difference(gradients, _first_turns(run))
