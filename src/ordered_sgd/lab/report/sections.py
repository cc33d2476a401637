"""Everything that was asked for, from the records: tables, sentences and figures, as sections of a report."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ordered_sgd.errors import ArgumentError, RecordError
from ordered_sgd.lab.experiments.comparison import RunAll, compare
from ordered_sgd.lab.experiments.exported import read_csv
from ordered_sgd.lab.experiments.recipes.exhibit import Exhibit, Reproduced
from ordered_sgd.lab.experiments.requests import Request, reproduce
from ordered_sgd.lab.experiments.results import RESULTS
from ordered_sgd.lab.experiments.spec import ExperimentSpec
from ordered_sgd.lab.experiments.store import among
from ordered_sgd.lab.report.boundaries import draw_boundaries
from ordered_sgd.lab.report.curves import draw_along, draw_curves, draw_panels, draw_times
from ordered_sgd.lab.report.data_map import chosen_by
from ordered_sgd.lab.report.figure2 import FIGURE_2, draw_gamma
from ordered_sgd.lab.report.findings import verdicts
from ordered_sgd.lab.report.marked import fill, markdown_table
from ordered_sgd.lab.report.overview import NOTES, numbered, overview
from ordered_sgd.lab.report.page import ReadArtifact, Section
from ordered_sgd.lab.report.reruns import rerun_notes, reruns
from ordered_sgd.lab.report.summary import comparison_table
from ordered_sgd.lab.report.tried import NOTES as TRIED
from ordered_sgd.lab.report.tried import TITLE as NOT_AS_PRINTED
from ordered_sgd.lab.report.tried import as_table, in_sentences, tried
from ordered_sgd.lab.report.verdicts import found, table

IN_SHORT = "In short"  # the first section, where there is something to count


def sections(
    requests: Iterable[Mapping[str, Any]], run_all: RunAll, artifact: ReadArtifact = lambda spec, name: None
) -> list[Section]:
    """Counts of what was found, a section for every request, what was tried, and independent reruns.

    A request whose runs are not all over says so.

    Parameters
    ----------
    requests
        As `Records.requests` gives them.
    run_all
        Looks runs up: `Records.recorded`.
    artifact
        Looks up what a run left beside its numbers: `Records.artifact`.
    """
    parts, asked = [], []
    for request in requests:
        kept = {name: value for name, value in request.items() if name != "command"}
        try:
            if request["command"] == "compare":
                parts.append(_compared(kept, run_all, artifact))
                continue
            one = Request.from_dict(kept)
            results = reproduce(one.shown().rows, run_all, trials=one.trials)
            asked.append((one, results))
            parts.append(_reproduced(one, results, artifact))
        except (RecordError, ArgumentError) as error:  # a request of another version may hold what is refused now
            parts.append(Section(_title(request), [f"Not finished: {error}"], []))
    counted = overview(asked)
    if len(counted) > 1:
        parts.insert(0, Section(IN_SHORT, [], counted, notes=NOTES))
    if asked:  # a report on the paper has its Figure 2 as well, which needs no training
        title = "Figure 2: the weight of a sample by the rank of its loss"
        note = "Drawn by osgd gamma --figure2."
        parts.append(Section(title, [], [], {"n gamma by rank": draw_gamma(FIGURE_2)}, (note,)))
    missed = tried(asked)
    if missed:
        parts.append(Section(NOT_AS_PRINTED, in_sentences(missed), as_table(missed), notes=TRIED))
    lines = reruns([(one, result) for one, results in asked for result in results])
    if lines:
        parts.append(Section("Beside independent reruns of the authors' scripts", [], lines, notes=rerun_notes(lines)))
    return parts


def results_sections(exported: Path) -> list[Section]:
    """The sections of RESULTS.md, from exported records."""
    runs = read_csv(exported)
    requests = [{"command": "reproduce", **request.to_dict()} for request in RESULTS]
    return sections(requests, partial(among, runs))


def _title(request: Mapping[str, Any]) -> str:
    if request["command"] == "compare":
        spec = ExperimentSpec.from_json(request["base"])
        return f"Comparison on {', '.join(dict.fromkeys([spec.data, spec.model]))}"  # a function is both
    return f"{numbered(request['exhibit'])}, protocol {request['protocol']}"


def _compared(request: Mapping[str, Any], run_all: RunAll, artifact: ReadArtifact) -> Section:
    base = ExperimentSpec.from_json(request["base"])
    extra = [ExperimentSpec.from_json(text) for text in request["extra"]]
    arms = compare(base, run_all, trials=request["trials"], tune=request["tune"], extra=extra)
    figures = {"Learning curves": draw_curves([arm for arm in arms if not arm.tuned])}
    if any(arm.tuned for arm in arms):
        figures["Learning curves at the best rates"] = draw_curves([arm for arm in arms if arm.tuned])
    notes = [f"{request['trials']} seeds, {base.epochs} epochs, {request['samples']}."]
    chosen = chosen_by(arms, artifact)
    if chosen is not None:
        figures |= chosen.pictures
        notes.append(chosen.found)
    return Section(_title({"command": "compare", **request}), verdicts(arms), comparison_table(arms), figures, notes)


def _reproduced(request: Request, results: Sequence[Reproduced], artifact: ReadArtifact) -> Section:
    shown = request.shown()
    smaller = ", smaller" if any(one.row.shrunk for one in results) and not shown.compared else ""
    title = f"{numbered(shown.name)}: {shown.title}; protocol {request.how.name}{smaller}"
    notes = dict.fromkeys(
        [f"{request.trials} seeds.", *shown.notes, *(note for one in results for note in one.row.notes)]
    )
    return Section(
        title,
        found(results, shown),
        table(results, shown),
        _figures(shown, results, artifact),
        tuple(notes),
        shown.name,
    )


def _figures(shown: Exhibit, results: Sequence[Reproduced], artifact: ReadArtifact) -> dict[str, Any]:
    """The pictures of an exhibit: boundaries for Figure 1, error over time for whole trainings, curves for others."""
    if shown.crossed or shown.serial:
        return {}
    if shown.along:
        return {shown.title: draw_along(results, shown.along, shown.number)}
    if shown.compared:
        return {one.row.title: draw_times(one.arms) for one in results}
    pictures = {"Learning curves": draw_panels(results, shown.number)}
    if shown.name == "figure1":
        drawn = draw_boundaries(results, artifact)
        pictures = {**({"Decision boundaries, seed 0": drawn} if drawn is not None else {}), **pictures}
    return pictures


def markdown(parts: Sequence[Section], heading: str) -> str:
    """The sections as a Markdown document, without figures."""
    lines = [f"# {heading}", "", "Generated from records by `osgd report --markdown`; do not edit.", ""]
    for part in parts:
        if part.found or part.rows:  # else it is all figures
            lines += [f"## {part.title}", "", *_body(part), ""]
    return "\n".join(lines).rstrip() + "\n"


def filled(page: str, parts: Sequence[Section]) -> tuple[str, dict[str, Any]]:
    """The page with sections between the marks of their exhibits, and their figures by the name of a file."""
    figures: dict[str, Any] = {}
    for part in parts:
        if part.name and f"<!-- {part.name} -->" in page:
            files = {f"{part.name}{number or ''}": figure for number, figure in enumerate(part.figures.values())}
            links = [f"![{part.title}]({name}.svg)" for name in files]
            page = fill(page, part.name, ["\n".join(_body(part)).strip(), *links])
            figures |= files
    return page, figures


def _body(part: Section) -> list[str]:
    lines = [*(f"- {sentence}" for sentence in part.found), ""]
    if part.rows:
        lines += [markdown_table(part.rows), ""]
    return [*lines, *(f"*{note}*  " for note in part.notes)]
