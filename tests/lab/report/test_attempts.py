"""A picture or a table that cannot be made costs nothing but itself, and the page says which and why."""

from collections.abc import Callable
from typing import Any

import pytest

from ordered_sgd.errors import MissingExtraError
from ordered_sgd.lab.data import load
from ordered_sgd.lab.experiments.comparison import Arm
from ordered_sgd.lab.experiments.requests import Request
from ordered_sgd.lab.experiments.spec import ExperimentSpec
from ordered_sgd.lab.report import page, pictures, sections
from ordered_sgd.lab.report.attempts import Attempts
from ordered_sgd.lab.report.canvas import new_figure
from ordered_sgd.lab.report.page import Section, compare_page, report_page
from ordered_sgd.lab.report.summary import ERRORS, shown, summary
from tests.lab.experiments.runs import made_arm, made_run


def made(specs: Any) -> Any:
    return [made_run(spec, [20.0] * (spec.epochs - 1) + [10.0 + spec.seed]) for spec in specs]


def broken(*given: Any, **options: Any) -> Any:
    raise ValueError("no room for the axes")


def unfinished_formula() -> Any:
    """A figure that is drawn, and fails when it is written."""
    figure, axes = new_figure(1)
    axes[0].set_title(r"$\frac{1$")
    return figure


REQUESTS = [
    {"command": "reproduce", **Request("table1", ("semeion-logistic",), trials=2).to_dict()},
    {"command": "reproduce", **Request("figure1", ("figure1a",), trials=2).to_dict()},
]
PARTS = {  # what is broken -> the section that misses it, and what it says
    "table": ("Table 1", "Could not make the table: ValueError: no room for the axes."),
    "found": ("Table 1", "Could not make the sentences: ValueError: no room for the axes."),
    "overview": ("In short", "Could not make the counts: ValueError: no room for the axes."),
    "draw_gamma": ("Figure 2", "Could not make the picture “n gamma by rank”: ValueError: no room for the axes."),
    "tried": ("Rows that", "Could not make the rows and their settings: ValueError: no room for the axes."),
    "reruns": ("Beside", "Could not make the table: ValueError: no room for the axes."),
    "_reproduced": ("Table 1", "Could not make this section: ValueError: no room for the axes."),
}


@pytest.mark.parametrize("name", PARTS)
def test_a_broken_part_of_a_report_is_named_and_the_rest_is_there(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = sections.sections(REQUESTS, made)
    monkeypatch.setattr(sections, name, broken)
    parts = sections.sections(REQUESTS, made)
    title, sentence = PARTS[name]
    missing = [part for part in parts if part.missing]
    assert any(part.title.startswith(title) and sentence in part.missing for part in missing)
    assert {part.title.partition(":")[0].partition(",")[0] for part in whole} <= {
        part.title.partition(":")[0].partition(",")[0] for part in parts
    }
    text = report_page(parts)
    assert sentence in text
    if name != "_reproduced":
        assert sum(len(part.figures) for part in parts) >= sum(len(part.figures) for part in whole) - 1
        assert "Learning curves" in text
    assert sentence in sections.markdown(parts, "Results") or title == "Figure 2" or title == "In short"


def test_a_broken_picture_of_an_exhibit_leaves_its_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "draw_panels", broken)
    shown = next(part for part in sections.sections(REQUESTS, made) if part.title.startswith("Table 1"))
    assert shown.rows
    assert shown.found
    assert list(shown.missing) == ["Could not make the picture “Learning curves”: ValueError: no room for the axes."]


def test_a_picture_that_fails_when_it_is_written_is_named_too() -> None:
    good, _ = new_figure(1)
    text = report_page([Section("Both", [], [{"q": "4"}], {"good": good, "bad": unfinished_formula()})])
    assert text.count("<figure>") == 1
    assert "Could not make the picture “bad”: ValueError: " in text
    assert ">4<" in text


ARMS: list[Arm] = [made_arm(name, [[20.0, 10.0], [21.0, 9.5]]) for name in ("sgd", "ordered", "random")]


DATA = load("digits")


@pytest.mark.parametrize("draw", [broken, lambda arms: unfinished_formula()])
def test_the_page_of_a_comparison_is_there_without_its_curves(
    draw: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "draw_curves", draw)
    text = compare_page(ARMS, summary(ARMS), ["Found."], ExperimentSpec(), DATA, DATA)
    assert "Could not make the picture “At the given rate”: ValueError: " in text
    assert "Calibration and cost" in text
    assert text.count("<tr>") == 2 * (1 + len(ARMS))


def test_a_table_of_a_comparison_that_cannot_be_made_leaves_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_errors(rows: Any, columns: Any, **options: Any) -> Any:
        return broken() if columns is ERRORS else shown(rows, columns, **options)

    monkeypatch.setattr(page, "shown", no_errors)
    text = compare_page(ARMS, summary(ARMS), ["Found."], ExperimentSpec(), DATA, DATA)
    assert "Could not make the table of errors: ValueError: no room for the axes." in text
    assert text.count("<tr>") == 1 + len(ARMS)


def test_what_the_tracker_saw_may_be_unreadable(monkeypatch: pytest.MonkeyPatch) -> None:
    text = compare_page(ARMS, summary(ARMS), ["Found."], ExperimentSpec(), DATA, DATA, lambda spec, name: b"no archive")
    assert "Could not make what the tracker of samples saw: " in text
    assert text.count("<figure>") == 1


def test_a_package_that_is_missing_is_no_fault_of_a_part() -> None:
    def without_matplotlib() -> Any:
        raise MissingExtraError("matplotlib")

    with pytest.raises(MissingExtraError):
        Attempts()("the picture", without_matplotlib, None)
    with pytest.raises(OSError, match="full"):
        Attempts(raised=(OSError,))("the file", lambda: (_ for _ in ()).throw(OSError("full")), None)


def test_a_section_about_a_file_goes_by_its_name() -> None:
    base = ExperimentSpec(data="/somewhere/far/away/table.csv")
    request = {"command": "compare", "base": base.to_json(), "extra": [], "trials": 1, "tune": False, "samples": "few"}

    def nothing(specs: Any) -> Any:
        raise ValueError("no runs")

    (part,) = sections.sections([request], nothing)
    assert part.title == "Comparison on table.csv, logistic"
