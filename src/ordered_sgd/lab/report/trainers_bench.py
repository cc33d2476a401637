"""What an update costs in other people's trainers, as tables: of a record of `osgd bench trainers`."""

from collections.abc import Mapping, Sequence
from typing import Any

from ordered_sgd.lab.report.marked import fill, markdown_table

Rows = list[dict[str, str]]
Measured = Mapping[str, Any]
MARK = "bench-trainers"


def trainers_bench_tables(record: Measured) -> dict[str, Rows]:
    """Title to rows: the speed of every trainer, and what it says that it computed."""
    rows = record["trainers"]
    qs = sorted({row["q"] for row in rows if row["q"] is not None}, reverse=True)
    names = dict.fromkeys(row["trainer"] for row in rows)
    groups = [[row for row in rows if row["trainer"] == name] for name in names]
    return {
        "Speed of an update relative to the same trainer without an ordered loss": [_speeds(g, qs) for g in groups],
        "What the trainers say that they computed": [row for group in groups for row in _ran(group)],
    }


def trainers_bench_page(page: str, record: Measured) -> str:
    """The Markdown page with its figures replaced by those of a record."""
    machine, threads, sizes = record["machine"], record["threads"], record["sizes"]
    versions = ", ".join(f"{name} {version}" for name, version in record["partners"].items())
    how = f"{machine['processor']}, {threads} thread{'s' * (threads > 1)}, torch {machine['torch']}, {versions}; "
    how += f"medians of {record['rounds']} rounds, ± half the interquartile range. "
    what = (
        f"LeNet and ViT train on batches of {sizes['images']} images (SGD), a {sizes['bert_layers']} × "
        f"{sizes['bert_width']} BERT classifier on {sizes['texts']} texts of 128 tokens (AdamW, clipping), a "
        f"{sizes['gpt_layers']} × {sizes['gpt_width']} GPT-2 with {sizes['gpt_words']:,} words on "
        f"{sizes['sequences']} × {sizes['length']} tokens. With accumulation an update has {sizes['parts']} "
        f"micro-batches of {sizes['texts'] // sizes['parts']} texts."
    )
    parts = [f"**{title}**\n\n{markdown_table(rows)}" for title, rows in trainers_bench_tables(record).items()]
    left = [f"Not measured: {name}. {reason}" for name, reason in record["left_out"].items()]
    return fill(page, MARK, [how + what, *parts, *left])


def _speeds(rows: Sequence[Measured], qs: Sequence[float]) -> dict[str, str]:
    """The line of one trainer."""
    plain, *ordered = rows
    by_q = {row["q"]: f"{row['speedup']:.2f} ± {(row['speedup_high'] - row['speedup_low']) / 2:.2f}" for row in ordered}
    errors = [row["error"] for row in ordered]
    return {
        "trainer": plain["title"],
        "plain, ms": f"{1000 * plain['seconds']:,.1f} ± {500 * (plain['high'] - plain['low']):.1f}",
        **{f"q = {q:g}": by_q.get(q, "") for q in qs},
        "compiling, s": f"{max(0.0, *(row['compile_seconds'] for row in ordered)):.1f}",
        "gradients differ by at most": "not finite" if None in errors else f"{max(errors):.0e}",
    }


def _ran(rows: Sequence[Measured]) -> Rows:
    """A line for everything that a trainer computed, with the q at which it did."""
    qs: dict[str, list[str]] = {}
    for row in rows[1:]:
        qs.setdefault(row["ran"], []).append(f"{row['q']:g}")
    return [{"trainer": rows[0]["title"], "q": ", ".join(at), "computed": ran} for ran, at in qs.items()]
