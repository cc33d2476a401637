"""Speed bars of whole updates in other people's trainers, one thread, in turn; `make bench` prints them."""

import pytest

from ordered_sgd.lab.bench.trainer_cost import measure_trainer

pytestmark = pytest.mark.bench

# trainer -> its package and the speed-up over the plain trainer at a share of the batch
BARS = {
    "lightning-lenet": ("lightning", {0.125: 1.6}),
    "lightning-vit": ("lightning", {0.125: 1.6}),
    "transformers-bert": ("transformers", {0.25: 1.55, 0.0625: 1.85}),
    # regrouped micro-batches gain less where dropout masks are recorded and replayed (docs/loop.md)
    "transformers-parts": ("transformers", {0.25: 1.25, 0.125: 1.5}),
}


@pytest.mark.parametrize("trainer", BARS)
def test_a_trainer_gains_what_was_promised(trainer: str) -> None:
    package, bars = BARS[trainer]
    pytest.importorskip(package)
    rows = measure_trainer(trainer, list(bars), rounds=7)[1:]
    print(f"{trainer}: " + ", ".join(f"q = {row.q:g}: {row.speedup:.2f}" for row in rows))
    assert all(row.error is not None and row.error < 1e-4 for row in rows), rows
    for row in rows:
        assert row.q is not None
        assert row.speedup >= bars[row.q], row
