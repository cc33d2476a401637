"""The simulated weights against the exact ones where these are known."""

from itertools import combinations

import numpy as np
import pytest

from ordered_sgd.errors import ArgumentError
from ordered_sgd.theory import gamma_weights, memory_weights

BATCHES = 20_000


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.mark.parametrize(("candidates", "noise"), [(16, 5.0), (4, 0.0), (7, 0.0)])
def test_with_all_candidates_or_a_true_memory_they_are_gamma(candidates: int, noise: float) -> None:
    found = memory_weights(60, 16, 4, candidates, noise=noise, rng=rng(), batches=BATCHES)
    exact = gamma_weights(60, 16, 4)
    assert found.recall == 1
    # a rank is kept or not: five standard errors of a share
    assert np.all(np.abs(found.weights - exact) <= 5 * np.sqrt(exact * (1 - exact) / BATCHES) + 1e-12)


def test_a_memory_that_knows_nothing_is_a_random_choice_among_which_the_largest_are_kept() -> None:
    """Scoring c at random is ordered SGD with batches of c."""
    found = memory_weights(60, 16, 3, 6, noise=1e9, rng=rng(), probes=2, batches=BATCHES)
    exact = gamma_weights(60, 8, 3)
    assert np.all(np.abs(found.weights - exact) <= 5 * np.sqrt(exact * (1 - exact) / BATCHES) + 1e-12)
    assert found.recall == pytest.approx(8 / 16, abs=0.01)


def test_two_of_four_by_hand() -> None:
    """One candidate of two samples, q = 1: the larger is kept when the noise does not turn the two round."""
    found = memory_weights(4, 2, 1, 1, noise=0.7, rng=rng(), probes=0, batches=100_000)
    draws = np.random.default_rng(1)
    losses = np.array([1.1503, 0.3186, -0.3186, -1.1503])  # normal quantiles at 7/8, 5/8, 3/8, 1/8
    expected = np.zeros(4)
    for i, j in combinations(range(4), 2):
        turned = (losses[j] - losses[i] + 0.7 * np.sqrt(2) * draws.standard_normal(400_000) > 0).mean()
        expected[[i, j]] += np.array([1 - turned, turned]) / 6
    np.testing.assert_allclose(found.weights, expected, atol=0.006)
    assert found.recall < 1


def test_weights_sum_to_q_fall_with_the_rank_and_the_worse_the_memory_the_flatter() -> None:
    hardest = []
    for noise in (0.0, 0.3, 1.0, 3.0):
        found = memory_weights(200, 32, 4, 8, noise=noise, rng=rng(), batches=BATCHES)
        assert found.weights.sum() == pytest.approx(4)
        by_tens = found.weights.reshape(20, 10).sum(1)
        assert np.all(np.diff(by_tens) <= 0.02)  # up to chance
        hardest.append(found.weights[:20].sum())
    assert np.all(np.diff(hardest) < 0)


@pytest.mark.parametrize("wrong", [{"candidates": 0}, {"candidates": 17}, {"noise": -1.0}, {"probes": -1}])
def test_what_makes_no_sense_is_refused(wrong: dict[str, float]) -> None:
    given = {"candidates": 8, "noise": 0.1, **wrong}
    with pytest.raises(ArgumentError, match=r"memory_weights: candidates must be .*; got"):
        memory_weights(60, 16, 4, rng=rng(), **given)  # type: ignore[arg-type]
