import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ordered_sgd import AccuracyRule, OrderedStep
from ordered_sgd.errors import ArgumentError, NonFiniteLossError

CE = nn.CrossEntropyLoss(reduction="none")


def network(*extra: nn.Module) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 16), *extra, nn.ReLU(), nn.Linear(16, 4))


def gradient_of(model: nn.Module, *call: object, **options: object) -> tuple[list[Tensor], object]:
    step = OrderedStep(model, CE, torch.optim.SGD(model.parameters(), lr=0.0), **options)  # type: ignore[arg-type]
    record = step(*call)
    return [p.grad for p in model.parameters() if p.grad is not None], record


@pytest.mark.parametrize("q", [1, 5, 0.25, 1.0])
@pytest.mark.parametrize("sizes", [(16, 16), (10, 1, 21), (4,) * 8])
def test_micro_batches_give_the_gradient_and_the_record_of_the_joined_batch(q: float, sizes: tuple[int, ...]) -> None:
    x, y = torch.randn(32, 6), torch.randint(0, 4, (32,))
    weight = torch.rand(32)
    parts = list(zip(x.split(sizes), y.split(sizes), weight.split(sizes), strict=True))
    model = network()
    step = OrderedStep(model, CE, torch.optim.SGD(model.parameters(), lr=0.0), q=q)
    joined = step(x, y, sample_weight=weight)
    expected = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    record = step(parts)
    found = [p.grad for p in model.parameters() if p.grad is not None]
    for a, b in zip(found, expected, strict=True):
        assert (a - b).norm() <= 1e-6 * b.norm()
    assert torch.equal(record.rows, joined.rows)
    torch.testing.assert_close(record.losses, joined.losses)
    torch.testing.assert_close(record.ordered_loss, joined.ordered_loss)
    assert record.correct == joined.correct
    assert (record.q, record.count) == (joined.q, 32)


def test_kept_samples_are_run_again_without_the_others_of_their_micro_batch() -> None:
    calls: list[int] = []

    def forward(model: nn.Module, x: Tensor) -> Tensor:
        calls.append(len(x))
        outputs: Tensor = model(x)
        return outputs

    easy, hard = torch.zeros(6, 6), 100 * torch.randn(6, 6)
    parts = [(x, torch.randint(0, 4, (6,))) for x in (easy, hard, easy, hard)]
    model = network()
    step = OrderedStep(model, CE, torch.optim.SGD(model.parameters(), lr=0.0), q=8, forward=forward)
    step(parts)  # the first one looks whether that is exact
    calls.clear()
    assert step(parts).engine == "micro-batches, regrouped"
    assert calls == [6] * 4 + [4, 4]
    model.train().append(nn.BatchNorm1d(4))
    calls.clear()
    assert step(parts).engine == "micro-batches"
    assert calls == [6] * 4 + [6, 6]  # those that hold a kept sample


def test_dropout_draws_the_same_masks_in_both_passes_and_randomness_goes_on_as_after_one() -> None:
    model = network(nn.Dropout(0.5))
    x, y = torch.randn(24, 6), torch.randint(0, 4, (24,))
    parts = list(zip(x.split(8), y.split(8), strict=True))
    torch.manual_seed(5)
    losses = torch.cat([CE(model(a), b) for a, b in parts])
    after = torch.rand(1)
    expected = torch.autograd.grad(losses.topk(6).values.mean(), list(model.parameters()))
    torch.manual_seed(5)
    found, _ = gradient_of(model, parts, q=6)
    assert torch.equal(torch.rand(1), after)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


MODULES_WITH_BUFFERS = {
    "batch norm": lambda: nn.BatchNorm1d(16),
    "frozen batch norm": lambda: nn.BatchNorm1d(16).eval(),
    "instance norm": lambda: nn.Sequential(
        nn.Unflatten(1, (4, 4)), nn.InstanceNorm1d(4, track_running_stats=True), nn.Flatten()
    ),
    "spectral norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(16, 16)),
}


@pytest.mark.parametrize("q", [3, 1.0])
@pytest.mark.parametrize("name", MODULES_WITH_BUFFERS)
def test_buffers_are_updated_once_and_the_gradient_is_that_of_one_pass(name: str, q: float) -> None:
    build = MODULES_WITH_BUFFERS[name]
    model, twin = network(build()), network(build())
    twin.load_state_dict(model.state_dict())
    for _ in range(3):  # which buffers change is learnt in the first
        x, y = torch.randn(24, 6), torch.randint(0, 4, (24,))
        losses = torch.cat([CE(twin(a), b) for a, b in zip(x.split(8), y.split(8), strict=True)])
        expected = torch.autograd.grad(losses.topk(3 if q == 3 else 24).values.mean(), list(twin.parameters()))
        found, record = gradient_of(model, list(zip(x.split(8), y.split(8), strict=True)), q=q)
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
        for a, b in zip(model.buffers(), twin.buffers(), strict=True):
            assert torch.equal(a, b)
    if q == 3 and name == "frozen batch norm":
        assert record.engine == "micro-batches, regrouped"  # type: ignore[attr-defined]


