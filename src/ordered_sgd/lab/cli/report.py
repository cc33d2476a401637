"""`osgd report`: everything that was recorded, on one page."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ordered_sgd.errors import ArgumentError, MissingExtraError, message
from ordered_sgd.lab.cli.options import json_option, out_option, show, write

if TYPE_CHECKING:
    from ordered_sgd.lab.report.page import Section


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@out_option("report.html", "The HTML page.")
@click.option(
    "--markdown", "document", type=click.Path(path_type=Path), default=None, help="Also the tables as Markdown."
)
@click.option(
    "--figures", type=click.Path(path_type=Path), default=None, help="Also the figures, as PNG and SVG files."
)
@click.option(
    "--from",
    "exported",
    type=click.Path(exists=True, path_type=Path),
    default=None,
    help="Exported records (CSV) in place of your own: all that RESULTS.md shows.",
)
@click.option(
    "--page",
    "pages",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    help="Also into a Markdown page, between marks such as <!-- memory --> and <!-- /memory -->; may be repeated.",
)
@json_option
def command(
    out: Path,
    document: Path | None,
    figures: Path | None,
    exported: Path | None,
    pages: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Everything that was recorded, as one HTML page that needs no network.

    A section for every comparison and every table or figure of the paper that was run, in the order of the commands.
    """
    from ordered_sgd.lab.report.attempts import Attempts
    from ordered_sgd.lab.report.canvas import save
    from ordered_sgd.lab.report.page import report_page
    from ordered_sgd.lab.report.pictures import file_words
    from ordered_sgd.lab.report.sections import filled, markdown, results_sections

    parts = _own_sections() if exported is None else results_sections(exported)
    written = [write(out, report_page(parts))]
    attempts = Attempts(raised=(MissingExtraError, OSError))
    if document is not None:
        written.append(write(document, markdown(parts, "Results")))
    for page in pages:
        text, drawn = filled(page.read_text(), parts)
        written.append(write(page, text))
        for name, figure in drawn.items():
            written += attempts(name, partial(save, figure, page.with_name(name), (".svg",)), [])
    if figures is not None:
        for number, part in enumerate(parts, 1):
            for title, figure in part.figures.items():
                stem = figures / f"{number:02d}-{file_words(f'{part.name} {title}')}"
                written += attempts(f"the picture “{title}”", partial(save, figure, stem), [])
    _tell(parts, as_json=as_json)
    for sentence in (*(f"{part.title}: {text}" for part in parts for text in part.missing), *attempts.missing):
        click.echo(f"note: {sentence}", err=True)
    for path in written:
        click.echo(f"written: {path}", err=True)


def _tell(parts: Sequence["Section"], *, as_json: bool) -> None:
    """Print what was found: the sentences of every section, and a table of what was counted or is on the page."""
    if as_json:
        show([{"section": part.title, "found": " ".join(part.found)} for part in parts], title="", as_json=True)
        return
    from ordered_sgd.lab.report.sections import IN_SHORT

    for part in parts:
        if part.found:
            click.echo("\n".join([part.title, *(f"- {sentence}" for sentence in part.found), ""]))
    counted = next((part.rows for part in parts if part.title == IN_SHORT), None)
    contents = [{"section": part.title, "lines": len(part.rows), "figures": len(part.figures)} for part in parts]
    show(counted or contents, title=IN_SHORT if counted else "on the page", as_json=False)


def _own_sections() -> list["Section"]:
    from ordered_sgd.lab.experiments.store import Records
    from ordered_sgd.lab.report.sections import sections

    records = Records()
    parts = sections(records.requests(), records.recorded, records.artifact)
    if not parts:
        remedy = "Run one first: osgd compare, or: osgd reproduce --list"
        raise ArgumentError(message("osgd report", "an experiment", "be recorded", f"none in {records.path}", remedy))
    return parts
