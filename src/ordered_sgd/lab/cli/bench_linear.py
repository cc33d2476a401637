"""`osgd bench linear`: what an epoch of the linear models costs."""

import json
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

from ordered_sgd.errors import check_choice
from ordered_sgd.lab.cli.options import json_option, out_option, show_record, write


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--parts", default=None, help="Separated by commas, e.g. images,sparse; all if not given.")
@click.option("--rounds", type=click.IntRange(min=2), default=7, show_default=True, help="Measurements of each.")
@click.option("--target", type=float, default=8.0, show_default=True, help="Test error in percent to be reached.")
@out_option("bench-linear.json", "File for the record.")
@json_option
def linear(parts: str | None, rounds: int, target: float, out: Path, as_json: bool) -> None:
    """What an epoch costs the linear models.

    images: MNIST against one read of the data, SGDClassifier and a torch loop. sparse: sparse rows with momentum and L2
    against SGDClassifier. growth: an epoch on 10,000 to 1,000,000 rows. errors: seconds to a test error on MNIST,
    against SGDClassifier, LIBLINEAR and LogisticRegression, won or lost. One thread; everything in a part is measured
    in turn. Keep the machine quiet.
    """
    kinds = ("images", "sparse", "growth", "errors")
    names = kinds if parts is None else tuple(part.strip() for part in parts.split(","))
    for name in names:
        check_choice("osgd bench", "--parts", name, kinds, "Leave it out for all.")
    from ordered_sgd.lab.bench.linear_epoch import PARTS, measure_epochs, measure_errors
    from ordered_sgd.lab.bench.step_cost import machine
    from ordered_sgd.lab.report.linear_bench import linear_bench_tables

    versions = {name: version(name) for name in ("scikit-learn", "numba")}
    record: dict[str, Any] = {"machine": machine() | versions, "rounds": rounds, "target": target}
    record |= {"epochs": [], "reached": []}
    for part in (part for part in PARTS if part.split(",")[0] in names):
        click.echo(f"measuring: {part}", err=True)
        record["epochs"] += [asdict(row) for row in measure_epochs(part, rounds)]
        write(out, json.dumps(record, indent=1) + "\n")
    if "errors" in names:
        click.echo("measuring: errors", err=True)
        record["reached"] = [asdict(row) for row in measure_errors(target)]
        write(out, json.dumps(record, indent=1) + "\n")
    show_record(record, linear_bench_tables, as_json)
    click.echo(f"written: {out}", err=True)
