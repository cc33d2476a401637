"""Records of runs in one SQLite file: append-only, safe when a process dies, and open to several at once."""

import json
import os
import platform
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import platformdirs

from ordered_sgd import __version__
from ordered_sgd.errors import RecordError, first_line, message
from ordered_sgd.lab.experiments.epoch import EpochRow
from ordered_sgd.lab.experiments.spec import ExperimentSpec

WAIT = 60.0  # seconds for another process to finish writing

_TABLES = """
CREATE TABLE IF NOT EXISTS runs (
    run_id TEXT PRIMARY KEY, spec TEXT NOT NULL, versions TEXT NOT NULL, finished INTEGER NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS epochs (
    run_id TEXT NOT NULL REFERENCES runs ON DELETE CASCADE, epoch INTEGER NOT NULL, numbers TEXT NOT NULL,
    PRIMARY KEY (run_id, epoch));
CREATE TABLE IF NOT EXISTS artifacts (
    run_id TEXT NOT NULL REFERENCES runs ON DELETE CASCADE, name TEXT NOT NULL, content BLOB NOT NULL,
    PRIMARY KEY (run_id, name));
CREATE TABLE IF NOT EXISTS requests (request TEXT PRIMARY KEY);
"""

_ANEW = "+"  # after the id of a run that is made again, while the earlier one is still to be seen
# Where what comes now belongs: the run that is made again, if there is one. Of a removed run it is NULL, and refused.
_NEWEST = f"(SELECT max(run_id) FROM runs WHERE run_id IN (?1, ?1 || '{_ANEW}'))"


class Run(NamedTuple):
    """A recorded run: its spec, the versions it ran with, its epochs so far, and whether it is over."""

    spec: ExperimentSpec
    versions: dict[str, str]
    rows: list[EpochRow]
    finished: bool


def home() -> Path:
    """The folder of records: ``ORDERED_SGD_HOME``, else the platform's data folder. Read at every call."""
    given = os.environ.get("ORDERED_SGD_HOME")
    return Path(given).expanduser() if given else platformdirs.user_data_path("ordered-sgd")


