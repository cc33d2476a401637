"""Runs on a real Ray of two workers, on this machine."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ordered_sgd.errors import ArgumentError, MissingExtraError, RecordError
from ordered_sgd.experiments.artifacts import SELECTION
from ordered_sgd.experiments.backends.processes import Processes
from ordered_sgd.experiments.backends.ray import KILLS, RayTasks, _work
from ordered_sgd.experiments.records import Records
from ordered_sgd.experiments.run import Began, Ended
from ordered_sgd.experiments.spec import ExperimentSpec

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
SPECS = [ExperimentSpec(epochs=60, seed=seed) for seed in range(2)]


@pytest.fixture(scope="module")
def _ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One Ray for all: those who find it running leave it running."""
    with RayTasks(Records(tmp_path_factory.mktemp("first")), workers=2) as run_all:
        run_all([ExperimentSpec(epochs=1, seed=99)])
        yield


def below(pid: int) -> dict[int, str]:
    """The processes that a process started, and those that they started, with their names."""
    listed = subprocess.run(["ps", "-e", "-o", "pid=,ppid=,args="], capture_output=True, text=True, check=True)
    rows = [line.split(maxsplit=2) for line in listed.stdout.splitlines()]
    found = {pid: ""}
    for _ in range(4):  # the driver, Ray's node, its worker
        found |= {int(row[0]): row[-1] for row in rows if int(row[1]) in found}
    return found


def kill_one_worker() -> None:
    os.kill(next(pid for pid, name in below(os.getpid()).items() if name.startswith("ray::_work")), signal.SIGKILL)


def results(records: Records) -> list[Any]:
    """What is recorded, without its times."""
    timeless = [
        [{**vars(row), "seconds": 0, "cpu_seconds": 0} for row in run.rows]
        for run in sorted(records.runs(), key=lambda run: run.spec.seed)
    ]
    return [timeless, [records.artifact(spec, SELECTION) for spec in SPECS]]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    records = Records(tmp_path_factory.mktemp("processes"))
    with Processes(records, workers=1) as run_all:
        run_all(SPECS)
    return results(records)


@pytest.mark.usefixtures("_ray")
@pytest.mark.parametrize("shared", [True, False], ids=["shared folder", "no shared folder"])
def test_a_killed_worker_is_replaced_and_every_epoch_is_recorded_once(
    shared: bool, expected: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int]] = []

    def progress(spec: ExperimentSpec, epochs: int) -> None:
        seen.append((spec.seed, epochs))
        if len(seen) == 40:
            kill_one_worker()

    if not shared:  # the file by which workers know the folder is not there
        monkeypatch.setattr(Path, "touch", lambda path: None)
    records = Records(tmp_path)
    with RayTasks(records, workers=2, every=0.01, progress=progress) as run_all:
        runs = run_all(SPECS)
        assert run_all([SPECS[1]]) == runs[1:]
    assert [run.spec for run in runs] == SPECS
    assert all(run.finished and [row.epoch for row in run.rows] == list(range(1, 61)) for run in runs)
    assert results(records) == expected
    assert (len(seen) - 1 > 120) == (not shared)  # one was told of again at the end
    assert [seed for seed, epochs in seen if epochs == 1].count(0) + [s for s, e in seen if e == 1].count(1) == (
        2 if shared else 3
    )
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith("records.")] == (
        ["checkpoints"] if shared else []
    )
    assert not list(tmp_path.glob("checkpoints/*"))
