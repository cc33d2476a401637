"""`osgd bench sampler`: what `OrderedBatchSampler` costs and saves."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from ordered_sgd.errors import ArgumentError, message
from ordered_sgd.lab.cli.options import json_option, out_option, show_record, write

_COUNT = click.IntRange(min=1)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--data", default="fashion-mnist", show_default=True, help="A data set of images, written as PNG files.")
@click.option("--n", type=_COUNT, default=10_000, show_default=True, help="Files.")
@click.option(
    "--side", "sides", type=click.IntRange(16, 512), multiple=True, default=(96, 192), help="Side of the pictures."
)
@click.option("--workers", type=click.IntRange(0, 64), default=2, show_default=True, help="Processes that load.")
@click.option("--rounds", type=click.IntRange(2), default=5, show_default=True, help="Epochs of each way.")
@out_option("bench-sampler.json", "File for the record.")
@json_option
def sampler(data: str, n: int, sides: tuple[int, ...], workers: int, rounds: int, out: Path, as_json: bool) -> None:
    """What OrderedBatchSampler costs beside a step of LeNet, and saves where loading takes the time.

    First the processor time of drawing a batch and remembering its losses, at q = s/4. Then epochs over PNG files that
    are decoded, cropped and mirrored in worker processes, with a network so small that loading is what takes the time:
    all files, or those that the sampler picks. Keep the machine quiet.
    """
    from ordered_sgd.lab.bench.sampler_cost import measure_cost, measure_epochs
    from ordered_sgd.lab.bench.step_cost import machine
    from ordered_sgd.lab.data import load
    from ordered_sgd.lab.report.sampler_bench import sampler_bench_tables

    dataset = load(data)
    if not dataset.images:
        got, remedy = f"samples of shape {dataset.x.shape[1:]}", "Leave it out for fashion-mnist."
        raise ArgumentError(message("osgd bench", "--data", "hold images", got, remedy))
    record: dict[str, Any] = {"machine": machine(), "data": data, "n": min(n, len(dataset))}
    record |= {"workers": workers, "rounds": rounds}
    click.echo("measuring: the cost of a batch", err=True)
    record["sampler"] = [asdict(row) for row in measure_cost()]
    click.echo("measuring: epochs over PNG files", err=True)
    record["epochs"] = []
    for side in sides:
        found = measure_epochs(
            dataset, n=n, side=side, workers=workers, rounds=rounds, tick=lambda: click.echo(".", nl=False, err=True)
        )
        record["epochs"] += [{"side": side} | asdict(row) for row in found]
    click.echo(err=True)
    write(out, json.dumps(record, indent=1) + "\n")
    show_record(record, sampler_bench_tables, as_json)
    click.echo(f"written: {out}", err=True)
