"""Speed bars of a plain loop with `selective_backward`, one thread, interleaved; `make bench` prints them."""

import pytest
import torch

from ordered_sgd.lab.bench.step_cost import BenchPlan, measure

pytestmark = pytest.mark.bench

# model -> batch size, rounds, and the speed-up over the plain loop at s/4 and s/16
BARS = {"lenet": (64, 21, 1.6, 2.0), "vit": (64, 7, 1.8, 2.4), "bert": (32, 7, 1.6, 1.95)}
OVERHEAD = 0.97  # of the plain loop's speed where every sample has a gradient


@pytest.mark.parametrize("model", BARS)
def test_a_plain_loop_gains_what_was_promised(model: str) -> None:
    if model == "bert":
        pytest.importorskip("transformers")
    torch.set_num_threads(1)
    s, rounds, quarter, sixteenth = BARS[model]
    plan = BenchPlan([model], s=s, qs=(s, s // 4, s // 16), rounds=rounds, probe=False, rows=("sgd", "selective"))
    found = {column[0].q: {row.row: row.speedup for row in column}["selective"] for column in measure(plan)}
    print(f"{model}: " + ", ".join(f"q = {q}: {speedup:.2f}" for q, speedup in found.items()))
    assert found[s] >= OVERHEAD, found
    assert found[s // 4] >= quarter, found
    assert found[s // 16] >= sixteenth, found
