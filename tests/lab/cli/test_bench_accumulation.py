"""`osgd bench accumulation` and the page that its record fills."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ordered_sgd.errors import ArgumentError
from ordered_sgd.lab.cli.bench import command
from ordered_sgd.lab.report.accumulation_bench import accumulation_bench_page, accumulation_bench_tables


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments)


def row(way: str, q: float | None, **given: Any) -> dict[str, Any]:
    fixed = {"model": "causal", "parts": 8, "s": 4, "way": way, "q": q, "seconds": 1.0, "low": 0.98, "high": 1.02}
    ratios = {"ratio": 0.5, "ratio_low": 0.49, "ratio_high": 0.53, "rounds": 7, "ran": "", "why": None, "error": None}
    return fixed | ratios | given


def record_of(*rows: dict[str, Any]) -> dict[str, Any]:
    machine = {"processor": "x", "cores": 2, "torch": "2.13"}
    return {"machine": machine, "parts": 8, "s": 4, "q": [0.5], "threads": 1, "rounds": 7, "accumulation": rows}


ROWS = (row("plain", None, ratio=1.0), row("whole", 0.5, ratio=1.2), row("regrouped", 0.5, error=3e-7))


def test_a_small_measurement_writes_a_table_and_a_record_that_makes_the_page(tmp_path: Path) -> None:
    out, page = tmp_path / "new" / "b.json", tmp_path / "page.md"
    small = ("--models", "logistic,mlp", "--parts", "2", "--s", "4", "--q", "0.5,0.5", "--rounds", "2")
    done = run("accumulation", *small, "--out", str(out))
    assert done.exit_code == 0, done.output
    assert "Step on 2 micro-batches of 4: time relative to plain accumulation" in done.stdout
    record = json.loads(out.read_text())
    assert record["q"] == [0.5]
    assert [(row["model"], row["way"]) for row in record["accumulation"]] == [
        (model, way) for model in ("logistic", "mlp") for way in ("plain", "whole", "regrouped")
    ]
    page.write_text("Before\n<!-- bench-accumulation -->\nold\n<!-- /bench-accumulation -->\nAfter\n")
    assert run("page", str(out), str(page)).exit_code == 0
    text = page.read_text()
    assert "old" not in text
    assert "| regrouped | " in text
    assert text == accumulation_bench_page(text, record)


def test_the_table_shows_ratios_and_the_largest_error() -> None:
    ((whole, regrouped),) = accumulation_bench_tables(record_of(*ROWS)).values()
    assert whole == {
        "model": "causal",
        "plain, ms": "1,000 ± 20",
        "kept samples": "whole",
        "q = 0.5": "1.20 ± 0.02",
        "gradients differ by at most": "",
    }
    assert (regrouped["q = 0.5"], regrouped["gradients differ by at most"]) == ("0.50 ± 0.02", "3e-07")


def test_the_table_says_why_a_model_was_not_regrouped() -> None:
    ((_, regrouped),) = accumulation_bench_tables(record_of(*ROWS[:2], row("regrouped", 0.5, why="coupled"))).values()
    assert regrouped["kept samples"] == "regrouped (coupled)"


def test_an_unknown_model_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    error = run("accumulation", "--models", "casual", "--out", str(tmp_path / "b.json")).exception
    assert isinstance(error, ArgumentError)
    assert "--models must be one of lenet," in str(error)
    assert "Did you mean 'causal'?" in str(error)


def test_the_page_holds_the_note_of_its_record() -> None:
    page = accumulation_bench_page("<!-- bench-accumulation --><!-- /bench-accumulation -->", record_of(*ROWS))
    assert "x, 1 thread, torch 2.13; medians of 7 rounds" in page
    noted = accumulation_bench_page(page, record_of(*ROWS) | {"note": "A busy machine."})
    assert "A busy machine." in noted


@pytest.mark.parametrize("given", [("--parts", "1"), ("--rounds", "1"), ("--q", "2")])
def test_what_cannot_be_measured_is_a_wrong_command(given: tuple[str, str]) -> None:
    assert run("accumulation", *given).exit_code != 0
