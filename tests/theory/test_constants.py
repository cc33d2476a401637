"""The constants against numerical suprema: never exceeded, and reached where the docstring says so."""

import math

import numpy as np
import pytest
from scipy.special import log_softmax

from ordered_sgd.errors import ArgumentError
from ordered_sgd.theory.constants import (
    linear_lipschitz,
    loss_lipschitz,
    loss_range,
    regularizer_lipschitz,
    tanh_network_lipschitz,
    tanh_network_weak_convexity,
)


def huber(r, delta):
    return np.where(np.abs(r) <= delta, r * r / 2, delta * (np.abs(r) - delta / 2))


def scalar_loss(name, a, y, delta=1.0):
    return {
        "logistic": lambda: np.logaddexp(0, -y * a),
        "hinge": lambda: np.maximum(0, 1 - y * a),
        "huber": lambda: huber(a - y, delta),
        "square": lambda: (a - y) ** 2,
    }[name]()


def vector_loss(name, a, y):
    """Losses of scores a, shape (..., K), for class y."""
    if name == "softmax":
        return -log_softmax(a, axis=-1)[..., y]
    margins = np.maximum(0, 1 + a - a[..., [y]])
    return margins.sum(axis=-1) - margins[..., y]


@pytest.mark.parametrize("loss", ["logistic", "hinge", "huber", "square"])
def test_the_steepest_secant_of_a_loss_of_one_score_approaches_its_lipschitz_constant(loss):
    score_bound, target_bound, delta = 40.0, 1.0, 0.7
    constant = loss_lipschitz(loss, delta=delta, score_bound=score_bound, target_bound=target_bound)
    a = np.linspace(-score_bound, score_bound, 100_001)
    slopes = [np.abs(np.diff(scalar_loss(loss, a, y, delta)) / np.diff(a)).max() for y in (-1.0, 1.0)]
    assert max(slopes) <= constant * (1 + 1e-9)  # rounding of the secants
    assert max(slopes) >= 0.999 * constant


@pytest.mark.parametrize("loss", ["softmax", "multiclass_hinge"])
@pytest.mark.parametrize("K", [2, 3, 7])
def test_the_steepest_secant_of_a_multiclass_loss_approaches_its_lipschitz_constant(loss, K):
    rng = np.random.default_rng(0)
    constant = loss_lipschitz(loss, classes=K)
    a = 5 * rng.normal(size=(4000, K))
    a[0] = np.where(np.arange(K) == 1, 40.0, 0.0)  # one wrong class far ahead of class 0: softmax's steepest point
    a[1] = np.where(np.arange(K) == 0, -40.0, 0.0)  # all classes ahead of class 0: the hinge's
    step = 1e-4 * rng.normal(size=a.shape)
    step[0] = 1e-4 * (np.eye(K)[1] - np.eye(K)[0])
    step[1] = 1e-4 * (np.ones(K) - K * np.eye(K)[0])
    slopes = np.abs(vector_loss(loss, a + step, 0) - vector_loss(loss, a - step, 0)) / np.linalg.norm(2 * step, axis=1)
    assert slopes.max() <= constant * (1 + 1e-7)
    assert slopes.max() >= 0.999 * constant


@pytest.mark.parametrize("loss", ["logistic", "hinge", "huber", "square"])
@pytest.mark.parametrize("B", [0.3, 1.0, 6.0])
def test_the_range_of_a_loss_of_one_score_is_the_largest_difference_of_two_losses(loss, B):
    a, y = np.linspace(-B, B, 2001), np.array([-0.25, 0.25]) if loss in ("huber", "square") else np.array([-1.0, 1.0])
    losses = scalar_loss(loss, a[:, None], y[None, :])
    M = loss_range(loss, B, target_bound=0.25)
    np.testing.assert_allclose(np.ptp(losses), M, rtol=1e-4, atol=1e-6)  # the grid misses the zero of the residual


