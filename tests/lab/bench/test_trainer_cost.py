"""The harness of `osgd bench trainers` at a tiny size: what it reports is right, whatever the speed."""

import sys
from typing import Any

import pytest
import torch
from torch import nn

from ordered_sgd.errors import MissingExtraError
from ordered_sgd.lab.bench import trainer_cost
from ordered_sgd.lab.bench.trainer_cost import TrainerRow, measure_trainer, trainer_ticks
from ordered_sgd.lab.bench.trainer_inputs import TrainerSizes
from ordered_sgd.lab.bench.trainer_subjects import SUBJECTS, TrainerRun, TrainerSubject
from ordered_sgd.lab.bench.turns import Turns
from ordered_sgd.mean import ordered_mean

TINY = TrainerSizes(
    images=4,
    vit_layers=1,
    vit_width=12,
    texts=8,
    parts=2,
    bert_layers=1,
    bert_width=8,
    sequences=4,
    length=8,
    gpt_layers=1,
    gpt_width=8,
    gpt_words=50,
)
PARTNERS = {name: name.partition("-")[0] for name in SUBJECTS}


@pytest.fixture(autouse=True)
def _one_update_per_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_cost, "_SHORTEST", 0.0)


def loop(sizes: TrainerSizes, q: float | None, selective: bool = True, error: float = 0.0) -> TrainerRun:
    """A training that needs no partner; a wrong gradient where `selective` is left as it is."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(sizes.images, 3, generator=torch.Generator().manual_seed(0)), torch.arange(sizes.images) % 2

    def train(turns: Turns) -> None:
        while True:
            turns()
            optimizer.zero_grad()
            losses = nn.functional.cross_entropy(model(x), y, reduction="none")
            (losses.mean() if q is None else ordered_mean(losses, q) * (1 + error * selective)).backward()
            optimizer.step()

    return TrainerRun(Turns([0]).start(train), model, lambda: "" if q is None else f"kept {q:g}")


def measured(patch: pytest.MonkeyPatch, **options: Any) -> list[TrainerRow]:
    def build(*given: Any, **how: Any) -> TrainerRun:
        return loop(*given, **how, **options)

    patch.setitem(trainer_cost.SUBJECTS, "loop", TrainerSubject("A loop", build, (0.5, 0.25)))
    return measure_trainer("loop", sizes=TINY, rounds=2)


def test_ordered_trainers_are_compared_with_the_plain_one(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = measured(monkeypatch)
    assert [(row.trainer, row.title, row.q, row.ran, row.rounds) for row in rows] == [
        ("loop", "A loop", None, "", 2),
        ("loop", "A loop", 0.5, "kept 0.5", 2),
        ("loop", "A loop", 0.25, "kept 0.25", 2),
    ]
    for row in rows:
        assert row.low <= row.seconds <= row.high
        assert row.speedup == pytest.approx(rows[0].seconds / row.seconds)
        assert row.speedup_low <= row.speedup <= row.speedup_high


def test_gradients_are_compared_with_those_of_whole_backward_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [row.error for row in measured(monkeypatch)] == [None, 0.0, 0.0]
    wrong = [row.error for row in measured(monkeypatch, error=0.01)[1:]]
    assert all(error is not None and 5e-3 < error < 5e-2 for error in wrong)
    (_, *infinite) = measured(monkeypatch, error=float("inf"))
    assert [row.error for row in infinite] == [None, None]


def test_it_ticks_as_often_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = []
    monkeypatch.setitem(trainer_cost.SUBJECTS, "loop", TrainerSubject("A loop", loop, ()))
    measure_trainer("loop", [0.5, 0.25], sizes=TINY, rounds=3, tick=lambda: ticks.append(1))
    assert len(ticks) == trainer_ticks([0.5, 0.25], 3)


def test_a_partner_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(MissingExtraError, match=r"accelerate must be installed; .*\[accelerate\]"):
        measure_trainer("accelerate-bert", sizes=TINY, rounds=2)


@pytest.mark.slow
@pytest.mark.parametrize("name", SUBJECTS)
def test_every_trainer_has_the_gradients_of_whole_backward_passes(name: str) -> None:
    pytest.importorskip(PARTNERS[name])
    _, row = measure_trainer(name, [0.25], sizes=TINY, rounds=2)
    assert row.error is not None
    assert row.error < 1e-4
    assert row.ran
