"""Records as flat rows, one for each epoch of a run: what `osgd records export` writes and `import` reads."""

import csv
import gzip
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from ordered_sgd.errors import RecordError, message
from ordered_sgd.lab.experiments.epoch import EpochRow
from ordered_sgd.lab.experiments.spec import ExperimentSpec
from ordered_sgd.lab.experiments.store import Run

NUMBERS = tuple(field.name for field in fields(EpochRow))
COLUMNS = ("run_id", "spec", "method", "seed", *NUMBERS, "versions")
_LATER = ("scored", "recall")  # columns that older files do not have


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
        content = path.read_bytes()
        text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
        reader = csv.DictReader(io.StringIO(text))
        missing = [name for name in COLUMNS if name not in (reader.fieldnames or ()) and name not in _LATER]
        if missing:
            raise ValueError(f"no column {missing[0]}")
        return _runs(reader)
    except (OSError, EOFError, ValueError, TypeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        remedy = "Write it with: osgd records export"
        raise RecordError(message("records", str(path), "be exported records", reason, remedy)) from error


def _runs(rows: Iterable[Mapping[str, str]]) -> list[Run]:
    found: dict[str, Run] = {}
    for row in rows:
        if row["spec"] not in found:
            spec = ExperimentSpec.from_json(row["spec"])
            found[row["spec"]] = Run(spec, json.loads(row["versions"]), [], finished=False)
        found[row["spec"]].rows.append(EpochRow(**{name: _value(name, row.get(name, "")) for name in NUMBERS}))
    return [run._replace(finished=_over(run)) for run in found.values()]


def _value(name: str, text: str) -> Any:
    """A cell as its field has it: ``engine`` is text, whole numbers are counts, nothing is None."""
    if name == "engine":
        return text
    return None if text == "" else json.loads(text.lower()) if name == "diverged" else _PARSE[name](text)


_PARSE = {name: int if name in ("epoch", "q", "samples", "backpropagated", "scored") else float for name in NUMBERS}


def _over(run: Run) -> bool:
    return len(run.rows) == run.spec.epochs or run.rows[-1].diverged
