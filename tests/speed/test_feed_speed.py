"""Speed bars of feeding in one process, as ratios in one interleaved run; `make bench` prints them."""

import functools

import pytest

from ordered_sgd.lab.bench.feed import SHAPES, SOURCE, SOURCE_AFFINE, SOURCE_CROP, FeedRow, measure_feed

pytestmark = pytest.mark.bench


@functools.cache
def rows(shape: str) -> dict[str, FeedRow]:
    """Every way of feeding at a shape, measured once for all tests."""
    (found,) = measure_feed([shape], rounds=21)
    for row in found:
        share = "" if row.of_step is None else f", {100 * row.of_step:.2f} % of a LeNet step"
        faster = "" if row.speedup is None else f", {row.speedup:.1f} times its DataLoader"
        print(f"{shape}, {row.row}: {row.samples_per_second:,.0f} samples/s{faster}{share}")
    return {row.row: row for row in found}


@pytest.mark.parametrize(("shape", "bar"), [("mnist", 6), ("cifar", 3)])
def test_plain_feeding_against_a_dataloader_over_a_tensor_dataset(shape: str, bar: float) -> None:
    assert rows(shape)[SOURCE].speedup >= bar


@pytest.mark.parametrize("shape", SHAPES)
def test_crop_and_flip_against_pil_under_a_dataloader(shape: str) -> None:
    assert rows(shape)[SOURCE_CROP].speedup >= 20


@pytest.mark.parametrize("row", [SOURCE, SOURCE_CROP, SOURCE_AFFINE])
def test_feeding_takes_at_most_a_twentieth_of_a_lenet_step(row: str) -> None:
    assert rows("mnist")[row].of_step <= 0.05
