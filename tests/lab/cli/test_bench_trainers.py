"""`osgd bench trainers` and the page that its record fills."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ordered_sgd.errors import ArgumentError, MissingExtraError
from ordered_sgd.lab.bench import trainer_cost, trainer_subjects
from ordered_sgd.lab.bench.trainer_cost import TrainerRow
from ordered_sgd.lab.bench.trainer_inputs import FULL
from ordered_sgd.lab.bench.trainer_subjects import TrainerSubject
from ordered_sgd.lab.cli.bench import command
from ordered_sgd.lab.report.trainers_bench import trainers_bench_page, trainers_bench_tables

MISSING = "x: trl must be installed; got no module 'trl'. Run: pip install \"ordered-sgd[trl]\""


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, ("trainers", *arguments))


def row(trainer: str, q: float | None, **given: Any) -> TrainerRow:
    times = {"seconds": 0.2, "low": 0.19, "high": 0.21, "speedup": 1.5, "speedup_low": 1.4, "speedup_high": 1.6}
    about = {"rounds": 2, "compile_seconds": 3.04, "ran": "" if q is None else "kept", "error": q and 1e-7}
    return TrainerRow(trainer=trainer, title=trainer.title(), q=q, **(times | about | given))


def measure(name: str, qs: tuple[float, ...], **how: Any) -> list[TrainerRow]:
    if name == "none":
        raise MissingExtraError(MISSING)
    return [row(name, None, speedup=1.0), *(row(name, q) for q in qs)]


def interrupted_at(wanted: str) -> Callable[..., list[TrainerRow]]:
    def measured(name: str, qs: tuple[float, ...], **how: Any) -> list[TrainerRow]:
        if name == wanted:
            raise KeyboardInterrupt
        return measure(name, qs, **how)

    return measured


@pytest.fixture(autouse=True)
def _no_trainers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that answer at once, and one whose partner is not installed."""
    qs = {"one": (0.25, 0.125), "none": (0.25,), "two": (0.5,)}
    subjects = {name: TrainerSubject(name.title(), lambda: None, own) for name, own in qs.items()}
    monkeypatch.setattr(trainer_subjects, "SUBJECTS", subjects)
    monkeypatch.setattr(trainer_cost, "measure_trainer", measure)


def test_a_record_makes_tables_and_the_page_and_a_missing_partner_is_left_out(tmp_path: Path) -> None:
    out, page = tmp_path / "new" / "b.json", tmp_path / "page.md"
    done = run("--out", str(out))
    assert done.exit_code == 0, done.output
    assert "Speed of an update relative to the same trainer" in done.stdout
    assert f"left out: none: {MISSING}" in done.stderr
    record = json.loads(out.read_text())
    assert [(row["trainer"], row["q"]) for row in record["trainers"]] == [
        ("one", None),
        ("one", 0.25),
        ("one", 0.125),
        ("two", None),
        ("two", 0.5),
    ]
    assert record["left_out"] == {"none": MISSING}
    page.write_text("Before\n<!-- bench-trainers -->\nold\n<!-- /bench-trainers -->\nAfter\n")
    assert CliRunner().invoke(command, ("page", str(out), str(page))).exit_code == 0
    text = page.read_text()
    assert "old" not in text
    assert f"Not measured: none. {MISSING}" in text
    assert text == trainers_bench_page(text, record)


def test_a_call_whose_partners_are_all_missing_ends_well(tmp_path: Path) -> None:
    done = run("--trainers", "none", "--out", str(tmp_path / "b.json"))
    assert done.exit_code == 0
    assert done.stdout == ""
    assert "left out: none" in done.stderr


def test_q_replaces_the_lists_of_all_trainers(tmp_path: Path) -> None:
    assert run("--q", "0.5,0.1", "--trainers", "two, one,two", "--out", str(tmp_path / "b.json")).exit_code == 0
    record = json.loads((tmp_path / "b.json").read_text())
    assert [row["q"] for row in record["trainers"]] == 2 * [None, 0.5, 0.1]
    assert [row["trainer"] for row in record["trainers"]] == 3 * ["two"] + 3 * ["one"]


