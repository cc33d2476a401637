"""MirrorDescent against the textbook update and independent solvers."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog, minimize
from torch import Tensor

from ordered_sgd.errors import ArgumentError
from ordered_sgd.optim.mirror import MirrorDescent, _norm_gradient


def uniform(*shape: int, dtype: torch.dtype = torch.float64) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.full(shape, 1 / shape[-1], dtype=dtype))


def descend(optimizer: MirrorDescent, w: Tensor, gradient: Tensor, steps: int = 1) -> Tensor:
    for _ in range(steps):
        w.grad = gradient.to(w.dtype)
        optimizer.step()
    return w.detach()


# Entropy


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 9999), lr=st.floats(1e-3, 2.0), size=st.integers(1, 8))
def test_entropy_is_the_multiplicative_update_of_the_textbook(seed, lr, size):
    rng = np.random.default_rng(seed)
    expected = rng.dirichlet(np.ones(size))
    w = torch.nn.Parameter(torch.from_numpy(expected.copy()))
    optimizer = MirrorDescent([w], lr=lr)
    for _ in range(5):
        gradient = rng.normal(size=size)
        expected = expected * np.exp(-lr * gradient)
        expected /= expected.sum()
        descend(optimizer, w, torch.from_numpy(gradient))
    np.testing.assert_allclose(w.detach().numpy(), expected, rtol=1e-12)  # five exp and log in float64


def test_entropy_reaches_the_minimum_over_the_simplex_that_scipy_finds():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(8, 5)), rng.normal(size=8)
    expected = minimize(
        lambda w: 0.5 * ((a @ w - b) ** 2).sum(),
        np.full(5, 0.2),
        jac=lambda w: a.T @ (a @ w - b),
        bounds=[(0, 1)] * 5,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1, "jac": lambda w: np.ones(5)},
        method="SLSQP",
        options={"ftol": 1e-14},
    ).x
    assert (expected < 1e-9).any()  # the minimum is on the boundary, where a projection would be needed otherwise
    w = uniform(5)
    optimizer = MirrorDescent([w], lr=0.3)
    for _ in range(1500):
        optimizer.zero_grad()
        (0.5 * (torch.from_numpy(a) @ w - torch.from_numpy(b)).square().sum()).backward()
        optimizer.step()
    np.testing.assert_allclose(w.detach().numpy(), expected, atol=1e-6)


def test_ordered_steps_on_the_simplex_reach_the_minimum_of_the_mean_of_the_q_largest_losses():
    rng = np.random.default_rng(1)
    q, losses = 5, rng.normal(size=(20, 4))
    # min over w, t, u >= 0 of t + sum(u) / q with u >= losses w - t: Rockafellar and Uryasev's linear program
    expected = linprog(
        np.r_[np.zeros(4), 1, np.full(20, 1 / q)],
        A_ub=np.c_[losses, -np.ones(20), -np.eye(20)],
        b_ub=np.zeros(20),
        A_eq=[np.r_[np.ones(4), np.zeros(21)]],
        b_eq=[1],
        bounds=[(0, None)] * 4 + [(None, None)] + [(0, None)] * 20,
    ).fun
    w = uniform(4)
    optimizer = MirrorDescent([w], lr=1.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    for _ in range(400):
        optimizer.zero_grad()
        value = (torch.from_numpy(losses) @ w).topk(q).values.mean()
        value.backward()
        optimizer.step()
        scheduler.step()
    assert expected - 1e-12 <= value.item() <= expected + 0.01  # a subgradient method with steps 1 / k


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_sums_stay_one_over_thousands_of_steps(dtype):
    generator = torch.Generator().manual_seed(0)
    w = torch.nn.Parameter(torch.softmax(torch.randn(3, 50, generator=generator), -1).to(dtype))
    optimizer = MirrorDescent([w], lr=0.5, dim=-1)
    for _ in range(2000):
        descend(optimizer, w, torch.randn(3, 50, generator=generator))
    assert (w >= 0).all()
    off = (w.detach().double().sum(-1) - 1).abs().max().item()
    assert off <= 4 * torch.finfo(dtype).eps  # one rounding of each entry; nothing accumulates


def test_entries_that_start_at_zero_stay_zero_and_do_not_disturb():
    w = torch.nn.Parameter(torch.tensor([0.5, 0.0, 0.5]))
    got = descend(MirrorDescent([w], lr=10.0), w, torch.tensor([0.0, -3e38, 1.0]), steps=3)
    assert got.tolist()[1] == 0
    assert got.sum().item() == pytest.approx(1)
    assert got[0] > got[2] > 0


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_huge_step_goes_to_a_corner_without_overflow(sign):
    w = uniform(3, dtype=torch.float32)
    gradient = sign * torch.tensor([3e38, -3e38, 1.0])
    got = descend(MirrorDescent([w], lr=1e4), w, gradient, steps=2)
    assert got.tolist() == ([0.0, 1.0, 0.0] if sign > 0 else [1.0, 0.0, 0.0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_an_entry_too_small_for_the_dtype_comes_back(dtype):
    w = uniform(2, dtype=dtype)
    optimizer = MirrorDescent([w], lr=1.0)
    gradient = torch.tensor([0.0, 2.0])
    assert descend(optimizer, w, gradient, steps=100)[1] == 0  # exp(-200)
    torch.testing.assert_close(descend(optimizer, w, -gradient, steps=100), torch.full((2,), 0.5, dtype=dtype))


def test_steps_too_short_for_16_bits_add_up():
    w = uniform(2, dtype=torch.bfloat16)
    got = descend(MirrorDescent([w], lr=1e-4), w, torch.tensor([0.0, 1.0]), steps=4000)
    assert got[1].item() == pytest.approx(1 / (1 + math.exp(0.4)), rel=0.01)  # bfloat16 has three digits


def test_slices_along_dim_are_separate_distributions():
    gradient = torch.randn(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    together, rows = uniform(3, 4), [uniform(4) for _ in range(3)]
    descend(MirrorDescent([together], lr=1.0, dim=1), together, gradient)
    for i, row in enumerate(rows):
        torch.testing.assert_close(together[i], row.data.copy_(descend(MirrorDescent([row], lr=1.0), row, gradient[i])))


@pytest.mark.parametrize("options", [{"geometry": "entropy"}, {"geometry": "p-norm", "p": 1.3}])
def test_a_parameter_changed_by_somebody_else_is_noticed(options):
    gradient = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    w, fresh = uniform(3), uniform(3)
    optimizer = MirrorDescent([w], lr=0.1, **options)
    descend(optimizer, w, gradient, steps=5)
    w.data.fill_(1 / 3)
    torch.testing.assert_close(
        descend(optimizer, w, gradient), descend(MirrorDescent([fresh], lr=0.1, **options), fresh, gradient)
    )


# p-norm


@pytest.mark.parametrize(("p", "lr"), [(1.1, 0.02), (1.5, 0.05)])
def test_p_norm_reaches_the_least_squares_solution_of_numpy(p, lr):
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(12, 4)), rng.normal(size=12)
    expected = np.linalg.lstsq(a, b, rcond=None)[0]
    w = torch.nn.Parameter(torch.zeros(4, dtype=torch.float64))
    optimizer = MirrorDescent([w], lr=lr, geometry="p-norm", p=p)
    for _ in range(2000):
        optimizer.zero_grad()
        (0.5 * (torch.from_numpy(a) @ w - torch.from_numpy(b)).square().sum()).backward()
        optimizer.step()
    np.testing.assert_allclose(w.detach().numpy(), expected, atol=1e-6)


@pytest.mark.slow
def test_from_zero_p_norm_finds_the_solution_of_the_smallest_p_norm():
    # Fewer equations than unknowns: among all solutions, mirror descent from 0 goes to the one with the smallest psi.
    rng = np.random.default_rng(2)
    a, b = rng.normal(size=(3, 6)), rng.normal(size=3)
    p = 1.2
    expected = minimize(
        lambda w: (np.abs(w) ** p).sum(),
        np.linalg.lstsq(a, b, rcond=None)[0],
        constraints={"type": "eq", "fun": lambda w: a @ w - b},
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 1000},
    ).x
    w = torch.nn.Parameter(torch.zeros(6, dtype=torch.float64))
    optimizer = MirrorDescent([w], lr=0.01, geometry="p-norm", p=p)
    for _ in range(4000):
        optimizer.zero_grad()
        (0.5 * (torch.from_numpy(a) @ w - torch.from_numpy(b)).square().sum()).backward()
        optimizer.step()
    np.testing.assert_allclose(w.detach().numpy(), expected, atol=1e-4)  # what SLSQP reaches near w_i = 0


def test_one_p_norm_step_solves_its_bregman_problem():
    rng = np.random.default_rng(3)
    p, lr, start, g = 1.5, 0.2, rng.normal(size=3), rng.normal(size=3)

    def psi(w):
        return 0.5 * np.linalg.norm(w, p) ** 2

    slope = np.sign(start) * np.abs(start) ** (p - 1) * np.linalg.norm(start, p) ** (2 - p)
    expected = minimize(lambda u: g @ u + (psi(u) - slope @ u) / lr, start, tol=1e-14).x
    w = torch.nn.Parameter(torch.from_numpy(start.copy()))
    got = descend(MirrorDescent([w], lr=lr, geometry="p-norm", p=p), w, torch.from_numpy(g))
    np.testing.assert_allclose(got.numpy(), expected, atol=1e-5)


def test_p_of_two_is_plain_sgd_bit_for_bit():
    runs = []
    for make, options in ((torch.optim.SGD, {}), (MirrorDescent, {"geometry": "p-norm", "p": 2})):
        torch.manual_seed(0)
        model = torch.nn.Linear(5, 3)
        optimizer = make(model.parameters(), lr=0.1, **options)
        for _ in range(30):
            optimizer.zero_grad()
            model(torch.randn(8, 5)).square().mean().backward()
            optimizer.step()
        runs.append(list(model.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def test_a_coordinate_whose_weight_underflows_keeps_its_dual():
    # q = 11: of the dual (1, 1e-5) the second weight is 1e-50, zero in float32, yet steady gradients must move it
    w = torch.nn.Parameter(torch.tensor([1.0, 0.0]))
    optimizer = MirrorDescent([w], lr=1e-5, geometry="p-norm", p=1.1)
    steady = torch.tensor([0.0, -1.0])
    assert descend(optimizer, w, steady)[1] == 0
    assert descend(optimizer, w, steady, steps=999)[1] > 0


@settings(max_examples=60, deadline=None)
@given(
    entries=st.lists(st.floats(-10, 10, allow_subnormal=False), min_size=1, max_size=6),
    p=st.floats(1.1, 2.0),
)
def test_the_conjugate_map_is_the_inverse(entries, p):
    x = torch.tensor(entries, dtype=torch.float64)
    back = _norm_gradient(_norm_gradient(x, p, None), p / (p - 1), None)
    torch.testing.assert_close(back, x, rtol=1e-9, atol=1e-9 * max(1.0, x.abs().max().item()))


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_powers_neither_overflow_nor_underflow_as_a_whole(scale):
    x = torch.tensor([3.0, 4.0]) * scale
    for r in (1.5, 3.0, 21.0):
        torch.testing.assert_close(_norm_gradient(x, r, 0), _norm_gradient(x / scale, r, 0) * scale)


# Messages: rule, value, remedy

SIMPLEX = "Start from torch.softmax(x, dim), or pass dim= if slices are the distributions."
P_RULE = "p must be a finite number, 1 < p <= 2; got"
P_REMEDY = "p=2 is plain SGD; for n entries try p = 2 ln n / (2 ln n - 1)."


@pytest.mark.parametrize(
    ("start", "options", "expected"),
    [
        ([0.5, 0.5], {"lr": -0.1}, "lr must be a finite number, at least 0; got -0.1. Try lr=1e-2."),
        (
            [0.5, 0.5],
            {"geometry": "euclid"},
            "geometry must be one of entropy, p-norm; got 'euclid'. "
            'Use geometry="p-norm" with p=2 for the Euclidean one.',
        ),
        *(([1.0], {"geometry": "p-norm", "p": p}, f"{P_RULE} {p!r}. {P_REMEDY}") for p in (None, 1, 2.5, math.nan)),
        (
            [1.5, -0.5],
            {},
            f'parameters must be non-negative for geometry "entropy"; got a smallest entry of -0.5. {SIMPLEX}',
        ),
        (
            [math.nan, 0.5],
            {},
            f'parameters must be non-negative for geometry "entropy"; got a smallest entry of nan. {SIMPLEX}',
        ),
        (
            [[0.5, 0.5], [0.5, 0.5]],
            {},
            'parameters must sum to one along dim for geometry "entropy"; '
            f"got a sum of 2 for shape (2, 2) and dim=None. {SIMPLEX}",
        ),
        (
            [[0.5, 0.5], [0.5, 0.3]],
            {"dim": -1},
            'parameters must sum to one along dim for geometry "entropy"; '
            f"got a sum of 0.8 for shape (2, 2) and dim=-1. {SIMPLEX}",
        ),
        (
            [0.5, 0.5],
            {"dim": 1},
            "dim must be a dimension of every parameter, here from -1 to 0; got 1 for shape (2,). "
            "Give this parameter a group with its own dim.",
        ),
    ],
)
def test_a_wrong_argument_is_refused_with_rule_value_and_remedy(start, options, expected):
    with pytest.raises(ArgumentError) as caught:
        MirrorDescent([torch.nn.Parameter(torch.tensor(start))], **options)
    assert str(caught.value) == "MirrorDescent: " + expected


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_a_softmax_in_any_dtype_is_on_the_simplex(dtype):
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        start = torch.softmax(3 * torch.randn(1000, generator=generator), 0).to(dtype)
        MirrorDescent([torch.nn.Parameter(start)])


def test_a_meta_parameter_cannot_be_looked_at_and_is_taken():
    assert MirrorDescent([torch.nn.Parameter(torch.empty(3, device="meta"))]).param_groups
