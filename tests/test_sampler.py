"""`OrderedBatchSampler`: what is loaded, what is measured, and that nothing is lost on the way."""

import copy
import io
import itertools
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from ordered_sgd import AccuracyRule, LossMassRule, OrderedBatchSampler, ordered_mean, select_top_q, with_index
from ordered_sgd.draws import Cut
from ordered_sgd.errors import ArgumentError
from ordered_sgd.policy import Policy
from tests.distributed.launch import ROOT, torchrun

N, S = 640, 64


def hardness(n: int = N, seed: int = 0) -> Tensor:
    """A loss for every sample."""
    return torch.rand(n, generator=torch.Generator().manual_seed(seed)).exp()


def epochs(sampler: OrderedBatchSampler, losses: Tensor, count: int) -> list[list[list[int]]]:
    """The batches of some epochs, each updated with the losses of its samples."""
    found = []
    for _ in range(count):
        found.append([])
        for index in sampler:
            found[-1].append(index)
            sampler.update(index, losses[index])
    return found


def data_set(n: int = N) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n, 8, generator=generator)
    return TensorDataset(x, (x[:, 0] + 0.5 * torch.randn(n, generator=generator) > 0).long())


# What is yielded


@given(
    n=st.integers(1, 300),
    s=st.integers(1, 70),
    ranks=st.integers(1, 3),
    drop_last=st.booleans(),
    q=st.sampled_from([1, 4, 0.25, 0.5, 1.0]),
)
@settings(deadline=None)
def test_ranks_draw_every_sample_once_and_equally_many_batches(
    n: int, s: int, ranks: int, drop_last: bool, q: float
) -> None:
    if n < ranks:
        return
    samplers = [OrderedBatchSampler(n, s, q=q, drop_last=drop_last, rank=rank, ranks=ranks) for rank in range(ranks)]
    assert len({len(sampler) for sampler in samplers}) == 1
    drawn: list[int] = []
    sizes, together = np.zeros((ranks, len(samplers[0])), int), np.zeros((ranks, len(samplers[0])), int)
    for rank, sampler in enumerate(samplers):
        batches = 0
        for index in sampler:
            here = sampler.drawn(index)
            drawn += here.index.tolist()
            sizes[rank, batches], together[rank, batches] = here.s, here.together
            assert set(index) <= set(here.index.tolist())
            assert len(index) >= here.kept.q
            sampler.update(index, torch.rand(len(index)))
            batches += 1
        assert batches == len(sampler)
    assert (together == sizes.sum(0)).all()
    padding = len(drawn) - len(set(drawn))
    assert padding < ranks
    if not drop_last:
        assert sorted(set(drawn)) == list(range(n))


def test_it_yields_the_largest_remembered_losses_and_some_others() -> None:
    losses = hardness()
    sampler = OrderedBatchSampler(N, S, q=8, others=4)
    epochs(sampler, losses, 12)  # every sample was seen
    for index in sampler:
        drawn = sampler.drawn(index)
        if drawn.positions is not None:
            largest = drawn.index[select_top_q(losses[drawn.index], 8)].tolist()
            assert set(largest) <= set(index)
            assert len(index) == 12
        else:
            assert len(index) == S
        sampler.update(index, losses[index])


def test_samples_that_were_never_seen_come_first() -> None:
    sampler = OrderedBatchSampler(N, S, q=16, others=1)
    first, second = epochs(sampler, hardness(), 2)
    seen = set(itertools.chain(*first))
    new = sum(index not in seen for index in itertools.chain(*second))
    assert new > 0.9 * 16 * sum(len(batch) < S for batch in second)


def test_the_order_changes_with_the_epoch_and_the_seed_and_with_nothing_else() -> None:
    first, second = epochs(OrderedBatchSampler(N, S, q=1.0), hardness(), 2)
    assert first != second
    assert epochs(OrderedBatchSampler(N, S, q=1.0), hardness(seed=5), 1)[0] == first
    assert epochs(OrderedBatchSampler(N, S, q=1.0, seed=1), hardness(), 1)[0] != first
    again = OrderedBatchSampler(N, S, q=1.0)
    again.set_epoch(1)
    assert epochs(again, hardness(), 1)[0] == second


