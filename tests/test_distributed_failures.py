"""Ranks that die or fall silent, and runs that begin and end many times, with the example as the job."""

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.distributed.launch import ROOT, command, environment, torchrun

EXAMPLE = ROOT / "examples" / "02_distributed.py"

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not Path("/proc").exists(), reason="reads /proc")]


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@contextmanager
def running(ranks: int, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """The example under way; what is left of it is stopped in the end."""
    job = subprocess.Popen(
        command(ranks, EXAMPLE, *arguments), env=environment(), cwd=ROOT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        yield job
    finally:
        if job.poll() is None:
            for child in children(job.pid):
                os.kill(child, signal.SIGKILL)
            job.kill()
            job.communicate()


def wait_for(path: Path, job: subprocess.Popen[str]) -> None:
    start = time.monotonic()
    while not path.exists():
        assert job.poll() is None, job.communicate()[1][-2000:]
        assert time.monotonic() - start < 120, "no checkpoint came"
        time.sleep(0.05)


def last_line(run: Any) -> str:
    assert run.returncode == 0, run.stderr[-3000:]
    return str(run.stdout.strip().splitlines()[-1])


def state(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = torch.load(path, weights_only=True)
    return loaded


@pytest.mark.parametrize("shard", [False, True])
def test_a_killed_rank_ends_the_job_and_the_run_resumes_from_its_checkpoint(shard: bool, tmp_path: Path) -> None:
    options = ["--shard"] if shard else []
    file, whole = tmp_path / "run.pt", tmp_path / "whole.pt"
    with running(2, "--epochs", 100_000, "--checkpoint", file, "--timeout", 20, *options) as job:
        wait_for(file, job)
        os.kill(children(job.pid)[1], signal.SIGKILL)
        start = time.monotonic()
        _, stderr = job.communicate(timeout=60)
        assert time.monotonic() - start < 40
    assert job.returncode != 0
    assert "Signal 9 (SIGKILL)" in stderr or "exitcode  : -9" in stderr
    epochs, elsewhere = 3 + state(file)["step"]["policy"]["epoch"], shutil.copy(file, tmp_path / "3.pt")
    more = torchrun(2, EXAMPLE, "--epochs", epochs, "--checkpoint", file, *options)
    uninterrupted = torchrun(2, EXAMPLE, "--epochs", epochs, "--checkpoint", whole, *options)
    assert last_line(more) == last_line(uninterrupted)
    assert torchrun(3, EXAMPLE, "--epochs", epochs, "--checkpoint", elsewhere, *options).returncode == 0
    for name, weight in state(whole)["model"].items():
        assert torch.equal(weight, state(file)["model"][name])
        # other ranks add up in another order, and a few steps make more of it
        torch.testing.assert_close(state(elsewhere)["model"][name], weight, rtol=1e-3, atol=1e-4)


def test_a_rank_that_falls_silent_is_given_up_after_the_time_out(tmp_path: Path) -> None:
    file = tmp_path / "run.pt"
    with running(2, "--epochs", 100_000, "--checkpoint", file, "--timeout", 5) as job:
        wait_for(file, job)
        silent = children(job.pid)[1]
        os.kill(silent, signal.SIGSTOP)
        start = time.monotonic()
        # the launcher ends the stopped rank with SIGKILL, 30 seconds after it has asked it to end
        _, stderr = job.communicate(timeout=120)
        assert time.monotonic() - start < 90
    assert job.returncode != 0
    assert re.search("[Tt]imed? ?out", stderr)
    assert not Path(f"/proc/{silent}").exists()


def test_a_checkpoint_resumes_on_other_numbers_of_ranks(tmp_path: Path) -> None:
    file, whole = tmp_path / "run.pt", tmp_path / "whole.pt"
    for ranks, epochs, options in ((2, 2, []), (3, 4, ["--shard"]), (1, 6, [])):
        assert torchrun(ranks, EXAMPLE, "--epochs", epochs, "--checkpoint", file, *options).returncode == 0
    assert torchrun(1, EXAMPLE, "--epochs", 6, "--checkpoint", whole).returncode == 0
    for name, weight in state(whole)["model"].items():
        torch.testing.assert_close(state(file)["model"][name], weight, rtol=1e-3, atol=1e-4)
    found, expected = (state(path)["step"]["policy"] for path in (file, whole))
    assert (found["q"], found["s"], found["epoch"]) == (expected["q"], expected["s"], expected["epoch"])


def test_thirty_runs_in_a_row_end_cleanly(tmp_path: Path) -> None:
    for number in range(30):
        run = torchrun(2 + number % 2, EXAMPLE, "--epochs", 2, *(["--shard"] if number % 3 == 0 else []), timeout=120)
        assert run.returncode == 0, (number, run.stderr[-3000:])
        assert run.stdout.count("epoch") == 2, (number, run.stdout)
        assert run.stderr == "", (number, run.stderr)
