"""How long a step takes at each q with each engine, on the candidate's own batches."""

import itertools
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ordered_sgd.engines import Rows, Strategy, TwoPass
from ordered_sgd.errors import first_line
from ordered_sgd.lab.advise.candidate import Candidate
from ordered_sgd.lab.bench.opponents import call
from ordered_sgd.lab.bench.probe import saved_bytes
from ordered_sgd.lab.bench.subjects import MEMORY, SELECTIVE, SGD, Subjects
from ordered_sgd.lab.bench.timing import Timing, measurements, summary
from ordered_sgd.lab.bench.workloads import Workload
from ordered_sgd.rewind import device_of

DENSE, ROWS, TWOPASS = "dense", "rows", "twopass"
EXACT_UP_TO = 1e-3  # largest relative difference of a gradient, from rounding
DIVISORS = (1, 2, 4, 8, 16)
LARGE_HEAD = 1000  # classes from which the share of the output layer is worth a line

_COMPILING, _WARMUP, _ROUNDS = 3, 2, (3, 9)
_SHORTEST = 0.02  # seconds of one measurement: shorter steps are repeated


@dataclass(frozen=True)
class StepTime:
    """A step at one q with one engine.

    Parameters
    ----------
    engine, q
        What was asked for; ``"sgd"`` is a plain step.
    ran, why
        What ran, and why it was something else; `why` also says why a step failed.
    seconds, low, high
        Median and quartiles; None if the step failed.
    ratio
        Of its seconds to those of plain SGD in the same round, the median.
    error
        Largest relative difference of its gradient from that of the whole backward pass; None for other algorithms.
    exact
        Whether this is the gradient of the q largest losses of the whole batch.
    """

    engine: str
    q: int
    ran: str
    why: str
    seconds: float | None
    low: float | None
    high: float | None
    ratio: float | None
    error: float | None
    exact: bool


@dataclass(frozen=True)
class StepCosts:
    """What steps cost: their times, the first call's compile time, and the memory that autograd keeps.

    Parameters
    ----------
    steps
        One for each engine and q.
    compile_seconds
        What the first steps with `selective_backward` took beyond later ones.
    saved_bytes
        By engine: what autograd saves in one step for the backward pass, at a quarter of the batch.
    head_share
        Share of a plain step that the output layer and cross-entropy take; None where there are few classes.
    """

    steps: tuple[StepTime, ...]
    compile_seconds: float
    saved_bytes: dict[str, int]
    head_share: float | None

    def at(self, engine: str, q: int) -> StepTime:
        """The step of this engine at this q."""
        return next(step for step in self.steps if (step.engine, step.q) == (engine, q))

    def leaves_out(self, engine: str) -> bool:
        """Whether the engine left samples out at some q; one that runs in full saves nothing, whatever was measured."""
        return engine != DENSE and any(step.ran == engine for step in self.steps if step.engine == engine)


