import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ordered_sgd.diagnostics.suspects import TWO_HEAPS, best_cut, find_suspects


@given(arrays(np.float64, st.integers(2, 12), elements=st.floats(-5, 5, width=16)))
@settings(max_examples=60)
def test_no_cut_explains_more_than_the_best(values: np.ndarray) -> None:
    cut, explained = best_cut(values)
    total = ((values - values.mean()) ** 2).sum()
    shares = []
    for place in np.unique(values)[:-1]:
        parts = values[values <= place], values[values > place]
        shares.append(1 - sum(((part - part.mean()) ** 2).sum() for part in parts) / total)
    if not shares:
        assert explained == 0
        return
    assert explained == pytest.approx(max(shares), abs=1e-9)
    parts = values[values <= cut], values[values > cut]
    assert 1 - sum(((part - part.mean()) ** 2).sum() for part in parts) / total == pytest.approx(explained, abs=1e-9)


def test_one_heap_names_nobody_and_two_name_the_upper_one() -> None:
    rng = np.random.default_rng(0)
    for heap in (rng.normal(size=2000), rng.exponential(size=2000), rng.gamma(0.2, size=2000)):
        assert find_suspects(heap).explained < TWO_HEAPS
        assert len(find_suspects(heap).indices) == 0
    losses = np.concatenate([rng.exponential(0.2, 900), rng.normal(4, 0.8, 100)])
    found = find_suspects(losses)
    assert set(range(900, 1000)) >= set(found.indices)
    assert len(found.indices) > 90
    assert (np.diff(losses[found.indices]) <= 0).all()


def test_a_class_that_is_hard_as_a_whole_is_not_suspect() -> None:
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1], [900, 100])
    losses = np.where(y == 1, 4.0, 0.2) + rng.exponential(0.1, 1000)
    wrong = rng.choice(900, 60, replace=False)
    losses[wrong] += 3.5
    assert set(find_suspects(losses, y).indices) == set(wrong)
    assert not set(find_suspects(losses).indices) <= set(wrong)


def test_samples_that_were_not_seen_have_no_suspicion() -> None:
    found = find_suspects([0.1, 0.2, np.nan, 5.0, 0.1, np.nan], [0, 0, 0, 0, 0, 1])
    assert found.indices.tolist() == [3]
    assert np.isnan(found.suspicion[[2, 5]]).all()
    assert find_suspects([np.nan, np.nan]).indices.tolist() == []
    assert find_suspects([1.0, 1.0]).indices.tolist() == []
