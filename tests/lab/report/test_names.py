"""Class names with anything in them come through the terminal, the page and pictures."""

import warnings
from types import SimpleNamespace

import numpy as np
import pytest

from ordered_sgd.diagnostics.tracker import SelectionTracker
from ordered_sgd.lab.cli.options import show
from ordered_sgd.lab.report.canvas import as_svg, drawable
from ordered_sgd.lab.report.data_map import draw_tracker, hardest_sheet, in_words
from ordered_sgd.lab.report.page import render

NAMES = (
    "$x_1$ and $",
    "_hidden",
    "<b>bold</b>",
    "a & b",
    "two\nlines",
    "cat 🐈‍⬛",
    "猫",
    r"\frac{",
    "[red]",
    ":cat:",
    "x" * 500,
)


@pytest.fixture
def tracker() -> SelectionTracker:
    y = np.arange(len(NAMES)).repeat(3)
    found = SelectionTracker(len(y), y=y, classes=NAMES)
    found.update(np.arange(len(y)), np.linspace(0.1, 2, len(y)), rows=np.arange(5, len(y)))
    found.end_epoch()
    return found


def test_pictures_are_drawn_without_a_warning(tracker: SelectionTracker) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert as_svg(draw_tracker(tracker)).startswith("<svg")
        images = np.zeros((len(NAMES), 1, 8, 8), np.uint8)
        assert hardest_sheet(tracker, images, np.arange(len(NAMES)) * 3)[1:4] == b"PNG"


def test_no_name_becomes_a_formula_or_a_second_line() -> None:
    for name in NAMES:
        shown = drawable(name)
        assert shown.replace(r"\$", "").count("$") == 0
        assert "\n" not in shown
        assert len(shown) < 100
    assert drawable("cat 🐈") == "cat [cat]"


def test_sentences_stay_one_line(tracker: SelectionTracker) -> None:
    assert "\n" not in in_words(tracker)
    assert len(in_words(tracker)) < 500


def test_a_page_escapes_them() -> None:
    rows = [{"class": name, **{f"recall of {name}": "1" for name in NAMES}} for name in NAMES]
    part = SimpleNamespace(title="t", found=NAMES, rows=rows, notes=(), figures={}, missing=())
    page = render("report.html", title="t", parts=[part])
    assert "<b>bold" not in page
    assert "&lt;b&gt;bold&lt;/b&gt;" in page
    assert "a &amp; b" in page
    assert "cat 🐈‍⬛" in page


def test_the_terminal_takes_them_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    show([{"class": name, "n": 1} for name in NAMES[:4] + NAMES[5:]], title="[red] :cat:", as_json=False)
    said = capsys.readouterr().out
    for name in (*NAMES[:4], *NAMES[5:]):
        assert name in said
