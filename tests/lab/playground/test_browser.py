"""The playground in a real browser, without a network: at a desk and on a phone."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from ordered_sgd.lab.playground.server import Playground

DESK = {"viewport": {"width": 1280, "height": 900}}
PHONE = {"viewport": {"width": 375, "height": 700}, "is_mobile": True, "has_touch": True, "device_scale_factor": 2}
SCREENS = {"desk": DESK, "phone": PHONE}
pytestmark = pytest.mark.xdist_group("browser")
PATIENCE = 60_000  # milliseconds: a busy machine is no failure
ARMS = ("sgd", "ordered", "random")

PICTURES = """() => Object.fromEntries([...document.querySelectorAll("canvas")]
  .map(c => [c.id || c.parentElement.dataset.arm, c.toDataURL()]))"""
SMALL_WORDS = """() => [...document.body.querySelectorAll("*")]
  .filter(e => [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()) && e.tagName !== "SUB")
  .filter(e => parseFloat(getComputedStyle(e).fontSize) < 14).map(e => e.textContent)"""
WIDTHS = "() => [document.documentElement.scrollWidth, document.documentElement.clientWidth]"


@dataclass
class Visit:
    """A page that is open, what it asked others for, and what the browser complained about."""

    page: Any
    asked: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def pictures(self) -> dict[str, str]:
        shown: dict[str, str] = self.page.evaluate(PICTURES)
        return shown

    def wait(self, selector: str) -> None:
        self.page.wait_for_selector(selector, timeout=PATIENCE, state="attached")

    def changed(self, before: dict[str, str]) -> set[str]:
        return {name for name, picture in self.pictures().items() if picture != before[name]}


@contextmanager
def visit(browser: Any, server: Playground, screen: dict[str, Any]) -> Iterator[Visit]:
    context = browser.new_context(**screen)
    seen = Visit(context.new_page())

    def answer(route: Any) -> None:
        if route.request.url.startswith(server.url):
            route.continue_()
            return
        seen.asked.append(route.request.url)
        route.abort()

    context.route("**/*", answer)
    seen.page.set_default_timeout(PATIENCE)
    seen.page.on("console", lambda line: seen.complaints.append(line.text))
    seen.page.on("pageerror", lambda error: seen.complaints.append(str(error)))
    seen.page.goto(server.url)
    seen.wait("body[data-problem]")
    yield seen
    context.close()
    assert seen.asked == []
    assert seen.complaints == []


@pytest.mark.parametrize("screen", ["desk", pytest.param("phone", marks=pytest.mark.slow)])
def test_sliders_move_and_training_changes_the_pictures(browser: Any, server: Playground, screen: str) -> None:
    with visit(browser, server, SCREENS[screen]) as seen:
        first = seen.pictures()
        assert set(first) == {*ARMS, "mean", "ordered_loss", "gamma"}
        inside, outside = seen.page.evaluate(WIDTHS)
        assert inside <= outside == SCREENS[screen]["viewport"]["width"]
        assert seen.page.evaluate(SMALL_WORDS) == []
        seen.page.locator("#q").fill("20")
        seen.page.get_by_text("q = 20: ordered SGD uses each of the 20 hardest").wait_for()
        assert "gamma" in seen.changed(first)
        before = seen.pictures()
        seen.page.click("#one")
        seen.wait("body[data-step='1']")
        assert seen.changed(before) >= {*ARMS, "mean", "ordered_loss"}
        before = seen.pictures()
        seen.page.click("#run")
        seen.page.locator("#steps", has_text="step 7 ").wait_for()
        seen.page.click("#run")
        assert seen.page.inner_text("#run") == "Start"
        assert seen.changed(before) >= {*ARMS, "mean", "ordered_loss"}
        assert len({seen.pictures()[arm] for arm in ARMS}) == 3
        seen.page.click("#reset")
        seen.wait("body[data-step='0']")
        assert not seen.changed(first) & set(ARMS)


@pytest.mark.slow
def test_points_are_drawn_by_hand_and_trained_on(browser: Any, server: Playground) -> None:
    with visit(browser, server, DESK) as seen:
        seen.page.select_option("#problem", "own")
        seen.page.locator("#steps", has_text="n = 0").wait_for()
        canvas = seen.page.locator(".panel.first canvas")
        for x, y in ((60, 60), (90, 80), (70, 120)):
            canvas.click(position={"x": x, "y": y})
        seen.page.locator("input[value='1']").check(force=True)
        canvas.click(position={"x": 280, "y": 280})
        seen.page.locator("#steps", has_text="n = 4").wait_for()
        seen.page.click("#one")
        seen.wait("body[data-step='1']")
        seen.page.locator("input[value='erase']").check(force=True)
        canvas.click(position={"x": 280, "y": 280})
        seen.page.locator("#steps", has_text="n = 3").wait_for()
        seen.page.click("#clear")
        seen.page.locator("#steps", has_text="n = 0").wait_for()


def test_a_server_that_is_gone_is_said(browser: Any) -> None:
    with Playground(0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        context = browser.new_context(**DESK)
        page = context.new_page()
        page.goto(server.url)
        page.wait_for_selector("body[data-problem]", timeout=PATIENCE)
        context.set_offline(True)
        page.click("#one")
        page.get_by_text("The playground does not answer.").wait_for(timeout=PATIENCE)
        context.close()
        server.shutdown()
