"""A failure inside compiled code ends in the plain computation, or in one clear error, and disturbs nothing."""

import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ordered_sgd import OrderedStep, explain_backward, ordered_mean, selective_backward
from ordered_sgd.selective import compiler
from ordered_sgd.selective.runs import CheckedRuns
from ordered_sgd.selective.split import SplitBackward
from tests.step_parts import CE, batch, same, sgd, weights

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
Q, FAILS_AT = 4, 3  # the step, counted from 1, in which compiled code fails


@pytest.fixture(autouse=True)
def _nothing_compiled_before() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def model_with_dropout_and_buffers() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.2), nn.BatchNorm1d(16).eval(), nn.ReLU(), nn.Linear(16, 4))


def fail(*given: Any, **named: Any) -> Any:
    raise RuntimeError("a kernel does not take these strides")


def trained(engine: str, break_it: Callable[[], None]) -> tuple[nn.Module, OrderedStep, list[str], Tensor]:
    """A model after some steps, in one of which something breaks: with its step, what ran, and the random state."""
    model = model_with_dropout_and_buffers()
    step = OrderedStep(model, CE, sgd(model), q=Q, engine=engine)  # type: ignore[arg-type]
    torch.manual_seed(1)
    ran = []
    for number in range(1, FAILS_AT + 3):
        x, y = batch()
        if number == FAILS_AT:
            break_it()
        ran.append(step(x, y).engine)
    return model, step, ran, torch.get_rng_state()


BREAKS: dict[str, tuple[list[tuple[Any, str]], str]] = {
    "the backward of some rows": ([(SplitBackward, "of_rows")], "the backward cannot run on some rows"),
    "the whole backward": ([(SplitBackward, "of_rows"), (SplitBackward, "graph")], "its compiled backward failed"),
    "the forward": ([(CheckedRuns, "compiled")], "the model could not be compiled"),
}


@pytest.mark.parametrize("what", BREAKS)
def test_a_step_whose_compiled_code_fails_is_the_dense_one(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    places, reason = BREAKS[what]
    monkeypatch.setattr(SplitBackward, "graph", property(lambda self: vars(self)["graph"], _hold), raising=False)

    def break_it() -> None:
        for owner, name in places:
            broken = property(lambda self: fail, _hold) if name == "graph" else fail
            monkeypatch.setattr(owner, name, broken)

    model, step, ran, random = trained("rows", break_it)
    twin, _, _, expected = trained("dense", lambda: None)
    assert ran[: FAILS_AT - 1] == ["rows"] * (FAILS_AT - 1)
    assert ran[FAILS_AT - 1 :] == ["dense"] * 3
    assert step.why is not None
    assert f"{reason} (a kernel does not take these strides)" in step.why
    assert torch.equal(random, expected)
    for own, other in zip([*weights(model), *model.buffers()], [*weights(twin), *twin.buffers()], strict=True):
        torch.testing.assert_close(own, other, rtol=1e-5, atol=1e-6)


def _hold(self: SplitBackward, graph: Any) -> None:
    vars(self)["graph"] = graph


def test_a_plain_loop_gets_an_error_that_names_the_undo_call_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    model, twin = model_with_dropout_and_buffers(), model_with_dropout_and_buffers()
    selective_backward(model)
    x, y = batch()
    ordered_mean(CE(model(x), y), q=Q).backward()
    before = weights(model)
    with monkeypatch.context() as broken:
        broken.setattr(SplitBackward, "of_rows", fail)
        broken.setattr(SplitBackward, "graph", property(lambda self: fail, _hold), raising=False)
        outputs = model(x)
        with pytest.raises(RuntimeError, match=r"compiled backward failed .* restore_backward\(model\)"):
            ordered_mean(CE(outputs, y), q=Q).backward()
    assert same(before, weights(model))
    for one in (model, twin):
        one.zero_grad()
        torch.manual_seed(2)
        ordered_mean(CE(one(x), y), q=Q).backward()
    for own, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(own.grad, other.grad)
    assert "its compiled backward failed" in str(explain_backward(model))


class Strict(nn.Module):
    """Refuses a batch of 5."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] == 5:
            raise ValueError("five is too few")
        out: Tensor = self.layer(x)
        return out


def test_what_the_model_itself_raises_is_raised_and_nothing_is_given_up_for_it() -> None:
    model = selective_backward(Strict())
    for s in (5, 8, 5):
        x, y = batch(s)
        if s == 5:
            with pytest.raises(ValueError, match="five is too few"):
                model(x)
        else:
            ordered_mean(CE(model(x), y), q=Q).backward()
    report = explain_backward(model)
    assert (report.skipping, report.plain) == (1, None)


class Broken(nn.Module):
    """A model that torch.compile cuts into pieces."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        first, second, third, fourth = self.layers  # in a loop, none of them would be traced
        x = first(x).relu()
        torch._dynamo.graph_break()
        x = second(x).relu()
        torch._dynamo.graph_break()
        x = third(x).relu()
        torch._dynamo.graph_break()
        out: Tensor = fourth(x)
        return out


@pytest.mark.parametrize("most", [1, 3, 4, 6])
def test_a_model_of_too_many_pieces_is_plain_whenever_that_shows(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "MOST_PIECES", most)
    torch.manual_seed(0)
    model = Broken()
    twin = copy.deepcopy(model)
    selective_backward(model)
    x, y = batch(8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for one in (model, twin):
            ordered_mean(CE(one(x), y), q=2).backward()
    for own, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(own.grad, other.grad)
    assert (explain_backward(model).plain is None) == (most >= 4)
