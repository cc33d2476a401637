"""What is ordered besides samples: `ignore_index`, accuracy, rules, the random control, bad input."""

import math
import warnings
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ordered_sgd import (
    Above,
    AccuracyRule,
    FixedQ,
    LossMassRule,
    OrderedBatchSampler,
    OrderedLoss,
    OrderedStep,
    ordered_mean,
    select_top_q,
)
from ordered_sgd.criterion import count_correct, ignore_index
from ordered_sgd.errors import ArgumentError, NonFiniteLossError, TrapWarning
from ordered_sgd.rules import Rule, as_rule
from ordered_sgd.selection import _top_rows_numpy, _top_rows_torch, top_rows

CE = nn.CrossEntropyLoss(reduction="none")
FLOATS, MARKS = (f"{what} of the shape of the losses, (4,)" for what in ("floating-point numbers", "booleans"))
MASKED = "1 where an element counts and else 0, and not 0 everywhere if it holds floats"


def segmentation(seed: int = 0, ignored: int = 255) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    outputs = torch.randn(4, 5, 12, 12, generator=generator, requires_grad=True)
    target = torch.randint(0, 5, (4, 12, 12), generator=generator)
    target[torch.rand(target.shape, generator=generator) < 0.6] = ignored
    return outputs, target


@pytest.mark.parametrize("q", [0.1, 0.25, 1.0, 40, 10**6])
def test_online_hard_example_mining_of_pixels(q: float) -> None:
    outputs, target = segmentation()
    loss_fn = OrderedLoss(nn.CrossEntropyLoss(reduction="none", ignore_index=255), q=q, unit="pixel")
    losses = F.cross_entropy(outputs, target, ignore_index=255, reduction="none")[target != 255]
    k = max(1, math.floor(q * losses.numel())) if isinstance(q, float) else min(q, losses.numel())
    torch.testing.assert_close(loss_fn(outputs, target), losses.topk(k).values.mean())


def test_ignored_pixels_never_count_even_when_few_are_left() -> None:
    outputs, target = segmentation()
    target[:] = 255
    target[0, 0, :3] = 1
    loss_fn = OrderedLoss(nn.CrossEntropyLoss(reduction="none", ignore_index=255), q=100, unit="pixel")
    losses = F.cross_entropy(outputs, target, ignore_index=255, reduction="none")
    torch.testing.assert_close(loss_fn(outputs, target), losses.sum() / 3)
    target[:] = 255
    value = loss_fn(outputs, target)
    value.backward()
    assert value.item() == 0
    assert outputs.grad is not None


def test_ignored_samples_of_a_flat_batch_do_not_count() -> None:
    """Language models flatten (batch, tokens): the padding is then samples to be ignored."""
    logits, target = torch.randn(30, 7), torch.arange(30) % 7
    target[::3] = -100
    half = OrderedLoss(CE, q=0.5)(logits, target)
    torch.testing.assert_close(half, OrderedLoss(CE, q=0.5)(logits[target >= 0], target[target >= 0]))


@pytest.mark.parametrize(
    ("criterion", "expected"),
    [
        (CE, -100),
        (nn.NLLLoss(ignore_index=3), 3),
        (F.cross_entropy, -100),
        (partial(F.cross_entropy, ignore_index=7), 7),
        (nn.MSELoss(), None),
        (lambda outputs, target: outputs, None),
    ],
)
def test_the_ignored_target_is_known_from_the_criterion(criterion: Any, expected: int | None) -> None:
    assert ignore_index(criterion) == expected


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_mask_that_is_added_to_scores_is_refused_when_compiled_too(backend: str) -> None:
    losses, added = torch.rand(4, 6), torch.zeros(4, 6)
    compiled = torch.compile(partial(ordered_mean, q=2, unit="token"), backend=backend, fullgraph=True)
    assert compiled(losses, mask=1 - added).item() == pytest.approx(ordered_mean(losses, 2, unit="token").item())
    for padded in (False, True):
        added[:, 4:] = -torch.inf if padded else 0
        with pytest.raises(RuntimeError, match="mask must be 1 where an element counts and else 0, and not 0 every"):
            compiled(losses, mask=added)


