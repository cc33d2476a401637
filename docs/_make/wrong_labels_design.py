"""The design of `wrong_labels.py`: which runs there are, on which samples and wrong labels, and their record."""

import itertools
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from ordered_sgd.lab.data import load

RECORD = Path(__file__).parents[1] / "records" / "wrong-labels.json"
CLASSES = RECORD.with_name("wrong-labels-classes.json")
DATA, SEEDS = ("digits", "semeion", "mnist", "fashion-mnist"), (10, 11, 12)
DEVELOPMENT = (0, 1, 2)  # the seeds on which the rule "held-out" was developed, with the fixed arms alone in the record
MODELS = {"logistic": "linear", "lenet": "LeNet"}
RULES = ("watched", "held-out")
LEVELS = (0.0, 0.1, 0.2, 0.4)
CELLS = ((0.0, "any"), *itertools.product(LEVELS[1:], ("any", "nearest")))  # share of wrong labels, and their kind
MOST = 0.5
SAMPLES = {"logistic": 2500, "lenet": 1500}  # of MNIST and Fashion-MNIST; 70 % of the small sets
FIXED = {
    "logistic": tuple(itertools.product((0.0, 0.1, 0.2, 0.3, 0.4, 0.5), (1.0, 0.5, 0.25))),
    "lenet": None,  # those of `near`: the share that is wrong, half as much again, and none
}
VALUES = ("error", "trim", "share", "before", "seconds")  # of a run, the last three for the rule "held-out" alone

Found = dict["Run", dict[str, float]]


@dataclass(frozen=True)
class Run:
    """One training: `arm` is the name of a rule, or trim and q."""

    data: str
    model: str
    flipped: float
    kind: str
    seed: int
    arm: str

    @property
    def fixed(self) -> tuple[float, float] | None:
        """`trim` and q, if they are fixed."""
        return None if self.arm in RULES else tuple(map(float, self.arm.split()))  # type: ignore[return-value]


def plan(data: str, model: str, seeds: tuple[int, ...] = SEEDS) -> Iterator[Run]:
    """The runs of one part, seed by seed; of the development seeds, the fixed arms."""
    for seed, (flipped, kind) in itertools.product(seeds, CELLS):
        for arm in (*(() if seed in DEVELOPMENT else RULES), *fixed_arms(model, flipped)):
            yield Run(data, model, flipped, kind, seed, arm)


def fixed_arms(model: str, flipped: float) -> list[str]:
    """The fixed trim and q of one cell."""
    return [f"{trim:g} {q:g}" for trim, q in FIXED[model] or near(flipped)]


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


def read() -> Found:
    """The recorded runs."""
    lines = json.loads(RECORD.read_text()) if RECORD.exists() else []
    return {Run(*line[:6]): dict(zip(VALUES, line[6:], strict=False)) for line in lines}


def write(found: Found) -> None:
    """Write the record, one run a line."""
    rows = [[*asdict(run).values(), *(round(v[name], 3) for name in VALUES if name in v)] for run, v in found.items()]
    lines = [json.dumps(row) for row in rows]
    part = RECORD.with_suffix(".part")
    part.write_text("[\n" + ",\n".join(lines) + "\n]\n")
    part.replace(RECORD)


def read_classes() -> dict[tuple[str, str, str, int, str], int]:
    """Lost classes by model, data, kind of wrong labels, seed and arm."""
    return {tuple(line[:5]): line[5] for line in json.loads(CLASSES.read_text())} if CLASSES.exists() else {}
