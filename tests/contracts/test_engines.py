"""Every engine gives the one-liner's gradient, for every model of the matrix, or runs dense and says why."""

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.nn.modules.batchnorm import _BatchNorm

from ordered_sgd import OrderedStep
from ordered_sgd.engines import Memory
from ordered_sgd.engines.audits import Audits
from tests.contracts.engine_cases import CASES, SHORT
from tests.contracts.engine_cases_common import Case
from tests.contracts.engine_checks import (
    SIZES,
    Outcome,
    compare,
    frozen_sgd,
    gradient_error,
    gradients,
    one_liner,
    quiet,
    take,
)

# torch warns of itself while it compiles; without -W error these warnings are dropped
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*autograd.function.Function.*:DeprecationWarning"),
]
FAST_ENGINES = ("rows", "twopass", "auto")
LATER = "coupling that starts later"  # with a smaller batch than the memory engine is given here
EVERY = [pytest.param(case, id=case.name, marks=[pytest.mark.slow] if case.slow else []) for case in CASES]


@pytest.fixture(autouse=True)
def _nothing_compiled_before() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def wanted(case: Case, engine: str) -> str | None:
    """The engine that has to run, or None where that is open."""
    if engine == "rows":
        return None if case.expects == "either" else case.expects
    if engine == "twopass" and case.twopass is not None:
        return "twopass" if case.twopass else "dense"
    return None


def run(case: Case, engine: str, **options: Any) -> list[Outcome]:
    if wanted(case, engine) == engine:
        return list(compare(case, engine, **options))  # a warning is an error
    with quiet():
        return list(compare(case, engine, **options))


# Graphs that take seconds to compile: smaller models of their kind, and these with other engines, are in the short run.
LONG_BY_ROWS = (
    "TransformerEncoderLayer with dropout",
    "patches, positions and a class token",
    "flattened, batch innermost",
)
GRADIENTS = [
    pytest.param(case, engine, id=f"{case.name}-{engine}", marks=[pytest.mark.slow] if slow else [])
    for case in CASES
    for engine in FAST_ENGINES
    for slow in [case.slow or (engine == "rows" and case.name in LONG_BY_ROWS)]
]


@pytest.mark.parametrize(("case", "engine"), GRADIENTS)
def test_the_gradient_is_the_one_liners_whatever_the_engine(case: Case, engine: str) -> None:
    outcomes = run(case, engine)
    assert [(o.s, o.q) for o in outcomes] == list(SIZES)
    assert {f"s={o.s} q={o.q} {o.record.engine}": o.error for o in outcomes if o.error > case.tolerance} == {}
    proper = [o for o in outcomes if o.q < o.s]
    expected = wanted(case, engine)
    if expected is not None:
        assert [o.record.engine for o in proper] == [expected] * len(proper), proper[-1].why
    if engine != "auto":  # auto has nothing to excuse
        for outcome in proper:
            assert outcome.record.engine == engine or outcome.why, "another engine ran and nobody said why"


@pytest.mark.parametrize("case", EVERY)
def test_the_step_without_an_engine_is_plain_autograd(case: Case) -> None:
    outcomes = list(compare(case, "dense"))
    assert max(o.error for o in outcomes) == 0
    assert all(o.record.engine == "dense" for o in outcomes)


def subset_error(case: Case) -> float:
    """How far the gradient of a batch that holds the chosen samples only is from the one-liner's."""
    torch.manual_seed(1)
    whole = case.build()
    torch.manual_seed(1)
    part = case.build()
    x, y = case.batch(12, torch.Generator().manual_seed(0))
    for _ in range(3):  # a coupling may start late
        torch.manual_seed(2)
        plain = one_liner(whole, case.criterion, x, y, 4)
        torch.manual_seed(2)
        one_liner(part, case.criterion, take(x, plain.rows, 12), take(y, plain.rows, 12), 4)
    return gradient_error(gradients(part), gradients(whole))


