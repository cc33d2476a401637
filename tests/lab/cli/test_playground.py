"""`osgd playground` as it is typed: it says where the page is, and Ctrl-C ends it."""

import re
import signal
import subprocess
import sys
import threading
import urllib.request
import webbrowser

import pytest
from click.testing import CliRunner

from ordered_sgd.lab.cli.playground import command
from ordered_sgd.lab.playground.server import Playground

RUN = """
import signal
from ordered_sgd.lab.cli.playground import command
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores Ctrl-C, and its children do
command()
"""


def test_it_prints_the_address_and_ends_with_ctrl_c() -> None:
    arguments = [sys.executable, "-u", "-c", RUN, "--port", "0", "--no-browser"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as started:
        watchdog = threading.Timer(120, started.kill)  # leaving `with` waits for the process, however long it runs
        watchdog.start()
        assert started.stdout is not None
        address = re.search(r"http://127\.0\.0\.1:\d+/", started.stdout.readline())
        assert address is not None
        with urllib.request.urlopen(address[0], timeout=60) as answer:
            assert b"playground" in answer.read()
        started.send_signal(signal.SIGINT)
        assert started.wait() == 1  # of click alone; `osgd` makes it 130
        watchdog.cancel()


@pytest.mark.parametrize("shown", [True, False])
def test_the_browser_is_opened_unless_it_is_not_wanted(shown: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    monkeypatch.setattr(Playground, "serve_forever", lambda self: None)
    monkeypatch.setattr("threading.Thread.start", lambda self: self.run())
    done = CliRunner().invoke(command, ["--port", "0", *([] if shown else ["--no-browser"])])
    assert done.exit_code == 0
    assert len(opened) == shown
    assert all(address in done.output for address in opened)


def test_a_port_that_cannot_be_is_refused() -> None:
    done = CliRunner().invoke(command, ["--port", "70000"])
    assert done.exit_code == 2
    assert "70000 is not in the range" in done.output
