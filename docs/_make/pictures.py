"""The pictures of README and documentation, drawn by the package from its records: ``make pictures``.

Boundaries are trained anew, a minute; curves come from the records of RESULTS.md, speed-ups from those of
`osgd bench step`. Drawn twice they are the same bytes, as far as the training is.
"""

import json
import tempfile
from collections.abc import Sequence
from functools import partial
from html import escape
from pathlib import Path

from ordered_sgd.lab.experiments.backends.processes import Processes
from ordered_sgd.lab.experiments.comparison import Arm
from ordered_sgd.lab.experiments.exported import read_csv
from ordered_sgd.lab.experiments.requests import Request, reproduce
from ordered_sgd.lab.experiments.store import Records, among
from ordered_sgd.lab.report.boundaries import draw_boundaries
from ordered_sgd.lab.report.canvas import COLOURS, new_figure, save
from ordered_sgd.lab.report.curves import draw_curves, draw_times
from ordered_sgd.lab.report.figure2 import FIGURE_2, draw_gamma

DOCS = Path(__file__).parents[1]
STEP = (
    ("mini-batch", "s samples", "lab/data/source.py"),
    ("losses", "one per sample", "scoring.py"),
    ("kept rows", "the q largest", "selector.py"),
    ("gradient", "of their mean", "engines/"),
    ("update", "any optimizer", "update.py"),
    ("StepRecord", "what was done", "record.py"),
)
EXPERIMENT = (
    ("spec", "all of a run", "lab/experiments/recipes/"),
    ("data, model", "by name or yours", "lab/data/, models/"),
    ("train", "a row per epoch", "lab/experiments/train.py"),
    ("records", "SQLite, append-only", "lab/experiments/store.py"),
    ("tables, figures", "with verdicts", "lab/report/"),
    ("page, terminal", "what you read", "lab/cli/"),
)


def boundaries() -> list[Path]:
    """Figure 1, all four problems, and two of them for the README: seed 0, trained here."""
    with tempfile.TemporaryDirectory() as folder:
        records = Records(Path(folder))
        with Processes(records) as run_all:
            results = reproduce(Request("figure1", trials=1).shown().rows, run_all, trials=1)
        whole, part = (draw_boundaries(shown, records.artifact) for shown in (results, results[1:3]))
        return [*save(whole, DOCS / "figure1", (".png",)), *save(part, DOCS / "boundaries", (".png",))]


def curves() -> list[Path]:
    """LeNet on Semeion by epoch, ten seeds: test error, training loss and q."""
    figure = draw_curves(_recorded(Request("table1", ("semeion-lenet",), protocol="authors-code")))
    figure.axes[0].set_yscale("log")  # what is left at the end is small beside the first epochs
    figure.axes[0].set_yticks([5, 10, 20, 50], ["5", "10", "20", "50"])
    figure.axes[0].minorticks_off()
    return save(figure, DOCS / "curves", (".svg",))


def times() -> list[Path]:
    """LeNet on MNIST and on Fashion-MNIST, trained whole with each engine, three seeds: test error over time."""
    written = []
    for file, row in (("times", "mnist-lenet"), ("times-fashion", "fashion-mnist-lenet")):
        arms = _recorded(Request("whole-training", (row,), 3, "authors-code"))
        written += save(draw_times(arms), DOCS / file, (".svg",))
    return written


def _recorded(request: Request) -> tuple[Arm, ...]:
    """The arms of a request for one row, from the records of RESULTS.md."""
    look = partial(among, read_csv(DOCS / "records" / "results.csv.gz"))
    (result,) = reproduce(request.shown().rows, look, trials=request.trials)
    return result.arms


def speed() -> list[Path]:
    """What a step gains over SGD by q, a line for each model, as `osgd bench step` measured `rows` on one core."""
    rows = json.loads((DOCS / "records" / "bench-step.json").read_text())["rows"]
    figure, (axis,) = new_figure(1, width=6.2, height=3.4)
    own = [row for row in rows if row["row"] == "rows" and row["threads"] == 1]
    for colour, model in zip((*COLOURS, "#7f7f7f"), dict.fromkeys(row["model"] for row in own), strict=True):
        line = sorted((row["s"] / row["q"], row["speedup"]) for row in own if row["model"] == model)
        axis.plot(*zip(*line, strict=True), "o-", color=colour, label=model)
    axis.axhline(1, color="black", linewidth=0.8)
    axis.set_xscale("log", base=2)
    axis.set(xlabel="samples kept", ylabel="speed of a step over SGD", ylim=(0, None))
    axis.set_xticks([1, 2, 4, 8, 16], ["s", "s/2", "s/4", "s/8", "s/16"])
    figure.legend(loc="outside right center", frameon=False)
    return save(figure, DOCS / "speed", (".svg",))


def flow(name: str, steps: Sequence[tuple[str, str, str]]) -> list[Path]:
    """A row of boxes with arrows between them: what, in which words, in which file."""
    width, gap, height = 162, 26, 92
    total = len(steps) * (width + gap) - gap
    parts = []
    for place, (what, words, file) in enumerate(steps):
        left = place * (width + gap) + 1
        middle = left + width / 2 - 1
        parts.append(f'<rect x="{left}" y="1" width="{width - 2}" height="{height - 2}" rx="9"/>')
        parts.append(f'<text x="{middle}" y="32" class="what">{escape(what)}</text>')
        parts.append(f'<text x="{middle}" y="53">{escape(words)}</text>')
        parts.append(f'<text x="{middle}" y="77" class="file">{escape(file)}</text>')
        if place:
            parts.append(f'<path d="M{left - gap} {height / 2}h{gap - 9}m0 -5l8 5l-8 5z"/>')
    style = (
        "rect{fill:#fff;stroke:#546e7a;stroke-width:1.5}text{font:13px system-ui,sans-serif;text-anchor:middle;"
        "fill:#37474f}.what{font-weight:600;font-size:15px;fill:#000}.file{font:11px ui-monospace,monospace;"
        "fill:#bf360c}path{stroke:#78909c;stroke-width:1.5;fill:#78909c}"
    )
    size = f'viewBox="0 0 {total} {height}" width="{total}" height="{height}"'
    path = DOCS / f"flow-{name}.svg"
    path.write_text(f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{style}</style>{"".join(parts)}</svg>\n')
    return [path]


if __name__ == "__main__":
    written = [*flow("step", STEP), *flow("experiment", EXPERIMENT), *speed(), *curves(), *times(), *boundaries()]
    written += save(draw_gamma(FIGURE_2), DOCS / "figure2", (".svg",))
    print("\n".join(f"written: {path.relative_to(DOCS.parent)}" for path in written))
