"""Choosing among millions of pixels costs no more than 1.5 times torch's own topk, whatever the option."""

from typing import Any

import pytest
import torch

from ordered_sgd import Above, ordered_mean
from ordered_sgd.lab.bench.timing import interleave, threads_of_torch

pytestmark = pytest.mark.bench

SHAPE, S = (10, 1000, 1000), 10


def uniform(seed: int) -> torch.Tensor:
    return torch.rand(SHAPE, generator=torch.Generator().manual_seed(seed))


def options_for(share: float) -> dict[str, tuple[Any, dict[str, Any]]]:
    """Each option as q and what else is passed: about the same share of losses is kept by all of them."""
    scores, mask, marked = uniform(1), uniform(2) < 0.9, uniform(3) < 0.01
    counts = torch.full((S,), int(share * SHAPE[1] * SHAPE[2]))
    counts[::2] //= 2
    above, floored = Above(1 - share), Above(1 - share / 2, at_least=share)
    return {
        "whole": (share, {}),
        "mask": (share, {"mask": mask}),
        "scores": (share, {"scores": scores}),
        "scores, mask": (share, {"scores": scores, "mask": mask}),
        "Above": (above, {}),
        "Above, mask": (above, {"mask": mask}),
        "Above with a floor": (floored, {}),
        "always_keep": (share, {"always_keep": marked}),
        "always_keep, mask": (share, {"always_keep": marked, "mask": mask}),
        "trim": (share, {"trim": 0.01}),
        "trim, mask": (share, {"trim": 0.01, "mask": mask}),
        "within": (share, {"within": "sample"}),
        "within, mask": (share, {"within": "sample", "mask": mask}),
        "counts": (counts, {"within": "sample"}),
        "counts, mask, always_keep": (counts, {"within": "sample", "mask": mask, "always_keep": marked}),
    }


def assert_within_bar(calls: dict[str, Any], title: str) -> None:
    with threads_of_torch(1):
        times = interleave(calls, rounds=7)
    ratios = {name: times[name].median / times["topk"].median for name in calls}
    print(f"{title}, of topk: {', '.join(f'{name} {ratio:.2f}' for name, ratio in ratios.items())}")
    assert {name: ratio for name, ratio in ratios.items() if ratio > 1.5} == {}


@pytest.mark.parametrize("share", [0.01, 0.1, 0.25])
def test_ten_million_pixels(share: float) -> None:
    losses, k = uniform(0), int(share * SHAPE[0] * SHAPE[1] * SHAPE[2])
    calls = {"topk": lambda: losses.flatten().topk(k).values.mean()}
    for name, (q, options) in options_for(share).items():
        calls[name] = lambda q=q, options=options: ordered_mean(losses, q, unit="pixel", **options)
    assert_within_bar(calls, f"share {share}")


@pytest.mark.parametrize("share", [0.01, 0.25])
def test_ten_million_losses_in_short_samples(share: float) -> None:
    losses, mask, marked = (values.view(-1, 1000) for values in (uniform(0), uniform(2) < 0.9, uniform(3) < 0.01))
    counts = torch.randint(0, int(2 * share * 1000), (len(losses),), generator=torch.Generator().manual_seed(1))
    k = int(share * losses.numel())
    ways: dict[str, tuple[Any, dict[str, Any]]] = {
        "a share": (share, {}),
        "a share, mask": (share, {"mask": mask}),
        "Above": (Above(1 - share), {}),
        "trim": (share, {"trim": 5}),
        "counts": (counts, {}),
        "counts, mask, always_keep": (counts, {"mask": mask, "always_keep": marked}),
    }
    calls = {"topk": lambda: losses.flatten().topk(k).values.mean()}
    for name, (q, options) in ways.items():
        calls[name] = lambda q=q, options=options: ordered_mean(losses, q, unit="token", within="sample", **options)
    assert_within_bar(calls, f"short samples, share {share}")
