"""What surrounds training works with every engine: it gives what the dense engine gives, or runs dense and says why."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ordered_sgd import OrderedStep, StepRecord
from ordered_sgd.engines import Rows, TwoPass
from ordered_sgd.lab.models import LeNet
from tests.contracts.engine_cases import CASES
from tests.contracts.engine_cases_common import CE, Batch, Case, Model, classes, floats, stack
from tests.contracts.engine_checks import (
    Twins,
    compare,
    frozen_sgd,
    gradient_error,
    gradients,
    network,
    one_liner,
    quiet,
)

VECTOR = floats(6)
BACKWARD_OPERATORS = (
    "aten::convolution_backward",
    "aten::native_group_norm_backward",
    "aten::threshold_backward",
    "aten::_log_softmax_backward_data",
)
BOTH = pytest.mark.parametrize("engine", ["rows", "twopass"])
LONG = pytest.mark.slow
ALL = pytest.mark.parametrize("engine", ["dense", "rows", "twopass", "auto"])


@pytest.fixture(autouse=True)
def _nothing_compiled_before() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def images() -> nn.Module:
    return stack(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4))


def frozen() -> nn.Module:
    model = network()
    model[0].requires_grad_(False)
    return model


def shared() -> nn.Module:
    """One weight for two layers, and one layer used twice."""
    model = Model(
        lambda m, x: m.head(m.third(m.second(m.second(m.first(x)).tanh()).tanh()).tanh()),
        first=nn.Linear(6, 8), second=nn.Linear(8, 8), third=nn.Linear(8, 8), head=nn.Linear(8, 4),
    )  # fmt: skip
    model.third.weight = model.second.weight
    return model


def halve(p: Tensor) -> None:
    p.grad.mul_(0.5)


def with_parameter_hooks() -> nn.Module:
    model = network()
    model[0].weight.register_hook(lambda grad: 2 * grad)
    model[5].bias.register_post_accumulate_grad_hook(halve)
    return model


def with_module_hooks() -> nn.Module:
    model = network()
    model[1].register_forward_hook(lambda module, inputs, output: 1.5 * output)
    model[4].register_forward_pre_hook(lambda module, inputs: (inputs[0] + 0.1,))
    model[3].register_full_backward_hook(lambda module, grads, _: (0.5 * grads[0],))
    return model


def checkpointed() -> nn.Module:
    return Model(
        lambda m, x: m.head(checkpoint(m.body, x, use_reentrant=False)), body=network()[:5], head=nn.Linear(16, 4)
    )


def two_inputs() -> nn.Module:
    return Model(lambda m, a, b: m.head(m.left(a) * m.right(b)), left=nn.Linear(6, 8), right=nn.Linear(3, 8),
                 head=nn.Linear(8, 4))  # fmt: skip


def pairs(s: int, g: Generator) -> tuple[Any, Tensor]:
    return (torch.randn(s, 6, generator=g), torch.randn(s, 3, generator=g)), classes(s, g)


def with_nan(s: int, g: Generator) -> tuple[Tensor, Tensor]:
    """Every second batch holds a NaN."""
    x, y = floats(6)(s, g)
    if int(torch.randint(0, 2, (), generator=g)):
        x[0, 0] = float("nan")
    return x, y


@dataclass(frozen=True)
class Feature:
    """A model with data, and what else is given to the step."""

    name: str
    build: Callable[[], nn.Module] = network
    batch: Batch = VECTOR
    options: Callable[[], dict[str, Any]] = dict
    context: Callable[[], Any] = field(default=partial(torch.autocast, "cpu", enabled=False))
    expects: str | None = "the engine"  # None: it may run dense
    tolerance: float = 1e-5  # of the weights after five steps
    slow: bool = False

    def __str__(self) -> str:
        return self.name


def scaled(**more: Any) -> dict[str, Any]:
    return {"scaler": torch.amp.GradScaler("cpu", init_scale=2.0**10), **more}


FEATURES = [
    Feature("nothing else", slow=True),
    Feature("dropout", partial(network, 0.4)),
    Feature("compiled model", lambda: torch.compile(network(), backend="aot_eager")),
    Feature(
        "autocast", images, floats(3, 8, 8), context=partial(torch.autocast, "cpu", torch.bfloat16), tolerance=5e-3
    ),
    Feature("GradScaler", options=scaled, slow=True),
    Feature("clipping", options=lambda: {"max_grad_norm": 0.1}, slow=True),
    Feature("GradScaler and clipping", options=lambda: scaled(max_grad_norm=0.1)),
    Feature("shared weights", shared, slow=True),
    Feature("several inputs", two_inputs, pairs),
    Feature("checkpointing", checkpointed),
    Feature("frozen parameters", frozen),
    Feature("parameter hooks", with_parameter_hooks),
    Feature("module hooks", with_module_hooks, expects=None),
    Feature("random selection", options=lambda: {"selection": "random"}, slow=True),
    Feature("forward of one's own", options=lambda: {"forward": lambda model, x: 2 * model(x)}, slow=True),
    Feature("skipped batches", batch=with_nan, options=lambda: {"nonfinite": "skip"}),
    Feature("channels-last images", lambda: images().to(memory_format=torch.channels_last), floats(3, 8, 8), slow=True),
]


def train(feature: Feature, engine: str) -> tuple[nn.Module, list[StepRecord], str | None]:
    """Five steps that move the weights, the last one on a smaller batch."""
    torch.manual_seed(1)
    model = feature.build()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.05, momentum=0.9)
    step = OrderedStep(model, CE, optimizer, q=4, engine=engine, **feature.options())
    records = []
    for number, s in enumerate((12, 12, 12, 12, 9)):
        batch = feature.batch(s, Generator().manual_seed(number))
        torch.manual_seed(number)
        with feature.context():
            records.append(step(*batch))
    return model, records, step.why


# By two passes alone in the short run: the cases of test_engines.py have the same for rows.
BY_TWO_PASSES = ("several inputs", "frozen parameters")
TRAININGS = [
    pytest.param(feature, engine, id=f"{feature.name}-{engine}", marks=LONG if slow else ())
    for feature in FEATURES
    for engine in ("rows", "twopass")
    for slow in [
        feature.slow
        or (engine == "rows" and feature.name in BY_TWO_PASSES)
        or (engine == "twopass" and feature.name == "compiled model")
    ]
]


@pytest.mark.parametrize(("feature", "engine"), TRAININGS)
def test_training_ends_at_the_weights_of_the_dense_engine(feature: Feature, engine: str) -> None:
    ours, records, why = train(feature, engine)
    dense, expected, _ = train(feature, "dense")
    for record, wanted in zip(records, expected, strict=True):
        assert record.rows.tolist() == wanted.rows.tolist()
        assert record.correct is None or record.correct == wanted.correct
    for p, wanted in zip(ours.parameters(), dense.parameters(), strict=True):
        torch.testing.assert_close(p, wanted, rtol=feature.tolerance, atol=feature.tolerance)
        assert p.stride() == wanted.stride()
    updated = [record for record in records if record.q > 0]
    if feature.expects is not None:
        assert {record.engine for record in updated} == {engine}, why
    else:
        assert {record.engine for record in updated} == {engine} or why


def freeze(index: int, frozen: bool = True) -> Callable[[nn.Module], Any]:
    return lambda model: model[index].requires_grad_(not frozen)


def replace_data(model: nn.Module) -> None:
    generator = Generator().manual_seed(5)
    for p in model.parameters():
        p.data = torch.randn(p.shape, generator=generator)


def load(model: nn.Module) -> None:
    torch.manual_seed(8)
    model.load_state_dict(network().state_dict())


CHANGES = {
    "train, eval, train": [lambda m: m.eval(), lambda m: m.train()],
    "dropout switched off in one layer": [lambda m: m[2].eval(), lambda m: m[2].train()],
    "dropout rate": [lambda m: setattr(m[2], "p", 0.1), lambda m: setattr(m[2], "p", 0.7)],
    "freezing later": [freeze(0), freeze(0, False), freeze(3)],
    "data replaced": [replace_data, replace_data],
    "weights loaded": [load],
    "a layer replaced": [lambda m: m.__setitem__(1, nn.ReLU()), lambda m: m.__setitem__(4, nn.Sigmoid())],
    "float64 and back": [lambda m: m.double(), lambda m: m.float()],
    "all but the head frozen": [
        lambda m: m.requires_grad_(False)[5].requires_grad_(True),
        lambda m: m.requires_grad_(),
    ],
}


FEW = ("train, eval, train", "all but the head frozen", "data replaced")  # in the short run


@BOTH
@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in FEW else LONG) for name in CHANGES])
def test_changes_between_steps_are_seen(name: str, engine: str) -> None:
    twins = Twins(partial(network, 0.3), engine)
    assert twins.error() <= 5e-5
    for change in CHANGES[name]:
        twins.both(change)
        dtype = twins.model[0].weight.dtype
        for _ in range(2):
            error = twins.error(lambda s, g, dtype=dtype: (torch.randn(s, 6, generator=g).to(dtype), classes(s, g)))
            assert error <= 5e-5
            assert twins.record.engine == engine, twins.step.why


@BOTH
def test_a_parameter_that_takes_no_part_keeps_no_gradient(engine: str) -> None:
    def build() -> nn.Module:
        return Model(lambda m, x: m.used(x), used=nn.Linear(6, 4), spare=nn.Linear(6, 4))

    twins = Twins(build, engine)
    assert twins.error() <= 5e-5
    assert twins.model.spare.weight.grad is None


@ALL
def test_micro_batches_are_one_batch(engine: str) -> None:
    twins = Twins(network, engine)
    for number in range(3):
        x, y = floats(6)(12, Generator().manual_seed(number))
        plain = one_liner(twins.twin, CE, x, y, 4)
        record = twins.step([(x[:5], y[:5]), (x[5:], y[5:])])
        assert record.rows.tolist() == plain.rows.tolist()
        torch.testing.assert_close(record.losses, plain.losses)
        assert gradient_error(gradients(twins.model), gradients(twins.twin)) <= 5e-5


@pytest.mark.slow
@BOTH
def test_every_step_of_many_models_in_one_process_stays_with_its_engine(engine: str) -> None:
    for number in range(12):
        twins = Twins(network, engine)
        assert twins.error() <= 5e-5
        assert twins.record.engine == engine, (number, twins.step.why)


@BOTH
def test_sample_weights_stay_with_their_samples(engine: str) -> None:
    twins = Twins(network, engine)
    for number in range(3):
        generator = Generator().manual_seed(number)
        (x, y), weight = VECTOR(12, generator), torch.rand(12, generator=generator)
        plain = one_liner(twins.twin, lambda outputs, y, weight=weight: weight * CE(outputs, y), x, y, 4)
        record = twins.step(x, y, sample_weight=weight)
        assert record.rows.tolist() == plain.rows.tolist()
        assert record.engine == engine, twins.step.why
        assert gradient_error(gradients(twins.model), gradients(twins.twin)) <= 5e-5


@BOTH
def test_tiny_batches_come_first_without_harm(engine: str) -> None:
    model, twin = network(), network()
    twin.load_state_dict(model.state_dict())
    step = OrderedStep(model, CE, frozen_sgd(model), q=0.5, engine=engine)
    for s in (1, 2, 3, 12, 5):
        batch = VECTOR(s, Generator().manual_seed(s))
        plain = one_liner(twin, CE, *batch, max(1, s // 2))
        record = step(*batch)
        assert record.rows.tolist() == plain.rows.tolist()
        assert gradient_error(gradients(model), gradients(twin)) <= 5e-5
        assert record.engine == (engine if s > 1 else "dense")


@BOTH
def test_two_steps_on_one_model_do_not_disturb_each_other(engine: str) -> None:
    twins = Twins(network, engine)
    other = OrderedStep(twins.model, CE, frozen_sgd(twins.model), q=2, engine=engine)
    for number in range(3):
        assert twins.error() <= 5e-5
        batch = floats(6)(8, Generator().manual_seed(number))
        assert other(*batch).q == 2
        one_liner(twins.twin, CE, *batch, 2)
        assert gradient_error(gradients(twins.model), gradients(twins.twin)) <= 5e-5


def ragged(m: Any, x: Tensor) -> Tensor:
    hidden = m.layer(x)
    flat = m.inner(hidden.flatten(0, 1)).tanh()
    return m.head(flat.view(x.shape[0], x.shape[1], -1).mean(1))


@LONG
@BOTH
def test_another_sequence_length_stays_with_the_engine(engine: str) -> None:
    def build() -> nn.Module:
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        return Model(ragged, layer=layer, inner=nn.Linear(8, 8), head=nn.Linear(8, 4))

    twins = Twins(build, engine)
    for s, length in ((12, 5), (12, 7), (12, 9), (9, 4), (12, 12), (8, 5)):
        assert twins.error(floats(length, 8), s) <= 5e-5
        assert twins.record.engine == engine, (s, length, twins.step.why)


def test_another_q_or_a_smaller_batch_makes_no_new_graph() -> None:
    case = next(case for case in CASES if case.name == "Conv2d")
    torch._dynamo.utils.counters.clear()
    assert max(outcome.error for outcome in compare(case, "rows")) <= 5e-5
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@BOTH
def test_the_backward_works_on_q_rows_only(engine: str) -> None:
    twins = Twins(images, engine)
    batch = floats(3, 8, 8)(12, Generator().manual_seed(0))
    for _ in range(2):  # a new graph is checked with the whole batch once
        twins.step(*batch)
    with torch.profiler.profile(record_shapes=True) as profile:
        twins.step(*batch)
    seen = {e.name: e.input_shapes[0][0] for e in profile.events() if e.name in BACKWARD_OPERATORS}
    assert seen == dict.fromkeys(BACKWARD_OPERATORS, 4)


EXACT = [case for case in CASES if case.expects == "rows" and case.twopass and "dropout" not in case.name]


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(c, id=c.name, marks=[] if c.name in ("Conv2d", "sdpa causal") else [pytest.mark.slow])
        for c in EXACT
    ],
)
def test_rows_and_two_passes_agree_closely_where_there_is_no_dropout(case: Case) -> None:
    found = []
    for engine in ("rows", "twopass"):
        torch.manual_seed(1)
        model = case.build()
        step = OrderedStep(model, case.criterion, frozen_sgd(model), q=4, engine=engine)
        with case.context():
            step(*case.batch(12, Generator().manual_seed(0)))
        found.append(gradients(model))
    assert gradient_error(*found) <= (1e-5 if case.tolerance == 5e-5 else case.tolerance)


def normalised() -> nn.Module:
    return stack(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4))


@pytest.mark.parametrize("engine", [Rows(batchnorm="full-batch"), TwoPass(batchnorm="subset")], ids=str)
def test_batchnorm_by_name_moves_its_statistics_once_and_its_gradient_points_the_same_way(
    engine: Rows | TwoPass,
) -> None:
    twins = Twins(normalised, engine)
    for _ in range(3):
        twins.error(floats(3, 8, 8))
        assert twins.record.engine == type(engine).__name__.lower()
        for ours, theirs in zip(twins.model.buffers(), twins.twin.buffers(), strict=True):
            torch.testing.assert_close(ours, theirs)
        ours, theirs = (
            torch.cat([p.grad.flatten() for p in model.parameters()]) for model in (twins.model, twins.twin)
        )
        assert F.cosine_similarity(ours, theirs, dim=0) > 0.8


@pytest.mark.parametrize("options", [{"scoring": "eval"}, {"score_dtype": torch.bfloat16}, {"replay": False}], ids=str)
def test_scoring_of_another_kind_orders_by_its_own_losses(options: dict[str, Any]) -> None:
    twins = Twins(partial(network, 0.3), TwoPass(**options))
    x, y = floats(6)(12, Generator().manual_seed(0))
    record = twins.step(x, y)
    assert record.engine == "twopass"
    assert record.rows.tolist() == record.losses.float().topk(4).indices.sort().values.tolist()
    assert all(module.training for module in twins.model.modules())


def test_auto_computes_a_small_model_densely_and_a_large_one_by_rows() -> None:
    for width, expected in ((16, "dense"), (2048, "rows")):
        twins = Twins(lambda width=width: stack(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(),
                                                nn.Linear(width, 4)), "auto")  # fmt: skip
        errors = [twins.error() for _ in range(4)]
        assert max(errors) <= 5e-5
        assert twins.record.engine == expected, twins.step.why


def test_auto_leaves_the_users_tensors_as_they_are() -> None:
    twins = Twins(images, "auto")
    x, y = floats(3, 8, 8)(12, Generator().manual_seed(0))
    before = [p.stride() for p in twins.model.parameters()]
    twins.step(x, y)
    assert [p.stride() for p in twins.model.parameters()] == before
    assert x.is_contiguous()


@pytest.mark.usefixtures("one_rank")
@BOTH
def test_the_data_parallel_wrapper_sees_its_gradients(engine: str) -> None:
    model, twin = network(), network()
    twin.load_state_dict(model.state_dict())
    wrapped = nn.parallel.DistributedDataParallel(model)
    step = OrderedStep(wrapped, CE, frozen_sgd(wrapped), q=4, engine=engine)
    for number in range(3):
        batch = floats(6)(12, Generator().manual_seed(number))
        one_liner(twin, CE, *batch, 4)
        with quiet():
            record = step(*batch)
        assert gradient_error(gradients(model), gradients(twin)) <= 5e-5
        assert record.engine == engine or step.why


@pytest.mark.parametrize("engine", ["rows", pytest.param("twopass", marks=LONG)])
def test_what_bfloat16_rounds_is_not_taken_for_a_coupling(engine: Any) -> None:
    torch.manual_seed(0)
    model = LeNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = OrderedStep(model, nn.CrossEntropyLoss(reduction="none"), optimizer, q=8, engine=engine)
    with torch.autocast("cpu", torch.bfloat16):
        record = step(torch.randn(64, 1, 28, 28), torch.randint(10, (64,)))
    assert (record.engine, step.why) == (engine, None)
