from pathlib import Path

import numpy as np

from ordered_sgd.experiments.artifacts import BOUNDARY, SELECTION, grid_around, unpack
from ordered_sgd.experiments.records import Records
from ordered_sgd.experiments.run import problem_for, run
from ordered_sgd.experiments.spec import ExperimentSpec

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