@pytest.mark.parametrize("loss", ["softmax", "multiclass_hinge"])
@pytest.mark.parametrize(("K", "B"), [(2, 0.4), (2, 3.0), (5, 0.1), (5, 3.0)])
def test_the_range_of_a_multiclass_loss_holds_on_the_ball_and_is_exact_for_two_classes(loss, K, B):
    rng = np.random.default_rng(0)
    a = rng.normal(size=(20_000, K))
    a[0], a[1] = np.eye(K).sum(0) - K * np.eye(K)[0], K * np.eye(K)[0] - np.eye(K).sum(0)
    a = B * a / np.linalg.norm(a, axis=1, keepdims=True)
    losses = np.stack([vector_loss(loss, a, y) for y in range(K)])
    M = loss_range(loss, B, classes=K)
    assert np.ptp(losses) <= M * (1 + 1e-12)
    if K == 2:
        np.testing.assert_allclose(np.ptp(losses), M)


@pytest.mark.parametrize("loss", ["logistic", "hinge", "huber", "square"])
def test_no_loss_of_a_linear_model_changes_faster_than_g1(loss):
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(40, 5)), rng.choice([-1.0, 1.0], size=40)
    radius = 3.0
    G1 = linear_lipschitz(loss, X, y, radius=radius, delta=0.5)
    theta = rng.normal(size=(2, 500, 5))
    theta *= radius * rng.random((2, 500, 1)) / np.linalg.norm(theta, axis=2, keepdims=True)
    losses = scalar_loss(loss, theta @ X.T, y, 0.5)
    slopes = np.abs(losses[0] - losses[1]).max(axis=1) / np.linalg.norm(theta[0] - theta[1], axis=1)
    assert 0 < slopes.max() <= G1


@pytest.mark.parametrize(
    ("kind", "R"),
    [
        ("l2", lambda t: np.linalg.norm(t, axis=-1)),
        ("l1", lambda t: np.abs(t).sum(axis=-1)),
        ("squared_l2", lambda t: (t**2).sum(axis=-1) / 2),
    ],
)
def test_a_regularizer_reaches_its_lipschitz_constant_and_no_more(kind, R):
    lam, radius, d = 0.3, 2.0, 4
    G2 = regularizer_lipschitz(kind, lam, d=d, radius=radius)
    rng = np.random.default_rng(2)
    theta = rng.normal(size=(2, 1000, d))
    theta *= radius / np.linalg.norm(theta, axis=2, keepdims=True)
    slopes = lam * np.abs(R(theta[0]) - R(theta[1])) / np.linalg.norm(theta[0] - theta[1], axis=1)
    assert slopes.max() <= G2 * (1 + 1e-12)
    outward = np.full(d, radius / math.sqrt(d))  # along the diagonal, where the L1 norm is steepest too
    steepest = lam * (R(outward) - R((1 - 1e-6) * outward)) / (1e-6 * radius)
    np.testing.assert_allclose(steepest, G2, rtol=1e-5)


class TanhNetwork:
    """f = v . tanh(W x) + c under the logistic loss of one sample, its gradient by hand, its Hessian by differences."""

    def __init__(self, x, y, hidden):
        self.x, self.y, self.h = x, y, hidden

    def gradient(self, theta):
        W, v, c = theta[: -self.h - 1].reshape(self.h, -1), theta[-self.h - 1 : -1], theta[-1]
        u = np.tanh(W @ self.x)
        slope = -self.y / (1 + np.exp(self.y * (v @ u + c)))
        return slope * np.concatenate([np.outer(v * (1 - u**2), self.x).ravel(), u, [1.0]])

    def hessian(self, theta, step=1e-5):
        columns = [
            (self.gradient(theta + e) - self.gradient(theta - e)) / (2 * step) for e in step * np.eye(theta.size)
        ]
        return (np.array(columns) + np.array(columns).T) / 2


def random_theta(rng, hidden, d, output_bound):
    W = rng.normal(size=hidden * d) * rng.choice([0.1, 0.5, 1.0])
    return np.concatenate([W, rng.uniform(-output_bound, output_bound, hidden), 3 * rng.normal(size=1)])


@pytest.mark.parametrize(("x_norm", "output_bound"), [(0.5, 0.0), (1.0, 1.0), (2.0, 0.5), (3.0, 4.0)])
def test_adding_rho_makes_every_hessian_of_the_tanh_network_positive_and_the_gradient_stays_under_g1(
    x_norm, output_bound
):
    rng, hidden, d = np.random.default_rng(3), 3, 2
    rho = tanh_network_weak_convexity(x_norm, output_bound)
    G1 = tanh_network_lipschitz(x_norm, hidden, output_bound)
    for _ in range(300):
        x = rng.normal(size=d)
        network = TanhNetwork(x * x_norm * rng.random() / np.linalg.norm(x), rng.choice([-1, 1]), hidden)
        theta = random_theta(rng, hidden, d, output_bound)
        assert np.linalg.eigvalsh(network.hessian(theta)).min() >= -rho - 1e-7 * max(1, rho)  # differences: 1e-9
        assert np.linalg.norm(network.gradient(theta)) <= G1