def test_a_look_at_the_first_batch_does_not_begin_an_epoch() -> None:
    sampler, peeked = (OrderedBatchSampler(N, S, q=0.25) for _ in range(2))
    next(iter(peeked))
    assert epochs(peeked, hardness(), 2) == epochs(sampler, hardness(), 2)


def test_a_trainer_that_sees_no_positions_is_told_which_batch_came() -> None:
    sampler = OrderedBatchSampler(N, S, q=0.25)
    batches = iter(sampler)
    ahead = [next(batches) for _ in range(4)]  # by workers
    last = None
    for number in range(4):
        last = sampler.next_drawn(last)
        assert last.loaded.tolist() == ahead[number]
        if number != 1:  # a batch that is skipped
            sampler.update(last.loaded, hardness()[last.loaded])
    with pytest.raises(ArgumentError, match="must be one that was drawn"):
        sampler.next_drawn(last)
    ahead.append(next(batches))
    resumed = OrderedBatchSampler(N, S, q=0.25)
    resumed.load_state_dict(sampler.state_dict())
    assert next(iter(resumed)) == resumed.next_drawn(None).loaded.tolist() == ahead[-1]


def test_a_loss_that_is_followed_must_keep_as_many_samples() -> None:
    sampler = OrderedBatchSampler(N, S, q=0.25)
    with pytest.raises(ArgumentError, match=r"q and selection must be those of OrderedLoss, 0.5 and 'top'; got 0.25"):
        sampler.follow(Policy(0.5, where="OrderedLoss"))
    with pytest.raises(ArgumentError, match=r"must be those of OrderedLoss, 0.25 and 'random'; got 0.25 and 'top'"):
        sampler.follow(Policy(0.25, selection="random", where="OrderedLoss"))
    sampler = OrderedBatchSampler(N, S, q=24)
    sampler.follow(Policy(24, where="OrderedLoss"), ranks=4)  # 24 of 256: 6 of the 64 of each rank
    assert sampler.q == 6


def test_the_random_control_yields_random_samples_and_no_more() -> None:
    sampler = OrderedBatchSampler(N, S, q=16, selection="random")
    batches = list(itertools.chain(*epochs(sampler, hardness(), 40)))
    assert {len(batch) for batch in batches} == {16}
    counts = np.bincount(list(itertools.chain(*batches)), minlength=N)
    assert abs(np.corrcoef(counts, hardness())[0, 1]) < 0.16  # four standard errors
    assert sampler.recall is None


def test_the_last_epochs_are_whole_and_keep_everything() -> None:
    sampler = OrderedBatchSampler(N, S, q=16, epochs=8, whole_last=1 / 8)
    sizes = [max(map(len, batches)) + min(map(len, batches)) for batches in epochs(sampler, hardness(), 8)]
    assert sizes == [S + 20] * 7 + [2 * S]
    assert sampler.q == S


def test_a_share_of_others_is_drawn_at_random() -> None:
    sampler = OrderedBatchSampler(N, S, q=8, others=0.25)
    assert {len(batch) for batch in epochs(sampler, hardness(), 1)[0]} == {24, S}


# What is measured


def true_recall(sampler: OrderedBatchSampler, losses: Callable[[int], Tensor], count: int) -> float:
    """The share of the q largest losses that were among those to be loaded, over all batches of some epochs."""
    found = of = 0
    for _ in range(count):
        for number, index in enumerate(sampler):
            drawn, now = sampler.drawn(index), losses(1000 * sampler.epoch + number)
            rows = select_top_q(now[drawn.index], drawn.kept.q)
            loaded = torch.arange(drawn.s) if drawn.part is None else drawn.part.scored
            found, of = found + int(torch.isin(rows, loaded).sum()), of + len(rows)
            sampler.update(index, now[index])
    return found / of


def noisy(noise: float) -> Callable[[int], Tensor]:
    """Losses that are a little different every time."""
    return lambda time: hardness() + noise * torch.rand(N, generator=torch.Generator().manual_seed(time))


