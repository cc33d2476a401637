"""The steps that `osgd bench step` compares, each ready to be called."""

import copy
import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_map

from ordered_sgd.agreement import largest_difference
from ordered_sgd.engines import ENGINES, Memory
from ordered_sgd.engines.memory import MemoryEngine
from ordered_sgd.lab.bench.opponents import call, first_rows, selective_backprop_step, sgd_step, update
from ordered_sgd.lab.bench.workloads import Batch, Workload
from ordered_sgd.lab.experiments.allocator import keep_freed_memory
from ordered_sgd.mean import ordered_mean
from ordered_sgd.rules import Need, Observed
from ordered_sgd.selective import explain_backward, selective_backward
from ordered_sgd.step import OrderedStep, StepRecord

SGD, SELECTIVE, MEMORY, BACKPROP = "sgd", "selective", "memory", "selective-backprop"
ROWS = (SGD, "dense", SELECTIVE, "rows", "twopass", "auto", MEMORY, BACKPROP)
COMPILED_SGD, COMPILED = "compiled-sgd", "selective-compiled"
ON_REQUEST = (COMPILED_SGD, COMPILED)  # inductor takes up to a minute for each model
WHOLE = "whole"  # what ran in a selective step that left no sample out
TRAINING_SET = 60_000  # samples that the engine with a memory takes an epoch to have
CANDIDATES = 3  # times q: what the engine with a memory scores, beside its probes

EXACT = (
    "dense",
    SELECTIVE,
    COMPILED,
    "rows",
    "twopass",
    "auto",
)  # whose gradient is that of the whole batch, or meant to be near it

_BATCHES = 4  # taken in turn, so that no step finds its own input in the cache


class Dial:
    """A rule that says what it is set to: one step goes through all q, as training with an adaptive q does."""

    needs: Need | None = None

    def __init__(self, q: int) -> None:
        self.q = q

    def first_q(self, s: int) -> int:
        """The q it is set to."""
        return min(self.q, s)

    def next_q(self, q: int, s: int, observed: Observed) -> int:
        """The q it is set to."""
        return min(self.q, s)


def plain_loop_step(
    model: nn.Module,
    criterion: Callable[[Any, Tensor], Tensor],
    optimizer: Optimizer,
    x: Any,
    y: Tensor,
    *,
    q: int,
    max_grad_norm: float | None = None,
) -> Tensor:
    """The ordered loss of one update in a loop without `OrderedStep`, before the update."""
    optimizer.zero_grad()
    loss = ordered_mean(criterion(call(model, x), y), q)
    loss.backward()
    update(model, optimizer, max_grad_norm)
    return loss.detach()


