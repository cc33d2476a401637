"""What a `SelectionTracker` adds to a LeNet step at s = 64, in one interleaved run."""

import itertools

import pytest
import torch

from ordered_sgd.diagnostics.tracker import SelectionTracker
from ordered_sgd.lab.bench.subjects import Subjects
from ordered_sgd.lab.bench.timing import interleave, threads_of_torch
from ordered_sgd.lab.bench.workloads import WORKLOADS

S, N = 64, 60_000  # samples of MNIST


@pytest.mark.bench
@pytest.mark.parametrize("q", [64, 16, 4])
def test_a_tracker_costs_less_than_3_percent_of_a_lenet_step(q: int) -> None:
    subjects = Subjects(WORKLOADS["lenet"], s=S, names=("auto",))
    subjects.set_q(q)
    step = subjects.calls["auto"]
    tracker = SelectionTracker(N, y=torch.randint(0, 10, (N,)))
    batches = itertools.cycle(torch.randperm(N)[: N // S * S].split(S))
    with threads_of_torch(1):
        record = step()
        calls = {"step": step, "update": lambda: tracker.update(next(batches), record)}
        seconds = interleave(calls, rounds=31, warmup=5)
        ending = interleave({"end_epoch": tracker.end_epoch}, rounds=5)["end_epoch"].median
    share = (seconds["update"].median + ending / (N // S)) / seconds["step"].median
    print(f"q = {q}: {1e6 * seconds['update'].median:.0f} us, {100 * share:.2f} % of a step")
    assert share < 0.03
