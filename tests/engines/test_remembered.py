"""What is remembered of every sample, and what is scored of a batch because of it."""

import numpy as np
import pytest
import torch

from ordered_sgd.engines.remembered import FRESH, RememberedLosses, memory_bytes, pick


def test_a_running_mean_is_that_of_a_loop_over_the_samples() -> None:
    remembered, twin = RememberedLosses(50), dict[int, float]()
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        index = torch.randperm(50, generator=generator)[:8]
        losses = torch.rand(8, generator=generator)
        remembered.take(index, losses)
        for i, loss in zip(index.tolist(), losses.tolist(), strict=True):
            twin[i] = (1 - FRESH) * twin[i] + FRESH * loss if i in twin else loss
    found = remembered.of(torch.arange(50)).tolist()
    assert found == pytest.approx([twin.get(i, np.inf) for i in range(50)], rel=1e-6)


@pytest.mark.parametrize("loss", [torch.nan, torch.inf])
def test_a_loss_that_is_not_finite_makes_a_sample_unseen_again(loss: float) -> None:
    remembered, index = RememberedLosses(4), torch.tensor([3])
    remembered.take(index, torch.tensor([1.0]))
    remembered.take(index, torch.tensor([loss]))
    assert remembered.of(index).tolist() == [np.inf]
    remembered.take(index, torch.tensor([2.0]))
    assert remembered.of(index).tolist() == [2.0]


def test_a_saved_memory_is_the_same_and_grows_again() -> None:
    first, second = RememberedLosses(10), RememberedLosses()
    first.take(torch.arange(10), torch.rand(10))
    second.load_state_dict(first.state_dict())
    for memory in (first, second):
        memory.reserve(31, torch.device("cpu"))
        memory.take(torch.tensor([4, 30]), torch.tensor([1.0, 2.0]))
    assert torch.equal(first.state_dict()["losses"], second.state_dict()["losses"])
    assert first.samples == second.samples == 31


def test_an_empty_batch_is_remembered_as_nothing() -> None:
    remembered, none = RememberedLosses(), torch.empty(0, dtype=torch.int64)
    remembered.take(none, torch.empty(0))
    assert remembered.of(none).shape == (0,)
    assert remembered.samples == 0


def test_a_million_samples_take_four_megabytes_and_a_half() -> None:
    assert memory_bytes(10**6) == 4_500_000
    assert memory_bytes(10**8) == 450_000_000


@pytest.mark.parametrize("probes", [1, 3, 6])
def test_both_estimates_are_unbiased_for_any_number_of_probes(probes: int) -> None:
    generator = torch.Generator().manual_seed(1)
    remembered, losses = torch.rand(16, generator=generator), torch.rand(16, generator=generator)
    right = torch.rand(16, generator=generator) < 0.5
    parts = [pick(remembered, 5, probes, generator) for _ in range(600)]
    assert all(part.scored.shape[0] == 5 + probes for part in parts)
    means = [float(part.mean(losses[part.scored], remembered)) for part in parts]
    counts = [float(part.correct(right[part.scored]) or 0.0) for part in parts]
    for values, true in ((means, float(losses.mean())), (counts, float(right.sum()))):
        error = np.std(values) / np.sqrt(len(values))
        assert error > 0
        assert abs(np.mean(values) - true) < 4 * error  # by chance once in 16,000 draws, and the draws are fixed


def test_candidates_are_the_largest_remembered_and_ties_go_to_the_lower_position() -> None:
    remembered = torch.tensor([1.0, 3.0, torch.inf, 3.0, 3.0, 0.0])
    part = pick(remembered, 3, 2, torch.Generator().manual_seed(0))
    assert torch.equal(part.outside.logical_not().nonzero().squeeze(1), torch.tensor([1, 2, 3]))
    assert part.scored[~part.probes].tolist() == [1, 2, 3]
    assert set(part.scored[part.probes].tolist()) < {0, 4, 5}


@pytest.mark.parametrize("c", [6, 9])
def test_more_candidates_than_samples_are_the_whole_batch(c: int) -> None:
    part = pick(torch.rand(6), c, 4, torch.Generator().manual_seed(0))
    assert part.scored.tolist() == list(range(6))
    assert not part.probes.any()