class Records:
    """The runs recorded in a folder.

    Parameters
    ----------
    folder
        Where ``records.sqlite`` lies, or will; `home()` when not given.

    Examples
    --------
    >>> import tempfile
    >>> records = Records(Path(tempfile.mkdtemp()))
    >>> spec = ExperimentSpec(epochs=2)
    >>> records.begin(spec)
    >>> records.add(spec, EpochRow(1, 64, 0.01))
    >>> records.get(spec).rows[0].q
    64
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = home() if folder is None else folder
        self.path = self.folder / "records.sqlite"

    def begin(self, spec: ExperimentSpec, *, again: bool = False, on: Mapping[str, str] | None = None) -> None:
        """Note that a run starts or goes on, `on` these versions or those here; `again`: from its beginning.

        An earlier one that is over stays among `runs` until `finish` puts the new one in its place.
        """
        found, place = versions() if on is None else dict(on), spec.run_id
        with self._open() as database:
            if again:
                query = "DELETE FROM runs WHERE run_id = ? OR (run_id = ? AND NOT finished)"
                database.execute(query, (place + _ANEW, place))
                if database.execute("SELECT 1 FROM runs WHERE run_id = ?", (place,)).fetchone():
                    place += _ANEW
            database.execute(
                "INSERT OR IGNORE INTO runs (run_id, spec, versions) VALUES (?, ?, ?)",
                (place, spec.to_json(), json.dumps(found)),
            )

    def add(self, spec: ExperimentSpec, row: EpochRow) -> None:
        """Record an epoch; one that is there already stays as it is."""
        numbers = json.dumps(asdict(row))
        with self._open() as database:
            query = f"INSERT INTO epochs VALUES ({_NEWEST}, ?2, ?3) ON CONFLICT DO NOTHING"
            database.execute(query, (spec.run_id, row.epoch, numbers))

    def add_artifact(self, spec: ExperimentSpec, name: str, content: bytes) -> None:
        """Record something that is not a number per epoch: a decision boundary, selection counts."""
        with self._open() as database:
            database.execute(
                f"INSERT OR REPLACE INTO artifacts VALUES ({_NEWEST}, ?2, ?3)", (spec.run_id, name, content)
            )

    def artifact(self, spec: ExperimentSpec, name: str) -> bytes | None:
        """What `add_artifact` recorded under that name, or None."""
        query = "SELECT content FROM artifacts WHERE run_id = ? AND name = ?"
        with self._open() as database:
            found = database.execute(query, (spec.run_id, name)).fetchone()
        return None if found is None else bytes(found[0])

    def ask(self, request: Mapping[str, Any]) -> None:
        """Note what a command was asked for, so that a report can show it again; the newest is the last."""
        text = json.dumps(request, sort_keys=True)
        with self._open() as database:
            database.execute("DELETE FROM requests WHERE request = ?", (text,))
            database.execute("INSERT INTO requests VALUES (?)", (text,))

    def requests(self) -> list[dict[str, Any]]:
        """What commands were asked for, each once, the newest last."""
        if self._empty():
            return []
        with self._reading() as database:
            return [json.loads(text) for (text,) in database.execute("SELECT request FROM requests ORDER BY rowid")]

    def recorded(self, specs: Iterable[ExperimentSpec]) -> list[Run]:
        """The finished runs of all specs, in their order, or an error: to look at results without training."""
        return among(self.runs(), specs)

    def finish(self, spec: ExperimentSpec) -> None:
        """Note that a run is over; one that was run again takes the place of the earlier one."""
        place, anew = spec.run_id, spec.run_id + _ANEW
        with self._open() as database:
            database.execute(f"UPDATE runs SET finished = 1 WHERE run_id = {_NEWEST}", (place,))
            database.execute("PRAGMA defer_foreign_keys = ON")  # until all of it has its new name
            there = "EXISTS (SELECT 1 FROM runs WHERE run_id = ?)"
            database.execute(f"DELETE FROM runs WHERE run_id = ? AND {there}", (place, anew))
            for table in ("runs", "epochs", "artifacts"):
                database.execute(f"UPDATE {table} SET run_id = ? WHERE run_id = ?", (place, anew))

    def get(self, spec: ExperimentSpec) -> Run | None:
        """What is recorded of a spec, or None; while it is run again that which is under way."""
        return next(iter(self.runs(spec.run_id)), None)

    def runs(self, run_id: str | None = None) -> list[Run]:
        """All runs in the order in which they began, or the one with that id."""
        if self._empty():
            return []
        only, given = ("NOT LIKE ?1", f"%{_ANEW}") if run_id is None else (f"= {_NEWEST}", run_id)
        with self._reading() as database:
            query = f"SELECT run_id, spec, versions, finished FROM runs WHERE run_id {only} ORDER BY rowid"
            found = {
                head[0]: Run(ExperimentSpec.from_json(head[1]), json.loads(head[2]), [], bool(head[3]))
                for head in database.execute(query, (given,))
            }
            query = f"SELECT run_id, numbers FROM epochs WHERE run_id {only} ORDER BY epoch"
            for owner, numbers in database.execute(query, (given,)):
                found[owner].rows.append(EpochRow(**json.loads(numbers)))
        return list(found.values())

    def checkpoint(self, spec: ExperimentSpec) -> Path:
        """Where the checkpoint of a run lies while it is under way."""
        return self.folder / "checkpoints" / f"{spec.run_id}.pt"

    def remove(self, spec: ExperimentSpec) -> None:
        """Forget a run and all that belongs to it."""
        with self._open() as database:
            database.execute("DELETE FROM runs WHERE run_id IN (?, ?)", (spec.run_id, spec.run_id + _ANEW))
        self.checkpoint(spec).unlink(missing_ok=True)

    def take(self, runs: Iterable[Run]) -> int:
        """Record runs that are over and were made elsewhere, and say how many were new; what is here stays as it is."""
        here = {run.spec for run in self.runs()}
        new = [run for run in runs if run.finished and run.spec not in here]
        with self._open() as database:
            for run in new:
                head = (run.spec.run_id, run.spec.to_json(), json.dumps(run.versions))
                database.execute("INSERT INTO runs (run_id, spec, versions, finished) VALUES (?, ?, ?, 1)", head)
                rows = [(run.spec.run_id, row.epoch, json.dumps(asdict(row))) for row in run.rows]
                database.executemany("INSERT INTO epochs VALUES (?, ?, ?)", rows)
        return len(new)

    def copy(self, known: ExperimentSpec, spec: ExperimentSpec) -> None:
        """Record the run of a spec under another one too, which describes the same training."""
        with self._open() as database:
            head = "INSERT OR IGNORE INTO runs SELECT ?, ?, versions, finished FROM runs WHERE run_id = ?"
            database.execute(head, (spec.run_id, spec.to_json(), known.run_id))
            for table, columns in (("epochs", "epoch, numbers"), ("artifacts", "name, content")):
                part = f"INSERT OR IGNORE INTO {table} SELECT ?, {columns} FROM {table} WHERE run_id = ?"
                database.execute(part, (spec.run_id, known.run_id))

    def _empty(self) -> bool:
        """Whether nothing was recorded yet; where a file is in the folder's place, the error of one who writes."""
        if any(path.is_file() for path in (self.folder, *self.folder.parents)):
            with self._open():
                pass
        return not self.path.exists()

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """A connection that sees the records of one moment, whoever writes meanwhile."""
        try:
            with self._open() as database:
                database.execute("BEGIN")
                yield database
        except (ValueError, TypeError, KeyError) as error:  # SQLite does not check what its cells hold
            raise RecordError(_fault(self.path, error)) from error

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """A connection in a transaction of its own: all of it is written, or nothing."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            database = sqlite3.connect(self.path, timeout=WAIT)
            try:
                database.execute("PRAGMA journal_mode = WAL")
                database.execute("PRAGMA foreign_keys = ON")
                database.executescript(_TABLES)
                with database:
                    yield database
            finally:
                database.close()
        except sqlite3.Error as error:
            raise RecordError(_fault(self.path, error)) from error
        except OSError as error:
            remedy = "Set ORDERED_SGD_HOME to a folder that can be written."
            raise RecordError(message("records", str(self.folder), "be writable", error.strerror, remedy)) from error


# What SQLite says of the storage or of other processes, by the lowest byte of its code; all else is about the content.
_STORAGE = (
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
)
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _fault(path: Path, error: Exception) -> str:
    """What is wrong with the database, and what to do."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
    if code in _STORAGE:
        remedy = "Free some space or set ORDERED_SGD_HOME to a folder that can be written."
        return message("records", str(path), "be writable", error, remedy)
    if code in _BUSY:
        remedy = "Wait for the other process, or end it."
        return message("records", str(path), "be free for writing", error, remedy)
    if code == sqlite3.SQLITE_CONSTRAINT:
        remedy = "Run the command again."
        return message("records", str(path), "keep a run until it is over", "one that was removed meanwhile", remedy)
    remedy = "Move it away to start anew, or put a copy in its place."
    return message("records", str(path), "be a database of records", first_line(error), remedy)


def among(runs: Iterable[Run], specs: Iterable[ExperimentSpec]) -> list[Run]:
    """Those of the runs that have these specs, in their order, or an error if one is not there or not over."""
    wanted = list(specs)
    known = {run.spec: run for run in runs if run.finished}
    missing = sum(spec not in known for spec in wanted)
    if missing:
        remedy = "Run the command that makes them to its end."
        got = f"{missing} of {len(wanted)} that are not"
        raise RecordError(message("records", "runs", "be recorded", got, remedy))
    return [known[spec] for spec in wanted]


def versions() -> dict[str, str]:
    """What numbers may depend on: the processor, the versions of this package and of those below it."""
    found = {"ordered-sgd": __version__, "python": platform.python_version(), "machine": platform.machine()}
    found["processor"] = processor()
    for name in ("torch", "numpy", "scipy", "scikit-learn"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def processor() -> str:
    """The name of this machine's processor."""
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
