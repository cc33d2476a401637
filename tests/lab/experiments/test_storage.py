"""Whole commands on storage that fails: one clear error, nothing lost, and the same command goes on afterwards."""

import contextlib
import io
import json
import os
import random
import re
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from ordered_sgd.errors import RecordError
from ordered_sgd.lab.cli.main import main
from ordered_sgd.lab.experiments.artifacts import SELECTION
from ordered_sgd.lab.experiments.checkpoint import load_checkpoint, save_checkpoint
from ordered_sgd.lab.experiments.epoch import EpochRow
from ordered_sgd.lab.experiments.run import run
from ordered_sgd.lab.experiments.spec import ExperimentSpec
from ordered_sgd.lab.experiments.store import Records, Run

linux = pytest.mark.skipif(sys.platform != "linux", reason="limits and namespaces as Linux has them")

PROBLEM = """
import numpy as np
from torch import nn
from ordered_sgd.lab.data import from_arrays

def make():
    x = np.random.default_rng(0).normal(size=(200, 64)).astype("float32")
    return from_arrays(x, x[:, :3].argmax(1)), nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 3))
"""
COMPARE = (
    *("compare", "--data", "a_problem_for_storage:make", "--no-tune", "--engine", "dense", "--trials", "2"),
    *("--epochs", "6", "--lr", "0.1", "--quiet", "--json", "--out", "compare.html"),
)
ROWS = 36  # 3 methods, 2 seeds, 6 epochs
CHECKPOINT = 100_000  # bytes that no checkpoint of this problem fits into, and all of its records do

# The command in a process of its own; files may have so many bytes, and checkpoints come every so many seconds.
CALL = """
import resource, sys
from ordered_sgd.lab.cli.main import main
from ordered_sgd.lab.experiments.run import run
limit, run.__kwdefaults__["every"] = int(sys.argv[1]), float(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
main(sys.argv[3:])
"""

# A command with its records on a disk of that size, which only it sees; they are copied there and back.
ON_SMALL_DISK = """
mount -t tmpfs -o size="$1" none "$2" || exit 77
cp -r "$3"/. "$2" || exit 77
small="$2" home="$3"; shift 3
ORDERED_SGD_HOME="$small" "$@"; code=$?
cp -r "$small"/. "$home"; exit $code
"""


class Done(NamedTuple):
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a problem of one's own, and a comparison on it: once undisturbed, once stopped by Ctrl-C."""
    folder = tmp_path_factory.mktemp("work")
    (folder / "a_problem_for_storage.py").write_text(PROBLEM)
    done = osgd(folder, folder / "undisturbed")
    assert done.code == 0, done.err
    (folder / "undisturbed.json").write_text(done.out)
    add = Records.add

    def stop(self: Records, spec: ExperimentSpec, row: EpochRow) -> None:
        add(self, spec, row)
        if (spec.method, spec.seed, row.epoch) == ("ordered", 1, 3):
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Records, "add", stop)
        assert osgd(folder, folder / "stopped", every=0.0).code == 130
    assert len(rows(folder / "stopped")) == 3 * 6 + 3
    assert checkpoint_of(folder / "stopped").stat().st_size > CHECKPOINT
    return folder


@pytest.fixture
def home(work: Path, tmp_path: Path) -> Path:
    """Records of a comparison that was stopped in the middle of its fourth run, with a checkpoint."""
    return Path(shutil.copytree(work / "stopped", tmp_path / "home"))


def osgd(work: Path, home: Path, *, every: float = 30.0, limit: int | None = None) -> Done:
    """The comparison in this process, with checkpoints every so many seconds, and files of at most so many bytes."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ORDERED_SGD_HOME", str(home))
        patch.chdir(work)
        patch.setitem(run.__kwdefaults__, "every", every)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), files_of_at_most(limit):
            code = exit_code([*COMPARE, "--workers", "1"])
    return Done(code, out.getvalue(), err.getvalue())


def exit_code(arguments: list[str]) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return int(ended.value.code or 0)


@contextlib.contextmanager
def files_of_at_most(limit: int | None) -> Iterator[None]:
    """Writing past so many bytes fails, as on a disk that is full."""
    if limit is None:
        yield
        return
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def outside(work: Path, home: Path, *before: str, limit: int = -1, every: float = 30.0, workers: int = 1) -> Done:
    """The comparison in a process of its own, behind the words of another command; it leaves no process behind."""
    command = [*before, sys.executable, "-c", CALL, str(limit), str(every), *COMPARE, "--workers", str(workers)]
    started = subprocess.Popen(
        command,
        cwd=work,
        env={**os.environ, "ORDERED_SGD_HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    out, err = started.communicate(timeout=120)
    until = time.monotonic() + 10
    while session(started.pid) and time.monotonic() < until:
        time.sleep(0.1)
    assert session(started.pid) == []
    return Done(started.returncode, out, err)


def session(leader: int) -> list[int]:
    """The processes of a session that have not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, number = path.read_text().rpartition(")")[2].split()[:4]
            if int(number) == leader and state != "Z":
                found.append(int(path.parent.name))
    return found


