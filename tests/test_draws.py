"""Batches that were drawn, joined: what is estimated of all their samples."""

from typing import Any

import pytest
import torch

from ordered_sgd import OrderedBatchSampler
from ordered_sgd.draws import DrawnBatch
from ordered_sgd.engines.phases import KeptRanks


def drawn(losses: torch.Tensor, seed: int, **options: Any) -> list[DrawnBatch]:
    """The batches of the fifth epoch; losses were somewhat smaller before."""
    sampler, found = OrderedBatchSampler(len(losses), 16, q=0.25, seed=seed, **options), []
    for _ in range(5):
        found = []
        for index in sampler:
            found.append(sampler.drawn(index))
            sampler.update(index, 0.8 * losses[index])
    return found


@pytest.mark.parametrize("selection", ["top", "random"])
def test_estimates_of_joined_batches_are_without_bias(selection: str) -> None:
    losses = torch.rand(120, generator=torch.Generator().manual_seed(0)) ** 3
    means, rough, totals = [], [], []
    for seed in range(200):
        batches = drawn(losses, seed, others=3, selection=selection)
        joined = DrawnBatch.joined(batches, KeptRanks(30))
        found = losses[joined.loaded]
        assert joined.s == joined.together == 120
        assert joined.loaded.tolist() == torch.cat([batch.loaded for batch in batches]).tolist()
        assert torch.equal(joined.losses(found)[joined.positions], found)
        means.append(float(joined.mean(found)))
        rough.append(float(joined.total(found)) / 120)
        totals.append(float(joined.total((found > 0.2).float())))
        alone = sum(float(batch.total(losses[batch.loaded])) for batch in batches)
        assert rough[-1] == pytest.approx(alone / 120, rel=1e-5)
    for values, expected in ((means, losses.mean()), (rough, losses.mean()), (totals, (losses > 0.2).sum())):
        sample = torch.tensor(values)
        assert abs(sample.mean() - expected) < 4 * sample.std() / len(values) ** 0.5
    if selection == "top":  # what is remembered makes the mean more certain
        assert torch.tensor(means).std() < 0.5 * torch.tensor(rough).std()


def test_batches_that_were_loaded_whole_are_one_that_was() -> None:
    losses = torch.rand(40, generator=torch.Generator().manual_seed(0))
    batches = drawn(losses, 0, candidates=1.0)
    joined = DrawnBatch.joined(batches, KeptRanks(10))
    assert joined.positions is None
    assert joined.mean(losses[joined.loaded]) == losses[joined.loaded].mean()
    assert sorted(joined.loaded.tolist()) == list(range(40))
