import copy
import math
from typing import Any, ClassVar

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from ordered_sgd import AccuracyRule, OrderedStep
from ordered_sgd import selector as selector_module
from ordered_sgd.errors import NonFiniteLossError
from ordered_sgd.rewind import LEARNT_IN
from tests.step_parts import CE, OPTIMIZERS, batch, network, same, sgd, weights


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_raises_with_step_and_position_and_changes_nothing(value: float) -> None:
    model = network()
    step = OrderedStep(model, CE, sgd(model), q=4, forward=lambda model, x: model(x) + x[:, :1] * 0)
    step(*batch())
    before, state = weights(model), copy.deepcopy(step.state_dict())
    x, y = batch()
    x[17, 0] = value
    with pytest.raises(NonFiniteLossError) as error:
        step(x, y)
    text = str(error.value)
    assert text.startswith("OrderedStep: losses must be finite; got nan at position 17 of 32 in step 1. ")
    assert 'Lower the learning rate, or pass nonfinite="skip".' in text
    assert same(before, weights(model))
    assert step.state_dict()["steps"] == state["steps"]
    step(*batch())


def test_skipping_leaves_model_optimizer_and_rule_alone_and_says_so_in_the_record() -> None:
    model = network()
    optimizer = sgd(model)
    step = OrderedStep(model, CE, optimizer, q=AccuracyRule(thresholds=(0.0,), divisors=(2,)), nonfinite="skip")
    step(*batch())
    before, state = weights(model), copy.deepcopy(optimizer.state_dict())
    x, y = batch()
    x[5] = math.inf
    record = step(x, y)
    assert record.mean_loss.isnan()
    assert record.ordered_loss.isnan()
    assert (record.q, record.count, record.rows.tolist()) == (0, 32, [])
    assert same(before, weights(model))
    old, new = (list(s["state"].values()) for s in (state, optimizer.state_dict()))
    assert all(torch.equal(a["momentum_buffer"], b["momentum_buffer"]) for a, b in zip(old, new, strict=True))
    assert step.end_epoch() == 16


def test_finite_losses_whose_mean_overflows_are_not_called_infinite() -> None:
    model = nn.Linear(1, 1)
    step = OrderedStep(model, lambda outputs, y: outputs.squeeze(1) * 0 + 3e38, sgd(model), q=1)
    assert step(torch.randn(4, 1), torch.zeros(4)).q == 1