def test_the_reported_recall_is_without_bias() -> None:
    differences = []
    for seed in range(30):
        sampler = OrderedBatchSampler(N, S, q=16, seed=seed)
        true_recall(sampler, noisy(1.0), 8)  # every sample was seen
        true = true_recall(sampler, noisy(1.0), 8)  # ten batches, of which two or three are audited: eight audits
        assert sampler.recall is not None
        assert sampler.recall.audits == 8
        differences.append(sampler.recall.mean - true)
    error = np.std(differences) / len(differences) ** 0.5
    assert abs(np.mean(differences)) < 4 * error
    assert error < 0.01


def test_audits_fall_everywhere_equally_often_whatever_the_data() -> None:
    cut = Cut(n=16 * S, s=S)
    counts = np.array([[cut.audited(epoch, number) for number in range(16)] for epoch in range(4000)])
    assert set(counts.sum(1)) == {4}
    assert np.abs(counts.mean(0) - 0.25).max() < 4 * (0.25 * 0.75 / 4000) ** 0.5
    first, second = (Cut(n=16 * S, s=S, rank=rank, ranks=2) for rank in range(2))
    assert [first.audited(3, i) for i in range(8)] == [second.audited(3, i) for i in range(8)]


@pytest.mark.parametrize("recall", [0.6, 0.9])
def test_a_wanted_recall_is_held(recall: float) -> None:
    sampler = OrderedBatchSampler(N, S, q=8, recall=recall)
    true_recall(sampler, noisy(1.0), 30)
    held = true_recall(sampler, noisy(1.0), 30)
    assert recall - 0.05 < held < recall + 0.15
    assert sampler.loaded < 0.95


def test_a_fixed_number_of_candidates_is_loaded_and_a_whole_batch_is_no_audit() -> None:
    sampler = OrderedBatchSampler(N, S, q=8, candidates=0.5, others=4)
    assert {len(batch) for batch in epochs(sampler, hardness(), 1)[0]} == {36, S}
    whole = OrderedBatchSampler(N, S, q=8, candidates=1.0)
    assert {len(batch) for batch in epochs(whole, hardness(), 1)[0]} == {S}
    assert whole.recall is None
    assert whole.loaded == 1


def test_estimates_of_the_whole_batch_are_without_bias() -> None:
    losses, sampler = hardness(), OrderedBatchSampler(N, S, q=8)
    epochs(sampler, 0.5 * losses, 8)  # what is remembered is wrong by a factor
    right, differences, counted = losses < 1.7, [], []
    for _ in range(40):
        for index in sampler:
            drawn = sampler.drawn(index)
            if drawn.positions is not None:
                differences.append(float(drawn.mean(losses[index]) - losses[drawn.index].mean()))
                counted.append(float(drawn.correct(right[index]) - right[drawn.index].sum()))
            sampler.update(index, 0.5 * losses[index])
    for errors in (differences, counted):
        assert abs(np.mean(errors)) < 4 * np.std(errors) / len(errors) ** 0.5


def test_a_rule_sees_the_estimated_accuracy_of_whole_batches() -> None:
    sampler = OrderedBatchSampler(N, S, q=AccuracyRule())
    right = torch.arange(N) % 20 != 0  # 95 %
    levels = []
    for _ in range(3):
        for index in sampler:
            sampler.update(index, torch.where(right, 0.0, 5.0)[index], right=right[index])
        levels.append(sampler.end_epoch())
    assert levels == [8, 8, 8]
    assert sampler.q == 8
    mass = OrderedBatchSampler(N, S, q=LossMassRule(0.5))
    epochs(mass, hardness(), 1)
    assert mass.end_epoch() < S


# A training


def train(
    sampler: OrderedBatchSampler, data: TensorDataset, count: int = 3, workers: int = 0
) -> tuple[list[Tensor], list[list[int]]]:
    """The weights after some epochs of a plain loop, and what was loaded."""
    torch.manual_seed(0)
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(with_index(data), batch_sampler=sampler, num_workers=workers, persistent_workers=workers > 0)
    seen = []
    for _ in range(count):
        for x, y, index in loader:
            losses = nn.functional.cross_entropy(model(x), y, reduction="none")
            optimizer.zero_grad()
            ordered_mean(losses, sampler.q).backward()
            optimizer.step()
            sampler.update(index, losses)
            seen.append(index.tolist())
    return [parameter.detach().clone() for parameter in model.parameters()], seen


