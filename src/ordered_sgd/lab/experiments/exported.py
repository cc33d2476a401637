"""Records as flat rows, one for each epoch of a run: what `osgd records export` writes and `import` reads."""

import csv
import gzip
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from ordered_sgd.errors import RecordError, message
from ordered_sgd.lab.experiments.epoch import EpochRow
from ordered_sgd.lab.experiments.spec import ExperimentSpec
from ordered_sgd.lab.experiments.store import Run

NUMBERS = tuple(field.name for field in fields(EpochRow))
COLUMNS = ("run_id", "spec", "method", "seed", *NUMBERS, "versions")
_LATER = (
    "scored",
    "recall",
    "balanced_accuracy",
    "recalls",
    "auc",
    "r2",
    "mae",
    "compile_seconds",
)  # columns that older files do not have


def flat_rows(runs: Iterable[Run], digits: int | None = None) -> Iterator[dict[str, Any]]:
    """One flat row for each epoch, unique in run_id, spec, method, seed and epoch together.

    Parameters
    ----------
    runs
        Those that are to be exported.
    digits
        Significant digits of measured numbers; None: all.
    """
    for run in runs:
        head = {
            "run_id": run.spec.run_id,
            "spec": run.spec.to_json(),
            "method": run.spec.method_name,
            "seed": run.spec.seed,
        }
        versions = json.dumps(run.versions, sort_keys=True)
        for row in run.rows:
            numbers = {name: _short(getattr(row, name), digits) for name in NUMBERS}
            yield {**head, **numbers, "lr": row.lr, "versions": versions}  # controls are found by the rates


def _short(value: Any, digits: int | None) -> Any:
    return float(f"{value:.{digits}g}") if isinstance(value, float) and digits is not None else value


def write_csv(rows: Iterable[Mapping[str, Any]], file: Any) -> None:
    """The rows as CSV with a header; an empty cell stands for None."""
    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def read_csv(path: Path) -> list[Run]:
    """The runs of an exported CSV file, which may be compressed (``.gz``); over are those with all their epochs."""
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8", newline="") as file:
            reader = csv.reader(file)
            header = next(reader, [])
            missing = [name for name in COLUMNS if name not in header and name not in _LATER]
            if missing:
                raise ValueError(f"no column {missing[0]}")
            return _runs(header, reader)
    except (OSError, EOFError, ValueError, TypeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        remedy = "Write it with: osgd records export"
        raise RecordError(message("records", str(path), "be exported records", reason, remedy)) from error


def _runs(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[Run]:
    found: dict[str, Run] = {}
    spec_at, versions_at = header.index("spec"), header.index("versions")
    present = [(name, header.index(name), _PARSE[name]) for name in NUMBERS if name in header]
    for row in filter(None, rows):  # without empty lines
        if len(row) != len(header):
            raise ValueError(f"a row of {len(row)} cells below {len(header)} columns")
        text = row[spec_at]
        if text not in found:
            found[text] = Run(ExperimentSpec.from_json(text), json.loads(row[versions_at]), [], finished=False)
        found[text].rows.append(EpochRow(**{name: parse(row[at]) for name, at, parse in present if row[at]}))
    return [run._replace(finished=_over(run)) for run in found.values()]


def _whether(text: str) -> bool:
    return bool(json.loads(text.lower()))


_COUNTS = ("epoch", "q", "samples", "backpropagated", "scored")
_PARSE: dict[str, Any] = {name: int if name in _COUNTS else float for name in NUMBERS}
_PARSE |= {"engine": str, "recalls": str, "diverged": _whether}


def _over(run: Run) -> bool:
    return len(run.rows) == run.spec.epochs or run.rows[-1].diverged
