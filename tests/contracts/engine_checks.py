"""An engine beside the one-liner of plain autograd, on the same batches and the same random numbers."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor, nn

from ordered_sgd import OrderedStep, StepRecord, select_top_q
from tests.contracts.engine_cases_common import CE, Batch, Case, floats, stack

# (s, q) in a row on one step: two values of q, smaller batches, a single row, all of them.
VECTOR = floats(6)
SIZES = ((12, 4), (12, 7), (9, 2), (12, 1), (12, 12), (7, 3))


@dataclass(frozen=True)
class Listed:
    """The rule that goes through a list of q."""

    values: Sequence[int]
    needs: None = None

    def first_q(self, s: int) -> int:
        return self.values[0]

    def next_q(self, q: int, s: int, observed: Any) -> int:
        return self.values[observed.epoch % len(self.values)]


class Plain(NamedTuple):
    """The one-liner's losses, rows and state of the generator."""

    losses: Tensor
    rows: Tensor
    random_state: Tensor


class Outcome(NamedTuple):
    """One step of an engine, and how far its gradient is from the one-liner's."""

    s: int
    q: int
    record: StepRecord
    why: str | None
    error: float


def call(model: nn.Module, x: Any) -> Any:
    if isinstance(x, Mapping):
        return model(**x)
    return model(*x) if isinstance(x, tuple) else model(x)


def one_liner(model: nn.Module, criterion: Any, x: Any, y: Any, q: int, kept: Tensor | None = None) -> Plain:
    """Leave the gradient of the mean of the q largest losses (or of those kept) in the model, by autograd alone."""
    for p in model.parameters():
        p.grad = None
    losses = criterion(call(model, x), y)
    losses = losses.squeeze(1) if losses.dim() == 2 else losses
    rows = select_top_q(losses, q)
    losses[rows if kept is None else kept].mean().backward()
    return Plain(losses.detach(), rows, torch.get_rng_state())


def gradients(model: nn.Module) -> dict[str, Tensor | None]:
    return {name: p.grad for name, p in model.named_parameters()}


def gradient_error(got: Mapping[str, Tensor | None], wanted: Mapping[str, Tensor | None]) -> float:
    """Largest difference of a parameter's gradient, relative to its largest entry; tiny gradients count less.

    Infinite where only one of the two is None: an optimizer treats None and zero differently.
    """
    if any((got[name] is None) != (wanted[name] is None) for name in wanted):
        return float("inf")
    there = {name: grad for name, grad in wanted.items() if grad is not None}
    floor = 1e-3 * max((grad.abs().max().item() for grad in there.values()), default=0.0)
    errors = [
        (got[name].double() - grad.double()).abs().max().item() / (grad.abs().max().item() + floor + 1e-30)
        for name, grad in there.items()
    ]
    return max((float("inf") if e != e else e for e in errors), default=0.0)  # NaN is never right


