"""Theorem 3: the bound and its terms against simulation, enumeration and the paper's own statements."""

import math
from itertools import product

import numpy as np
import pytest

from ordered_sgd.errors import ArgumentError
from ordered_sgd.theory.constants import loss_lipschitz, loss_range
from ordered_sgd.theory.generalization import (
    bound_advantage,
    data_dependent_bound,
    generalization_bound,
    q_n_estimate,
    rademacher_linear,
    rademacher_linear_bound,
    union_delta,
)
from ordered_sgd.theory.risk import ordered_risk

THETAS = np.array([0.1, 0.3, 0.6, 0.8])
N, S, Q = 40, 10, 4


def draw_losses(rng):
    """Losses |z - theta| of N fresh samples z, uniform on [0, 1], one row per theta."""
    return np.abs(rng.random(N) - THETAS[:, None])


EXPECTED_LOSS = (THETAS**2 + (1 - THETAS) ** 2) / 2
M = 0.9  # largest |z - theta| less smallest, under theta = 0.1


def rademacher_of_thetas(rng, draws=4000):
    sups = [(draw_losses(rng) @ rng.choice([-1.0, 1.0], N)).max() / N for _ in range(draws)]
    return float(np.mean(sups))


def test_q_equal_to_s_recovers_the_standard_bound():
    losses = np.random.default_rng(0).random(50)
    bound = generalization_bound(losses, 8, 8, rademacher=0.07, M=2.0, delta=0.1)
    np.testing.assert_allclose(bound.L_q, losses.mean())
    np.testing.assert_allclose(bound.total, losses.mean() + 2 * 0.07 + 2.0 * math.sqrt(math.log(10) / 100))  # Eq. 5
    assert q_n_estimate(lambda rng: rng.random((3, 20)), 8, 8, np.random.default_rng(1)).value < 1e-15


def test_the_total_is_the_sum_of_the_terms_of_the_theorem():
    losses = np.random.default_rng(0).random(50)
    bound = generalization_bound(losses, 8, 2, rademacher=0.07, M=2.0, delta=0.1, Q_n=0.03)
    np.testing.assert_allclose(bound.deviation, 2.0 * 8 / 2 * math.sqrt(math.log(10) / 100))
    np.testing.assert_allclose(bound.total, ordered_risk(losses, 8, 2) + 0.14 + bound.deviation - 0.03)


def test_the_bound_holds_for_all_thetas_at_once_as_often_as_promised():
    rng, delta = np.random.default_rng(0), 0.2
    rademacher = rademacher_of_thetas(rng)
    Q_n = q_n_estimate(draw_losses, S, Q, rng)
    assert Q_n.value > 100 * Q_n.standard_error  # a set of thetas for which Q_n does count
    failures = 0
    for _ in range(200):
        totals = [
            generalization_bound(losses, S, Q, rademacher=rademacher, M=M, delta=delta, Q_n=Q_n.value).total
            for losses in draw_losses(rng)
        ]
        failures += (np.array(totals) < EXPECTED_LOSS).any()
    assert failures <= 200 * delta


def test_the_worst_underestimate_of_the_risk_is_in_the_mean_below_twice_rademacher_less_q_n():
    rng = np.random.default_rng(1)
    worst = [(EXPECTED_LOSS - [ordered_risk(losses, S, Q) for losses in draw_losses(rng)]).max() for _ in range(2000)]
    limit = 2 * rademacher_of_thetas(rng) - q_n_estimate(draw_losses, S, Q, rng).value
    assert np.mean(worst) + 4 * np.std(worst) / math.sqrt(2000) < limit


def test_replacing_one_sample_moves_the_ordered_risk_by_at_most_mcdiarmids_constant_which_is_attained():
    rng, constant = np.random.default_rng(2), 1.0 * S / (Q * N)
    moves = []
    for _ in range(500):
        losses = rng.random(N) ** rng.integers(1, 6)
        changed = losses.copy()
        changed[rng.integers(N)] = rng.integers(2)
        moves.append(abs(ordered_risk(losses, S, Q) - ordered_risk(changed, S, Q)))
    assert max(moves) <= constant
    np.testing.assert_allclose(ordered_risk(np.eye(N)[0], S, Q) - ordered_risk(np.zeros(N), S, Q), constant)


