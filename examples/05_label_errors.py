"""Suspected label errors: how many of the labels that were flipped `SelectionTracker` finds, and what it gets wrong.

A share of the training labels of scikit-learn's handwritten digits is replaced by other classes. A small network is
trained on them by plain SGD and by ordered SGD while a tracker follows the losses; nothing tells it which labels are
wrong. What it names is compared with what was flipped: precision is the share of the named whose label is wrong, recall
the share of the wrong labels that are named, average precision judges the order of suspicion without any threshold.
"Explained" is how much of the variance the threshold explains; below 0.7 nobody is named.

Run: python examples/05_label_errors.py                 (a minute; writes label-errors-map.png and -hardest.png)
     python examples/05_label_errors.py --seeds 1 --shares 0 5 --data fashion-mnist --size 2000
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import nn

from ordered_sgd import AccuracyRule, FixedQ, OrderedStep
from ordered_sgd.diagnostics.tracker import SelectionTracker
from ordered_sgd.lab.data import Dataset, load
from ordered_sgd.lab.data.noise import flip_labels
from ordered_sgd.lab.data.source import BatchSource
from ordered_sgd.lab.report.canvas import save
from ordered_sgd.lab.report.contact import contact_sheet
from ordered_sgd.lab.report.data_map import draw_tracker
from ordered_sgd.lab.report.marked import fill, markdown_table
from ordered_sgd.rules import Rule

S, EPOCHS, RATE = 64, 20, 0.03
# Plain, the paper's rule, and a fixed quarter of each batch.
RULES: dict[str, Rule] = {"sgd": FixedQ(1.0), "ordered, rule": AccuracyRule(), "ordered, s/4": FixedQ(0.25)}
SHOWN = "ordered, rule"  # in the pictures


@dataclass(frozen=True)
class Found:
    """What a tracker said of a training set, beside what is true; numbers of samples and shares."""

    wrong: int
    named: int
    precision: float
    recall: float
    average_precision: float
    explained: float


def train(data: Dataset, rule: Rule, seed: int) -> SelectionTracker:
    """One training of a small network, and what the tracker saw of it."""
    torch.manual_seed(seed)
    pixels, classes = data.x[0].size, len(data.classes)
    model = nn.Sequential(nn.Flatten(), nn.Linear(pixels, 64), nn.ReLU(), nn.Linear(64, classes))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9, weight_decay=1e-4)
    step = OrderedStep(model, nn.CrossEntropyLoss(reduction="none"), optimizer, q=rule, engine="dense")
    tracker = SelectionTracker(len(data), y=data.y, classes=data.classes)
    source = BatchSource(data, S, rng=seed)
    for _ in range(EPOCHS):
        for x, y, indices in source:
            tracker.update(indices, step(x, y))
        tracker.end_epoch()
        step.end_epoch()
    return tracker


def judge(tracker: SelectionTracker, wrong: NDArray[np.bool_]) -> Found:
    """How well the suspects fit the labels that are wrong."""
    suspects = tracker.suspects()
    hits = int(wrong[suspects.indices].sum())
    by_suspicion = wrong[np.argsort(-suspects.suspicion, kind="stable")]
    precisions = np.cumsum(by_suspicion) / np.arange(1, len(wrong) + 1)
    named, count = len(suspects.indices), int(wrong.sum())
    return Found(
        count,
        named,
        precision=hits / named if named else np.nan,
        recall=hits / count if count else np.nan,
        average_precision=float(precisions[by_suspicion].mean()) if count else np.nan,
        explained=suspects.explained,
    )


def line(share: float, method: str, found: Sequence[Found]) -> dict[str, str]:
    """A line of the table: means over seeds; a dash where there is nothing to be divided by."""

    def mean(name: str, digits: int) -> str:
        values = [getattr(one, name) for one in found if not np.isnan(getattr(one, name))]
        return f"{np.mean(values):.{digits}f}" if values else "–"

    return {
        "flipped": f"{100 * share:g} %: {mean('wrong', 0)}",
        "training": method,
        "named": mean("named", 0),
        "precision": mean("precision", 2),
        "recall": mean("recall", 2),
        "av. prec.": mean("average_precision", 2),
        "explained": mean("explained", 2),
    }


def show(lines: Sequence[dict[str, str]], title: str) -> None:
    """Print the table."""
    table = Table(title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))  # narrow enough for 80 columns
    for head in lines[0]:
        table.add_column(head, justify="left" if head == "training" else "right", no_wrap=head == "training")
    for one in lines:
        table.add_row(*one.values())
    Console().print(table)


def draw(tracker: SelectionTracker, data: Dataset, true: NDArray[np.int64], stem: Path) -> list[Path]:
    """The data map with the wrong labels marked, and the twenty most suspicious samples with both labels."""
    wrong = data.y != true
    order = np.argsort(-tracker.suspects().suspicion, kind="stable")[:20]
    names = data.classes
    captions = [f"{names[data.y[i]]}, is {names[true[i]]}" if wrong[i] else names[data.y[i]] for i in order]
    title = (
        f"The 20 most suspicious of {len(data):,} {data.name}, {100 * wrong.mean():.0f} % of the labels flipped\n"
        f"below each: its label, and what it is if that was flipped ({wrong[order].sum()} of 20)"
    )
    sheet = contact_sheet(data.x[order], np.arange(len(order)), captions, title=title)
    drawn = draw_tracker(tracker, wrong=wrong)
    stems = (stem.with_name(f"{stem.name}-map"), stem.with_name(f"{stem.name}-hardest"))
    return [*save(drawn, stems[0], (".png",)), *save(sheet, stems[1])]


def main() -> None:
    """Train at every share of flipped labels, print the table, write the pictures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--shares", type=float, nargs="+", default=[0, 5, 10, 20, 40], help="flipped labels in percent")
    parser.add_argument("--data", default="digits", help="a data set of images; see: osgd data list")
    parser.add_argument("--size", type=int, help="train on so many samples only")
    parser.add_argument("--out", type=Path, default=Path("label-errors"), help="what the pictures' names begin with")
    parser.add_argument("--page", type=Path, help="a Markdown page whose table is replaced")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[tuple[float, str], list[Found]] = {}
    written: list[Path] = []
    jobs = [(share, name, seed) for share in arguments.shares for name in RULES for seed in range(arguments.seeds)]
    for share, name, seed in track(jobs, description="trainings", transient=True):
        clean = load(arguments.data, partial=True, seed=seed)
        clean = clean.take(np.random.default_rng(0).permutation(len(clean))[: arguments.size])
        data, _ = flip_labels(clean, share / 100, np.random.default_rng(seed))
        tracker = train(data, RULES[name], seed)
        found.setdefault((share / 100, name), []).append(judge(tracker, data.y != clean.y))
        if (name, seed) == (SHOWN, 0) and share == (10 if 10 in arguments.shares else arguments.shares[0]):
            written = draw(tracker, data, clean.y, arguments.out)
    lines = [line(*key, results) for key, results in found.items()]
    show(lines, f"{len(clean):,} samples of {clean.name}, {EPOCHS} epochs, means of {arguments.seeds} seeds")
    if arguments.page is not None:
        page = arguments.page.read_text(encoding="utf-8")
        arguments.page.write_text(fill(page, "label-errors", [markdown_table(lines)]), encoding="utf-8")
    for path in written:
        print(f"written: {path}")


if __name__ == "__main__":
    main()