def test_tokens_are_not_counted_along_the_wrong_axis_where_there_are_as_many_as_classes() -> None:
    def channels_last(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return CE(outputs.transpose(1, 2), y)

    y = torch.randint(0, 5, (8, 5))
    outputs = F.one_hot(y, 5).float()  # (s, T, C): every answer is right
    assert count_correct(channels_last, outputs, y, like=y) is None
    assert count_correct(channels_last, outputs[:, :4], y[:, :4], like=y[:, :4]) is None
    assert count_correct(CE, outputs.transpose(1, 2), y, like=y) == 40
    assert count_correct(partial(F.cross_entropy, reduction="none"), outputs.transpose(1, 2), y, like=y) == 40


def test_accuracy_is_counted_over_what_is_valid() -> None:
    outputs, target = segmentation(ignored=0)  # a class of the outputs, so that an ignored pixel could seem right
    valid = target != 0
    expected = (outputs.argmax(1)[valid] == target[valid]).sum()
    assert count_correct(CE, outputs, target, like=target, valid=valid) == expected
    loss_fn = OrderedLoss(nn.CrossEntropyLoss(reduction="none", ignore_index=0), q=AccuracyRule(), unit="pixel")
    loss_fn(outputs, target)
    loss_fn.end_epoch()
    last = loss_fn._policy.adaptive._last
    assert last is not None
    assert last.accuracy == pytest.approx((expected / valid.sum()).item())


def test_a_rule_keeps_its_share_of_what_is_valid() -> None:
    loss_fn = OrderedLoss(lambda losses: losses, q=AccuracyRule(), unit="token", accuracy="given")
    losses = torch.rand(8, 16, requires_grad=True)
    loss_fn(losses)
    loss_fn.end_epoch(accuracy=0.92)  # a quarter
    mask = torch.rand(8, 16) < 0.5
    expected = ordered_mean(losses, 0.25, unit="token", mask=mask)
    assert loss_fn(losses, mask=mask).item() == pytest.approx(expected.item())
    shorter = torch.rand(8, 5, requires_grad=True)  # a share of a smaller batch as well, unlike a count of samples
    assert loss_fn(shorter).item() == pytest.approx(ordered_mean(shorter, 0.25, unit="token").item())


def test_loss_mass_sees_only_what_is_valid() -> None:
    losses, mask = torch.rand(64, requires_grad=True), torch.arange(64) % 2 == 0
    masked, alone = (OrderedLoss(lambda x: x, q=LossMassRule(0.6)) for _ in range(2))
    masked(losses, mask=mask)
    alone(losses[mask])
    share = masked.end_epoch() / 64
    assert share == pytest.approx(alone.end_epoch() / 32, abs=1 / 32)


def test_a_batch_of_nothing_valid_does_not_count_towards_the_rule() -> None:
    losses = torch.rand(16, requires_grad=True)
    one, two = (OrderedLoss(lambda x: x, q=LossMassRule(0.6)) for _ in range(2))
    for loss_fn in (one, two):
        loss_fn(losses)
    two(losses, mask=torch.zeros(16, dtype=torch.bool))
    assert one.end_epoch() == two.end_epoch()


def test_the_curve_of_millions_of_units_stays_short() -> None:
    loss_fn = OrderedLoss(lambda x: x, q=LossMassRule(0.5), unit="pixel")
    losses = torch.rand(2, 100, 200, requires_grad=True)
    loss_fn(losses)
    assert loss_fn._policy.adaptive._curve is not None
    assert loss_fn._policy.adaptive._curve.numel() == 4096
    ordered, half = np.sort(losses.detach().numpy().ravel())[::-1].cumsum(), losses.sum().item() / 2
    assert loss_fn.end_epoch() == pytest.approx(np.searchsorted(ordered, half) + 1, rel=2 / 4096 * 4)


@pytest.mark.parametrize(("unit", "within"), [("token", "batch"), ("token", "sample"), ("sample", "batch")])
def test_the_random_control_keeps_as_many_valid_units(unit: Any, within: Any) -> None:
    losses, mask = torch.randn(8, 16, requires_grad=True), torch.rand(8, 16) < 0.6
    kept = []
    for selection in ("top", "random"):
        loss_fn = OrderedLoss(lambda x: x, q=0.25, unit=unit, within=within, selection=selection)  # type: ignore[arg-type]
        (gradient,) = torch.autograd.grad(loss_fn(losses, mask=mask), losses)
        assert not gradient[~mask].any()
        kept.append(gradient.bool().any(1) if unit == "sample" else gradient.bool())
    assert kept[0].sum() == kept[1].sum()
    assert not torch.equal(kept[0], kept[1])


def test_trim_grows_over_the_epochs_and_is_in_the_state() -> None:
    losses = torch.arange(20.0, requires_grad=True)
    loss_fn = OrderedLoss(lambda x: x, q=1, trim=0.4, trim_epochs=4)
    seen = []
    for _ in range(6):
        seen.append(loss_fn(losses).item())
        loss_fn.end_epoch()
    assert seen == [19, 17, 15, 13, 11, 11]
    again = OrderedLoss(lambda x: x, q=1, trim=0.4, trim_epochs=4)
    again.load_state_dict(loss_fn.state_dict())
    assert again(losses).item() == 11
    assert repr(again).endswith("trim=0.4)") or "trim=0.4" in repr(again)
    counts = OrderedLoss(lambda x: x, q=1, trim=5, trim_epochs=2)
    assert counts(losses).item() == 19
    counts.end_epoch()
    assert counts(losses).item() == 17


@pytest.mark.parametrize("engine", ["dense", "rows", "twopass", "auto"])
@pytest.mark.parametrize("options", [{"trim": 2, "cap": 1.7}])
def test_a_step_trims_and_caps_with_every_engine(engine: Any, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(16, 6), torch.randint(0, 4, (16,))
    models = [nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 4)) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.5) for model in models]
    step = OrderedStep(models[0], CE, optimizers[0], q=5, engine=engine, trim_epochs=0, **options)
    for _ in range(3):
        record = step(x, y)
        loss = ordered_mean(CE(models[1](x), y), 5, **options)
        optimizers[1].zero_grad()
        loss.backward()
        optimizers[1].step()
        assert record.q == 5
        assert record.ordered_loss.item() == pytest.approx(loss.item(), rel=1e-5)
    for one, two in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-6)


