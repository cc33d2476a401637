"""`osgd bench`, by its click commands."""

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ordered_sgd.errors import ArgumentError
from ordered_sgd.installed import how_to_install
from ordered_sgd.lab.bench.step_cost import BenchPlan, StepRow
from ordered_sgd.lab.cli.bench import command, cost_table, speed_table


def cell(row: str, q: int, **given: Any) -> StepRow:
    values = {"speedup": 1.5, "of_limit_a": 0.9, "of_limit_b": 0.8, "saved_bytes": 2**20, "peak_bytes": 30 * 2**20}
    spread = {"low": 0.9, "high": 1.1, "speedup_low": 1.4, "speedup_high": 1.6, "compile_seconds": 0.0}
    fixed = {
        "model": "mlp",
        "threads": 1,
        "s": 64,
        "q": q,
        "row": row,
        "ran": row,
        "why": "",
        "seconds": 1.0,
        "rounds": 2,
    }
    return StepRow(**{**fixed, **spread, **values, **given})


def columns(plan: BenchPlan, tick: Any, known: Any) -> Iterator[list[StepRow]]:
    """Three columns without measuring, the third interrupted."""
    for q in (64, 32):
        if ("mlp", 1, q) in known:
            continue
        tick()
        limit = {"ran": "", "low": None, "high": None, "speedup_low": None, "speedup_high": None, "saved_bytes": None}
        yield [
            cell("sgd", q, speedup=1.0),
            cell("rows", q, compile_seconds=2.0),
            cell("twopass", q, peak_bytes=None),
            cell("auto", q, ran="dense", why="BatchNorm"),
            cell("limit-a", q, **limit),
            cell("limit-b", q, **limit),
        ]
    raise KeyboardInterrupt


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, ["step", *arguments])


@pytest.fixture
def _without_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ordered_sgd.lab.bench.step_cost.measure", columns)


def test_a_small_measurement_writes_a_table_json_and_a_figure(tmp_path: Path) -> None:
    small = ("--models", "logistic", "--s", "8", "--q", "4", "--threads", "1", "--rounds", "2", "--no-probe")
    done = run(*small, "--out", str(tmp_path / "new" / "b"))
    assert done.exit_code == 0, done.output
    assert "logistic, 1 thread: speed-up" in done.stdout
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["b.json", "b.png", "b.svg"]
    document = json.loads((tmp_path / "new" / "b.json").read_text())
    assert {(row["q"], row["rounds"]) for row in document["rows"]} == {(4, 2)}
    assert {row["row"] for row in document["rows"]} >= {"sgd", "dense", "rows", "twopass", "auto", "limit-a"}
    assert "torch" in document["machine"]


def test_sgd_is_measured_beside_the_rows_that_are_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plans = []
    monkeypatch.setattr("ordered_sgd.lab.bench.step_cost.measure", lambda plan, *_: plans.append(plan) or [])
    run("--models", "mlp", "--rows", "rows, selective", "--out", str(tmp_path / "b"))
    assert plans[0].rows == ["sgd", "selective", "rows"]


def test_without_transformers_bert_is_left_out_unless_it_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plans = []
    monkeypatch.setattr("ordered_sgd.lab.bench.step_cost.measure", lambda plan, *_: plans.append(plan) or [])
    monkeypatch.setitem(sys.modules, "transformers", None)
    run("--out", str(tmp_path / "b"))
    assert "lenet" in plans[0].models
    assert "bert" not in plans[0].models
    named = run("--models", "bert")
    assert "transformers must be installed; got no module 'transformers'. Run in " in str(named.exception)
    assert len(plans) == 1


@pytest.mark.usefixtures("_without_measuring")
def test_ctrl_c_keeps_what_was_measured(tmp_path: Path) -> None:
    done = run("--models", "mlp", "--json", "--out", str(tmp_path / "b"))
    assert isinstance(done.exception, SystemExit | KeyboardInterrupt)
    rows = json.loads(done.stdout.split("\nAborted!")[0])
    assert {row["q"] for row in rows} == {64, 32}
    assert all(list(row) == list(rows[0]) for row in rows)
    assert len(json.loads((tmp_path / "b.json").read_text())["rows"]) == len(rows)
    assert (tmp_path / "b.png").exists()


@pytest.mark.usefixtures("_without_measuring")
def test_without_matplotlib_the_numbers_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = run("--models", "mlp", "--out", str(tmp_path / "b"))
    assert how_to_install("lab") in str(done.exception)
    assert "speed-up over SGD" in done.stdout
    assert (tmp_path / "b.json").exists()


