"""Three trainings side by side: alike but for the samples that they step on."""

import warnings

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from ordered_sgd.lab.data.figure1 import figure1
from ordered_sgd.lab.playground.settings import Point, Settings
from ordered_sgd.lab.playground.side_by_side import SideBySide, points_of

FEW: tuple[Point, ...] = ((-1.0, 0.0, 0), (1.0, 0.0, 1), (0.5, 1.0, 1))
OPTIMIZERS = pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])


def weights(training: SideBySide, arm: str) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in training.arms[arm].model.parameters()])


def test_all_begin_with_the_same_weights_of_their_own() -> None:
    training = SideBySide(Settings(model="figure1d"))
    first = weights(training, "sgd")
    assert torch.equal(first, weights(training, "ordered"))
    assert torch.equal(first, weights(training, "random"))
    training.advance(1)
    assert not torch.equal(weights(training, "sgd"), weights(training, "ordered"))


@OPTIMIZERS
def test_with_q_equal_to_s_all_three_are_plain_sgd(optimizer: str) -> None:
    training = SideBySide(Settings(optimizer=optimizer, s=20, q=20))
    training.advance(5)
    for arm in ("ordered", "random"):
        assert torch.equal(weights(training, "sgd"), weights(training, arm))


def test_ordered_keeps_the_q_largest_losses_of_the_batch_and_random_others() -> None:
    training = SideBySide(Settings(s=40, q=5))
    training.advance(2)
    before = {name: training.arms[name].model.state_dict() for name in ("ordered",)}
    model = torch.nn.Linear(2, 1)
    model.load_state_dict({name.rpartition(".")[2]: value.clone() for name, value in before["ordered"].items()})
    training.advance(1)
    batch = torch.from_numpy(training.batch)
    x, y = points_of(training.settings)
    scores = model(torch.from_numpy(x)[batch]).squeeze(1)
    losses = F.binary_cross_entropy_with_logits(scores, torch.from_numpy(y)[batch], reduction="none")
    largest = training.batch[losses.detach().numpy().argsort()[-5:]]
    assert set(training.arms["ordered"].kept) == set(largest)
    assert set(training.arms["random"].kept) < set(training.batch)
    assert set(training.arms["random"].kept) != set(largest)
    assert set(training.arms["sgd"].kept) == set(training.batch)
    assert len(set(training.batch)) == 40


@OPTIMIZERS
def test_the_same_seed_gives_the_same_training_and_another_seed_another(optimizer: str) -> None:
    one, two, other = (SideBySide(Settings(optimizer=optimizer, seed=seed)) for seed in (1, 1, 2))
    for training in (one, two, other):
        training.advance(3)
    for arm in one.arms:
        assert torch.equal(weights(one, arm), weights(two, arm))
        assert not torch.equal(weights(one, arm), weights(other, arm))
    two.reset()
    assert two.steps == 0
    two.advance(3)
    assert torch.equal(weights(one, "random"), weights(two, "random"))


def test_the_global_generator_is_left_alone() -> None:
    before = torch.random.get_rng_state()
    SideBySide(Settings()).advance(1)
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize("change", [{"lr": 0.5}, {"s": 30}, {"q": 2}, {"points": FEW}])
def test_a_slider_or_a_point_goes_on_from_where_the_training_stands(change: dict[str, object]) -> None:
    training = SideBySide(Settings(optimizer="momentum"))
    training.advance(4)
    before = weights(training, "ordered")
    training.change(Settings(optimizer="momentum", **change))  # type: ignore[arg-type]
    assert training.steps == 4
    assert torch.equal(before, weights(training, "ordered"))
    assert all(group["lr"] == training.settings.lr for group in training.arms["sgd"].optimizer.param_groups)
    training.advance(1)
    assert len(training.batch) == training.settings.s
    assert len(training.arms["ordered"].kept) == training.settings.q


@pytest.mark.parametrize("change", [{"problem": "figure1b"}, {"model": "figure1d"}, {"optimizer": "adam"}, {"seed": 1}])
def test_another_problem_model_optimizer_or_seed_begins_anew(change: dict[str, object]) -> None:
    training = SideBySide(Settings())
    training.advance(4)
    training.change(Settings(**change))  # type: ignore[arg-type]
    assert training.steps == len(training.batch) == 0


def test_points_are_the_problem_s_and_then_those_drawn() -> None:
    x, y = points_of(Settings("figure1a", seed=3, points=FEW))
    data = figure1("a", 3)
    assert np.array_equal(x[:200], data.x)
    assert np.array_equal(x[200:], [[-1, 0], [1, 0], [0.5, 1]])
    assert y[200:].tolist() == [0, 1, 1]
    assert len(points_of(Settings("own"))[0]) == 0


def test_few_points_cut_s_and_q_and_none_wait() -> None:
    training = SideBySide(Settings("own", s=50, q=8))
    training.advance(5)
    assert (training.n, training.s, training.q, training.steps) == (0, 0, 0, 0)
    training.change(Settings("own", s=50, q=8, points=FEW))
    training.advance(2)
    assert (training.n, training.s, training.q, training.steps) == (3, 3, 3, 2)
    training.change(Settings("own", s=50, q=1, points=FEW))
    training.advance(1)
    assert len(training.arms["ordered"].kept) == 1


def test_erased_points_take_their_rings_along_and_new_ones_do_not() -> None:
    training = SideBySide(Settings("own", points=FEW))
    training.advance(1)
    training.change(Settings("own", points=(*FEW, (0.0, 0.0, 0))))
    assert len(training.batch) == 3
    training.change(Settings("own", points=FEW[1:]))
    assert len(training.batch) == len(training.arms["sgd"].kept) == 0


def test_an_arm_that_diverges_stops_and_the_others_go_on() -> None:
    training = SideBySide(Settings())
    with torch.no_grad():
        next(training.arms["sgd"].model.parameters()).fill_(float("inf"))
    training.advance(3)
    assert training.arms["sgd"].diverged == 0
    assert len(training.arms["sgd"].kept) == 0
    assert training.arms["ordered"].diverged is None
    assert training.steps == 3
    training.reset()
    assert training.arms["sgd"].diverged is None


def test_a_small_q_warns_nobody() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SideBySide(Settings(q=1)).advance(1)
