import functools
import io
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn import functional as F

from ordered_sgd import (
    AccuracyRule,
    FixedQ,
    LinearDecay,
    LossMassRule,
    OrderedLoss,
    OrderedStep,
    multiclass_hinge,
    ordered_mean,
)
from ordered_sgd import loss as loss_module
from ordered_sgd.errors import ArgumentError
from ordered_sgd.rules import Rule
from ordered_sgd.scores import entropy

CE = nn.CrossEntropyLoss(reduction="none")


def batch(s: int = 32, classes: int = 5) -> tuple[Tensor, Tensor]:
    return torch.randn(s, classes, requires_grad=True), torch.randint(0, classes, (s,))


@pytest.mark.parametrize("q", [1, 8, 0.25, 1.0, 100])
def test_in_training_it_is_the_ordered_mean_and_in_eval_the_plain_mean(q: float) -> None:
    logits, target = batch()
    loss_fn = OrderedLoss(CE, q=q)
    assert torch.equal(loss_fn(logits, target), ordered_mean(CE(logits, target), q))
    assert torch.equal(loss_fn.eval()(logits, target), CE(logits, target).mean())


@pytest.mark.parametrize(
    "criterion",
    [
        CE,
        functools.partial(F.cross_entropy, reduction="none"),
        multiclass_hinge,
        lambda outputs, target: F.cross_entropy(outputs, target, reduction="none").unsqueeze(1),
    ],
)
def test_modules_functions_and_partials_are_criteria(criterion: object) -> None:
    logits, target = batch()
    OrderedLoss(criterion, q=4)(logits, target).backward()  # type: ignore[arg-type]
    assert logits.grad is not None
    assert int((logits.grad.abs().sum(1) > 0).sum()) == 4


def test_a_criterion_of_three_inputs_or_of_time_first_inputs_works() -> None:
    triplet = OrderedLoss(nn.TripletMarginLoss(reduction="none"), q=2)
    assert triplet(*torch.randn(3, 6, 4)).dim() == 0
    ctc = OrderedLoss(nn.CTCLoss(reduction="none"), q=1)
    log_probs = torch.randn(12, 1, 5).log_softmax(2)
    lengths = torch.tensor([12]), torch.tensor([3])
    assert ctc(log_probs, torch.randint(1, 5, (1, 3)), *lengths).dim() == 0


@pytest.mark.parametrize(
    ("criterion", "value"),
    [
        (nn.CrossEntropyLoss(), "reduction='mean'"),
        (nn.MSELoss(reduction="sum"), "reduction='sum'"),
        (F.cross_entropy, "reduction='mean'"),
        (functools.partial(F.mse_loss, reduction="mean"), "reduction='mean'"),
        (OrderedLoss(CE, q=1), "an OrderedLoss"),
    ],
)
def test_a_criterion_that_can_be_seen_to_reduce_is_refused_at_construction(criterion: object, value: str) -> None:
    with pytest.raises(ArgumentError) as error:
        OrderedLoss(criterion, q=4)  # type: ignore[arg-type]
    text = str(error.value)
    assert text.startswith(f"OrderedLoss: criterion must return one loss per sample, shape (s,); got {value}. ")
    assert "none" in text or "wraps" in text


@pytest.mark.parametrize(
    ("criterion", "value"),
    [
        (lambda outputs, target: F.cross_entropy(outputs, target), "a scalar"),
        (lambda outputs, target: F.cross_entropy(outputs, target).reshape(1), "shape (1,) for a batch of 32"),
        (
            lambda outputs, target: F.cross_entropy(outputs, target, reduction="none")[:5],
            "shape (5,) for a batch of 32",
        ),
    ],
)
def test_a_hidden_reduction_is_refused_at_the_first_call(criterion: object, value: str) -> None:
    loss_fn = OrderedLoss(criterion, q=AccuracyRule())  # type: ignore[arg-type]
    with pytest.raises(ArgumentError) as error:
        loss_fn(*batch())
    assert f"got {value}. " in str(error.value)
    assert 'Build it with reduction="none".' in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"q": 0}, "q must be an int of at least 1 or a fraction in (0, 1]; got 0. Use q=1"),
        ({"q": None}, "q must be a count, a share in (0, 1] or a rule; got None. Use q=0.5 to keep half"),
        ({"q": "half"}, "q must be a count, a share in (0, 1] or a rule; got 'half'. Use q=0.5 to keep half"),
        ({"q": 4, "selection": "rand"}, "selection must be one of top, random; got 'rand'. Did you mean 'random'?"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, object], text: str) -> None:
    with pytest.raises(ArgumentError) as error:
        OrderedLoss(CE, **arguments)  # type: ignore[arg-type]
    assert str(error.value).startswith(f"OrderedLoss: {text}")


