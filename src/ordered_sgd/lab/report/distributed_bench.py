"""What keeping the q largest of all ranks costs, as tables: of a record of `osgd bench distributed`."""

from collections.abc import Mapping, Sequence
from typing import Any

from ordered_sgd.lab.report.marked import fill, markdown_table

Rows = list[dict[str, str]]
MARK = "bench-distributed"


def distributed_bench_tables(record: Mapping[str, Any]) -> dict[str, Rows]:
    """Title to rows: what was measured, and what is computed from it."""
    first, message = record["rows"][0], record["constants"]
    micro, rate = 1e6 * message["latency"], message["seconds_per_byte"] * 1e9
    network = f"{micro:.0f} µs and {rate:.2f} ns a byte between two ranks"
    return {
        f"Milliseconds of a step under DDP, s = {first['s']} on each rank": _measured(record["rows"]),
        f"Computed: the selection over all ranks, {network}": _computed(record["predicted"]),
    }


def distributed_bench_page(page: str, record: Mapping[str, Any]) -> str:
    """The Markdown page with its figures made anew from a record."""
    machine = record["machine"]
    how = (
        f"{machine['processor']}, {machine['cores']} cores, torch {machine['torch']}, gloo, one thread a rank; medians "
    )
    how += f"of {record['rounds']} rounds, ± half the interquartile range."
    parts = [f"**{title}**\n\n{markdown_table(rows)}" for title, rows in distributed_bench_tables(record).items()]
    return fill(page, MARK, [how, *parts])


def _measured(rows: Sequence[Mapping[str, Any]]) -> Rows:
    table = []
    for model, ranks in dict.fromkeys((row["model"], row["ranks"]) for row in rows):
        by_kind = {row["row"]: row for row in rows if (row["model"], row["ranks"]) == (model, ranks)}
        ours = by_kind["global"]
        cells = {"model": model, "ranks": str(ranks), "q": str(ours["q"])}
        cells |= {"plain": _ms(by_kind["plain"]), "q of each rank": _ms(by_kind["local"]), "q of all": _ms(ours)}
        cells["over q of each"] = _over(ours["over_local"], by_kind["local"]["seconds"])
        cells["over plain"] = _over(ours["over_plain"], by_kind["plain"]["seconds"])
        table.append(cells)
    return table


def _computed(rows: Sequence[Mapping[str, Any]]) -> Rows:
    return [
        {
            "model": row["model"],
            "ranks": f"{row['ranks']:,}",
            "KiB received": f"{row['bytes_received'] / 1024:.1f}",
            "choosing, ms": _short(row["choosing"]),
            "message, ms": f"{_short(row['doubling'])} to {_short(row['ring'])}",
            "of a plain step, %": f"{100 * row['share_doubling']:.1f} to {100 * row['share_ring']:.1f}",
        }
        for row in rows
    ]


def _ms(row: Mapping[str, Any]) -> str:
    return f"{1000 * row['seconds']:.2f} ± {500 * (row['high'] - row['low']):.2f}"


def _over(seconds: float, of: float) -> str:
    return f"{1000 * seconds:+.2f} ({100 * seconds / of:+.1f} %)"


def _short(seconds: float) -> str:
    return f"{1000 * seconds:.2f}" if seconds < 0.01 else f"{1000 * seconds:.0f}"
