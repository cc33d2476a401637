import csv
import gzip
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from ordered_sgd.errors import RecordError
from ordered_sgd.lab.experiments.epoch import EpochRow
from ordered_sgd.lab.experiments.exported import COLUMNS, flat_rows, read_csv, write_csv
from ordered_sgd.lab.experiments.spec import ExperimentSpec
from ordered_sgd.lab.experiments.store import Run

SPEC = ExperimentSpec(epochs=2, model_options=(("hidden", 3),))
ROW = EpochRow(1, 64, 0.012345, "dense", seconds=1 / 3, samples=128, backpropagated=64, test_error=1.5)
DIVERGED = EpochRow(1, 64, 0.01, diverged=True)
RUNS = [
    Run(SPEC, {"torch": "2"}, [ROW, replace(ROW, epoch=2)], finished=True),
    Run(SPEC.but(seed=1), {"torch": "2"}, [DIVERGED], finished=True),
    Run(SPEC.but(seed=2), {"torch": "2"}, [ROW], finished=False),
]


def written(path: Path, digits: int | None = None) -> Path:
    file = io.StringIO()
    write_csv(flat_rows(RUNS, digits), file)
    text = file.getvalue().encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


@pytest.mark.parametrize("name", ["r.csv", "r.csv.gz"])
def test_what_was_written_is_read_to_the_last_bit(tmp_path: Path, name: str) -> None:
    assert read_csv(written(tmp_path / name)) == RUNS


def test_a_file_from_before_a_column_was_added_is_read(tmp_path: Path) -> None:
    with (tmp_path / "old.csv").open("w") as file:
        older = csv.DictWriter(file, [name for name in COLUMNS if name not in ("scored", "recall")])
        older.writeheader()
        older.writerows({name: row[name] for name in older.fieldnames} for row in flat_rows(RUNS))
    assert read_csv(tmp_path / "old.csv") == RUNS


def test_rows_are_flat_and_unique() -> None:
    rows = list(flat_rows(RUNS))
    keys = {tuple(row[name] for name in ("run_id", "spec", "method", "seed", "epoch")) for row in rows}
    assert len(rows) == len(keys) == 4
    assert tuple(rows[0]) == COLUMNS
    json.dumps(rows, allow_nan=False)


def test_fewer_digits_leave_counts_and_rates_alone(tmp_path: Path) -> None:
    row = read_csv(written(tmp_path / "r.csv", digits=3))[0].rows[0]
    assert row == replace(ROW, seconds=0.333)  # the rate as it is: a control is found by it


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"a,b\n1,2\n", "no column run_id"),
        (b"", "no column run_id"),
        (b"\xff\xfe", "codec can't decode"),
        (",".join(COLUMNS).encode() + b"\n" + b"," * (len(COLUMNS) - 1) + b"\n", "Expecting value"),
        (",".join(COLUMNS).encode() + b"\n1,{}\n", "a row of 2 cells"),
    ],
)
def test_what_is_no_export_is_refused_with_the_reason(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "r.csv"
    path.write_bytes(content)
    with pytest.raises(RecordError, match=reason):
        read_csv(path)


def test_a_file_cut_short_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "r.csv.gz")
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(RecordError, match=r"must be exported records; got Compressed file ended"):
        read_csv(path)
