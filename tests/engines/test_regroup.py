"""Kept samples of micro-batches, regrouped: beside the slow twin, which runs whole micro-batches again."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ordered_sgd import OrderedStep, selective_backward
from ordered_sgd.engines.accumulate import MicroBatches, PartsScored
from ordered_sgd.engines.parallel import OneProcess
from ordered_sgd.engines.phases import Kept, Losses
from ordered_sgd.rewind import Buffers
from tests.contracts.engine_cases_common import Lambda, Model, stack
from tests.contracts.engine_checks import gradient_error, gradients, quiet
from tests.step_parts import CE

Parts = list[tuple[Any, ...]]
SIZES = (5, 4, 1, 6, 5)


def mlp(*extra: nn.Module) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 16), *extra, nn.Tanh(), nn.Linear(16, 4))


def vectors(dtype: torch.dtype = torch.float32, sizes: tuple[int, ...] = SIZES) -> Parts:
    return [(torch.randn(s, 6, dtype=dtype), torch.randint(0, 4, (s,))) for s in sizes]


def steps_of(model: nn.Module, parts: Parts, criterion: Any = CE, **options: Any) -> tuple[Any, Any]:
    step = OrderedStep(model, criterion, torch.optim.SGD(model.parameters(), lr=0.0), **options)
    return step, step(parts)


def whole(model: nn.Module, parts: Parts, **options: Any) -> dict[str, Tensor | None]:
    """The gradient of the slow twin, from the state of the generator that a step starts with."""
    state = torch.get_rng_state()
    step = OrderedStep(model, CE, torch.optim.SGD(model.parameters(), lr=0.0), **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PartsScored, "backward", PartsScored.whole)
        assert step(parts).engine == "micro-batches"
    torch.set_rng_state(state)
    return {name: None if g is None else g.clone() for name, g in gradients(model).items()}


def agrees(model: nn.Module, parts: Parts, tolerance: float = 1e-6, **options: Any) -> OrderedStep:
    """Two steps that regroup, each with the gradient of the slow twin."""
    step = OrderedStep(model, CE, torch.optim.SGD(model.parameters(), lr=0.0), **options)
    for _ in range(2):
        expected = whole(model, parts, **options)
        record = step(parts)
        assert (record.engine, step.why) == ("micro-batches, regrouped", None)
        assert gradient_error(gradients(model), expected) <= tolerance
    return step


@pytest.mark.parametrize("q", [1, 2, 9, 0.75])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_the_gradient_is_that_of_whole_micro_batches(q: float, dtype: torch.dtype, tolerance: float) -> None:
    agrees(mlp().to(dtype), vectors(dtype), tolerance, q=q)


class Texts(nn.Module):
    """A classifier of token sequences of any length, given as a dict."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding, self.dropout = nn.Embedding(11, 8), nn.Dropout(dropout)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout, batch_first=True)
        self.head = nn.Linear(8, 4)

    def forward(self, ids: Tensor, mask: Tensor, scale: float = 1.0) -> Tensor:
        hidden = self.layer(self.dropout(self.embedding(ids)), src_key_padding_mask=mask == 0)
        out: Tensor = self.head((scale * hidden * mask[..., None]).sum(1))
        return out


def texts(lengths: tuple[int, ...]) -> Parts:
    return [
        ({"ids": torch.randint(0, 11, (4, n)), "mask": (torch.arange(n) < torch.randint(2, n + 1, (4, 1))).long(),
          "scale": 0.5}, torch.randint(0, 4, (4,)), torch.rand(4))
        for n in lengths
    ]  # fmt: skip


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_ragged_texts_are_grouped_by_length_and_keep_their_weights(dropout: float) -> None:
    torch.manual_seed(1)
    agrees(Texts(dropout), texts((5, 7, 5, 5, 7, 3)), q=9)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(6, 8, num_layers=2, dropout=0.4), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.lstm(x.view(-1, 3, 2).transpose(0, 1).repeat(1, 1, 3))[0].mean(0))
        return out


class OwnNoise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(0)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn(x.shape, generator=self.generator)


