"""Engines do not hide mistakes: wrong rows, errors of the model and memory that is kept."""

import gc
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn

from ordered_sgd.engines import Rows
from ordered_sgd.engines import apart as apart_module
from ordered_sgd.engines import twopass as twopass_module
from ordered_sgd.selective import split as rows_module
from tests.contracts.engine_cases_common import Model, floats
from tests.contracts.engine_checks import Twins, network

BOTH = pytest.mark.parametrize("engine", ["rows", "twopass"])
ALL = pytest.mark.parametrize("engine", ["dense", "rows", "twopass", "auto"])


@pytest.fixture(autouse=True)
def _nothing_compiled_before() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def live_tensors() -> int:
    gc.collect()
    return sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())


@ALL
@pytest.mark.parametrize(("few", "many"), [(15, 60), pytest.param(50, 200, marks=pytest.mark.slow)])
def test_many_steps_leave_no_more_tensors_than_a_few(engine: str, few: int, many: int) -> None:
    twins = Twins(partial(network, 0.2), engine)
    batch = floats(6)(12, Generator().manual_seed(0))
    for _ in range(few):
        twins.step(*batch)
    before = live_tensors()
    for _ in range(many - few):
        twins.step(*batch)
    assert live_tensors() <= before + 2  # the records of the last step


class Mistake(Exception):  # noqa: N818
    """Not of torch."""


@ALL
def test_an_error_of_the_model_comes_through_as_it_is(engine: str) -> None:
    def fail(m: Any, x: Tensor) -> Tensor:
        if x.shape[1] != 6:
            raise Mistake(x.shape[1])
        return m.head(x)

    twins = Twins(lambda: Model(fail, head=nn.Linear(6, 4)), engine)
    assert twins.error() <= 5e-5
    with pytest.raises(Mistake):
        twins.step(*floats(5)(12, Generator().manual_seed(0)))
    assert twins.error() <= 5e-5


@BOTH
def test_a_shape_that_does_not_fit_is_torchs_own_error(engine: str) -> None:
    twins = Twins(network, engine)
    with pytest.raises(RuntimeError, match="shape"):
        twins.step(*floats(5)(12, Generator().manual_seed(0)))
    assert twins.error() <= 5e-5


def test_wrong_rows_are_found_by_the_check_of_the_rows_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    right = rows_module.gather
    monkeypatch.setattr(rows_module, "gather", lambda t, place, rows, s, values: right(t, place, rows - 1, s, values))
    twins = Twins(network, "rows")
    with pytest.warns(UserWarning, match="rows"):
        assert twins.error() <= 5e-5
    assert twins.record.engine == "dense"
    assert twins.step.why


def test_wrong_rows_that_come_later_are_found_when_the_check_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    twins = Twins(network, Rows(verify_every=2))
    assert max(twins.error() for _ in range(2)) <= 5e-5
    right = rows_module.gather
    monkeypatch.setattr(rows_module, "gather", lambda t, place, rows, s, values: right(t, place, rows - 1, s, values))
    with pytest.warns(UserWarning, match="rows"):
        assert twins.error() <= 5e-5
    assert twins.record.engine == "dense"


def test_wrong_rows_are_found_by_the_comparison_of_the_two_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    right = twopass_module.take
    for module in (twopass_module, apart_module):
        monkeypatch.setattr(module, "take", lambda batch, rows, s: right(batch, (rows + 1) % s, s))
    twins = Twins(network, "twopass")
    with pytest.warns(UserWarning, match="twopass"):
        assert twins.error() <= 5e-5
    assert twins.record.engine == "dense"
    assert twins.step.why
