"""What a step costs with each engine as a picture: bars of speed-up over plain SGD."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ordered_sgd.errors import require
from ordered_sgd.lab.report.canvas import COLOURS, save
from ordered_sgd.lab.report.marked import fill

_SKY, _BLUE, _RED, _GREEN, _PURPLE, _ORANGE = COLOURS
_BARS = {  # neighbours differ in brightness too
    "dense": "#999999",
    "selective": _SKY,
    "rows": _BLUE,
    "twopass": _RED,
    "auto": _GREEN,
    "selective-backprop": _PURPLE,
    "memory": _ORANGE,
    "compiled-sgd": "#444444",
    "selective-compiled": "#b8b800",
}
_LIMITS = {"limit-a": "-", "limit-b": ":"}
_LABELS = {
    "selective": "plain loop, selective_backward",
    "compiled-sgd": "SGD, compiled model",
    "selective-compiled": "plain loop, selective_backward, compiled model",
    "memory": "memory, 3q candidates",
    "selective-backprop": "Selective Backprop, half kept",
    "limit-a": "limit of two passes",
    "limit-b": "limit of one pass",
}


def draw_step_bench(
    rows: Sequence[Mapping[str, Any]], stem: Path, suffixes: tuple[str, ...] = (".png", ".svg")
) -> list[Path]:
    """PNG and SVG of the speed-ups, a panel for each model and number of threads, a group of bars for each q.

    Parameters
    ----------
    rows
        As `osgd bench step --json` prints them; whiskers are quartiles, short black lines the limits.
    stem, suffixes
        The files without suffix, and which kinds.
    """
    models = list(dict.fromkeys(row["model"] for row in rows))
    threads = list(dict.fromkeys(row["threads"] for row in rows))
    module = require("matplotlib.figure", extra="lab", where="osgd")
    figure = module.Figure(figsize=(1 + 5.2 * len(threads), 0.8 + 2.3 * len(models)), layout="constrained")
    axes = figure.subplots(len(models), len(threads), squeeze=False)
    qs = sorted({row["q"] for row in rows}, reverse=True)
    highest = max(row["speedup_high"] or row["speedup"] for row in rows)
    for line, model in zip(axes, models, strict=True):
        for axis, count in zip(line, threads, strict=True):
            panel = [row for row in rows if row["model"] == model and row["threads"] == count]
            _draw_panel(axis, panel, qs)
            axis.set(title=f"{model}, {count} thread{'s' * (count > 1)}", ylim=(0, 1.08 * highest))
        line[0].set_ylabel("speed-up over SGD")
    handles = {
        label: handle for axis in axes.flat for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=2 + len(threads), frameon=False)
    return save(figure, stem, suffixes)


def _draw_panel(axis: Any, rows: Sequence[Mapping[str, Any]], qs: Sequence[int]) -> None:
    """Bars in a group for each q, a gap where it was not measured; a line at SGD's speed."""
    axis.axhline(1, color="black", linewidth=0.8)
    present = [name for name in _BARS if any(row["row"] == name for row in rows)]
    width = 0.84 / max(1, len(present))
    for position, name in enumerate(present):
        own = [row for row in rows if row["row"] == name]
        places = [qs.index(row["q"]) + (position - (len(present) - 1) / 2) * width for row in own]
        heights = [row["speedup"] for row in own]
        whiskers = [[h - row["speedup_low"] for h, row in zip(heights, own, strict=True)]]
        whiskers.append([row["speedup_high"] - h for h, row in zip(heights, own, strict=True)])
        axis.bar(places, heights, 0.94 * width, color=_BARS[name], label=_LABELS.get(name, name))
        axis.errorbar(places, heights, yerr=whiskers, fmt="none", ecolor="#444444", elinewidth=0.7)
    for name, style in _LIMITS.items():
        own = [row for row in rows if row["row"] == name]
        left, right = ([qs.index(row["q"]) + side * 0.45 for row in own] for side in (-1, 1))
        heights = [row["speedup"] for row in own]
        axis.hlines(heights, left, right, color="black", linewidth=1.3, linestyle=style, label=_LABELS[name])
    axis.set_xticks(range(len(qs)), [f"q = {q}" for q in qs])
    axis.set_xlim(-0.55, len(qs) - 0.45)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", alpha=0.25, linewidth=0.6)
    axis.set_axisbelow(True)


MARK = "bench-step"


def step_bench_page(page: str, record: Mapping[str, Any], figure: str) -> str:
    """The Markdown page with what stands between its two marks made anew from a record of `osgd bench step`."""
    machine, rows = record["machine"], record["rows"]
    rounds = sorted({row["rounds"] for row in rows})
    how = f"{machine['processor']}, {machine['cores']} cores, torch {machine['torch']}; medians of "
    how += f"{rounds[0]} rounds." if len(rounds) == 1 else f"{rounds[0]} to {rounds[-1]} rounds."
    picture = f"![Speed of a training step over SGD, for each model, engine and q]({figure})"
    return fill(page, MARK, [how, picture, step_bench_markdown(rows), step_costs_markdown(rows)])


def step_costs_markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table of what a step costs besides its seconds, at the smallest q that was probed; may be empty."""
    probed = [row for row in rows if row["saved_bytes"] is not None and row["row"] != "auto"]
    lines = []
    for model in dict.fromkeys(row["model"] for row in probed):
        own = [row for row in probed if row["model"] == model]
        q = min(row["q"] for row in own)
        for row in (row for row in own if row["q"] == q and row["threads"] == own[0]["threads"]):
            peak = "?" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 2**20:.1f}"
            cells = [model, _LABELS.get(row["row"], row["row"]), f"s/{row['s'] // q}"]
            cells += [f"{row['saved_bytes'] / 2**20:.2f}", peak, f"{row['compile_seconds']:.1f}"]
            lines.append(f"| {' | '.join(cells)} |")
    heads = "| model | step | q | MiB saved for the backward | MiB at the peak | seconds to compile |"
    return "\n".join([heads, "| --- " * 6 + "|", *lines]) if lines else ""


def step_bench_markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Markdown tables of the speed-ups, one for each number of threads: a line for each model and step."""
    parts = []
    for threads in dict.fromkeys(row["threads"] for row in rows):
        own = [row for row in rows if row["threads"] == threads]
        qs = sorted({row["q"] for row in own}, reverse=True)
        s = own[0]["s"]
        heads = ["q = s" if q == s else f"s/{s // q}" for q in qs]
        lines = [
            f"| {threads} thread{'s' * (threads > 1)} | step | {' | '.join(heads)} |",
            "| --- " * (len(qs) + 2) + "|",
        ]
        for model, name in dict.fromkeys((row["model"], row["row"]) for row in own if row["row"] != "sgd"):
            cells = {row["q"]: row for row in own if (row["model"], row["row"]) == (model, name)}
            values = [_cell(cells[q], name) if q in cells else "" for q in qs]
            lines.append(f"| {model} | {_LABELS.get(name, name)} | {' | '.join(values)} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _cell(row: Mapping[str, Any], name: str) -> str:
    other = f" ({row['ran']})" if row["ran"] not in ("", name) and name != "auto" else ""
    return f"{row['speedup']:.2f}{other}"
