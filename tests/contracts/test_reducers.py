"""Everything a batch of losses can be reduced by, crossed with promises; the oracle is written out by hand."""

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ordered_sgd import OrderedLoss, ordered_mean, theory, units


@dataclass(frozen=True)
class Row:
    """A way to reduce losses: its arguments, the shape of the losses, and what it cannot promise."""

    name: str
    shape: tuple[int, ...] = (24,)
    masked: bool = False
    shifts: bool = True  # adding c to every loss adds c
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def arguments(self) -> dict[str, Any]:
        return dict(self.options)


def row(name: str, shape: tuple[int, ...] = (24,), *, masked: bool = False, shifts: bool = True, **options: Any) -> Row:
    return Row(name, shape, masked, shifts, tuple(options.items()))


ROWS = [
    row("samples"),
    row("samples, some ignored", masked=True),
    row("samples of many elements", (8, 3, 5), masked=True),
    row("tokens", (6, 9), masked=True, unit="token"),
    row("tokens, none masked", (6, 9), unit="token"),
    row("pixels", (3, 7, 9), masked=True, unit="pixel"),
    row("tokens within each sample", (6, 9), masked=True, unit="token", within="sample"),
    row("pixels within each sample", (3, 7, 9), unit="pixel", within="sample"),
    row("groups", (30,), unit="group"),
    row("groups of tokens", (6, 9), masked=True, unit="group"),
    row("trim a count", trim=3),
    row("trim a share", trim=0.2),
    row("trim tokens", (6, 9), masked=True, unit="token", trim=0.2),
    row("trim within each sample", (6, 9), masked=True, unit="token", within="sample", trim=2),
    row("mix", mix=0.3),
    row("mix pixels", (3, 7, 9), masked=True, unit="pixel", mix=0.25),
    row("cap", cap=0.9, shifts=False),
    row("all of them", (6, 9), masked=True, unit="token", trim=0.1, mix=0.5, cap=1.2, shifts=False),
]
QS = [1, 5, 0.25, 1.0]
every_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
every_q = pytest.mark.parametrize("q", QS)


def batch(row: Row, seed: int = 0, ties: bool = False) -> tuple[Tensor, dict[str, Any]]:
    rng = np.random.default_rng(seed)
    losses = rng.integers(0, 4, row.shape) / 2.0 if ties else rng.exponential(size=row.shape)
    arguments = row.arguments
    if row.masked:
        arguments["mask"] = torch.from_numpy(rng.random(row.shape) < 0.7)
    if arguments.get("unit") == "group":
        arguments["ids"] = torch.from_numpy(rng.integers(-3, 4, row.shape))
    return torch.from_numpy(losses), arguments


def by_hand(losses: Tensor, q: float, arguments: dict[str, Any]) -> tuple[float, np.ndarray]:
    """The value and its gradient, in lists and loops."""
    mask = arguments.get("mask", torch.ones_like(losses, dtype=torch.bool)).numpy()
    elements = [place for place in np.ndindex(*losses.shape) if mask[place]]
    unit, within = arguments.get("unit", "sample"), arguments.get("within", "batch")
    members: dict[Any, list[tuple[int, ...]]] = {}
    for place in elements:
        name: Any = place
        if unit == "group":
            name = int(arguments["ids"][place])
        elif unit == "sample":
            name = place[0]
        members.setdefault(name, []).append(place)
    loss = {name: float(np.mean([losses[p].item() for p in places])) for name, places in members.items()}
    cap = arguments.get("cap")
    capped = {name for name in loss if cap is not None and loss[name] > cap}
    loss |= dict.fromkeys(capped, cap)
    pools: dict[Any, list[Any]] = {}
    for name in sorted(loss):
        pools.setdefault(name[0] if within == "sample" else 0, []).append(name)
    kept = [name for pool in pools.values() for name in chosen(pool, loss, q, arguments.get("trim", 0))]
    mix = arguments.get("mix", 0.0)
    weight = {name: (1 - mix) * (name in kept) / len(kept) + mix / len(loss) for name in loss}
    gradient = np.zeros(losses.shape)
    for name in set(weight) - capped:
        for place in members[name]:
            gradient[place] = weight[name] / len(members[name])
    return sum(weight[name] * loss[name] for name in loss), gradient


def chosen(pool: list[Any], loss: dict[Any, float], q: float, trim: float) -> list[Any]:
    m = len(pool)
    r = min(math.floor(trim * m * (1 + 1e-12)) if isinstance(trim, float) else trim, m - 1)
    k = min(max(1, math.floor(q * m * (1 + 1e-12)) if isinstance(q, float) else q), m - r)
    order = sorted(pool, key=lambda name: -loss[name])  # stable: equal losses in the order of the names
    return order[r : r + k]


@every_row
@every_q
@pytest.mark.parametrize("ties", [False, True])
def test_value_and_gradient_are_those_worked_out_by_hand(row: Row, q: float, ties: bool) -> None:
    losses, arguments = batch(row, ties=ties)
    losses.requires_grad_()
    value = ordered_mean(losses, q, **arguments)
    value.backward()
    expected, gradient = by_hand(losses.detach(), q, arguments)
    assert value.item() == pytest.approx(expected, rel=1e-12)
    if not (ties and row.arguments.get("cap")):  # a loss at the cap has no derivative, but two
        np.testing.assert_allclose(losses.grad, gradient, rtol=1e-12, atol=1e-15)


