"""Warnings for what is allowed and known to go wrong: each once, at the user's line, and silenced as it says."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ordered_sgd import AccuracyRule, FixedQ, LinearDecay, OrderedLoss, OrderedStep, ordered_mean
from ordered_sgd.errors import TrapWarning

CE = nn.CrossEntropyLoss(reduction="none")


def warned(function: Callable[[], Any]) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        function()
    return [warning for warning in found if warning.category is TrapWarning]


def batch(s: int = 32) -> tuple[Tensor, Tensor]:
    return torch.randn(s, 5, requires_grad=True), torch.randint(0, 5, (s,))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"q": 0.25}, 0),
        ({"q": 7}, 1),
        ({"q": 0.1}, 1),
        ({"q": FixedQ(2)}, 1),
        ({"q": AccuracyRule()}, 0),
        ({"q": LinearDecay(5, start=0.1, end=0.05)}, 1),
        ({"q": 2, "selection": "random"}, 0),
    ],
)
def test_a_small_q_from_the_first_step_is_warned_of_once(options: dict[str, Any], expected: int) -> None:
    loss_fn = OrderedLoss(CE, **options)
    found = warned(lambda: [loss_fn(*batch()) for _ in range(3)])
    assert len(found) == expected
    for warning in found:
        assert str(warning.message).startswith(
            "OrderedLoss: q must be a quarter of the batch or more in the first epoch (s = 32); got "
        )
        assert 'Silence: warnings.simplefilter("ignore", ordered_sgd.errors.TrapWarning).' in str(warning.message)
        assert warning.filename == __file__


def test_a_quarter_is_rounded_as_q_is_and_the_first_batch_may_be_a_small_one() -> None:
    assert not warned(lambda: OrderedLoss(CE, q=0.25)(*batch(50)))
    loss_fn = OrderedLoss(CE, q=4)
    assert len(warned(lambda: [loss_fn(*batch(s)) for s in (8, 64, 128)])) == 1


ONE = (
    "q must be a float to be a share of the batch; got the integer 1: one of 32 is kept. Use q=1.0 to keep all of them."
)


@pytest.mark.parametrize("unit", ["sample", "token"])
def test_the_integer_1_is_not_1_0(unit: Any) -> None:
    one, all_of_it = (OrderedLoss(CE, q=q, unit=unit) for q in (1, 1.0))
    found = warned(lambda: [one(*batch()) for _ in range(3)])
    assert [ONE in str(warning.message) for warning in found] == [True]
    assert not warned(lambda: all_of_it(*batch()))
    assert not warned(lambda: OrderedLoss(CE, q=1)(*batch(7)))  # few: meant, and a quarter of them


def test_the_one_liner_warns_of_the_integer_1_too() -> None:
    losses = torch.rand(32)
    (found,) = warned(lambda: ordered_mean(losses, q=1))
    assert f"ordered_mean: {ONE}" in str(found.message)
    assert found.filename == __file__
    assert not warned(lambda: (ordered_mean(losses, q=1.0), ordered_mean(losses[:8], q=1)))


def test_a_small_last_batch_that_is_kept_whole_is_no_trap() -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 5))
    step = OrderedStep(model, CE, torch.optim.SGD(model.parameters(), lr=0.1), q=1.0, engine="dense")
    assert not warned(lambda: [step(torch.randn(s, 5), torch.randint(0, 5, (s,))) for s in (32, 2)])


def test_a_resumed_training_is_not_warned_again() -> None:
    loss_fn = OrderedLoss(CE, q=FixedQ(2))
    warned(lambda: loss_fn(*batch()))
    again = OrderedLoss(CE, q=FixedQ(2))
    again.load_state_dict(loss_fn.state_dict())
    assert not warned(lambda: again(*batch()))


def test_few_pixels_are_what_people_choose() -> None:
    loss_fn = OrderedLoss(CE, q=0.01, unit="pixel")
    assert not warned(lambda: loss_fn(torch.randn(2, 3, 8, 8), torch.randint(0, 3, (2, 8, 8))))


@pytest.mark.parametrize(
    ("criterion", "name"),
    [
        (nn.CrossEntropyLoss(weight=torch.ones(5), reduction="none"), "weight="),
        (nn.BCEWithLogitsLoss(pos_weight=torch.ones(1), reduction="none"), "pos_weight="),
        (partial(F.cross_entropy, weight=torch.ones(5), reduction="none"), "weight="),
        (CE, None),
        (nn.Linear(3, 1), None),
    ],
)
def test_a_weighted_criterion_is_warned_of(criterion: Any, name: str | None) -> None:
    found = warned(lambda: OrderedLoss(criterion, q=0.5))
    assert len(found) == (name is not None)
    for warning in found:
        assert f"criterion must not be weighted, for losses are ordered as it returns them; got {name}." in str(
            warning.message
        )


@pytest.mark.parametrize("name", ["mixup", "slow but sure", "learns"])
def test_a_rule_that_never_fires_is_warned_of_once(name: str) -> None:
    accuracies = {
        "mixup": [0.3 + 0.05 * min(e, 4) for e in range(25)],
        "slow but sure": [0.02 * e for e in range(25)],
        "learns": [min(0.3 * e, 0.85) for e in range(25)],
    }[name]
    loss_fn = OrderedLoss(CE, q=AccuracyRule())

    def train() -> None:
        for accuracy in accuracies:
            loss_fn(*batch())
            loss_fn.end_epoch(accuracy=accuracy)

    found = warned(train)
    assert len(found) == (name == "mixup")
    for warning in found:
        text = "OrderedLoss.end_epoch: accuracy must reach 0.8 for q to move; got 0.50 at most after 10 epochs."
        assert str(warning.message).startswith(text)


@pytest.mark.parametrize(("norm", "q", "expected"), [("batch", 2, 1), ("batch", 3, 0), ("eval", 2, 0), ("none", 1, 0)])
def test_batchnorm_with_one_or_two_samples_is_warned_of_once(norm: str, q: int, expected: int) -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.Identity() if norm == "none" else nn.BatchNorm1d(4), nn.Linear(4, 5))
    if norm == "eval":
        model[1].eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = OrderedStep(model, CE, optimizer, q=q, engine="dense")
    found = warned(lambda: [step(torch.randn(8, 5), torch.randint(0, 5, (8,))) for _ in range(3)])
    assert sum("for a model with BatchNorm" in str(warning.message) for warning in found) == expected
