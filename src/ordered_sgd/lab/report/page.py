"""One self-contained HTML page: no network, no script; for the desk, the phone, the dark and the printer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import resources
from typing import Any

from ordered_sgd import __version__
from ordered_sgd.errors import require
from ordered_sgd.lab.data.dataset import Dataset
from ordered_sgd.lab.experiments.comparison import Arm
from ordered_sgd.lab.experiments.spec import ExperimentSpec
from ordered_sgd.lab.report.attempts import Attempts
from ordered_sgd.lab.report.canvas import as_svg
from ordered_sgd.lab.report.curves import draw_curves
from ordered_sgd.lab.report.data_map import chosen_by
from ordered_sgd.lab.report.summary import COSTS, ERRORS, MEMORY, remembered, shown
from ordered_sgd.lab.report.targets import UNEXPLAINED, target_table, target_title

ReadArtifact = Callable[[ExperimentSpec, str], bytes | None]


@dataclass(frozen=True)
class Section:
    """A part of the report: what was found in words, a table of text, figures (or PNG files) by title, and notes.

    `missing` says what belongs here and could not be made, and why.
    """

    title: str
    found: Sequence[str]
    rows: Sequence[Mapping[str, str]]
    figures: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()
    name: str = ""  # of the exhibit, which a page asks for it by
    missing: Sequence[str] = ()


def compare_page(
    arms: Sequence[Arm],
    rows: Sequence[dict[str, Any]],
    verdicts: Sequence[str],
    base: ExperimentSpec,
    train: Dataset,
    test: Dataset,
    artifact: ReadArtifact = lambda spec, name: None,
) -> str:
    """The report of a comparison: what was found, the numbers, curves, which samples were chosen, what was run."""
    given, tuned = [arm for arm in arms if not arm.tuned], [arm for arm in arms if arm.tuned]
    attempts = Attempts()
    makers: dict[str, Callable[[], Any]] = {"At the given rate": partial(draw_curves, given)}
    if tuned:
        makers["Each at its best rate"] = partial(draw_curves, tuned)
    chosen = attempts("what the tracker of samples saw", partial(chosen_by, arms, artifact), None)
    if chosen is not None:
        makers |= chosen.pictures
        verdicts = [*verdicts, chosen.found]
    facts = {
        "data": f"{train.label}: {len(train):,} training and {len(test):,} test samples",
        "table": "; ".join(train.table.notes) if train.table is not None else "",
        "licence of the data": train.licence,
        "model": base.model,
        "spec": base.to_json(),
        "versions": ", ".join(f"{name} {number}" for name, number in arms[0].runs[0].versions.items()),
        "runs": ", ".join(run.spec.run_id for arm in arms for run in arm.runs),
    }
    remembers = bool(remembered(rows))
    costs = (*COSTS, *(MEMORY[1:] if remembers else ()))
    return render(
        "compare.html",
        title=f"Ordered SGD on {train.name}",
        verdicts=verdicts,
        errors=attempts("the table of errors", partial(shown, rows, ERRORS, long=True), []),
        error_title="Test error" if train.classes else UNEXPLAINED.capitalize(),
        targets=attempts("the table by target", partial(target_table, arms, train), []),
        target_title=target_title(train),
        costs=attempts("the table of costs", partial(shown, rows, costs, long=True), []),
        remembers=remembers,
        seeds=rows[0]["seeds"],
        figures=_as_svg(attempts.pictures(makers), attempts),
        missing=attempts.missing,
        facts={name: text for name, text in facts.items() if text},
    )


def report_page(parts: Sequence[Section]) -> str:
    """The report of everything that was recorded."""
    return render("report.html", title="Ordered SGD: results", parts=[_with_svg(part) for part in parts])


def _with_svg(part: Section) -> Section:
    attempts = Attempts(list(part.missing))
    return replace(part, figures=_as_svg(part.figures, attempts), missing=attempts.missing)


def _as_svg(figures: Mapping[str, Any], attempts: Attempts) -> dict[str, str]:
    """Text for the page; matplotlib finds some faults only here, such as a formula in a label that has no end."""
    return attempts.pictures({title: partial(as_svg, figure) for title, figure in figures.items()})


def render(template: str, **values: Any) -> str:
    """A template of this package filled in; text is escaped."""
    jinja2 = require("jinja2", extra="lab", where="osgd")
    folder = resources.files("ordered_sgd.lab.report") / "templates"
    loader = jinja2.FunctionLoader(lambda name: (folder / name).read_text(encoding="utf-8"))
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    environment.filters["svg"] = as_svg
    text: str = environment.get_template(template).render(version=__version__, **values)
    return text
