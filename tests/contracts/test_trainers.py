"""Promises that every trainer keeps; how each is told to train stands in tests/integrations/trainers.py."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from ordered_sgd import Above, scores
from ordered_sgd.errors import ArgumentError
from tests.integrations.trainers import TRAINERS, Falling, Task, plain_loop

pytestmark = [
    pytest.mark.xdist_group("trainers"),  # one worker imports the partners, which takes seconds each
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers.*"),
]
EVERY = pytest.mark.parametrize("name", TRAINERS)


@EVERY
@pytest.mark.parametrize("q", [3, 0.5])
def test_twenty_steps_end_at_the_weights_of_the_plain_loop(name: str, q: float, tmp_path: Path) -> None:
    task = Task({"q": q}, tmp_path)
    expected, found = plain_loop(task), TRAINERS[name](task)
    torch.testing.assert_close(found.weights, expected.weights, rtol=0, atol=1e-6)  # the same sums, by other routes
    assert (found.q, found.epoch) == (expected.q, 2)


@EVERY
@pytest.mark.parametrize(
    "how",
    [{"q": 3, "score": scores.entropy}, {"q": Above(1.2, at_least=2)}, {"q": Above(1.2), "score": scores.entropy}],
    ids=["score", "Above", "score and Above"],
)
@pytest.mark.parametrize("selective", [False, True])
def test_a_score_and_a_threshold_are_those_of_the_plain_loop(
    name: str, how: dict[str, Any], selective: bool, tmp_path: Path
) -> None:
    expected = plain_loop(Task(how, tmp_path))
    others = plain_loop(Task({"q": 3}, tmp_path))
    assert not torch.allclose(expected.weights, others.weights)
    found = TRAINERS[name](Task(how, tmp_path, selective=selective))
    torch.testing.assert_close(found.weights, expected.weights, rtol=0, atol=1e-6)


@EVERY
def test_q_moves_by_the_rule_at_the_end_of_each_epoch(name: str, tmp_path: Path) -> None:
    plain, rule = Falling(), Falling()
    expected = plain_loop(Task({"q": plain}, tmp_path, epochs=3))
    found = TRAINERS[name](Task({"q": rule}, tmp_path, epochs=3))
    torch.testing.assert_close(found.weights, expected.weights, rtol=0, atol=1e-6)
    assert found.q == 1
    assert rule.asked == plain.asked
    assert [epoch for epoch, _ in rule.asked] == [1, 2, 3]


@EVERY
def test_a_run_that_was_saved_and_taken_up_again_ends_at_the_same_weights(name: str, tmp_path: Path) -> None:
    expected = plain_loop(Task({"q": Falling()}, tmp_path, epochs=3))
    found = TRAINERS[name](Task({"q": Falling()}, tmp_path, epochs=3, stop=2))
    torch.testing.assert_close(found.weights, expected.weights, rtol=0, atol=1e-6)
    assert (found.q, found.epoch) == (1, 3)


@EVERY
def test_selective_backward_passes_end_at_the_same_weights_and_a_run_taken_up_again_bit_for_bit(
    name: str, tmp_path: Path
) -> None:
    expected = plain_loop(Task({"q": Falling()}, tmp_path, epochs=3))
    (tmp_path / "at once").mkdir()
    found = TRAINERS[name](Task({"q": Falling()}, tmp_path / "at once", epochs=3, selective=True))
    torch.testing.assert_close(found.weights, expected.weights, rtol=0, atol=1e-6)
    again = TRAINERS[name](Task({"q": Falling()}, tmp_path, epochs=3, stop=2, selective=True))
    assert torch.equal(again.weights, found.weights)
    assert found.ran == again.ran == "only kept samples"


def hidden_mean(outputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(outputs, target)


@EVERY
def test_a_criterion_that_cannot_be_ordered_is_refused_on_the_first_batch(name: str, tmp_path: Path) -> None:
    rule = Falling()
    with pytest.raises(ArgumentError, match=r"criterion must return one loss per sample, shape \(s,\); got a scalar"):
        TRAINERS[name](Task({"q": rule}, tmp_path, criterion=hidden_mean))
    assert rule.asked == []


@EVERY
@pytest.mark.parametrize("how", [{}, {"q": 0}, {"q": None}, {"q": "half"}, {"q": Falling}])
def test_wrong_arguments_are_refused(name: str, how: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r": q must |required keyword-only argument: 'q'"):
        TRAINERS[name](Task(how, tmp_path))
