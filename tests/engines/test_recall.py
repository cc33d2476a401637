"""The number of candidates holds the recall that is asked for, and an interval covers it."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Generator

from ordered_sgd.engines.phases import KeptRanks
from ordered_sgd.engines.recall import FEWEST, WINDOW, Candidates, interval, wilson
from ordered_sgd.selection import top_rows

S = 64


def follow(candidates: Candidates, kept: KeptRanks, noise: float, steps: int, seed: int = 0) -> tuple[float, float]:
    """Recall and mean number of candidates over steps in which every fourth batch is scored whole."""
    generator = Generator().manual_seed(seed)
    found, counts = 0, 0
    for number in range(steps):
        losses = torch.randn(S, generator=generator)
        remembered = losses + noise * torch.randn(S, generator=generator)
        count = candidates.of(S, kept)
        true = torch.isin(top_rows(losses, kept.q, kept.trim), top_rows(remembered, count))
        found, counts = found + int(true.sum()), counts + count
        if number % 4 == 0:
            candidates.look(remembered, losses, kept)
    return found / (kept.q * steps), counts / steps


@pytest.mark.parametrize("kept", [KeptRanks(4), KeptRanks(16), KeptRanks(4, trim=3)])
@pytest.mark.parametrize("target", [0.8, 0.95])
def test_the_target_is_held_with_few_candidates(kept: KeptRanks, target: float) -> None:
    candidates = Candidates(target)
    follow(candidates, kept, 0.3, 40)  # finds the number
    recall, count = follow(candidates, kept, 0.3, 1000, seed=1)
    # one candidate more is worth a few hundredths, and fewer are tried only when their recall is a standard error above
    # the target: sqrt(.8 x .2 / (32 x 4)) is .035
    assert target - 0.01 <= recall <= target + 0.08
    assert count <= 0.6 * S


def test_the_number_grows_at_once_and_shrinks_slowly() -> None:
    candidates, kept = Candidates(0.95), KeptRanks(4)
    follow(candidates, kept, 0.1, 200)
    few = candidates.of(S, kept)
    follow(candidates, kept, 3.0, 40)  # ten batches of another world
    many = candidates.of(S, kept)
    assert many > 3 * few
    counts = []
    for seed in range(200):
        follow(candidates, kept, 0.1, 1, seed)
        counts.append(candidates.of(S, kept))
    assert min(np.diff([many, *counts])) >= -many / 4  # of the way at most
    assert counts[-1] < many / 2


def test_all_are_candidates_until_some_batches_were_seen_and_where_nothing_helps() -> None:
    candidates, kept = Candidates(0.95), KeptRanks(4)
    assert candidates.of(S, kept) == S
    for number in range(FEWEST):
        assert candidates.count is None
        follow(candidates, kept, 0.1, 1, number)
    assert candidates.of(S, kept) < S
    without_a_clue = Candidates(1.0)
    follow(without_a_clue, kept, 1e9, 4 * WINDOW)
    assert without_a_clue.of(S, kept) >= 0.9 * S


def test_another_q_is_answered_from_the_same_batches_and_a_small_batch_is_not_learnt_from() -> None:
    candidates = Candidates(0.95)
    follow(candidates, KeptRanks(4), 0.1, 100)
    assert 16 <= candidates.of(S, KeptRanks(16)) < S
    before = candidates.state_dict()
    candidates.look(torch.rand(8), torch.rand(8), KeptRanks(4))
    assert len(candidates.state_dict()["places"]) == len(before["places"])
    assert candidates.of(8, KeptRanks(4)) == 8


def test_wilsons_interval_is_scipys() -> None:
    for k, n in ((0, 7), (19, 20), (40, 40), (3, 9)):
        expected = stats.binomtest(k, n).proportion_ci(0.95, method="wilson")
        z = stats.norm.ppf(0.975)
        np.testing.assert_allclose(wilson(k / n, n, z), (expected.low, expected.high), atol=1e-12)


def test_samples_that_are_missed_together_widen_the_interval() -> None:
    apart, together = [(3, 4)] * 8, [(4, 4)] * 6 + [(0, 4)] * 2
    assert interval(apart).mean == interval(together).mean == 0.75
    assert interval(together).high - interval(together).low > 1.5 * (interval(apart).high - interval(apart).low)


def test_the_interval_holds_the_recall_nineteen_times_in_twenty() -> None:
    rng, q, recall, held, runs = np.random.default_rng(0), 4, 0.9, 0, 500
    for _ in range(runs):
        low, high = interval([(int(found), q) for found in rng.binomial(q, recall, WINDOW)])[1:3]
        held += low <= recall <= high
    assert held / runs > 0.92  # three standard errors of 500 runs below .95
