"""`osgd reproduce --list` and the values of its options; nothing is trained."""

import json

import pytest
from click.testing import CliRunner, Result

from ordered_sgd.lab.cli import reproduce


@pytest.fixture(autouse=True)
def _speed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproduce, "_speed", lambda: 1e10)


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
    assert listed().stderr == "note: Figure 2 needs no training: osgd gamma --figure2\n"
    assert listed("--rows", "semeion-svm").stderr == ""


def test_times_have_units_for_people_and_are_hours_for_machines() -> None:
    (row,) = json.loads(listed("table1", "--rows", "semeion-svm", "--json").stdout)
    assert isinstance(row["hours"], float)
    text = listed("table1", "--rows", "semeion-svm").stdout
    assert f"│ {reproduce._duration(row['hours'])} │" in text
    assert "hours" not in text


@pytest.mark.parametrize(
    ("hours", "text"),
    [(0.003383, "12 s"), (0.0582, "3.5 min"), (0.25, "15 min"), (1.5, "1.5 h"), (30.4, "30 h"), (2.023e4, "843 days")],
)
def test_a_duration_is_in_the_unit_that_fits(hours: float, text: str) -> None:
    assert reproduce._duration(hours) == text


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
