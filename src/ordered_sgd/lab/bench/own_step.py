"""What an ordered step costs beside a plain one on this machine, for the model and the data of an experiment."""

import itertools
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ordered_sgd.agreement import rounding
from ordered_sgd.engines import ENGINES, Strategy
from ordered_sgd.lab.bench.step_cost import forget_compiled
from ordered_sgd.lab.bench.subjects import SGD, Subjects
from ordered_sgd.lab.bench.timing import interleave, threads_of_torch
from ordered_sgd.lab.bench.workloads import WORKLOADS, Workload
from ordered_sgd.lab.experiments.evaluate import batches
from ordered_sgd.lab.experiments.run import problem_for
from ordered_sgd.lab.experiments.setting import Setting
from ordered_sgd.lab.experiments.spec import ExperimentSpec
from ordered_sgd.lab.experiments.torch_epochs import optimizer_for

ORDERED = "auto"
_FIRST = 3  # calls in which an engine is chosen and compiled
_SHORTEST = 0.05  # seconds of one measurement
_BATCHES = 5
_STILL = 1e-6  # a learning rate that leaves the model as it is


@dataclass(frozen=True)
class StepShare:
    """An ordered step beside a plain one of the same model.

    Parameters
    ----------
    of
        The model and its data, in words.
    s, q
        Batch size, and samples kept.
    share
        Median time of the ordered step, as a share of the plain step's.
    same
        Whether its gradient is, up to rounding, that of the ordered loss over the whole batch.
    ran, why
        The engine that ran, and why it back-propagates through whole batches, if it does.
    compile_seconds
        What its first calls took beyond their usual time.
    """

    of: str
    s: int
    q: int
    share: float
    same: bool
    ran: str
    why: str
    compile_seconds: float

    def told(self) -> str:
        """One line for people."""
        kept = f"q = {_part(self.q, self.s)}"
        if self.ran not in ("rows", "twopass", "rows in part"):
            return (
                f"A step of {self.of} at {kept} takes {self.share:.2f} of SGD's time: it back-propagates through whole "
                f"batches, because {self.why or 'nothing can be left out'}."
            )
        gradient = ", with the same gradient" if self.same else ""
        compiling = (
            f" Compiling the model takes {self.compile_seconds:.1f} s once." if self.compile_seconds > 0.05 else ""
        )
        return f"A step of {self.of} at {kept} takes {self.share:.2f} of SGD's time{gradient}.{compiling}"


def own_step(spec: ExperimentSpec, q: int, of: str, *, rounds: int = 7) -> StepShare:
    """The step of an experiment at this q, with the engine of its spec, measured in turn with plain SGD; seconds."""
    setting = Setting(spec, *problem_for(spec))
    s = setting.source.s
    some = itertools.islice(batches(setting.source, setting.model), _BATCHES)
    drawn = itertools.cycle([(x, y) for x, y, _ in some if len(x) == s])  # the last batch of few may be smaller

    def mean_loss(outputs: Tensor, y: Tensor) -> Tensor:
        return setting.criterion(outputs, y).mean()

    workload = Workload(
        build=lambda: setting.model,
        make_batch=lambda s, generator: next(drawn),
        criterion=setting.criterion,
        mean_loss=F.cross_entropy if spec.loss == "cross-entropy" else mean_loss,
        engines={ORDERED: _engine(spec)},
        optimizer=partial(optimizer_for, spec.but(lr=_STILL)),
    )
    return step_share(workload, of, s=s, q=q, threads=spec.threads, rounds=rounds)


def _engine(spec: ExperimentSpec) -> Strategy:
    """The engine of the spec; auto in place of one that computes something else, or does not run in torch."""
    if spec.engine_used.named or spec.engine_used.compiled:
        return ENGINES[ORDERED]
    name, options = spec.engine_options
    strategy: Any = ENGINES[name]
    return replace(strategy, **options)  # type: ignore[no-any-return]


def lenet_step(q_share: float = 1 / 8, *, s: int = 64, rounds: int = 7) -> StepShare:
    """The step of LeNet on images of 28x28 pixels."""
    return step_share(WORKLOADS["lenet"], "LeNet on 28x28 images", s=s, q=max(1, int(s * q_share)), rounds=rounds)


def step_share(workload: Workload, of: str, *, s: int, q: int, threads: int = 1, rounds: int = 7) -> StepShare:
    """Both steps of a workload, in turn."""
    with threads_of_torch(threads), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what hinders an engine is told by `why`
        forget_compiled()
        subjects = Subjects(workload, s=s, names=(SGD, ORDERED))
        subjects.set_q(q)
        plain, ordered = subjects.calls[SGD], subjects.calls[ORDERED]
        first = _seconds(ordered, _FIRST)
        usual = min(_seconds(ordered, 1) for _ in range(_FIRST))
        inner = max(1, min(200, round(_SHORTEST / max(1e-6, _seconds(plain, 2) / 2))))
        found = interleave({SGD: plain, ORDERED: ordered}, rounds=rounds, warmup=1, inner=inner, settle=1)
        ran, why = subjects.ran(ORDERED)
        error = subjects.error(ORDERED)
    return StepShare(
        of=of,
        s=s,
        q=q,
        share=found[ORDERED].median / found[SGD].median,
        same=error is not None and error < rounding(torch.float32),
        ran=ran,
        why=why,
        compile_seconds=max(0.0, first - _FIRST * usual),
    )


def _seconds(call: Callable[[], object], times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        call()
    return time.perf_counter() - start


def _part(q: int, s: int) -> str:
    """A q in words of s, where it is one of the paper's levels.

    >>> _part(8, 64), _part(10, 64)
    ('s/8', '10 of 64')
    """
    levels = {s // divisor: f"s/{divisor}" for divisor in (16, 8, 4, 2)}
    return levels.get(q, f"{q} of {s}")
