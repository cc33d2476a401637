"""The q largest over ranks, in real processes: one job of torchrun runs many cases, and the tests read its results."""

import json
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import nn

from ordered_sgd import OrderedLoss, OrderedStep, ordered_mean
from ordered_sgd.errors import ArgumentError
from ordered_sgd.ranks import HEAD, Joined, _packed, mean_over_ranks, unpack
from ordered_sgd.selection import top_rows
from tests.distributed.cases import CASES, RUNS
from tests.distributed.launch import torchrun
from tests.distributed.twin import cut

JOB = Path(__file__).parent / "distributed" / "job.py"


def results_of(ranks: int, kind: str, folder: Path) -> dict[str, list[Any]]:
    run = torchrun(ranks, JOB, kind, folder / "results.json", timeout=900)
    assert run.returncode == 0, run.stderr[-4000:]
    results: dict[str, list[Any]] = json.loads((folder / "results.json").read_text())
    assert len(results) == sum(case.kind == kind for case in (*CASES, *RUNS))
    return results


def complaints(results: dict[str, list[Any]], kind: str, ranks: int) -> dict[str, Any]:
    """What of a job is not as it should be."""
    bad: dict[str, Any] = {}
    for case in CASES:
        ranks_ran = [name for found in results.get(str(case), []) for name in found["engines"]]
        for found in results.get(str(case), []):
            # float32: where gradients nearly cancel rounding reaches 3e-6, and a wrong weight or row is 1e-1
            exact = max(found["error"], found["mean error"]) <= 1e-5 and found["rows"]
            # a rank without a kept sample has nothing to regroup
            regrouped = case.parts and "micro-batches, regrouped" in ranks_ran
            ran = regrouped or case.engine in found["engines"] or found["why"] or found["whole"]
            if not exact or not ran:
                bad[str(case)] = found
    for run in RUNS:
        if run.kind == kind and not CHECKS[run.name](results[str(run)], ranks):
            bad[str(run)] = results[str(run)]
    return bad


def equal(values: list[Any]) -> bool:
    return all(value == values[0] for value in values)


def exact(found: list[Any], ranks: int) -> bool:
    return all(rank["error"] <= 1e-6 for rank in found)


def trained_alike(found: list[Any], ranks: int) -> bool:
    """In float64, so that nothing but a difference in the method shows."""
    alike = all(rank["error"] <= 1e-12 and rank["same path"] for rank in found)
    return alike and equal([rank.get("state") for rank in found if "state" in rank])


def all_gave_up_together(found: list[Any], ranks: int) -> bool:
    per_rank = 24 // ranks
    text = f"got nan at position {per_rank - 1} of {per_rank} on rank {ranks - 1} in step 2. "
    said = all(len(rank["messages"]) == 1 and text in rank["messages"][0] for rank in found)
    return said and equal([rank["q"] for rank in found]) and found[0]["q"] == [5, 5, 5, 5, 5, 0, 5] and exact(found, 0)


def as_few_as_possible(found: list[Any], ranks: int) -> bool:
    """One message per step once the sizes are known, one more when a rank has more samples than ever."""
    once = [1] * 6
    return all(
        rank["dense"] == [[2, 1, 1, 1, 2, 1], once]
        and rank["twopass"] == [[2, 2, 1, 1, 2, 1], once]  # whether samples influence each other, in the second step
        # fully_shard: all must know whether the second pass of one of them gave other losses; and before it is used
        # first, twopass compares gradients
        and rank["sharded twopass"] == [[2, 4, 2, 2, 3, 2], [1, 3, 1, 1, 1, 1]]
        and rank["micro-batches"] == [[3, 2, 2, 2, 3, 2], once]  # and how many samples the micro-batches have
        for rank in found
    )


def dense_where_coupled(found: list[Any], ranks: int) -> bool:
    """On the rank that found it; with fully_shard on all, since a pass is one of all ranks."""
    coupled = found if found[0]["all"] else found[-1:]
    others = [rank for rank in found if rank not in coupled]
    right = all(rank["engines"][3:] == ["dense"] * 4 and rank["why"] for rank in coupled)
    still = all(rank["engines"][-1] != "dense" and rank["why"] is None for rank in others)
    before = all(rank["engines"][2] != "dense" for rank in found)
    return right and still and before and all(max(rank["errors"]) <= 1e-6 for rank in found)


def dense_everywhere(found: list[Any], ranks: int) -> bool:
    return all(rank["engines"] == ["dense"] * 3 and rank["why"] for rank in found)


