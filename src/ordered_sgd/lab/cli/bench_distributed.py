"""`osgd bench distributed`: what keeping the q largest of all ranks costs."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from ordered_sgd.errors import ArgumentError, check_choice, message
from ordered_sgd.lab.cli.options import Counts, Q, json_option, out_option, show_record, write

RANKS = (2, 8, 64, 1024)  # for which the cost is computed: the first can be held against what was measured


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--models", default="lenet,mlp", show_default=True, help="Names separated by commas, as of bench step.")
@click.option("--s", type=click.IntRange(min=1), default=64, show_default=True, help="Samples on each rank.")
@click.option(
    "--q", type=Q(), default="0.25", show_default=True, help="Samples kept: a share, or a count over all ranks."
)
@click.option("--ranks", type=Counts(), default=(1, 2), show_default="1,2", help="Numbers of processes.")
@click.option("--rounds", type=click.IntRange(min=2), default=11, show_default=True, help="Measurements of each step.")
@click.option("--latency", type=float, default=None, help="Microseconds of a message, in place of those measured here.")
@click.option("--bandwidth", type=float, default=None, help="Gigabytes a second, in place of those measured here.")
@out_option("bench-distributed.json", "File for the record.")
@json_option
def distributed(
    models: str,
    s: int,
    q: float,
    ranks: tuple[int, ...],
    rounds: int,
    latency: float | None,
    bandwidth: float | None,
    out: Path,
    as_json: bool,
) -> None:
    """What keeping the q largest of all ranks costs.

    Steps under DistributedDataParallel in processes of this machine, over gloo, one thread each: plain SGD, the q
    largest of each rank by itself, and the q largest of all, measured in turn. And computed from what a message between
    two ranks takes, what it costs on 8, 64 and 1024 ranks. Keep the machine quiet.
    """
    from ordered_sgd.lab.bench.workloads import WORKLOADS

    names = [name.strip() for name in models.split(",")]
    for name in names:
        check_choice("osgd bench", "--models", name, tuple(WORKLOADS), "Leave it out for lenet and mlp.")
    positive = {"--ranks": min(ranks), "--latency": latency, "--bandwidth": bandwidth}
    for option, value in positive.items():
        if value is not None and value <= 0:
            remedy = "Run: osgd bench distributed -h"
            raise ArgumentError(message("osgd bench", option, "be positive", value, remedy))
    record = _measured(names, s=s, q=q, ranks=ranks, rounds=rounds, latency=latency, bandwidth=bandwidth)
    write(out, json.dumps(record, indent=1) + "\n")
    from ordered_sgd.lab.report.distributed_bench import distributed_bench_tables

    show_record(record, distributed_bench_tables, as_json)
    click.echo(f"written: {out}", err=True)


def _measured(
    names: list[str],
    *,
    s: int,
    q: float,
    ranks: tuple[int, ...],
    rounds: int,
    latency: float | None,
    bandwidth: float | None,
) -> dict[str, Any]:
    """The record: steps, constants of a message, and what follows from them for more ranks."""
    from ordered_sgd.lab.bench.distributed import PLAIN, choosing_seconds, measure_message, measure_ranks, predict
    from ordered_sgd.lab.bench.step_cost import machine

    rows = []
    for name in names:
        for count in ranks:
            click.echo(f"measuring: {name} on {count} rank{'s' * (count > 1)}", err=True)
            rows += measure_ranks(name, count, s=s, q=q, rounds=rounds)
    found = measure_message(s=s, rounds=rounds)
    if latency is not None:
        found = replace(found, latency=latency / 1e6)
    if bandwidth is not None:
        found = replace(found, seconds_per_byte=1e-9 / bandwidth)
    choosing = {count: choosing_seconds(count, s=s, q=q, rounds=rounds) for count in RANKS}
    plain = [row for row in sorted(rows, key=lambda row: -row.ranks) if row.row == PLAIN]
    steps = {row.model: row.seconds for row in plain}  # of the fewest ranks: the last of a model stays
    predicted = [
        predict(name, count, s=s, step=steps[name], choosing=choosing[count], network=found)
        for name in names
        for count in RANKS
    ]
    return {
        "machine": machine(),
        "rounds": rounds,
        "rows": [asdict(row) for row in rows],
        "constants": asdict(found),
        "predicted": [asdict(row) for row in predicted],
    }
