"""ProximalSGD and its proximal operators against independent solvers."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog, lsq_linear, minimize
from sklearn.linear_model import Lasso
from torch import Tensor

from ordered_sgd.errors import ArgumentError
from ordered_sgd.optim.proximal import PENALTIES, ProximalSGD, prox

N, D = 40, 6
MOMENTA = pytest.mark.parametrize("momentum", [0.0, 0.9])


@pytest.fixture(scope="module")
def problem() -> tuple[np.ndarray, np.ndarray]:
    """A small regression, half of whose true weights are zero."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, D))
    return x, x @ np.array([2.0, -1.5, 0.0, 0.0, 0.7, 0.0]) + 0.3 * rng.normal(size=N)


def fit(
    problem: tuple[np.ndarray, np.ndarray], steps: int = 1500, shape: tuple[int, ...] = (D,), **options
) -> np.ndarray:
    """Weights after full-gradient steps on |x w - y|^2 / (2 n)."""
    x, y = (torch.from_numpy(a) for a in problem)
    w = torch.nn.Parameter(torch.ones(shape, dtype=torch.float64))
    optimizer = ProximalSGD([w], lr=0.1, **options)
    for _ in range(steps):
        optimizer.zero_grad()
        ((x @ w.flatten() - y).square().sum() / (2 * N)).backward()
        optimizer.step()
    return w.detach().numpy()


def slope(problem: tuple[np.ndarray, np.ndarray], w: np.ndarray) -> np.ndarray:
    x, y = problem
    return x.T @ (x @ w.ravel() - y) / N


# The answer of an independent solver. Tolerances are the solvers' own.


@MOMENTA
def test_l1_is_the_lasso_of_scikit_learn(problem, momentum):
    expected = Lasso(alpha=0.3, fit_intercept=False, tol=1e-12, max_iter=100_000).fit(*problem).coef_
    found = fit(problem, momentum=momentum, penalty="l1", strength=0.3)
    np.testing.assert_allclose(found, expected, atol=1e-8)
    assert (found == 0).sum() == (expected == 0).sum() > 0


@MOMENTA
def test_l2_is_ridge_in_closed_form(problem, momentum):
    x, y = problem
    expected = np.linalg.solve(x.T @ x / N + 0.3 * np.eye(D), x.T @ y / N)
    np.testing.assert_allclose(fit(problem, momentum=momentum, penalty="l2", strength=0.3), expected, atol=1e-10)


@MOMENTA
def test_group_meets_the_optimality_conditions_of_the_group_lasso(problem, momentum):
    strength = 0.3
    w = fit(problem, momentum=momentum, shape=(3, 2), penalty="group", strength=strength)
    g = slope(problem, w).reshape(3, 2)
    norms = np.linalg.norm(w, axis=1)
    assert (norms == 0).any()
    assert (norms > 0).any()
    for row in range(3):
        if norms[row] == 0:
            assert np.linalg.norm(g[row]) <= strength
        else:
            np.testing.assert_allclose(g[row], -strength * w[row] / norms[row], atol=1e-9)


@MOMENTA
def test_l2_norm_is_what_scipy_finds(problem, momentum):
    x, y = problem
    found = fit(problem, momentum=momentum, penalty="l2-norm", strength=0.5)
    risk = minimize(lambda w: ((x @ w - y) ** 2).sum() / (2 * N) + 0.5 * np.linalg.norm(w), np.ones(D), tol=1e-12)
    np.testing.assert_allclose(found, risk.x, atol=1e-5)


def test_l2_norm_of_a_large_strength_makes_the_whole_tensor_zero(problem):
    strength = np.linalg.norm(slope(problem, np.zeros(D))) * 1.01
    assert (fit(problem, penalty="l2-norm", strength=strength) == 0).all()


@MOMENTA
def test_bounds_are_box_constrained_least_squares(problem, momentum):
    expected = lsq_linear(*problem, bounds=(-0.5, 0.5), tol=1e-12).x
    np.testing.assert_allclose(fit(problem, momentum=momentum, bounds=(-0.5, 0.5)), expected, atol=1e-8)


@MOMENTA
def test_l1_with_bounds_is_the_non_negative_lasso(problem, momentum):
    expected = Lasso(alpha=0.1, fit_intercept=False, positive=True, tol=1e-12, max_iter=100_000).fit(*problem).coef_
    found = fit(problem, momentum=momentum, penalty="l1", strength=0.1, bounds=(0, math.inf))
    np.testing.assert_allclose(found, expected, atol=1e-8)