def levels(s: int) -> tuple[int, ...]:
    """The paper's q for a batch size, descending.

    >>> levels(64), levels(4)
    ((64, 32, 16, 8, 4), (4, 2, 1))
    """
    return tuple(dict.fromkeys(max(1, s // divisor) for divisor in DIVISORS))


def quarter_of(s: int) -> int:
    """The q of a quarter of the batch, or the smallest there is.

    >>> quarter_of(64), quarter_of(2)
    (16, 1)
    """
    return levels(s)[: DIVISORS.index(4) + 1][-1]


def measure_steps(candidate: Candidate, *, seconds: float, tick: Callable[[float], object]) -> StepCosts:
    """Steps of every engine at every q, measured in turn for about so many seconds; `tick` is told the share done."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what a step warns of is in `why`
        return _measure(candidate, seconds, tick)


def _measure(candidate: Candidate, seconds: float, tick: Callable[[float], object]) -> StepCosts:
    names: tuple[str, ...] = (SGD, DENSE, SELECTIVE, TWOPASS, *((ROWS,) if candidate.coupled else (MEMORY,)))
    subjects = Subjects(_workload(candidate), s=candidate.s, names=names, device=str(device_of(candidate.model)))
    qs = levels(candidate.s)
    subjects.set_q(qs[1])
    failed, compile_seconds = _first_calls(subjects, names)
    names = tuple(name for name in names if name not in failed)
    started, _ = time.perf_counter(), subjects.calls[SGD]()
    plain = time.perf_counter() - started
    inner = max(1, min(100, round(_SHORTEST / plain)))
    spent = 1.3 * plain * inner * len(names) * len(qs)  # seconds of a round over all q
    rounds = max(_ROUNDS[0], min(_ROUNDS[1], round(seconds / max(spent, 1e-9)) - _WARMUP))
    steps = [_failed(name, q, why) for name, why in failed.items() for q in qs]
    for number, q in enumerate(qs):
        subjects.set_q(q)
        subjects.warm()
        times = measurements({name: subjects.calls[name] for name in names}, rounds=rounds, inner=inner, warmup=_WARMUP)
        steps += [_step(subjects, candidate, name, q, times) for name in names]
        tick((number + 1) / len(qs))
    median = next(step.seconds for step in steps if step.engine == SGD) or plain
    subjects.set_q(quarter_of(candidate.s))
    saved = {name: saved_bytes(subjects.calls[name], subjects.models[name]) for name in (SGD, TWOPASS) if name in names}
    return StepCosts(tuple(steps), compile_seconds, saved, _head_share(candidate, median))


def _workload(candidate: Candidate) -> Workload:
    """The candidate as a workload of the benchmarks; its weights stay as they are."""

    def optimizer(model: nn.Module) -> torch.optim.Optimizer:
        made = candidate.make_optimizer(model)
        for group in made.param_groups:
            group["lr"] = 0.0 * group["lr"]
        return made

    turn = itertools.cycle(candidate.held)
    approximate: dict[str, Strategy] = {}
    if candidate.coupled:
        approximate = {ROWS: Rows(batchnorm="full-batch"), TWOPASS: TwoPass(batchnorm="subset")}
    return Workload(
        build=candidate.copy,
        make_batch=lambda s, generator: next(turn),
        criterion=candidate.criterion,
        mean_loss=lambda outputs, y: candidate.criterion(outputs, y).mean(),
        engines=approximate,
        optimizer=optimizer,
    )


def _first_calls(subjects: Subjects, names: Sequence[str]) -> tuple[dict[str, str], float]:
    """Which steps fail, with the reason, and the seconds in which `selective_backward` compiled."""
    failed, compiling = {}, 0.0
    for name in names:
        try:
            taken = []
            for _ in range(2 * _COMPILING):
                start = time.perf_counter()
                subjects.calls[name]()
                taken.append(time.perf_counter() - start)
        except Exception as error:  # whatever a model raises in an engine: the others are measured
            if name == SGD:
                raise
            failed[name] = first_line(error, 200)
        else:
            if name == SELECTIVE:
                compiling = max(0.0, sum(taken[:_COMPILING]) - sum(taken[_COMPILING:]))
    return failed, compiling


def _step(subjects: Subjects, candidate: Candidate, name: str, q: int, times: dict[str, list[float]]) -> StepTime:
    timing: Timing = summary(times[name])
    ratio = summary([ours / plain for ours, plain in zip(times[name], times[SGD], strict=True)]).median
    ran, why = subjects.ran(name)
    error = subjects.error(name)
    by_name = name == MEMORY or (candidate.coupled and name in (ROWS, TWOPASS))
    exact = not by_name and (name == SGD or (error is not None and error <= EXACT_UP_TO))
    return StepTime(name, q, ran, why, timing.median, timing.low, timing.high, ratio, error, exact)


def _failed(name: str, q: int, why: str) -> StepTime:
    return StepTime(name, q, "", why, None, None, None, None, None, exact=False)


def _head_share(candidate: Candidate, plain: float) -> float | None:
    """Share of a plain step that the output layer and the loss take, if the outputs are those of a large layer."""
    model, (x, y) = candidate.copy(), candidate.held[0]
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    given: dict[nn.Module, Tensor] = {}
    hooks = [module.register_forward_hook(lambda m, args, out: given.update({m: args[0]})) for module in linear]
    with torch.no_grad():
        outputs: Any = call(model, x)
    for hook in hooks:
        hook.remove()
    heads = [m for m in given if isinstance(outputs, Tensor) and m.out_features == outputs.shape[-1] >= LARGE_HEAD]
    if not heads:
        return None
    head = heads[-1]
    hidden = given[head].detach().requires_grad_()
    taken = []
    for _ in range(4):
        start = time.perf_counter()
        candidate.criterion(head(hidden), y).mean().backward()
        taken.append(time.perf_counter() - start)
    return min(1.0, sorted(taken[1:])[1] / plain)
