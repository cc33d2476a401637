"""Everything that was asked for, from the records: tables, sentences and figures, as sections of a report."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ordered_sgd.errors import ArgumentError, MissingExtraError, RecordError
from ordered_sgd.lab.experiments.comparison import RunAll, compare
from ordered_sgd.lab.experiments.exported import read_csv
from ordered_sgd.lab.experiments.recipes.exhibit import Reproduced
from ordered_sgd.lab.experiments.requests import Request, reproduce
from ordered_sgd.lab.experiments.results import RESULTS
from ordered_sgd.lab.experiments.spec import ExperimentSpec
from ordered_sgd.lab.experiments.store import among
from ordered_sgd.lab.report.attempts import Attempts, could_not
from ordered_sgd.lab.report.curves import draw_curves
from ordered_sgd.lab.report.data_map import chosen_by
from ordered_sgd.lab.report.figure2 import FIGURE_2, draw_gamma
from ordered_sgd.lab.report.findings import verdicts
from ordered_sgd.lab.report.marked import fill, markdown_table
from ordered_sgd.lab.report.overview import NOTES, numbered, overview
from ordered_sgd.lab.report.page import ReadArtifact, Section
from ordered_sgd.lab.report.pictures import pictures
from ordered_sgd.lab.report.reruns import rerun_notes, reruns
from ordered_sgd.lab.report.summary import comparison_table
from ordered_sgd.lab.report.tried import NOTES as TRIED
from ordered_sgd.lab.report.tried import TITLE as NOT_AS_PRINTED
from ordered_sgd.lab.report.tried import as_table, in_sentences, tried
from ordered_sgd.lab.report.verdicts import found, table

IN_SHORT = "In short"  # the first section, where there is something to count
_RERUNS = "Beside independent reruns of the authors' scripts"
Asked = Sequence[tuple[Request, Sequence[Reproduced]]]


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
        except MissingExtraError:
            raise
        except (RecordError, ArgumentError) as error:  # a request of another version may hold what is refused now
            parts.append(Section(_title(request), [f"Not finished: {error}"], []))
        except Exception as error:  # the others are worth showing
            parts.append(Section(_name_of(request), [], [], missing=(could_not("this section", error),)))
    return [*_in_short(asked), *parts, *_beside_the_paper(asked)]


def _in_short(asked: Asked) -> list[Section]:
    attempts = Attempts()
    counted = attempts("the counts", partial(overview, asked), [])
    if len(counted) > 1 or attempts.missing:
        return [Section(IN_SHORT, [], counted, notes=NOTES if counted else (), missing=attempts.missing)]
    return []


def _beside_the_paper(asked: Asked) -> list[Section]:
    """What a report on the paper has at its end: Figure 2, which needs no training; what was tried; reruns."""
    parts, attempts = [], Attempts()
    if asked:
        title, note = "Figure 2: the weight of a sample by the rank of its loss", "Drawn by osgd gamma --figure2."
        drawn = attempts.pictures({"n gamma by rank": partial(draw_gamma, FIGURE_2)})
        parts.append(Section(title, [], [], drawn, (note,), missing=attempts.missing))
    attempts = Attempts()
    missed = attempts("the rows and their settings", partial(tried, asked), {})
    if missed or attempts.missing:
        said = attempts("the sentences", partial(in_sentences, missed), [])
        lines = attempts("the table", partial(as_table, missed), [])
        parts.append(Section(NOT_AS_PRINTED, said, lines, notes=TRIED, missing=attempts.missing))
    attempts = Attempts()
    several = [(one, result) for one, results in asked for result in results]
    lines = attempts("the table", partial(reruns, several), [])
    if lines or attempts.missing:
        notes = rerun_notes(lines) if lines else ()
        parts.append(Section(_RERUNS, [], lines, notes=notes, missing=attempts.missing))
    return parts


def results_sections(exported: Path) -> list[Section]:
    """The sections of RESULTS.md, from exported records."""
    runs = read_csv(exported)
    requests = [{"command": "reproduce", **request.to_dict()} for request in RESULTS]
    return sections(requests, partial(among, runs))


def _title(request: Mapping[str, Any]) -> str:
    if request["command"] == "compare":
        spec = ExperimentSpec.from_json(request["base"])
        data = Path(spec.data).name if Path(spec.data).is_absolute() else spec.data  # a file goes by its name
        return f"Comparison on {', '.join(dict.fromkeys([data, spec.model]))}"  # a function is both
    return f"{numbered(request['exhibit'])}, protocol {request['protocol']}"


def _name_of(request: Mapping[str, Any]) -> str:
    """The title of a section that cannot be made, even if its title cannot."""
    return Attempts()("the title", partial(_title, request), f"{request.get('command', 'A request')}")


def _compared(request: Mapping[str, Any], run_all: RunAll, artifact: ReadArtifact) -> Section:
    base = ExperimentSpec.from_json(request["base"])
    extra = [ExperimentSpec.from_json(text) for text in request["extra"]]
    arms = compare(base, run_all, trials=request["trials"], tune=request["tune"], extra=extra)
    given, tuned = [arm for arm in arms if not arm.tuned], [arm for arm in arms if arm.tuned]
    makers: dict[str, Callable[[], Any]] = {"Learning curves": partial(draw_curves, given)}
    if tuned:
        makers["Learning curves at the best rates"] = partial(draw_curves, tuned)
    attempts = Attempts()
    notes = [f"{request['trials']} seeds, {base.epochs} epochs, {request['samples']}."]
    chosen = attempts("what the tracker of samples saw", partial(chosen_by, arms, artifact), None)
    if chosen is not None:
        makers |= chosen.pictures
        notes.append(chosen.found)
    return Section(
        _title({"command": "compare", **request}),
        attempts("the sentences", partial(verdicts, arms), []),
        attempts("the table", partial(comparison_table, arms, "cpu_seconds"), []),
        attempts.pictures(makers),
        notes,
        missing=attempts.missing,
    )


def _reproduced(request: Request, results: Sequence[Reproduced], artifact: ReadArtifact) -> Section:
    shown = request.shown()
    smaller = ", smaller" if any(one.row.shrunk for one in results) and not shown.compared else ""
    title = f"{numbered(shown.name)}: {shown.title}; protocol {request.how.name}{smaller}"
    notes = dict.fromkeys(
        [f"{request.trials} seeds.", *shown.notes, *(note for one in results for note in one.row.notes)]
    )
    attempts = Attempts()
    return Section(
        title,
        attempts("the sentences", partial(found, results, shown), []),
        attempts("the table", partial(table, results, shown), []),
        attempts.pictures(pictures(shown, results, artifact)),
        tuple(notes),
        shown.name,
        missing=attempts.missing,
    )


def markdown(parts: Sequence[Section], heading: str) -> str:
    """The sections as a Markdown document, without figures."""
    lines = [f"# {heading}", "", "Generated from records by `osgd report --markdown`; do not edit.", ""]
    for part in parts:
        if part.found or part.rows or part.missing:  # else it is all figures
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
    return [*lines, *(f"*{note}*  " for note in (*part.notes, *part.missing))]
