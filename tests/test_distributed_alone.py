"""A group of one rank, in this process: everything that `group=` adds runs, and gives what it gives without."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

from ordered_sgd import AccuracyRule, LossMassRule, OrderedLoss, OrderedStep, ordered_mean, ranks
from ordered_sgd.errors import ArgumentError, NonFiniteLossError
from tests.distributed.parts import CE, ddp, network
from tests.step_parts import batch, sgd

WRAPPERS = {"ddp": ddp, "fsdp": fully_shard, "nothing": lambda model: model}


def weights(model: nn.Module) -> list[Tensor]:
    return [getattr(p, "full_tensor", lambda p=p: p)().detach().clone() for p in model.parameters()]


@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize(
    ("wrapper", "engine"),
    [("ddp", "dense"), ("ddp", "twopass"), ("ddp", "rows"), ("ddp", "auto"), ("fsdp", "dense"), ("fsdp", "twopass"),
     ("fsdp", "rows"), ("fsdp", "auto"), ("nothing", "dense")],
)  # fmt: skip
def test_steps_with_a_group_of_one_are_steps_without_a_group(
    wrapper: str, engine: str, parts: bool, one_rank: Any
) -> None:
    alone, model = network(), WRAPPERS[wrapper](network())
    rule = AccuracyRule(thresholds=(0.0, 0.9), divisors=(4, 8))
    reference = OrderedStep(alone, CE, sgd(alone), q=rule, engine="dense")
    step = OrderedStep(model, CE, sgd(model), q=rule, engine=engine, group=one_rank)
    for number in range(6):
        x, y = batch()
        given: tuple[Any, ...] = ([(x[:20], y[:20]), (x[20:], y[20:])],) if parts else (x, y)
        record, expected = step(*given), reference(x, y)
        assert (record.q, record.count, record.correct) == (expected.q, expected.count, expected.correct)
        assert record.rows.tolist() == expected.rows.tolist()
        torch.testing.assert_close(record.ordered_loss, expected.ordered_loss)
        torch.testing.assert_close(record.mean_loss, expected.mean_loss)
        if number % 2:
            assert step.end_epoch() == reference.end_epoch()
    for a, b in zip(weights(model), weights(alone), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    assert record.engine == ("micro-batches, regrouped" if parts else engine) or step.why
    if parts:
        assert (record.engine == "micro-batches, regrouped") == (wrapper != "fsdp")


@pytest.mark.parametrize("wrapper", ["ddp", "fsdp"])
@pytest.mark.parametrize("engine", ["dense", "rows"])
def test_a_loss_that_is_not_finite_is_skipped_or_raised_and_training_goes_on(
    wrapper: str, engine: str, one_rank: Any
) -> None:
    model = WRAPPERS[wrapper](network())
    step = OrderedStep(model, CE, sgd(model), q=4, engine=engine, nonfinite="skip", group=one_rank)
    step(*batch())
    before = weights(model)
    x, y = batch()
    x[5] = torch.nan
    record = step(x, y)
    assert (record.q, record.count, record.rows.tolist()) == (0, 32, [])
    assert record.ordered_loss.isnan()
    assert record.mean_loss.isnan()
    assert all(torch.equal(a, b) for a, b in zip(before, weights(model), strict=True))
    assert step(*batch()).q == 4
    step.updater.nonfinite = "raise"
    with pytest.raises(NonFiniteLossError, match="got nan at position 5 of 32 on rank 0 in step 3"):
        step(x, y)
    assert step([batch(), batch()]).q == 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("q", [1, 3, 0.5, 1.0])
def test_the_mean_and_its_gradient_are_those_without_a_group(q: float, dtype: torch.dtype, one_rank: Any) -> None:
    values = torch.randn(10).to(dtype)
    ours, theirs = values.clone().requires_grad_(), values.clone().requires_grad_()
    mean, expected = ordered_mean(ours, q, group=one_rank), ordered_mean(theirs, q)
    assert torch.equal(mean, expected)
    (2 * mean).backward()
    (2 * expected).backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


@pytest.mark.parametrize("rule", [AccuracyRule(thresholds=(0.0,), divisors=(4,)), LossMassRule(0.5)])
def test_a_loss_with_a_group_of_one_moves_as_without(rule: Any, one_rank: Any) -> None:
    ours, theirs = OrderedLoss(CE, q=rule, group=one_rank), OrderedLoss(CE, q=rule)
    for _ in range(3):
        outputs, y = torch.randn(16, 4, requires_grad=True), torch.randint(0, 4, (16,))
        assert torch.equal(ours(outputs, y), theirs(outputs, y))
        with torch.no_grad():
            ours(outputs, y)
        assert ours.end_epoch() == theirs.end_epoch()
    assert str(ours.state_dict()) == str(theirs.state_dict())
    with pytest.raises(ArgumentError, match="losses must hold at least one sample"):
        ours.eval()(outputs[:0], y[:0])


def test_a_batch_that_is_empty_everywhere_is_refused(one_rank: Any) -> None:
    with pytest.raises(ArgumentError, match="the batch must hold at least one sample on some rank; got none"):
        ordered_mean(torch.zeros(0, requires_grad=True), 1, group=one_rank)


def test_the_wrapper_has_its_module_back_after_an_error(one_rank: Any) -> None:
    model = ddp(network())
    inner = model.module
    step = OrderedStep(model, CE, sgd(model), q=4, group=one_rank)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        step(torch.zeros(4, 7), torch.zeros(4).long())
    assert model.module is inner
    assert step(*batch()).q == 4


def test_a_loss_scale_past_float16_leaves_the_others_without_a_gradient() -> None:
    losses = torch.tensor([1.0, 3.0, 2.0], dtype=torch.float16, requires_grad=True)
    joined = ranks.Joined(losses.detach().float(), (3,), 0, None)
    (2.0**16 * ranks.mean_over_ranks(losses, torch.tensor([1]), joined)).backward()
    assert losses.grad is not None
    assert losses.grad.tolist() == [0.0, float("inf"), 0.0]  # and not NaN, which is 0 times infinity