def test_with_all_candidates_it_is_exact_ordered_sgd_bit_for_bit() -> None:
    data = data_set()
    found, seen = train(OrderedBatchSampler(data, S, q=0.25, candidates=1.0), data)
    torch.manual_seed(0)
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for index in seen:
        x, y = data[index]
        losses = nn.functional.cross_entropy(model(x), y, reduction="none")
        optimizer.zero_grad()
        ordered_mean(losses, 16).backward()
        optimizer.step()
    assert all(map(torch.equal, found, model.parameters()))
    assert {len(index) for index in seen} == {S}


def test_workers_that_load_ahead_change_nothing() -> None:
    data = data_set()
    here, ahead = (OrderedBatchSampler(data, S, q=0.25) for _ in range(2))
    weights, seen = train(here, data, 6)
    late_weights, late_seen = train(ahead, data, 6, workers=2)
    assert seen == late_seen
    assert all(map(torch.equal, weights, late_weights))
    assert here.recall == ahead.recall


def test_a_wanted_recall_is_held_by_workers_that_load_ahead() -> None:
    data = data_set()
    recalls = []
    for workers in (0, 2):
        sampler = OrderedBatchSampler(data, S, q=0.25, recall=0.8)
        train(sampler, data, 12, workers=workers)
        assert sampler.recall is not None
        recalls.append(sampler.recall.mean)
    assert min(recalls) > 0.7
    assert abs(recalls[0] - recalls[1]) < 0.15


# Checkpoints


def saved(sampler: OrderedBatchSampler) -> dict[str, Any]:
    """The state after a round through a file."""
    file = io.BytesIO()
    torch.save(sampler.state_dict(), file)
    file.seek(0)
    state: dict[str, Any] = torch.load(file, weights_only=True)
    return state


@pytest.mark.parametrize(
    ("workers", "stop", "options"),
    [
        *itertools.product([0], [3, 10, 14], [{"q": 0.25}, {"q": 0.25, "recall": 0.8}]),
        (0, 14, {"q": 8, "selection": "random"}),
        (2, 3, {"q": 0.25}),
    ],
)
def test_a_resumed_run_goes_on_with_the_same_bits(workers: int, stop: int, options: dict[str, Any]) -> None:
    data = data_set()

    def batches(sampler: OrderedBatchSampler) -> Iterator[list[int]]:
        loader = DataLoader(with_index(data), batch_sampler=sampler, num_workers=workers)
        for _ in range(4):
            for _x, _y, index in loader:
                sampler.update(index, hardness()[index])
                yield index.tolist()

    whole = list(batches(OrderedBatchSampler(data, S, **options)))
    first, second = (OrderedBatchSampler(data, S, **options) for _ in range(2))
    before = list(itertools.islice(batches(first), stop))
    second.load_state_dict(saved(first))
    after = list(itertools.islice(batches(second), len(whole) - stop))
    assert before + after == whole
    assert first.loaded >= 0


def test_a_checkpoint_after_the_last_batch_begins_the_next_epoch_or_ends_the_present_one() -> None:
    sampler = OrderedBatchSampler(N, S, q=0.25)
    epochs(sampler, hardness(), 1)
    follows, ends = (OrderedBatchSampler(N, S, q=0.25) for _ in range(2))
    for one in (follows, ends):
        one.load_state_dict(saved(sampler))
    ends.set_epoch(0)
    assert epochs(ends, hardness(), 1) == [[]]
    ends.set_epoch(1)
    assert epochs(follows, hardness(), 1) == epochs(ends, hardness(), 1) == epochs(sampler, hardness(), 1)


