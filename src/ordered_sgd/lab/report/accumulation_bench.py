"""What accumulation costs on all samples or on the q largest, as tables: of a record of `osgd bench accumulation`."""

from collections.abc import Mapping, Sequence
from typing import Any

from ordered_sgd.lab.report.marked import fill, markdown_table

Rows = list[dict[str, str]]
Measured = Mapping[str, Any]
MARK = "bench-accumulation"


def accumulation_bench_tables(record: Measured) -> dict[str, Rows]:
    """Title to rows: a line for each model and way."""
    rows = record["accumulation"]
    groups = [[row for row in rows if row["model"] == model] for model in dict.fromkeys(row["model"] for row in rows)]
    title = f"Step on {record['parts']} micro-batches of {record['s']}: time relative to plain accumulation"
    return {title: [line for group in groups for line in _lines(group)]}


def accumulation_bench_page(page: str, record: Measured) -> str:
    """The Markdown page with its figures replaced by those of a record."""
    machine, threads = record["machine"], record["threads"]
    how = f"{machine['processor']}, {threads} thread{'s' * (threads > 1)}, torch {machine['torch']}; medians of "
    how += f"{record['rounds']} rounds, ± half the interquartile range."
    tables = accumulation_bench_tables(record)
    parts = [f"**{title}**\n\n{markdown_table(rows)}" for title, rows in tables.items()]
    return fill(page, MARK, [how, record.get("note", ""), *parts])  # a note on how a record came about


def _lines(rows: Sequence[Measured]) -> Rows:
    """The lines of one model."""
    plain = next(row for row in rows if row["q"] is None)
    ways = dict.fromkeys(row["way"] for row in rows if row["q"] is not None)
    return [_line(plain, way, [row for row in rows if row["way"] == way]) for way in ways]


def _line(plain: Measured, way: str, rows: Sequence[Measured]) -> dict[str, str]:
    errors = [row["error"] for row in rows if row["error"] is not None]
    why = rows[0]["why"]
    return {
        "model": plain["model"],
        "plain, ms": f"{1000 * plain['seconds']:,.0f} ± {500 * (plain['high'] - plain['low']):.0f}",
        "kept samples": f"{way} ({why})" if why else way,
        **{
            f"q = {row['q']:g}": f"{row['ratio']:.2f} ± {(row['ratio_high'] - row['ratio_low']) / 2:.2f}"
            for row in rows
        },
        "gradients differ by at most": f"{max(errors):.0e}" if errors else "",
    }