@every_row
@every_q
def test_the_fast_way_is_the_specification(row: Row, q: float, monkeypatch: pytest.MonkeyPatch) -> None:
    losses, arguments = batch(row, seed=1, ties=True)
    fast = ordered_mean(losses, q, **arguments)
    monkeypatch.setattr(units, "_mean_by_rows", units._mean_by_sorting)
    assert fast.item() == pytest.approx(ordered_mean(losses, q, **arguments).item(), rel=1e-12)


@every_row
def test_long_rows_are_chosen_as_short_ones_are(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    losses, arguments = batch(row, seed=2, ties=True)
    short = ordered_mean(losses, 0.3, **arguments)
    monkeypatch.setattr(units, "_SORT_ROWS_BELOW", 0)
    assert short.item() == pytest.approx(ordered_mean(losses, 0.3, **arguments).item(), rel=1e-12)


@every_row
def test_gradients_sum_to_one_and_a_shift_of_the_losses_is_one_of_the_mean(row: Row) -> None:
    if not row.shifts:
        pytest.skip("a cap does not move with the losses")
    losses, arguments = batch(row, seed=3)
    losses.requires_grad_()
    value = ordered_mean(losses, 0.4, **arguments)
    value.backward()
    assert losses.grad is not None
    assert losses.grad.sum().item() == pytest.approx(1)
    assert ordered_mean(losses.detach() + 7, 0.4, **arguments).item() == pytest.approx(value.item() + 7)


@every_row
def test_half_precision_is_averaged_in_float32(row: Row) -> None:
    losses, arguments = batch(row, seed=4)
    value = ordered_mean(losses.bfloat16(), 0.5, **arguments)
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(ordered_mean(losses.bfloat16().double(), 0.5, **arguments).item(), rel=1e-2)


@every_row
def test_a_loss_that_is_nan_is_never_hidden_unless_it_is_masked(row: Row) -> None:
    losses, arguments = batch(row, seed=5)
    mask = arguments.get("mask", torch.ones_like(losses, dtype=torch.bool))
    broken = torch.where(mask, losses, torch.nan)
    assert ordered_mean(broken, 0.5, **arguments).isfinite()
    broken = losses.clone()
    broken[tuple(mask.nonzero()[-1])] = torch.nan
    assert ordered_mean(broken, 1, **arguments).isnan()


@every_row
def test_nothing_valid_is_a_zero_with_a_graph(row: Row) -> None:
    losses, arguments = batch(row, seed=6)
    losses.requires_grad_()
    arguments["mask"] = torch.zeros(row.shape, dtype=torch.int64)
    value = ordered_mean(losses, 0.5, **arguments)
    value.backward()
    assert value.item() == 0
    assert losses.grad is not None
    assert not losses.grad.any()


@every_row
def test_ordered_loss_is_the_same_reduction_of_a_criterion(row: Row) -> None:
    losses, arguments = batch(row, seed=7)
    call = {name: arguments.pop(name) for name in ("mask", "ids") if name in arguments}
    if "trim" in arguments:
        arguments["trim_epochs"] = 0
    loss_fn = OrderedLoss(lambda outputs: outputs, q=0.3, **arguments)
    arguments.pop("trim_epochs", None)
    assert loss_fn(losses, **call).item() == ordered_mean(losses, 0.3, **arguments, **call).item()
    plain = loss_fn.eval()(losses, **call)
    assert plain.item() == pytest.approx(ordered_mean(losses, 1.0, unit=arguments.get("unit", "sample"), **call).item())


@pytest.mark.parametrize("row", [ROWS[1], ROWS[2], ROWS[6], ROWS[-1]], ids=lambda row: row.name)
def test_it_compiles_into_one_graph(row: Row) -> None:  # groups do not: how many there are depends on the data
    losses, arguments = batch(row, seed=8)
    compiled = torch.compile(ordered_mean, backend="eager", fullgraph=True)
    assert compiled(losses, 0.3, **arguments).item() == pytest.approx(ordered_mean(losses, 0.3, **arguments).item())


@pytest.mark.parametrize(("trim", "mix", "cap"), [(0, 0.0, None), (1, 0.0, None), (2, 0.4, None), (1, 0.5, 1.0)])
@pytest.mark.parametrize(("s", "q"), [(4, 1), (4, 2), (5, 3)])
def test_the_mean_over_all_mini_batches_is_the_risk_of_the_theory(
    s: int, q: int, trim: int, mix: float, cap: float | None
) -> None:
    """Theorem 1 and its variants, by enumeration."""
    if trim + q > s:
        pytest.skip("nothing would be left")
    losses = torch.from_numpy(np.random.default_rng(0).exponential(size=8))
    draws = [losses[list(rows)] for rows in itertools.combinations(range(8), s)]
    mean = np.mean([ordered_mean(draw, q, trim=trim, mix=mix, cap=cap).item() for draw in draws])
    assert mean == pytest.approx(theory.ordered_risk(losses, s, q, trim=trim, mix=mix, cap=cap), rel=1e-12)
    spectrum = theory.ordered_spectrum(8, s, q, trim=trim, mix=mix)
    assert spectrum.sum() == pytest.approx(1)
    assert (spectrum >= 0).all()