def test_a_step_that_trims_never_takes_the_batch_for_kept_whole() -> None:
    model = nn.Linear(3, 2)
    step = OrderedStep(model, CE, torch.optim.SGD(model.parameters(), lr=0.1), q=1.0, trim=0.25, trim_epochs=0)
    assert step(torch.randn(8, 3), torch.randint(0, 2, (8,))).q == 6


@pytest.mark.parametrize("s", [8, 40, 3000])
@pytest.mark.parametrize("r", [1, 3, 7])
def test_ranks_after_the_largest_are_the_same_by_sorting_and_by_partition(s: int, r: int) -> None:
    values = np.random.default_rng(0).integers(0, max(2, s // 10), s).astype(np.float32)
    for q in (1, s // 2 - r if s // 2 > r else 1, s - r):
        expected = _top_rows_torch(torch.from_numpy(values), q, r)
        assert np.array_equal(_top_rows_numpy(values, q, r), expected)
        assert torch.equal(top_rows(torch.from_numpy(values), q, r), expected)


def test_weights_of_samples_and_of_elements_multiply_before_the_order() -> None:
    losses, weight = torch.rand(6, 4), torch.rand(6)
    loss_fn = OrderedLoss(lambda x: x, q=3, unit="token")
    expected = ordered_mean(losses * weight[:, None], 3, unit="token")
    assert loss_fn(losses, sample_weight=weight).item() == expected.item()
    assert loss_fn(losses, sample_weight=weight[:, None].expand(6, 4)).item() == expected.item()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"unit": "pixels"}, "unit must be one of sample, token, pixel, group; got 'pixels'. Did you mean 'pixel'?"),
        ({"within": "row"}, "within must be one of batch, sample; got 'row'"),
        ({"within": "sample"}, "within must be \"batch\" for unit='sample'; got 'sample'. Use unit="),
        ({"trim": 1.0}, r"trim must be a count or a share in [0, 1); got 1.0. Use trim=0.1"),
        ({"trim": -1}, r"trim must be a count or a share in [0, 1); got -1. Use trim=0.1"),
        ({"mix": 1.5}, "mix must lie in [0, 1]; got 1.5. Use mix=0"),
        ({"cap": 0.0}, "cap must be positive; got 0.0. Use cap=None"),
        ({"mix": "a"}, "mix must lie in [0, 1]; got 'a'. Use mix=0"),
        ({"trim": 1, "trim_epochs": -1}, "trim_epochs must be an int of at least 0; got -1. Use trim_epochs=0"),
    ],
)
def test_a_wrong_knob_gets_rule_value_and_remedy(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ArgumentError) as error:
        OrderedLoss(CE, q=0.5, **options)
    assert str(error.value).startswith(f"OrderedLoss: {text}")
    if "trim_epochs" not in options:
        with pytest.raises(ArgumentError) as error:
            ordered_mean(torch.ones(4), 2, **options)
        assert str(error.value).startswith(f"ordered_mean: {text}")


