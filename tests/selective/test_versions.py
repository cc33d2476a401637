"""With a version of torch that nobody has tested, a self-test decides whether rows are skipped."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ordered_sgd import OrderedStep, explain_backward, selective_backward
from ordered_sgd.selective import split, versions
from tests.step_parts import CE, batch, network, sgd

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(autouse=True)
def untested(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A torch that is not among the tested ones, and a folder for what is found out."""
    monkeypatch.setattr(versions, "TESTED", ())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    versions.why_not.cache_clear()
    torch._dynamo.reset()
    yield tmp_path
    versions.why_not.cache_clear()
    torch._dynamo.reset()


def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the backward read other rows than those that have a gradient."""
    take = split.select_rows
    monkeypatch.setattr(split, "select_rows", lambda tensor, dim, rows: take(tensor, dim, rows.flip(0) * 0))


def test_a_version_that_passes_is_used_and_not_tested_again_and_random_numbers_stay(
    untested: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = torch.get_rng_state()
    assert versions.why_not() is None
    assert torch.equal(before, torch.get_rng_state())
    model = network()
    step = OrderedStep(model, CE, sgd(model), q=4, engine="rows")
    assert step(*batch()).engine == "rows"
    (remembered,) = untested.rglob("*.json")
    assert json.loads(remembered.read_text()) == {"why_not": None}
    versions.why_not.cache_clear()
    monkeypatch.setattr(versions, "self_test", lambda: pytest.fail("tested again"))
    assert versions.why_not() is None


def test_a_version_that_fails_runs_densely_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch)
    model = network()
    step = OrderedStep(model, CE, sgd(model), q=4, engine="rows")
    assert step(*batch()).engine == "dense"
    assert step.why is not None
    assert step.why.startswith(f"torch {torch.__version__} is not tested, and its self-test ")
    with pytest.warns(UserWarning, match="is not tested, and its self-test"):
        selective_backward(model)
    assert "is not tested" in str(explain_backward(model))


def test_a_compiler_that_raises_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(*given: object, **named: object) -> None:
        raise AttributeError("torch has no such function any more")

    monkeypatch.setattr(versions, "SelectiveBackend", raises)
    assert versions.self_test() == "its self-test fails (torch has no such function any more)"
