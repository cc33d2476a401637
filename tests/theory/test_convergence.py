"""Theorem 2: the bound, its corrected statement, the Moreau envelope, and both settings on real data."""

from functools import cache

import numpy as np
import pytest
from scipy.optimize import isotonic_regression, minimize
from scipy.special import entr, expit
from sklearn.datasets import load_breast_cancer

from ordered_sgd.errors import ArgumentError
from ordered_sgd.theory.constants import (
    linear_lipschitz,
    regularizer_lipschitz,
    tanh_network_lipschitz,
    tanh_network_weak_convexity,
)
from ordered_sgd.theory.convergence import convergence_bound, draw_iterate, moreau_envelope
from ordered_sgd.theory.risk import ordered_risk, sample_weights
from ordered_sgd.theory.weights import gamma_weights

S, Q = 32, 8  # batch size and samples kept, throughout


def descend_absolute_value(theta, etas):
    """Iterates of subgradient descent on |theta|: ordered SGD with n = s = q = 1 and L_1 = |theta|, G1 = 1."""
    path = [theta]
    for eta in etas[:-1]:
        path.append(path[-1] - eta * np.sign(path[-1]))
    return np.abs(path)


def decay_exponent(steps, values):
    return np.polyfit(np.log(steps), np.log(values), 1)[0]


# --- the bound ---


@pytest.mark.parametrize("eta", [0.02, 0.3])
def test_the_convex_bound_is_within_a_factor_of_two_on_the_absolute_value(eta):
    etas = np.full(4001, eta)
    gap = descend_absolute_value(eta / 2, etas).min()  # jumps between +-eta/2 for ever
    bound = convergence_bound(etas, G1=1.0, distance=eta / 2)
    assert gap <= bound <= 2.01 * gap


def test_the_printed_minimum_over_n_iterates_fails_and_the_one_over_all_steps_holds():
    n, etas = 1, np.full(1001, 0.01)
    gaps = descend_absolute_value(1.0, etas)
    bound = convergence_bound(etas, G1=1.0, distance=1.0)
    assert gaps[: n + 1].min() > 10 * bound  # as printed: min over 0 <= t <= n
    assert gaps.min() <= bound


def test_the_bounds_are_the_formulas_of_the_theorem_for_uneven_steps():
    etas, G1, G2 = np.array([0.5, 0.0, 0.2, 0.1]), 3.0, 0.5
    squares = 0.25 + 0.04 + 0.01
    convex = convergence_bound(etas, G1, G2, distance=2.0)
    np.testing.assert_allclose(convex, (2 * 9.25 * squares + 4.0) / 1.6)
    weakly_convex = convergence_bound(etas, G1, G2, gap=0.7, rho=1.0, rho_hat=3.0)
    np.testing.assert_allclose(weakly_convex, 1.5 * (0.7 + 3 * 9.25 * squares) / 0.8)
    assert convergence_bound(etas, G1, gap=0.7, rho=1.0) == convergence_bound(etas, G1, gap=0.7, rho=1.0, rho_hat=2.0)


def test_the_random_iterate_is_drawn_in_proportion_to_the_step_sizes():
    rng, etas = np.random.default_rng(0), np.array([0.4, 0.0, 0.1, 0.3])
    counts = np.bincount([draw_iterate(etas, rng) for _ in range(20_000)], minlength=4)
    expected = 20_000 * etas / etas.sum()
    assert counts[1] == 0
    assert (np.abs(counts - expected) <= 4 * np.sqrt(expected)).all()


# --- the Moreau envelope ---


def absolute(x):
    return float(np.abs(x).sum()), np.sign(x)


