"""The documentation site is built strictly, from this tree alone, and asks nobody else for anything."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import click
import pytest

import ordered_sgd
from ordered_sgd.lab.cli.main import COMMANDS, osgd

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
pytestmark = pytest.mark.xdist_group("site")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="mkdocs is not installed")
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(out)]
    built = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    )
    assert built.returncode == 0, built.stderr
    return out


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(site)))
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


def test_every_public_name_and_every_command_has_its_place(site: Path) -> None:
    api, commands = (site / "api.html").read_text(), (site / "commands.html").read_text()
    assert [name for name in ordered_sgd._DOOR if f'id="ordered_sgd.{ordered_sgd._DOOR[name]}.{name}"' not in api] == []
    assert [name for name in COMMANDS if f'id="osgd-{name}"' not in commands] == []
    assert 'id="osgd-records-export"' in commands
    assert "<code>--protocol" in commands


def test_results_examples_and_readme_are_pages_of_it(site: Path) -> None:
    assert "Table 1: Test errors" in (site / "results.html").read_text()
    examples = (site / "examples.html").read_text()
    assert [p.stem for p in (ROOT / "examples").glob("[0-9]*.py") if f'id="{p.stem}"' not in examples] == []
    assert 'href="when-not.html"' in (site / "index.html").read_text()


def test_no_page_names_a_script_style_or_picture_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        fetched = re.findall(
            r"<(?:script|link|img|iframe|source)[^>]+?(?:src|href)=[\"']?(https?:[^\s\"'>]+)", page.read_text()
        )
        assert fetched == [], page.name


DESK, PHONE = (1280, 900), (400, 800)
FEW = ("index.html", "engines.html", "results.html")  # a table of its own, code, wide tables


@pytest.mark.parametrize(
    ("size", "names"),
    [
        pytest.param(DESK, FEW, id="desk"),
        pytest.param(PHONE, FEW, id="phone"),
        pytest.param(PHONE, None, id="all pages", marks=pytest.mark.slow),  # what fits a phone fits a desk
    ],
)
def test_in_a_browser_it_asks_only_its_own_server_and_fits_the_screen(
    browser: Any, site: Path, address: str, size: tuple[int, int], names: tuple[str, ...] | None
) -> None:
    context = browser.new_context(viewport={"width": size[0], "height": size[1]})
    page, requests = context.new_page(), []
    page.on("request", lambda request: requests.append(request.url))
    for name in names or sorted(path.name for path in site.glob("*.html")):
        page.goto(f"{address}/{name}", wait_until="load")
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), name
        assert page.evaluate("[...document.images].every(i => i.complete && i.naturalWidth > 0)"), name
    context.close()
    assert [url for url in requests if not url.startswith((address, "data:", "blob:"))] == []


def test_search_finds_a_page(browser: Any, address: str) -> None:
    page = browser.new_page()
    page.goto(f"{address}/index.html")
    page.locator("input.md-search__input").click()
    page.keyboard.type("random control")
    page.locator(".md-search-result__item").first.wait_for(timeout=30_000)
    page.close()


def _shown_commands() -> list[tuple[str, str]]:
    """Every line of a code block that calls osgd, and the page it stands on."""
    found = []
    for page in PAGES:
        for language, block in re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), flags=re.MULTILINE | re.DOTALL):
            if language in ("", "sh"):
                found += [(page.name, line) for line in block.splitlines() if line.startswith("osgd ")]
    return found


def test_commands_are_found_on_the_pages_that_show_them() -> None:
    assert {"README.md", "start.md", "evidence.md"} <= {page for page, _ in _shown_commands()}


@pytest.mark.parametrize(("page", "line"), _shown_commands())
def test_commands_that_a_page_shows_exist_with_these_options(page: str, line: str) -> None:
    words = shlex.split(line, comments=True)[1:]
    command: click.Command = osgd
    while isinstance(command, click.Group):
        following = command.get_command(click.Context(command), words.pop(0))
        assert following is not None, line
        command = following
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    assert {word for word in words if word.startswith("-")} <= known | {"-h", "--help"}
