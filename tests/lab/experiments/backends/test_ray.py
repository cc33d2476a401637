"""Runs on a real Ray of two workers, on this machine."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ordered_sgd.errors import ArgumentError, RecordError
from ordered_sgd.installed import how_to_install
from ordered_sgd.lab.cli.main import main
from ordered_sgd.lab.experiments.artifacts import SELECTION
from ordered_sgd.lab.experiments.backends.processes import Processes
from ordered_sgd.lab.experiments.backends.ray import KILLS, RayTasks
from ordered_sgd.lab.experiments.spec import ExperimentSpec
from ordered_sgd.lab.experiments.store import Records

pytestmark = pytest.mark.xdist_group("ray")  # starting one takes seconds: once
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes with ps")
EPOCHS = 60
SPECS = [ExperimentSpec(epochs=EPOCHS, seed=seed) for seed in range(2)]
OWN = """
import os, signal
import numpy as np
from torch import nn
from ordered_sgd.lab.data import from_arrays
def make():
    x = np.random.default_rng(0).normal(size=(100, 3)).astype("float32")
    return from_arrays(x, (x[:, 0] > 0).astype(int)), nn.Linear(3, 2)
def die():
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def _ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One Ray for all tests, started where a module of the user's lies: who finds it running leaves it running."""
    folder = tmp_path_factory.mktemp("first")
    (folder / "own_for_ray.py").write_text(OWN)
    with pytest.MonkeyPatch.context() as patch, RayTasks(Records(folder), workers=2) as run_all:
        patch.chdir(folder)
        assert run_all([ExperimentSpec(data="own_for_ray:make", epochs=1, s=16)])[0].finished
        assert run_all.ray.get_runtime_context().gcs_address.startswith("127.0.0.1:")  # none of the network's business
        yield


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    records = Records(tmp_path_factory.mktemp("processes"))
    with Processes(records, workers=1) as run_all:
        run_all(SPECS)
    return results(records)


def results(records: Records) -> list[Any]:
    """What is recorded, without its times."""
    runs = sorted(records.runs(), key=lambda run: run.spec.to_json())
    return [
        ([{**vars(row), "seconds": 0, "cpu_seconds": 0} for row in run.rows], records.artifact(run.spec, SELECTION))
        for run in runs
    ]


def below(pid: int) -> dict[int, str]:
    """The processes that a process started, and those that they started, with their names."""
    listed = subprocess.run(["ps", "-e", "-o", "pid=,ppid=,args="], capture_output=True, text=True, check=True)
    rows = [line.split(maxsplit=2) for line in listed.stdout.splitlines()]
    found = {pid: ""}
    for _ in range(4):
        found |= {int(row[0]): row[-1] for row in rows if int(row[1]) in found and int(row[0]) not in found}
    del found[pid]
    return found