def checkpoint_of(home: Path) -> Path:
    (path,) = home.glob("checkpoints/*")
    return path


def rows(home: Path) -> dict[tuple[str, int], EpochRow]:
    return {(found.spec.run_id, row.epoch): row for found in Records(home).runs() for row in found.rows}


def results(home: Path) -> dict[str, Any]:
    """All that is recorded but the times."""
    records = Records(home)
    return {found.spec.run_id: (timeless(found), found.finished, kept(records, found)) for found in records.runs()}


def timeless(found: Run) -> list[dict[str, Any]]:
    return [{name: value for name, value in asdict(row).items() if "seconds" not in name} for row in found.rows]


def kept(records: Records, found: Run) -> bytes | None:
    return records.artifact(found.spec, SELECTION)


def printed(text: str) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if "seconds" not in name} for row in json.loads(text)]


def check_error(done: Done, fault: str) -> None:
    """One line in the shape of the project, on standard error."""
    assert (done.code, done.out) == (1, ""), done.err
    assert re.fullmatch(rf"osgd compare: \S+ must {fault}; got [^\n]+\. [A-Z][^\n]+\.\n", done.err), done.err


def check_goes_on(work: Path, home: Path, before: dict[tuple[str, int], EpochRow]) -> None:
    """The same command ends as if nothing had happened, and what was recorded before is still there."""
    assert before.items() <= rows(home).items()
    done = osgd(work, home)
    assert done.code == 0, done.err
    assert before.items() <= rows(home).items()
    assert results(home) == results(work / "undisturbed")
    assert printed(done.out) == printed((work / "undisturbed.json").read_text())
    assert not list(home.glob("checkpoints/*"))


@linux
def test_records_that_no_longer_fit_on_the_disk(work: Path, home: Path) -> None:
    before = rows(home)
    done = osgd(work, home, limit=(home / "records.sqlite").stat().st_size)
    check_error(done, "be writable")
    assert "records.sqlite must" in done.err
    assert len(before) < len(rows(home)) < ROWS  # it had gone on for some epochs
    check_goes_on(work, home, before | rows(home))


@linux
@pytest.mark.slow
def test_workers_whose_records_no_longer_fit_on_the_disk(work: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    Records(home).ask({})  # four runs are left, so that workers make them
    done = outside(work, home, limit=(home / "records.sqlite").stat().st_size + 8192, workers=2)
    check_error(done, "be writable")
    assert "records.sqlite must" in done.err
    assert 0 < len(rows(home)) < ROWS
    check_goes_on(work, home, rows(home))


@linux
def test_a_checkpoint_that_does_not_fit_on_the_disk(work: Path, home: Path) -> None:
    before, old = rows(home), checkpoint_of(home).read_bytes()
    done = osgd(work, home, limit=CHECKPOINT, every=0.0)
    check_error(done, "be writable")
    assert f"{checkpoint_of(home)} must be writable; got File too large. Free some space" in done.err
    assert checkpoint_of(home).read_bytes() == old
    check_goes_on(work, home, before)


@linux
@pytest.mark.slow
@pytest.mark.parametrize(
    ("room", "every", "text"),
    [(44, 30.0, "records.sqlite must be writable; got "), (100, 0.0, ".pt must be writable; got No space left on")],
    ids=["records", "checkpoint"],
)
def test_a_disk_that_is_really_full(work: Path, home: Path, tmp_path: Path, room: int, every: float, text: str) -> None:
    before, old = rows(home), checkpoint_of(home).read_bytes()
    used = sum(-(-path.stat().st_size // 4096) * 4 for path in home.rglob("*") if path.is_file())
    (tmp_path / "disk").mkdir()
    size, folders = f"{used + room}k", (str(tmp_path / "disk"), str(home))
    inside = ("unshare", "--map-root-user", "--mount", "sh", "-c", ON_SMALL_DISK, "sh", size, *folders)
    done = outside(work, home, *inside, every=every)
    if done.code == 77 or "unshare" in done.err:
        pytest.skip(f"no disk may be mounted: {done.err.strip()}")
    check_error(done, "be writable")
    assert text in done.err
    assert checkpoint_of(home).read_bytes() == old
    check_goes_on(work, home, before | rows(home))


@pytest.mark.slow
@linux
def test_a_folder_that_may_only_be_read(work: Path, home: Path) -> None:
    before = rows(home)
    # root passes over permissions by two capabilities; without them it is bound as everybody is
    bound = ("setpriv", "--bounding-set", "-dac_override,-dac_read_search") if os.geteuid() == 0 else ()
    home.chmod(0o500)
    try:
        if subprocess.run([*bound, "touch", str(home / "new")], capture_output=True, check=False).returncode == 0:
            pytest.skip("permissions do not bind here")
        check_error(outside(work, home, *bound), "be writable")
    finally:
        home.chmod(0o700)
    check_goes_on(work, home, before)


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def nothing(content: bytes) -> bytes:
    return b""


def one_bit_of_a_weight(content: bytes) -> bytes:
    """In the middle of the file, amid numbers, which all look alike."""
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def another_file(content: bytes) -> bytes:
    file = io.BytesIO()
    torch.save({"weights": torch.zeros(3)}, file)
    return file.getvalue()


@pytest.mark.parametrize(
    "damage", [one_bit_of_a_weight, *(pytest.param(d, marks=pytest.mark.slow) for d in (cut, nothing, another_file))]
)
def test_a_damaged_checkpoint(work: Path, home: Path, damage: Callable[[bytes], bytes]) -> None:
    before, path = rows(home), checkpoint_of(home)
    damaged = damage(path.read_bytes())
    path.write_bytes(damaged)
    done = osgd(work, home)
    check_error(done, "be a whole checkpoint")
    assert str(path) in done.err
    assert path.read_bytes() == damaged
    path.unlink()  # as the message says
    check_goes_on(work, home, before)


@pytest.mark.parametrize(
    ("part", "value"),
    [pytest.param("source", None, marks=pytest.mark.slow), ("model", {"0.weight": torch.zeros(2, 2)})],
)
def test_a_checkpoint_of_a_model_that_was_changed(work: Path, home: Path, part: str, value: object) -> None:
    before, path = rows(home), checkpoint_of(home)
    state = load_checkpoint(path)
    assert state is not None
    changed = {name: content for name, content in (state["runner"] | {part: value}).items() if content is not None}
    save_checkpoint({**state, "runner": changed}, path)
    check_error(osgd(work, home), "fit the model of this run")
    path.unlink()
    check_goes_on(work, home, before)


def test_no_damage_to_a_checkpoint_goes_unnoticed(tmp_path: Path) -> None:
    path, rng = tmp_path / "c.pt", random.Random(0)
    save_checkpoint({"epoch": 3, "model": {"w": torch.arange(40.0), "b": torch.ones(2)}}, path)
    whole = path.read_bytes()
    for _ in range(300):
        place = rng.randrange(len(whole))
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << rng.randrange(8)]) + whole[place + 1 :])
        with pytest.raises(RecordError, match=r"must be a whole checkpoint; got another checksum .*\. Remove it: "):
            load_checkpoint(path)


