from pathlib import Path

import numpy as np
import pytest
import torch

from ordered_sgd.lab.experiments.artifacts import BOUNDARY, SELECTION, TRACKER, grid_around, unpack, unpack_tracker
from ordered_sgd.lab.experiments.run import problem_for, run
from ordered_sgd.lab.experiments.spec import ExperimentSpec
from ordered_sgd.lab.experiments.store import Records
from ordered_sgd.lab.experiments.train import Training

PLANE = ExperimentSpec(data="figure1a", model="figure1a", loss="binary", s=50, epochs=3, drops=(), engine="dense")


def test_counts_say_how_often_each_sample_was_kept(tmp_path: Path) -> None:
    records, spec = Records(tmp_path), PLANE.but(q=10)
    recorded = run(spec, records)
    counts = unpack(records.artifact(spec, SELECTION) or b"")["counts"]
    assert counts.shape == (200,)
    assert counts.sum() == sum(row.backpropagated for row in recorded.rows) == 3 * 4 * 10
    assert counts.max() <= 3  # once an epoch
    assert len(np.unique(counts)) > 1  # some samples are harder than others


def test_plain_sgd_keeps_everything_and_leaves_no_counts(tmp_path: Path) -> None:
    records, spec = Records(tmp_path), PLANE.but(method="sgd")
    run(spec, records)
    assert records.artifact(spec, SELECTION) is None


def test_the_boundary_in_the_plane_separates_what_the_model_separates(tmp_path: Path) -> None:
    records = Records(tmp_path)
    accuracy = run(PLANE.but(accuracy="clean"), records).rows[-1].train_accuracy
    grid = unpack(records.artifact(PLANE.but(accuracy="clean"), BOUNDARY) or b"")
    points, y = (train := problem_for(PLANE).train).x, train.y
    columns, rows = (
        np.abs(grid[name][:, None] - points[:, place]).argmin(axis=0) for place, name in ((0, "x"), (1, "y"))
    )
    nearest = grid["scores"][rows, columns] > 0
    assert accuracy is not None
    assert abs(np.mean(nearest == y) - accuracy) < 0.02  # a point beside the boundary may be nearest to the other side


def test_a_grid_shows_all_points() -> None:
    points = np.array([[0.0, 5.0], [1.0, 7.0]])
    x, y, plane = grid_around(points)
    assert x[0] < 0 < 1 < x[-1]
    assert y[0] < 5 < 7 < y[-1]
    assert (plane[1] == (x[1], y[0])).all()


TRACKED = PLANE.but(q=10, accuracy="clean")


def test_the_first_ordered_run_leaves_its_tracker_and_others_do_not(tmp_path: Path) -> None:
    records = Records(tmp_path)
    recorded = run(TRACKED, records)
    tracker, hardest, images = unpack_tracker(records.artifact(TRACKED, TRACKER) or b"")
    counts = unpack(records.artifact(TRACKED, SELECTION) or b"")["counts"]
    assert (tracker.chosen == counts).all()
    assert (tracker.seen == 3).all()
    assert tracker.saved == pytest.approx(1 - counts.sum() / (3 * 200))
    assert tracker.data_map().mean.mean() == pytest.approx(
        np.mean([row.running_loss for row in recorded.rows]), rel=1e-5
    )
    assert (hardest == tracker.hardest(20)).all()
    assert images is None  # points of a plane
    for other in (TRACKED.but(seed=1), TRACKED.but(validation=0.5), TRACKED.but(method="sgd")):
        run(other.but(epochs=1), records)
        assert records.artifact(other.but(epochs=1), TRACKER) is None


def test_a_run_that_is_taken_up_again_has_tracked_all_of_it() -> None:
    problem = problem_for(TRACKED)
    whole, first, second = (Training(TRACKED, *problem) for _ in range(3))
    list(whole.epochs())
    for number, _ in enumerate(first.epochs()):
        if number == 6:  # in the middle of the second epoch
            break
    second.load_state_dict(first.state_dict())
    list(second.epochs())
    assert second.artifacts()[TRACKER] == whole.artifacts()[TRACKER]


def test_the_kernels_track_what_torch_tracks(tmp_path: Path) -> None:
    spec = ExperimentSpec(epochs=2, train_size=300, q=16)
    found = []
    for engine in ("dense", "kernels"):
        records = Records(tmp_path)
        run(spec.but(engine=engine), records)
        found.append(unpack_tracker(records.artifact(spec.but(engine=engine), TRACKER) or b"").tracker)
    assert (found[0].seen == found[1].seen).all()
    np.testing.assert_allclose(found[0].data_map().mean, found[1].data_map().mean, rtol=1e-3)
    assert np.mean(found[0].chosen == found[1].chosen) > 0.98  # rounding can flip a choice


def test_tracking_changes_no_bit_of_a_training() -> None:
    tracked, plain = (Training(TRACKED, *problem_for(TRACKED)) for _ in range(2))
    plain.tracker = None
    for one in (tracked, plain):
        torch.manual_seed(0)
        list(one.epochs())
    models = (tracked.setting.model, plain.setting.model)
    for weight, other in zip(*(model.parameters() for model in models), strict=True):
        assert torch.equal(weight, other)