DRAWING: dict[str, Callable[[], nn.Module]] = {
    "dropout": lambda: mlp(nn.Dropout(0.4)),
    "dropout of two sizes": lambda: mlp(nn.Dropout(0.4), nn.Linear(16, 5), nn.Dropout(0.4), nn.Linear(5, 16)),
    "noise": lambda: mlp(Lambda(lambda h: h + 0.1 * torch.randn_like(h) + 0.1 * torch.rand(h.shape))),
    "a mask per sample": lambda: mlp(Lambda(lambda h: h * torch.empty(len(h), 1).bernoulli_(0.7))),
    "noise of a generator of its own": lambda: mlp(OwnNoise()),
    "recurrent, batch second": Recurrent,
    "positions times samples": lambda: mlp(
        Lambda(lambda h: F.dropout(h.reshape(-1, 4), 0.4).view(len(h), 16)), nn.Dropout(0.1)
    ),
    "alpha dropout": lambda: mlp(nn.AlphaDropout(0.2)),
    "samples second": lambda: mlp(Lambda(lambda h: F.dropout(h.t(), 0.4).t())),
}


@pytest.mark.parametrize("name", DRAWING)
@pytest.mark.parametrize("q", [5, 10])
def test_random_numbers_are_those_that_the_samples_were_scored_with(name: str, q: int) -> None:
    """Also where as many samples are regrouped as a micro-batch had: sizes alone then do not tell the dimensions."""
    model, parts = DRAWING[name](), vectors(sizes=(5, 5, 5, 5))
    step = OrderedStep(model, CE, torch.optim.SGD(model.parameters(), lr=0.0), q=q)
    for _ in range(3):
        state = torch.get_rng_state()
        record = step(parts)
        after = torch.get_rng_state()
        assert (record.engine, step.why) == ("micro-batches, regrouped", None)
        if "its own" not in name:
            found = {n: g.clone() for n, g in gradients(model).items() if g is not None}
            torch.set_rng_state(state)
            model.zero_grad()
            torch.cat([CE(model(x), y) for x, y in parts])[record.rows].mean().backward()
            assert gradient_error(found, gradients(model)) <= 1e-6
            assert torch.equal(after, torch.get_rng_state())


def checkpointed(model: nn.Module) -> nn.Module:
    return stack(model[0], lambda h: checkpoint(nn.Sequential(*model[1:]), h, use_reentrant=False))


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x


def with_weight_mask() -> nn.Module:
    return Model(lambda m, x: F.linear(x, F.dropout(m.layer.weight, 0.3), m.layer.bias), layer=nn.Linear(6, 4))


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "BatchNorm": (lambda: mlp(nn.BatchNorm1d(16)), "BatchNorm1d in training couples the samples of a micro-batch"),
    "counter": (lambda: mlp(Counting()), "every micro-batch changes 'calls' of a Counting"),
    "spectral norm": (
        lambda: mlp(nn.utils.parametrizations.spectral_norm(nn.Linear(16, 16))),
        "every micro-batch changes '_u' of a _SpectralNorm",
    ),
    "layer drop": (
        lambda: mlp(Lambda(lambda h: h if random.random() < 0.5 else 2 * h)),
        "random numbers come from Python's or NumPy's generator",
    ),
    "noise of NumPy": (
        lambda: mlp(Lambda(lambda h: h + float(np.random.rand()))),  # noqa: NPY002
        "random numbers come from Python's or NumPy's generator",
    ),
    "mask of weights": (with_weight_mask, "random numbers are drawn for a whole micro-batch instead of each sample"),
    "one number": (
        lambda: mlp(Lambda(lambda h: h * torch.rand(()))),
        "random numbers are drawn for a whole micro-batch instead of each sample",
    ),
    "permutation": (
        lambda: mlp(Lambda(lambda h: h[:, torch.randperm(16)])),
        "random numbers come from an operator that cannot be replayed",
    ),
    "dropout in a checkpoint": (
        lambda: checkpointed(mlp(nn.Dropout(0.3))),
        "random numbers are drawn again in the backward pass, as by checkpointing",
    ),
    "draws that depend on the size": (
        lambda: mlp(Lambda(lambda h: F.dropout(h, 0.3) if len(h) % 2 else h * torch.rand(h.shape))),
        "micro-batches draw different random numbers",
    ),
    "one batch size": (
        lambda: mlp(Lambda(lambda h: h.view(-1, 4 * 16).view(-1, 16))),
        "the chosen samples cannot be run by themselves (shape '[-1, 64]' is invalid for input of size 32)",
    ),
    "coupled": (lambda: mlp(Lambda(lambda h: h - h.mean(0))), "samples influence each other in Lambda '1'"),
}


