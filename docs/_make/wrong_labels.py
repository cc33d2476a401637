"""Can training itself tell which share of the labels is wrong? A rule that moves trim and q, against fixed ones.

``python docs/_make/wrong_labels.py --data digits --model logistic`` runs one part of the design and adds it to the
record; runs that have a record are not run again. It needs Semeion, MNIST and Fashion-MNIST (`osgd data fetch`), and
about an hour of one core in all. ``--page`` only writes the tables.

A share of the training labels is flipped, to any other class or to the one whose mean image is nearest; test labels are
right. The fixed arms keep a share q after dropping a share `trim`, which grows over ten epochs. The best of them is
chosen *by its test error*, which nobody can do in practice: it is what a rule could reach at most. Its choice was
fixed before these runs, on other samples and seeds of the same data sets.
"""

import argparse
import itertools
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean

import numpy as np
import torch
from torch import Tensor, nn

from ordered_sgd import ordered_mean
from ordered_sgd.lab.data import load
from ordered_sgd.lab.models import build, channels_last
from ordered_sgd.lab.report.marked import fill, markdown_table

PAGE = Path(__file__).parents[1] / "units.md"
RECORD = Path(__file__).parents[1] / "records" / "wrong-labels.json"
DATA, SEEDS = ("digits", "semeion", "mnist", "fashion-mnist"), (10, 11, 12)
MODELS = {"logistic": "linear", "lenet": "LeNet"}
LEVELS = (0.0, 0.1, 0.2, 0.4)
BATCH, EPOCHS, RAMP, MOST = 64, 30, 10, 0.5
RATE = {"logistic": 0.05, "lenet": 0.01}  # divided by 10 after two thirds of the epochs
SAMPLES = {"logistic": 2500, "lenet": 1500}  # of MNIST and Fashion-MNIST; 70 % of the small sets
FIXED = {
    "logistic": tuple(itertools.product((0.0, 0.1, 0.2, 0.3, 0.4, 0.5), (1.0, 0.5, 0.25))),
    "lenet": None,  # those of `near`: the share that is wrong, half as much again, and none
}
GOAL = 0.5  # points of test error above the best fixed arm


@dataclass(frozen=True)
class Run:
    """One training: `arm` is "rule", or trim and q."""

    data: str
    model: str
    flipped: float
    kind: str
    seed: int
    arm: str

    @property
    def fixed(self) -> tuple[float, float] | None:
        """`trim` and q, if they are fixed."""
        return None if self.arm == "rule" else tuple(map(float, self.arm.split()))  # type: ignore[return-value]


def plan(data: str, model: str) -> Iterator[Run]:
    """The runs of one part, seed by seed."""
    for seed, flipped in itertools.product(SEEDS, LEVELS):
        for kind in ("any", "nearest") if flipped else ("any",):
            pairs = FIXED[model] or near(flipped)
            for arm in ("rule", *(f"{trim:g} {q:g}" for trim, q in pairs)):
                yield Run(data, model, flipped, kind, seed, arm)


def near(flipped: float) -> Iterator[tuple[float, float]]:
    """Few fixed arms, for a model that takes long."""
    return itertools.product(sorted({0.0, flipped, min(MOST, round(1.5 * flipped, 2))}), (1.0, 0.5))


