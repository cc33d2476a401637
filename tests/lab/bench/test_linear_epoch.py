"""The comparison of the linear models, on few rows."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from ordered_sgd.lab.bench import linear_epoch
from ordered_sgd.lab.cli.bench import command
from ordered_sgd.lab.report.linear_bench import linear_bench_page, linear_bench_tables

rng = np.random.default_rng(0)
IMAGES = rng.integers(0, 256, (150, 8), dtype=np.uint8), rng.integers(0, 3, 150)
SMALL = {
    "images": lambda: linear_epoch.dense_subjects(*IMAGES),
    "sparse, 2 classes": lambda: linear_epoch.sparse_subjects(2, n=150, d=50, density=0.1),
    "sparse, 20 classes": lambda: linear_epoch.sparse_subjects(20, n=150, d=50, density=0.1),
    "growth, dense": lambda: linear_epoch.growth_subjects([100, 200]),
    "growth, sparse": lambda: linear_epoch.growth_subjects([100, 200], "sparse"),
}


@pytest.fixture
def _few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_epoch, "PARTS", SMALL)
    monkeypatch.setattr(linear_epoch, "_mnist", lambda split: IMAGES)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments)


@pytest.mark.slow
@pytest.mark.usefixtures("_few_rows")
def test_the_command_prints_four_tables_and_its_record_makes_the_page(tmp_path: Path) -> None:
    out, page = tmp_path / "new" / "b.json", tmp_path / "page.md"
    done = run("linear", "--rounds", "2", "--target", "100", "--out", str(out))
    assert done.exit_code == 0, done.output
    record = json.loads(out.read_text())
    titles = list(linear_bench_tables(record))
    assert [title.split()[0] for title in titles] == ["Logistic", "Sparse", "Growth:", "Seconds"]
    assert "LIBLINEAR" in done.stdout
    page.write_text("Before\n<!-- bench-linear -->\nold\n<!-- /bench-linear -->\nAfter\n")
    assert run("page", str(out), str(page)).exit_code == 0
    text = page.read_text()
    assert "old" not in text
    assert all(f"**{title}**" in text for title in titles)
    assert text == linear_bench_page(text, record)


@pytest.mark.slow
@pytest.mark.usefixtures("_few_rows")
def test_parts_can_be_asked_for_alone(tmp_path: Path) -> None:
    done = run("linear", "--parts", "growth", "--rounds", "2", "--json", "--out", str(tmp_path / "b.json"))
    record = json.loads(done.stdout)
    assert {row["part"] for row in record["epochs"]} == {"growth, dense", "growth, sparse"}
    assert record["reached"] == []


def row(part: str, subject: str, seconds: float) -> dict[str, Any]:
    return {"part": part, "subject": subject, "seconds": seconds, "low": seconds - 0.001, "high": seconds + 0.001}


def test_times_of_others_stand_beside_ours_as_ratios() -> None:
    names = {"stream": 0.01, "uint8, q = s": 0.05, "SGDClassifier, log_loss": 2.0, "torch, q = s": 0.7}
    epochs = [row("images", name, seconds) for name, seconds in names.items()]
    epochs += [row("sparse, 2 classes", "hinge, q = s", 0.004), row("sparse, 2 classes", "SGDClassifier, hinge", 0.006)]
    images, sparse = linear_bench_tables({"epochs": epochs, "reached": [], "target": 8}).values()
    assert list(images[1].values()) == ["uint8, q = s", "50.0 ± 1.0", "5.0", "40.0x", "14.0x"]
    assert sparse == [
        {
            "classes": "2",
            "loss": "hinge",
            "q": "s",
            "ms an epoch": "4.0 ± 1.0",
            "SGDClassifier, ms": "6.0 ± 1.0",
            "its time": "1.50x",
        }
    ]


@pytest.mark.slow
def test_a_budget_that_does_not_reach_the_error_is_shown_as_such() -> None:
    found = linear_epoch.time_to_error(IMAGES, IMAGES, target=0.0)
    assert not any(reached.reached for reached in found)
    record = {"epochs": [], "target": 0, "reached": [vars(reached) for reached in found]}
    (rows,) = linear_bench_tables(record).values()
    assert all(line["test error, %"].endswith("(not reached)") for line in rows)