@pytest.mark.parametrize("case", EVERY)
def test_the_table_tells_whether_the_chosen_samples_alone_give_the_gradient(case: Case) -> None:
    if case.twopass is None or "dropout" in case.name:
        pytest.skip("the table leaves it open, or a smaller batch draws other masks")
    with case.context():
        error = subset_error(case)
    assert (error <= case.tolerance) == case.twopass
    assert not (case.coupled and case.twopass)


@pytest.mark.parametrize("case", EVERY)
def test_the_memory_engine_gives_the_gradient_of_what_it_chose_or_scores_everything_and_says_why(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Audits, "due", lambda audits: False)
    torch.manual_seed(1)
    model = case.build()
    torch.manual_seed(1)
    twin = case.build()
    step = OrderedStep(model, case.criterion, frozen_sgd(model), q=3, engine=Memory(candidates=4))
    for number in range(2):  # in the first all are new
        (x, y), (same_x, same_y) = (case.batch(12, torch.Generator().manual_seed(0)) for _ in range(2))
        torch.manual_seed(number)
        with quiet(), case.context():
            record = step(x, y, index=range(12))
        torch.manual_seed(number)
        before = torch.get_rng_state()
        with case.context():
            plain = one_liner(twin, case.criterion, same_x, same_y, 3, record.rows)
        if not torch.equal(plain.random_state, before):
            pytest.skip("a smaller batch draws other random numbers")
    if case.twopass is True:
        assert record.scored is not None, step.why
    if case.coupled and case.name != LATER:
        assert record.scored is None
        assert step.why
        assert torch.equal(record.rows, plain.rows)
    assert gradient_error(gradients(model), gradients(twin)) <= case.tolerance


@pytest.mark.parametrize("case", [case for case in EVERY if case.values[0].coupled and case.id != LATER])
def test_the_memory_engine_lets_batchnorm_through_by_name_and_no_other_coupling(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Audits, "due", lambda audits: False)
    torch.manual_seed(1)
    model = case.build()
    torch.manual_seed(1)
    twin = case.build()
    through = any(isinstance(module, _BatchNorm) and module.training for module in model.modules())
    strategy = Memory(candidates=4, batchnorm="scored")
    step = OrderedStep(model, case.criterion, frozen_sgd(model), q=3, engine=strategy)
    scored, every = None, torch.arange(12)
    for number in range(2):  # in the first all are new
        (x, y), (same_x, same_y) = (case.batch(12, torch.Generator().manual_seed(0)) for _ in range(2))
        torch.manual_seed(number)
        with quiet(), case.context():
            record = step(x, y, index=range(12))
        torch.manual_seed(number)
        scored = every if record.scored is None else record.scored
        with case.context():
            plain = one_liner(twin, case.criterion, take(same_x, scored, 12), take(same_y, scored, 12), 3)
        assert torch.equal(record.rows, scored[plain.rows])
    assert (len(scored) < 12) == through
    assert bool(step.why) != through
    assert gradient_error(gradients(model), gradients(twin)) <= case.tolerance
    for ours, theirs in zip(model.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=case.tolerance, atol=case.tolerance)


def test_the_table_holds_the_study() -> None:
    assert len(CASES) >= 126
    assert len({case.name for case in CASES}) == len(CASES)
    assert 20 <= len(SHORT) <= 35
    assert sum(case.coupled for case in CASES) >= 18


@pytest.mark.parametrize("engine", ["rows", "twopass"])
@pytest.mark.parametrize("name", ["Linear 2-D", "hidden minus its mean over the batch", "cumsum over the batch"])
def test_another_engine_is_excused_with_one_warning_at_most(name: str, engine: str) -> None:
    case = next(case for case in CASES if case.name == name)
    model = case.build()
    step = OrderedStep(model, case.criterion, frozen_sgd(model), q=4, engine=engine)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        records = [step(*case.batch(12, torch.Generator().manual_seed(i))) for i in range(4)]
    said = [w for w in caught if issubclass(w.category, UserWarning)]
    assert {record.engine for record in records} == {"dense" if case.coupled else engine}
    assert (step.why is not None) == case.coupled
    assert len(said) <= (1 if case.coupled else 0)