def test_a_model_that_cannot_be_run_again_as_before_is_warned_of() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.generator = np.random.default_rng(0)

        def forward(self, x: Tensor) -> Tensor:
            return x + float(self.generator.normal())

    parts = [(torch.randn(8, 6), torch.randint(0, 4, (8,))) for _ in range(2)]
    with (
        pytest.warns(UserWarning, match="samples must not influence each other for regrouped micro-batches"),
        pytest.warns(UserWarning, match="the model must give the same losses when it is run again; got other losses"),
    ):
        _, record = gradient_of(network(Noisy()), parts, q=4)
    assert record.engine == "micro-batches"  # type: ignore[attr-defined]


def test_micro_batches_of_float64_are_summed_in_float64() -> None:
    model = network().double()
    x, y = torch.randn(16, 6, dtype=torch.float64), torch.randint(0, 4, (16,))
    step = OrderedStep(model, CE, torch.optim.SGD(model.parameters(), lr=0.0), q=5)
    step(x, y)
    expected = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    step([(x[:8], y[:8]), (x[8:], y[8:])])
    for p, b in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(p.grad, b, rtol=1e-13, atol=1e-15)


def test_weights_beside_a_list_are_refused_with_the_right_place() -> None:
    model = network()
    step = OrderedStep(model, CE, torch.optim.SGD(model.parameters(), lr=0.0), q=5)
    part = (torch.randn(8, 6), torch.randint(0, 4, (8,)))
    with pytest.raises(ArgumentError, match=r"weights of micro-batches must be inside the list; got sample_weight"):
        step([part, part], sample_weight=torch.ones(16))


def test_weights_cast_by_autocast_without_a_graph_are_not_used_again() -> None:
    model = network()
    parts = [(torch.randn(8, 6), torch.randint(0, 4, (8,))) for _ in range(2)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, _ = gradient_of(model, parts, q=4)
    assert len(found) == 4
    assert all(g.abs().sum() > 0 for g in found)


def test_targets_that_are_no_tensor_work_without_a_first_guess_of_the_size() -> None:
    def criterion(outputs: Tensor, target: list[int]) -> Tensor:
        return CE(outputs, torch.tensor(target))

    model = network()
    step = OrderedStep(model, criterion, torch.optim.SGD(model.parameters(), lr=0.1), q=1.0)
    record = step([(torch.randn(4, 6), [0, 1, 2, 3]), (torch.randn(2, 6), [0, 1])])
    assert (record.q, record.count) == (6, 6)


def test_more_losses_than_targets_are_refused_before_the_update() -> None:
    model = network()
    step = OrderedStep(
        model, lambda outputs, y: outputs.abs().sum(1), torch.optim.SGD(model.parameters(), lr=0.1), q=1.0
    )
    before = [p.detach().clone() for p in model.parameters()]
    parts = [(torch.randn(4, 6), torch.zeros(2)), (torch.randn(4, 6), torch.zeros(2))]
    with pytest.raises(
        ArgumentError, match=r"micro-batches must give one loss per target; got 8 losses for 4 targets. Pass"
    ):
        step(parts)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize("q", [2, 1.0])
def test_a_loss_that_is_not_finite_is_found_among_micro_batches(q: float) -> None:
    parts = [(torch.randn(4, 6), torch.zeros(4).long()) for _ in range(3)]
    parts[1][0][2] = torch.nan
    model = network()
    step = OrderedStep(model, CE, torch.optim.SGD(model.parameters(), lr=0.1), q=q, nonfinite="skip")
    before = [p.detach().clone() for p in model.parameters()]
    assert step(parts).q == 0
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    with pytest.raises(NonFiniteLossError, match="nan at position 6 of 12"):
        OrderedStep(model, CE, torch.optim.SGD(model.parameters(), lr=0.1), q=q)(parts)


def test_a_rule_divides_the_joined_batch() -> None:
    model = network()
    step = OrderedStep(model, CE, torch.optim.SGD(model.parameters(), lr=0.1), q=AccuracyRule())
    step([(torch.randn(8, 6), torch.zeros(8).long())] * 4)
    assert step.q == 32
    assert step.end_epoch(accuracy=0.95) == 4
