"""`osgd bench page`: the tables of a record in a page, and what the records of `osgd bench` have in common."""

import json
from pathlib import Path
from typing import Any

import click

from ordered_sgd.errors import ArgumentError, message

# The key that only the records of one command hold.
_KEYS = {
    "linear": "reached",
    "distributed": "predicted",
    "losses": "losses",
    "head": "heads",
    "accumulation": "accumulation",
    "trainers": "trainers",
    "sampler": "sampler",
    "tokens": "trained",
    "step": "rows",
}


def read_record(path: Path) -> dict[str, Any]:
    """What one of the commands of `osgd bench` wrote."""
    try:
        record: dict[str, Any] = json.loads(path.read_text())
        kind = _kind(record)
        if record["machine"] and (kind != "step" or record["rows"][0]["speedup"]):
            return record
    except (ValueError, KeyError, IndexError, TypeError, StopIteration):
        pass
    rule, remedy = f"be a record of osgd bench {', '.join(reversed(_KEYS))}", "Run: osgd bench step"
    raise ArgumentError(message("osgd bench", str(path), rule, "something else", remedy))


def _kind(record: dict[str, Any]) -> str:
    return next(command for command, key in _KEYS.items() if key in record)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("record", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("page", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def page(record: Path, page: Path) -> None:
    """Put the figures of a RECORD, written by `osgd bench`, into a Markdown PAGE.

    Its tables replace what stands between the marks of the command, as <!-- bench-step --> and <!-- /bench-step -->;
    the chart of `osgd bench step` or `tokens` is written beside the page.
    """
    from ordered_sgd.lab.report.accumulation_bench import accumulation_bench_page
    from ordered_sgd.lab.report.distributed_bench import distributed_bench_page
    from ordered_sgd.lab.report.head_bench import head_bench_page
    from ordered_sgd.lab.report.linear_bench import linear_bench_page
    from ordered_sgd.lab.report.losses_bench import losses_bench_page
    from ordered_sgd.lab.report.sampler_bench import sampler_bench_page
    from ordered_sgd.lab.report.step_bench import draw_step_bench, step_bench_page
    from ordered_sgd.lab.report.tokens_bench import draw_tokens_bench, tokens_bench_page
    from ordered_sgd.lab.report.trainers_bench import trainers_bench_page

    tables = {
        "linear": linear_bench_page,
        "distributed": distributed_bench_page,
        "losses": losses_bench_page,
        "head": head_bench_page,
        "accumulation": accumulation_bench_page,
        "trainers": trainers_bench_page,
        "sampler": sampler_bench_page,
    }
    charts = {"step": (step_bench_page, draw_step_bench), "tokens": (tokens_bench_page, draw_tokens_bench)}
    found = read_record(record)
    kind, drawn = _kind(found), []
    if kind in tables:
        text = tables[kind](page.read_text(), found)
    else:
        fill, draw = charts[kind]
        text = fill(page.read_text(), found, page.stem + ".svg")
        drawn = draw(found[_KEYS[kind]], page.with_suffix(""), (".svg",))
    page.write_text(text)
    for path in (*drawn, page):
        click.echo(f"written: {path}", err=True)
