import numpy as np
import pytest

from ordered_sgd.errors import ArgumentError
from ordered_sgd.lab.data import load
from ordered_sgd.lab.data.noise import flip_labels


@pytest.mark.parametrize("share", [0.0, 0.1, 0.4, 1.0])
def test_so_many_labels_become_another_class_and_no_other_changes(share: float) -> None:
    digits = load("digits")
    before = digits.y.copy()
    noisy, wrong = flip_labels(digits, share, np.random.default_rng(0))
    assert len(wrong) == round(share * len(digits))
    assert np.array_equal(np.flatnonzero(noisy.y != before), wrong)
    assert np.array_equal(digits.y, before)
    assert noisy.y.min() >= 0
    assert noisy.y.max() < 10


def test_every_other_class_is_as_likely() -> None:
    digits = load("digits")
    noisy, wrong = flip_labels(digits, 1.0, np.random.default_rng(0))
    steps = np.bincount((noisy.y - digits.y) % 10, minlength=10)
    assert steps[0] == 0
    assert steps[1:].std() < 3 * np.sqrt(len(wrong) / 9)


def test_a_wrong_share_or_no_classes_get_a_clear_error() -> None:
    with pytest.raises(ArgumentError, match=r"flip_labels: share must lie in \[0, 1\]; got 1.5. Use 0.1"):
        flip_labels(load("digits"), 1.5, np.random.default_rng(0))
