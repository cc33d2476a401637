"""What a language model's head costs with each loss, as tables: of a record of `osgd bench head`."""

from collections.abc import Mapping, Sequence
from typing import Any

from ordered_sgd.lab.report.marked import fill, markdown_table

Rows = list[dict[str, str]]
Measured = Mapping[str, Any]
MARK = "bench-head"
_WAYS = (
    "Plain is `F.cross_entropy(F.linear(hidden, weight), target)`; torch is `F.linear_cross_entropy` in four chunks of "
    "tokens; the one-liner is `ordered_mean` of the losses of all tokens, with the range over q; ordered is "
    "`ordered_linear_cross_entropy`."
)


def head_bench_tables(record: Measured) -> dict[str, Rows]:
    """Title to rows: time and memory of the head and its loss, and speed of a training step, if measured."""
    heads, steps = record["heads"], record["steps"]
    shapes = dict.fromkeys((row["words"], row["width"]) for row in heads)
    groups = [[row for row in heads if (row["words"], row["width"]) == shape] for shape in shapes]
    passes = f"Head and loss, forward and backward of {record['tokens']:,} tokens"
    tables = {f"{passes}: time relative to plain": [_times(group, record["q"]) for group in groups]}
    probed = [group for group in groups if any(row["peak_bytes"] is not None for row in group)]
    tables[f"{passes}: MiB at the peak, gradients included"] = [_memory(group, record["q"]) for group in probed]
    if steps:
        plain, gpt = _of(steps, "plain")[0], record["gpt"]
        model = f"a GPT with {gpt['layers']} layers, width {gpt['width']} and {gpt['words']:,} words"
        title = f"Training step of {model}, {gpt['s']} × {gpt['length']} tokens, AdamW: speed relative to plain"
        tables[f"{title} ({_ms(plain)} ms)"] = _speeds(steps, record["q"])
    return {title: rows for title, rows in tables.items() if rows}


def head_bench_page(page: str, record: Measured) -> str:
    """The Markdown page with its figures replaced by those of a record."""
    machine, threads = record["machine"], record["threads"]
    how = f"{machine['processor']}, {threads} thread{'s' * (threads > 1)}, torch {machine['torch']}; medians of "
    how += f"{record['rounds']} rounds, ± half the interquartile range. "
    how += "The process keeps freed memory. " if record["keep_freed"] else "Freed memory is left to the C library. "
    parts = [f"**{title}**\n\n{markdown_table(rows)}" for title, rows in head_bench_tables(record).items()]
    return fill(page, MARK, [how + _WAYS, *parts])


def _times(rows: Sequence[Measured], qs: Sequence[float]) -> dict[str, str]:
    """The line of one shape."""
    ratios = [row["ratio"] for row in _of(rows, "one-liner")]
    errors = [row["error"] for row in _of(rows, "ordered")]
    return {
        **_shape(rows),
        "plain, ms": _ms(_of(rows, "plain")[0]),
        "torch": _spread(_of(rows, "torch")[0], "ratio"),
        "one-liner": f"{min(ratios):.2f} to {max(ratios):.2f}",
        **{head: _spread(row, "ratio") for head, row in _by_q(rows, qs).items()},
        "gradients differ by at most": "not finite" if None in errors else f"{max(errors):.0e}",
    }


def _memory(rows: Sequence[Measured], qs: Sequence[float]) -> dict[str, str]:
    """The line of one shape."""
    return {
        **_shape(rows),
        "plain": _mebibytes(_of(rows, "plain")),
        "torch": _mebibytes(_of(rows, "torch")),
        "one-liner": _mebibytes(_of(rows, "one-liner")),
        **{head: _mebibytes([row]) for head, row in _by_q(rows, qs).items()},
    }


def _speeds(rows: Sequence[Measured], qs: Sequence[float]) -> Rows:
    """A line for each way to keep q tokens."""
    return [
        {"loss": way, **{_head(q): _spread(row, "speedup") for q, row in zip(qs, _of(rows, way), strict=True)}}
        for way in ("one-liner", "ordered")
    ]


def _shape(rows: Sequence[Measured]) -> dict[str, str]:
    return {"words": f"{rows[0]['words']:,}", "width": f"{rows[0]['width']:,}"}


def _of(rows: Sequence[Measured], way: str) -> list[Measured]:
    return [row for row in rows if row["way"] == way]


def _by_q(rows: Sequence[Measured], qs: Sequence[float]) -> dict[str, Measured]:
    """The rows of ordered by their column."""
    return {f"ordered, {_head(q)}": row for q, row in zip(qs, _of(rows, "ordered"), strict=True)}


def _head(q: float) -> str:
    return f"q = {q:g}"


def _ms(row: Measured) -> str:
    return f"{1000 * row['seconds']:,.1f} ± {500 * (row['high'] - row['low']):.1f}"


def _spread(row: Measured, name: str) -> str:
    return f"{row[name]:.2f} ± {(row[f'{name}_high'] - row[f'{name}_low']) / 2:.2f}"


def _mebibytes(rows: Sequence[Measured]) -> str:
    """The smallest and the largest peak, or one where they are the same."""
    peaks = [row["peak_bytes"] for row in rows]
    if None in peaks:
        return "?"
    low, high = (f"{peak / 2**20:,.0f}" for peak in (min(peaks), max(peaks)))
    return low if low == high else f"{low} to {high}"
