"""Samples that influence each other inside a model are found, however weakly they do and whatever hides it."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ordered_sgd import OrderedStep, explain_backward, ordered_mean, selective_backward
from ordered_sgd.engines import ENGINES
from ordered_sgd.selective import couplings, generic

S, Q, WIDTH = 12, 4, 8
CRITERION = nn.CrossEntropyLoss(reduction="none")
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*must not influence each other.*"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

# Functions of the hidden values, shape (s, WIDTH), through which samples influence each other.
KINDS: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda h: h.softmax(0),
    "minus the mean": lambda h: h - h.mean(0),
    "attention": lambda h: (h @ h.t()).softmax(1) @ h,
    "fused attention": lambda h: F.scaled_dot_product_attention(h[None], h[None], h[None])[0],
    "roll": lambda h: h.roll(1, 0),
    "reversed": lambda h: h.flip(0),
    "halves": lambda h: torch.cat([h[h.shape[0] // 2 :], h[: h.shape[0] // 2]]),
    "times the sum": lambda h: h * h.sum(0),
    "distances": lambda h: h * torch.cdist(h.float(), h.float()).mean(1, keepdim=True).to(h),
    "cumulative sum": lambda h: h.cumsum(0),
    "sorted": lambda h: h.sort(0).values,
    "over the largest": lambda h: h / (1 + h.abs().amax(0)),
    "instance norm over the batch": lambda h: F.instance_norm(h.t()[None])[0].t(),
    "convolution over the batch": lambda h: F.avg_pool1d(h.t()[None], 3, 1, 1)[0].t(),
}
DETACHED = "a detached mean"  # no gradient reaches other samples, but a second pass over some has another mean
CLEAN: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax within a sample": lambda h: h.softmax(1),
    "layer norm": lambda h: F.layer_norm(h, (WIDTH,)),
    "largest within a sample": lambda h: h / (1 + h.abs().amax(1, keepdim=True)),
    DETACHED: lambda h: h - h.detach().mean(0),
    "sorted within a sample": lambda h: h.sort(1).values * h.cumsum(1),
}
HOWS = ("rows", "selective_backward", "twopass")
STRENGTHS, GATES, PRECISIONS = (1.0, 1e-2, 1e-4), (0.0, 1e-8, 1e-5, 1.0), ("fp32", "bf16", "autocast")


class Branch(nn.Module):
    """A classifier with a gated branch beside its hidden values, as a LayerScale or a ReZero has."""

    def __init__(self, between: Callable[[Tensor], Tensor], strength: float, gate: float) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, WIDTH), nn.Linear(WIDTH, 4)
        self.gate, self.strength, self.between = nn.Parameter(torch.full((WIDTH,), gate)), strength, between

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x).tanh()
        out: Tensor = self.head(h + self.gate * (self.strength * self.between(h)))
        return out


@pytest.fixture(autouse=True)
def _nothing_compiled_before() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def surroundings(precision: str) -> Any:
    return torch.autocast("cpu", dtype=torch.bfloat16) if precision == "autocast" else nullcontext()


def samples_skipped(model: nn.Module, how: str, precision: str = "fp32", **options: Any) -> bool:
    """Whether a backward of a few samples ran: by `selective_backward`, or in a step with the engine of that name."""
    x, y = torch.randn(S, 6), torch.randint(4, (S,))
    if precision == "bf16":
        model, x = model.bfloat16(), x.bfloat16()
    with surroundings(precision):
        if how != "selective_backward":
            optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
            step = OrderedStep(model, CRITERION, optimizer, q=Q, engine=replace(ENGINES[how], **options))
            record = step(x, y)
            assert record.engine == how or step.why
            return record.engine == how
        selective_backward(model)
        ordered_mean(CRITERION(model(x), y), q=Q).backward()
    report = explain_backward(model)
    assert report.skipping or report.reasons, str(report)
    return report.skipping > 0


EVERY = list(product(KINDS, STRENGTHS, GATES, PRECISIONS))
# each kind and each value of the others at least once, the weakest behind the smallest gates
FEW = [
    (kind, STRENGTHS[-1 - i % 2], GATES[i % 3], PRECISIONS[i % 3] if i % 2 else "fp32") for i, kind in enumerate(KINDS)
]


@pytest.mark.parametrize(("kind", "strength", "gate", "precision"), FEW)
def test_a_coupling_is_found(kind: str, strength: float, gate: float, precision: str) -> None:
    how = "rows" if list(KINDS).index(kind) % 2 else "selective_backward"
    assert not samples_skipped(Branch(KINDS[kind], strength, gate), how, precision)
    assert not samples_skipped(Branch(KINDS[kind], strength, gate), "twopass", precision)


@pytest.mark.slow
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize(("kind", "strength", "gate", "precision"), EVERY)
def test_every_coupling_is_found(kind: str, strength: float, gate: float, precision: str, how: str) -> None:
    assert not samples_skipped(Branch(KINDS[kind], strength, gate), how, precision)


@pytest.mark.slow
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize(("kind", "strength", "gate", "precision"), list(product(CLEAN, STRENGTHS, GATES, PRECISIONS)))
def test_no_clean_branch_is_accused(kind: str, strength: float, gate: float, precision: str, how: str) -> None:
    apart = how != "twopass" or kind != DETACHED
    assert samples_skipped(Branch(CLEAN[kind], strength, gate), how, precision) == apart


@pytest.mark.parametrize("kind", CLEAN)
def test_a_clean_branch_is_not_accused(kind: str) -> None:
    assert samples_skipped(Branch(CLEAN[kind], 1e-2, 1e-5), "selective_backward")
    assert samples_skipped(Branch(CLEAN[kind], 1e-2, 1e-5), "twopass") == (kind != DETACHED)


def normalized(between: Callable[[Tensor], Tensor]) -> nn.Module:
    return nn.Sequential(nn.Linear(6, WIDTH), nn.BatchNorm1d(WIDTH), Function(between), nn.Linear(WIDTH, 4))


class Function(nn.Module):
    """A function as a layer."""

    def __init__(self, run: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.run = run

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x)


@pytest.mark.parametrize("kind", ["softmax", "fused attention", "reversed"])
def test_batchnorm_that_is_let_through_hides_no_coupling(kind: str) -> None:
    assert not samples_skipped(normalized(KINDS[kind]), "rows", batchnorm="full-batch")


def test_batchnorm_that_is_let_through_is_not_accused() -> None:
    assert samples_skipped(normalized(torch.relu), "rows", batchnorm="full-batch")
    model = nn.Sequential(nn.Unflatten(1, (2, 3)), nn.BatchNorm1d(2, affine=False, track_running_stats=False))
    model.extend([nn.Flatten(), nn.Linear(6, 4)])
    assert samples_skipped(nn.Sequential(nn.Linear(6, 6), model), "rows", batchnorm="full-batch")


class Complex(nn.Module):
    """A model all of whose parameters are complex."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.body = nn.Parameter(torch.randn(6, WIDTH, dtype=torch.complex64))
        self.head = nn.Parameter(torch.randn(WIDTH, 4, dtype=torch.complex64))
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        h = self.between((x.to(self.body.dtype) @ self.body).abs())
        return (h.to(self.head.dtype) @ self.head).real


