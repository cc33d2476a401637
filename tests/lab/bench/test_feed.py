"""The harness of `measure_feed` at a tiny size: what it reports is right, whatever the speed."""

import numpy as np
import pytest
import torch

from ordered_sgd.lab.bench.feed import AGAINST, LENET, LOADER, SHAPES, SOURCE, SOURCE_AFFINE, PilCropFlip, measure_feed
from ordered_sgd.lab.data.augment import PadCrop


def test_both_do_the_same_and_ratios_are_of_the_same_run() -> None:
    ticked = []
    threads = torch.get_num_threads()
    columns = list(measure_feed(s=4, n=20, threads=2, rounds=2, warmup=1, inner=3, tick=lambda: ticked.append(1)))
    assert torch.get_num_threads() == threads
    assert len(ticked) == len(SHAPES) * 3
    for shape, rows in zip(SHAPES, columns, strict=True):
        by_name = {row.row: row for row in rows}
        assert ({LENET, SOURCE_AFFINE} <= set(by_name)) == (shape == "mnist")
        for row in rows:
            assert (row.shape, row.s) == (shape, 4)
            assert row.low <= row.seconds <= row.high
            assert row.samples_per_second == pytest.approx(4 / row.seconds)
            other = AGAINST.get(row.row)
            assert row.speedup == (other and pytest.approx(by_name[other].seconds / row.seconds))
            compared = LENET in by_name and row.row != LENET
            assert row.of_step == (pytest.approx(row.seconds / by_name[LENET].seconds) if compared else None)
        assert by_name[SOURCE].speedup is not None
        assert by_name[LOADER].speedup is None


@pytest.mark.parametrize("channels", [1, 3])
def test_the_pictures_are_cropped_and_mirrored_as_the_source_does_it(channels: int) -> None:
    images = np.random.default_rng(0).integers(1, 256, (6, channels, 9, 8), dtype=np.uint8)
    pictures = PilCropFlip(images, np.arange(6), padding=2, rng=np.random.default_rng(1))
    replay = np.random.default_rng(1)
    mirrored = []
    for position in range(len(pictures)):
        left, top = replay.integers(0, 5, 2)
        mirrored.append(replay.random() < 0.5)
        drawn = np.array([[top, left, mirrored[-1]]])
        expected = PadCrop(2).apply(torch.from_numpy(images[position : position + 1]), drawn)[0]
        picture, label = pictures[position]
        assert label == position
        torch.testing.assert_close(picture, expected.float() / 255, rtol=2e-7, atol=0)
    assert 0 < sum(mirrored) < 6
