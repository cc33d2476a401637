"""Choosing among millions of pixels costs no more than 1.5 times torch's own topk."""

import pytest
import torch

from ordered_sgd import ordered_mean
from ordered_sgd.lab.bench.timing import interleave, threads_of_torch

pytestmark = pytest.mark.bench


@pytest.mark.parametrize("share", [0.01, 0.1, 0.25])
@pytest.mark.parametrize("masked", [False, True])
def test_ten_million_pixels(share: float, masked: bool) -> None:
    losses = torch.rand(10, 1000, 1000, generator=torch.Generator().manual_seed(0))
    mask = torch.rand(losses.shape, generator=torch.Generator().manual_seed(1)) < 0.9 if masked else None
    k = int(share * losses.numel())
    calls = {
        "topk": lambda: losses.flatten().topk(k).values.mean(),
        "ours": lambda: ordered_mean(losses, share, unit="pixel", mask=mask),
    }
    with threads_of_torch(1):
        times = interleave(calls, rounds=7)
    ratio = times["ours"].median / times["topk"].median
    print(f"share {share}, {'masked' if masked else 'whole'}: {ratio:.2f} of topk")
    assert ratio <= 1.5
