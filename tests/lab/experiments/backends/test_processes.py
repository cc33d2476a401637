import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ordered_sgd.errors import ArgumentError
from ordered_sgd.lab.experiments.backends.processes import Processes
from ordered_sgd.lab.experiments.spec import ExperimentSpec
from ordered_sgd.lab.experiments.store import Records

pytestmark = pytest.mark.xdist_group("processes")  # starting two workers takes seconds: once
SPECS = [ExperimentSpec(epochs=2, seed=seed) for seed in range(3)]
SEEN: list[tuple[int, int]] = []


@pytest.fixture(scope="module")
def side_by_side(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    records = Records(tmp_path_factory.mktemp("two"))
    with Processes(records, workers=2, progress=lambda spec, epoch: SEEN.append((spec.seed, epoch))) as run_all:
        yield run_all


def test_side_by_side_gives_what_one_after_another_gives(side_by_side: Processes, tmp_path: Path) -> None:
    with Processes(Records(tmp_path), workers=1) as run_all:
        one = run_all(SPECS)
    two = side_by_side(SPECS)
    again = side_by_side([*SPECS, SPECS[0]])  # known by now, and asked for twice
    assert [run.spec for run in two] == SPECS
    assert [[row.test_error for row in run.rows] for run in one] == [
        [row.test_error for row in run.rows] for run in two
    ]
    assert [run.spec for run in again] == [*SPECS, SPECS[0]]
    assert set(SEEN) >= {(seed, 2) for seed in range(3)}


def test_again_runs_each_spec_once_more_and_not_twice(tmp_path: Path) -> None:
    records = Records(tmp_path)
    with Processes(records, workers=1) as run_all:
        first = run_all(SPECS[:1])[0].rows[0].seconds
    with Processes(records, workers=1, again=True) as run_all:
        second = run_all(SPECS[:1])[0].rows[0].seconds
        third = run_all(SPECS[:1])[0].rows[0].seconds
    assert first != second
    assert second == third


def test_an_error_in_a_worker_reaches_the_caller(side_by_side: Processes) -> None:
    with pytest.raises(ArgumentError, match="size must be at least 16"):
        side_by_side([SPECS[0].but(model="lenet"), SPECS[1].but(model="lenet")])


SCRIPT = """
import signal, sys
from pathlib import Path
from ordered_sgd.lab.experiments.backends.processes import Processes
from ordered_sgd.lab.experiments.store import Records
from ordered_sgd.lab.experiments.spec import ExperimentSpec
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background job and its children ignore
    specs = [ExperimentSpec(epochs=5000, seed=seed) for seed in range(2)]
    with Processes(Records(Path(sys.argv[1])), workers=2) as run_all:
        run_all(specs)
"""


def children(pid: int) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [int(line) for line in found.stdout.split()]


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
@pytest.mark.parametrize(
    "how",
    [
        pytest.param(signal.SIGINT, id="Ctrl-C"),
        pytest.param(signal.SIGKILL, id="kill -9", marks=pytest.mark.slow),
    ],
)
def test_workers_end_with_their_parent_and_what_they_recorded_stays(how: signal.Signals, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    records = Records(tmp_path / "home")
    with subprocess.Popen([sys.executable, str(script), str(records.folder)], stderr=subprocess.DEVNULL) as parent:
        try:
            began = time.monotonic()
            while len(records.runs()) < 2 or not all(run.rows for run in records.runs()):
                assert time.monotonic() - began < 120, "the workers never began"
                time.sleep(0.2)
            workers = children(parent.pid)
            assert len(workers) >= 2
            os.kill(parent.pid, how)
            parent.wait(timeout=30)
        finally:
            parent.kill()  # its workers end with it
    until = time.monotonic() + 30
    while any(alive(pid) for pid in workers) and time.monotonic() < until:
        time.sleep(0.1)
    assert not any(alive(pid) for pid in workers)
    assert all(run.rows and not run.finished for run in records.runs())