class Subjects:
    """A workload's steps by name, each with a copy of one model, and the pieces that the limits are made of.

    Parameters
    ----------
    workload
        What is trained.
    s
        Batch size.
    names
        Which of `ROWS` and `ON_REQUEST`; all of `ROWS` when not given.
    device
        Where models and batches are.

    Examples
    --------
    >>> from ordered_sgd.lab.bench.workloads import WORKLOADS
    >>> subjects = Subjects(WORKLOADS["logistic"], s=8)
    >>> subjects.set_q(4)
    >>> record = subjects.calls["dense"]()
    >>> record.q, record.engine
    (4, 'dense')
    """

    def __init__(self, workload: Workload, *, s: int, names: tuple[str, ...] = ROWS, device: str = "cpu") -> None:
        keep_freed_memory()  # or how long a step takes depends on what was freed before it
        torch.manual_seed(0)
        generator = torch.Generator().manual_seed(0)
        self.workload, self.device = workload, device
        self.s, self.q = s, s
        self.model = workload.build()  # on the CPU, to be copied from
        drawn = [workload.make_batch(s, generator) for _ in range(_BATCHES)]
        self.batches: list[Batch] = tree_map(lambda tensor: tensor.to(device), drawn)
        self.models: dict[str, nn.Module] = {}
        self.steps: dict[str, OrderedStep] = {}
        self._dial = Dial(s)
        self._runs = {name: self._run(name) for name in names}
        self.calls = {name: self._call(name) for name in names}

    def set_q(self, q: int) -> None:
        """Every step keeps q samples from now on."""
        self.q = self._dial.q = q
        if MEMORY in self.steps:
            self._remember()
        for step in self.steps.values():
            if step.q is not None:  # before the first batch the dial is read anyway
                step.end_epoch()

    def warm(self) -> None:
        """Let the engine with a memory see every batch once, and then some candidates by themselves."""
        if MEMORY in self.steps:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # that it scores everything: `ran` tells
                for _ in range(_BATCHES + 2):
                    self.calls[MEMORY]()

    def _remember(self) -> None:
        """A new step with a memory: the number of its candidates is fixed, and goes with q.

        It has seen a whole training set, and so it audits as rarely as in one.
        """
        before = self.steps[MEMORY]
        self.steps[MEMORY] = OrderedStep(
            before.model,
            self.workload.criterion,
            before.optimizer,
            q=self._dial,
            engine=Memory(candidates=min(CANDIDATES * self.q, self.s)),
            max_grad_norm=self.workload.max_grad_norm,
        )
        engine, here = self.steps[MEMORY].engine, _BATCHES * self.s
        assert isinstance(engine, MemoryEngine)
        engine.remembered.reserve(max(TRAINING_SET, here), torch.device(self.device))
        others = torch.arange(here, engine.remembered.samples, device=self.device)
        engine.remembered.take(others, torch.zeros(others.shape, device=self.device))

    def pieces(self) -> dict[str, Callable[[], object]]:
        """What the limits are added up from, at the present q, on a model of their own.

        ``score s``: forward of s samples without a graph; ``forward s``, ``forward q``: with one, dropped at once;
        ``sgd q``: a whole step on a batch of q.
        """
        model = self._copy()
        workload, q = self.workload, self.q
        optimizer, norm = workload.optimizer(model), workload.max_grad_norm
        whole, part = self._cycle(), ((first_rows(x, q), y[:q]) for x, y in self._cycle())

        def forward(batches: Iterator[Batch]) -> Tensor:
            x, y = next(batches)
            return workload.criterion(call(model, x), y)

        def score() -> Tensor:
            with torch.no_grad():
                return forward(whole)

        return {
            "score s": score,
            "forward s": lambda: forward(whole),
            "forward q": lambda: forward(part),
            "sgd q": lambda: sgd_step(model, workload.mean_loss, optimizer, *next(part), max_grad_norm=norm),
        }

    def _cycle(self) -> Iterator[Batch]:
        return itertools.cycle(self.batches)

    def _copy(self) -> nn.Module:
        return copy.deepcopy(self.model).to(self.device)

    def _call(self, name: str) -> Callable[[], Any]:
        """The step on one batch after the other."""
        run, batches, numbers = self._runs[name], self._cycle(), itertools.cycle(range(_BATCHES))
        return lambda: run(*next(batches), next(numbers))

    def _run(self, name: str) -> Callable[[Any, Tensor, int], Any]:
        """The step on a given batch and its number."""
        model, workload = self._copy(), self.workload
        self.models[name] = model
        optimizer, norm = workload.optimizer(model), workload.max_grad_norm
        if name == COMPILED_SGD:
            model.compile()
        if name in (SGD, COMPILED_SGD):
            return lambda x, y, _: sgd_step(model, workload.mean_loss, optimizer, x, y, max_grad_norm=norm)
        if name in (SELECTIVE, COMPILED):
            selective_backward(model, compile=name == COMPILED)
            return lambda x, y, _: plain_loop_step(
                model, workload.criterion, optimizer, x, y, q=self.q, max_grad_norm=norm
            )
        if name == BACKPROP:
            draws = torch.Generator().manual_seed(0)
            return lambda x, y, _: selective_backprop_step(
                model, workload.criterion, optimizer, x, y, keep=0.5, generator=draws, max_grad_norm=norm
            )
        engine = workload.engines.get(name, ENGINES[name])
        step = OrderedStep(model, workload.criterion, optimizer, q=self._dial, engine=engine, max_grad_norm=norm)
        self.steps[name] = step
        if name == MEMORY:
            return self._step_with_memory
        return lambda x, y, _: step(x, y)

    def _step_with_memory(self, x: Any, y: Tensor, number: int) -> StepRecord:
        index = torch.arange(number * self.s, (number + 1) * self.s)
        return self.steps[MEMORY](x, y, index=index)

    def error(self, name: str) -> float | None:
        """Largest error of a step's gradient relative to that of the one-liner by autograd, from the same weights.

        None for a step that computes another gradient by design, and for gradients that are not finite.

        >>> from ordered_sgd.lab.bench.workloads import WORKLOADS
        >>> subjects = Subjects(WORKLOADS["logistic"], s=8, names=("sgd", "dense"))
        >>> subjects.error("sgd"), subjects.error("dense") < 1e-5
        (None, True)
        """
        if name not in EXACT:
            return None
        (x, y), reference, model = self.batches[0], self._copy(), self.models[name]
        model.load_state_dict(reference.state_dict())
        torch.manual_seed(0)  # the same dropout
        ordered_mean(self.workload.criterion(call(reference, x), y), self.q).backward()
        if self.workload.max_grad_norm is not None:
            nn.utils.clip_grad_norm_(reference.parameters(), self.workload.max_grad_norm)
        torch.manual_seed(0)
        self._runs[name](x, y, 0)
        return largest_difference([p.grad for p in model.parameters()], [p.grad for p in reference.parameters()])

    def ran(self, name: str) -> tuple[str, str]:
        """The engine that runs in a step of this name, and why, where it is another than was asked for."""
        if name in (SELECTIVE, COMPILED):
            return self._ran_selectively(name)
        if name not in self.steps:
            return name, ""
        record: StepRecord = self.calls[name]()
        if name == MEMORY and record.scored is None:
            record = self.calls[name]()  # that may have been an audit
        return record.engine, self.steps[name].why or ""

    def _ran_selectively(self, name: str) -> tuple[str, str]:
        """Whether a step of the selective model leaves samples out, and why not."""
        report = explain_backward(self.models[name])
        skipping, reasons = report.skipping, dict(report.reasons)
        self.calls[name]()
        if report.plain is not None:
            return "plain", report.plain
        if report.skipping > skipping:
            return (SELECTIVE, "; ".join(report.unlowered)) if report.unlowered else (name, "")
        why = [reason for reason, count in report.reasons.items() if count > reasons.get(reason, 0)]
        return WHOLE, "; ".join(why) or "every sample has a gradient"
