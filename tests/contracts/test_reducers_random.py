"""Random batches, most of them odd, against the reduction that is written out by hand."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ordered_sgd import Above, kept_units, ordered_mean
from tests.contracts.test_reducers import by_hand

FINITE, ODD = [-1.5, -0.5, 0.0, 0.5, 1.0, 2.5, 7.25], [math.inf, -math.inf, math.nan]


def some(rng: np.random.Generator, values: list[Any]) -> Any:
    return values[rng.integers(len(values))]


def numbers(rng: np.random.Generator, shape: tuple[int, ...], odd: float) -> Tensor:
    """Few different values, so that there are ties, laid out in memory in one of two ways."""
    found = rng.choice(FINITE, shape)
    found = np.where(rng.random(shape) < odd, rng.choice(ODD, shape), found)
    return torch.from_numpy(np.asfortranarray(found) if rng.random() < 0.5 else found)


def marks(rng: np.random.Generator, shape: tuple[int, ...]) -> Tensor:
    return torch.from_numpy(rng.random(shape) < some(rng, [0, 0.2, 0.6, 1]))


def case(seed: int) -> tuple[Tensor, Any, dict[str, Any]]:
    """Losses, q and the other arguments; samples, their elements and valid ones may be missing."""
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(0 if rng.random() < 0.1 else 1, 7, rng.integers(1, 4)).tolist())
    unit = some(rng, ["sample", "token", "pixel", "group"])
    given: dict[str, Any] = {"unit": unit}
    if len(shape) > 1 and unit in ("token", "pixel") and rng.random() < 0.6:
        given["within"] = "sample"
    if unit == "sample" and len(shape) > 1:
        given["reduce"] = "mean"
    if unit == "group":
        given["ids"] = torch.from_numpy(rng.integers(-2, 3, shape))
    if 0 in shape or rng.random() < 0.5:
        given["mask"] = marks(rng, shape)
    by_sample = shape[:1] if unit == "sample" and rng.random() < 0.5 else shape
    if rng.random() < 0.5:
        given["scores"] = numbers(rng, by_sample, some(rng, [0, 0, 0.1]))
    if rng.random() < 0.4:
        given["always_keep"] = marks(rng, by_sample)
    if rng.random() < 0.4:
        given["trim"] = some(rng, [1, 3, 10**30, 0.1, 0.3, 0.99])
    if rng.random() < 0.3:
        given["mix"] = 0.25
    if rng.random() < 0.3:
        given["cap"] = some(rng, [0.75, 2.0, 9.0])
    qs = [1, 3, 10**30, 0.01, 1 / 3, 1.0, Above(0.5), Above(0, at_least=0.5), Above(-9.0), Above(1e300, at_least=4)]
    q = some(rng, qs)
    if "within" in given and rng.random() < 0.4:
        q = torch.from_numpy(rng.integers(0, 5, shape[0]))
    return numbers(rng, shape, some(rng, [0, 0, 0, 0.1])), q, given


def check(seed: int) -> None:
    losses, q, given = case(seed)
    expected, gradient = by_hand(losses, q, given)
    losses.requires_grad_()
    value = ordered_mean(losses, q, **given)
    value.backward()
    assert value.item() == pytest.approx(expected, rel=1e-12, nan_ok=True), seed
    if math.isfinite(expected):
        np.testing.assert_allclose(losses.grad, gradient, rtol=1e-12, atol=1e-15, err_msg=str(seed))


def ways(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    if way == "sorting":
        monkeypatch.setattr(kept_units, "_mean_by_rows", kept_units._mean_by_sorting)
    if way == "long rows":
        monkeypatch.setattr(kept_units, "_SORT_ROWS_BELOW", 0)


every_way = pytest.mark.parametrize("way", ["by rows", "sorting", "long rows"])


@every_way
def test_random_batches_are_reduced_as_worked_out_by_hand(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ways(monkeypatch, way)
    for seed in range(500):
        check(seed)


@pytest.mark.slow
@every_way
def test_many_random_batches_are_reduced_as_worked_out_by_hand(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ways(monkeypatch, way)
    for seed in range(1000, 16000):
        check(seed)


@pytest.mark.slow
def test_random_batches_compile_into_one_graph() -> None:
    for seed in range(100):
        losses, q, given = case(seed)
        if given["unit"] == "group":
            continue
        torch._dynamo.reset()
        compiled = torch.compile(ordered_mean, backend="eager", fullgraph=True)
        expected, _ = by_hand(losses, q, given)
        assert compiled(losses, q, **given).item() == pytest.approx(expected, rel=1e-12, nan_ok=True), seed