def seed(number: int) -> None:
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number)  # noqa: NPY002


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_regrouped_runs_whole_and_says_why(name: str) -> None:
    build, reason = REFUSED[name]
    sizes = (4, 4, 4) if name == "one batch size" else (4, 5, 6)
    model, parts = build(), vectors(sizes=sizes)
    step = OrderedStep(model, CE, torch.optim.SGD(model.parameters(), lr=0.0), q=6)
    for number in range(2):
        seed(number)
        with quiet():
            record = step(parts)
        assert (record.engine, step.why) == ("micro-batches", reason)
        found = {n: g.clone() for n, g in gradients(model).items() if g is not None}
        if name == "spectral norm":  # it moves in every pass: test_accumulate.py has a twin
            continue
        seed(number)
        model.zero_grad()
        torch.cat([CE(model(x), y) for x, y in parts])[record.rows].mean().backward()
        assert gradient_error(found, gradients(model)) <= 1e-6


def test_a_coupling_is_warned_of_once_and_batchnorm_never() -> None:
    model = mlp(Lambda(lambda h: h - h.mean(0)))
    with pytest.warns(UserWarning, match="must not influence each other for regrouped micro-batches; got samples"):
        step, _ = steps_of(model, vectors(), q=4)
    step(vectors())  # a second warning would be an error
    steps_of(mlp(nn.BatchNorm1d(16)), vectors(sizes=(4, 4)), q=3)


class Later(nn.Module):
    """Moves the samples by the mean of those in the first half of the features, once it is told to."""

    on = False

    def forward(self, x: Tensor) -> Tensor:
        return x + x.mean(0) * (x[:, :1] > 0) if self.on else x


def test_a_coupling_that_comes_late_leaves_no_part_of_a_wrong_gradient() -> None:
    """The first regrouped micro-batch shows nothing of it and is back-propagated; then its gradient is taken back."""
    late = Later()
    model = nn.Sequential(late, mlp())
    parts = vectors(sizes=(4, 4, 4))
    for x, _ in parts:
        x[:, 0] = -1
    parts[2][0][:, 0] = 1
    step = OrderedStep(model, CE, torch.optim.SGD(model.parameters(), lr=0.0), q=8)
    weights = [torch.tensor([9.0, 8, 7, 1]), torch.tensor([6.0, 5, 4, 1]), torch.tensor([30.0, 20, 1e-3, 1e-3])]
    parts = [(*part, weight) for part, weight in zip(parts, weights, strict=True)]
    assert step(parts).engine == "micro-batches, regrouped"
    late.on = True
    before = [torch.randn_like(p) for p in model.parameters()]
    step.optimizer.zero_grad = lambda: None  # type: ignore[method-assign]
    for p, grad in zip(model.parameters(), before, strict=True):
        p.grad = grad.clone()
    counted: list[Tensor] = []
    hook = next(model.parameters()).register_post_accumulate_grad_hook(counted.append)
    with pytest.warns(UserWarning, match="samples influence each other in the model"):
        record = step(parts)
    hook.remove()
    assert len(counted) == 1 + 3  # one regrouped, then all of them whole
    assert (record.engine, step.why) == ("micro-batches", "samples influence each other in the model or the criterion")
    found = {n: g.clone() for n, g in gradients(model).items() if g is not None}
    for p, grad in zip(model.parameters(), before, strict=True):
        p.grad = grad.clone()
    torch.cat([w * CE(model(x), y) for x, y, w in parts])[record.rows].mean().backward()
    assert gradient_error(found, gradients(model)) <= 1e-6


def test_gradients_that_were_there_stay() -> None:
    model, parts = mlp(), vectors()
    expected = whole(model, parts, q=9)
    step = OrderedStep(model, CE, torch.optim.SGD(model.parameters(), lr=0.0), q=9)
    step.optimizer.zero_grad = lambda: None  # type: ignore[method-assign]
    before = {name: torch.randn_like(p) for name, p in model.named_parameters()}
    for name, p in model.named_parameters():
        p.grad = before[name].clone()
    assert step(parts).engine == "micro-batches, regrouped"
    added = {name: grad + expected[name] for name, grad in before.items()}
    assert gradient_error(gradients(model), added) <= 1e-6


def test_randomness_that_appears_later_runs_whole_once() -> None:
    model, parts = mlp(nn.Dropout(0.4)), vectors()
    model[1].eval()
    step = OrderedStep(model, CE, torch.optim.SGD(model.parameters(), lr=0.0), q=9)
    step(parts)
    model[1].train()
    ran = []
    for _ in range(2):
        expected = whole(model, parts, q=9)
        ran.append((step(parts).engine, step.why))
        assert gradient_error(gradients(model), expected) <= 1e-6
    assert ran == [
        ("micro-batches", "random numbers are drawn for the first time"),
        ("micro-batches, regrouped", None),
    ]


def test_micro_batches_that_are_kept_whole_run_as_they_are_without_a_reason() -> None:
    for sizes, q in (((1, 1, 1, 1), 2), ((1, 2, 3), 6)):
        step, record = steps_of(mlp(), vectors(sizes=sizes), q=q)
        assert (record.engine, step.why) == ("micro-batches", None)


