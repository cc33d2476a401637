"""Everything a batch of losses can be reduced by, crossed with promises; the oracle is written out by hand."""

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from ordered_sgd import Above, OrderedLoss, kept_units, ordered_mean, theory


@dataclass(frozen=True)
class Row:
    """A way to reduce losses: its arguments, the shape of the losses, and what it cannot promise."""

    name: str
    shape: tuple[int, ...] = (24,)
    masked: bool = False
    shifts: bool = True  # adding c to every loss adds c
    scored: bool = False  # ordered by numbers of their own
    marked: bool = False  # some are always kept
    by_sample: bool = False  # scores and marks of samples instead of elements
    counts: bool = False  # q is a count for each sample
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def arguments(self) -> dict[str, Any]:
        return dict(self.options)


FLAGS = ("masked", "shifts", "scored", "marked", "by_sample", "counts")


def row(name: str, shape: tuple[int, ...] = (24,), **options: Any) -> Row:
    flags = {flag: options.pop(flag) for flag in FLAGS if flag in options}
    return Row(name, shape, options=tuple(options.items()), **flags)


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
    row("means of samples", (8, 3, 5), reduce="mean"),
    row("scores", scored=True),
    row("scores of elements of samples", (8, 3, 5), masked=True, scored=True, marked=True),
    row("scores of samples of many elements", (8, 3, 5), scored=True, marked=True, by_sample=True, reduce="mean"),
    row("scores of tokens", (6, 9), masked=True, scored=True, unit="token"),
    row("scores within each sample", (6, 9), masked=True, scored=True, unit="token", within="sample"),
    row("scores of groups", (6, 9), masked=True, scored=True, unit="group"),
    row("scores, trim, mix", (6, 9), scored=True, unit="token", trim=3, mix=0.3),
    row("scores and cap", scored=True, cap=0.9, shifts=False),
    row("always kept", marked=True),
    row("always kept, masked", (6, 9), masked=True, marked=True, unit="token"),
    row("always kept within each sample", (6, 9), masked=True, marked=True, unit="token", within="sample"),
    row("always kept groups", (6, 9), masked=True, marked=True, unit="group"),
    row("counts of each sample", (6, 9), counts=True, unit="token", within="sample"),
    row("3:1 mining", (6, 9), masked=True, marked=True, counts=True, unit="pixel", within="sample"),
    row(
        "everything", (6, 9), masked=True, scored=True, marked=True, shifts=False,
        unit="token", within="sample", trim=0.2, mix=0.5, cap=1.2,
    ),
]  # fmt: skip
QS = [1, 5, 0.25, 1.0, Above(0.9, at_least=2), Above(0.2, at_least=0.3), Above(99.0, at_least=0.25)]
every_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
every_q = pytest.mark.parametrize("q", QS, ids=str)


def batch(row: Row, seed: int = 0, ties: bool = False) -> tuple[Tensor, dict[str, Any]]:
    rng = np.random.default_rng(seed)
    losses = rng.integers(0, 4, row.shape) / 2.0 if ties else rng.exponential(size=row.shape)
    arguments = row.arguments
    if row.masked:
        arguments["mask"] = torch.from_numpy(rng.random(row.shape) < 0.7)
    if arguments.get("unit") == "group":
        arguments["ids"] = torch.from_numpy(rng.integers(-3, 4, row.shape))
    shape = row.shape[:1] if row.by_sample else row.shape
    if row.scored:
        scores = rng.integers(0, 4, shape) / 2.0 if ties else rng.exponential(size=shape)
        arguments["scores"] = torch.from_numpy(scores)
    if row.marked:
        arguments["always_keep"] = torch.from_numpy(rng.random(shape) < 0.1)
    return torch.from_numpy(losses), arguments


def amount(row: Row, q: Any, seed: int = 0) -> Any:
    """The q, or counts for each sample in its place."""
    if not row.counts:
        return q
    counts = torch.from_numpy(np.random.default_rng(seed).integers(0, 5, row.shape[:1]))
    return counts.index_fill(0, torch.tensor([1]), 0)  # zeros are allowed


