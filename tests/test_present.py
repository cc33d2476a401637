"""Samples with the ignored target: a step on a batch that holds some is the step on the batch without them."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ordered_sgd import AccuracyRule, LossMassRule, OrderedStep
from ordered_sgd.engines import Memory
from ordered_sgd.errors import ArgumentError, NonFiniteLossError
from ordered_sgd.present import Present

IGNORED = 3  # a class of the outputs, so that an ignored answer could seem right
CE = nn.CrossEntropyLoss(reduction="none", ignore_index=IGNORED)
S = 24


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))


def batch(number: int, share: float = 0.4, s: int = S) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(number)
    x, y = torch.randn(s, 6, generator=g), torch.randint(0, 3, (s,), generator=g)
    y[torch.rand(s, generator=g) < share] = IGNORED
    x[y == IGNORED, 0] = 9  # their outputs must not matter
    return x, y


def there(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x[y != IGNORED], y[y != IGNORED]


def steps(engine: Any, **options: Any) -> tuple[OrderedStep, OrderedStep]:
    made = []
    for kind in (engine, "dense"):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
        made.append(OrderedStep(model, CE, optimizer, engine=kind, **options))
    return made[0], made[1]


def weights(step: OrderedStep) -> list[Tensor]:
    return [p.detach() for p in step.model.parameters()]


@pytest.mark.parametrize("engine", ["dense", "rows", "twopass", "auto"])
@pytest.mark.parametrize(
    "options",
    [
        {"q": 5},
        {"q": 0.3},
        {"q": 1.0},
        {"q": S - 1},  # more than there are
        {"q": 0.5, "trim": 0.2, "trim_epochs": 0},
        {"q": 5, "selection": "random"},
        {"q": AccuracyRule(thresholds=(0.1, 0.6), divisors=(2, 4))},
        {"q": LossMassRule(0.7)},
    ],
    ids=str,
)
def test_a_step_is_the_one_without_ignored_samples(engine: Any, options: dict[str, Any]) -> None:
    step, alone = steps(engine, **options)
    for number in range(6):
        x, y = batch(number)
        record, expected = step(x, y), alone(*there(x, y))
        positions = (y != IGNORED).nonzero().squeeze(1)
        assert record.rows.tolist() == positions[expected.rows].tolist()
        assert (record.q, record.count) == (expected.q, expected.count)
        assert record.correct == expected.correct
        for name in ("ordered_loss", "mean_loss"):
            torch.testing.assert_close(getattr(record, name), getattr(expected, name), rtol=1e-5, atol=1e-6)
        if number % 2:
            assert step.end_epoch() == alone.end_epoch()
    torch.testing.assert_close(weights(step), weights(alone), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("q", [5, 0.3, 1.0])
def test_micro_batches_are_those_without_ignored_samples(q: float) -> None:
    step, alone = steps("dense", q=q)
    for number in range(4):
        x, y = batch(number)
        record = step([(x[i : i + 8], y[i : i + 8]) for i in range(0, S, 8)])
        expected = alone(*there(x, y))
        assert (record.q, record.count) == (expected.q, expected.count)
    torch.testing.assert_close(weights(step), weights(alone), rtol=1e-5, atol=1e-6)


def test_the_engine_with_a_memory_keeps_none_of_them_and_estimates_the_mean_of_the_others() -> None:
    step, _ = steps(Memory(candidates=6), q=4)
    means, truths = [], []
    frozen = torch.optim.SGD(step.model.parameters(), lr=0.0)
    step = OrderedStep(step.model, CE, frozen, q=4, engine=Memory(candidates=6))
    x, y = batch(0)
    present = y != IGNORED
    for _ in range(300):
        record = step(x, y, index=torch.arange(S))
        assert present[record.rows].all()
        assert (record.q, record.count) == (4, int(present.sum()))
        if record.estimated:
            means.append(float(record.mean_loss))
            truths.append(CE(step.model(x), y)[present].mean().item())
    assert len(means) > 200
    assert sum(means) / len(means) == pytest.approx(sum(truths) / len(truths), rel=0.02)


@pytest.mark.parametrize("engine", ["dense", "rows", "twopass"])
@pytest.mark.parametrize("q", [4, 0.5, LossMassRule()])
def test_a_batch_of_nothing_but_ignored_targets_changes_nothing(engine: Any, q: Any) -> None:
    step, _ = steps(engine, q=q)
    step(*batch(0))
    before = [w.clone() for w in weights(step)]
    record = step(torch.randn(S, 6), torch.full((S,), IGNORED))
    assert (record.q, record.count, record.rows.shape[0]) == (0, 0, 0)
    assert record.ordered_loss.isnan()
    assert [w.tolist() for w in weights(step)] == [w.tolist() for w in before]
    assert step(*batch(1)).count > 0


def test_an_empty_batch_is_still_refused() -> None:
    step, _ = steps("dense", q=4)
    with pytest.raises(ArgumentError, match="losses must hold at least one sample; got none"):
        step(torch.randn(0, 6), torch.zeros(0).long())


def test_a_loss_that_is_not_finite_is_named_by_its_position_in_the_batch() -> None:
    step, _ = steps("dense", q=4)
    x, y = batch(0)
    position = int((y != IGNORED).nonzero()[5])
    x[position] = math.nan
    with pytest.raises(NonFiniteLossError, match=f"got nan at position {position} of {S} in step 0"):
        step(x, y)


def test_targets_that_are_not_one_class_each_are_all_present() -> None:
    for target in (torch.full((4,), -100.0), torch.full((4, 2), -100), {"y": torch.full((4,), -100)}, None):
        assert Present([target], -100).rows is None
    assert Present([torch.full((4,), -100)], None).rows is None
    present = Present([torch.tensor([0, -100]), torch.tensor([-100, 1])], -100)
    assert present.rows is not None
    assert present.rows.tolist() == [0, 3]
    assert present.of(torch.tensor([1, 3]), torch.device("cpu")).tolist() == [1]  # type: ignore[union-attr]


@pytest.mark.parametrize("rule", [AccuracyRule(), LossMassRule(0.6)], ids=str)
def test_the_first_batch_under_a_rule_may_hold_nothing_but_ignored_targets(rule: Any) -> None:
    step, _ = steps("dense", q=rule)
    record = step(*batch(0, share=1.1))
    assert (record.q, record.count) == (0, 0)
    record = step(*batch(1))
    assert record.q == record.count > 0