def test_something_that_is_not_callable_is_no_criterion() -> None:
    with pytest.raises(ArgumentError, match=r"criterion must be callable; got 'ce'. Pass a loss module or function."):
        OrderedLoss("ce", q=1)  # type: ignore[arg-type]


def test_sample_weights_multiply_the_losses_before_they_are_ordered() -> None:
    logits, target = batch()
    weight = torch.rand(32)
    expected = ordered_mean(CE(logits, target) * weight, 5)
    assert torch.equal(OrderedLoss(CE, q=5)(logits, target, sample_weight=weight), expected)
    evaluated = OrderedLoss(CE, q=5).eval()(logits, target, sample_weight=weight)
    assert torch.equal(evaluated, (CE(logits, target) * weight).mean())
    with pytest.raises(
        ArgumentError, match=r"sample_weight must have shape \(s,\); got shape \(31,\) for 32 losses. Pass"
    ):
        OrderedLoss(CE, q=5)(logits, target, sample_weight=weight[:31])


def feed(loss_fn: OrderedLoss, share_right: float, s: int = 64) -> None:
    target = torch.zeros(s, dtype=torch.int64)
    logits = torch.zeros(s, 2)
    logits[:, 1] = 1.0
    logits[: round(share_right * s), 0] = 2.0
    loss_fn(logits.requires_grad_(), target)


def test_the_paper_s_rule_counts_right_answers_by_itself_and_moves_q_at_the_end_of_the_epoch() -> None:
    loss_fn = OrderedLoss(CE, q=AccuracyRule())
    assert loss_fn.q is None
    feed(loss_fn, 0.5)
    feed(loss_fn, 1.0)
    assert loss_fn.q == 64
    assert loss_fn.end_epoch() == 64  # 75 %
    feed(loss_fn, 61 / 64)
    assert loss_fn.end_epoch() == 8  # 95.3 %: two levels skipped
    feed(loss_fn, 0.5)
    assert loss_fn.end_epoch() == 8  # it does not grow back
    assert loss_fn.epoch == 3


def test_a_given_accuracy_wins_over_the_counted_one() -> None:
    loss_fn = OrderedLoss(CE, q=AccuracyRule())
    feed(loss_fn, 1.0)
    assert loss_fn.end_epoch(accuracy=0.85) == 32


def test_validation_without_gradients_or_in_eval_mode_does_not_move_q() -> None:
    loss_fn = OrderedLoss(CE, q=AccuracyRule())
    feed(loss_fn, 0.0)
    with torch.no_grad():
        feed(loss_fn, 1.0)
        feed(loss_fn, 1.0)
        feed(loss_fn, 1.0, s=1000)
    loss_fn.eval()
    feed(loss_fn, 1.0, s=128)
    assert loss_fn._policy.q_for(10**6) == 10**6
    assert loss_fn.end_epoch() == 64
    assert loss_fn.q == 64


def test_accuracy_is_asked_for_when_it_cannot_be_counted() -> None:
    loss_fn = OrderedLoss(nn.MSELoss(reduction="none"), q=AccuracyRule(), accuracy="given")
    loss_fn(torch.randn(8, requires_grad=True), torch.randn(8))
    with pytest.raises(ArgumentError, match=r"OrderedLoss.end_epoch: accuracy must be given; got None. Pass accuracy="):
        loss_fn.end_epoch()
    with pytest.raises(
        ArgumentError, match=r"accuracy must be a share in \[0, 1\]; got 93.0. Divide a percentage by 100."
    ):
        loss_fn.end_epoch(accuracy=93.0)
    assert loss_fn.end_epoch(accuracy=0.93) == 2