def test_the_reason_is_that_of_the_last_step() -> None:
    model = mlp(nn.BatchNorm1d(16))
    step, _ = steps_of(model, vectors(sizes=(4, 4)), q=4)
    assert step.why is not None
    model.eval()
    assert step(vectors(sizes=(4, 4))).engine == "micro-batches, regrouped"
    assert step.why is None


@pytest.mark.parametrize("name", ["trim", "cap", "skip", "clip", "random"])
def test_options_of_a_step_are_as_with_whole_micro_batches(name: str) -> None:
    options = {
        "trim": {"trim": 2, "trim_epochs": 0}, "cap": {"cap": 1.5}, "skip": {"nonfinite": "skip"},
        "clip": {"max_grad_norm": 0.01}, "random": {"selection": "random"},
    }[name]  # fmt: skip
    model, parts = mlp(), vectors()
    generators = [torch.Generator().manual_seed(3) for _ in range(2)] if name == "random" else [None, None]
    expected = whole(model, parts, q=6, generator=generators[0], **options)
    step, record = steps_of(model, parts, q=6, generator=generators[1], **options)
    assert record.engine == "micro-batches, regrouped"
    assert gradient_error(gradients(model), expected) <= 1e-6
    if name == "skip":
        parts[1][0][2] = torch.nan
        assert step(parts).q == 0


def test_a_scaled_loss_is_scaled_once() -> None:
    model, parts = mlp(), vectors()
    expected = whole(model, parts, q=6)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    _, record = steps_of(model, parts, q=6, scaler=scaler, max_grad_norm=1e9)  # clipping unscales
    assert record.engine == "micro-batches, regrouped"
    assert gradient_error(gradients(model), expected) <= 1e-6


def test_autocast_around_a_step_reaches_both_passes() -> None:
    model, parts = mlp(), vectors()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = whole(model, parts, q=6)
        for _ in range(2):
            step, record = steps_of(model, parts, q=6)
            assert (record.engine, step.why) == ("micro-batches, regrouped", None)
            assert gradient_error(gradients(model), expected) <= 2e-2  # of bfloat16


def test_a_model_whose_backward_is_selective_is_regrouped() -> None:
    model, parts = mlp(nn.Dropout(0.3)), vectors(sizes=(4, 4, 4))
    twin = mlp(nn.Dropout(0.3))
    selective_backward(model)
    step = OrderedStep(model, CE, torch.optim.SGD(model.parameters(), lr=0.0), q=5)
    for number in range(2):
        torch.manual_seed(number)
        expected = whole(twin, parts, q=5)
        assert step(parts).engine == "micro-batches, regrouped"
        assert gradient_error(gradients(model), expected) <= 1e-6
    torch._dynamo.reset()


def test_inputs_that_require_a_gradient_get_it() -> None:
    model, (x, y) = mlp(), (torch.randn(12, 6, requires_grad=True), torch.randint(0, 4, (12,)))
    _, record = steps_of(model, [(x[:4], y[:4]), (x[4:8], y[4:8]), (x[8:], y[8:])], q=6)
    assert record.engine == "micro-batches, regrouped"
    (expected,) = torch.autograd.grad(CE(model(x), y)[record.rows].mean(), x)
    torch.testing.assert_close(x.grad, expected, rtol=1e-5, atol=1e-8)


def test_a_trainer_may_score_batches_of_its_own_kind() -> None:
    """`MicroBatches` alone: batches are pytrees of the caller's, and only `score` reads them."""
    torch.manual_seed(1)
    model = Texts(0.2)

    def score(batch: Any) -> Losses:
        inputs, labels = batch
        return Losses(CE(model(**inputs), labels), None)

    micro = MicroBatches(score, OneProcess(model), Buffers(model))
    batches = [(inputs, labels) for inputs, labels, _ in texts((5, 5, 7, 5))]
    for _ in range(2):
        torch.manual_seed(2)
        first = micro.forward(batches, 16, lambda total: None)
        rows = first.losses.topk(6).indices.sort().values
        model.zero_grad()
        assert first.backward(Kept(rows, 6.0)).engine == "micro-batches, regrouped"
        found = {n: g.clone() for n, g in gradients(model).items() if g is not None}
        torch.manual_seed(2)
        model.zero_grad()
        torch.cat([score(batch).losses for batch in batches])[rows].mean().backward()
        assert gradient_error(found, gradients(model)) <= 1e-6
        assert micro.why is None
