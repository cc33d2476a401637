"""Learning-rate schedules, the automatic rate, and what rules see."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse

from ordered_sgd.adaptive import _share_curve
from ordered_sgd.errors import ArgumentError
from ordered_sgd.linear import OrderedLogisticRegression
from ordered_sgd.linear.objective import Objective, State
from ordered_sgd.linear.training import Patience, Samples, loss_share, rate_of, safe_rate, squared_norms


@pytest.mark.parametrize("n", [10, 13, 20])
def test_the_loss_share_is_that_of_the_torch_side(n: int) -> None:
    losses = np.random.default_rng(0).exponential(size=n)
    losses[:5] = 0  # a batch without any loss
    batches = torch.from_numpy(losses).split(5)
    parts = [_share_curve(part, 5, valid=None, keys=part, trim=0) for part in batches]
    expected = sum(curve for curve, _ in parts) / sum(weight for _, weight in parts)
    np.testing.assert_allclose(loss_share(losses, 5), expected, rtol=1e-5)


def test_a_constant_plan_stays_and_a_cosine_falls_from_the_first_rate_to_almost_nothing() -> None:
    constant, cosine = (rate_of(plan, 0.4, 10, "test") for plan in ("constant", "cosine"))
    assert [constant(epoch) for epoch in (1, 7, 100)] == [0.4] * 3
    rates = [cosine(epoch) for epoch in range(1, 11)]
    assert rates[0] == 0.4
    assert rates[5] == pytest.approx(0.2)
    assert rates == sorted(rates, reverse=True)
    assert 0 < rates[-1] < 0.011


def test_steps_hold_from_their_epoch_on() -> None:
    rate = rate_of({5: 0.01, 2: 0.1}, 3.0, 10, "test")
    assert [rate(epoch) for epoch in (1, 2, 4, 5, 9)] == pytest.approx([3, 0.3, 0.3, 0.03, 0.03])


@pytest.mark.parametrize("plan", [{0: 0.1}, {2.5: 0.1}, {2: 0}, {2: -1}])
def test_steps_that_make_no_sense_are_refused(plan: dict[int, float]) -> None:
    with pytest.raises(ArgumentError, match="test: learning_rate must map epochs, counted from 1, to positive factors"):
        rate_of(plan, 1.0, 10, "test")


@pytest.mark.parametrize("layout", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
def test_squared_norms_do_not_overflow_and_equal_the_sum_of_squares(layout: Any, dtype: Any) -> None:
    X = np.random.default_rng(0).integers(0, 256, (5000, 60)).astype(dtype)
    np.testing.assert_allclose(squared_norms(layout(X)), (X.astype(float) ** 2).sum(axis=1))


def test_the_automatic_rate_is_one_over_the_curvature_of_the_worst_batch() -> None:
    X, weight = np.array([[1.0], [2.0], [3.0]]), np.array([1.0, 2.0, 0.0])
    samples = Samples(X, np.zeros(3), weight)
    squared, log = Objective("squared_error", l2=0.5), Objective("log_loss", fit_intercept=False)
    assert safe_rate(samples, squared, 1, q=2) == pytest.approx(1 / ((2 + 10) / 3 + 10 / 2 + 0.5))
    assert safe_rate(samples, log, 1, q=2) == pytest.approx(1 / (0.25 * ((1 + 8) / 3 + 8 / 2)))
    assert safe_rate(samples, log, 4, q=2) == pytest.approx(1 / (0.5 * ((1 + 8) / 3 + 8 / 2)))
    some = samples._replace(positions=np.array([0]))
    assert safe_rate(some, log, 1, q=1) == pytest.approx(1 / (0.25 * 2))
    empty = Samples(np.zeros((3, 1)), np.zeros(3), weight)
    assert safe_rate(empty, log, 1, q=1) == 1.0


def test_patience_waits_counts_anew_after_a_gain_and_remembers_the_best() -> None:
    states = [State.start(np.full((1, 1), float(k)), np.zeros(1)) for k in range(6)]
    values = [1.0, 3.0, 3.05, 3.0, 3.1, 9.0]
    patience = Patience(3, 0.1, lambda state: values[int(state.coef[0, 0])])
    assert [patience(state, math.nan) for state in states[:5]] == [False, False, False, False, True]
    assert patience.weights is not None
    assert patience.weights[0][0, 0] == 4  # 3.1 is the best, though not by enough to go on


def test_patience_without_a_judge_watches_the_loss() -> None:
    patience, state = Patience(2, 0.0), State.start(np.zeros((1, 1)), np.zeros(1))
    assert [patience(state, loss) for loss in (3.0, 2.0, 2.0, 2.5)] == [False, False, False, True]


def test_weights_of_minus_zero_are_zero_and_negative_ones_are_refused() -> None:
    x, y = np.random.default_rng(0).normal(size=(64, 3)), np.arange(64) % 3
    weight = np.where(np.arange(64) % 2, 1.0, 0.0)
    plus, minus = (
        OrderedLogisticRegression(q=1.0, max_iter=3, batch_size=16, random_state=0).fit(x, y, sample_weight=given)
        for given in (weight, np.where(weight == 0, -0.0, weight))
    )
    assert np.array_equal(plus.coef_, minus.coef_)
    with pytest.raises(ValueError, match="must not be negative, got -1"):
        OrderedLogisticRegression(class_weight={0: -1.0, 1: 1.0, 2: 1.0}).fit(x, y)
