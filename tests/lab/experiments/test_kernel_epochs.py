"""The kernels train what torch trains."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ordered_sgd.errors import ArgumentError
from ordered_sgd.lab.experiments.artifacts import SELECTION, unpack
from ordered_sgd.lab.experiments.checkpoint import load_checkpoint, save_checkpoint
from ordered_sgd.lab.experiments.comparison import replay_of
from ordered_sgd.lab.experiments.epoch import EpochRow
from ordered_sgd.lab.experiments.run import problem_for, run
from ordered_sgd.lab.experiments.spec import ExperimentSpec
from ordered_sgd.lab.experiments.store import Records
from ordered_sgd.lab.experiments.train import Training
from ordered_sgd.rules import LossMassRule

pytest.importorskip("numba")
SPEC = ExperimentSpec(epochs=4, engine="kernels", accuracy="pass", hidden_rule=True)
CASES = {
    "logistic by the rule": SPEC,
    "logistic, plain, counted": SPEC.but(method="sgd", accuracy="epoch"),
    "fixed share": SPEC.but(q=0.1, lr=0.1, drops=(3,)),
    "loss mass": SPEC.but(q=LossMassRule()),
    "sum hinge": SPEC.but(model="svm", loss="hinge-sum"),
    "mean hinge": SPEC.but(model="svm", loss="hinge-mean", accuracy="clean"),
    "a table": SPEC.but(data="figure1a", s=50),
}


def weights(training: Training) -> list[torch.Tensor]:
    return list(training.setting.model.parameters())


def trained(spec: ExperimentSpec) -> tuple[Training, list[EpochRow]]:
    training = Training(spec, *problem_for(spec))
    return training, [row for row in training.epochs() if row is not None]


@pytest.mark.parametrize("name", CASES)
def test_the_kernels_train_what_torch_trains(name: str) -> None:
    spec = CASES[name]
    (fast, rows), (slow, expected) = trained(spec), trained(spec.but(engine="dense"))
    assert {row.engine for row in rows} == {"kernels"}
    assert [(row.q, row.lr, row.samples, row.backpropagated) for row in rows] == [
        (row.q, row.lr, row.samples, row.backpropagated) for row in expected
    ]
    for field in ("train_loss", "running_loss", "running_ordered_loss", "train_accuracy"):
        values, wanted = ([getattr(row, field) for row in part] for part in (rows, expected))
        np.testing.assert_allclose(values, wanted, rtol=2e-3, err_msg=field)  # float32: a choice may flip
    for own, other in zip(weights(fast), weights(slow), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-2, atol=1e-3)
    assert np.mean(fast.counts.numpy() == slow.counts.numpy()) > 0.98


def test_one_epoch_gives_the_same_weights() -> None:
    (fast, _), (slow, _) = (trained(SPEC.but(epochs=1, q=16, engine=engine)) for engine in ("kernels", "dense"))
    for own, other in zip(weights(fast), weights(slow), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-6)
    assert torch.equal(fast.counts, slow.counts)


@pytest.mark.parametrize("stop", [1, 2, 3])  # after an epoch's training, after its row, after the next training
@pytest.mark.parametrize("name", ["logistic by the rule", "loss mass"])
def test_stopped_and_resumed_it_ends_in_the_same_bits(name: str, stop: int, tmp_path: Path) -> None:
    spec = CASES[name]
    whole, rows = trained(spec)
    first = Training(spec, *problem_for(spec))
    epochs = first.epochs()
    seen = [next(epochs) for _ in range(stop)]
    save_checkpoint(first.state_dict(), tmp_path / "c.pt")
    second = Training(spec, *problem_for(spec))
    second.load_state_dict(load_checkpoint(tmp_path / "c.pt") or {})
    seen += list(second.epochs())
    assert [(row.q, row.train_loss) for row in seen if row is not None] == [(row.q, row.train_loss) for row in rows]
    assert all(torch.equal(a, b) for a, b in zip(weights(whole), weights(second), strict=True))
    assert torch.equal(whole.counts, second.counts)


def test_the_control_keeps_as_many_at_random(tmp_path: Path) -> None:
    records = Records(tmp_path)
    ordered = run(SPEC.but(lr=0.1), records)
    control = run(replay_of(ordered), records)
    assert [row.backpropagated for row in control.rows] == [row.backpropagated for row in ordered.rows]
    kept = [unpack(records.artifact(one.spec, SELECTION) or b"")["counts"] for one in (ordered, control)]
    assert kept[0].sum() == kept[1].sum()
    assert kept[0].std() > kept[1].std()  # it does not come back to the same samples


@pytest.mark.parametrize(
    "change",
    [
        {"optimizer": "adam"},
        {"trim": 0.1},
        {"method": "infobatch"},
        {"model": "figure1c", "data": "figure1c", "loss": "binary"},
        {"model": "preact-resnet18", "model_options": (("width", 0.125),)},  # its last layer is linear
    ],
)
def test_what_the_kernels_cannot_train_is_refused(change: dict[str, Any]) -> None:
    spec = SPEC.but(**change)
    with pytest.raises(ArgumentError, match="must train a linear model by plain SGD without augmentation"):
        Training(spec, *problem_for(spec))
