"""What a command leaves on the terminal: its own lines, and no warning of Python or of multiprocessing."""

import os
import signal
import subprocess
import sys
import time
import warnings
from contextlib import suppress
from pathlib import Path

import pytest

from ordered_sgd.errors import warn, warn_trap
from ordered_sgd.lab.cli.notes import noted_warnings
from ordered_sgd.lab.experiments.backends.processes import _without_ctrl_c
from ordered_sgd.lab.experiments.store import Records

pytestmark = pytest.mark.xdist_group("processes")
OSGD = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores Ctrl-C, and its children do
from ordered_sgd.lab.cli.main import main
if __name__ == "__main__":
    sys.exit(main())
"""


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """The command in a process group of its own, with a fresh folder of records."""
    (folder / "osgd.py").write_text(OSGD)
    environment = {**os.environ, "ORDERED_SGD_HOME": str(folder / "home")}
    return subprocess.Popen(
        [sys.executable, "osgd.py", *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_warning_is_one_clean_line_from_this_process_or_from_workers(tmp_path: Path, workers: str) -> None:
    small = ("--data", "digits", "--no-tune", "--trials", "2", "--epochs", "1", "--quiet")
    out, err = (done := start(tmp_path, "compare", *small, "--q", "2", "--workers", workers)).communicate(timeout=300)
    assert done.returncode == 0, err
    note, written = err.splitlines()
    assert note == (
        "note: OrderedStep: q must be a quarter of the batch or more in the first epoch (s = 64); got 2. Start from "
        "all with q=AccuracyRule() or LinearDecay(epochs); a wrong label has the largest loss."
    )
    assert written == "written: compare.html"
    assert "Warning" not in out


def test_ctrl_c_while_workers_train_compiled_models_leaves_one_line(tmp_path: Path) -> None:
    running = start(
        tmp_path,
        *(["compare", "--no-tune", "--q", "16", "--trials", "1", "--epochs", "5000", "--workers", "3", "--quiet"]),
    )
    records = Records(tmp_path / "home")
    end = time.monotonic() + 240
    while time.monotonic() < end and running.poll() is None:
        if any(run.rows and run.rows[-1].engine == "rows" for run in records.runs()):
            break
        time.sleep(0.2)
    stopped(running)


def test_ctrl_c_while_workers_start_leaves_one_line(tmp_path: Path) -> None:
    running = start(
        tmp_path, *(["compare", "--no-tune", "--trials", "1", "--epochs", "5000", "--workers", "2", "--quiet"])
    )
    end = time.monotonic() + 120
    while time.monotonic() < end and len(in_group(running.pid)) < 3:  # this one, a tracker, a first worker
        time.sleep(0.01)
    stopped(running)


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="signals cannot be blocked on this system")
def test_ctrl_c_at_the_moment_in_which_workers_are_started_is_not_lost() -> None:
    def start_workers() -> None:
        with _without_ctrl_c():
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        start_workers()


def stopped(running: subprocess.Popen[str]) -> None:
    """Ctrl-C ends the command with one line; whatever happens, none of its processes is left."""
    os.killpg(running.pid, signal.SIGINT)  # a terminal tells the whole group
    try:
        out, err = running.communicate(timeout=120)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
    assert running.returncode == 130, err
    assert (out, err.strip()) == ("", "osgd compare: stopped; what was recorded stays, and the same command goes on.")


def in_group(group: int) -> list[str]:
    found = subprocess.run(["ps", "-o", "pid=", "-g", str(group)], capture_output=True, text=True, check=False)
    return found.stdout.split()


def test_a_note_is_given_once_and_does_not_say_how_to_silence_python(capsys: pytest.CaptureFixture[str]) -> None:
    shown = warnings.showwarning
    with noted_warnings():
        warnings.simplefilter("always")
        for _ in range(2):
            warn_trap("OrderedStep", "q", "be larger", 1, "Use q=2.")
        warn("some\n  other")
    assert capsys.readouterr().err == "note: OrderedStep: q must be larger; got 1. Use q=2.\nnote: some other\n"
    assert warnings.showwarning is shown
