"""What the page is given to draw."""

import base64
import json
from itertools import combinations

import numpy as np
import pytest
import torch

from ordered_sgd.lab.playground.frame import GRID, frame, scores_on_grid, view, weights
from ordered_sgd.lab.playground.settings import Point, Settings
from ordered_sgd.lab.playground.side_by_side import SideBySide

FEW: tuple[Point, ...] = ((-1.0, 0.0, 0), (1.0, 0.0, 1), (0.5, 1.0, 1), (0.0, -1.0, 0))


@pytest.mark.parametrize("problem", ["figure1a", "figure1b", "figure1c", "own"])
@pytest.mark.parametrize("steps", [0, 2])
def test_a_frame_is_plain_json_whose_positions_fit(problem: str, steps: int) -> None:
    training = SideBySide(Settings(problem))
    training.advance(steps)
    shown = json.loads(json.dumps(frame(training), allow_nan=False))
    assert len(shown["points"]) == shown["n"] == training.n
    x0, y0, x1, y1 = shown["view"]
    assert x1 - x0 == pytest.approx(y1 - y0)
    assert all(x0 < x < x1 and y0 < y < y1 and label in (0, 1) for x, y, label in shown["points"])
    assert len(shown["batch"]) == (training.s if steps else 0)
    for arm in shown["arms"].values():
        assert set(arm["kept"]) <= set(shown["batch"])
        assert len(base64.b64decode(arm["scores"])) == 4 * GRID**2


def test_scores_are_those_of_the_places_on_the_grid() -> None:
    training = SideBySide(Settings(model="figure1d"))
    arm = training.arms["ordered"]
    scores = scores_on_grid(training, arm)
    (x0, y0), (x1, y1) = view(training)
    column, row = 50, 7  # more to the right, and near the lower edge
    place = torch.tensor([[x0 + (x1 - x0) * column / (GRID - 1), y0 + (y1 - y0) * row / (GRID - 1)]])
    assert scores[row, column] == pytest.approx(arm.model(place).item(), abs=1e-5)


def test_losses_are_the_mean_and_the_expected_mean_of_the_q_largest() -> None:
    training = SideBySide(Settings("own", s=3, q=2, points=FEW))
    arm = frame(training)["arms"]["ordered"]
    scores = training.arms["ordered"].model(training.x).detach().double().numpy()
    losses = np.log1p(np.exp(-np.where(training.y.numpy() > 0, scores, -scores)))
    batches = [sorted(losses[list(batch)])[-2:] for batch in combinations(range(4), 3)]
    assert arm["mean"] == pytest.approx(losses.mean())
    assert arm["ordered"] == pytest.approx(np.mean(batches))
    assert arm["right"] == np.mean((scores > 0) == (training.y.numpy() > 0))


def test_the_view_stays_while_points_are_drawn() -> None:
    assert view(SideBySide(Settings())) == view(SideBySide(Settings(points=((1.9, 1.9, 0),))))
    assert view(SideBySide(Settings("own"))) == view(SideBySide(Settings("own", points=FEW)))


def test_weights_of_many_ranks_are_thinned_and_begin_with_s_over_n() -> None:
    shown = weights(1000, 100, 25)
    assert len(shown["rank"]) == len(shown["ordered"]) == 200
    assert (shown["rank"][0], shown["rank"][-1]) == (1, 1000)
    assert (shown["ordered"][0], shown["ordered"][-1]) == (0.1, 0)
    assert weights(0, 0, 0) == {"rank": [], "ordered": []}


def test_a_diverged_arm_has_no_losses_and_finite_scores() -> None:
    training = SideBySide(Settings())
    with torch.no_grad():
        for parameter in training.arms["random"].model.parameters():
            parameter.fill_(float("nan"))
    training.advance(1)
    arm = frame(training)["arms"]["random"]
    assert (arm["mean"], arm["ordered"], arm["right"], arm["diverged"]) == (None, None, None, 0)
    assert np.isfinite(np.frombuffer(base64.b64decode(arm["scores"]), "<f4")).all()
