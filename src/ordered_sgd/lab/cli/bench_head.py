"""`osgd bench head`: what the head of a language model costs with each loss."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ordered_sgd.errors import ArgumentError, message
from ordered_sgd.lab.cli.bench_page import read_record
from ordered_sgd.lab.cli.options import Counts, Shares, json_option, out_option, progress, show_record, write_json

if TYPE_CHECKING:
    from ordered_sgd.lab.bench.head_cost import HeadShape

_COUNT = click.IntRange(min=1)
_QS = (1.0, 0.5, 0.25, 0.125)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--words", type=Counts(), default=None, help="Words of the vocabularies, e.g. 8192,32768.")
@click.option("--widths", type=Counts(), default=None, help="Widths of the models, e.g. 256,768.")
@click.option("--tokens", type=_COUNT, default=512, show_default=True, help="Tokens in a batch.")
@click.option("--q", "qs", type=Shares(), default=_QS, show_default="1,0.5,0.25,0.125", help="Shares of tokens kept.")
@click.option("--threads", type=_COUNT, default=1, show_default=True, help="Threads of torch.")
@click.option("--rounds", type=click.IntRange(min=2), default=7, show_default=True, help="Measurements of each way.")
@click.option("--probe/--no-probe", default=True, help="Measure peak memory as well, or only time.")
@click.option("--step/--no-step", default=True, help="Measure a training step of a small GPT as well, or only heads.")
@click.option("--keep-freed/--no-keep-freed", default=True, help="Keep freed memory, or leave it to the C library.")
@click.option("--resume", is_flag=True, help="Keep what the file of --out holds, and measure the rest.")
@out_option("bench-head.json", "File for the record.")
@json_option
def head(
    words: tuple[int, ...] | None,
    widths: tuple[int, ...] | None,
    tokens: int,
    qs: tuple[float, ...],
    threads: int,
    rounds: int,
    probe: bool,
    step: bool,
    keep_freed: bool,
    resume: bool,
    out: Path,
    as_json: bool,
) -> None:
    """What a language model's head and its loss cost.

    Measures a forward and a backward pass of the output layer and its cross-entropy: plain (the mean over all tokens),
    torch (F.linear_cross_entropy, in four chunks), one-liner (ordered_mean of the losses of all tokens) and ordered
    (ordered_linear_cross_entropy). Reports the time relative to plain, the peak memory, and the largest relative error
    of the gradients of ordered against those of the one-liner. Then measures a whole training step of a GPT with 6
    layers and 50,304 words. Without --words and --widths, the shapes are 8,192, 32,768 and 131,072 words at widths 256
    and 768, and 50,304 words at width 512.

    By default the process keeps the memory that tensors free, which makes plain faster; --no-keep-freed measures what
    a script sees that leaves this to the C library.

    Everything in a shape is measured in turn. The record is written after each shape; Ctrl-C keeps it, and --resume
    continues it. Keep the machine quiet.
    """
    from ordered_sgd.lab.bench.gpt_cost import GPT
    from ordered_sgd.lab.bench.step_cost import machine
    from ordered_sgd.lab.report.head_bench import head_bench_tables

    shapes = _shapes(tokens, words, widths)
    record: dict[str, Any] = {"machine": machine(), "tokens": tokens, "q": list(dict.fromkeys(qs))}
    record |= {
        "threads": threads,
        "rounds": rounds,
        "keep_freed": keep_freed,
        "gpt": asdict(GPT),
        "heads": [],
        "steps": [],
    }
    if resume and out.exists():
        record = _continued(record, out)
    interrupted = False
    try:
        for part in _measured(record, shapes, probe=probe, step=step):
            record |= part
            write_json(out, record)
    except KeyboardInterrupt:
        interrupted = True
    if record["heads"] or record["steps"]:
        show_record(record, head_bench_tables, as_json)
        click.echo(f"written: {out}", err=True)
    if interrupted:
        raise KeyboardInterrupt


def _shapes(tokens: int, words: Sequence[int] | None, widths: Sequence[int] | None) -> list["HeadShape"]:
    """What to measure, or one clear error before anything is measured."""
    for name, counts, least in (("--words", words, 2), ("--widths", widths, 1)):
        for count in counts or ():
            if count < least:
                remedy = "Leave it out for the default shapes."
                raise ArgumentError(message("osgd bench", name, f"be integers of at least {least}", count, remedy))
    from ordered_sgd.lab.bench.head_cost import WIDTHS, WORDS, default_shapes, shapes_of

    if words is None and widths is None:
        return default_shapes(tokens)
    return shapes_of(tokens, widths or WIDTHS, words or WORDS)


def _continued(record: dict[str, Any], out: Path) -> dict[str, Any]:
    """The record of an earlier run with the same settings."""
    earlier = read_record(out)
    if any(earlier.get(key) != value for key, value in record.items() if key not in ("heads", "steps")):
        rule = "continue with the same tokens, q, threads, rounds, --keep-freed, machine and versions"
        remedy = "Name another file with --out, or leave --resume out."
        raise ArgumentError(message("osgd bench", "--resume", rule, f"others in {out}", remedy))
    return earlier


def _measured(
    record: dict[str, Any], shapes: Sequence["HeadShape"], *, probe: bool, step: bool
) -> Iterable[dict[str, Any]]:
    """The parts of the record that have grown, after each shape and after the steps."""
    from ordered_sgd.lab.bench.gpt_cost import GPT, measure_gpt
    from ordered_sgd.lab.bench.head_cost import WARMUP, head_ways, measure_head

    known = {(row["width"], row["words"]) for row in record["heads"]}
    missing = [shape for shape in dict.fromkeys(shapes) if (shape.width, shape.words) not in known]
    step = step and not record["steps"]
    qs, how = record["q"], {key: record[key] for key in ("rounds", "threads", "keep_freed")}
    rounds = record["rounds"] + WARMUP
    total = len(missing) * (rounds + probe * len(head_ways(qs))) + step * rounds
    with progress("osgd bench head", total) as tick:
        for shape in missing:
            tick(f"{shape.words:,} words, width {shape.width}", 0)
            rows = measure_head(shape, qs, probe=probe, tick=tick, **how)
            yield {"heads": record["heads"] + [asdict(row) for row in rows]}
        if step:
            tick("training step", 0)
            yield {"steps": [asdict(row) for row in measure_gpt(qs, shape=GPT, tick=tick, **how)]}
