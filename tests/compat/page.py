"""The page of the model matrix, from its record.

Run: python -m tests.compat.page models.jsonl
to take observations into the record and write the tables; without a file, to write the tables again.
"""

import json
import re
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.compat.models import MODELS
from tests.compat.observe import TOLERANCE
from tests.compat.run import read

ROOT = Path(__file__).parents[2]
RECORD, PAGE = ROOT / "docs" / "records" / "models.json", ROOT / "docs" / "models.md"
KEPT = ("ran", "error", "why", "share", "failed", "warnings")  # of an observation; the rest depends on the machine
BETWEEN = re.compile(r"(?<=<!-- models -->\n).*?(?=<!-- /models -->)", flags=re.DOTALL)
IN_PART = "rows in part"
SELECTIVE = ("rows", "twopass", IN_PART)
WAYS = ("auto", "rows", "selective")


def recorded(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The record of observations: the last one of each model that the matrix still has, in its order."""
    last = {one["name"]: one for one in found}
    models = [_kept(last[name]) for name in MODELS if name in last]
    return {"versions": {name: version(name) for name in ("torch", "transformers", "timm", "peft")}, "models": models}


def _kept(one: dict[str, Any]) -> dict[str, Any]:
    ways = {
        way: {key: _short(one[way][key]) for key in KEPT if one[way].get(key) not in (None, [])}
        for way in (*WAYS, "float64")
        if way in one
    }
    given = {key: one[key] for key in ("name", "coupled", "set_aside", "failed") if key in one}
    return {**given, **ways}


def _short(value: Any) -> Any:
    return float(f"{value:.1e}") if isinstance(value, float) else value


def dumped(record: dict[str, Any]) -> str:
    """The record as a file, one model in a line."""
    lines = ",\n".join(json.dumps(one) for one in record["models"])
    return f'{{"versions": {json.dumps(record["versions"])},\n"models": [\n{lines}\n]}}\n'


def tables(record: dict[str, Any]) -> str:
    """What stands between the marks of the page."""
    models, versions = record["models"], record["versions"]
    parts = [", ".join(f"{name} {number}" for name, number in versions.items()) + ".", _summary(models)]
    for title, aside in (("Models looked at during the work", False), ("Models set aside", True)):
        rows = [_row(one) for one in models if one["set_aside"] == aside]
        if rows:
            head = "| model | `auto` runs | `selective_backward` | largest error | reason |"
            parts += [f"### {title}", "\n".join([head, "| --- | --- | --- | --- | --- |", *rows])]
    return "\n\n" + "\n\n".join(parts) + "\n\n"


def _summary(models: Sequence[dict[str, Any]]) -> str:
    head = "| | models | coupled | not observed | others | selective under `auto` | of them in part | largest error |"
    lines = [head, "| --- | --- | --- | --- | --- | --- | --- | --- |"]
    groups = {"looked at": False, "set aside": True}
    for title, aside in groups.items():
        group = [one for one in models if one["set_aside"] == aside]
        apart = [one for one in group if not one["coupled"]]
        chosen = [one for one in apart if is_selective(one)]
        share = f"{len(chosen)} ({len(chosen) / len(apart):.0%})" if apart else "–"
        failed = sum(reason_failed(one) is not None for one in group)
        cells = (
            title,
            len(group),
            len(group) - len(apart),
            failed,
            len(apart),
            share,
            sum(one["auto"]["ran"] == IN_PART for one in chosen),
            _error(max(map(error_of, group), default=0.0)),
        )
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def is_selective(one: dict[str, Any]) -> bool:
    """Whether `auto` leaves samples out."""
    return one.get("auto", {}).get("ran") in SELECTIVE


def error_of(one: dict[str, Any]) -> float:
    """The largest error of a model's gradients and buffers, in any of the ways that it was run."""
    return max((one.get(way, {}).get("error", 0.0) for way in WAYS), default=0.0)


def is_exact(one: dict[str, Any]) -> bool:
    """Whether the errors are those of rounding: small, or small in float64 where float32 rounds more."""
    return error_of(one) <= TOLERANCE or one.get("float64", {}).get("error", 1.0) <= 1e-11


def reason_failed(one: dict[str, Any]) -> str | None:
    """Why one of the ways could not be observed; None if all were."""
    ways = (one, *(one.get(way, {}) for way in WAYS))
    return next((way["failed"] for way in ways if "failed" in way), None)


def _row(one: dict[str, Any]) -> str:
    auto, selective = one.get("auto", {}), one.get("selective", {})
    reasons = [reason_failed(one), auto.get("why"), selective.get("why")]
    reason = "; ".join(dict.fromkeys(reason for reason in reasons if reason))
    reason = f"samples are coupled: {reason}" if one["coupled"] else reason
    if "float64" in one:
        reason = f"{reason} {_error(one['float64']['error'])} in float64: the plain gradient rounds as much".strip()
    cells = (
        one["name"],
        auto.get("ran", "failed"),
        selective.get("ran", "failed"),
        _error(error_of(one)),
        _cell(reason),
    )
    return "| " + " | ".join(cells) + " |"


def _error(error: float) -> str:
    return "0" if error == 0 else f"{error:.0e}"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def page(text: str, record: dict[str, Any]) -> str:
    """The page with the tables of the record between its marks."""
    return BETWEEN.sub(lambda _: tables(record), text)


def main() -> None:
    """Take up the observations that the command line names, and write record and page."""
    if sys.argv[1:]:
        found = [one for name in sys.argv[1:] for one in read(Path(name))]
        RECORD.write_text(dumped(recorded(found)), encoding="utf-8")
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), record), encoding="utf-8")


if __name__ == "__main__":
    main()