@pytest.mark.parametrize(("x_norm", "output_bound"), [(0.5, 0.0), (1.0, 1.0), (2.0, 0.5), (3.0, 4.0)])
def test_no_smaller_rho_would_do_for_the_tanh_network(x_norm, output_bound):
    rho = tanh_network_weak_convexity(x_norm, output_bound)
    network = TanhNetwork(np.array([x_norm]), 1, 1)
    far_wrong = -40.0  # the output bias: here the logistic loss is a straight line of slope -1
    thetas = [np.array([z / x_norm, output_bound, far_wrong]) for z in np.linspace(-2, 2, 401)]
    worst = min(np.linalg.eigvalsh(network.hessian(theta)).min() for theta in thetas)
    np.testing.assert_allclose(-worst, rho, rtol=1e-4)  # the grid of z


def test_without_a_bound_of_the_output_weights_the_tanh_network_is_not_weakly_convex():
    # the paper calls such networks weakly convex without more ado; the curvature grows with the output weights
    steepest = 4 / (3 * math.sqrt(3))  # largest |tanh''|
    for bound in (1e2, 1e4, 1e6):
        np.testing.assert_allclose(tanh_network_weak_convexity(1.0, bound), steepest * bound, rtol=1e-3)


def test_g1_of_the_tanh_network_is_approached():
    G1 = tanh_network_lipschitz(2.0, 3, 1.5)
    network = TanhNetwork(np.array([2.0]), 1, 3)
    theta = np.array([1e-6, 1e-6, 1e-6, 1.5, 1.5, 1.5, -40.0])
    np.testing.assert_allclose(np.linalg.norm(network.gradient(theta)), G1, rtol=1e-9)


@pytest.mark.parametrize(
    ("call", "start"),
    [
        (lambda: loss_lipschitz("log"), "loss_lipschitz: loss must be one of logistic, "),
        (
            lambda: loss_lipschitz("huber", delta=0.0),
            "loss_lipschitz: delta must be a finite number above 0; got 0.0. ",
        ),
        (
            lambda: loss_lipschitz("square"),
            "loss_lipschitz: score_bound must be a finite number of at least 0; got None",
        ),
        (lambda: loss_lipschitz("multiclass_hinge"), "loss_lipschitz: classes must be an int of at least 2"),
        (lambda: loss_range("logistic", math.inf), "loss_range: score_bound must be a finite number"),
        (lambda: loss_range("square", 1.0), "loss_range: target_bound must be a finite number"),
        (lambda: linear_lipschitz("hinge", [1.0, 2.0]), "linear_lipschitz: X must be a finite matrix"),
        (lambda: linear_lipschitz("hinge", [[math.nan]]), "linear_lipschitz: X must be a finite matrix"),
        (lambda: linear_lipschitz("square", [[1.0]], radius=1.0), "linear_lipschitz: y must be given for the square"),
        (
            lambda: linear_lipschitz("square", [[1.0]], [1.0]),
            "linear_lipschitz: radius must be a finite number above 0",
        ),
        (
            lambda: regularizer_lipschitz("l3", 0.1),
            "regularizer_lipschitz: kind must be one of l2, l1, squared_l2; got",
        ),
        (
            lambda: regularizer_lipschitz("l1", 0.1),
            "regularizer_lipschitz: d must be an int of at least 1; got None",
        ),
        (lambda: tanh_network_lipschitz(0.0, 3, 1.0), "tanh_network_lipschitz: x_norm must be a finite number above 0"),
        (lambda: tanh_network_weak_convexity(1.0, -1.0), "tanh_network_weak_convexity: output_bound must be a finite"),
    ],
)
def test_a_wrong_argument_is_named_with_its_rule(call, start):
    with pytest.raises(ArgumentError) as caught:
        call()
    assert str(caught.value).startswith(start)
