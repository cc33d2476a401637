"""Language models trained on some of their tokens, as a table and a figure: of a record of `osgd bench tokens`."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from ordered_sgd.lab.report.canvas import new_figure, save
from ordered_sgd.lab.report.curves import LINES
from ordered_sgd.lab.report.marked import fill, markdown_table

Rows = list[dict[str, str]]
Runs = Sequence[Mapping[str, Any]]
MARK = "bench-tokens"


def tokens_bench_tables(record: Mapping[str, Any]) -> dict[str, Rows]:
    """Title to rows: every way at its best rate, and the validation loss of every way at every rate."""
    ways = _by_way(record["trained"])
    plain = best_runs(next(iter(ways.values())))
    rates = sorted({run["rate"] for run in record["trained"]})
    return {
        "Each at the rate with the lowest validation loss": [
            _line(way, best_runs(runs), plain) for way, runs in ways.items()
        ],
        "Validation loss at the end of the first seed, by rate": [
            {"trained on": way, **{f"rate {rate:g}": f"{_last(_at(runs, rate)[0]):.3f}" for rate in rates}}
            for way, runs in ways.items()
        ],
    }


def tokens_bench_page(page: str, record: Mapping[str, Any], picture: str) -> str:
    """The Markdown page with its tables and picture replaced by those of a record."""
    parts = [f"**{title}**\n\n{markdown_table(rows)}" for title, rows in tokens_bench_tables(record).items()]
    image = f"![Validation loss over processor time, for tokens kept in different ways]({picture})"
    return fill(page, MARK, [_how(record), record.get("note", ""), *parts, image])


def draw_tokens_bench(runs: Runs, stem: Path, suffixes: tuple[str, ...] = (".svg",)) -> list[Path]:
    """Files of a figure: validation loss over tokens seen and over processor time, each way at its best rate."""
    figure, (over_tokens, over_time) = new_figure(2, width=5.0, height=3.6)
    for colour, (way, own) in zip(LINES, _by_way(runs).items(), strict=False):
        points = list(zip(*(run["points"] for run in best_runs(own)), strict=True))
        mean = [fmean(point["loss"] for point in each) for each in points]
        style = {"color": colour, "label": way, "marker": ".", "linewidth": 1.6}
        over_tokens.plot([each[0]["tokens"] for each in points], mean, **style)
        over_time.plot([fmean(point["seconds"] for point in each) for each in points], mean, **style)
    over_tokens.set(xlabel="tokens seen", ylabel="validation loss per token (nats)")
    over_time.set(xlabel="seconds of the processor in training steps")
    over_time.legend(frameon=False, fontsize="small", loc="upper right")
    return save(figure, stem, suffixes)


def best_runs(runs: Runs) -> Runs:
    """The runs at the rate at which the first seed had the lowest validation loss at the end."""
    return _at(runs, min((run for run in runs if run["seed"] == 0), key=_last)["rate"])


def _by_way(runs: Runs) -> dict[str, list[Mapping[str, Any]]]:
    ways: dict[str, list[Mapping[str, Any]]] = {}
    for run in runs:
        name = "all tokens" if run["kept"] == "plain" else _NAMES[run["kept"]].format(100 * run["q"])
        ways.setdefault(name, []).append(run)
    return ways


_NAMES = {"ordered": "the hardest {:g} %", "random": "a random {:g} %"}


def _at(runs: Runs, rate: float) -> list[Mapping[str, Any]]:
    return [run for run in runs if run["rate"] == rate]


def _last(run: Mapping[str, Any]) -> float:
    loss: float = run["points"][-1]["loss"]
    return loss


def _line(way: str, runs: Runs, plain: Runs) -> dict[str, str]:
    seconds, of_plain = (fmean(run["points"][-1]["seconds"] for run in some) for some in (runs, plain))
    return {
        "trained on": way,
        "rate": f"{runs[0]['rate']:g}",
        "validation loss": _loss(runs),
        "test loss": _spread([run["test"] for run in runs]),
        "processor time": f"{seconds / of_plain:.2f}",
        "all tokens reach this loss after": _reached(fmean(map(_last, runs)), plain, of_plain),
    }


def _reached(loss: float, runs: Runs, seconds: float) -> str:
    """The share of `seconds` in which the mean validation loss of these runs fell to a value; linear between points."""
    points = [
        (fmean(point["seconds"] for point in each), fmean(point["loss"] for point in each))
        for each in zip(*(run["points"] for run in runs), strict=True)
    ]
    if loss > points[0][1]:
        return f"less than {points[0][0] / seconds:.2f}"
    for (before, high), (after, low) in pairwise(points):
        if low <= loss <= high:
            return f"{(before + (after - before) * (high - loss) / (high - low)) / seconds:.2f}"
    return "never"


def _loss(runs: Runs) -> str:
    return _spread([_last(run) for run in runs])


def _spread(values: Sequence[float]) -> str:
    return f"{fmean(values):.3f}" + (f" ({stdev(values):.3f})" if len(values) > 1 else "")


def _how(record: Mapping[str, Any]) -> str:
    size, machine = record["size"], record["machine"]
    seeds, tokens = len({run["seed"] for run in record["trained"]}), size["steps"] * size["s"] * size["length"]
    packages = ", ".join(f"{name} {version}" for name, version in record["packages"].items())
    return (
        f"The docstrings of {packages}; {size['vocabulary']:,} words of a byte-pair encoding. {size['layers']} layers "
        f"of {size['width']}, batches of {size['s']} x {size['length']} tokens, {tokens:,} tokens in all, AdamW, "
        f"{seeds} seeds (standard deviation in brackets), {machine['processor']}, one thread, torch "
        f"{machine['torch']}. Losses are means over all tokens, in nats; times are shares of "
        "the time of training on all tokens."
    )