def test_an_epoch_without_a_batch_cannot_end() -> None:
    with pytest.raises(
        ArgumentError, match=r"at least one batch must come before the end of an epoch; got none. Call it"
    ):
        OrderedLoss(CE, q=4).end_epoch()


def test_a_rule_divides_the_largest_batch_seen_and_a_smaller_one_keeps_what_it_has() -> None:
    loss_fn = OrderedLoss(CE, q=FixedQ(0.5))
    loss_fn(*batch(16))
    assert loss_fn.q == 8
    loss_fn(*batch(64))
    assert loss_fn.q == 32
    assert loss_fn._policy.q_for(40) == 32
    assert loss_fn._policy.q_for(10) == 10


def test_a_larger_batch_in_a_later_epoch_gets_the_rule_s_answer_for_its_size() -> None:
    loss_fn = OrderedLoss(CE, q=AccuracyRule())
    feed(loss_fn, 1.0, s=16)
    assert loss_fn.end_epoch(accuracy=0.91) == 4
    assert loss_fn._policy.q_for(64) == 16


def test_a_larger_batch_does_not_make_the_paper_s_rule_grow_back() -> None:
    loss_fn = OrderedLoss(CE, q=AccuracyRule())
    feed(loss_fn, 1.0)
    assert loss_fn.end_epoch(accuracy=0.96) == 8
    feed(loss_fn, 1.0)
    assert loss_fn.end_epoch(accuracy=0.85) == 8
    feed(loss_fn, 1.0, s=128)
    assert loss_fn.q == 16


@pytest.mark.parametrize("answer", [0, 65, 8.0, None])
def test_a_rule_that_answers_nonsense_is_named(answer: object) -> None:
    class Wrong:
        needs = None

        def first_q(self, s: int) -> object:
            return answer

        next_q = first_q

    with pytest.raises(ArgumentError, match=r"the rule's q must be an int from 1 to s = 64; got .* Clip what"):
        OrderedLoss(CE, q=Wrong())(*batch(64))  # type: ignore[arg-type]


def test_a_fixed_q_is_not_overwritten_by_a_loaded_state() -> None:
    first, second = OrderedLoss(CE, q=8, trim=1), OrderedLoss(CE, q=16, trim=1)
    first(*batch(64))
    second.load_state_dict(first.state_dict())
    assert (second.q, second.end_epoch()) == (16, 16)