@pytest.mark.parametrize("kind", ["softmax", "roll", "softmax within a sample"])
def test_complex_parameters_are_compared_too(kind: str) -> None:
    assert samples_skipped(Complex({**KINDS, **CLEAN}[kind]), "selective_backward") == (kind in CLEAN)


class Side(nn.Module):
    """A coupled branch whose gradients are a millionth of the others."""

    def __init__(self) -> None:
        super().__init__()
        self.main, self.side = nn.Linear(6, 4), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = 1e3 * self.main(x) + 1e-3 * self.side(x).softmax(0)
        return out


def test_large_gradients_beside_it_hide_no_coupling() -> None:
    assert not samples_skipped(Side(), "selective_backward")


def narrow(h: Tensor) -> Tensor:
    """A function whose derivative is not a number except close to the values that come in."""
    return torch.acos(1 - 0.01 * h.sigmoid()) * torch.acosh(1.01 + h.sigmoid())


@pytest.mark.parametrize("kind", ["softmax", "softmax within a sample"])
def test_a_function_that_is_not_defined_everywhere_is_compared_where_it_is(kind: str) -> None:
    between = {**KINDS, **CLEAN}[kind]
    model = nn.Sequential(nn.Linear(6, WIDTH), Function(between), Function(narrow), nn.Linear(WIDTH, 4))
    assert samples_skipped(model, "selective_backward") == (kind in CLEAN)


def test_what_cannot_be_compared_runs_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(couplings, "differences", lambda found, expected: {})
    model = Branch(CLEAN["layer norm"], 1.0, 1.0)
    assert not samples_skipped(model, "selective_backward")
    assert "could not be compared" in str(explain_backward(model))


def test_without_float64_a_coupling_is_found_in_the_dtype_of_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(value: Any) -> Any:
        raise NotImplementedError("no float64 here")

    monkeypatch.setattr(generic, "widened", fails)
    assert not samples_skipped(Branch(KINDS["softmax"], 1e-2, 1e-5), "selective_backward")
    assert samples_skipped(Branch(CLEAN["layer norm"], 1e-2, 1e-5), "selective_backward")
