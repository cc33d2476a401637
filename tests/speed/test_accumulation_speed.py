"""Time of gradient accumulation on the q largest of all micro-batches over plain accumulation, on one thread."""

import functools

import pytest

from ordered_sgd.lab.bench.accumulation import REGROUPED, AccumulationRow, measure_accumulation

pytestmark = pytest.mark.bench

# A prototype's time over plain accumulation, which may be missed by a tenth.
BARS = {0.5: 0.86, 0.25: 0.60, 0.125: 0.49}


@functools.cache
def regrouped() -> dict[float | None, AccumulationRow]:
    """The rows of the causal transformer by q, measured once for all tests."""
    rows = measure_accumulation("causal", tuple(BARS))
    for row in rows:
        print(f"{row.way}, q = {row.q}: {row.ratio:.2f} of plain")
    return {row.q: row for row in rows if row.way == REGROUPED}


@pytest.mark.parametrize("q", BARS)
def test_regrouped_accumulation_takes_so_much_of_plain(q: float) -> None:
    row = regrouped()[q]
    assert row.ran == "micro-batches, regrouped"
    assert row.error is not None
    assert row.error < 1e-5
    assert row.ratio <= 1.1 * BARS[q]
