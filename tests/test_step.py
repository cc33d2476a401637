import copy
import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ordered_sgd import AccuracyRule, LossMassRule, OrderedStep, StepRecord, ordered_mean, select_top_q
from ordered_sgd.engines import Memory, Rows
from ordered_sgd.errors import ArgumentError
from tests.step_parts import CE, OPTIMIZERS, batch, network, same, sgd, weights


@pytest.mark.parametrize("optimizer_class", OPTIMIZERS)
@pytest.mark.parametrize("q", [1, 8, 0.5])
def test_fifty_steps_are_the_hand_written_loop_bit_for_bit(optimizer_class: type, q: float) -> None:
    by_hand, ours = network(), network()
    ours.load_state_dict(by_hand.state_dict())
    hand_optimizer = optimizer_class(by_hand.parameters(), lr=0.01)
    step = OrderedStep(ours, CE, optimizer_class(ours.parameters(), lr=0.01), q=q)
    for _ in range(50):
        x, y = batch()
        loss = ordered_mean(CE(by_hand(x), y), q)
        hand_optimizer.zero_grad()
        loss.backward()
        hand_optimizer.step()
        assert torch.equal(step(x, y).ordered_loss, loss.detach())
    assert same(weights(by_hand), weights(ours))


def test_q_equal_to_s_is_mini_batch_sgd_bit_for_bit_over_fifty_steps() -> None:
    plain, ours = network(), network()
    ours.load_state_dict(plain.state_dict())
    plain_optimizer, step = sgd(plain), OrderedStep(ours, CE, sgd(ours), q=32)
    for _ in range(50):
        x, y = batch()
        plain_optimizer.zero_grad()
        nn.functional.cross_entropy(plain(x), y).backward()
        plain_optimizer.step()
        step(x, y)
    assert same(weights(plain), weights(ours))


def test_q_of_one_on_all_the_data_is_the_maximal_loss() -> None:
    model = network()
    x, y = batch(40)
    losses = CE(model(x), y)
    expected = torch.autograd.grad(losses.max(), list(model.parameters()))
    record = OrderedStep(model, CE, torch.optim.SGD(model.parameters(), lr=0.0), q=1)(x, y)
    assert record.rows.tolist() == [int(losses.argmax())]
    assert same(list(expected), [p.grad for p in model.parameters() if p.grad is not None])


def test_the_same_seed_gives_the_same_bits() -> None:
    def run() -> list[Tensor]:
        torch.manual_seed(7)
        model = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, 4))
        step = OrderedStep(model, CE, sgd(model), q=AccuracyRule(thresholds=(0.1, 0.2), divisors=(2, 4)))
        for _ in range(3):
            for _ in range(10):
                step(*batch())
            step.end_epoch()
        return weights(model)

    assert same(run(), run())


def test_the_record_holds_both_losses_the_rows_and_what_was_counted_detached() -> None:
    model = network()
    x, y = batch()
    outputs = model(x).detach()
    record = OrderedStep(model, CE, sgd(model), q=8)(x, y)
    assert isinstance(record, StepRecord)
    losses = CE(outputs, y)
    assert torch.equal(record.losses, losses)
    assert torch.equal(record.rows, select_top_q(losses, 8))
    assert torch.equal(record.ordered_loss, ordered_mean(losses, 8))
    assert torch.equal(record.mean_loss, losses.mean())
    assert (record.q, record.count, record.engine) == (8, 32, "dense")
    assert record.correct == (outputs.argmax(1) == y).sum()
    assert not any(t.requires_grad for t in (record.losses, record.ordered_loss, record.mean_loss, record.rows))


def test_regression_has_no_right_answers_to_count() -> None:
    model = nn.Linear(6, 1)
    record = OrderedStep(model, nn.MSELoss(reduction="none"), sgd(model), q=0.5)(torch.randn(8, 6), torch.randn(8, 1))
    assert record.correct is None
    assert record.q == 4


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(6, 4), nn.Linear(6, 4)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.left(left) + self.right(right)


