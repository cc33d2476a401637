import functools
import operator

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ordered_sgd import AccuracyRule
from ordered_sgd.errors import ArgumentError
from ordered_sgd.integrations._watched import WatchedLoss, unreduced, world

LOGITS, TARGET = torch.randn(6, 3), torch.tensor([0, 1, 2, 0, 1, 2])


@pytest.mark.parametrize(
    "criterion",
    [
        nn.CrossEntropyLoss(),
        nn.CrossEntropyLoss(reduction="none"),
        F.cross_entropy,
        functools.partial(F.cross_entropy, label_smoothing=0.0),
        functools.partial(F.cross_entropy, reduction="mean"),
        lambda outputs, target: F.cross_entropy(outputs, target, reduction="none"),
    ],
)
def test_a_criterion_of_any_kind_comes_to_return_one_loss_per_sample(criterion: object) -> None:
    losses = unreduced(criterion, "test")(LOGITS, TARGET)
    assert torch.equal(losses, F.cross_entropy(LOGITS, TARGET, reduction="none"))


def test_the_criterion_itself_stays_as_it_was_and_shares_its_weights() -> None:
    criterion = nn.CrossEntropyLoss(weight=torch.ones(3))
    copied = unreduced(criterion, "test")
    criterion.double()
    assert criterion.reduction == "mean"
    assert copied.weight is criterion.weight
    assert copied.weight.dtype == torch.float64


def test_a_sum_is_refused_since_the_size_of_the_step_would_change() -> None:
    text = r"test: criterion must be a mean over the batch; got reduction='sum'. Build it with reduction=\"mean\""
    for criterion in (nn.MSELoss(reduction="sum"), functools.partial(F.mse_loss, reduction="sum")):
        with pytest.raises(ArgumentError, match=text):
            unreduced(criterion, "test")


def test_what_has_no_signature_or_is_no_criterion_is_left_to_the_loss_that_takes_it() -> None:
    assert unreduced(operator.sub, "test") is operator.sub
    assert unreduced(torch.sub, "test") is torch.sub
    assert unreduced("ce", "test") == "ce"


def test_both_means_of_training_batches_are_kept_and_those_of_others_are_not() -> None:
    loss_fn = WatchedLoss(nn.CrossEntropyLoss(reduction="none"), q=2)
    logits = LOGITS.clone().requires_grad_()
    target = torch.where(torch.arange(6) < 4, TARGET, -100)
    loss = loss_fn(logits, target)
    assert loss_fn.ordered_loss == loss.detach()
    assert loss_fn.samples == 6
    torch.testing.assert_close(loss_fn.mean_loss, F.cross_entropy(LOGITS, target))
    kept = loss_fn.mean_loss
    loss_fn.eval()(logits, TARGET)
    assert loss_fn.mean_loss is kept


def test_a_batch_without_a_valid_unit_has_the_mean_zero() -> None:
    loss_fn = WatchedLoss(nn.CrossEntropyLoss(reduction="none"), q=2)
    loss_fn(LOGITS.clone().requires_grad_(), torch.full((6,), -100))
    assert loss_fn.mean_loss == 0


def test_a_rule_that_needs_accuracy_is_refused_on_a_first_batch_without_answers() -> None:
    loss_fn = WatchedLoss(nn.MSELoss(reduction="none"), q=AccuracyRule(), _where="test")
    text = "test: the rule must find right answers to count in the first batch; got no outputs"
    with pytest.raises(ArgumentError, match=text):
        loss_fn(torch.randn(8, requires_grad=True), torch.randn(8))
    told = WatchedLoss(nn.MSELoss(reduction="none"), q=AccuracyRule())
    told.counting = False
    told(torch.randn(8, requires_grad=True), torch.randn(8))
    assert told.end_epoch(accuracy=0.85) == 4


def test_a_process_of_its_own_has_no_group() -> None:
    assert world() is None
