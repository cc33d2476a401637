"""`osgd bench head` and the page that its record fills."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ordered_sgd.errors import ArgumentError
from ordered_sgd.lab.bench import gpt_cost, head_cost
from ordered_sgd.lab.cli.bench import command
from ordered_sgd.lab.report.head_bench import head_bench_page, head_bench_tables

SMALL = ("--widths", "8", "--tokens", "16", "--q", "1,0.25", "--rounds", "2", "--no-probe")


@pytest.fixture(autouse=True)
def _small_gpt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpt_cost, "GPT", gpt_cost.GptShape(layers=1, width=8, heads=2, words=50, s=2, length=6))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments)


def interrupted_at(number: int) -> Callable[..., Any]:
    """`measure_head` that raises KeyboardInterrupt instead of measuring its n-th shape."""
    measure, calls = head_cost.measure_head, []

    def measured(*given: Any, **how: Any) -> Any:
        calls.append(given)
        if len(calls) == number:
            raise KeyboardInterrupt
        return measure(*given, **how)

    return measured


def row(way: str, q: float | None, **given: Any) -> dict[str, Any]:
    fixed = {"tokens": 512, "width": 256, "words": 8192, "way": way, "q": q, "seconds": 0.2, "low": 0.19, "high": 0.21}
    ratios = {"ratio": 0.5, "ratio_low": 0.49, "ratio_high": 0.53, "rounds": 7, "peak_bytes": 2**20, "error": None}
    return fixed | ratios | given


def record_of(*heads: dict[str, Any]) -> dict[str, Any]:
    machine = {"processor": "x", "cores": 2, "torch": "2.13"}
    settings = {"tokens": 512, "q": [1.0, 0.25], "threads": 1, "rounds": 7, "keep_freed": False}
    return {"machine": machine, **settings, "heads": heads, "steps": []}


HEADS = (
    row("plain", None, ratio=1.0, peak_bytes=9 * 2**20),
    row("torch", None, ratio=0.8),
    row("one-liner", 1.0, ratio=1.1, peak_bytes=8 * 2**20),
    row("one-liner", 0.25, ratio=0.9, peak_bytes=9 * 2**20),
    row("ordered", 1.0, error=1e-6),
    row("ordered", 0.25, error=3e-7),
)


def test_a_small_measurement_writes_a_table_and_a_record_that_makes_the_page(tmp_path: Path) -> None:
    out, page = tmp_path / "new" / "b.json", tmp_path / "page.md"
    done = run("head", *SMALL, "--words", "40,60", "--out", str(out))
    assert done.exit_code == 0, done.output
    assert "Head and loss, forward and backward of 16 tokens: time relative to plain" in done.stdout
    assert "1 layers, width 8 and 50 words" in " ".join(done.stdout.split())  # titles are wrapped
    assert [path.name for path in out.parent.iterdir()] == ["b.json"]
    record = json.loads(out.read_text())
    assert list(dict.fromkeys(row["words"] for row in record["heads"])) == [40, 60]
    assert [row["way"] for row in record["steps"]] == ["plain", *2 * ["one-liner"], *2 * ["ordered"]]
    assert record["q"] == [1.0, 0.25]
    page.write_text("Before\n<!-- bench-head -->\nold\n<!-- /bench-head -->\nAfter\n")
    assert run("page", str(out), str(page)).exit_code == 0
    text = page.read_text()
    assert "old" not in text
    assert "| ordered | " in text
    assert "| 40 | 8 | " in text
    assert text == head_bench_page(text, record)


def test_ctrl_c_keeps_the_record_and_resume_measures_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = ("head", *SMALL, "--words", "40,60", "--json", "--out", str(tmp_path / "b.json"))
    with monkeypatch.context() as patch:
        patch.setattr(head_cost, "measure_head", interrupted_at(2))
        done = run(*out)
    assert isinstance(done.exception, SystemExit | KeyboardInterrupt)
    first = json.loads((tmp_path / "b.json").read_text())
    assert json.loads(done.stdout.split("\nAborted!")[0]) == first
    assert {row["words"] for row in first["heads"]} == {40}
    assert first["steps"] == []
    assert run(*out, "--resume").exit_code == 0
    whole = json.loads((tmp_path / "b.json").read_text())
    assert whole["heads"][: len(first["heads"])] == first["heads"]
    assert {row["words"] for row in whole["heads"]} == {40, 60}
    monkeypatch.setattr(head_cost, "measure_head", interrupted_at(1))
    assert run(*out, "--resume").exit_code == 0  # nothing is left to measure
    assert json.loads((tmp_path / "b.json").read_text()) == whole


@pytest.mark.parametrize("other", [("--tokens", "8"), ("--q", "1"), ("--rounds", "3"), ("--no-keep-freed",)])
def test_a_record_of_other_settings_is_not_continued(other: tuple[str, ...], tmp_path: Path) -> None:
    out = ("head", *SMALL, "--words", "40", "--no-step", "--out", str(tmp_path / "b.json"))
    assert run(*out).exit_code == 0
    text = (tmp_path / "b.json").read_text()
    error = run(*out, *other, "--resume").exception
    assert isinstance(error, ArgumentError)
    assert "--resume must continue with the same tokens, q, threads, rounds, --keep-freed, machine" in str(error)
    assert (tmp_path / "b.json").read_text() == text


def test_a_record_of_another_command_is_not_continued(tmp_path: Path) -> None:
    (tmp_path / "b.json").write_text('{"machine": {"torch": "2"}, "losses": []}')
    error = run("head", *SMALL, "--resume", "--out", str(tmp_path / "b.json")).exception
    assert isinstance(error, ArgumentError)
    (tmp_path / "b.json").write_text("[]")
    error = run("head", *SMALL, "--resume", "--out", str(tmp_path / "b.json")).exception
    kinds = "step, tokens, sampler, trainers, accumulation, head, losses, distributed, linear"
    assert f"must be a record of osgd bench {kinds}; got something" in str(error)


def test_the_tables_show_ratios_memory_and_the_largest_error() -> None:
    times, memory = head_bench_tables(record_of(*HEADS)).values()
    assert times == [
        {
            "words": "8,192",
            "width": "256",
            "plain, ms": "200.0 ± 10.0",
            "torch": "0.80 ± 0.02",
            "one-liner": "0.90 to 1.10",
            "ordered, q = 1": "0.50 ± 0.02",
            "ordered, q = 0.25": "0.50 ± 0.02",
            "gradients differ by at most": "1e-06",
        }
    ]
    assert list(memory[0].values()) == ["8,192", "256", "9", "1", "8 to 9", "1", "1"]


def test_the_page_says_where_freed_memory_goes() -> None:
    page = "<!-- bench-head --><!-- /bench-head -->"
    assert "Freed memory is left to the C library." in head_bench_page(page, record_of(*HEADS))
    assert "The process keeps freed memory." in head_bench_page(page, record_of(*HEADS) | {"keep_freed": True})


def test_what_was_not_measured_has_no_table() -> None:
    (times,) = head_bench_tables(record_of(*(head | {"peak_bytes": None} for head in HEADS))).values()
    assert len(times) == 1
    unknown = record_of(HEADS[0] | {"peak_bytes": None}, *HEADS[1:])
    assert list(head_bench_tables(unknown).values())[1][0]["plain"] == "?"


def test_a_page_without_the_marks_is_left_alone(tmp_path: Path) -> None:
    record, page = tmp_path / "b.json", tmp_path / "page.md"
    record.write_text(json.dumps(record_of(*HEADS)))
    page.write_text("Nothing here.\n")
    assert "the page must hold <!-- bench-head -->" in str(run("page", str(record), str(page)).exception)
    assert page.read_text() == "Nothing here.\n"