def test_the_tables_show_speed_limits_what_ran_and_costs() -> None:
    measuring = columns(BenchPlan(["mlp"]), lambda: None, set())
    rows = [asdict(row) for _ in range(2) for row in next(measuring)]
    speed = {line["step"]: line["q = 32"] for line in speed_table(rows)}
    assert speed == {
        "sgd": "1.00",
        "rows": "1.50±0.10",
        "twopass": "1.50±0.10",
        "auto": "1.50±0.10",
        "limit-a": "1.50",
        "limit-b": "1.50",
        "rows/limit-b": "80%",
        "twopass/limit-a": "90%",
        "auto ran": "dense",
    }
    costs = {line["step"]: line["q = 64"] for line in cost_table(rows)}
    assert costs["sgd"] == "1.00/30"
    assert costs["twopass"] == "1.00/?"
    assert costs["rows compile s"] == "2.0"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--models", "lennet"), "--models must be one of lenet, .*; got 'lennet'. Did you mean 'lenet'?"),
        (("--rows", "selectiv"), "--rows must be one of sgd, .*; got 'selectiv'. Did you mean 'selective'?"),
        (("--q", "32,65"), "--q must be integers from 1 to s = 64; got 65. Leave"),
        (("--rounds", "1"), "--rounds must be at least 2; got 1. Run: osgd bench step -h"),
        (("--threads", "1,0"), "--threads must be at least 1; got 0. Run"),
        (("--s", "0"), "--s must be at least 1; got 0. Run"),
        (("--device", "nowhere"), "--device must be a device that torch can use here; got 'nowhere'. Install a torch"),
        (("--device", "meta"), "--device must be a device that torch can use here; got 'meta'. Install a torch"),
        (("--device", "cuda:99"), "--device must be a device that torch can use here; got 'cuda:99'. Install a torch"),
    ],
)
def test_a_wrong_call_is_refused_before_anything_is_measured(arguments: tuple[str, ...], text: str) -> None:
    done = run(*arguments)
    assert isinstance(done.exception, ArgumentError)
    assert str(done.exception).startswith("osgd bench: ")
    head, _, tail = text.partition(".*")
    assert head in str(done.exception)
    assert tail in str(done.exception)


def test_the_errors_of_gradients_are_shown_and_recorded(tmp_path: Path) -> None:
    few = ("--models", "logistic", "--rows", "dense,twopass", "--s", "8", "--q", "4", "--threads", "1", "--rounds", "2")
    done = run(*few, "--no-probe", "--device", "cpu", "--out", str(tmp_path / "b"))
    assert done.exit_code == 0, done.output
    title = "logistic: largest error of the gradient, relative to autograd's for the whole batch"
    assert title in " ".join(done.output.split())
    record = json.loads((tmp_path / "b.json").read_text())
    errors = {row["row"]: row["error"] for row in record["rows"]}
    assert errors.pop("dense") < 1e-5
    assert errors.pop("twopass") < 1e-5
    assert set(errors.values()) == {None}
    assert "device" not in record["machine"]


@pytest.mark.usefixtures("_without_measuring")
def test_the_files_are_named_without_the_suffix_that_was_given(tmp_path: Path) -> None:
    run("--models", "mlp", "--threads", "1", "--json", "--out", str(tmp_path / "b.json"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.json", "b.png", "b.svg"]


@pytest.mark.usefixtures("_without_measuring")
def test_a_second_run_measures_only_what_the_first_did_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = ("--models", "mlp", "--threads", "1", "--out", str(tmp_path / "b"))
    run(*out)
    document = tmp_path / "b.json"
    first = json.loads(document.read_text())
    first["rows"] = [{**row, "speedup": 7.0} for row in first["rows"] if row["q"] == 64]
    document.write_text(json.dumps(first))
    run(*out, "--resume")
    speeds = {row["q"]: row["speedup"] for row in json.loads(document.read_text())["rows"] if row["row"] == "rows"}
    assert speeds == {64: 7.0, 32: 1.5}


@pytest.mark.usefixtures("_without_measuring")
def test_a_run_of_another_machine_or_batch_size_is_not_continued(tmp_path: Path) -> None:
    out = ("--models", "mlp", "--threads", "1", "--out", str(tmp_path / "b"))
    run(*out)
    text = (tmp_path / "b.json").read_text()
    assert "others in" in str(run(*out, "--resume", "--s", "32", "--q", "8").exception)
    (tmp_path / "b.json").write_text(text.replace('"torch": "', '"torch": "0.'))
    assert "continue with the same s, machine and versions" in str(run(*out, "--resume").exception)
    (tmp_path / "b.json").write_text('{"rows": []}')
    assert "must be a record of osgd bench step" in str(run(*out, "--resume").exception)


@pytest.mark.usefixtures("_without_measuring")
def test_a_page_gets_the_tables_and_the_chart_of_a_record(tmp_path: Path) -> None:
    run("--models", "mlp", "--threads", "1", "--out", str(tmp_path / "b"))
    page = tmp_path / "page.md"
    page.write_text("Before.\n<!-- bench-step -->\nold\n<!-- /bench-step -->\nAfter.\n")
    for _ in range(2):  # and again: what is there is replaced
        done = CliRunner().invoke(command, ["page", str(tmp_path / "b.json"), str(page)])
        assert done.exit_code == 0, done.output
    text = page.read_text()
    assert text.startswith("Before.\n<!-- bench-step -->\n\n")
    assert text.endswith("<!-- /bench-step -->\nAfter.\n")
    assert "| mlp | rows | 1.50 | 1.50 |" in text
    assert "| mlp | twopass | s/2 | 1.00 | ? | 0.0 |" in text
    assert "medians of 2 rounds" in text
    assert "old" not in text
    assert (tmp_path / "page.svg").exists()


def test_a_page_without_the_marks_is_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Nothing here.\n")
    record = tmp_path / "b.json"
    machine = {"processor": "x", "cores": 2, "torch": "2"}
    record.write_text(json.dumps({"machine": machine, "rows": [asdict(cell("rows", 64))]}))
    done = CliRunner().invoke(command, ["page", str(record), str(page)])
    assert "the page must hold <!-- bench-step -->" in str(done.exception)
    assert page.read_text() == "Nothing here.\n"
