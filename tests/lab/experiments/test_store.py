import multiprocessing
import os
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from ordered_sgd.errors import RecordError
from ordered_sgd.lab.experiments.epoch import EpochRow
from ordered_sgd.lab.experiments.spec import ExperimentSpec
from ordered_sgd.lab.experiments.store import Records, Run, home

SPEC = ExperimentSpec(epochs=2)
ROW = EpochRow(1, 64, 0.01, "dense", seconds=0.5, test_error=1.5)


@pytest.fixture
def records(tmp_path: Path) -> Records:
    return Records(tmp_path / "new" / "folder")


def test_what_was_added_comes_back(records: Records) -> None:
    records.begin(SPEC)
    records.add(SPEC, ROW)
    records.add(SPEC, replace(ROW, epoch=2, test_error=None, diverged=True))
    records.add_artifact(SPEC, "boundary", b"\x00\x01")
    run = records.get(SPEC)
    assert run is not None
    assert run.spec == SPEC
    assert run.rows[0] == ROW
    assert run.rows[1].test_error is None
    assert run.rows[1].diverged
    assert not run.finished
    assert run.versions["torch"]
    assert records.artifact(SPEC, "boundary") == b"\x00\x01"
    assert records.artifact(SPEC, "counts") is None
    records.finish(SPEC)
    assert records.get(SPEC).finished  # type: ignore[union-attr]


def test_an_epoch_is_recorded_once_and_a_run_again_only_on_request(records: Records) -> None:
    records.begin(SPEC)
    records.add(SPEC, ROW)
    records.add(SPEC, replace(ROW, seconds=9.0))
    records.begin(SPEC)
    assert [row.seconds for row in records.get(SPEC).rows] == [0.5]  # type: ignore[union-attr]
    records.add_artifact(SPEC, "boundary", b"old")
    records.begin(SPEC, again=True)
    assert records.get(SPEC).rows == []  # type: ignore[union-attr]
    assert records.artifact(SPEC, "boundary") is None


def test_a_finished_run_is_replaced_when_the_new_one_is_over_and_not_before(records: Records) -> None:
    records.begin(SPEC)
    records.add(SPEC, ROW)
    records.add_artifact(SPEC, "boundary", b"old")
    records.finish(SPEC)
    old, new = records.runs(), replace(ROW, seconds=9.0)
    for _ in range(2):  # interrupted, and begun once more
        records.begin(SPEC, again=True, on={"torch": "new"})
        records.begin(SPEC)  # a worker was replaced: it goes on
        records.add(SPEC, new)
        records.add_artifact(SPEC, "boundary", b"new")
        assert records.runs() == records.recorded([SPEC]) == old
        assert records.get(SPEC) == Run(SPEC, {"torch": "new"}, [new], finished=False)  # so that it can go on
        assert records.artifact(SPEC, "boundary") == b"old"
    records.finish(SPEC)
    assert records.runs() == [Run(SPEC, {"torch": "new"}, [new], finished=True)]
    assert records.artifact(SPEC, "boundary") == b"new"
    records.begin(SPEC, again=True)
    records.remove(SPEC)
    records.begin(SPEC)  # nothing of the one that was not over is left
    records.add(SPEC, ROW)
    assert records.runs() == [records.get(SPEC)]
    assert records.get(SPEC).rows == [ROW]  # type: ignore[union-attr]


def test_an_epoch_of_a_run_that_was_removed_meanwhile_is_refused(records: Records) -> None:
    records.begin(SPEC)
    records.remove(SPEC)
    with pytest.raises(RecordError, match="must keep a run until it is over; got one that was removed meanwhile"):
        records.add(SPEC, ROW)


def test_runs_made_elsewhere_are_taken_up_once(records: Records, tmp_path: Path) -> None:
    records.begin(SPEC)
    records.add(SPEC, ROW)
    other = Records(tmp_path / "other")
    assert other.take(records.runs()) == 0  # not over: its epochs would be mixed with those of this machine
    records.finish(SPEC)
    assert other.take(records.runs()) == 1
    assert other.take(records.runs()) == 0
    assert other.runs() == records.runs()


def test_without_a_file_there_are_no_runs_and_none_is_made(records: Records) -> None:
    assert records.runs() == []
    assert records.get(SPEC) is None
    assert not records.folder.exists()


def _write(folder: Path, seed: int, epochs: int) -> None:
    records, spec = Records(folder), SPEC.but(seed=seed)
    records.begin(spec)
    for epoch in range(1, epochs + 1):
        records.add(spec, replace(ROW, epoch=epoch))


def test_several_processes_write_at_once(records: Records) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write, args=(records.folder, seed, 25)) for seed in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert sorted((run.spec.seed, len(run.rows)) for run in records.runs()) == [(0, 25), (1, 25), (2, 25)]


def test_a_damaged_file_is_named_and_left_as_it_is(records: Records) -> None:
    records.begin(SPEC)
    damaged = b"this is no database" * 100
    records.path.write_bytes(damaged)
    with pytest.raises(RecordError, match=r"records.sqlite must be a database of records; got .* Move it away"):
        records.runs()
    with pytest.raises(RecordError):
        records.add(SPEC, ROW)
    assert records.path.read_bytes() == damaged


def test_a_full_disk_is_said_and_what_was_recorded_stays(records: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    records.begin(SPEC)
    records.add(SPEC, ROW)
    connect = sqlite3.connect

    def small(*args: object, **kwargs: object) -> sqlite3.Connection:
        database = connect(*args, **kwargs)  # type: ignore[call-overload]
        pages = database.execute("PRAGMA page_count").fetchone()[0]
        database.execute(f"PRAGMA max_page_count = {pages}")  # SQLite's own "disk is full"
        return database

    monkeypatch.setattr(sqlite3, "connect", small)
    with pytest.raises(RecordError, match=r"must be writable; got database or disk is full. Free some space"):
        records.add_artifact(SPEC, "large", bytes(10**6))
    monkeypatch.undo()
    assert records.get(SPEC).rows == [ROW]  # type: ignore[union-attr]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(RecordError, match="must be writable"):
        Records(tmp_path / "below").begin(SPEC)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match=r"must be writable; got .* Set ORDERED_SGD_HOME"):
        Records(tmp_path / "file").begin(SPEC)


def test_home_is_read_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ORDERED_SGD_HOME", str(tmp_path))
    assert home() == tmp_path
    assert Records().folder == tmp_path
    monkeypatch.delenv("ORDERED_SGD_HOME")
    assert home().name == "ordered-sgd"


def test_a_run_that_is_forgotten_leaves_no_checkpoint(tmp_path: Path) -> None:
    records, spec = Records(tmp_path), ExperimentSpec(epochs=2)
    records.begin(spec)
    records.checkpoint(spec).parent.mkdir()
    records.checkpoint(spec).write_bytes(b"half a run")
    records.remove(spec)
    assert records.get(spec) is None
    assert not records.checkpoint(spec).exists()
    records.remove(spec)  # not there any more: nothing to do
