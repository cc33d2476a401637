import itertools

import numpy as np
import pytest

from ordered_sgd.batches import algorithm_batches, epoch_batches
from ordered_sgd.errors import ArgumentError


def test_an_epoch_holds_every_sample_once_and_the_last_batch_is_smaller() -> None:
    batches = list(epoch_batches(103, 10, np.random.default_rng(0)))
    assert [len(b) for b in batches] == [10] * 10 + [3]
    assert sorted(np.concatenate(batches)) == list(range(103))


def test_algorithm_1_draws_each_batch_anew_without_replacement_and_uniformly() -> None:
    counts = np.zeros(8)
    for batch in itertools.islice(algorithm_batches(8, 3, np.random.default_rng(0)), 4000):
        assert len(set(batch)) == 3
        counts[batch] += 1
    assert abs(counts / 4000 - 3 / 8).max() < 0.03  # four standard deviations of a share of 4000 draws


@pytest.mark.parametrize("draw", [epoch_batches, algorithm_batches])
def test_the_order_repeats_with_its_generator_and_a_wrong_size_is_named(draw: object) -> None:
    first, again = (next(iter(draw(50, 7, np.random.default_rng(3)))) for _ in range(2))  # type: ignore[operator]
    np.testing.assert_array_equal(first, again)
    with pytest.raises(ArgumentError, match=r"_batches: s must be between 1 and n = 5; got 9. Use a batch size"):
        draw(5, 9, np.random.default_rng(0))  # type: ignore[operator]