def test_the_second_case_of_the_proof_needs_the_opposite_sign():
    before, after = np.array([0.9, 0.5, 0.2]), np.array([0.9, 0.7, 0.5])  # 0.2 became 0.7: from rank 3 to rank 2
    true = np.abs(before - after).sum()
    printed = (before[1] - after[1]) + (before[2] - before[1])
    assert printed < 0 < true
    np.testing.assert_allclose(true, -printed)
    np.testing.assert_allclose(true, after[1] - before[2])  # where the proof arrives all the same


# --- the comparison with plain SGD ---


def test_the_second_sufficient_condition_never_holds_when_sgd_minimises_its_risk():
    rng = np.random.default_rng(3)
    for _ in range(300):
        losses = rng.exponential(size=(6, 20)) * rng.random((6, 1))  # six candidate thetas
        theta_s = losses[np.argmin(losses.mean(axis=1))]
        theta_q = losses[np.argmin([ordered_risk(row, 6, 2) for row in losses])]
        assert bound_advantage(theta_s, theta_q, 6, 2) <= 1e-12


def test_with_q_n_the_comparison_can_favour_ordered_sgd():
    losses = draw_losses(np.random.default_rng(4))
    excess = np.array([ordered_risk(row, S, Q) for row in losses]) - losses.mean(axis=1)
    assert bound_advantage(losses[1], losses[1], S, Q, Q_n=excess[1] + 0.01) == pytest.approx(0.01)


def test_q_n_vanishes_as_soon_as_one_theta_gives_all_samples_the_same_loss():
    def linear_logistic(rng):
        margins = rng.normal(size=(30, 4)) @ np.column_stack([np.zeros(4), np.eye(4)])
        return np.logaddexp(0, -margins.T)  # the first row is theta = 0

    rng = np.random.default_rng(5)
    assert q_n_estimate(linear_logistic, S, Q, rng, repeats=20).value == 0
    assert q_n_estimate(lambda rng: linear_logistic(rng)[1:], S, Q, rng, repeats=20).value > 0.1


def test_q_n_of_one_theta_is_the_mean_excess_of_the_ordered_risk_and_its_error_shrinks():
    rng = np.random.default_rng(6)
    direct = [ordered_risk(row, S, Q) - row.mean() for row in (draw_losses(rng)[0] for _ in range(3000))]
    estimate = q_n_estimate(lambda rng: draw_losses(rng)[0], S, Q, rng, repeats=3000)
    assert abs(estimate.value - np.mean(direct)) <= 4 * math.sqrt(2) * estimate.standard_error
    np.testing.assert_allclose(estimate.standard_error, np.std(direct) / math.sqrt(3000), rtol=0.1)


# --- Rademacher complexity ---


def all_signs(n):
    return np.array(list(product([-1.0, 1.0], repeat=n)))


def test_the_sampled_complexity_agrees_with_all_sign_vectors_and_stays_under_its_bound():
    X = np.random.default_rng(7).normal(size=(10, 3))
    exact = 2.0 * np.linalg.norm(all_signs(10) @ X, axis=1).mean() / 10
    estimate = rademacher_linear(X, 2.0, np.random.default_rng(8), draws=5000)
    assert abs(estimate.value - exact) <= 4 * estimate.standard_error
    root_mean_square = math.sqrt((X**2).sum(axis=1).mean())
    bound = rademacher_linear_bound(10, 2.0, root_mean_square)
    np.testing.assert_allclose(bound, 2.0 * math.sqrt((X**2).sum()) / 10)
    assert exact <= bound <= 1.2 * exact


def test_the_closed_form_supremum_is_that_over_the_ball():
    rng = np.random.default_rng(9)
    X, signs = rng.normal(size=(6, 2)), rng.choice([-1.0, 1.0], 6)
    angles = np.linspace(0, 2 * np.pi, 100_001)
    thetas = 1.5 * np.stack([np.cos(angles), np.sin(angles)])
    np.testing.assert_allclose((signs @ X @ thetas / 6).max(), 1.5 * np.linalg.norm(signs @ X) / 6, rtol=1e-8)


@pytest.mark.parametrize("loss", ["logistic", "hinge"])
def test_contraction_bounds_the_complexity_of_the_losses(loss):
    rng = np.random.default_rng(10)
    x, radius = rng.normal(size=10), 3.0
    y = rng.choice([-1.0, 1.0], 10)
    margins = (y * x)[:, None] * np.linspace(-radius, radius, 2001)
    losses = np.logaddexp(0, -margins) if loss == "logistic" else np.maximum(0, 1 - margins)
    of_losses = (all_signs(10) @ losses / 10).max(axis=1).mean()
    estimate = rademacher_linear(x[:, None], radius, rng, lipschitz=loss_lipschitz(loss), draws=20_000)
    assert of_losses <= estimate.value + 4 * estimate.standard_error
    np.testing.assert_allclose(
        rademacher_linear(x[:, None], radius, np.random.default_rng(0), lipschitz=0.5).value,
        rademacher_linear(x[:, None], radius, np.random.default_rng(0)).value / 2,
    )