def leaves(value: Any) -> list[Tensor]:
    """The tensors of an input."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        return leaves(list(value.values()))
    return [leaf for part in value for leaf in leaves(part)] if isinstance(value, list | tuple) else []


def take(value: Any, rows: Tensor, s: int) -> Any:
    """The chosen samples of an input."""
    if isinstance(value, Tensor):
        return value.detach()[rows] if value.dim() > 0 and value.shape[0] == s else value
    if isinstance(value, Mapping):
        return {name: take(part, rows, s) for name, part in value.items()}
    return tuple(take(part, rows, s) for part in value) if isinstance(value, list | tuple) else value


def frozen_sgd(model: nn.Module) -> torch.optim.SGD:
    """An optimizer that moves nothing: the gradients stay to be compared."""
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.0)


def as_auto_lays_out(model: nn.Module, x: Any) -> Any:
    """Images channels-last for a convolutional model: dropout masks are drawn in the order of the memory."""
    if isinstance(x, Tensor) and x.dim() == 4 and any(isinstance(module, nn.Conv2d) for module in model.modules()):
        return x.contiguous(memory_format=torch.channels_last)
    return x


def compare(case: Case, engine: str, sizes: Sequence[tuple[int, int]] = SIZES, **options: Any) -> Iterator[Outcome]:
    """Each step of the engine beside plain autograd, on twins of the case's model; what must be equal is asserted."""
    torch.manual_seed(1)
    model = case.build()
    torch.manual_seed(1)
    twin = case.build()
    optimizer, rule = frozen_sgd(model), Listed([q for _, q in sizes])
    step = OrderedStep(model, case.criterion, optimizer, q=rule, engine=engine, **options)
    for number, (s, q) in enumerate(sizes):
        (x, y), (same_x, same_y) = (case.batch(s, Generator().manual_seed(number)) for _ in range(2))
        if engine == "auto":
            same_x = as_auto_lays_out(twin, same_x)
        torch.manual_seed(100 + number)
        with case.context():
            plain = one_liner(twin, case.criterion, same_x, same_y, q)
        torch.manual_seed(100 + number)
        with case.context():
            record = step(x, y)
        loose = {"rtol": case.tolerance, "atol": case.tolerance}
        torch.testing.assert_close(record.losses, plain.losses, **loose)
        assert record.rows.tolist() == plain.rows.tolist()
        assert torch.equal(torch.get_rng_state(), plain.random_state), "the generator stands elsewhere"
        for (name, ours), theirs in zip(model.named_buffers(), twin.buffers(), strict=True):
            torch.testing.assert_close(ours, theirs, **loose, msg=lambda text, name=name: f"buffer {name}: {text}")
        got, wanted = gradients(model), gradients(twin)
        for place, (ours, theirs) in enumerate(zip(leaves(x), leaves(same_x), strict=True)):
            if theirs.requires_grad:
                got[f"input {place}"], wanted[f"input {place}"] = ours.grad, theirs.grad
        yield Outcome(s, q, record, getattr(step, "why", None), gradient_error(got, wanted))
        step.end_epoch()


def resolution(case: Case, s: int, q: int, number: int) -> float:
    """How far the one-liner's own gradient moves when its inputs move by one rounding error: it means no more."""
    x, y = case.batch(s, Generator().manual_seed(number))
    noise = torch.rand(x.shape, generator=Generator().manual_seed(7)) - 0.5
    found = []
    for inputs in (x, x * (1 + 2 * torch.finfo(x.dtype).eps * noise)):
        torch.manual_seed(1)
        model = case.build()
        torch.manual_seed(100 + number)
        one_liner(model, case.criterion, inputs, y, q)
        found.append(gradients(model))
    return gradient_error(found[1], found[0])


def network(dropout: float = 0.0) -> nn.Module:
    """A classifier of six features into four classes."""
    return stack(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(dropout), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))


class Twins:
    """A model under an engine and its twin under plain autograd, to be changed alike in between."""

    def __init__(self, build: Callable[[], nn.Module], engine: Any, **options: Any) -> None:
        torch.manual_seed(1)
        self.model = build()
        torch.manual_seed(1)
        self.twin = build()
        self.step = OrderedStep(self.model, CE, frozen_sgd(self.model), q=4, engine=engine, **options)
        self.number = 0

    def both(self, change: Callable[[nn.Module], Any]) -> None:
        change(self.model)
        change(self.twin)

    def error(self, batch: Batch = VECTOR, s: int = 12) -> float:
        """One step of each: how far apart their gradients are."""
        self.number += 1
        (x, y), (same_x, same_y) = (batch(s, Generator().manual_seed(self.number)) for _ in range(2))
        torch.manual_seed(self.number)
        plain = one_liner(self.twin, CE, same_x, same_y, 4)
        torch.manual_seed(self.number)
        self.record = self.step(x, y)
        assert self.record.rows.tolist() == plain.rows.tolist()
        return gradient_error(gradients(self.model), gradients(self.twin))


@contextmanager
def quiet() -> Iterator[None]:
    """Warnings that an engine may give inside: that it runs dense, and why."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield
