"""Warnings for what is allowed and known to go wrong: each once, at the user's line, and silenced as it says."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ordered_sgd import AccuracyRule, FixedQ, LinearDecay, OrderedLoss, OrderedStep, ordered_mean, traps
from ordered_sgd.errors import ArgumentError, TrapWarning

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


UNCOUNTABLE = {
    "regression": (nn.MSELoss(reduction="none"), torch.randn(8), torch.randn(8)),
    "one-hot": (CE, torch.randn(8, 5), torch.eye(5)[torch.arange(8) % 5]),
    "multi-label": (lambda o, y: F.binary_cross_entropy_with_logits(o, y, reduction="none").mean(1),
                    torch.randn(8, 5), torch.ones(8, 5)),
    "tokens, T = C": (lambda o, y: CE(o.transpose(1, 2), y).mean(1), torch.randn(8, 5, 5), torch.zeros(8, 5).long()),
}  # fmt: skip


@pytest.mark.parametrize("name", UNCOUNTABLE)
@pytest.mark.parametrize("kind", ["loss", "step", "micro-batches"])
def test_a_rule_that_can_never_get_an_accuracy_is_refused_at_the_first_batch(name: str, kind: str) -> None:
    criterion, outputs, y = UNCOUNTABLE[name]
    shift = nn.Parameter(torch.zeros(()))
    model = Shift(shift)

    def train(**options: Any) -> Any:
        if kind == "loss":
            loss_fn = OrderedLoss(criterion, q=AccuracyRule(), **options)
            loss_fn(model(outputs), y)
            return loss_fn
        step = OrderedStep(model, criterion, torch.optim.SGD([shift], lr=0.1), q=AccuracyRule(), **options)
        step(outputs, y) if kind == "step" else step([(outputs[:4], y[:4]), (outputs[4:], y[4:])])
        return step

    with pytest.raises(ArgumentError, match="the rule must find right answers to count in the first batch; got no out"):
        train()
    assert shift.item() == 0  # nothing was trained before the error
    assert train(accuracy="given").end_epoch(accuracy=0.85) == 4


class Shift(nn.Module):
    def __init__(self, shift: nn.Parameter) -> None:
        super().__init__()
        self.shift = shift

    def forward(self, x: Tensor) -> Tensor:
        return x + self.shift


def epoch(loss_fn: OrderedLoss, *sizes: int) -> None:
    for s in sizes:
        loss_fn(*batch(s))


def evaluate(loss_fn: OrderedLoss) -> None:
    loss_fn.eval()
    epoch(loss_fn, 32, 32)
    loss_fn.train()


def evaluate_without_gradients(loss_fn: OrderedLoss) -> None:
    with torch.no_grad():
        epoch(loss_fn, 32)


FORGOTTEN = "end_epoch must be called once per epoch for {}; got {} batches and no call. Call it after the last batch"
RULE = "LinearDecay(epochs=5, start=1.0, end=0.0625, q_min=1) to move q"


@pytest.mark.parametrize(
    ("options", "batches", "told"),
    [
        ({"q": LinearDecay(5)}, [(32, 32, 7), (32, 32, 7), (32,)], (RULE, 6)),
        ({"q": 0.5, "trim": 1}, [(32, 32, 7), (32, 32, 7), (32,)], ("trim to grow", 6)),
        ({"q": LinearDecay(5)}, [(32, 32), evaluate, (32, 32), evaluate, (32, 32)], (RULE, 4)),
        ({"q": LinearDecay(5)}, [(32,), evaluate_without_gradients] * 2 + [(32,)], (RULE, 2)),
        ({"q": LinearDecay(5)}, [(32, 32, 7), (32, 32, 7)], None),  # the second epoch may be about to end
        ({"q": LinearDecay(5)}, [(32, 32, 32), evaluate, (32, 32, 32)], None),  # one evaluation in an epoch
        ({"q": LinearDecay(5)}, [(32, 7, 32, 32, 7, 32)], None),  # batches of any size
        ({"q": LinearDecay(5)}, [(32, 7, 9, 7, 32)], None),
        ({"q": LinearDecay(5)}, [(32, 32, 7), OrderedLoss.end_epoch, (32, 32, 7), (32, 32, 7), (32, 32)], None),
        ({"q": FixedQ(16)}, [(32, 32, 7)] * 4, None),  # moves nothing
        ({"q": 0.5}, [(32, 32, 7)] * 4, None),
        ({"q": 0.5, "trim": 1, "trim_epochs": 0}, [(32, 32, 7)] * 4, None),
    ],
)  # fmt: skip
def test_a_forgotten_end_of_the_epoch_is_warned_of_once(
    options: dict[str, Any], batches: list[Any], told: tuple[str, int] | None
) -> None:
    loss_fn = OrderedLoss(CE, **options)

    def train() -> None:
        for part in batches:
            part(loss_fn) if callable(part) else epoch(loss_fn, *part)

    found = [str(warning.message) for warning in warned(train) if "end_epoch" in str(warning.message)]
    assert len(found) == (told is not None)
    if told is not None:
        assert found[0].startswith(f"OrderedLoss: {FORGOTTEN.format(*told)}")
        assert not any("end_epoch" in str(warning.message) for warning in warned(train))


def test_many_batches_without_an_end_of_the_epoch_are_warned_of_and_a_resumed_training_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(traps, "_LONGEST_EPOCH", 5)
    model = nn.Linear(5, 5)
    step, resumed = (
        OrderedStep(model, CE, torch.optim.SGD(model.parameters(), lr=0.1), q=LinearDecay(5)) for _ in "12"
    )
    x, y = torch.randn(8, 5), torch.randint(0, 5, (8,))
    (found,) = warned(lambda: [step(x, y) for _ in range(9)])
    assert str(found.message).startswith(f"OrderedStep: {FORGOTTEN.format(RULE, 5)}")
    step.end_epoch()
    resumed.load_state_dict(step.state_dict())
    assert not warned(lambda: [resumed(x, y) for _ in range(9)])


def test_training_mode_without_gradients_is_warned_of_once() -> None:
    loss_fn, everything = OrderedLoss(CE, q=0.5), OrderedLoss(CE, q=1.0)

    def validate(function: OrderedLoss) -> None:
        with torch.no_grad():
            epoch(function, 8, 8)

    (found,) = warned(lambda: validate(loss_fn))
    assert str(found.message).startswith(
        "OrderedLoss: the mode must be eval for the plain mean; got training mode without gradients, and so the mean "
        "of the largest losses. Call loss_fn.eval() for validation, and loss_fn.train() after it."
    )
    assert found.filename == __file__
    assert not warned(lambda: validate(loss_fn))
    assert not warned(lambda: validate(everything))
    assert not warned(lambda: evaluate(OrderedLoss(CE, q=0.5)))


def test_ignored_targets_and_numbers_of_groups_are_not_taken_for_the_ends_of_epochs() -> None:
    """How many count differs from batch to batch; how many there are does not."""
    torch.manual_seed(0)
    model = nn.Linear(5, 5)
    step = OrderedStep(model, CE, torch.optim.SGD(model.parameters(), lr=0.0), q=LinearDecay(3), engine="dense")
    groups = OrderedLoss(lambda losses: losses, q=LinearDecay(3), unit="group")

    def train() -> None:
        for number in range(200):
            y = torch.randint(0, 5, (32,))
            step(torch.randn(32, 5), y.index_fill(0, torch.tensor([3]), -100) if number % 7 == 0 else y)
            groups(torch.rand(32, requires_grad=True), ids=torch.arange(32) % (7 if number % 5 == 0 else 8))

    assert not [warning for warning in warned(train) if "end_epoch" in str(warning.message)]