@dataclass(frozen=True)
class Split:
    """Training samples, whose labels may be wrong, and test samples."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor
    classes: int


def split(run: Run) -> Split:
    """The data of a run: its own samples and its own wrong labels."""
    data, rng = load(run.data), np.random.default_rng(run.seed)
    x, y = torch.from_numpy(np.array(data.x)).float(), torch.from_numpy(np.array(data.y)).long()
    x, classes = x / x.max(), len(data.classes)
    if run.model == "lenet" and x.shape[-1] < 16:
        x = nn.functional.interpolate(x, scale_factor=2)
    order = torch.from_numpy(rng.permutation(len(x)))
    n = SAMPLES[run.model] if len(x) > 10_000 else round(0.7 * len(x))
    train, test = order[:n], order[n : n + 5000]
    return Split(x[train], flip(x[train], y[train], run, classes, rng), x[test], y[test], classes)


def flip(x: Tensor, y: Tensor, run: Run, classes: int, rng: np.random.Generator) -> Tensor:
    """The labels, a share of them wrong."""
    y, wrong = y.clone(), torch.from_numpy(rng.permutation(len(y))[: round(run.flipped * len(y))])
    if run.kind == "any":
        y[wrong] = (y[wrong] + torch.from_numpy(rng.integers(1, classes, len(wrong)))) % classes
        return y
    means = torch.stack([x[y == label].flatten(1).mean(0) for label in range(classes)])
    nearest = (torch.cdist(means, means) + torch.eye(classes) * 1e9).argmin(1)
    y[wrong] = nearest[y[wrong]]
    return y


def wrong_share(probabilities: Tensor, labels: Tensor) -> float:
    """The share of samples that a model assigns to another class with confidence.

    A sample counts if another class is as probable as that class is on the average for its own samples: the confident
    joint of Northcutt, Jiang and Chuang, "Confident Learning", JAIR 2021. Probabilities (n, C), labels (n,).
    """
    own = nn.functional.one_hot(labels, probabilities.shape[1]).to(probabilities)
    expected = (own * probabilities).sum(0) / own.sum(0).clamp(min=1)
    confident = torch.where(probabilities >= expected, probabilities, 0.0)
    return float(((confident.amax(1) > 0) & (confident.argmax(1) != labels)).float().mean())


class WatchedTrim:
    """trim and q from what an epoch showed: nothing is dropped until the training error has stopped falling fast.

    Then the share that `wrong_share` found in that epoch is taken for good, since later the model learns the wrong
    labels by heart, and a little more of it is dropped, over some epochs; all the rest is kept.
    """

    LEAST, RAMP, MORE, NOTICED = 0.05, 5, 1.2, 0.03

    def __init__(self) -> None:
        self.error, self.epochs = 1.0, 0
        self.share: float | None = None
        self.since = 0  # epochs since the share was found

    def after(self, probabilities: Tensor, labels: Tensor) -> tuple[float, float]:
        """`trim` and q of the next epoch, from the probabilities that samples had when they were trained on."""
        self.epochs += 1
        before, self.error = self.error, float((probabilities.argmax(1) != labels).float().mean())
        if self.share is None:
            if self.epochs < 3 or before - self.error >= self.LEAST:
                return 0.0, 1.0
            found = wrong_share(probabilities, labels)
            self.share = found if found > self.NOTICED else 0.0
        self.since += 1
        trim = min(MOST, self.MORE * self.share) * min(1.0, self.since / self.RAMP)
        return trim, 1 - trim


def train(run: Run) -> dict[str, float]:
    """Test error in percent, and the trim of the last epoch."""
    data, fixed = split(run), run.fixed
    torch.manual_seed(run.seed)
    model = build(run.model, tuple(data.x.shape[1:]), data.classes)
    channels_last(model)
    rate = RATE[run.model]
    optimizer = torch.optim.SGD(model.parameters(), rate, momentum=0.9, weight_decay=1e-4)
    generator, rule = torch.Generator().manual_seed(run.seed), WatchedTrim()
    trim, q = (0.0, 1.0) if fixed is None else fixed
    for epoch in range(EPOCHS):
        if fixed is not None:
            trim = fixed[0] * min(1.0, epoch / RAMP)
        if epoch == EPOCHS * 2 // 3:
            optimizer.param_groups[0]["lr"] = rate / 10
        seen = torch.zeros(len(data.y), data.classes)
        for index in torch.randperm(len(data.y), generator=generator).split(BATCH):
            outputs = model(data.x[index])
            losses = nn.functional.cross_entropy(outputs, data.y[index], reduction="none")
            optimizer.zero_grad()
            ordered_mean(losses, min(q, 1 - trim), trim=trim).backward()
            optimizer.step()
            seen[index] = outputs.detach().softmax(1)
        if fixed is None:
            trim, q = rule.after(seen, data.y)
    model.eval()
    with torch.no_grad():
        answers = torch.cat([model(x).argmax(1) for x in data.test_x.split(1000)])
    return {"error": 100 * float((answers != data.test_y).float().mean()), "trim": trim}


def read() -> dict[Run, dict[str, float]]:
    """The recorded runs."""
    lines = json.loads(RECORD.read_text()) if RECORD.exists() else []
    return {Run(*line[:6]): {"error": line[6], "trim": line[7]} for line in lines}


def write(found: dict[Run, dict[str, float]]) -> None:
    """Write the record, one run a line."""
    lines = [json.dumps([*asdict(run).values(), round(v["error"], 3), round(v["trim"], 3)]) for run, v in found.items()]
    part = RECORD.with_suffix(".part")
    part.write_text("[\n" + ",\n".join(lines) + "\n]\n")
    part.replace(RECORD)


def tables(found: dict[Run, dict[str, float]]) -> list[str]:
    """For each data set and model: SGD, the best fixed arm and the rule, and how often the goal is reached."""
    rows, reached, cells = [], 0, 0
    for model, data in itertools.product(MODELS, DATA):
        row = {"model": MODELS[model], "data": data}
        for flipped, kind in [(0.0, "any"), *itertools.product(LEVELS[1:], ("any", "nearest"))]:
            errors = of_cell(found, model, data, flipped, kind)
            name = f"{flipped:.0%}" + ("" if not flipped else f" {kind}")
            row[name] = "-"
            if errors:
                best = min(value for arm, value in errors.items() if arm != "rule")
                cells, reached = cells + 1, reached + (errors["rule"] - best <= GOAL)
                row[name] = f"{errors['0 1']:.1f} / {best:.1f} / {errors['rule']:.1f}"
        if any(value != "-" for name, value in row.items() if name not in ("model", "data")):
            rows.append(row)
    parts = {(run.model, run.data) for run in found}
    seeds = min(len({run.seed for run in found if (run.model, run.data) == part}) for part in parts)
    said = "Test error in percent, means of "
    said += f"{seeds} seeds: plain SGD / the best fixed trim and q / the rule. The rule is within half a point of the "
    said += f"best fixed arm in {reached} of {cells} cells."
    return [said, markdown_table(rows)]


def of_cell(found: dict[Run, dict[str, float]], model: str, data: str, flipped: float, kind: str) -> dict[str, float]:
    """Mean error of each arm over the seeds in which every arm was run."""
    cell = [run for run in found if (run.model, run.data, run.flipped, run.kind) == (model, data, flipped, kind)]
    arms = {run.arm for run in plan(data, model) if (run.flipped, run.kind) == (flipped, kind)}
    seeds = [seed for seed in SEEDS if {run.arm for run in cell if run.seed == seed} == arms]
    if not seeds:
        return {}
    return {arm: mean(found[Run(data, model, flipped, kind, seed, arm)]["error"] for seed in seeds) for arm in arms}


def main() -> None:
    """Run what is missing of the parts asked for, and write the tables between their marks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", choices=DATA, action="append")
    parser.add_argument("--model", choices=MODELS, action="append")
    parser.add_argument("--page", action="store_true", help="only write the tables, from the record")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = read()
    for model, data in [] if options.page else itertools.product(options.model or MODELS, options.data or DATA):
        for run in plan(data, model):
            if run not in found:
                found[run] = train(run)
                print(run, found[run], flush=True)
                if run.arm == "rule" or model == "lenet":
                    write(found)
        write(found)
    PAGE.write_text(fill(PAGE.read_text(), "wrong-labels", tables(found)))
    print("\n\n".join(tables(found)))


if __name__ == "__main__":
    main()