@pytest.fixture
def on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The path of an accelerator, on the CPU: nothing is read before the next step."""
    monkeypatch.setattr(selector_module, "_reads_are_free", lambda losses: False)


DEFERRED = {
    **{c.__name__: (c, {}) for c in OPTIMIZERS},
    **{f"fused {c.__name__}": (c, {"fused": True}) for c in OPTIMIZERS},
    "momentum": (torch.optim.SGD, {"momentum": 0.9, "dampening": 0.5}),
    "fused momentum": (torch.optim.SGD, {"momentum": 0.9, "fused": True}),
    "Rprop": (torch.optim.Rprop, {}),
    "NAdam": (torch.optim.NAdam, {}),
    "AMSGrad": (torch.optim.Adam, {"amsgrad": True}),
}


@pytest.mark.parametrize("name", DEFERRED)
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.usefixtures("on_the_device")
def test_on_an_accelerator_a_bad_step_leaves_everything_as_if_it_had_not_been(name: str, first: bool) -> None:
    kind, options = DEFERRED[name]
    model, twin = network(), network()
    twin.load_state_dict(model.state_dict())
    step = OrderedStep(model, CE, kind(model.parameters(), lr=0.01, **options), q=4, nonfinite="skip")
    reference = OrderedStep(twin, CE, kind(twin.parameters(), lr=0.01, **options), q=4)
    good, bad = [batch() for _ in range(4)], batch()
    bad[0][3] = math.nan
    if not first:
        step(*good[0])
        reference(*good[0])
    before = weights(model)
    assert step(*bad).ordered_loss.isnan()
    assert same(before, weights(model))
    for x, y in good[1:]:
        step(x, y)
        reference(x, y)
    assert same(weights(model), weights(twin))


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.usefixtures("on_the_device")
def test_on_an_accelerator_the_error_comes_at_the_latest_with_the_next_step_or_the_end_of_the_epoch(
    fused: bool,
) -> None:
    model = network()
    step = OrderedStep(model, CE, sgd(model, fused=fused), q=4)
    step(*batch())
    x, y = batch()
    x[9] = math.nan
    before = weights(model)

    def two_steps() -> None:
        step(x, y)
        assert fused, "an optimizer that cannot mask its update waits for the verdict"
        assert same(before, weights(model))
        step(*batch())

    with pytest.raises(NonFiniteLossError, match="got nan at position 9 of 32 in step 1"):
        two_steps()
    assert same(before, weights(model))
    step(*batch())
    if fused:
        step(x, y)
        with pytest.raises(NonFiniteLossError, match="nan at position 9"):
            step.end_epoch()
    assert step.end_epoch() == 4


@pytest.mark.parametrize("enabled", [False, True])
@pytest.mark.usefixtures("on_the_device")
def test_on_an_accelerator_a_scaler_enabled_or_not_does_not_let_a_bad_step_through(enabled: bool) -> None:
    model = network()
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, enabled=enabled)
    # an infinite loss whose gradient is finite: only the verdict can stop it
    criterion = lambda outputs, y: CE(outputs, y) + y.float() * math.inf  # noqa: E731
    step = OrderedStep(model, criterion, sgd(model), q=4, scaler=scaler, nonfinite="skip")
    before = weights(model)
    step(torch.randn(8, 6), torch.ones(8).long())
    assert same(before, weights(model))


@pytest.mark.usefixtures("on_the_device")
def test_nothing_is_read_from_the_device_in_a_step_of_a_fused_optimizer() -> None:
    class Reads(TorchDispatchMode):
        found: ClassVar[list[str]] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if "_local_scalar_dense" in str(func) or "nonzero" in str(func):
                self.found.append(str(func))
            return func(*args, **(kwargs or {}))

    model = network()
    step = OrderedStep(model, CE, sgd(model, fused=True), q=AccuracyRule(), engine="dense")
    x, y = batch()
    step(x, y)
    step.updater.raise_late()  # reads the verdict of the first step
    with Reads():
        step(x, y)
    assert Reads.found == []


def test_an_undone_step_is_not_complained_of_after_a_rollback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selector_module, "_reads_are_free", lambda losses: False)
    model = network()
    step = OrderedStep(model, CE, sgd(model, fused=True), q=4)
    step(*batch())
    state = step.state_dict()
    x, y = batch()
    x[0] = math.nan
    step(x, y)
    step.load_state_dict(state)
    step(*batch())


@pytest.mark.parametrize("deferred", [False, True])
@pytest.mark.parametrize("fused", [False, True])
def test_a_bad_batch_leaves_running_statistics_alone(
    deferred: bool, fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if deferred:
        monkeypatch.setattr(selector_module, "_reads_are_free", lambda losses: False)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
    step = OrderedStep(model, CE, sgd(model, fused=fused), q=4, nonfinite="skip")
    step(*batch())
    before = copy.deepcopy(model.state_dict())
    x, y = batch()
    x[5] = math.inf
    step(x, y)
    assert all(torch.equal(a, b) for a, b in zip(before.values(), model.state_dict().values(), strict=True))


@pytest.mark.parametrize("deferred", [False, True])
def test_the_answers_of_a_batch_that_is_skipped_do_not_count(deferred: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if deferred:
        monkeypatch.setattr(selector_module, "_reads_are_free", lambda losses: False)
    model = network()
    step = OrderedStep(model, CE, sgd(model, fused=True), q=AccuracyRule(), nonfinite="skip")
    x, y = batch()
    step(x, y)
    for position in range(4):
        bad = x.clone()
        bad[position] = math.nan
        step(bad, y)
    adaptive = step.policy.adaptive
    assert adaptive._counted is not None
    assert int(adaptive._counted) == 32


class Drifting(nn.Module):
    """Has a buffer that its forward pass changes, in one of three ways."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("table", torch.arange(6.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        new = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        if self.how == "replaced":
            self.mean = new
        elif self.how == "by .data":
            self.mean.data.copy_(new)
        else:
            self.mean.copy_(new)
        return x + 0.1 * new.detach()


@pytest.mark.parametrize("how", ["in place", "by .data", "replaced"])
@pytest.mark.parametrize("steps", [0, 1, LEARNT_IN + 1])
def test_a_buffer_that_changes_in_any_way_is_put_back(how: str, steps: int) -> None:
    model = nn.Sequential(Drifting(how), nn.Linear(6, 4))
    step = OrderedStep(model, CE, sgd(model), q=4, nonfinite="skip", engine="dense")
    for _ in range(steps):
        step(*batch())
    before = model[0].mean.clone()
    x, y = batch()
    x[3] = math.nan
    step(x, y)
    assert torch.equal(model[0].mean, before)
    step(*batch())
    assert not torch.equal(model[0].mean, before)


@pytest.mark.parametrize("how", ["in place", "by .data", "replaced"])
def test_a_buffer_is_updated_once_by_micro_batches(how: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Drifting(how), nn.Linear(6, 4))
    step = OrderedStep(model, CE, sgd(model), q=4)
    expected = torch.zeros(6)
    for _ in range(3):
        (x1, y1), (x2, y2) = batch(8), batch(8)
        step([(x1, y1), (x2, y2)])
        for x in (x1, x2):
            expected = 0.9 * expected + 0.1 * x.mean(0)
        torch.testing.assert_close(model[0].mean, expected)


def test_running_statistics_that_were_moved_are_put_back() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
    step = OrderedStep(model, CE, sgd(model), q=4, nonfinite="skip", engine="dense")
    model.double()  # other tensors are in their places
    x, y = batch()
    for _ in range(LEARNT_IN + 1):
        step(x.double(), y)
    step(x.double() * math.nan, y)
    assert model[1].running_mean.isfinite().all()
