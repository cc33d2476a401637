"""What a training step costs with each engine, against plain SGD and against what no engine can beat.

Everything in a column, that is for one model, number of threads and q, is measured in turn in one run, so that drift of
the machine hits all alike. The two limits are added up from pieces of the same run:

- A, two passes: forward of s samples without a graph + SGD step of q;
- B, one pass: forward of s samples with a graph + backward of q + update, where the last two are an SGD step of q
  minus a forward of q.

They hold for engines that score every sample. The one with a memory scores 3q candidates and four probes here, of
batches that it has seen; the median is of such a step, and leaves out the one in 31 that is scored whole.
"""

import os
import platform
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch

from ordered_sgd.engines import ENGINES
from ordered_sgd.errors import ArgumentError, TrapWarning, message
from ordered_sgd.lab.bench.probe import Probe, probe_apart
from ordered_sgd.lab.bench.subjects import BACKPROP, COMPILED_SGD, ROWS, SGD, Subjects
from ordered_sgd.lab.bench.timing import Timing, every, finisher, interleave, threads_of_torch
from ordered_sgd.lab.bench.workloads import WORKLOADS
from ordered_sgd.lab.experiments.store import processor

LIMIT_A, LIMIT_B = "limit-a", "limit-b"

# Seconds of one measurement: shorter steps are repeated within it, as in training, and so find their own caches warm.
_SHORTEST = 0.1
_SETTLE = 1


@dataclass(frozen=True)
class StepRow:
    """One cell of the comparison: a step of one kind, for a model, a number of threads and a q.

    Parameters
    ----------
    model, threads, s, q
        What was measured.
    row
        The kind of step: ``sgd``, an engine, ``selective`` (a plain loop after `selective_backward`), ``compiled-sgd``
        (after `torch.nn.Module.compile`), ``selective-compiled`` (``selective_backward(model, compile=True)``),
        ``selective-backprop`` (at q = s/2 only), ``limit-a`` or ``limit-b``.
    ran, why
        The engine that ran, and why it was another than the one asked for; empty where there is nothing to say.
        A selective step that left no sample out ran ``whole``.
    seconds, low, high
        Of one step: median and quartiles; the limits are sums of medians and have no quartiles.
    speedup, speedup_low, speedup_high
        SGD's median over them.
    of_limit_a, of_limit_b
        The limit's seconds over these: 1 is at the limit.
    rounds
        Measurements of which it is the median.
    saved_bytes, peak_bytes, compile_seconds
        See `ordered_sgd.lab.bench.probe.Probe`; None where it was not asked for.
    error
        Of the gradient, against autograd's for the whole batch: see `ordered_sgd.lab.bench.subjects.Subjects.error`.
    """

    model: str
    threads: int
    s: int
    q: int
    row: str
    ran: str
    why: str
    seconds: float
    low: float | None
    high: float | None
    speedup: float
    speedup_low: float | None
    speedup_high: float | None
    of_limit_a: float
    of_limit_b: float
    rounds: int
    saved_bytes: int | None = None
    peak_bytes: int | None = None
    compile_seconds: float | None = None
    error: float | None = None