@pytest.mark.parametrize("lam", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("x", [-3.0, -0.05, 0.0, 0.7, 12.0])
def test_the_envelope_of_the_absolute_value_is_hubers_function(x, lam):
    envelope = moreau_envelope(absolute, [x], lam)
    huber = x * x / (2 * lam) if abs(x) <= lam else abs(x) - lam / 2
    np.testing.assert_allclose(envelope.value, huber, atol=1e-12)
    np.testing.assert_allclose(envelope.gradient, [np.clip(x / lam, -1, 1)], atol=1e-12)
    np.testing.assert_allclose(envelope.prox, [np.sign(x) * max(abs(x) - lam, 0)], atol=1e-12)


def test_the_prox_of_the_l1_norm_is_soft_thresholding():
    theta = 2 * np.random.default_rng(0).normal(size=12)
    envelope = moreau_envelope(absolute, theta, 0.8, tol=1e-13)
    np.testing.assert_allclose(envelope.prox, np.sign(theta) * np.maximum(np.abs(theta) - 0.8, 0), atol=1e-6)


@pytest.mark.parametrize("d", [1, 4, 12])
def test_the_envelope_of_a_quadratic_is_its_closed_form_within_the_certified_errors(d):
    rng, lam = np.random.default_rng(d), 0.5
    root = rng.normal(size=(d, d))
    A, theta = root @ root.T / d, rng.normal(size=d)
    envelope = moreau_envelope(lambda x: (x @ A @ x / 2, A @ x), theta, lam)
    prox = np.linalg.solve(np.eye(d) + lam * A, theta)
    value = prox @ A @ prox / 2 + (theta - prox) @ (theta - prox) / (2 * lam)
    assert -1e-14 <= envelope.value - value <= envelope.gap + 1e-14  # 1e-14: rounding
    assert np.linalg.norm(envelope.gradient - (theta - prox) / lam) <= envelope.gradient_error + 1e-12
    assert envelope.gap <= 1e-10


@pytest.mark.parametrize(("x", "prox"), [(0.0, 0.0), (0.1, 0.5), (0.3, 1.0), (-0.9, -1.0), (1.2, 1.0), (2.7, 1.5)])
def test_the_envelope_of_a_weakly_convex_function_is_its_closed_form(x, prox):
    # f = |x^2 - 1| is 2-weakly convex, so lam < 1/2; the prox is x / (1 -+ 2 lam) inside and outside, or the kink
    lam = 0.4
    envelope = moreau_envelope(lambda b: (abs(b[0] ** 2 - 1), 2 * b * np.sign(b**2 - 1)), [x], lam, rho=2.0)
    np.testing.assert_allclose(envelope.prox, [prox], atol=envelope.gradient_error * lam + 1e-12)
    np.testing.assert_allclose(envelope.value, abs(prox**2 - 1) + (x - prox) ** 2 / (2 * lam), atol=1e-9)


def test_the_gradient_of_the_envelope_is_the_slope_of_its_values():
    X = np.random.default_rng(0).normal(size=(30, 3))

    def risk(theta):
        losses = np.abs(X @ theta - 1)
        weights = sample_weights(losses, 6, 2) / 2
        return ordered_risk(losses, 6, 2), X.T @ (weights * np.sign(X @ theta - 1))

    theta, lam, step = np.array([0.4, -1.0, 0.2]), 0.3, 1e-4
    values = [
        moreau_envelope(risk, theta + e, lam, tol=1e-13).value for e in (*(step * np.eye(3)), *(-step * np.eye(3)))
    ]
    slopes = (np.array(values[:3]) - np.array(values[3:])) / (2 * step)
    np.testing.assert_allclose(moreau_envelope(risk, theta, lam, tol=1e-13).gradient, slopes, atol=1e-4)


# --- convex losses on real data: ordered logistic regression, R = lam ||theta|| ---

LAM = 0.05  # the data are separable: without R there is no finite minimiser


@cache
def breast_cancer():
    """Rows y_i x_i: features standardised, a column of ones for the intercept, labels +-1."""
    X, y = load_breast_cancer(return_X_y=True)
    X = np.column_stack([(X - X.mean(axis=0)) / X.std(axis=0), np.ones(len(X))])
    return X * (2.0 * y - 1.0)[:, None]


def logistic_risk(theta):
    return ordered_risk(np.logaddexp(0, -breast_cancer() @ theta), S, Q, regularizer=LAM * np.linalg.norm(theta))


@cache
def solve_logistic():
    """Minimiser of L_q, its value, and a lower bound of the least value.

    L_q is the largest of all weightings w of the losses by permutations of gamma / q. Less ``(mu / 2) ||w||^2`` the
    maximum is smooth in theta, its w a projection onto the hull of the permutations (an isotonic regression); L-BFGS
    minimises it for mu going to 0. Any w of the hull and any u in [0, 1]^n with ``||sum w_i u_i y_i x_i|| <= lam``
    bound the least value from below by ``sum w_i H(u_i)``, H the binary entropy: the dual problem.
    """
    Z = breast_cancer()
    gamma = gamma_weights(len(Z), S, Q) / Q

    def hull_weights(losses, mu):
        order = np.argsort(-losses, kind="stable")
        weights = np.empty(len(Z))
        scaled = losses[order] / mu
        weights[order] = scaled - isotonic_regression(scaled - gamma, increasing=False).x
        return weights

    def smoothed(theta, mu):
        margins, norm = Z @ theta, np.linalg.norm(theta)
        losses = np.logaddexp(0, -margins)
        w = hull_weights(losses, mu)
        return w @ losses - mu / 2 * (w @ w) + LAM * norm, LAM * theta / norm - Z.T @ (w * expit(-margins))

    theta = np.full(Z.shape[1], 1e-3)
    for mu in (100.0, 10.0, 1.0, 0.1):
        options = {"maxiter": 5000, "maxcor": 30, "ftol": 1e-16, "gtol": 1e-11}
        theta = minimize(smoothed, theta, args=(mu,), jac=True, method="L-BFGS-B", options=options).x
    w, u = hull_weights(np.logaddexp(0, -Z @ theta), 0.1), expit(-Z @ theta)
    u *= min(1.0, LAM / np.linalg.norm(Z.T @ (w * u)))
    return theta, logistic_risk(theta), float(w @ (entr(u) + entr(1 - u)))


def ordered_sgd_logistic(scale, T, runs, rng):
    """L_q of every run from theta = 0 with eta_t = scale / sqrt(t + 1), at t = 0, 1, 3, 7, ..., T."""
    Z = breast_cancer()
    theta, record = np.zeros((runs, Z.shape[1])), {}
    for t in range(T + 1):
        if (t + 1) & t == 0:
            record[t] = np.array([logistic_risk(row) for row in theta])
        chosen = np.argpartition(rng.random((runs, len(Z))), S - 1, axis=1)[:, :S]  # s of n without replacement
        batch = Z[chosen]
        margins = (batch @ theta[:, :, None])[:, :, 0]
        kept = np.argsort(margins, axis=1)[:, :Q]  # the least margins are the largest losses
        batch, margins = np.take_along_axis(batch, kept[:, :, None], 1), np.take_along_axis(margins, kept, 1)
        norm = np.linalg.norm(theta, axis=1, keepdims=True)
        gradient = LAM * theta / np.where(norm > 0, norm, 1) - (expit(-margins)[:, None, :] @ batch)[:, 0] / Q
        theta = theta - scale / np.sqrt(t + 1) * gradient
    return record


def logistic_bound(scale, T):
    theta, _, _ = solve_logistic()
    G1, G2 = linear_lipschitz("logistic", breast_cancer()), regularizer_lipschitz("l2", LAM)
    return convergence_bound(scale / np.sqrt(np.arange(T + 1) + 1.0), G1, G2, distance=np.linalg.norm(theta))


def test_the_independent_solver_certifies_its_minimum():
    theta, value, lower = solve_logistic()
    assert lower <= value <= lower + 1e-9
    assert logistic_risk(theta + 1e-3 * np.random.default_rng(0).normal(size=theta.size)) > value


@pytest.mark.parametrize("scale", [0.03, 0.4])
def test_the_gap_of_ordered_logistic_regression_lies_under_the_bound_at_every_horizon(scale):
    record = ordered_sgd_logistic(scale, T=2**12 - 1, runs=8, rng=np.random.default_rng(1))
    _, _, lower = solve_logistic()
    gaps = np.minimum.accumulate([risks.mean() - lower for risks in record.values()])  # the certified side
    bounds = [logistic_bound(scale, t) for t in record]
    assert (gaps <= bounds).all()
    assert gaps[-1] < 0.5 * gaps[0]


def test_the_gap_of_ordered_logistic_regression_decays_at_least_as_fast_as_one_over_the_root_of_the_steps():
    record = ordered_sgd_logistic(0.4, T=2**13 - 1, runs=8, rng=np.random.default_rng(2))
    _, _, lower = solve_logistic()
    T = np.array([t for t in record if t >= 15])
    gaps = np.minimum.accumulate([record[t].mean() - lower for t in T])
    assert decay_exponent(T + 1, gaps) <= -0.5


@pytest.mark.slow
def test_the_bound_says_something_once_there_are_enough_steps():
    T = 2**18 - 1
    theta, _, lower = solve_logistic()
    # the scale that balances the two terms of the bound
    scale = np.linalg.norm(theta) / (linear_lipschitz("logistic", breast_cancer()) * np.sqrt(2 * np.log(T)))
    record = ordered_sgd_logistic(scale, T, runs=4, rng=np.random.default_rng(3))
    gap = min(risks.mean() for risks in record.values()) - lower
    assert gap <= logistic_bound(scale, T) < logistic_risk(np.zeros_like(theta)) - lower


# --- weakly convex losses on real data: a tanh network with one hidden layer ---

HIDDEN, OUTPUT_BOUND = 3, 2.0


class TanhNetwork:
    """Ordered risk of v . tanh(W x) + c on three principal components and a one, rows scaled to norm 1."""

    def __init__(self):
        X, y = load_breast_cancer(return_X_y=True)
        left, _, _ = np.linalg.svd((X - X.mean(axis=0)) / X.std(axis=0), full_matrices=False)
        X = np.column_stack([left[:, :3] * np.sqrt(len(X)), np.ones(len(X))])
        self.X, self.y = X / np.linalg.norm(X, axis=1, keepdims=True), 2.0 * y - 1.0
        self.split = HIDDEN * X.shape[1]

    def losses(self, theta, rows):
        u = np.tanh(self.X[rows] @ theta[: self.split].reshape(HIDDEN, -1).T)
        margins = self.y[rows] * (u @ theta[self.split : -1] + theta[-1])
        return np.logaddexp(0, -margins), u, margins

    def gradient(self, theta, rows, weights, u, margins):
        pull = -weights * self.y[rows] * expit(-margins)
        inner = (pull[:, None] * (1 - u**2) * theta[self.split : -1]).T @ self.X[rows]
        return np.concatenate([inner.ravel(), u.T @ pull, [pull.sum()]])

    def risk(self, theta):
        # rho and G1 hold on this set only, and neither runs nor envelopes ever leave it
        assert np.abs(theta[self.split : -1]).max() <= OUTPUT_BOUND
        rows = slice(None)
        losses, u, margins = self.losses(theta, rows)
        weights = sample_weights(losses, S, Q) / Q
        return float(weights @ losses), self.gradient(theta, rows, weights, u, margins)

    def train(self, theta, etas, rng):
        path = []
        for eta in etas:
            path.append(theta)
            rows = rng.choice(len(self.X), S, replace=False, shuffle=False)
            losses, u, margins = self.losses(theta, rows)
            weights = np.zeros(S)
            weights[np.argsort(-losses, kind="stable")[:Q]] = 1 / Q
            theta = theta - eta * self.gradient(theta, rows, weights, u, margins)
        return path


def test_the_gradient_of_the_tanh_network_is_the_slope_of_its_risk():
    network, theta = TanhNetwork(), np.random.default_rng(0).normal(size=16) / 2
    slopes = [(network.risk(theta + e)[0] - network.risk(theta - e)[0]) / 2e-6 for e in 1e-6 * np.eye(16)]
    np.testing.assert_allclose(network.risk(theta)[1], slopes, atol=1e-6)


@pytest.mark.slow
def test_the_envelope_gradient_of_an_ordered_tanh_network_lies_under_the_bound_and_decays():
    network, rng = TanhNetwork(), np.random.default_rng(0)
    rho, G1 = tanh_network_weak_convexity(1.0, OUTPUT_BOUND), tanh_network_lipschitz(1.0, HIDDEN, OUTPUT_BOUND)
    horizons = 4 ** np.arange(2, 7)
    etas = 0.1 / np.sqrt(np.arange(horizons[-1]) + 1.0)
    start = rng.normal(size=16) / 2
    paths = [network.train(start, etas, rng) for _ in range(4)]

    def envelope(theta):
        return moreau_envelope(network.risk, theta, 1 / (2 * rho), rho=rho, tol=1e-8)

    measured = np.array(
        [
            np.mean(
                [np.sum(envelope(path[draw_iterate(etas[:T], rng)]).gradient ** 2) for path in paths for _ in range(30)]
            )
            for T in horizons
        ]
    )
    gap = envelope(start).value  # the least L_q is not below 0
    bounds = [convergence_bound(etas[:T], G1, gap=gap, rho=rho) for T in horizons]
    assert (measured <= bounds).all()
    assert decay_exponent(horizons, measured) <= decay_exponent(horizons, bounds)  # -1/2, up to a logarithm


@pytest.mark.parametrize(
    ("call", "start"),
    [
        (lambda: convergence_bound([], 1.0, distance=1.0), "convergence_bound: etas must be a vector of finite step"),
        (lambda: convergence_bound([0.1, -0.1], 1.0, distance=1.0), "convergence_bound: etas must be a vector"),
        (lambda: draw_iterate([0.0], np.random.default_rng(0)), "draw_iterate: etas must be a vector"),
        (
            lambda: convergence_bound([0.1], 1.0),
            "convergence_bound: distance or gap must be given, one of the two; got",
        ),
        (
            lambda: convergence_bound([0.1], 1.0, gap=1.0),
            "convergence_bound: rho must be a finite number of at least 0",
        ),
        (
            lambda: convergence_bound([0.1], 1.0, gap=1.0, rho=1.0, rho_hat=1.0),
            "convergence_bound: rho_hat must be above rho = 1.0; got 1.0. ",
        ),
        (
            lambda: moreau_envelope(absolute, [1.0], 2.0, rho=0.5),
            "moreau_envelope: rho must be below 1 / lam = 0.5; got",
        ),
        (lambda: moreau_envelope(lambda x: (np.nan, x), [1.0], 1.0), "moreau_envelope: f must be finite; got nan. "),
        (
            lambda: moreau_envelope(lambda x: (-(x @ x), -2 * x), [1.0], 0.25),
            "moreau_envelope: f must be 0.0-weakly convex; got a plane ",
        ),
        (
            lambda: moreau_envelope(absolute, np.arange(9.0) / 4, 1.3, max_cuts=2),
            "moreau_envelope: tol must be reached within 2 cuts; got a gap of ",
        ),
    ],
)
def test_a_wrong_argument_is_named_with_its_rule(call, start):
    with pytest.raises(ArgumentError) as caught:
        call()
    assert str(caught.value).startswith(start)


def test_an_oracle_without_a_subgradient_and_a_seed_in_place_of_a_generator() -> None:
    with pytest.raises(ArgumentError, match="f must return a value and a subgradient; got float"):
        moreau_envelope(lambda x: float(abs(x[0])), [3.0], lam=1.0)
    assert draw_iterate([0.1, 0.2, 0.3], 5) == draw_iterate([0.1, 0.2, 0.3], np.random.default_rng(5))