@pytest.mark.parametrize(
    ("losses", "options", "text"),
    [
        (torch.ones(4, 3), {"mask": torch.ones(4)}, "mask must be a tensor of the shape of the losses, (4, 3); got"),
        (torch.ones(4), {"mask": [1, 0, 1, 1]}, "mask must be a tensor of the shape of the losses, (4,); got list."),
        (
            torch.ones(4),
            {"mask": torch.tensor([0.0, 0.0, -torch.inf, 0.0])},
            f"mask must be {MASKED}; got -inf. Pass booleans: mask == 0 for a mask that is added",
        ),
        (torch.ones(4), {"mask": torch.zeros(4)}, f"mask must be {MASKED}; got only zeros. Pass booleans: mask == 0"),
        (torch.ones(4), {"mask": torch.tensor([1.0, 0.5, 0.0, 1.0])}, f"mask must be {MASKED}; got 0.5. Pass booleans"),
        (torch.ones(4), {"mask": torch.tensor([1.0, torch.nan, 0.0, 1.0])}, f"mask must be {MASKED}; got nan. Pass"),
        (torch.ones(4, 3), {"cap": 2.0}, "losses must be one loss per sample, shape (s,); got shape (4, 3)."),
        (torch.ones(4), {"unit": "group"}, 'ids must be given for unit="group" and no other; got none.'),
        (torch.ones(4), {"ids": torch.ones(4).long()}, 'ids must be given for unit="group" and no other; got some'),
        (torch.ones(4), {"unit": "group", "ids": torch.ones(4)}, "ids must be integers of shape (4,); got"),
        (torch.ones(0, 3), {"unit": "token"}, "losses must hold at least one sample; got none."),
        (torch.ones(2, 3).long(), {"unit": "token"}, "losses must be floating-point; got torch.int64."),
        (torch.tensor(1.0), {"unit": "token"}, "losses must be one loss per sample, shape (s,); got a scalar."),
        ([1.0, 2.0], {"unit": "token"}, "losses must be one loss per sample, shape (s,); got list."),
        (torch.ones(4), {"unit": "token", "within": "sample"}, 'losses must be (s, ...) for within="sample"; got'),
        (torch.ones(4), {"unit": "group", "ids": [0, 0, 1, 1]}, "ids must be integers of shape (4,); got list."),
        (torch.ones(4), {"scores": torch.ones(3)}, f"scores must be {FLOATS}; got torch.float32 of shape (3,). What"),
        (torch.ones(4), {"scores": torch.arange(4)}, f"scores must be {FLOATS}; got torch.int64 of shape (4,). What"),
        (torch.ones(4), {"scores": [1.0, 2.0]}, f"scores must be {FLOATS}; got list."),
        (torch.ones(4), {"always_keep": torch.ones(4)}, f"always_keep must be {MARKS}; got torch.float32 of shape ("),
        (torch.ones(4), {"always_keep": torch.ones(3).bool()}, f"always_keep must be {MARKS}; got torch.bool of sha"),
        (torch.ones(4), {"always_keep": None, "reduce": "sum"}, "reduce must be one of None, mean; got 'sum'. Use r"),
        (torch.ones(4, 3), {"reduce": "mean", "unit": "token"}, "reduce must be None for unit='token'; got 'mean'"),
        (torch.ones(4), {"reduce": "mean", "unit": "group", "ids": torch.arange(4)}, "reduce must be None for unit="),
    ],
)  # fmt: skip
def test_a_wrong_batch_gets_rule_value_and_remedy(losses: Any, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ArgumentError) as error:
        ordered_mean(losses, 2, **options)
    assert str(error.value).startswith(f"ordered_mean: {text}")


def test_a_rule_counts_samples_whatever_is_masked() -> None:
    losses, mask = torch.rand(40, requires_grad=True), torch.arange(40) < 20
    loss_fn = OrderedLoss(lambda x: x, q=FixedQ(0.25))
    assert loss_fn(losses, mask=mask).item() == pytest.approx(ordered_mean(losses[:20], 10).item())


def test_a_smaller_batch_keeps_as_many_samples_when_compiled_as_well() -> None:
    def kept(compiled: bool) -> int:
        loss_fn = OrderedLoss(CE, q=AccuracyRule())
        run = torch.compile(loss_fn, backend="eager") if compiled else loss_fn
        run(torch.randn(64, 3, requires_grad=True), torch.zeros(64, dtype=torch.int64))
        loss_fn.end_epoch(accuracy=1.0)
        x = torch.randn(16, 3, requires_grad=True)
        run(x, torch.zeros(16, dtype=torch.int64)).backward()
        assert x.grad is not None
        return int(x.grad.abs().sum(1).count_nonzero())

    assert kept(False) == kept(True) == 4