def default_qs(s: int) -> tuple[int, ...]:
    """The paper's levels: s, s/2, s/4, s/8, s/16.

    >>> default_qs(64), default_qs(4)
    ((64, 32, 16, 8, 4), (4, 2, 1))
    """
    return tuple(dict.fromkeys(max(1, s // d) for d in (1, 2, 4, 8, 16)))


@dataclass(frozen=True)
class BenchPlan:
    """What to measure.

    Parameters
    ----------
    models
        Names from `WORKLOADS`.
    s, qs, threads
        Batch size, samples kept, and numbers of threads.
    rounds, warmup
        Rounds that count, and rounds before them in which engines compile and settle.
    probe
        Whether to find saved bytes, peak memory and compile seconds too, in a process for each.
    rows
        Kinds of step, from `ROWS` and `ON_REQUEST`; ``sgd`` must be one of them, because speed-ups are over it.
    device
        Where models and batches are, as torch names it.
    """

    models: Sequence[str]
    s: int = 64
    qs: Sequence[int] = (64, 32, 16, 8, 4)
    threads: Sequence[int] = (1,)
    rounds: int = 11
    warmup: int = 2
    probe: bool = True
    rows: Sequence[str] = ROWS
    device: str = "cpu"

    @property
    def ticks(self) -> int:
        """How often `measure` ticks: once a round, and once a probe."""
        rounds = len(self.models) * len(self.qs) * len(self.threads) * (self.rounds + self.warmup)
        kinds = {(name, kept_by(name, self.s, q)) for q in self.qs for name in rows_at(self.s, q, self.rows)}
        return rounds + (len(self.models) * len(kinds) if self.probe else 0)


def measure(
    plan: BenchPlan, tick: Callable[[], object] = lambda: None, known: Set[tuple[str, int, int]] = frozenset()
) -> Iterator[list[StepRow]]:
    """The rows of the comparison, a column (one model, number of threads and q) at a time.

    `tick` is called when a round or a probe is over, outside what is timed; columns that are known are left out.

    Examples
    --------
    >>> (column,) = measure(BenchPlan(["logistic"], s=8, qs=[4], rounds=2, probe=False))  # doctest: +SKIP
    >>> next(row.speedup for row in column if row.row == "sgd")  # doctest: +SKIP
    1.0
    """
    probes: dict[tuple[str, str, int], Probe] = {}
    for threads in plan.threads:
        for model in plan.models:
            qs = [q for q in plan.qs if (model, threads, q) not in known]
            if not qs:
                continue
            with threads_of_torch(threads):
                forget_compiled()
                subjects = Subjects(WORKLOADS[model], s=plan.s, names=tuple(plan.rows), device=plan.device)
                for q in qs:
                    found = _probes(plan, probes, model, q, tick) if plan.probe else {}
                    yield _column(plan, model, subjects, q, found, tick)


def check_device(name: str, where: str) -> None:
    """Raise unless torch can train on the device here."""
    try:
        device = torch.device(name)
        module = torch.get_device_module(device)
        there = module.is_available() and (device.index or 0) < module.device_count()
    except (RuntimeError, AttributeError):  # no device of torch, or not one to compute on
        there = False
    if not there:
        remedy = "Install a torch that has it (https://pytorch.org), or leave --device out for the CPU."
        raise ArgumentError(message(where, "--device", "be a device that torch can use here", repr(name), remedy))


def machine(device: str = "cpu") -> dict[str, Any]:
    """What figures of speed depend on: the processor, its threads and the versions, and the accelerator if it is one.

    >>> "device" in machine()
    False
    """
    accelerator = {}
    if torch.device(device).type != "cpu":
        name = getattr(torch.get_device_module(device), "get_device_name", lambda _: device)(device)
        accelerator = {"device": name, "device_type": torch.device(device).type, "cuda": torch.version.cuda}
    return accelerator | {
        "processor": processor(),
        "cores": os.cpu_count(),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "engines": list(ENGINES),
    }


def _column(
    plan: BenchPlan, model: str, subjects: Subjects, q: int, probes: Mapping[str, Probe], tick: Callable[[], object]
) -> list[StepRow]:
    """Every row for one q, measured in turn."""
    names, finish = rows_at(plan.s, q, plan.rows), finisher(plan.device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrapWarning)  # a small q from the first step on is what is measured
        subjects.set_q(q)
        subjects.warm()
        inner = _repeats(subjects.calls[SGD], finish)
        ticks = every(inner + _SETTLE, tick)
        calls = {name: subjects.calls[name] for name in names} | subjects.pieces() | {"tick": ticks}
        seconds = interleave(calls, rounds=plan.rounds, warmup=plan.warmup, inner=inner, settle=_SETTLE, finish=finish)
        ran = {name: subjects.ran(name) for name in names}
        errors = {name: subjects.error(name) for name in names}
    limits = limit_seconds({name: timing.median for name, timing in seconds.items()})

    def row(name: str, timing: Timing, spread: bool, ran: tuple[str, str]) -> StepRow:
        sgd, costs = seconds[SGD].median, probes.get(name)
        return StepRow(
            model=model,
            threads=torch.get_num_threads(),
            s=plan.s,
            q=q,
            row=name,
            ran=ran[0],
            why=ran[1],
            seconds=timing.median,
            low=timing.low if spread else None,
            high=timing.high if spread else None,
            speedup=sgd / timing.median,
            speedup_low=sgd / timing.high if spread else None,
            speedup_high=sgd / timing.low if spread else None,
            of_limit_a=limits[LIMIT_A] / timing.median,
            of_limit_b=limits[LIMIT_B] / timing.median,
            rounds=plan.rounds,
            saved_bytes=None if costs is None else costs.saved_bytes,
            peak_bytes=None if costs is None else costs.peak_bytes,
            compile_seconds=None if costs is None else costs.compile_seconds,
            error=errors.get(name),
        )

    measured = [row(name, seconds[name], True, ran[name]) for name in names]
    return measured + [row(name, Timing(sum_, sum_, sum_), False, ("", "")) for name, sum_ in limits.items()]


def rows_at(s: int, q: int, rows: Sequence[str] = ROWS) -> list[str]:
    """The steps that stand in the column of q: Selective Backprop keeps half, and stands there only.

    >>> rows_at(64, 16)
    ['sgd', 'dense', 'selective', 'rows', 'twopass', 'auto', 'memory']
    """
    return [name for name in rows if name != BACKPROP or q == s // 2]


def kept_by(name: str, s: int, q: int) -> int:
    """How many samples a step of this name keeps in the column of q."""
    return s if name in (SGD, COMPILED_SGD) else q


def limit_seconds(median: dict[str, float]) -> dict[str, float]:
    """The two limits, from the seconds of their pieces.

    >>> limit_seconds({"score s": 2.0, "forward s": 3.0, "forward q": 1.0, "sgd q": 4.0})
    {'limit-a': 6.0, 'limit-b': 6.0}
    """
    one_pass = median["forward s"] + median["sgd q"] - median["forward q"]
    return {LIMIT_A: median["score s"] + median["sgd q"], LIMIT_B: one_pass}


def _probes(
    plan: BenchPlan, known: dict[tuple[str, str, int], Probe], model: str, q: int, tick: Callable[[], object]
) -> dict[str, Probe]:
    """The probes of a column; each is made once, with the first number of threads, and SGD's once for all q."""
    found = {}
    for name in rows_at(plan.s, q, plan.rows):
        key = (model, name, kept_by(name, plan.s, q))
        if key not in known:
            known[key] = probe_apart(model, name, s=plan.s, q=key[2], threads=plan.threads[0], device=plan.device)
            tick()
        found[name] = known[key]
    return found


def _repeats(call: Callable[[], object], finish: Callable[[], object]) -> int:
    """Calls per measurement, from the second of two."""
    call()
    finish()
    start = time.perf_counter()
    call()
    finish()
    return max(1, min(500, round(_SHORTEST / (time.perf_counter() - start))))


def forget_compiled() -> None:
    """Drop graphs of other models: torch keeps a limited number of them."""
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