def test_tuples_dicts_and_a_forward_function_reach_the_model() -> None:
    model = TwoInputs()
    (x1, y), (x2, _) = batch(), batch()
    records = []
    for x, forward in [
        ((x1, x2), None),
        ([x1, x2], None),
        ({"left": x1, "right": x2}, None),
        (torch.stack([x1, x2]), lambda model, x: model(x[0], x[1])),
    ]:
        copied = copy.deepcopy(model)
        records.append(OrderedStep(copied, CE, sgd(copied), q=4, forward=forward)(x, y))
    assert all(torch.equal(r.losses, records[0].losses) for r in records)


def test_a_scheduler_and_zeroed_gradients_work_as_in_any_loop() -> None:
    model = network()
    optimizer = sgd(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.0)
    step = OrderedStep(model, CE, optimizer, q=4)
    step(*batch())
    scheduler.step()
    before = weights(model)
    step(*batch())
    assert same(before, weights(model))


def test_the_rule_sees_the_accuracy_of_the_steps() -> None:
    model = network()
    step = OrderedStep(model, CE, sgd(model), q=AccuracyRule(thresholds=(0.0,), divisors=(4,)))
    assert step.q is None
    assert step(*batch(64)).q == 64
    assert step(*batch(30)).q == 30
    assert step.end_epoch() == 16
    assert step(*batch(64)).q == 16
    assert step.q == 16
    assert step.end_epoch(accuracy=1.0) == 16
    assert step.epoch == 2
    assert "losses" not in repr(step(*batch()))


def test_a_batch_smaller_than_sixteen_keeps_one_sample_under_the_paper_s_rule() -> None:
    model = network()
    step = OrderedStep(model, CE, sgd(model), q=AccuracyRule())
    step(*batch(8))
    assert step.end_epoch(accuracy=1.0) == 1
    assert step(*batch(8)).q == 1


def test_clipping_bounds_the_norm_of_the_gradient() -> None:
    model = network()
    before = weights(model)
    OrderedStep(model, CE, torch.optim.SGD(model.parameters(), lr=1.0), q=4, max_grad_norm=0.01)(*batch())
    moved = torch.cat([(a - b).flatten() for a, b in zip(before, weights(model), strict=True)]).norm()
    torch.testing.assert_close(moved, torch.tensor(0.01), rtol=1e-3, atol=0)


@pytest.mark.parametrize("max_grad_norm", [None, 0.5])
def test_a_grad_scaler_gives_the_same_update_and_skips_an_overflow(max_grad_norm: float | None) -> None:
    x, y = batch()
    plain, scaled = network(), network()
    scaled.load_state_dict(plain.state_dict())
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    OrderedStep(plain, CE, sgd(plain), q=4, max_grad_norm=max_grad_norm)(x, y)
    step = OrderedStep(scaled, CE, sgd(scaled), q=4, scaler=scaler, max_grad_norm=max_grad_norm)
    step(x, y)
    for a, b in zip(weights(plain), weights(scaled), strict=True):
        torch.testing.assert_close(a, b)
    before = weights(scaled)
    scaler.update(1e38)
    step(x * 1e3, y)
    assert same(before, weights(scaled))
    assert scaler.get_scale() < 1e38


def test_steps_inside_one_autocast_block_see_the_updated_weights() -> None:
    model = network()
    step = OrderedStep(model, CE, sgd(model), q=0.5)
    x, y = batch()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses = [float(step(x, y).mean_loss) for _ in range(20)]
    assert losses[-1] < losses[0]
    assert len(set(losses)) == 20