class WithLoss(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.layer, self.loss_fn = nn.Linear(4, 3), OrderedLoss(nn.CrossEntropyLoss(reduction="none"), **options)


def test_with_a_fixed_q_a_model_that_holds_a_loss_loads_any_checkpoint_of_the_model() -> None:
    plain = nn.ModuleDict({"layer": nn.Linear(4, 3)})
    model = WithLoss(q=0.25)
    model.load_state_dict(plain.state_dict())
    assert list(model.state_dict()) == list(plain.state_dict())
    plain.load_state_dict(model.state_dict())
    model.load_state_dict(WithLoss(q=AccuracyRule()).state_dict())  # of a training with a rule: nothing to take up


@pytest.mark.parametrize("options", [{"q": AccuracyRule()}, {"q": 4, "selection": "random"}, {"q": 4, "trim": 1}])
def test_where_something_moves_a_checkpoint_must_carry_it(options: dict[str, Any]) -> None:
    model = WithLoss(**options)
    assert "loss_fn._extra_state" in model.state_dict()
    with pytest.raises(RuntimeError, match=r"Missing key.*loss_fn\._extra_state"):
        model.load_state_dict(WithLoss(q=4).state_dict())


def test_outputs_that_broadcast_against_targets_are_named_with_both_shapes() -> None:
    loss_fn = OrderedLoss(nn.MSELoss(reduction="none"), q=4)
    text = r"got shape \(8, 8\) from \(8, 1\) and \(8,\). Give outputs and targets the same shape."
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of it too
        with pytest.raises(ArgumentError, match=text):
            loss_fn(torch.randn(8, 1, requires_grad=True), torch.randn(8))


def test_a_criterion_that_brings_targets_to_the_shape_of_its_outputs_is_taken() -> None:
    def binary(outputs: Tensor, y: Tensor) -> Tensor:
        return nn.functional.binary_cross_entropy_with_logits(outputs, y[:, None].float(), reduction="none")

    outputs, y = torch.randn(32, 1, requires_grad=True), torch.randint(0, 2, (32,))
    expected = binary(outputs, y).flatten().sort().values[-8:].mean()
    torch.testing.assert_close(OrderedLoss(binary, q=8)(outputs, y), expected)


def test_an_epoch_cannot_end_twice_and_named_arguments_are_counted() -> None:
    loss_fn = OrderedLoss(CE, q=AccuracyRule())
    logits = torch.eye(8, requires_grad=True)
    loss_fn(input=logits, target=torch.arange(8))
    assert loss_fn.end_epoch() == 1
    with pytest.raises(ArgumentError, match="at least one batch must come before the end of an epoch; got none"):
        loss_fn.end_epoch()


def test_a_rule_without_parentheses_is_named() -> None:
    with pytest.raises(ArgumentError, match=r"got <class .*AccuracyRule'>. Pass an instance: q=AccuracyRule\(\)\."):
        OrderedLoss(CE, q=AccuracyRule)  # type: ignore[arg-type]


def test_outputs_in_a_dict_do_not_hide_a_reduction() -> None:
    loss_fn = OrderedLoss(lambda outputs, y: F.cross_entropy(outputs["logits"], y["label"]).reshape(1), q=1)
    logits, target = batch()
    with pytest.raises(ArgumentError, match=r"got shape \(1,\) for a batch of 32"):
        loss_fn({"logits": logits}, {"label": target})


def test_a_share_given_as_q_is_a_share_of_the_batch_at_hand() -> None:
    loss_fn = OrderedLoss(CE, q=0.5)
    loss_fn(*batch(64))
    assert loss_fn._policy.q_for(64) == 32
    assert loss_fn._policy.q_for(40) == 20
    assert loss_fn.end_epoch() == 32


def test_loss_mass_follows_the_share_of_the_loss_over_batches_of_different_size() -> None:
    loss_fn = OrderedLoss(lambda losses: losses, q=LossMassRule(0.9))
    loss_fn(torch.tensor([9.0, 1.0, 0.0, 0.0]).requires_grad_())
    loss_fn(torch.tensor([0.0, 5.0]).requires_grad_())
    loss_fn(torch.tensor([0.0, 1.0, 9.0, 0.0]).requires_grad_())
    assert loss_fn.end_epoch() == 1
    loss_fn(torch.ones(4).requires_grad_())
    assert loss_fn.end_epoch() == 4  # it may grow back
    loss_fn(torch.zeros(4).requires_grad_())
    assert loss_fn.end_epoch() == 1  # nothing to carry


@pytest.mark.parametrize("masked", [False, True])
def test_loss_mass_counts_nothing_that_is_trimmed(masked: bool) -> None:
    """Of 1000, 6, 3, 1 and six zeros the first is trimmed; two of the others carry 90 %."""
    loss_fn = OrderedLoss(lambda losses: losses, q=LossMassRule(0.9), trim=1, trim_epochs=0)
    losses = torch.tensor([3.0, 1000.0, 6.0, 1.0, *[0.0] * 6])
    mask = None
    if masked:
        losses, mask = torch.cat([losses, torch.full((10,), 500.0)]), torch.arange(20) < 10
    loss_fn(losses.requires_grad_(), mask=mask)
    assert loss_fn.end_epoch() == (3 if masked else 2)  # 2 of 10 are more than 2 of 20
    step = OrderedStep(
        model := nn.Linear(1, 1),
        lambda o, y: y + 0 * o[:, 0],
        torch.optim.SGD(model.parameters()),
        q=LossMassRule(0.9),
        trim=1,
        trim_epochs=0,
    )
    step(torch.ones(10, 1), losses.detach()[:10])
    assert step.end_epoch() == 2


def test_loss_mass_sees_a_nan_although_it_would_be_trimmed() -> None:
    loss_fn = OrderedLoss(lambda losses: losses, q=LossMassRule(0.9), trim=1, trim_epochs=0)
    loss_fn(torch.tensor([torch.nan, 1.0, 1.0, 1.0]).requires_grad_())
    with pytest.raises(ArgumentError, match="LossMassRule: loss_share must be observed; got None"):
        loss_fn.end_epoch()


def test_loss_mass_grows_its_curve_with_the_batch_and_leaves_out_batches_that_are_not_finite() -> None:
    loss_fn = OrderedLoss(lambda losses: losses, q=LossMassRule(0.9))
    loss_fn(torch.tensor([1.0, 0.0]).requires_grad_())
    loss_fn(torch.tensor([1.0, 1.0, 0.0, 0.0]).requires_grad_())
    loss_fn(torch.tensor([torch.nan, 1.0, 1.0, 1.0]).requires_grad_())
    # curves (1, 1) -> (1, 1, 1, 1) and (.5, 1, 1, 1), weighted 2 to 4: the mean carries 67 %, then all
    assert loss_fn.end_epoch() == 2


def test_loss_mass_weighs_a_batch_by_its_size() -> None:
    loss_fn = OrderedLoss(lambda losses: losses, q=LossMassRule(0.9))
    for _ in range(2):
        loss_fn(torch.arange(1.0, 65.0).requires_grad_())
        alone = loss_fn.end_epoch()
        loss_fn(torch.arange(1.0, 65.0).requires_grad_())
        loss_fn(torch.ones(1).requires_grad_())
        assert abs(loss_fn.end_epoch() - alone) <= 1


def test_an_epoch_of_nothing_but_nan_leaves_loss_mass_without_an_answer() -> None:
    loss_fn = OrderedLoss(lambda losses: losses, q=LossMassRule())
    loss_fn(torch.full((4,), torch.nan).requires_grad_())
    with pytest.raises(ArgumentError, match="LossMassRule: loss_share must be observed; got None"):
        loss_fn.end_epoch()


@pytest.mark.parametrize("rule", [AccuracyRule(), LossMassRule(0.8), LinearDecay(epochs=5)])
def test_a_state_restored_in_the_middle_of_an_epoch_goes_on_as_if_nothing_had_happened(rule: Rule) -> None:
    def epochs(loss_fn: OrderedLoss, numbers: range) -> list[int]:
        moved = []
        for number in numbers:
            for s in (24, 64, 40):
                feed(loss_fn, share_right=0.5 + number / 8, s=s)
            moved.append(loss_fn.end_epoch())
        return moved

    first = OrderedLoss(CE, q=rule)
    epochs(first, range(2))
    feed(first, 1.0)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second = OrderedLoss(CE, q=rule)
    second.load_state_dict(torch.load(file, weights_only=True))
    assert (second.q, second.epoch) == (first.q, 2)
    moved = epochs(first, range(2, 5))
    assert epochs(second, range(2, 5)) == moved
    assert moved[-1] < 64


@pytest.mark.parametrize("wrong", [{}, {"policy": {}}, torch.zeros(3)], ids=["empty", "of a step", "a tensor"])
def test_a_state_of_something_else_is_named(wrong: Any) -> None:
    loss_fn = OrderedLoss(CE, q=AccuracyRule())
    with pytest.raises(
        ArgumentError, match=r"^OrderedLoss.load_state_dict: the state of q must hold q, s, epoch, .*; got"
    ):
        loss_fn.load_state_dict({"_extra_state": wrong})


def test_the_random_control_keeps_q_rows_from_its_own_generator() -> None:
    logits, target = batch()
    global_state = torch.get_rng_state()
    loss_fn = OrderedLoss(CE, q=8, selection="random", generator=torch.Generator().manual_seed(5))
    rows = torch.randperm(32, generator=torch.Generator().manual_seed(5))[:8].sort().values
    assert torch.equal(loss_fn(logits, target), CE(logits, target)[rows].mean())
    assert torch.equal(torch.get_rng_state(), global_state)
    state = loss_fn.state_dict()
    following = loss_fn(logits, target)
    loss_fn.load_state_dict(state)
    assert torch.equal(loss_fn(logits, target), following)
    assert "random" in repr(loss_fn)


def test_the_repr_names_the_score_that_orders() -> None:
    assert "score" not in repr(OrderedLoss(CE, q=8))
    assert OrderedLoss(CE, q=8, score=entropy, trim=2).extra_repr() == "q=8, score=entropy, trim=2"
    partly = functools.partial(entropy)
    assert f"score={partly!r}" in OrderedLoss(CE, q=8, score=partly).extra_repr()


@pytest.mark.parametrize("rule", [AccuracyRule(), LossMassRule()])
def test_it_compiles_without_a_graph_break_and_without_a_recompile_per_step(rule: object) -> None:
    loss_fn = OrderedLoss(CE, q=rule)  # type: ignore[arg-type]
    eager = OrderedLoss(CE, q=rule)  # type: ignore[arg-type]
    torch._dynamo.reset()
    graphs = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(loss_fn, fullgraph=True, backend=graphs)
    for _ in range(8):
        logits, target = batch(64)
        torch.testing.assert_close(compiled(logits, target), eager(logits, target))
    assert graphs.frame_count <= 2  # the first call, and the first with sums to add to
    assert loss_fn.end_epoch() == eager.end_epoch()


class Graphs:
    """A criterion's rows that were computed with a graph, counted from inside torch's function."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows: list[int] = []
        right = F.cross_entropy

        def counted(outputs: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            if torch.is_grad_enabled():
                self.rows.append(outputs.shape[0])
            return right(outputs, *args, **kwargs)

        monkeypatch.setattr(F, "cross_entropy", counted)


def words(s: int = 16, classes: int = 7, length: int = 5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(s, length, classes, generator=generator).transpose(1, 2)
    target = torch.randint(0, classes, (s, length), generator=generator)
    target[3, 2:], target[5], target[7, 0] = -100, -100, -100
    return logits.detach().requires_grad_(), target


LARGE: list[tuple[dict[str, Any], Callable[[], tuple[Tensor, Tensor]]]] = [
    ({}, lambda: batch(16)),
    ({"trim": 2, "trim_epochs": 0}, lambda: batch(16)),
    ({"cap": 6.0}, lambda: batch(16)),
    ({"selection": "random"}, lambda: batch(16)),
    ({"q": AccuracyRule((0.0,), (8,))}, lambda: batch(16)),
    ({}, words),
    ({"trim": 2, "trim_epochs": 0, "selection": "random"}, words),
    ({"cap": 5.0}, words),
]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("options", "make"), LARGE)
def test_where_outputs_are_large_the_criterion_has_a_graph_for_the_kept_samples_only(
    options: dict[str, Any], make: Any, weighted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {}
    graphs = Graphs(monkeypatch)
    for large in (2**60, 0):
        monkeypatch.setattr(loss_module, "SCORED_FROM", large)
        loss_fn = OrderedLoss(nn.CrossEntropyLoss(reduction="none"), **{"q": 0.25, **options})
        torch.manual_seed(0)
        (outputs, target), graphs.rows = make(), []
        weight = torch.linspace(0.5, 2, 16) if weighted else None
        values = []
        for _ in range(2):
            loss = loss_fn(outputs, target, sample_weight=weight)
            loss.backward()
            values.append(loss.item())
            if isinstance(options.get("q"), AccuracyRule):
                loss_fn.end_epoch()
        found[large] = (values, outputs.grad, loss_fn.q, graphs.rows)
    (values, grad, q, whole), (kept_values, kept_grad, kept_q, some) = found[2**60], found[0]
    assert values == kept_values
    assert q == kept_q
    assert grad is not None
    torch.testing.assert_close(kept_grad, grad)
    assert grad.abs().sum() > 0
    assert whole == [16, 16]
    assert some[-1] in (2, 3, 4)  # of 16 samples, of which one may have no valid word


def test_a_criterion_that_is_not_known_to_look_at_each_sample_has_its_whole_graph(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loss_module, "SCORED_FROM", 0)
    outputs, target = batch(16)
    coupled = OrderedLoss(lambda x, y: F.cross_entropy(x - x.mean(0), y, reduction="none"), q=2)
    coupled(outputs, target).backward()
    assert outputs.grad is not None
    assert (outputs.grad.abs().sum(1) > 0).all()


def test_a_batch_without_a_valid_word_gives_zero_with_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_module, "SCORED_FROM", 0)
    outputs, target = words()
    loss = OrderedLoss(nn.CrossEntropyLoss(reduction="none"), q=2)(outputs, torch.full_like(target, -100))
    loss.backward()
    assert (loss.item(), float(outputs.grad.abs().sum())) == (0.0, 0.0)  # type: ignore[union-attr]
