import numpy as np

from ordered_sgd.lab.experiments.recipes.label_noise import FLIPPED, label_noise
from ordered_sgd.lab.experiments.recipes.protocols import AUTHORS_CODE, PAPER
from ordered_sgd.lab.experiments.run import problem_for
from ordered_sgd.lab.experiments.spec import ExperimentSpec


def test_a_row_for_every_share_of_wrong_labels_with_all_arms_on_the_same_labels() -> None:
    rows = label_noise(PAPER).rows
    assert [row.arms["sgd"].flipped for row in rows] == list(FLIPPED)
    assert all(len({spec.flipped for spec in row.arms.values()}) == 1 for row in rows)
    assert [row.arms["s/4, trim as many as wrong"].trim for row in rows] == list(FLIPPED)
    assert rows == label_noise(AUTHORS_CODE).rows


def test_only_training_labels_are_made_wrong_and_by_the_seed() -> None:
    clean, noisy, other = (
        problem_for(ExperimentSpec(flipped=share, seed=seed)) for share, seed in ((0.0, 1), (0.2, 1), (0.2, 2))
    )
    assert np.array_equal(clean.test.y, noisy.test.y)
    assert np.count_nonzero(clean.train.y != noisy.train.y) == round(0.2 * len(clean.train.y))
    assert not np.array_equal(noisy.train.y, other.train.y)
    again = problem_for(ExperimentSpec(flipped=0.2, seed=1))
    assert np.array_equal(noisy.train.y, again.train.y)
