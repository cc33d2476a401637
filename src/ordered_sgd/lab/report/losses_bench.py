"""What losses that leave samples without a gradient save, as a table: of a record of `osgd bench losses`."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from ordered_sgd.lab.report.marked import fill, markdown_table

Rows = list[dict[str, str]]
MARK = "bench-losses"
_LABELS = {
    "triplet": "triplet, three calls of the model",
    "triplet-joined": "triplet, one call on the three parts joined",
    "ppo": "PPO",
    "grpo": "GRPO",
}


def losses_bench_tables(record: Mapping[str, Any]) -> dict[str, Rows]:
    """Title to rows: a line for each loss."""
    epochs: Sequence[Mapping[str, Any]] = record["losses"]
    title = f"LeNet on {record['n']:,} images of {record['data']}, s = {record['s']}, {record['epochs']} epochs"
    names = dict.fromkeys(row["loss"] for row in epochs)
    return {title: [_line([row for row in epochs if row["loss"] == name]) for name in names]}


def losses_bench_page(page: str, record: Mapping[str, Any]) -> str:
    """The Markdown page with its figures replaced by those of a record."""
    machine, threads = record["machine"], record["threads"]
    how = f"{machine['processor']}, {threads} thread{'s' * (threads > 1)}, torch {machine['torch']}; medians of "
    how += f"{record['losses'][0]['steps']} steps in each epoch, ± half the interquartile range."
    parts = [f"**{title}**\n\n{markdown_table(rows)}" for title, rows in losses_bench_tables(record).items()]
    return fill(page, MARK, [how, record.get("note", ""), *parts])  # a note on how a record came about


def _line(epochs: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    first, last = epochs[0], epochs[-1]
    shares = [100 * share for share in (first["share"], last["share"], fmean(row["share"] for row in epochs))]
    whole = sum(row["plain"] for row in epochs) / sum(row["selective"] for row in epochs)
    note = f" (whole batches: {last['why']})" if last["why"] else ""
    return {
        "loss": _LABELS.get(first["loss"], first["loss"]) + note,
        "samples with a gradient in the first, last, all epochs": "{:.0f}, {:.0f}, {:.0f} %".format(*shares),
        "speed-up in the first epoch": _speed(first),
        "last": _speed(last),
        "all": f"{whole:.2f}",
        "gradients differ by at most": f"{max(row['difference'] for row in epochs):.0e}",
    }


def _speed(row: Mapping[str, Any]) -> str:
    return f"{row['speedup']:.2f} ± {(row['high'] - row['low']) / 2:.2f}"