def sequences(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(outputs, y, reduction="none").mean(1)


def test_answers_are_counted_only_where_there_is_one_for_each_loss() -> None:
    outputs, y = torch.randn(16, 5, 20, requires_grad=True), torch.randint(0, 5, (16, 20))
    loss_fn = OrderedLoss(sequences, q=AccuracyRule())
    with pytest.raises(ArgumentError, match="OrderedLoss: the rule must find right answers to count in the first b"):
        loss_fn(outputs, y, mask=torch.ones(16))
    model = nn.Conv1d(4, 5, 1)
    step = OrderedStep(model, sequences, torch.optim.SGD(model.parameters(), lr=0.1), q=AccuracyRule())
    with pytest.raises(ArgumentError, match="OrderedStep: the rule must find right answers to count in the first b"):
        step(torch.randn(16, 4, 20), y)


def test_accuracy_of_groups_is_that_of_their_elements() -> None:
    y = torch.randint(0, 3, (24,))
    outputs = F.one_hot(y, 3).float().requires_grad_()
    loss_fn = OrderedLoss(lambda o, t: F.cross_entropy(o, t, reduction="none"), q=AccuracyRule(), unit="group")
    loss_fn(outputs, y, ids=torch.arange(24) // 8)
    loss_fn.end_epoch()
    assert loss_fn._policy.adaptive._last is not None
    assert loss_fn._policy.adaptive._last.accuracy == 1


def test_an_epoch_of_ignored_targets_has_no_accuracy() -> None:
    loss_fn = OrderedLoss(CE, q=AccuracyRule())
    loss_fn(torch.randn(4, 3, requires_grad=True), torch.full((4,), -100))
    with pytest.raises(ArgumentError, match="accuracy must be given"):
        loss_fn.end_epoch()


@pytest.mark.parametrize("rule", [AccuracyRule(), LossMassRule()])
def test_groups_of_which_nothing_is_valid_are_zero_for_every_rule(rule: Rule) -> None:
    loss_fn = OrderedLoss(CE, q=rule, unit="group")
    outputs = torch.randn(4, 3, requires_grad=True)
    for _ in range(2):  # as the first batch, and after one with groups
        found = loss_fn(outputs, torch.full((4,), -100), ids=torch.arange(4))
        found.backward()
        assert found.item() == 0
        loss_fn(outputs, torch.zeros(4).long(), ids=torch.arange(4))


def test_nothing_valid_is_zero_in_eval_mode_and_mixed_too() -> None:
    loss_fn = OrderedLoss(CE, q=0.5, unit="group").eval()
    assert loss_fn(torch.randn(4, 3), torch.full((4,), -100), ids=torch.arange(4)).item() == 0
    assert ordered_mean(torch.rand(0), 0.5, mask=torch.ones(0)).item() == 0
    assert ordered_mean(torch.rand(0, 5), 0.5, unit="token", within="sample", mask=torch.ones(0, 5)).item() == 0


def test_a_cap_is_for_training_and_does_not_hide_what_is_infinite() -> None:
    loss_fn = OrderedLoss(lambda x: x, q=1.0, cap=1.0)
    losses = torch.tensor([10.0, 0.5])
    assert loss_fn(losses).item() == 0.75
    assert loss_fn.eval()(losses).item() == 5.25
    assert ordered_mean(torch.tensor([torch.inf, 1.0]), 2, cap=1.0).item() == torch.inf
    model = nn.Linear(1, 1, bias=False)
    step = OrderedStep(
        model, lambda o, y: (o.squeeze(1) / y).abs(), torch.optim.SGD(model.parameters(), lr=0.1), q=2, cap=1.0
    )
    with pytest.raises(NonFiniteLossError):
        step(torch.ones(4, 1), torch.tensor([1.0, 1.0, 0.0, 1.0]))


@pytest.mark.parametrize(
    ("q", "options", "text"),
    [
        (torch.tensor([1, 2]), {}, "q must be a number; got a tensor of shape (2,). Pass one count per sample, with"),
        (torch.tensor(3), {}, "q must be a number; got a tensor of shape (). Pass one count per sample"),
        (torch.tensor([1]), {"within": "sample"}, "q must be a number, or hold one for each of 2 samples; got a ten"),
        (torch.ones(2), {"within": "sample"}, "q must be integers if it is a tensor; got torch.float32. Pass one co"),
        (torch.ones(2).bool(), {"within": "sample"}, "q must be integers if it is a tensor; got torch.bool. Pass one"),
        (torch.tensor([1, -2]), {"within": "sample"}, "q must be at least 0; got -2. Use 0 where nothing is to be k"),
        ("half", {"within": "sample"}, "q must be an int of at least 1 or a fraction in (0, 1]; got 'half'. Pass a"),
    ],
)  # fmt: skip
def test_a_wrong_amount_gets_rule_value_and_remedy(q: Any, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ArgumentError) as error:
        ordered_mean(torch.ones(2, 5), q, unit="token", **options)
    assert str(error.value).startswith(f"ordered_mean: {text}")


def test_a_negative_count_that_cannot_be_read_makes_the_mean_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    losses, options = torch.rand(2, 5), {"unit": "token", "within": "sample"}
    compiled = torch.compile(partial(ordered_mean, **options), backend="eager", fullgraph=True)  # type: ignore[arg-type]
    assert compiled(losses, torch.tensor([1, -1])).isnan()
    assert compiled(losses, torch.tensor([1, 0])).item() == losses[0].max().item()


@pytest.mark.parametrize(
    ("value", "at_least", "text"),
    [
        ("0.7", 1, "value must be a finite number; got '0.7'. Use -math.log(0.7) for a probability of 0.7."),
        (math.nan, 1, "value must be a finite number; got nan. Use"),
        (math.inf, 1, "value must be a finite number; got inf. Use"),
        (0.3, 0, "at_least must be an int of at least 1 or a fraction in (0, 1]; got 0. Use at_least=1 for no floor."),
        (0.3, 1.5, "at_least must be an int of at least 1 or a fraction in (0, 1]; got 1.5. Use"),
    ],
)
def test_a_wrong_threshold_gets_rule_value_and_remedy(value: Any, at_least: Any, text: str) -> None:
    with pytest.raises(ArgumentError) as error:
        Above(value, at_least)
    assert str(error.value).startswith(f"Above: {text}")


def test_a_threshold_is_refused_where_q_must_be_known_before_the_losses() -> None:
    with pytest.raises(ArgumentError, match=r"OrderedBatchSampler: q must be known before the losses; got Above\("):
        OrderedBatchSampler(64, 16, q=Above(1.0))  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="select_top_q: q must be an int of at least 1 or a fraction"):
        select_top_q(torch.ones(4), Above(1.0))  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"q must be a count, a share in \(0, 1\] or a rule; got Above"):
        as_rule(Above(1.0), "test")  # type: ignore[arg-type]