def refused(found: list[Any], ranks: int) -> bool:
    texts = [
        "OrderedStep: model must be in DistributedDataParallel or sharded by fully_shard for a group; got Sequential.",
        "OrderedStep: group must hold the ranks over which gradients are averaged; got others than [0, 1",
        "OrderedStep: the batch must hold at least one sample on some rank; got none.",
        "OrderedStep: micro-batches must be as many on every rank for fully_shard and SyncBatchNorm; got 1, 2",
        "OrderedStep: group must be None for engine 'memory', which picks candidates before ranks compare losses; got",
    ]
    told = all(text.startswith(wanted) for text, wanted in zip(found[0], texts, strict=True))
    return told and equal([rank[2:] for rank in found])


def named_by_all(found: list[Any], ranks: int) -> bool:
    """Every rank names the setting that differs and its values."""
    others = "rank 0" if ranks == 2 else f"rank 0 and {ranks - 2} more"
    last, rule = f"rank {ranks - 1}", "must be the same on all ranks of the group; got"
    texts = [
        f"OrderedStep: q {rule} 5 on {others}, 0.25 on {last}. Give every rank the same arguments",
        f"OrderedStep: q {rule} 5 on {others}, AccuracyRule(",
        f"OrderedStep: trim {rule} 0 on {others}, 2 on {last}.",
        f"OrderedStep: selection and generator {rule} selection top on {others}, random on {last}; generator nothing",
        f"OrderedStep: cap {rule} None on {others}, 0.5 on {last}.",
        f"OrderedStep: engine {rule} Auto(verify_every=0) on {others}, TwoPass(",
        f"OrderedStep: engine, nonfinite and max_grad_norm {rule} engine Auto(verify_every=0) on {others}, Dense()",
        f"OrderedStep: generator {rule} ",
        f"OrderedStep: losses must have one dtype on all ranks; got float64 on {others}, float32 on {last}. Use losses",
        f"OrderedStep: the message {rule} the losses of a batch on {others}, the sizes of micro-batches on {last}.",
        f"OrderedStep: engine {rule} Dense() on {others}, TwoPass(",
        f"OrderedStep: the message {rule} the losses of a batch on {others}, the settings of a resumed run on {last}.",
        f"OrderedStep: q {rule} {24 * ranks} of {24 * ranks} by AccuracyRule(",
        f"OrderedLoss: mix {rule} 0.0 on {others}, 0.5 on {last}.",
        f"ordered_mean: q {rule} 5 on {others}, 6 on {last}.",
        f"ordered_mean: losses must have one dtype on all ranks; got float64 on {others}, bfloat16 on {last}.",
        "nothing",
        f"ordered_mean: scores {rule} nothing on {others}, given on {last}.",
        f"ordered_mean: q {rule} Above(value=1.0, at_least=1) on {others}, Above(value=2.0, at_least=1) on {last}.",
    ]
    return equal(found) and all(text.startswith(wanted) for text, wanted in zip(found[0], texts, strict=True))


def remembered_alone(found: list[Any], ranks: int) -> bool:
    """The gradient is the average over what the ranks chose, the later steps score less, and shards stay apart."""
    return exact(found, ranks) and all(rank["own shard"] and min(rank["scored"]) == 8 for rank in found)


CHECKS: dict[str, Any] = {
    "fifty_steps": trained_alike,
    "another_number_of_ranks": trained_alike,
    "not_finite": all_gave_up_together,
    "collectives": as_few_as_possible,
    "a_rank_that_finds_a_coupling": dense_where_coupled,
    "same_masks": exact,
    "wide_model": lambda found, ranks: exact(found, ranks) and all(r["engines"][-1] == "rows" for r in found),
    "batch_norm": dense_everywhere,
    "random_control": exact,
    "loss_with_a_rule": lambda found, ranks: equal(found) and found[0]["same"] and found[0]["q"] == 12,
    "tokens_of_a_head": lambda found, ranks: all(max(rank) < 1e-12 for rank in found),
    "ignored_targets": trained_alike,
    "ordered_by": trained_alike,
    "masked_units": lambda found, ranks: all(max(rank) < 1e-12 for rank in found),
    "refusals": refused,
    "disagreements": named_by_all,
    "recurrent_model": lambda found, ranks: exact(found, 0) and all(r["engines"][2:] == ["twopass"] * 2 for r in found),
    "room_is_learnt": lambda found, ranks: equal(found) and found[0] == [4, 4, 6, 6, 6],
    "sharded_state": lambda found, ranks: equal(found),
    "remembered_by_rank": remembered_alone,
    "selective_loop": lambda found, ranks: exact(found, ranks) and all(rank["skipping"] >= 5 for rank in found),
    "selective_blocks": lambda found, ranks: exact(found, ranks) and all(rank["skipping"] >= 4 for rank in found),
    "each_rank_by_itself": lambda found, ranks: exact(found, ranks) and all(r["engines"][-1] != "dense" for r in found),
}