def by_hand(losses: Tensor, q: Any, arguments: dict[str, Any]) -> tuple[float, np.ndarray]:
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
    loss = {name: mean([losses[p].item() for p in places]) for name, places in members.items()}
    cap = arguments.get("cap")
    capped = {name for name in loss if cap is not None and cap < loss[name] < math.inf}
    loss |= dict.fromkeys(capped, cap)
    key, marked = dict(loss), dict.fromkeys(loss, False)
    if "scores" in arguments:
        key = {name: of_unit(arguments["scores"], unit, name, places, mean) for name, places in members.items()}
    if "always_keep" in arguments:
        marked = {name: of_unit(arguments["always_keep"], unit, name, places, any) for name, places in members.items()}
    pools: dict[Any, list[Any]] = {}
    for name in sorted(loss):
        pools.setdefault(name[0] if within == "sample" else 0, []).append(name)
    kept = []
    for pool in pools:
        rest = [name for name in pools[pool] if not marked[name]]
        here = int(q[pool]) if isinstance(q, Tensor) else q
        kept += chosen(rest, key, here, arguments.get("trim", 0), least=0 if isinstance(q, Tensor) else 1)
        kept += [name for name in pools[pool] if marked[name]]
    mix = arguments.get("mix", 0.0)
    weight = {name: (1 - mix) * (name in kept) / max(len(kept), 1) + mix / len(loss) for name in loss}
    gradient = np.zeros(losses.shape)
    for name in set(weight) - capped:
        for place in members[name]:
            gradient[place] = weight[name] / len(members[name])
    if any(math.isnan(loss[name]) or math.isnan(key[name]) for name in loss):
        return math.nan, gradient  # never hidden by what is kept
    return sum(weight[name] * loss[name] for name in loss if weight[name]), gradient


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def of_unit(given: Tensor, unit: str, name: Any, places: list[tuple[int, ...]], reduce: Any) -> Any:
    """A score or a mark of a unit, from that of its elements unless it has one of its own."""
    own = given.dim() == 1 and unit == "sample"
    return given[name].item() if own else reduce([given[place].item() for place in places])


def chosen(pool: list[Any], key: dict[Any, float], q: Any, trim: float, least: int = 1) -> list[Any]:
    m = len(pool)
    r = max(0, min(math.floor(trim * m * (1 + 1e-12)) if isinstance(trim, float) else trim, m - 1))
    share = q.at_least if isinstance(q, Above) else q
    k = max(least, math.floor(share * m * (1 + 1e-12)) if isinstance(share, float) else share)
    order = sorted(pool, key=lambda name: -key[name])  # stable: equal losses in the order of the names
    if isinstance(q, Above):
        k = max(k, sum(key[name] > q.value for name in order[r:]))
    return order[r : r + min(k, m - r)]


@every_row
@every_q
@pytest.mark.parametrize("ties", [False, True])
def test_value_and_gradient_are_those_worked_out_by_hand(row: Row, q: Any, ties: bool) -> None:
    losses, arguments = batch(row, ties=ties)
    losses.requires_grad_()
    q = amount(row, q)
    value = ordered_mean(losses, q, **arguments)
    value.backward()
    expected, gradient = by_hand(losses.detach(), q, arguments)
    assert value.item() == pytest.approx(expected, rel=1e-12)
    if not (ties and row.arguments.get("cap")):  # a loss at the cap has no derivative, but two
        np.testing.assert_allclose(losses.grad, gradient, rtol=1e-12, atol=1e-15)