def test_ordered_steps_in_a_box_reach_the_minimum_of_the_mean_of_the_q_largest_losses():
    rng = np.random.default_rng(1)
    q, losses = 5, rng.normal(size=(20, 4))
    # min over w, t, u >= 0 of t + sum(u) / q with u >= losses w - t: Rockafellar and Uryasev's linear program
    expected = linprog(
        np.r_[np.zeros(4), 1, np.full(20, 1 / q)],
        A_ub=np.c_[losses, -np.ones(20), -np.eye(20)],
        b_ub=np.zeros(20),
        bounds=[(0.1, 1)] * 4 + [(None, None)] + [(0, None)] * 20,
    ).fun
    w = torch.nn.Parameter(torch.full((4,), 0.5, dtype=torch.float64))
    optimizer = ProximalSGD([w], lr=0.5, bounds=(0.1, 1.0))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    for _ in range(400):
        optimizer.zero_grad()
        value = (torch.from_numpy(losses) @ w).topk(q).values.mean()
        value.backward()
        optimizer.step()
        scheduler.step()
    # a subgradient method with steps 1 / k: the last value is above the minimum by a few steps' length
    assert expected - 1e-12 <= value.item() <= expected + 0.01


# Proximal operators: nothing is lower than what they return.

ENTRY = st.floats(-3, 3, allow_subnormal=False)


def penalty_value(u: Tensor, penalty: str | None, group_dim: int) -> float:
    if penalty == "l1":
        return u.abs().sum().item()
    if penalty == "l2":
        return 0.5 * u.square().sum().item()
    if penalty == "l2-norm":
        return u.norm().item()
    return u.norm(dim=1 - group_dim).sum().item() if penalty == "group" else 0.0


@settings(max_examples=40, deadline=None)
@given(
    penalty=st.sampled_from([None, *PENALTIES]),
    entries=st.lists(ENTRY, min_size=4, max_size=4),
    t=st.floats(0, 3),
    group_dim=st.sampled_from([0, 1]),
    box=st.booleans(),
    seed=st.integers(0, 99),
)
def test_prox_is_the_numerical_minimum(penalty, entries, t, group_dim, box, seed):
    x = torch.tensor(entries, dtype=torch.float64).reshape(2, 2)
    bounds = (-0.5, 1.0) if box and penalty in (None, "l1", "l2") else None
    u = prox(x, t, penalty, group_dim=group_dim, bounds=bounds)

    def value(v: Tensor) -> float:
        return 0.5 * (v - x).square().sum().item() + t * penalty_value(v, penalty, group_dim)

    rival = minimize(
        lambda v: value(torch.from_numpy(v).reshape(2, 2)),
        u.flatten().numpy() + 0.1,
        method="L-BFGS-B",
        bounds=[bounds or (None, None)] * 4,
    ).x
    others = torch.from_numpy(np.random.default_rng(seed).normal(size=(20, 2, 2)) + u.numpy())
    for other in [torch.from_numpy(rival).reshape(2, 2), *others]:
        feasible = other if bounds is None else other.clamp(*bounds)
        # strong convexity: any other point is higher by half the squared distance, so this certifies the minimum
        assert value(feasible) >= value(u) + 0.5 * (feasible - u).square().sum().item() - 1e-12


@pytest.mark.parametrize("penalty", ["l1", "l2-norm", "group"])
def test_what_is_no_larger_than_t_becomes_exactly_zero(penalty):
    assert (prox(torch.tensor([0.3, 0.0]), 0.3, penalty) == 0).all()
    assert prox(torch.tensor([0.3, 0.0]), 0.2, penalty)[0] > 0


@pytest.mark.parametrize("penalty", PENALTIES)
def test_prox_with_t_zero_changes_nothing(penalty):
    x = torch.tensor([[0.0, 0.0], [1.0, -2.0]])
    assert torch.equal(prox(x, 0.0, penalty), x)


def test_a_group_of_a_filter_is_what_enters_one_output():
    weight = torch.zeros(2, 3, 5, 5)
    weight[0], weight[1] = 1.0, 0.01
    out = prox(weight, 1.0, "group")
    torch.testing.assert_close(out[0], weight[0] * (1 - 1 / math.sqrt(75)))
    assert (out[1] == 0).all()
    torch.testing.assert_close(prox(weight, 1.0, "group", group_dim=-4), out)


def test_groups_of_a_vector_or_a_scalar_are_its_entries():
    x = torch.tensor([3.0, -0.5])
    torch.testing.assert_close(prox(x, 1.0, "group"), prox(x, 1.0, "l1"))
    torch.testing.assert_close(prox(torch.tensor(3.0), 1.0, "group"), torch.tensor(2.0))


def test_norms_of_16_bit_blocks_do_not_overflow():
    x = torch.full((1, 64), 20000.0, dtype=torch.float16)  # norm 160000, above the largest float16
    torch.testing.assert_close(prox(x, 80000.0, "group"), x / 2)


# Momentum


