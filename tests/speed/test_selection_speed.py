"""Speed bars of the selection, as ratios in one interleaved run; `make bench` prints them."""

import pytest
import torch

from ordered_sgd import select_top_q
from ordered_sgd.lab.bench.timing import interleave

pytestmark = pytest.mark.bench

N = 10**7
LOSSES = {
    "distinct": lambda: torch.rand(N),
    "three values": lambda: torch.randint(0, 3, (N,)).float(),
    "all equal": lambda: torch.ones(N),
}


@pytest.mark.parametrize("values", LOSSES)
@pytest.mark.parametrize("share", [1 / 2, 1 / 16, 1e-6])
def test_ten_million_losses_take_at_most_one_and_a_half_times_topk(values: str, share: float) -> None:
    losses, q = LOSSES[values](), int(N * share)
    seconds = interleave(
        {"ours": lambda: select_top_q(losses, q), "topk": lambda: torch.topk(losses, q, sorted=False)},
        rounds=7,
        warmup=1,
    )
    ratio = seconds["ours"].median / seconds["topk"].median
    print(f"select_top_q / topk, 10^7 {values}, q = {q}: {ratio:.2f}  ({seconds['ours']})")
    assert ratio <= 1.5


@pytest.mark.parametrize("q", [32, 4, 1])
def test_sixty_four_losses_take_at_most_one_and_a_half_times_a_stable_sort(q: int) -> None:
    losses = torch.rand(64)
    seconds = interleave(
        {"ours": lambda: select_top_q(losses, q), "sort": lambda: torch.sort(losses, stable=True)},
        rounds=41,
        inner=500,
    )
    ratio = seconds["ours"].median / seconds["sort"].median
    print(f"select_top_q / stable sort, 64 losses, q = {q}: {ratio:.2f}  ({seconds['ours']})")
    assert ratio <= 1.5
