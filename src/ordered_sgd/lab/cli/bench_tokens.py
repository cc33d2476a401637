"""`osgd bench tokens`: a small language model trained on its hardest tokens, on random tokens and on all of them."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from ordered_sgd.errors import ArgumentError, message
from ordered_sgd.lab.cli.bench_page import read_record
from ordered_sgd.lab.cli.options import Floats, Shares, json_option, out_option, show_record, write_json

_COUNT = click.IntRange(min=1)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--q", "qs", type=Shares(), default="0.5,0.25", show_default=True, help="Shares of the tokens kept.")
@click.option("--rates", type=Floats(), default="0.001,0.003,0.01", show_default=True, help="Rates that all try.")
@click.option("--seeds", type=_COUNT, default=3, show_default=True, help="Seeds; the rates are tried with the first.")
@click.option("--steps", type=_COUNT, default=600, show_default=True, help="Steps of 512 tokens.")
@click.option("--resume", is_flag=True, help="Keep the runs that the file of --out holds, and train the rest.")
@out_option("bench-tokens.json", "File for the record.")
@json_option
def tokens(
    qs: tuple[float, ...],
    rates: tuple[float, ...],
    seeds: int,
    steps: int,
    resume: bool,
    out: Path,
    as_json: bool,
) -> None:
    """What training on the hardest tokens saves, and what it does to a language model.

    A causal transformer (4 layers of 128, 8,192 words) trains on the docstrings of NumPy, SciPy and scikit-learn as
    they are installed: on all tokens, on the hardest, on as many at random. All see the same tokens in the same order,
    and the first seed tries each way at the same learning rates, of which the other seeds take the best. Written after
    every run; about an hour in all, on one thread. Needs the package tokenizers.
    """
    from ordered_sgd.lab.bench.step_cost import machine
    from ordered_sgd.lab.bench.token_training import Size, encode, next_run, train
    from ordered_sgd.lab.data.prose import prose
    from ordered_sgd.lab.report.tokens_bench import tokens_bench_tables

    for q in qs:
        if not 0 < q < 1:
            remedy = "All tokens are trained on anyway."
            raise ArgumentError(message("osgd bench", "--q", "be shares between 0 and 1", q, remedy))
    size, text = Size(steps=steps, points=min(6, steps)), prose()
    record: dict[str, Any] = {"machine": machine(), "packages": text.packages, "size": asdict(size), "trained": []}
    if resume and out.exists():
        record = _continued(out, record)
    corpus = encode(text, size.vocabulary)
    total = (1 + 2 * len(qs)) * (len(rates) + seeds - 1)
    while run := next_run(record["trained"], qs, rates, seeds):
        words = f"{run.kept} {run.q:g}, rate {run.rate:g}, seed {run.seed}"
        click.echo(f"training {len(record['trained']) + 1} of {total}: {words}", err=True)
        record["trained"].append(train(run, corpus, size))
        write_json(out, record)
    show_record(record, tokens_bench_tables, as_json)
    click.echo(f"written: {out}", err=True)


def _continued(path: Path, new: dict[str, Any]) -> dict[str, Any]:
    """The record of an earlier run with the same text, size and machine."""
    earlier = read_record(path)
    if any(earlier.get(name) != new[name] for name in ("machine", "packages", "size")):
        rule, remedy = "continue with the same machine, packages and size", "Name another file with --out."
        raise ArgumentError(message("osgd bench", "--resume", rule, f"others in {path}", remedy))
    return earlier