@every_row
@every_q
def test_the_fast_way_is_the_specification(row: Row, q: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    losses, arguments = batch(row, seed=1, ties=True)
    q = amount(row, q)
    fast = ordered_mean(losses, q, **arguments)
    monkeypatch.setattr(kept_units, "_mean_by_rows", kept_units._mean_by_sorting)
    assert fast.item() == pytest.approx(ordered_mean(losses, q, **arguments).item(), rel=1e-12)


@every_row
def test_long_rows_are_chosen_as_short_ones_are(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    losses, arguments = batch(row, seed=2, ties=True)
    for q in (0.3, Above(0.9)):
        monkeypatch.undo()
        short = ordered_mean(losses, amount(row, q), **arguments)
        monkeypatch.setattr(kept_units, "_SORT_ROWS_BELOW", 0)
        assert short.item() == pytest.approx(ordered_mean(losses, amount(row, q), **arguments).item(), rel=1e-12)


@every_row
def test_gradients_sum_to_one_and_a_shift_of_the_losses_is_one_of_the_mean(row: Row) -> None:
    if not row.shifts:
        pytest.skip("a cap does not move with the losses")
    losses, arguments = batch(row, seed=3)
    losses.requires_grad_()
    q = amount(row, 0.4)
    value = ordered_mean(losses, q, **arguments)
    value.backward()
    assert losses.grad is not None
    assert losses.grad.sum().item() == pytest.approx(1)
    assert ordered_mean(losses.detach() + 7, q, **arguments).item() == pytest.approx(value.item() + 7)


@every_row
def test_half_precision_is_averaged_in_float32(row: Row) -> None:
    losses, arguments = batch(row, seed=4)
    q, half = amount(row, 0.5), losses.bfloat16()
    value = ordered_mean(half, q, **arguments)
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(ordered_mean(half.double(), q, **arguments).item(), rel=1e-2)


@every_row
def test_a_loss_that_is_nan_is_never_hidden_unless_it_is_masked(row: Row) -> None:
    losses, arguments = batch(row, seed=5)
    mask = arguments.get("mask", torch.ones_like(losses, dtype=torch.bool))
    broken = torch.where(mask, losses, torch.nan)
    assert ordered_mean(broken, amount(row, 0.5), **arguments).isfinite()
    for place in (0, -1):
        broken = losses.clone()
        broken[tuple(mask.nonzero()[place])] = torch.nan
        for q in (1, Above(99.0)):
            assert ordered_mean(broken, amount(row, q), **arguments).isnan()


@pytest.mark.parametrize("row", [row for row in ROWS if row.scored], ids=lambda row: row.name)
@pytest.mark.parametrize("sorting", [False, True])
def test_a_score_that_is_nan_is_never_hidden_unless_it_is_masked(
    row: Row, sorting: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if sorting:
        monkeypatch.setattr(kept_units, "_mean_by_rows", kept_units._mean_by_sorting)
    losses, arguments = batch(row, seed=5)
    scores = arguments.pop("scores")
    there = arguments.get("mask", torch.ones_like(losses, dtype=torch.bool))
    there = there.flatten(1).any(1) if row.by_sample else there
    assert ordered_mean(losses, 1, scores=torch.where(there, scores, torch.nan), **arguments).isfinite()
    broken = scores.clone()
    broken[tuple(there.nonzero()[0])] = torch.nan
    assert ordered_mean(losses, 1, scores=broken, **arguments).isnan()


@every_row
def test_nothing_valid_is_a_zero_with_a_graph(row: Row) -> None:
    losses, arguments = batch(row, seed=6)
    losses.requires_grad_()
    arguments["mask"] = torch.zeros(row.shape, dtype=torch.int64)
    value = ordered_mean(losses, amount(row, 0.5), **arguments)
    value.backward()
    assert value.item() == 0
    assert losses.grad is not None
    assert not losses.grad.any()


@pytest.mark.parametrize("row", [row for row in ROWS if not row.counts], ids=lambda row: row.name)
@pytest.mark.parametrize("q", [0.3, Above(0.9, at_least=3)], ids=str)
def test_ordered_loss_is_the_same_reduction_of_a_criterion(row: Row, q: Any) -> None:
    losses, arguments = batch(row, seed=7)
    names = ("mask", "ids", "scores", "always_keep")
    call = {name: arguments.pop(name) for name in names if name in arguments}
    if "trim" in arguments:
        arguments["trim_epochs"] = 0
    loss_fn = OrderedLoss(lambda outputs: outputs, q=q, **arguments)
    arguments.pop("trim_epochs", None)
    assert loss_fn(losses, **call).item() == ordered_mean(losses, q, **arguments, **call).item()
    plain, same = loss_fn.eval()(losses, **call), ("unit", "reduce")
    whole = {name: arguments[name] for name in same if name in arguments}
    assert plain.item() == pytest.approx(ordered_mean(losses, 1.0, **whole, **call).item())


@pytest.mark.parametrize(
    "row",
    [row for row in ROWS if dict(row.options).get("unit") != "group" and not row.counts],
    ids=lambda row: row.name,
)
@pytest.mark.parametrize("q", [0.3, Above(0.9, at_least=3)], ids=str)
def test_it_compiles_into_one_graph(row: Row, q: Any) -> None:  # groups: how many there are depends on the data
    losses, arguments = batch(row, seed=8)
    torch._dynamo.reset()
    compiled = torch.compile(ordered_mean, backend="eager", fullgraph=True)
    assert compiled(losses, q, **arguments).item() == pytest.approx(ordered_mean(losses, q, **arguments).item())


def test_counts_of_samples_compile_into_one_graph_without_a_recompile() -> None:
    torch._dynamo.reset()
    graphs = CompileCounterWithBackend("eager")
    compiled = torch.compile(ordered_mean, backend=graphs, fullgraph=True)
    for seed in range(3):
        losses, arguments = batch(ROWS[-2], seed)
        q = amount(ROWS[-2], None, seed)
        assert compiled(losses, q, **arguments).item() == pytest.approx(ordered_mean(losses, q, **arguments).item())
    assert graphs.frame_count == 1


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
