import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from ordered_sgd.errors import ArgumentError
from ordered_sgd.lab.data.mixup import Mixup

S = 40


def test_mixing_is_a_loop_over_pairs() -> None:
    rng, mixup = np.random.default_rng(0), Mixup(0.4)
    x, y = torch.rand(S, 3, 4, 5), torch.arange(S) % 7
    partner, weight = mixup.draw(S, rng)
    mixed = mixup.apply(x, y, partner, weight)
    targets = mixed.targets(7)
    for i, j in enumerate(partner):
        expected = weight * x[i].double() + (1 - weight) * x[j].double()
        torch.testing.assert_close(mixed.x[i].double(), expected, rtol=1e-6, atol=1e-6)
        soft = torch.zeros(7)
        soft[y[i]] += weight
        soft[y[j]] += 1 - weight
        torch.testing.assert_close(targets[i], soft)
        assert (mixed.y[i], mixed.partner_y[i]) == (y[i], y[j])


def test_the_cross_entropy_of_mixed_targets_is_the_mixed_cross_entropy() -> None:
    x, y = torch.randn(S, 5), torch.arange(S) % 5
    mixed = Mixup().apply(x, y, *Mixup().draw(S, np.random.default_rng(0)))
    criterion = nn.CrossEntropyLoss(reduction="none")
    first, second = criterion(mixed.x, mixed.y), criterion(mixed.x, mixed.partner_y)
    torch.testing.assert_close(criterion(mixed.x, mixed.targets(5)), mixed.weight * first + (1 - mixed.weight) * second)


def test_mixed_numbers_are_mixed_themselves() -> None:
    mixed = Mixup().apply(torch.zeros(2, 1), torch.tensor([1.0, 3.0]), np.array([1, 0]), 0.25)
    assert mixed.targets(0).tolist() == [2.5, 1.5]


def test_weights_are_of_the_beta_distribution_and_partners_a_permutation() -> None:
    rng = np.random.default_rng(0)
    drawn = [Mixup(0.4).draw(6, rng) for _ in range(2000)]
    assert stats.kstest([weight for _, weight in drawn], stats.beta(0.4, 0.4).cdf).pvalue > 1e-3
    assert all(sorted(partner) == list(range(6)) for partner, _ in drawn)


def test_an_alpha_that_is_not_positive_is_refused() -> None:
    with pytest.raises(ArgumentError, match="Mixup: alpha must be positive; got 0"):
        Mixup(0)