@pytest.mark.parametrize("engine", ["dense", "rows", "twopass"])
def test_autocast_around_the_step_and_inside_it_give_the_gradient_of_torch_s_loop(engine: str) -> None:
    """And inside, without .float(), bfloat16 losses and what they order: as docs/loop.md says."""
    built, (x, y) = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)), batch(64)
    x = torch.randn(64, 64)

    def mixed(model: nn.Module, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            outputs: Tensor = model(x)
        return outputs

    def by_hand() -> list[Tensor]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = ordered_mean(CE(model(x), y), 8)
        loss.backward()
        return [p.grad for p in model.parameters() if p.grad is not None]

    def by_step(around: bool, forward: Any) -> tuple[StepRecord, list[Tensor]]:
        model = copy.deepcopy(built)
        step = OrderedStep(model, CE, torch.optim.SGD(model.parameters(), lr=0.0), q=8, engine=engine, forward=forward)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=around):
            record = step(x, y)
        assert record.engine == engine
        return record, [p.grad for p in model.parameters() if p.grad is not None]

    model = copy.deepcopy(built)
    expected = by_hand()
    outside, gradient = by_step(True, None)
    assert same(gradient, expected)
    inside, gradient = by_step(False, lambda model, x: mixed(model, x).float())
    assert same(gradient, expected)
    half, _ = by_step(False, mixed)
    assert outside.losses.dtype == inside.losses.dtype == half.ordered_loss.dtype == torch.float32
    assert half.losses.dtype == torch.bfloat16
    assert half.losses.unique().shape[0] < inside.losses.unique().shape[0] == 64


def test_sample_weights_reach_the_ordering() -> None:
    model = network()
    x, y = batch()
    weight = torch.zeros(32)
    weight[[3, 9]] = 1.0
    record = OrderedStep(model, CE, sgd(model), q=2)(x, y, sample_weight=weight)
    assert record.rows.tolist() == [3, 9]


@pytest.mark.parametrize("engine", ["dense", "rows", "twopass"])
def test_a_deep_copy_trains_like_the_original_and_leaves_it_alone(engine: str) -> None:
    torch.manual_seed(0)
    model = network()
    step = OrderedStep(model, CE, sgd(model), q=8, engine=engine)
    step(*batch())
    copied, before, (x, y) = copy.deepcopy(step), weights(model), batch()
    record = copied(x, y)
    assert record.engine == engine
    assert same(weights(model), before)
    step(x, y)
    torch.testing.assert_close(weights(copied.model), weights(model))


def test_the_random_control_keeps_q_at_random_and_resumes() -> None:
    x, y = batch()
    model = network()
    step = OrderedStep(model, CE, sgd(model), q=4, selection="random", generator=torch.Generator().manual_seed(1))
    step(x, y)
    state = copy.deepcopy(step.state_dict())
    expected = step(x, y).rows
    other = OrderedStep(model, CE, sgd(model), q=4, selection="random")
    other.load_state_dict(state)
    assert torch.equal(other(x, y).rows, expected)
    assert not torch.equal(expected, select_top_q(CE(model(x), y), 4))


@pytest.mark.parametrize("rule", [AccuracyRule(thresholds=(0.1,), divisors=(4,)), LossMassRule(0.7)])
def test_a_run_saved_and_resumed_ends_with_the_same_bits(rule: AccuracyRule | LossMassRule) -> None:
    data = [batch() for _ in range(12)]

    def build() -> tuple[nn.Module, torch.optim.SGD, OrderedStep]:
        torch.manual_seed(3)
        model = network()
        optimizer = sgd(model)
        return model, optimizer, OrderedStep(model, CE, optimizer, q=rule)

    def train(step: OrderedStep, start: int, stop: int) -> None:
        for number in range(start, stop):
            step(*data[number])
            if number % 4 == 3:
                step.end_epoch()

    whole_model, _, whole = build()
    train(whole, 0, 12)
    model, optimizer, step = build()
    train(step, 0, 6)
    file = io.BytesIO()
    torch.save([model.state_dict(), optimizer.state_dict(), step.state_dict()], file)
    file.seek(0)
    states = torch.load(file, weights_only=True)
    model, optimizer, step = build()
    for part, state in zip((model, optimizer, step), states, strict=True):
        part.load_state_dict(state)
    train(step, 6, 12)
    assert same(weights(whole_model), weights(model))
    assert (step.steps, step.q) == (12, whole.q)


