"""What a batch sampler costs and saves, as tables: of a record of `osgd bench sampler`."""

from collections.abc import Mapping
from typing import Any

from ordered_sgd.lab.report.marked import fill, markdown_table

Rows = list[dict[str, str]]
MARK = "bench-sampler"


def sampler_bench_tables(record: Mapping[str, Any]) -> dict[str, Rows]:
    """Title to rows: what a batch costs, and how long epochs take."""
    epochs = f"Epoch over {record['n']:,} PNG files, {record['workers']} workers, q = s/4"
    return {
        "Drawing a batch and remembering its losses, s = 64, q = s/4": [_cost(row) for row in record["sampler"]],
        epochs: [_epoch(row) for row in record["epochs"]],
    }


def sampler_bench_page(page: str, record: Mapping[str, Any]) -> str:
    """The Markdown page with its figures replaced by those of a record."""
    machine = record["machine"]
    how = f"{machine['processor']}, one thread of torch {machine['torch']}; medians, ± half the interquartile range. "
    how += f"Costs are processor time; epochs are {record['rounds']} rounds of each, in turn."
    parts = [f"**{title}**\n\n{markdown_table(rows)}" for title, rows in sampler_bench_tables(record).items()]
    return fill(page, MARK, [how, *parts])


def _cost(row: Mapping[str, Any]) -> dict[str, str]:
    return {
        "sampler": "q and four others" if row["recall"] is None else f"recall={row['recall']:g}",
        "microseconds": f"{1e6 * row['seconds']:.0f} ± {5e5 * (row['high'] - row['low']):.0f}",
        "of a LeNet step on 64 samples": f"{row['seconds'] / row['step']:.2%}",
        "of one on 20": f"{row['seconds'] / row['kept_step']:.2%}",
    }


def _epoch(row: Mapping[str, Any]) -> dict[str, str]:
    return {
        "pixels": f"{row['side']} x {row['side']}",
        "loaded": "all" if row["way"] == "plain" else f"{row['loaded']:.1%} by the sampler",
        "seconds": f"{row['seconds']:.2f} ± {(row['high'] - row['low']) / 2:.2f}",
        "of the plain epoch": f"{row['ratio']:.2f} ± {(row['ratio_high'] - row['ratio_low']) / 2:.2f}",
        "recall": "" if row["recall"] is None else f"{row['recall']:.2f}",
    }
