"""The rules of docs/_make/wrong_labels.py and its tables in docs/units.md."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

MAKE = Path(__file__).parents[2] / "docs" / "_make"


def module(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(MAKE)
    return importlib.import_module(name)


def suspects_by_loops(probabilities: Tensor, labels: Tensor) -> list[bool]:
    """The definition, one sample and one class at a time."""
    n, classes = probabilities.shape
    own = [[float(probabilities[i, c]) for i in range(n) if labels[i] == c] for c in range(classes)]
    expected = [sum(values) / max(1, len(values)) for values in own]
    found = []
    for i in range(n):
        confident = [(float(probabilities[i, c]), c) for c in range(classes) if probabilities[i, c] >= expected[c]]
        found.append(bool(confident) and max(confident)[1] != labels[i])
    return found


def test_suspects_are_those_of_the_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = module("wrong_labels_rules", monkeypatch)
    generator = torch.Generator().manual_seed(0)
    probabilities = torch.randn(200, 5, generator=generator, dtype=torch.double).mul(2).softmax(1)
    labels = torch.randint(5, (200,), generator=generator)
    assert rules.suspects(probabilities, labels).tolist() == suspects_by_loops(probabilities, labels)


@pytest.mark.parametrize("wrong", [0, 30, 80])
def test_held_out_trim_drops_the_share_that_is_wrong_after_ten_epochs(
    wrong: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = module("wrong_labels_rules", monkeypatch)
    right = torch.arange(200) % 4
    labels = torch.where(torch.arange(200) < wrong, (right + 1) % 4, right)
    rule = rules.HeldOutTrim(torch.eye(4)[right] * 0.9 + 0.025, labels)
    assert rule.before(0) == (0.0, 1.0)  # nothing is dropped before the model has learned anything
    assert rule.before(10) == pytest.approx((wrong / 200, 0.5))
    assert rule.before(29) == rule.before(10)


def test_held_out_trim_orders_a_class_that_is_learned_late_less_far_up(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = module("wrong_labels_rules", monkeypatch)
    labels = torch.tensor([0, 0, 0, 1, 1, 1])
    rule = rules.HeldOutTrim(torch.eye(2)[labels], labels)
    losses = torch.tensor([0.1, 0.2, 1.5, 1.9, 2.0, 2.1])
    assert rule.scores(losses, labels).equal(losses)  # of the first epoch nothing is known
    own = (-losses).exp()
    rule.after(
        torch.where(labels.bool()[:, None], torch.stack([1 - own, own], 1), torch.stack([own, 1 - own], 1)), labels
    )
    torch.testing.assert_close(rule.scores(losses, labels), losses - torch.tensor([0.1, 0.1, 0.1, 1.0, 1.0, 1.0]))
    assert rule.scores(losses, labels).argmax() == 2  # and not one of the class that is learned late


def test_the_page_shows_what_the_record_says(monkeypatch: pytest.MonkeyPatch) -> None:
    design, tables = (module(name, monkeypatch) for name in ("wrong_labels_design", "wrong_labels_tables"))
    page = tables.PAGE.read_text()
    for part in tables.tables(design.read()):
        assert part in page