@on_linux
@pytest.mark.usefixtures("_ray")
@pytest.mark.parametrize(
    "shared",
    [
        pytest.param(True, id="shared folder", marks=pytest.mark.slow),
        pytest.param(False, id="no shared folder", marks=pytest.mark.slow),
    ],
)
def test_a_killed_worker_is_replaced_and_every_epoch_is_recorded_once(
    shared: bool,
    expected: list[Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    seen: list[tuple[int, int]] = []

    def progress(spec: ExperimentSpec, epochs: int) -> None:
        seen.append((spec.seed, epochs))
        if len(seen) == 40:  # in all, of two runs: one is in the middle of it
            workers = [pid for pid, name in below(os.getpid()).items() if name.startswith("ray::_work")]
            os.kill(workers[0], signal.SIGKILL)

    if not shared:  # then the file by which workers know the folder is not there
        monkeypatch.setattr(Path, "touch", lambda path: None)
    records = Records(tmp_path)
    with RayTasks(records, workers=2, every=0.05, progress=progress) as run_all:
        runs = run_all(SPECS)
    assert [run.spec for run in runs] == SPECS
    assert all(run.finished and len(run.rows) == EPOCHS for run in runs)
    assert results(records) == expected
    assert sum(epochs == 1 for _, epochs in seen) == (2 if shared else 3)  # how often a run was begun
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints", "records.sqlite"][not shared :]
    assert list(tmp_path.glob("checkpoints/*.pt")) == []
    assert capsys.readouterr() == ("", "")


@pytest.mark.slow
@pytest.mark.usefixtures("_ray")
def test_again_forgets_the_earlier_run_once(tmp_path: Path) -> None:
    records, spec = Records(tmp_path), SPECS[0].but(epochs=2)
    with Processes(records, workers=1) as run_all:
        first = run_all([spec])[0].rows[0].seconds
    with RayTasks(records, again=True) as run_all:
        second = run_all([spec])[0].rows[0].seconds
        third = run_all([spec])[0].rows[0].seconds
    assert first != second == third


@pytest.mark.slow
@pytest.mark.usefixtures("_ray")
def test_an_error_in_a_worker_reaches_the_caller(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="size must be at least 16"), RayTasks(Records(tmp_path)) as run_all:
        run_all([SPECS[0].but(model="lenet")])


@pytest.mark.slow
@pytest.mark.usefixtures("_ray")
def test_a_run_that_always_kills_its_worker_is_given_up(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=f"killed {KILLS} times in a row"), RayTasks(Records(tmp_path)) as run_all:
        run_all([ExperimentSpec(data="own_for_ray:die")])
    assert Records(tmp_path).runs() == []


OSGD = """
import signal
from ordered_sgd.lab.cli.main import main
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores Ctrl-C, and its children do
main()
"""
COMMAND = ("reproduce", "figure1", "--rows", "figure1a", "--trials", "1", "--epochs", "300", "--quiet")


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(ended.value.code or 0)


def interrupted(how: signal.Signals, records: Records, *options: str) -> tuple[int, dict[int, str]]:
    """The command started and ended once two of its runs are under way: its exit code, and the processes it had."""
    command = [sys.executable, "-c", OSGD, *COMMAND, "--backend", "ray", "--workers", "2", *options]
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    until = time.monotonic() + 200
    while len(records.runs()) < 2 or not all(run.rows for run in records.runs()):
        assert time.monotonic() < until, "no run began"
        assert driver.poll() is None, driver.communicate()
        time.sleep(0.1)
    started = below(driver.pid)
    os.killpg(driver.pid, how) if how == signal.SIGINT else driver.kill()  # a terminal tells the whole group
    printed = driver.communicate(timeout=60)
    assert printed == (b"", b"\n" if how == signal.SIGINT else b"")
    return driver.returncode, started


def gone(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_for(what: Callable[[], object]) -> None:
    until = time.monotonic() + 60
    while not what():
        assert time.monotonic() < until
        time.sleep(0.1)


@on_linux
@pytest.mark.slow
@pytest.mark.usefixtures("_ray")
def test_ctrl_c_ends_the_tasks_on_a_cluster_and_the_same_command_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray: Any = pytest.importorskip("ray")
    monkeypatch.setenv("ORDERED_SGD_HOME", str(tmp_path / "home"))
    records = Records(tmp_path / "home")
    code, _ = interrupted(signal.SIGINT, records, "--address", ray.get_runtime_context().gcs_address)
    assert code == 130
    wait_for(lambda: not [name for name in below(os.getpid()).values() if name.startswith("ray::_work")])
    assert not all(run.finished for run in records.runs())
    assert run(*COMMAND, "--backend", "ray") == 0  # on the Ray of this process
    assert [run.finished for run in records.runs()] == [True] * 3
    assert not list(records.folder.glob("shared-*"))
    monkeypatch.setenv("ORDERED_SGD_HOME", str(tmp_path / "other"))
    assert run(*COMMAND, "--workers", "1") == 0
    assert results(records) == results(Records(tmp_path / "other"))


@on_linux
@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "kill -9"])
def test_a_ray_of_our_own_ends_with_the_command_whatever_ends_it(
    how: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORDERED_SGD_HOME", str(tmp_path))
    code, started = interrupted(how, Records(tmp_path))
    assert code == (130 if how == signal.SIGINT else -signal.SIGKILL)
    assert sum(name.startswith("ray::") for name in started.values()) >= 2
    if how == signal.SIGKILL:  # then Ray's agents need a minute to notice; the workers and Ray itself end at once
        started = {process: name for process, name in started.items() if not name.endswith("Agent")}
    wait_for(lambda: all(gone(process) for process in started))


def test_an_address_where_nothing_answers_gets_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ORDERED_SGD_HOME", str(tmp_path / "home"))
    assert run(*COMMAND, "--backend", "ray", "--address", "127.0.0.1:1") == 1
    remedy = "Start one with: ray start --head; or leave --address out."
    got = "127.0.0.1:1 (Connection refused)"
    assert capsys.readouterr() == (
        "",
        f"osgd reproduce: --address must be that of a running Ray; got {got}. {remedy}\n",
    )
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("auto", r"--address must be that of a running Ray; got auto \(It does not answer\)\. Start one"),
        (None, r"a Ray of our own must start; got It does not answer\. Run it again"),
    ],
)
def test_what_ray_says_when_it_does_not_start_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str | None, told: str
) -> None:
    ray: Any = pytest.importorskip("ray")

    def init(**options: Any) -> None:
        raise ConnectionError("It does not answer.\nMore lines.")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    with pytest.raises(RecordError, match=told), RayTasks(Records(tmp_path), address=address) as run_all:
        run_all(SPECS)


def test_without_ray_the_way_to_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ORDERED_SGD_HOME", str(tmp_path / "home"))
    monkeypatch.setitem(sys.modules, "ray", None)
    assert run(*COMMAND, "--backend", "ray") == 1
    remedy = how_to_install("ray")
    assert capsys.readouterr().err == f"osgd reproduce: ray must be installed; got no module 'ray'. {remedy}\n"
    assert not (tmp_path / "home").exists()