@pytest.mark.skipif(not torch.accelerator.is_available(), reason="needs an accelerator")
def test_a_step_on_an_accelerator_reads_nothing_back() -> None:
    device = torch.accelerator.current_accelerator()
    model = network().to(device)
    step = OrderedStep(model, CE, sgd(model), q=AccuracyRule())
    x, y = (t.to(device) for t in batch())
    step(x, y)
    if device.type == "cuda":
        torch.cuda.set_sync_debug_mode("error")
    try:
        record = step(x, y)
    finally:
        if device.type == "cuda":
            torch.cuda.set_sync_debug_mode("default")
    assert record.losses.device.type == device.type
    step.end_epoch()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            {"q": 4, "engine": "dence"},
            "engine must be one of auto, dense, rows, twopass, memory; got 'dence'. Did you mean 'dense'?",
        ),
        (
            {"q": 4, "engine": Rows},
            "engine must be a name or an engine's value; got <class 'ordered_sgd.engines.rows.Rows'>. Use engine=",
        ),
        ({"q": 4, "engine": 9}, "engine must be a name or an engine's value; got 9. Use engine="),
        ({"q": 4, "nonfinite": "ignore"}, "nonfinite must be one of raise, skip; got 'ignore'. Use nonfinite='raise'"),
        (
            {"q": 4, "max_grad_norm": 0},
            "max_grad_norm must be positive; got 0. Use max_grad_norm=None for no clipping.",
        ),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, object], text: str) -> None:
    model = network()
    with pytest.raises(ArgumentError) as error:
        OrderedStep(model, CE, sgd(model), **arguments)  # type: ignore[arg-type]
    assert str(error.value).startswith(f"OrderedStep: {text}")


def of_another_model(model: nn.Module) -> torch.optim.Optimizer:
    return sgd(network())


def made_before_its_parameters_were_frozen(model: nn.Module) -> torch.optim.Optimizer:
    """As when LoRA is added after the optimizer was built: new parameters are trained, and it holds the old ones."""
    optimizer = sgd(model)
    model.requires_grad_(False)
    model.append(nn.Linear(4, 4))
    return optimizer


@pytest.mark.parametrize("build", [of_another_model, made_before_its_parameters_were_frozen])
def test_an_optimizer_that_would_train_nothing_is_named_before_it_updates(build: Any) -> None:
    model = network()
    step = OrderedStep(model, CE, build(model), q=4)
    before = weights(model)
    with pytest.raises(
        ArgumentError, match=r"^OrderedStep: optimizer must hold parameters that the loss depends on; got 4"
    ):
        step(*batch())
    assert same(before, weights(model))