def test_two_ranks_compute_what_one_process_computes_on_the_joined_batch(tmp_path: Path) -> None:
    assert complaints(results_of(2, "quick", tmp_path), "quick", 2) == {}


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "kind"), [(2, "slow"), (3, "quick"), (3, "slow")])
def test_more_ranks_and_engines_compute_it_too(ranks: int, kind: str, tmp_path: Path) -> None:
    assert complaints(results_of(ranks, kind, tmp_path), kind, ranks) == {}


LOSSES = st.lists(
    st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0, float("nan"), float("inf")]), max_size=9), min_size=1, max_size=4
)


@pytest.mark.parametrize(("dtype", "width"), [(torch.float32, 1), (torch.float64, 2), (torch.bfloat16, 1)])
@given(LOSSES.filter(lambda ranks: any(ranks)), st.one_of(st.integers(1, 40), st.floats(0.01, 1.0)))
def test_every_rank_keeps_its_share_of_the_largest_with_ties_by_rank_and_index(
    dtype: torch.dtype, width: int, ranks: list[list[float]], q: float
) -> None:
    losses = [torch.tensor(values) for values in ranks]
    joined = torch.cat(losses)
    losses = [values.to(dtype) for values in losses]
    received = torch.stack([_packed(values, None, 0, width * max(map(len, ranks))) for values in losses])
    count = min(len(joined), q) if isinstance(q, int) else max(1, int(q * len(joined) * (1 + 1e-12)))
    rows = top_rows(joined, count)
    for rank, expected in enumerate(cut(losses, q)):
        found = unpack(received, rank)
        assert torch.equal(found.losses.nan_to_num(-1, 9), joined.to(found.losses.dtype).nan_to_num(-1, 9))
        assert found.mine(rows).tolist() == expected.tolist()


@given(st.integers(0, 9), st.integers(0, 9))
def test_a_message_holds_the_head_and_as_many_losses_as_there_is_room_for(s: int, room: int) -> None:
    sent = _packed(torch.arange(1.0, s + 1), torch.tensor(3), 2**24 + 5, room)
    assert sent[:HEAD].tolist() == [0, s, 0, 3, 0, 1, 5]
    assert sent[HEAD:].tolist() == [*range(1, min(s, room) + 1), *[0] * max(0, room - s)]
    assert _packed(torch.zeros(s).half(), None, 0, 0).tolist() == [0, s, -1, 0, 2, 0, 0]
    double = torch.rand(s, dtype=torch.float64)  # bits that float32 cannot hold arrive
    assert torch.equal(unpack(_packed(double, None, 0, 2 * s)[None], 0).losses.double(), double)


def test_a_message_tells_more_losses_than_float32_can_count() -> None:
    for n in (2**24 + 1, 2**24 + 3):
        found = unpack(_packed(torch.empty(0).expand(0), torch.tensor(n), 0, 0)[None], 0)
        assert found.correct == n
        head = _packed(torch.ones(1).expand(n), None, 0, 0)
        assert unpack(head[None], 0).sizes == (n,)


@pytest.mark.parametrize("wrong", ["world", -100, object()])
def test_what_is_no_process_group_is_refused(wrong: Any) -> None:
    rule = r"group must be a process group that this process belongs to; got .*\. Call init_process_group, then"
    criterion = nn.CrossEntropyLoss(reduction="none")
    with pytest.raises(ArgumentError, match=f"ordered_mean: {rule}"):
        ordered_mean(torch.ones(3), 2, group=wrong)
    with pytest.raises(ArgumentError, match=f"OrderedLoss: {rule}"):
        OrderedLoss(criterion, q=2, group=wrong)
    model = nn.Linear(3, 2)
    with pytest.raises(ArgumentError, match=f"OrderedStep: {rule}"):
        OrderedStep(model, criterion, torch.optim.SGD(model.parameters(), lr=0.1), q=2, group=wrong)


def test_the_mean_of_all_that_is_mixed_in_is_taken_in_float32() -> None:
    losses = torch.tensor([1.0, 1.0, 0.0], dtype=torch.bfloat16)
    joined = Joined(losses, (3,), 0, None)
    assert mean_over_ranks(losses, torch.tensor([0]), joined, mix=1.0).item() == pytest.approx(2 / 3, rel=1e-6)


def test_a_mean_that_hides_a_nan_has_a_gradient_of_nan_as_in_one_process() -> None:
    for half in (False, True):
        losses = torch.tensor([3.0, 2.0, 1.0], dtype=torch.float16 if half else torch.float32, requires_grad=True)
        joined, broken = Joined(losses.detach(), (3,), 0, None), torch.tensor(True)
        mean_over_ranks(losses, torch.tensor([0, 1]), joined, faults=broken).backward()
        assert losses.grad is not None
        assert losses.grad.isnan().tolist()[:2] == [True, True]
