"""Everything that was asked for, from the records: tables, verdicts and figures, as HTML and as Markdown."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ordered_sgd.errors import RecordError
from ordered_sgd.experiments.compare import compare
from ordered_sgd.experiments.recipes import exhibit, preset
from ordered_sgd.experiments.records import Records
from ordered_sgd.experiments.reproduce import Reproduced, reproduce
from ordered_sgd.experiments.spec import ExperimentSpec
from ordered_sgd.report.compare import interval, spread, summary, verdicts
from ordered_sgd.report.curves import draw_curves
from ordered_sgd.report.reproduce import table, verdict


@dataclass(frozen=True)
class Section:
    """A part of the report: what was found in words, a table of text, figures by title, and notes."""

    title: str
    found: Sequence[str]
    rows: Sequence[Mapping[str, str]]
    figures: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()


def sections(records: Records) -> list[Section]:
    """A section for every request that is recorded, in the order in which they were made; an unfinished one says so."""
    makers = {"compare": _compared, "reproduce": _reproduced}
    parts = []
    for request in records.requests():
        try:
            parts.append(makers[request["command"]](request, records))
        except RecordError as error:
            parts.append(Section(_title(request), [f"Not finished: {error}"], []))
    return parts


def _title(request: Mapping[str, Any]) -> str:
    if request["command"] == "compare":
        spec = ExperimentSpec.from_json(request["base"])
        return f"Comparison on {spec.data}, {spec.model}"
    return f"{request['exhibit']}, protocol {request['protocol']}"


def _compared(request: Mapping[str, Any], records: Records) -> Section:
    base = ExperimentSpec.from_json(request["base"])
    extra = [ExperimentSpec.from_json(text) for text in request["extra"]]
    arms = compare(base, records.recorded, trials=request["trials"], tune=request["tune"], extra=extra)
    rows = [
        {
            "method": row["method"],
            "last epoch": spread(row["error"], row["std"]),
            "best epoch": spread(row["best_error"], row["best_std"]),
            "against the first": interval(row["difference"], row["half_width"]),
            "cross-entropy": _number(row["cross_entropy"]),
            "scaled": _number(row["cross_entropy_scaled"]),
            "calibration error": _number(row["calibration_error"]),
            "s per epoch": _number(row["seconds_per_epoch"]),
            "s to SGD's error": f"{_number(row['seconds_to_error'])} ({row['reached']}/{row['seeds']})",
        }
        for row in summary(arms)
    ]
    figures = {"Learning curves": draw_curves([arm for arm in arms if not arm.tuned])}
    if any(arm.tuned for arm in arms):
        figures["Learning curves at the best rates"] = draw_curves([arm for arm in arms if arm.tuned])
    note = f"{request['trials']} seeds, {base.epochs} epochs, {request['samples']}."
    return Section(_title(request), verdicts(arms), rows, figures, (note,))


def _reproduced(request: Mapping[str, Any], records: Records) -> Section:
    shown = exhibit(request["exhibit"], preset(request["protocol"], **request["switches"]))
    rows = [row.shrink(**request["shrink"]) for row in shown.pick(request["rows"])]
    results = reproduce(rows, records.recorded, trials=request["trials"])
    figures = {one.row.title: _figure(one, shown.number) for one in results if shown.name.startswith("figure")}
    notes = dict.fromkeys([*shown.notes, *(note for one in results for note in one.row.notes)])
    title = (
        f"{_numbered(shown.name)}: {shown.title}; protocol {preset(request['protocol'], **request['switches']).name}"
    )
    found = [verdict(one, shown.number) for one in results]
    return Section(title, found, table(results, shown.number), figures, (f"{request['trials']} seeds.", *notes))


def _figure(one: Reproduced, number: str) -> Any:
    label = {"test_error": "test error (%)", "train_accuracy": "training accuracy", "train_loss": "training loss L"}
    return draw_curves(one.arms, {number: label.get(number, number), "train_loss": "training loss L"})


def _numbered(name: str) -> str:
    """``table1`` as Table 1.

    >>> _numbered("figure4"), _numbered("ablation")
    ('Figure 4', 'Ablation')
    """
    word = name.rstrip("0123456789")
    return f"{word.capitalize()} {name[len(word) :]}".strip()


def markdown(parts: Sequence[Section], heading: str) -> str:
    """The sections as a Markdown document, without figures."""
    lines = [f"# {heading}", "", "Generated from records by `osgd report --markdown`; do not edit.", ""]
    for part in parts:
        lines += [f"## {part.title}", "", *(f"- {sentence}" for sentence in part.found), ""]
        if part.rows:
            heads = list(part.rows[0])
            lines += [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
            lines += [f"| {' | '.join(row[head] for head in heads)} |" for row in part.rows]
            lines.append("")
        lines += [*(f"*{note}*" for note in part.notes), ""]
    return "\n".join(lines).rstrip() + "\n"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"