def test_a_process_that_is_killed_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    script = tmp_path / "run.py"
    script.write_text(
        textwrap.dedent("""
        import os, pathlib, sys, torch
        from ordered_sgd import OrderedBatchSampler

        folder, resumed = pathlib.Path(sys.argv[1]), sys.argv[2] == "resumed"
        losses = torch.rand(640, generator=torch.Generator().manual_seed(0))
        sampler = OrderedBatchSampler(640, 64, q=0.25, recall=0.7)
        step = 0
        if resumed:
            state = torch.load(folder / "state.pt")
            sampler.load_state_dict(state["sampler"])
            step = state["step"]
        while step < 60:
            for index in sampler:
                sampler.update(index, losses[index])
                step += 1
                print(step, index, flush=True)
                if sys.argv[2] != "whole" and not resumed and step % 7 == 0:
                    torch.save({"sampler": sampler.state_dict(), "step": step}, folder / "new.pt")
                    os.replace(folder / "new.pt", folder / "state.pt")
                if sys.argv[2] == "killed" and step == 32:
                    os.kill(os.getpid(), 9)
        """)
    )

    def run(how: str) -> tuple[int, dict[str, str]]:
        command = [sys.executable, str(script), str(tmp_path), how]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ)
        assert how == "killed" or ended.returncode == 0, ended.stderr
        return ended.returncode, dict(line.split(" ", 1) for line in ended.stdout.splitlines())

    _, whole = run("whole")
    code, before = run("killed")
    assert code == -signal.SIGKILL
    assert len(before) == 32
    _, after = run("resumed")  # from the checkpoint of step 28, in the middle of the third epoch
    assert min(map(int, after)) == 29
    assert {**before, **after} == whole


def test_saving_changes_nothing_and_a_copy_goes_its_own_way() -> None:
    sampler, other = (OrderedBatchSampler(N, S, q=0.25) for _ in range(2))
    found = []
    for index in sampler:
        sampler.update(index, hardness()[index])
        copy.deepcopy(sampler.state_dict())
        found.append(index)
    assert found == epochs(other, hardness(), 1)[0]


def test_a_batch_that_is_skipped_is_forgotten() -> None:
    sampler = OrderedBatchSampler(N, S, q=0.25)
    for number, index in enumerate(sampler):
        if number != 2:
            sampler.update(index, hardness()[index])
    assert sampler.state_dict()["pending"] == []
    assert int(sampler.state_dict()["losses"].isinf().sum()) > 0


def test_a_loss_that_is_not_finite_counts_as_never_seen() -> None:
    sampler = OrderedBatchSampler(S, S, q=1.0)
    (index,) = epochs(sampler, torch.where(torch.arange(S) < 3, torch.nan, 1.0), 1)[0]
    assert len(index) == S
    assert sampler.state_dict()["losses"].isinf().tolist() == [i < 3 for i in range(S)]


# Ranks


def test_two_ranks_train_on_their_own_samples_and_resume_with_the_same_bits() -> None:
    job = torchrun(2, ROOT / "tests" / "distributed" / "sampled.py")
    assert job.returncode == 0, job.stderr[-2000:]
    first, second = json.loads(job.stdout.strip().splitlines()[-1])
    assert first["weights"] == second["weights"]
    assert first["resumed"]
    assert second["resumed"]
    assert len(first["batches"]) == len(second["batches"]) == 20
    assert {index % 2 for index in itertools.chain(*first["batches"])} == {0}
    assert {index % 2 for index in itertools.chain(*second["batches"])} == {1}
    assert len(second["batches"][4]) == 1  # its first sample again: rank 0 has one left
    assert first["remembered"] > 100


# Data sets that change


def test_a_data_set_may_grow_and_shrink_between_epochs() -> None:
    data = list(range(N))
    sampler = OrderedBatchSampler(data, S, q=1.0)
    epochs(sampler, hardness(), 1)
    data += [0] * S
    assert len(sampler) == N // S + 1
    (grown,) = epochs(sampler, hardness(N + S), 1)
    assert sorted(itertools.chain(*grown)) == list(range(N + S))
    del data[100:]
    (shrunk,) = epochs(sampler, hardness(), 1)
    assert sorted(itertools.chain(*shrunk)) == list(range(100))
    assert sampler.state_dict()["losses"].shape == (100,)