def test_more_samples_than_one_block_of_signs_give_the_same_estimate():
    X = np.ones((400_000, 1))
    estimate = rademacher_linear(X, 1.0, np.random.default_rng(11), draws=5)
    assert 0 < estimate.value < 5 * rademacher_linear_bound(400_000, 1.0, 1.0)


# --- the data-dependent bound ---


def test_the_corrected_shares_sum_to_delta_and_the_printed_ones_exceed_it():
    delta, k = 0.05, np.arange(1, 100_001)
    shares = np.array([union_delta(int(i), delta) for i in k])
    assert 0.9999 * delta < shares.sum() < delta
    printed = 6 * delta / (np.pi * k**2)  # from ln(pi k^2 / (6 delta'))
    assert printed.sum() > 3 * delta
    assert 1 - np.prod(1 - printed) > 2 * delta  # what can go wrong does, when the sets' failures are independent


@pytest.mark.parametrize(("norm", "k", "radius"), [(0.0, 1, 1.0), (1.0, 1, 1.0), (1.01, 2, 2.0), (4.0, 3, 4.0)])
def test_the_data_dependent_bound_uses_the_smallest_ball_and_its_share_of_delta(norm, k, radius):
    losses = np.random.default_rng(12).random(60)
    bound = data_dependent_bound(
        losses,
        10,
        5,
        theta_norm=norm,
        radii=[1.0, 2.0, 4.0],
        rademacher=lambda c: rademacher_linear_bound(60, c, 1.0),
        M=lambda c: loss_range("logistic", c),
        delta=0.05,
        Q_n=lambda c: 0.01 * c,
    )
    np.testing.assert_allclose(bound.deviation, radius * 2 * math.sqrt(math.log(math.pi**2 * k**2 / 0.3) / 120))
    np.testing.assert_allclose(bound.complexity, 2 * radius / math.sqrt(60))
    assert bound.Q_n == 0.01 * radius


def bound_with(**changes):
    arguments = {"rademacher": 0.1, "M": 1.0, "delta": 0.1} | changes
    return generalization_bound([0.5] * 10, 4, 2, **arguments)


def ball_bound(**changes):
    constants = {"rademacher": lambda c: c, "M": lambda c: c, "delta": 0.1}
    return data_dependent_bound([0.5] * 10, 4, 2, **({"theta_norm": 1.0, "radii": [1.0, 2.0]} | constants | changes))


@pytest.mark.parametrize(
    ("call", "start"),
    [
        (lambda: bound_with(delta=1.0), "generalization_bound: delta must lie in (0, 1); got 1.0. "),
        (lambda: bound_with(M=-1.0), "generalization_bound: M must be a finite number of at least 0; got -1.0. "),
        (lambda: bound_with(rademacher=math.nan), "generalization_bound: rademacher must be a finite number"),
        (lambda: bound_with(Q_n=-0.1), "generalization_bound: Q_n must be a finite number of at least 0; got -0.1. "),
        (lambda: ball_bound(radii=[2.0, 1.0]), "data_dependent_bound: radii must be an increasing vector; got "),
        (lambda: ball_bound(theta_norm=3.0), "data_dependent_bound: radii must reach theta_norm = 3.0; got 2.0. "),
        (lambda: union_delta(0, 0.1), "union_delta: k must be an int of at least 1; got 0. "),
        (
            lambda: rademacher_linear([1.0], 1.0, np.random.default_rng(0)),
            "rademacher_linear: X must be a finite matrix with a row per sample; got shape (1,). ",
        ),
        (
            lambda: rademacher_linear([[1.0]], 1.0, np.random.default_rng(0), draws=1),
            "rademacher_linear: draws must be an int of at least 2; got 1. ",
        ),
        (
            lambda: q_n_estimate(draw_losses, S, Q, np.random.default_rng(0), repeats=0),
            "q_n_estimate: repeats must be an int of at least 2; got 0. ",
        ),
    ],
)
def test_a_wrong_argument_is_named_with_its_rule(call, start):
    with pytest.raises(ArgumentError) as caught:
        call()
    assert str(caught.value).startswith(start)
