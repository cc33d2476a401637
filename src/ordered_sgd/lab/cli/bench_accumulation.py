"""`osgd bench accumulation`: what a step of gradient accumulation costs."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from ordered_sgd.errors import check_choice, require
from ordered_sgd.lab.cli.options import Shares, json_option, out_option, progress, show_record, write_json

_COUNT = click.IntRange(min=1)
_QS = (0.5, 0.25, 0.125)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--models", default="causal", show_default=True, help="Names separated by commas, e.g. causal,bert.")
@click.option("--parts", type=click.IntRange(min=2), default=8, show_default=True, help="Micro-batches in a step.")
@click.option("--s", type=_COUNT, default=4, show_default=True, help="Samples in a micro-batch.")
@click.option("--q", "qs", type=Shares(), default=_QS, show_default="0.5,0.25,0.125", help="Shares of samples kept.")
@click.option("--threads", type=_COUNT, default=1, show_default=True, help="Threads of torch.")
@click.option("--rounds", type=click.IntRange(min=2), default=7, show_default=True, help="Measurements of each way.")
@out_option("bench-accumulation.json", "File for the record.")
@json_option
def accumulation(
    models: str, parts: int, s: int, qs: tuple[float, ...], threads: int, rounds: int, out: Path, as_json: bool
) -> None:
    """What a step of gradient accumulation costs.

    plain: a forward and a backward pass over each micro-batch. whole: all are scored without a graph, and those that
    hold one of the q largest losses are run again. regrouped: the kept samples are run again in as few micro-batches as
    they fill, which is what OrderedStep does with a list of micro-batches. Reports times relative to plain, and the
    largest relative error of the gradients of regrouped against those of whole. The model bert needs Transformers.

    Everything of a model is measured in turn. The record is written after each model. Keep the machine quiet.
    """
    from ordered_sgd.lab.bench.accumulation import WARMUP, measure_accumulation
    from ordered_sgd.lab.bench.step_cost import machine
    from ordered_sgd.lab.bench.workloads import WORKLOADS
    from ordered_sgd.lab.report.accumulation_bench import accumulation_bench_tables

    names = list(dict.fromkeys(name.strip() for name in models.split(",")))
    for name in names:
        check_choice("osgd bench", "--models", name, tuple(WORKLOADS), "Leave it out for causal.")
        if WORKLOADS[name].needs:
            require(WORKLOADS[name].needs, extra="huggingface", where="osgd bench")
    qs = tuple(dict.fromkeys(qs))
    record: dict[str, Any] = {"machine": machine(), "parts": parts, "s": s, "q": qs}
    record |= {"threads": threads, "rounds": rounds, "accumulation": []}
    with progress("osgd bench accumulation", len(names) * (rounds + WARMUP)) as tick:
        for name in names:
            tick(name, 0)
            rows = measure_accumulation(name, qs, parts=parts, s=s, rounds=rounds, threads=threads, tick=tick)
            record["accumulation"] += [asdict(row) for row in rows]
            write_json(out, record)
    show_record(record, accumulation_bench_tables, as_json)
    click.echo(f"written: {out}", err=True)