def test_with_a_threshold_q_is_the_floor_and_nothing_is_said_of_a_small_q() -> None:
    loss_fn = OrderedLoss(lambda x: x, q=Above(2.0, at_least=0.05))
    losses = torch.rand(100, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", TrapWarning)
        loss_fn(losses)
    assert (loss_fn.q, loss_fn.end_epoch()) == (5, 5)
    assert "q=Above(value=2.0, at_least=0.05)" in repr(loss_fn)


@pytest.mark.parametrize("q", [np.float32(0.5), np.int64(2), np.float64(0.5)])
def test_numbers_of_numpy_are_numbers(q: Any) -> None:
    losses = torch.arange(8.0).reshape(2, 4)
    assert ordered_mean(losses, q, unit="token", within="sample").item() == 4.5
    assert ordered_mean(losses.flatten(), 2, trim=np.int64(2)).item() == 4.5


@pytest.mark.parametrize("shape", [(4, 0), (1, 0), (4, 3, 0), (0, 5)])
def test_samples_without_any_token_are_a_zero_with_a_graph(shape: tuple[int, ...]) -> None:
    losses = torch.zeros(shape, requires_grad=True)
    for q in (2, 0.5, Above(1.0), torch.zeros(shape[0], dtype=torch.int64)):
        mask = torch.zeros(shape, dtype=torch.bool)
        value = ordered_mean(losses, q, unit="token", within="sample", mask=mask)
        value.backward()
        assert value.item() == 0


def test_a_nan_that_is_trimmed_makes_the_gradient_nan_as_well_so_that_a_scaler_sees_it() -> None:
    losses = torch.tensor([torch.nan, 3.0, 2.0, 1.0], requires_grad=True)
    ordered_mean(losses, 2, trim=1).backward()
    assert losses.grad is not None
    assert losses.grad.isnan().any()
