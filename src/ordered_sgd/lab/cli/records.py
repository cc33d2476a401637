"""`osgd records`: what has been run."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ordered_sgd.errors import ArgumentError, message
from ordered_sgd.lab.cli.options import json_option, show

if TYPE_CHECKING:
    from ordered_sgd.lab.experiments.spec import ExperimentSpec

_HELP = {"help_option_names": ["-h", "--help"]}


@click.group(context_settings=_HELP)
def command() -> None:
    """What has been run.

    The records lie in the folder ORDERED_SGD_HOME, or in the data folder of the platform, in one SQLite file.
    """


@command.command("list", context_settings=_HELP)
@json_option
def list_(as_json: bool) -> None:
    """Every run: what it trained, how far it got, and its test error."""
    from ordered_sgd.lab.experiments.store import Records

    records = Records()
    rows: list[dict[str, Any]] = [
        {
            "run_id": run.spec.run_id,
            "data": run.spec.data,
            "model": run.spec.model,
            "method": run.spec.method_name,
            "lr": run.spec.lr,
            "seed": run.spec.seed,
            "epochs": f"{len(run.rows)}/{run.spec.epochs}" + ("" if run.finished else " (open)"),
            "test_error": run.rows[-1].test_error if run.rows else None,
        }
        for run in records.runs()
    ]
    if not rows and not as_json:
        click.echo(f"no runs in {records.path}; make some: osgd compare", err=True)
        return
    show(rows, title=f"runs in {records.path}", as_json=as_json)


@command.command(context_settings=_HELP)
@click.option("--format", "kind", type=click.Choice(["csv", "json"]), default="csv", show_default=True)
@click.option(
    "--digits", type=click.IntRange(min=1), default=None, help="Significant digits of numbers; all if not given."
)
def export(kind: str, digits: int | None) -> None:
    """Every epoch of every run on standard output, a row each."""
    from ordered_sgd.lab.experiments.exported import flat_rows, write_csv
    from ordered_sgd.lab.experiments.store import Records

    rows = flat_rows(Records().runs(), digits)
    if kind == "json":
        click.echo(json.dumps(list(rows), indent=1))
        return
    write_csv(rows, sys.stdout)


@command.command("import", context_settings=_HELP)
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(exists=True, path_type=Path))
def import_(files: tuple[Path, ...]) -> None:
    """Take up what `export` wrote as CSV, compressed by gzip or not; runs that are here stay as they are."""
    from ordered_sgd.lab.experiments.exported import read_csv
    from ordered_sgd.lab.experiments.store import Records

    records = Records()
    for file in files:
        click.echo(f"{file}: {records.take(read_csv(file)):,} new runs", err=True)


@command.command(context_settings=_HELP)
@click.argument("run_ids", nargs=-1, required=True, metavar="RUN_ID...")
def rm(run_ids: tuple[str, ...]) -> None:
    """Forget runs, by their ids or the beginnings of them."""
    from ordered_sgd.lab.experiments.store import Records

    records = Records()
    known = {run.spec.run_id: run.spec for run in records.runs()}
    meant = {_meant(run_id, known) for run_id in run_ids}  # all are looked up before one is removed
    for spec in meant:
        records.remove(spec)
    click.echo(f"forgotten: {len(meant)}", err=True)


def _meant(given: str, known: dict[str, "ExperimentSpec"]) -> "ExperimentSpec":
    """The one run whose id begins like this."""
    found = [run_id for run_id in known if given and run_id.startswith(given)]
    if not found:
        remedy = "Run: osgd records list"
        raise ArgumentError(message("osgd records", "RUN_ID", "be the id of a recorded run", given or "''", remedy))
    if len(found) > 1:
        got = f"{given}, as {len(found):,} do"
        remedy = f"Give more of it: {', '.join(found[:3])}{', ...' if len(found) > 3 else ''}"
        raise ArgumentError(message("osgd records", "RUN_ID", "be how one id alone begins", got, remedy))
    return known[found[0]]