class Temperature(nn.Module):
    """A criterion with a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(()))

    def forward(self, outputs: Tensor, y: Tensor) -> Tensor:
        return CE(outputs / self.temperature, y)


def test_an_optimizer_may_hold_a_part_of_the_model_or_what_is_beside_it() -> None:
    adapted = nn.Sequential(network().requires_grad_(False), nn.Linear(4, 4))
    lazy = nn.Sequential(nn.LazyLinear(16), nn.ReLU(), nn.LazyLinear(4))
    part, unused, criterion, shift = network(), network(), Temperature(), torch.zeros(6, requires_grad=True)
    unused.register_parameter("later", nn.Parameter(torch.zeros(3)))  # has no gradient yet
    cases: list[tuple[nn.Module, Any, dict[str, Any]]] = [
        (adapted, adapted[1].parameters(), {}),
        (adapted, adapted.parameters(), {}),
        (lazy, lazy.parameters(), {}),
        (part, [part[2].bias], {}),
        (unused, [unused.later], {}),
        (network(), criterion.parameters(), {"criterion": criterion}),
        (network(), [shift], {"forward": lambda model, x: model(x + shift)}),
        (network().requires_grad_(False), [shift], {"forward": lambda model, x: model(x + shift)}),
    ]
    for model, parameters, options in cases:
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        OrderedStep(model, **{"criterion": CE, "optimizer": optimizer, "q": 4, **options})(*batch())


def test_a_state_that_is_not_the_step_s_is_named_and_changes_nothing() -> None:
    model = network()
    optimizer = sgd(model)
    step = OrderedStep(model, CE, optimizer, q=AccuracyRule(), engine=Memory(candidates=8))
    step(*batch(), index=torch.arange(32))
    before = str(step.state_dict())
    plain = OrderedStep(model, CE, optimizer, q=AccuracyRule())
    plain(*batch())
    own = copy.deepcopy(step.state_dict())
    wrong: list[tuple[Any, str]] = [
        ({}, "the state must hold policy, steps, engine; got an empty dict. Pass the part that is this step's, such"),
        (None, "the state must hold policy, steps, engine; got NoneType. Pass"),
        (
            optimizer.state_dict(),
            "the state must hold policy, steps, engine; got a dict with state, param_groups. Pass",
        ),
        (model.state_dict(), "the state must hold policy, steps, engine; got a dict with 0.weight, 0.bias, 2.weight, "),
        (
            plain.state_dict(),
            "the engine's state must hold losses, candidates, audits, operations; got a dict with operations.",
        ),
        (
            {**own, "policy": {}},
            "the state of q must hold q, s, epoch, began, last, sums, generator; got an empty dict.",
        ),
    ]
    for state, text in wrong:
        with pytest.raises(ArgumentError) as error:
            step.load_state_dict(state)
        assert str(error.value).startswith(f"OrderedStep.load_state_dict: {text}")
        assert str(step.state_dict()) == before
    plain.load_state_dict(step.state_dict())  # which has all that the engine auto keeps


def test_lbfgs_is_sent_to_the_loss() -> None:
    model = network()
    with pytest.raises(ArgumentError, match=r"optimizer must step without a closure; got LBFGS. Use OrderedLoss"):
        OrderedStep(model, CE, torch.optim.LBFGS(model.parameters()), q=4)


def test_errors_about_the_step_s_arguments_name_the_step() -> None:
    model = network()
    with pytest.raises(ArgumentError, match=r"^OrderedStep: q must be a count, a share in .* or a rule; got None"):
        OrderedStep(model, CE, sgd(model), q=None)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"^OrderedStep: criterion must return one loss per sample"):
        OrderedStep(model, nn.CrossEntropyLoss(), sgd(model), q=4)


@pytest.mark.parametrize("wrong", [torch.zeros(4, 6), [], [torch.zeros(4, 6)], "x"])
def test_a_batch_without_targets_is_refused(wrong: object) -> None:
    model = network()
    with pytest.raises(
        ArgumentError, match=r"the batch must be x and y, or a list of \(x, y\) pairs; got .* Call step"
    ):
        OrderedStep(model, CE, sgd(model), q=4)(wrong)


class Wrapped(nn.parallel.DistributedDataParallel):
    """What the step looks for, without the processes behind it."""

    def __init__(self, module: nn.Module) -> None:
        nn.Module.__init__(self)
        self.module = module


def test_a_model_over_several_ranks_is_refused_what_would_leave_ranks_waiting() -> None:
    model = Wrapped(network())
    with pytest.raises(
        ArgumentError, match=r"nonfinite must be 'raise' for a model in Distributed.*; got 'skip'. A batch .* group="
    ):
        OrderedStep(model, CE, sgd(model), q=4, nonfinite="skip")
    step = OrderedStep(model, CE, sgd(model), q=4)
    with pytest.raises(
        ArgumentError, match=r"model must not be wrapped in Distributed.*; got a wrapped one. Pass one batch, or group="
    ):
        step([batch(), batch()])
