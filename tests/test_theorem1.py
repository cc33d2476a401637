"""Theorem 1 by enumeration: over every mini-batch, the ordered gradient averages to the gradient of L_q."""

from fractions import Fraction
from itertools import combinations
from math import comb

import pytest
import torch
from torch import Tensor, nn

from ordered_sgd import OrderedStep, select_top_q

TRIPLES = [(n, s, q) for n in range(1, 9) for s in range(1, n + 1) for q in range(1, s + 1)]


def gamma(n: int, s: int, q: int) -> list[Fraction]:
    """Eq. 3, exactly."""
    return [
        Fraction(sum(comb(j - 1, k) * comb(n - j, s - k - 1) for k in range(q)), comb(n, s)) for j in range(1, n + 1)
    ]


def by_loss(losses: list[Fraction] | list[float]) -> list[int]:
    return sorted(range(len(losses)), key=lambda i: (-losses[i], i))


def test_exactly_in_rational_arithmetic_for_a_linear_model_ties_included() -> None:
    # L_i = (w . x_i - y_i)^2 on small integers: losses, gradients and their floats are exact, and some losses tie
    xs = [(1, 2), (0, 1), (3, -1), (2, 2), (1, 2), (-1, 0), (0, 3), (2, -2)]
    ys = [1, 2, 0, -1, 1, 2, 2, 0]
    w = (1, -1)
    residuals = [Fraction(w[0] * x[0] + w[1] * x[1] - y) for x, y in zip(xs, ys, strict=True)]
    losses = [r * r for r in residuals]
    gradients = [[2 * r * c for c in x] for r, x in zip(residuals, xs, strict=True)]
    assert len(set(losses)) < len(losses)
    for n, s, q in TRIPLES:
        total = [Fraction(0), Fraction(0)]
        for members in combinations(range(n), s):
            rows = select_top_q(torch.tensor([float(losses[i]) for i in members]), q)
            for row in rows.tolist():
                for c in (0, 1):
                    total[c] += gradients[members[row]][c] / q
        average = [t / comb(n, s) for t in total]
        order = by_loss(losses[:n])
        expected = [
            sum((g * gradients[i][c] for g, i in zip(gamma(n, s, q), order, strict=True)), Fraction(0)) / q
            for c in (0, 1)
        ]
        assert average == expected, (n, s, q)


class _Collect(torch.optim.SGD):
    """Adds up the gradients it is asked to step on, and leaves the parameters alone."""

    def __init__(self, parameters: list[Tensor]) -> None:
        super().__init__(parameters, lr=0.0)
        self.total = [torch.zeros_like(p) for p in parameters]

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for total, p in zip(self.total, self.param_groups[0]["params"], strict=True):
            total += p.grad


@pytest.mark.parametrize("n", range(1, 9))
def test_in_float64_for_a_small_network_with_the_real_step(n: int) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    x, y = torch.randn(n, 3, dtype=torch.float64), torch.randint(0, 3, (n,))
    criterion = nn.CrossEntropyLoss(reduction="none")
    parameters = list(model.parameters())
    order = by_loss(criterion(model(x), y).tolist())
    for s in range(1, n + 1):
        for q in range(1, s + 1):
            optimizer = _Collect(parameters)
            step = OrderedStep(model, criterion, optimizer, q=q)
            for members in combinations(range(n), s):
                index = torch.tensor(members)
                step(x[index], y[index])
            losses = criterion(model(x), y)
            weights = torch.tensor([float(g) for g in gamma(n, s, q)], dtype=torch.float64)
            objective = (weights * losses[torch.tensor(order)]).sum() / q  # L_q, Eq. 2
            expected = torch.autograd.grad(objective, parameters)
            for total, gradient in zip(optimizer.total, expected, strict=True):
                torch.testing.assert_close(total / comb(n, s), gradient, rtol=1e-12, atol=1e-14)
