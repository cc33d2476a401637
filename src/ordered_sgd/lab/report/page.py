"""One self-contained HTML page: no network, no script; for the desk, the phone, the dark and the printer."""

from collections.abc import Sequence
from importlib import resources
from typing import Any

from ordered_sgd import __version__
from ordered_sgd.errors import require
from ordered_sgd.lab.data.dataset import Dataset
from ordered_sgd.lab.experiments.comparison import Arm
from ordered_sgd.lab.experiments.spec import ExperimentSpec
from ordered_sgd.lab.report.canvas import as_svg
from ordered_sgd.lab.report.curves import draw_curves
from ordered_sgd.lab.report.data_map import chosen_by
from ordered_sgd.lab.report.sections import ReadArtifact, Section


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
    figures = [("At the given rate", as_svg(draw_curves(given)))]
    if tuned:
        figures.append(("Each at its best rate", as_svg(draw_curves(tuned))))
    chosen = chosen_by(arms, artifact)
    if chosen is not None:
        figures += [(heading, as_svg(picture)) for heading, picture in chosen.pictures.items()]
        verdicts = [*verdicts, chosen.found]
    facts = {
        "data": f"{train.label}: {len(train):,} training and {len(test):,} test samples",
        "licence of the data": train.licence,
        "model": base.model,
        "spec": base.to_json(),
        "versions": ", ".join(f"{name} {number}" for name, number in arms[0].runs[0].versions.items()),
        "runs": ", ".join(run.spec.run_id for arm in arms for run in arm.runs),
    }
    return render(
        "compare.html",
        title=f"Ordered SGD on {train.name}",
        verdicts=verdicts,
        rows=rows,
        figures=figures,
        facts={name: text for name, text in facts.items() if text},
    )


def report_page(parts: Sequence[Section]) -> str:
    """The report of everything that was recorded."""
    drawn = [
        {
            "title": part.title,
            "found": part.found,
            "rows": part.rows,
            "notes": part.notes,
            "pictures": {heading: as_svg(figure) for heading, figure in part.figures.items()},
        }
        for part in parts
    ]
    return render("report.html", title="Ordered SGD: results", parts=drawn)


def render(template: str, **values: Any) -> str:
    """A template of this package filled in; text is escaped."""
    jinja2 = require("jinja2", extra="lab", where="osgd")
    folder = resources.files("ordered_sgd.lab.report") / "templates"
    loader = jinja2.FunctionLoader(lambda name: (folder / name).read_text(encoding="utf-8"))
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    environment.filters["number"] = lambda value, digits: (
        "–" if value is None else f"{round(value, digits) + 0:.{digits}f}"
    )
    text: str = environment.get_template(template).render(version=__version__, **values)
    return text
