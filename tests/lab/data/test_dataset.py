"""`Dataset` says what it is."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from ordered_sgd.errors import ArgumentError
from ordered_sgd.lab.data import Dataset

X, Y = np.arange(12.0).reshape(4, 3), np.array([0, 1, 1, 0])


def test_a_whole_set_is_called_by_its_name():
    data = Dataset(X, Y, ("a", "b"), "own")
    assert (len(data), data.partial, data.label, data.images) == (4, False, "own", False)


def test_a_partial_set_says_what_is_missing():
    data = Dataset(X, Y, ("a", "b"), "cifar10", missing="40,000 of 50,000 training samples")
    assert data.partial
    assert data.label == "cifar10 (partial: without 40,000 of 50,000 training samples)"
    assert data.take(np.array([1])).label == data.label


def test_rows_are_taken_in_the_order_given():
    part = Dataset(X, Y, ("a", "b"), "own", "test", licence="MIT").take(np.array([2, 0]))
    assert_array_equal(part.x, X[[2, 0]])
    assert_array_equal(part.y, [1, 0])
    assert (part.split, part.licence) == ("test", "MIT")


@pytest.mark.parametrize("y", [Y[:3], Y.reshape(4, 1)])
def test_samples_and_labels_must_agree(y):
    with pytest.raises(ArgumentError, match="own: y must hold one label per sample; got 4 samples and labels of shape"):
        Dataset(X, y, ("a", "b"), "own")
