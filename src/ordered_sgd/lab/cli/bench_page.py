"""`osgd bench page`: the tables of a record in a page, and what the records of `osgd bench` have in common."""

import json
from pathlib import Path
from typing import Any

import click

from ordered_sgd.errors import ArgumentError, message

_KEYS = {"reached", "predicted", "losses", "heads"}  # each in the records of one command; those of step have none


def read_record(path: Path) -> dict[str, Any]:
    """What `osgd bench step`, `linear`, `distributed`, `losses` or `head` wrote."""
    try:
        record: dict[str, Any] = json.loads(path.read_text())
        if record["machine"] and (record.keys() & _KEYS or record["rows"][0]["speedup"]):
            return record
    except (ValueError, KeyError, IndexError, TypeError):
        pass
    rule, remedy = "be a record of osgd bench step, linear, distributed, losses or head", "Run: osgd bench step"
    raise ArgumentError(message("osgd bench", str(path), rule, "something else", remedy))


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("record", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("page", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def page(record: Path, page: Path) -> None:
    """Put the figures of a RECORD, written by `osgd bench`, into a Markdown PAGE.

    Of `osgd bench step`, what stands between <!-- bench-step --> and <!-- /bench-step --> is replaced by its tables,
    and the bar chart is written beside the page; of `osgd bench linear`, `distributed`, `losses` and `head`, the same
    between marks of their names, without a chart.
    """
    from ordered_sgd.lab.report.distributed_bench import distributed_bench_page
    from ordered_sgd.lab.report.head_bench import head_bench_page
    from ordered_sgd.lab.report.linear_bench import linear_bench_page
    from ordered_sgd.lab.report.losses_bench import losses_bench_page
    from ordered_sgd.lab.report.step_bench import draw_step_bench, step_bench_page

    found = read_record(record)
    drawn = []
    if "reached" in found:
        text = linear_bench_page(page.read_text(), found)
    elif "predicted" in found:
        text = distributed_bench_page(page.read_text(), found)
    elif "losses" in found:
        text = losses_bench_page(page.read_text(), found)
    elif "heads" in found:
        text = head_bench_page(page.read_text(), found)
    else:
        text = step_bench_page(page.read_text(), found, page.stem + ".svg")
        drawn = draw_step_bench(found["rows"], page.with_suffix(""), (".svg",))
    page.write_text(text)
    for path in (*drawn, page):
        click.echo(f"written: {path}", err=True)
