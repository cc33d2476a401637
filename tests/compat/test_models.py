"""Every model of the matrix: the gradient is plain autograd's, and what ran is what the page says."""

import json
from typing import Any

import pytest

from tests.compat.models import MODELS
from tests.compat.page import PAGE, RECORD, SELECTIVE, error_of, is_exact, is_selective, page, reason_failed
from tests.compat.run import run_one

RECORDED: dict[str, dict[str, Any]] = {one["name"]: one for one in json.loads(RECORD.read_text())["models"]}


def test_a_third_of_the_models_is_set_aside() -> None:
    assert len(MODELS) >= 90
    aside = sum(entry.set_aside for entry in MODELS.values())
    assert len(MODELS) / 3 <= aside <= len(MODELS) / 2


def test_the_page_shows_the_record() -> None:
    text = PAGE.read_text()
    assert page(text, json.loads(RECORD.read_text())) == text


def test_the_record_holds_every_model_without_a_wrong_gradient() -> None:
    assert set(RECORDED) == set(MODELS)
    assert {name: error_of(one) for name, one in RECORDED.items() if not is_exact(one)} == {}


@pytest.mark.slow
@pytest.mark.xdist_group("compat")  # one forkserver, and one model at a time
@pytest.mark.parametrize("name", MODELS)
def test_a_model_runs_as_recorded(name: str) -> None:
    for package in ("timm", "peft", "transformers"):
        pytest.importorskip(package, reason=f"{package} is not installed; docs/models.md says how")
    found, known = run_one(name), RECORDED[name]
    assert reason_failed(found) == reason_failed(known)
    assert is_exact(found)
    assert is_selective(found) == is_selective(known), found["auto"].get("why")
    if MODELS[name].case.coupled:
        assert found["auto"]["ran"] not in SELECTIVE
        assert found["auto"]["why"]
