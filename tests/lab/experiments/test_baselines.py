"""The rules of the baselines, by themselves."""

import pytest
import torch
from torch import Generator

from ordered_sgd.lab.experiments.baselines import infobatch, last_losses


def test_infobatch_keeps_the_expected_mean_of_the_batch_and_every_large_loss() -> None:
    losses = torch.tensor([0.1, 0.2, 4.0, 0.3, 3.0, torch.inf])
    generator, total, draws, kept = Generator().manual_seed(0), 0.0, 4000, 0
    values = torch.tensor([0.1, 0.2, 4.0, 0.3, 3.0, 5.0])  # what is found when they are computed
    for _ in range(draws):
        rows, weight = infobatch(losses, 1.0, generator)
        assert weight is not None
        assert {2, 4, 5} <= set(rows.tolist())
        total += float((values[rows] * weight).mean())
        kept += rows.shape[0]
    assert kept / draws == pytest.approx(4.5, abs=0.06)  # half of the three small ones: four standard errors
    assert total / draws == pytest.approx(float(values.mean()), abs=0.005)  # four standard errors


def test_infobatch_never_drops_a_whole_batch() -> None:
    assert min(infobatch(torch.zeros(2), 1.0, Generator().manual_seed(i)).rows.shape[0] for i in range(40)) == 1


def test_last_losses_are_the_largest_with_ties_to_the_lower_place() -> None:
    assert last_losses(torch.tensor([1.0, 2.0, torch.inf, 2.0]), 2).rows.tolist() == [1, 2]
    assert last_losses(torch.tensor([1.0, 2.0]), 5).rows.tolist() == [0, 1]
