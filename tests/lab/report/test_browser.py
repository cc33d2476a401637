"""The pages in a real browser, without a network: at a desk, on a phone, in the dark and on paper."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from ordered_sgd.lab.cli.advise import command as advise
from ordered_sgd.lab.cli.compare import command as compare
from ordered_sgd.lab.cli.report import command as report
from ordered_sgd.lab.cli.reproduce import command as reproduce

pytestmark = pytest.mark.xdist_group("browser")  # the pages are made once

DESK = {"viewport": {"width": 1280, "height": 800}}
PHONE = {"viewport": {"width": 375, "height": 812}, "is_mobile": True, "device_scale_factor": 2}
DARK = {**DESK, "color_scheme": "dark"}
PAPER = {"viewport": {"width": 718, "height": 1047}}  # A4 less margins of a centimetre, 96 pixels an inch
SCREENS = {"desk": DESK, "phone": PHONE, "dark": DARK}
SMALL = ("--trials", "2", "--epochs", "2", "--workers", "1", "--quiet")

RECORDS = Path(__file__).parents[3] / "docs" / "records" / "results.csv.gz"
every_page = pytest.mark.parametrize(
    "name", ["compare", "report", "advice", pytest.param("results", marks=pytest.mark.slow)]
)
every_screen = pytest.mark.parametrize(
    "screen", [pytest.param(name, marks=[pytest.mark.slow] if name == "dark" else []) for name in SCREENS]
)

# Every element that holds words itself; how large they are, their colour, and the colour behind them.
WORDS = """() => [...document.body.querySelectorAll("*")]
  .filter(e => !e.closest("svg") && [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()))
  .map(e => {
    let behind = e;
    while (behind && getComputedStyle(behind).backgroundColor === "rgba(0, 0, 0, 0)") behind = behind.parentElement;
    const style = getComputedStyle(e), paper = behind ? getComputedStyle(behind).backgroundColor : "rgb(255, 255, 255)";
    return { tag: e.tagName, text: e.textContent.trim().slice(0, 40), size: parseFloat(style.fontSize),
             ink: style.color, paper };
  })"""

# Every element that reaches beyond the width of the page and is not inside a box that scrolls.
BEYOND = """() => [...document.body.querySelectorAll("*")]
  .filter(e => e.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
  .filter(e => { for (let box = e.parentElement; box; box = box.parentElement)
                   if (["auto", "scroll"].includes(getComputedStyle(box).overflowX)) return false;
                 return true; })
  .map(e => e.tagName + " " + e.textContent.trim().slice(0, 40))"""

# Boxes that hide a part of what they hold until they are scrolled.
CUT = """() => [...document.querySelectorAll("body, body *")]
  .filter(e => !e.closest("svg") && e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 0)
  .map(e => e.tagName + " " + e.className)"""

# Figures: their size, what is behind them, and how high the words in them are that are written lowest.
FIGURES = """() => [...document.querySelectorAll("figure")].map(f => {
  const box = f.querySelector(":scope > svg")?.getBoundingClientRect();
  const lines = [...f.querySelectorAll("g[id^=text_]")].map(g => g.getBoundingClientRect());
  return { width: box?.width ?? 0, height: box?.height ?? 0, paper: getComputedStyle(f).backgroundColor,
           letters: Math.min(...lines.map(l => Math.min(l.width, l.height))) };
})"""

# Tables: the width of their box, of all columns, and of the first one; where that stands when the box is scrolled.
TABLES = """() => [...document.querySelectorAll(".wide")].map(box => {
  const first = box.querySelector("td"), before = first.getBoundingClientRect(), whole = box.scrollWidth;
  box.scrollLeft = whole;
  const moved = box.scrollLeft, after = first.getBoundingClientRect().left;
  box.scrollLeft = 0;
  return { box: box.clientWidth, whole, first: before.width, moved, stays: Math.abs(after - before.left) < 1 };
})"""

WIDTHS = "() => [document.documentElement.scrollWidth, document.documentElement.clientWidth]"


@pytest.fixture(scope="module")
def folder(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pages of a comparison and of a report on several, from runs that were really made; names are long on purpose."""
    folder = tmp_path_factory.mktemp("a-folder-whose-name-is-longer-than-a-phone-is-wide")
    rng = np.random.default_rng(0)
    lines = [f"{'cat' if i % 3 else 'dog'},{(i % 3 > 0) + rng.normal():.3f},{rng.normal():.3f}" for i in range(120)]
    (folder / "pets.csv").write_text("\n".join(["kind,height,weight", *lines]))
    own = ("--data", "pets.csv", "--target", "kind", "--s", "16", "--q", "8", "--adam")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ORDERED_SGD_HOME", str(folder / "home"))
        patch.setenv("ORDERED_SGD_DATA", str(folder / "empty"))
        patch.chdir(folder)
        assert call(reproduce, "figure1", "--rows", "figure1a,figure1b", *SMALL).exit_code == 0
        assert call(compare, *own, *SMALL).exit_code == 0
        assert call(reproduce, "table1", "--rows", "mnist-logistic", *SMALL).exit_code == 1  # no data: not finished
        assert call(advise, "--data", "digits", "--minutes", "0.02", "--quiet").exit_code == 0
        (folder / "sections.json").write_text(call(report, "--json").stdout)
    return folder


def made(folder: Path, name: str) -> Path:
    """The page of that name; the big one, of all that RESULTS.md shows, is made when it is first asked for."""
    path = folder / f"{name}.html"
    if name == "results" and not path.exists():
        assert call(report, "--from", str(RECORDS), "--out", str(path)).exit_code == 0
    return path


def call(command: Any, *arguments: str) -> Result:
    return CliRunner().invoke(command, arguments)


@dataclass
class Visit:
    """A page that is open, what it asked the network for, and what the browser complained about."""

    page: Any
    asked: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


@contextmanager
def visit(browser: Any, path: Path, screen: dict[str, Any], *, media: str = "screen") -> Iterator[Visit]:
    """The page on that screen; whatever else it asks for is refused and noted."""
    context = browser.new_context(**screen)
    seen = Visit(context.new_page())

    def answer(route: Any) -> None:
        if route.request.url == path.as_uri():
            route.continue_()
            return
        seen.asked.append(route.request.url)
        route.abort()

    context.route("**/*", answer)
    seen.page.on("console", lambda line: seen.complaints.append(line.text))
    seen.page.on("pageerror", lambda error: seen.complaints.append(str(error)))
    seen.page.emulate_media(media=media, color_scheme=screen.get("color_scheme", "light"))
    seen.page.goto(path.as_uri(), wait_until="load")
    yield seen
    context.close()


Look = Callable[[str, str], dict[str, Any]]


@pytest.fixture(scope="module")
def look(browser: Any, folder: Path) -> Look:
    """What is to be seen of a page on a screen; each is opened once."""

    @cache
    def looked(name: str, screen: str) -> dict[str, Any]:
        with visit(browser, made(folder, name), SCREENS[screen]) as seen:
            scripts = {"words": WORDS, "beyond": BEYOND, "figures": FIGURES, "widths": WIDTHS, "tables": TABLES}
            return {what: seen.page.evaluate(script) for what, script in scripts.items()}

    return looked


def contrast(ink: str, paper: str) -> float:
    """Ratio of luminances by the rule of the web's accessibility guidelines, 1 to 21."""
    bright, dark = sorted((luminance(ink), luminance(paper)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_contrast_is_that_of_the_guidelines() -> None:
    assert contrast("rgb(0, 0, 0)", "rgb(255, 255, 255)") == pytest.approx(21)
    assert contrast("rgb(118, 118, 118)", "rgb(255, 255, 255)") == pytest.approx(4.54, abs=0.01)  # WebAIM's example


@every_page
def test_a_page_asks_for_nothing_and_nothing_goes_wrong(browser: Any, folder: Path, name: str) -> None:
    with visit(browser, made(folder, name), DESK) as seen:
        seen.page.wait_for_load_state("networkidle")
    assert seen.asked == []
    assert seen.complaints == []


def test_every_section_and_every_figure_is_there(browser: Any, folder: Path) -> None:
    titles = [part["section"] for part in json.loads((folder / "sections.json").read_text())]
    with visit(browser, folder / "report.html", DESK) as seen:
        shown = seen.page.locator("section > h2").all_inner_texts()
        found = seen.page.locator(".found").all_inner_texts()
        headings = seen.page.locator("section > h3").count()
        figures = seen.page.locator("section > figure > svg").count()
    assert shown == titles
    assert len(shown) >= 3
    assert "Not finished" in "".join(found)
    assert "" not in found
    assert figures == headings >= 3


@every_page
@every_screen
def test_words_are_large_enough_and_stand_out(look: Look, name: str, screen: str) -> None:
    words = look(name, screen)["words"]
    assert {"H1", "H2", "P", "TD"} <= {word["tag"] for word in words}
    assert [word for word in words if word["size"] < 14] == []
    assert [word for word in words if contrast(word["ink"], word["paper"]) < 4.5] == []
    assert (luminance(words[0]["paper"]) < 0.2) == (screen == "dark")


@every_page
@every_screen
def test_only_boxes_scroll_sideways(look: Look, name: str, screen: str) -> None:
    inside, outside = look(name, screen)["widths"]
    assert inside <= outside == SCREENS[screen]["viewport"]["width"]
    assert look(name, screen)["beyond"] == []


@every_page
@every_screen
def test_wide_tables_scroll_in_their_box_beside_a_first_column_that_leaves_them_room(
    look: Look, name: str, screen: str
) -> None:
    tables = look(name, screen)["tables"]
    assert tables
    for table in tables:
        assert table["moved"] == pytest.approx(table["whole"] - table["box"], abs=1)
        assert table["stays"]
        assert table["first"] <= table["box"] / 2
    if screen == "phone":
        assert any(table["moved"] > 100 for table in tables)


@every_page
@every_screen
def test_figures_are_legible(look: Look, name: str, screen: str) -> None:
    figures = look(name, screen)["figures"]
    assert figures
    for figure in figures:
        assert figure["width"] > 300
        assert figure["height"] > 150
        assert figure["letters"] > 4  # pixels: a "q" by itself is the smallest
        assert figure["paper"] == "rgb(255, 255, 255)"  # they are drawn in black, in the dark as well


@every_page
@pytest.mark.parametrize("scheme", [pytest.param("light", marks=pytest.mark.slow), "dark"])
def test_on_paper_nothing_is_cut_off_or_dark(browser: Any, folder: Path, name: str, scheme: str) -> None:
    screen = PAPER | {"color_scheme": scheme}
    with visit(browser, made(folder, name), screen, media="print") as seen:
        assert seen.page.evaluate(BEYOND) == []
        assert seen.page.evaluate(CUT) == []
        words = seen.page.evaluate(WORDS)
    assert words[0]["paper"] == "rgb(255, 255, 255)"
    assert [word for word in words if contrast(word["ink"], "rgb(255, 255, 255)") < 4.5] == []
    assert [word for word in words if contrast(word["ink"], word["paper"]) < 4.5] == []


def test_a_bad_page_is_noticed(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "bad.html"
    path.write_text(
        "<body style='background: #16181c; color: #333; font: 12px serif'><p>faint and small</p>"
        "<div style='width: 3000px'>wide</div><div style='overflow: auto'><table width=2000><td>cut</table></div>"
        "<img src='http://192.0.2.1/picture.png'><figure></figure><script>throw new Error('wrong')</script>"
    )
    with visit(browser, path, DESK) as seen:
        assert [beyond.split()[0] for beyond in seen.page.evaluate(BEYOND)] == ["DIV"]
        assert any(cut.startswith("DIV") for cut in seen.page.evaluate(CUT))
        word = seen.page.evaluate(WORDS)[0]
        assert seen.page.evaluate(FIGURES)[0]["width"] == 0
    assert seen.asked == ["http://192.0.2.1/picture.png"]
    assert "wrong" in "".join(seen.complaints)
    assert word["size"] == 12
    assert contrast(word["ink"], word["paper"]) < 4.5
