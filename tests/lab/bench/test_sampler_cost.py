"""The benchmark of the batch sampler on few small pictures."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from ordered_sgd.lab.bench.sampler_cost import PADDING, measure_cost, measure_epochs, write_pictures
from ordered_sgd.lab.cli.bench import command
from ordered_sgd.lab.data.dataset import Dataset
from ordered_sgd.lab.report.sampler_bench import sampler_bench_page, sampler_bench_tables

RECORD = Path(__file__).parents[3] / "docs" / "records" / "bench-sampler.json"


def pictures(n: int = 64) -> Dataset:
    rng = np.random.default_rng(0)
    return Dataset(rng.integers(0, 256, (n, 1, 8, 8), dtype=np.uint8), np.arange(n) % 3, ("a", "b", "c"), "noise")


def test_both_epochs_are_timed_and_the_sampler_loads_less() -> None:
    plain, sampler = measure_epochs(pictures(), n=64, side=8 + PADDING, s=16, workers=0, rounds=3)
    assert (plain.way, plain.ratio, plain.loaded, plain.recall) == ("plain", 1.0, 1.0, None)
    assert sampler.way == "sampler"
    assert 8 / 16 <= sampler.loaded < 1
    assert sampler.ratio_low <= sampler.ratio <= sampler.ratio_high
    assert sampler.low <= sampler.seconds <= sampler.high


def test_pictures_are_the_images_of_the_data_set_shifted_or_mirrored(tmp_path: Path) -> None:
    data = pictures(2)
    files = write_pictures(data, tmp_path, 2, 8)
    image = torch.from_numpy(data.x[1]).float().div(255).expand(3, 8, 8)
    padded = torch.nn.functional.pad(image, (PADDING,) * 4)
    windows = {
        tuple(window.flatten().tolist())
        for top in range(2 * PADDING + 1)
        for left in range(2 * PADDING + 1)
        for window in (padded[:, top : top + 8, left : left + 8], padded[:, top : top + 8, left : left + 8].flip(2))
    }
    views = [files[1] for _ in range(20)]
    assert all(tuple(view.flatten().tolist()) in windows for view, _ in views)
    assert len({tuple(view.flatten().tolist()) for view, _ in views}) > 1
    assert {label for _, label in views} == {1}


def test_a_cost_is_positive_and_compared_with_two_steps() -> None:
    cost, held = measure_cost(s=8, n=80, recalls=(None, 0.8), rounds=2)
    assert (cost.recall, held.recall) == (None, 0.8)
    assert 0 < cost.low <= cost.seconds <= cost.high
    assert cost.kept_step < cost.step


@pytest.mark.skipif(not RECORD.exists(), reason="the record is made by osgd bench sampler")
def test_the_page_is_filled_from_the_record() -> None:
    record = json.loads(RECORD.read_text())
    page = sampler_bench_page("<!-- bench-sampler -->\n<!-- /bench-sampler -->", record)
    assert f"{record['epochs'][1]['ratio']:.2f} ±" in page
    assert len(sampler_bench_tables(record)) == 2


def test_data_without_images_is_refused() -> None:
    result = CliRunner().invoke(command, ["sampler", "--data", "figure1a"])
    assert "--data must hold images; got samples of shape (2,)." in str(result.exception)
