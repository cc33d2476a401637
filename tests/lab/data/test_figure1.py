"""The problems of Figure 1 look as the paper says and its picture shows."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from ordered_sgd.errors import ArgumentError
from ordered_sgd.lab.data.figure1 import figure1

problems = pytest.mark.parametrize("problem", ["a", "b", "c", "d"])


@problems
def test_points_are_two_floats_and_of_two_classes(problem):
    data = figure1(problem)
    assert data.x.shape == ((200, 2) if problem in "ab" else (1000, 2))  # appendix of the paper
    assert (data.x.dtype, data.y.dtype) == (np.float32, np.int64)
    assert (data.name, data.classes) == (f"figure1{problem}", ("0", "1"))
    assert set(data.y) == {0, 1}


@problems
def test_a_seed_gives_the_same_points_and_another_seed_others(problem):
    assert_array_equal(figure1(problem, seed=3).x, figure1(problem, seed=3).x)
    assert not np.array_equal(figure1(problem, seed=3).x, figure1(problem, seed=4).x)


def test_in_a_a_dozen_points_lie_between_two_blobs():
    data = figure1("a")
    first, second = data.x[data.y == 0], data.x[data.y == 1]
    assert len(first) == len(second) == 100
    assert_allclose(first.mean(axis=0), (-0.75, 1.3), atol=0.1)
    between = (second > (-0.4, -0.2)).all(axis=1) & (second < (0.6, 0.7)).all(axis=1)
    assert between.sum() >= 12
    assert_allclose(second[~between].mean(axis=0), (1.3, -0.8), atol=0.1)
    assert_allclose(
        np.concatenate([first - first.mean(axis=0), second[~between] - second[~between].mean(axis=0)]).std(),
        0.27,
        atol=0.03,
    )


def test_in_b_four_points_stand_against_a_blob():
    data = figure1("b")
    assert_array_equal(np.bincount(data.y), [196, 4])
    assert_allclose(data.x[data.y == 0].mean(axis=0), (1.3, -0.7), atol=0.1)
    assert_allclose(data.x[data.y == 1].mean(axis=0), (0.3875, 0.4625), atol=0.01)


@pytest.mark.parametrize("problem", ["c", "d"])
def test_in_c_and_d_the_two_outer_rings_hold_960_points_and_the_two_inner_ones_40(problem):
    data = figure1(problem)
    radius = np.hypot(*data.x.T)
    values, counts = np.unique(radius.round(4), return_counts=True)
    assert_allclose(values, [0.35, 0.5, 0.7, 1.0], atol=1e-6)
    assert_array_equal(counts, [20, 20, 480, 480])
    for ring, label in zip(values, [1, 0, 1, 0], strict=True):
        assert set(data.y[np.isclose(radius, ring, atol=1e-3)]) == {label}
    assert_array_equal(figure1("c").x, figure1("d").x)


def test_another_letter_is_refused():
    with pytest.raises(ArgumentError, match="figure1: problem must be one of a, b, c, d; got 'e'"):
        figure1("e")