def page_of_epochs(content: bytes) -> bytes:
    """The page with the last numbers overwritten."""
    start = content.rindex(b'"test_error"') // 4096 * 4096
    return content[:start] + b"\xa5" * 4096 + content[start + 4096 :]


def words_of_numbers(content: bytes) -> bytes:
    return content.replace(b'"epoch": ', b'"epoch"; ')


def names_of_numbers(content: bytes) -> bytes:
    return content.replace(b'"samples"', b'"simples"')


@pytest.mark.parametrize(
    "damage",
    [cut, words_of_numbers, *(pytest.param(d, marks=pytest.mark.slow) for d in (page_of_epochs, names_of_numbers))],
)
def test_a_damaged_database(work: Path, home: Path, damage: Callable[[bytes], bytes]) -> None:
    path = home / "records.sqlite"
    before, whole = rows(home), path.read_bytes()
    path.write_bytes(damage(whole))
    assert path.read_bytes() != whole
    done = osgd(work, home)
    check_error(done, "be a database of records")
    assert str(path) in done.err
    path.write_bytes(whole)  # a copy is put back
    check_goes_on(work, home, before)


def test_a_database_that_is_moved_away_makes_room_for_a_new_one(work: Path, home: Path) -> None:
    path = home / "records.sqlite"
    path.write_bytes(cut(path.read_bytes()))
    check_error(osgd(work, home), "be a database of records")
    path.rename(home / "damaged.sqlite")
    check_goes_on(work, home, {})


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[Records]:
    """Records in which another connection is writing."""
    records = Records(tmp_path)
    records.begin(ExperimentSpec())
    other = sqlite3.connect(records.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    yield records
    other.close()


def test_a_database_that_another_process_holds_is_said_to_be_busy(
    busy: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ordered_sgd.lab.experiments.store.WAIT", 0.1)
    with pytest.raises(RecordError, match=r"must be free for writing; got database is locked. Wait for"):
        busy.begin(ExperimentSpec(seed=1))
    assert busy.get(ExperimentSpec()) is not None  # reading goes on


def test_runs_are_read_at_one_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records, spec, connect = Records(tmp_path), ExperimentSpec(), sqlite3.connect
    records.begin(ExperimentSpec(seed=1))

    class Late(sqlite3.Connection):
        """Between two questions of this connection another one records a run."""

        def execute(self, sql: str, *given: Any) -> sqlite3.Cursor:
            if "FROM epochs" in sql:
                monkeypatch.undo()
                records.begin(spec)
                records.add(spec, EpochRow(1, 64, 0.01))
            return super().execute(sql, *given)

    monkeypatch.setattr(sqlite3, "connect", lambda *given, **named: connect(*given, **named, factory=Late))
    assert [found.spec.seed for found in records.runs()] == [1]
    assert [found.spec.seed for found in records.runs()] == [1, 0]