def test_without_penalty_it_is_torch_sgd_bit_for_bit():
    runs = []
    for make in (torch.optim.SGD, ProximalSGD):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        optimizer = make(model.parameters(), lr=0.1, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 20, gamma=0.3)
        for _ in range(50):
            optimizer.zero_grad()
            model(torch.randn(16, 5)).square().mean().backward()
            optimizer.step()
            scheduler.step()
        runs.append(list(model.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def test_the_buffer_holds_the_step_that_was_taken():
    w = torch.nn.Parameter(torch.tensor([1.0, 0.01], dtype=torch.float64))
    optimizer = ProximalSGD([w], lr=0.1, momentum=0.5, penalty="l1", strength=1.0)
    for _ in range(3):
        before = w.detach().clone()
        w.grad = torch.ones_like(w) * 0.3
        optimizer.step()
        torch.testing.assert_close(optimizer.state[w]["momentum_buffer"], (before - w.detach()) / 0.1)


def test_a_start_outside_the_box_gives_momentum_no_kick():
    w = torch.nn.Parameter(torch.tensor([1e4], dtype=torch.float16))
    optimizer = ProximalSGD([w], lr=1e-2, momentum=0.9, bounds=(0.0, 1.0))
    w.grad = torch.zeros_like(w)
    optimizer.step()
    optimizer.step()
    assert w.item() == 1.0


def test_a_rate_of_zero_leaves_parameters_and_buffer_finite():
    w = torch.nn.Parameter(torch.ones(3))
    for foreach in (False, True):
        optimizer = ProximalSGD([w], lr=0.0, momentum=0.9, penalty="l1", strength=1.0, foreach=foreach)
        w.grad = torch.ones(3)
        optimizer.step()
        assert torch.equal(w.detach(), torch.ones(3))
        assert torch.equal(optimizer.state[w]["momentum_buffer"], torch.ones(3))


def test_two_groups_may_have_different_penalties(problem):
    x, y = (torch.from_numpy(a) for a in problem)
    w, b = (torch.nn.Parameter(torch.ones(k, dtype=torch.float64)) for k in (D, 1))
    groups = [{"params": [w]}, {"params": [b], "penalty": None}]
    optimizer = ProximalSGD(groups, lr=0.1, penalty="l1", strength=0.3)
    for _ in range(1500):
        optimizer.zero_grad()
        ((x @ w + b - y - 5).square().sum() / (2 * N)).backward()
        optimizer.step()
    lasso = Lasso(alpha=0.3, tol=1e-12, max_iter=100_000).fit(problem[0], problem[1] + 5)  # intercept without penalty
    np.testing.assert_allclose(w.detach().numpy(), lasso.coef_, atol=1e-8)
    np.testing.assert_allclose(b.item(), lasso.intercept_, atol=1e-8)


# Messages: rule, value, remedy

ONE = "ProximalSGD: "
PENALTY_RULE = "penalty must be one of l1, l2, l2-norm, group"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"lr": -1.0}, "lr must be a finite number, at least 0; got -1.0. Try lr=1e-2."),
        ({"lr": math.nan}, "lr must be a finite number, at least 0; got nan. Try lr=1e-2."),
        ({"lr": "0.1"}, "lr must be a finite number, at least 0; got '0.1'. Try lr=1e-2."),
        ({"lr": torch.ones(2)}, "lr must be a finite number, at least 0; got tensor([1., 1.]). Try lr=1e-2."),
        (
            {"momentum": 1.0},
            "momentum must be a finite number, 0 <= momentum < 1; got 1.0. "
            "Nesterov is not offered; the usual value is momentum=0.9.",
        ),
        ({"penalty": "L1"}, f"{PENALTY_RULE}, None; got 'L1'. Pass None for no penalty."),
        ({"penalty": "box"}, f"{PENALTY_RULE}, None; got 'box'. Use bounds=(low, high) for a box."),
        ({"strength": 0.1}, f'{PENALTY_RULE} when strength is given; got None. Pass penalty="l1".'),
        (
            {"penalty": "l1"},
            'strength must be a finite number, at least 0; got None. Pass for example penalty="l1", strength=1e-3.',
        ),
        (
            {"penalty": "l2", "strength": -1},
            'strength must be a finite number, at least 0; got -1. Pass for example penalty="l2", strength=1e-3.',
        ),
        (
            {"penalty": "group", "strength": 1, "group_dim": 2},
            "group_dim must be a dimension of every parameter, here from -2 to 1; got 2 for shape (2, 3). "
            "Give this parameter a group with its own group_dim.",
        ),
        *(
            (
                {"bounds": bounds},
                f"bounds must be two numbers (low, high) with low <= high; got {bounds!r}. "
                "Use bounds=(0, math.inf) for non-negative parameters.",
            )
            for bounds in [(1, 0), (math.nan, 1), 3, (1,), (None, 1)]
        ),
        (
            {"penalty": "group", "strength": 1, "bounds": (0, 1)},
            "bounds must go with penalty None, 'l1' or 'l2'; got penalty 'group'. "
            "Put the bounded parameters into a group of their own.",
        ),
    ],
)
def test_a_wrong_argument_is_refused_with_rule_value_and_remedy(options: dict[str, object], expected: str):
    with pytest.raises(ArgumentError) as caught:
        ProximalSGD([torch.nn.Parameter(torch.ones(2, 3))], **options)
    assert str(caught.value) == ONE + expected


def test_a_refused_group_is_not_kept():
    optimizer = ProximalSGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    with pytest.raises(ArgumentError, match="momentum must"):
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))], "momentum": 2.0})
    assert len(optimizer.param_groups) == 1
