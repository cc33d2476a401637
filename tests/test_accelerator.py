"""The library on a simulated accelerator: the results of the CPU, no mixed devices, no wait more than documented."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.accelerator_cases import CHECKS, HEAVY
from tests.accelerator_ways import WAYS, page_table

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "gpus.md"
pytestmark = pytest.mark.xdist_group("accelerator")  # one process runs all checks


def results_of(names: Iterable[str]) -> dict[str, str]:
    """What went wrong in each of these checks; the device is registered in a process of its own."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "tests.accelerator_cases", *names]
    run = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert run.returncode == 0, run.stderr
    results: dict[str, str] = json.loads(run.stdout.rpartition("\n")[2])
    return results


@pytest.fixture(scope="module")
def found() -> dict[str, str]:
    return results_of(name for name in CHECKS if name not in HEAVY)


@pytest.mark.parametrize("name", [name for name in CHECKS if name not in HEAVY])
def test_on_the_simulated_device(found: dict[str, str], name: str) -> None:
    assert found[name] == "", found[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", HEAVY)
def test_what_takes_long_on_the_simulated_device(name: str) -> None:
    assert results_of([name]) == {name: ""}


def test_the_dense_step_with_a_fixed_q_never_waits_for_the_queue() -> None:
    assert {way.queue for way in WAYS if way.name.startswith("`dense`, fixed q")} == {0}


def test_the_page_shows_the_table_of_waits() -> None:
    assert page_table() in PAGE.read_text()
