"""`osgd reproduce --list`, the values of its options, and the pictures that it writes."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ordered_sgd.lab.cli import reproduce, reproduce_list
from ordered_sgd.lab.report import pictures


@pytest.fixture(autouse=True)
def _speed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproduce_list, "_speed", lambda: 1e10)


def listed(*arguments: str) -> Result:
    done = CliRunner().invoke(reproduce.command, [*arguments, "--list"])
    assert done.exit_code == 0, (done.output, done.exception)
    return done


def test_the_list_of_everything_is_filtered_by_rows() -> None:
    rows = json.loads(listed("--rows", "semeion-svm,mnist-l*", "--json").stdout)
    assert {row["row"] for row in rows} >= {"semeion-svm", "mnist-logistic", "mnist-lenet"}
    assert all(row["row"] == "semeion-svm" or row["row"].startswith("mnist-l") for row in rows)
    assert len({row["exhibit"] for row in rows}) > 1


def test_the_list_of_everything_says_where_figure_2_is() -> None:
    assert listed("--all").stderr == "note: Figure 2 needs no training: osgd gamma --figure2\n"
    assert listed("--rows", "semeion-svm").stderr == ""


def test_times_have_units_for_people_and_are_hours_for_machines() -> None:
    (row,) = json.loads(listed("table1", "--rows", "semeion-svm", "--json").stdout)
    assert isinstance(row["hours"], float)
    text = listed("table1", "--rows", "semeion-svm").stdout
    assert f"│ {reproduce_list._duration(row['hours'])} │" in text
    assert "hours" not in text


@pytest.mark.parametrize(
    ("hours", "text"),
    [(0.003383, "12 s"), (0.0582, "3.5 min"), (0.25, "15 min"), (1.5, "1.5 h"), (30.4, "30 h"), (2.023e4, "843 days")],
)
def test_a_duration_is_in_the_unit_that_fits(hours: float, text: str) -> None:
    assert reproduce_list._duration(hours) == text


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("ON", True), ("yes", True), ("1", True), ("False", False), ("off", False), ("no", False)],
)
def test_a_switch_is_turned_by_usual_words(text: str, value: bool) -> None:
    assert reproduce._turned([f"hidden-rule={text}", "lenet_hidden=100", "lenet_dropout=0.25", "hinge=mean"]) == {
        "hidden_rule": value,
        "lenet_hidden": 100,
        "lenet_dropout": 0.25,
        "hinge": "mean",
    }


def test_rows_that_a_size_leaves_whole_are_named() -> None:
    some = ("table1", "--rows", "semeion-svm,semeion-lenet-aug")
    assert listed(*some, "--epochs", "100").stderr == (
        "note: --epochs 100 leaves rows whole that have fewer: semeion-svm\n"
    )
    assert listed(*some, "--epochs", "50", "--train-size", "1000").stderr == ""


def test_rows_of_more_than_a_year_are_hidden_and_counted_unless_they_are_asked_for() -> None:
    some, every = listed("--json"), listed("--json", "--all")
    shown, rows = json.loads(some.stdout), json.loads(every.stdout)
    assert [row for row in rows if row["hours"] <= 365 * 24] == shown
    hidden = len(rows) - len(shown)
    assert hidden > 1
    assert f"note: {hidden} rows take more than a year and are hidden; add --all.\n" in some.stderr
    assert every.stderr == ""
    (named,) = {row["row"] for row in rows if row not in shown and row["exhibit"] == "figure8"} or {None}
    if named is not None:
        assert json.loads(listed("--rows", named, "--json").stdout)


def test_a_list_of_hidden_rows_alone_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproduce_list, "_speed", lambda: 1.0)
    done = listed("table1")
    assert done.stdout == ""
    assert "rows take more than a year and are hidden; add --all." in done.stderr
    assert json.loads(listed("table1", "--json").stdout) == []


def test_the_speed_counts_processor_time_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the real one
    monkeypatch.setattr(time, "perf_counter", lambda: pytest.fail("a busy machine would look slow"))
    assert reproduce_list._speed() > 1e6


SMALL = ("--trials", "1", "--epochs", "2", "--workers", "1", "--quiet")


@pytest.fixture
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORDERED_SGD_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def written(*arguments: str) -> tuple[list[str], Result]:
    """The names of the files that a small run writes, and the run."""
    done = CliRunner().invoke(reproduce.command, [*arguments, *SMALL])
    assert done.exit_code == 0, (done.output, done.exception)
    return sorted(path.name for path in Path().glob("*.*")), done


@pytest.mark.usefixtures("_elsewhere")
def test_figure_1_is_written_to_files_and_says_where() -> None:
    names, done = written("figure1", "--rows", "figure1a")
    assert names == [
        f"figure1-{picture}{suffix}"
        for picture in ("decision-boundaries-seed-0", "learning-curves")
        for suffix in (".png", ".svg")
    ]
    assert all(f"written: {name}\n" in done.stderr for name in names)
    assert Path(names[0]).read_bytes().startswith(b"\x89PNG")
    again, _ = written("figure1", "--rows", "figure1a", "--out", "new/mine.png")
    assert again == names  # the others are in the folder that was named
    assert len(list(Path("new").glob("mine-*.svg"))) == 2


@pytest.mark.usefixtures("_elsewhere")
def test_a_picture_that_cannot_be_drawn_does_not_cost_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: Any) -> None:
        raise ValueError("no room for the axes")

    monkeypatch.setattr(pictures, "draw_panels", broken)
    names, done = written("figure1", "--rows", "figure1a")
    assert names == ["figure1.png", "figure1.svg"]
    reason = "Could not make the picture “Learning curves”: ValueError: no room for the axes."
    assert f"note: {reason}\n" in done.stderr
    assert "figure1a: " in done.stdout


@pytest.mark.usefixtures("_elsewhere")
def test_a_folder_that_cannot_be_written_is_refused_before_training() -> None:
    done = CliRunner().invoke(reproduce.command, ["figure1", *SMALL, "--out", "/proc/nothing/here"])
    assert "--out must be a file that can be written" in str(done.exception)
    assert not Path("home").exists()
