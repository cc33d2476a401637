"""What the recipes ask of the loop: a row from its specs to its records."""

from pathlib import Path

import numpy as np
import pytest
import torch

from ordered_sgd.lab.data.dataset import Dataset
from ordered_sgd.lab.experiments.comparison import replay_of
from ordered_sgd.lab.experiments.plan import learning_rate
from ordered_sgd.lab.experiments.recipes.listing import exhibit
from ordered_sgd.lab.experiments.recipes.protocols import AUTHORS_CODE
from ordered_sgd.lab.experiments.run import run
from ordered_sgd.lab.experiments.spec import ExperimentSpec
from ordered_sgd.lab.experiments.store import Records
from ordered_sgd.lab.experiments.torch_epochs import TorchEpochs
from ordered_sgd.lab.experiments.train import Training


def test_a_row_runs_from_its_specs_to_its_control(tmp_path: Path) -> None:
    records = Records(tmp_path)
    row = exhibit("figure1", AUTHORS_CODE).rows[1].shrink(epochs=2).but(engine="dense")
    runs = {name: run(spec, records) for name, spec in row.trial(1).items()}
    control = run(replay_of(runs[row.controls[0]]), records)
    assert [len(found.rows) for found in (*runs.values(), control)] == [2, 2, 2]
    assert [epoch.q for epoch in control.rows] == [epoch.q for epoch in runs["ordered"].rows]
    assert all(0 <= found.rows[-1].train_accuracy <= 1 for found in runs.values())


def blank(split: str, n: int = 24) -> Dataset:
    rng = np.random.default_rng(n)
    x = rng.integers(0, 256, (n, 3, 32, 32), dtype=np.uint8)
    return Dataset(x, rng.integers(0, 10, n), tuple("0123456789"), "cifar10", split)  # type: ignore[arg-type]


def test_accuracy_of_clean_images_is_that_of_the_unmixed_set_in_evaluation_mode() -> None:
    spec = ExperimentSpec(data="cifar10", augment="mixup", accuracy="clean", s=8, epochs=1, engine="dense")
    training = Training(spec, blank("train"), blank("test"))
    (row,) = [row for row in training.epochs() if row is not None]
    model = training.setting.model.eval()
    right = [model(x).argmax(1) == y for x, y, _ in training.setting.plain]
    assert row.train_accuracy == pytest.approx(float(torch.cat(right).float().mean()), abs=1e-6)  # float32


def test_nesterov_reaches_the_optimizer() -> None:
    for nesterov in (False, True):
        spec = ExperimentSpec(data="cifar10", nesterov=nesterov, s=8, engine="dense")
        runner = TorchEpochs(Training(spec, blank("train"), blank("test")).setting)
        assert runner.ordered.optimizer.param_groups[0]["nesterov"] is nesterov


def test_the_hidden_rule_multiplies_the_rate_by_its_factor() -> None:
    spec = ExperimentSpec(lr=0.1, drops=(10,), hidden_rule=True)
    assert [learning_rate(spec, epoch, decayed=True) for epoch in (9, 10)] == [0.01, 0.001]
    assert [learning_rate(spec.but(hidden_factor=0.5), epoch, decayed=True) for epoch in (9, 10)] == [0.05, 0.005]
