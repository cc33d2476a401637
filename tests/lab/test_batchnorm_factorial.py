"""The BatchNorm factorial of docs/_make: its design is what it says, and the page is what its records give."""

import importlib
from itertools import combinations
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

ROOT = Path(__file__).parents[2]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_make"))
    return importlib.import_module("batchnorm")


@pytest.fixture
def tables(script: ModuleType) -> ModuleType:
    return importlib.import_module("batchnorm_tables")


@pytest.fixture
def design(script: ModuleType) -> ModuleType:
    return importlib.import_module("batchnorm_design")


def test_main_effects_are_confounded_neither_with_each_other_nor_with_two_factor_interactions(
    design: ModuleType,
) -> None:
    signs = np.array(list(design.cells()))
    assert signs.shape == (16, 7)
    assert (signs.T @ signs == 16 * np.eye(7)).all()
    assert all(np.prod(signs[:, list(three)], axis=1).sum() == 0 for three in combinations(range(7), 3))


def test_the_two_recipes_that_are_compared_are_cells(design: ModuleType) -> None:
    assert {(-1,) * 7, (1,) * 7} <= set(design.cells())
    assert len(set(design.plan())) == len(list(design.plan()))


def test_effects_that_are_put_in_come_out(design: ModuleType, tables: ModuleType) -> None:
    records = []
    for run in design.plan():
        seed, cell = float(run.seed), run.cell
        error = 20 + seed + (4 if cell.batch == 64 else 0) + (2 if cell.rate == "times q/s" else 0)
        if run.method == "ordered":
            error += 1 + (3 if cell.kept == 0.25 else 0) - (2 if cell.statistics == "kept" else 0)
        records.append((run, {"test_error": error}))
    found = tables.effects(tables.Numbers(records).differences("ordered", tables.at_best_rate))
    expected = {"": 1 + 1.5 - 1 + 1, "kept": -3, "statistics": -2, "rate": 2}
    for name, values in found.items():
        assert values == pytest.approx([expected.get(name, 0)] * len(design.SEEDS)), name
    same = tables.effects(tables.Numbers(records).differences("ordered", tables.at_same_rates))
    assert same["rate"] == pytest.approx([0] * len(design.CONTROL_SEEDS))


def test_a_seed_with_a_missing_run_is_left_out(design: ModuleType, tables: ModuleType) -> None:
    records = [(run, {"test_error": 1.0}) for run in design.plan()]
    last = max(number for number, (run, _) in enumerate(records) if run.method == "ordered")
    assert len(tables.Numbers(records[:last]).differences("ordered", tables.at_best_rate)) == len(design.SEEDS) - 1


def test_records_are_read_as_they_were_written(design: ModuleType, tmp_path: Path) -> None:
    records = [(run, {"test_error": float(number)}) for number, run in enumerate(design.plan())]
    design.write(tmp_path / "record.json", records)
    assert design.read(tmp_path / "record.json") == records
    assert design.read(tmp_path / "none.json") == []


@pytest.mark.parametrize("statistics", ["all", "kept"])
def test_the_largest_losses_are_kept_and_only_the_wanted_samples_count_in_the_statistics(
    statistics: str, script: ModuleType, design: ModuleType
) -> None:
    torch.manual_seed(0)
    cell = next(c for c in design.cells().values() if (c.batch, c.statistics, c.kept) == (64, statistics, 0.25))
    model, twin = script.Network(), script.Network()
    twin.load_state_dict(model.state_dict())
    x, y = torch.randn(64, 3, 32, 32), torch.randint(0, 10, (64,))
    whole = script.Network()
    whole.load_state_dict(model.state_dict())
    found = script.kept_mean(model, x, y, design.Run("ordered", cell, 0), torch.Generator())
    every = script.losses(whole, x, y, cell)
    rows = every.detach().argsort(descending=True, stable=True)[:16].sort().values
    if statistics == "all":
        expected, passed = every[rows].mean(), whole
    else:
        expected, passed = script.losses(twin, x[rows], y[rows], cell).mean(), twin
    torch.testing.assert_close(found, expected)
    for one, other in zip(model.norms(), passed.norms(), strict=True):
        torch.testing.assert_close(one.running_mean, other.running_mean)


def test_the_page_is_what_the_records_give(design: ModuleType, tables: ModuleType) -> None:
    page = tables.PAGE.read_text()
    for mark, text in tables.tables(design.read(design.RECORD)).items():
        assert f"<!-- batchnorm-{mark} -->\n\n{text}\n\n<!-- /batchnorm-{mark} -->" in page