def test_ctrl_c_keeps_the_record_and_resume_measures_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = ("--json", "--out", str(tmp_path / "b.json"))
    with monkeypatch.context() as patch:
        patch.setattr(trainer_cost, "measure_trainer", interrupted_at("two"))
        done = run(*out)
    assert isinstance(done.exception, SystemExit | KeyboardInterrupt)
    first = json.loads((tmp_path / "b.json").read_text())
    assert json.loads(done.stdout.split("\nAborted!")[0]) == first
    assert {row["trainer"] for row in first["trainers"]} == {"one"}
    monkeypatch.setattr(trainer_cost, "measure_trainer", interrupted_at("one"))  # is not measured again
    assert run(*out, "--resume").exit_code == 0
    whole = json.loads((tmp_path / "b.json").read_text())
    assert whole["trainers"][: len(first["trainers"])] == first["trainers"]
    assert {row["trainer"] for row in whole["trainers"]} == {"one", "two"}
    assert whole["left_out"] == {"none": MISSING}


@pytest.mark.parametrize("other", [("--q", "1"), ("--rounds", "3"), ("--threads", "2")])
def test_a_record_of_other_settings_is_not_continued(other: tuple[str, ...], tmp_path: Path) -> None:
    out = ("--out", str(tmp_path / "b.json"))
    assert run(*out).exit_code == 0
    text = (tmp_path / "b.json").read_text()
    error = run(*out, *other, "--resume").exception
    assert isinstance(error, ArgumentError)
    assert "--resume must continue with the same q, threads, rounds, machine and versions" in str(error)
    assert (tmp_path / "b.json").read_text() == text


def test_the_tables_show_speeds_the_largest_error_and_what_ran() -> None:
    rows = [row("a", None), row("a", 0.5, error=1e-6, ran="all"), row("a", 0.25), row("a", 0.125)]
    rows += [row("b", None), row("b", 0.25, error=None, compile_seconds=-0.1)]
    record = {"trainers": [vars(one) for one in rows], "left_out": {}}
    speeds, ran = trainers_bench_tables(record).values()
    assert speeds == [
        {
            "trainer": "A",
            "plain, ms": "200.0 ± 10.0",
            "q = 0.5": "1.50 ± 0.10",
            "q = 0.25": "1.50 ± 0.10",
            "q = 0.125": "1.50 ± 0.10",
            "compiling, s": "3.0",
            "gradients differ by at most": "1e-06",
        },
        {
            "trainer": "B",
            "plain, ms": "200.0 ± 10.0",
            "q = 0.5": "",
            "q = 0.25": "1.50 ± 0.10",
            "q = 0.125": "",
            "compiling, s": "0.0",
            "gradients differ by at most": "not finite",
        },
    ]
    assert ran == [
        {"trainer": "A", "q": "0.5", "computed": "all"},
        {"trainer": "A", "q": "0.25, 0.125", "computed": "kept"},
        {"trainer": "B", "q": "0.25", "computed": "kept"},
    ]


def test_the_page_says_what_was_trained() -> None:
    machine = {"processor": "x", "torch": "2.13"}
    record = {"machine": machine, "partners": {"trl": "1.16"}, "threads": 2, "rounds": 5, "sizes": vars(FULL)}
    record |= {"trainers": [vars(row("a", q)) for q in (None, 0.5)], "left_out": {}}
    text = trainers_bench_page("<!-- bench-trainers --><!-- /bench-trainers -->", record)
    assert "x, 2 threads, torch 2.13, trl 1.16; medians of 5 rounds" in text
    assert "a 4 × 256 BERT classifier on 32 texts of 128 tokens" in text
    assert "8 micro-batches of 4 texts" in text