def test_an_epoch_of_another_data_set_cannot_go_on_but_can_start_again() -> None:
    sampler = OrderedBatchSampler(N, S, q=0.25)
    for index in itertools.islice(iter(sampler), 3):
        sampler.update(index, hardness()[index])
    other = OrderedBatchSampler(N + 5, S, q=0.25)
    other.load_state_dict(sampler.state_dict())
    with pytest.raises(ArgumentError, match=r"n = 645 instead of 640.*set_epoch"):
        next(iter(other))
    other.set_epoch(0)
    with pytest.raises(ArgumentError, match="cut an epoch as before"):
        next(iter(other))  # the epoch that was under way
    other.load_state_dict(sampler.state_dict())
    other.set_epoch(1)
    assert len(list(iter(other))) == len(other)
    assert int(other.state_dict()["losses"].isfinite().sum()) > 0


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the memory of a process is read from /proc")
def test_memory_for_a_hundred_million_samples_is_below_500_megabytes() -> None:
    code = """
        import os, torch
        from ordered_sgd import OrderedBatchSampler
        losses = torch.ones(64)
        def used(): return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        next(iter(OrderedBatchSampler(64, 64, q=0.25)))
        before, sampler = used(), OrderedBatchSampler(10**8, 64, q=0.25)
        for _, index in zip(range(2000), sampler):
            sampler.update(index, losses[:len(index)])
        print(used() - before)
    """
    run = [sys.executable, "-c", textwrap.dedent(code)]
    taken = int(subprocess.run(run, capture_output=True, text=True, check=True, timeout=120).stdout)
    assert 4e8 < taken < 5e8


# Errors


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"batch_size": 0}, "batch_size must be an int of at least 1"),
        ({"q": 0}, "q must be"),
        ({"recall": 1.5}, "recall must be a share"),
        ({"recall": 0.8, "candidates": 8}, "candidates must be left out"),
        ({"candidates": 0}, "candidates must be a count"),
        ({"others": 0}, "others must be a count"),
        ({"whole_last": 0.1}, "epochs must be an int"),
        ({"whole_last": 2, "epochs": 3}, "whole_last must be a share"),
        ({"seed": "0"}, "seed must be an int"),
        ({"rank": 2, "ranks": 2}, "rank must be an int from 0 to ranks - 1"),
        ({"dataset": iter([1])}, "dataset must be a map-style data set"),
        ({"dataset": 0}, "dataset must have at least one sample"),
        ({"dataset": 1, "ranks": 2, "rank": 0}, "dataset must have a sample for every rank"),
    ],
)
def test_wrong_options_are_one_clear_error(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ArgumentError, match=match):
        OrderedBatchSampler(**{"dataset": N, "batch_size": S, "q": 0.25, **options})


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda index, losses: (index[:-1], losses[:-1]), "must be that of a batch that the loader gave"),
        (lambda index, losses: ([*index[:-1], N], losses), "must lie from 0 to 639.*one sampler per data set"),
        (lambda index, losses: ([*index[:-1], -1], losses), "must lie from 0 to 639"),
        (lambda index, losses: ([*index[:-1], index[0]], losses), "must hold every sample once"),
        (lambda index, losses: ([float(i) for i in index], losses), "index must be integers"),
        (lambda index, losses: (["a"], losses), "index must be integers"),
        (lambda index, losses: (index, losses[:-1]), "losses must be one per sample"),
        (lambda index, losses: (index, losses.mean()), 'reduction="none"'),
        (lambda index, losses: (index, losses.long()), "losses must be floating-point"),
    ],
)
def test_a_wrong_update_is_one_clear_error_and_loses_nothing(change: Callable[..., Any], match: str) -> None:
    sampler = OrderedBatchSampler(N, S, q=0.25)
    index = next(batches := iter(sampler))
    with pytest.raises(ArgumentError, match=match):
        sampler.update(*change(index, hardness()[index]))
    sampler.update(index, hardness()[index])
    with pytest.raises(ArgumentError, match="must be that of a batch"):
        sampler.update(index, hardness()[index])
    assert len(list(batches)) == len(sampler) - 1


def test_a_state_of_another_rank_or_of_something_else_is_refused() -> None:
    first, second = (OrderedBatchSampler(N, S, q=0.25, rank=rank, ranks=2) for rank in range(2))
    with pytest.raises(ArgumentError, match="must be that of the same rank"):
        second.load_state_dict(first.state_dict())
    with pytest.raises(ArgumentError, match="must hold cut, epoch"):
        second.load_state_dict({"losses": torch.ones(3)})
