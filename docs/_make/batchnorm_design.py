"""The design of the BatchNorm factorial, fixed before the runs: factors, cells, arms, seeds and what is compared.

Seven factors have two levels each: the first is that of the trainings in which ordered SGD was six points worse than
SGD (`osgd reproduce batchnorm`), or the plain choice; the second is that of airbench96, the fastest known training to
96 % on CIFAR-10. The 16 cells are a fraction of resolution IV: main effects are not confounded with each other or with
the interaction of two factors. The cell with all first levels and the one with all second levels both belong to it.

The primary outcome is the test error of ordered SGD less that of SGD *at its best rate*, with the same batch size,
label smoothing, length and seed. The effect of a factor is the mean of this difference over the 8 cells with the
second level less the mean over the 8 cells with the first; its interval is Student's over the seeds. Every cell has two
controls: SGD with the same rate in every step, and a random q of the same size. Secondary, in the two extreme cells:
ordered SGD that keeps all samples in the last quarter of the steps.

Two more comparisons were added when the first seed had been seen, and are exploratory: the first extreme cell with
GroupNorm in the place of BatchNorm, and the second one over 24 epochs.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import chain, product
from math import prod
from pathlib import Path
from typing import Any

RECORD = Path(__file__).parents[1] / "records" / "batchnorm.json"

# factor -> what our trainings did, and what airbench96 does
FACTORS: dict[str, tuple[Any, Any]] = {
    "batch": (64, 1024),
    "rate": ("SGD's", "times q/s"),  # where q < s: airbench96 adds up the kept losses at the rate of the whole batch
    "smoothing": (0.0, 0.2),
    "epochs": (3, 8),
    "kept": (0.25, 0.5),
    "start": (0.5, 0.0),  # share of the steps after which only q samples are kept
    "statistics": ("all", "kept"),  # the samples that BatchNorm normalises by, and whose mean the running ones are of
}
BEST = FACTORS["rate"][0]
FREE = ("batch", "rate", "smoothing", "epochs")  # all 16 combinations; the level of each other factor is a product
GENERATED = {
    "kept": ("batch", "rate", "smoothing"),
    "start": ("batch", "rate", "epochs"),
    "statistics": ("batch", "smoothing", "epochs"),
}
SEEDS = (0, 1, 2, 3)
CONTROL_SEEDS = SEEDS[:3]
# Near the best of a grid for SGD without smoothing, by the test error of pilot runs: a choice in SGD's favour. At 64
# half and twice the rate were tried (.025 to .1), at 1024 .1 to .8; .2 and .4 differed by .3 points there.
LONG = 24
BEST_RATE = {(64, 3): 0.05, (64, 8): 0.05, (1024, 3): 0.3, (1024, 8): 0.3, (1024, LONG): 0.3}

Signs = tuple[int, ...]  # of the factors, in their order: -1 for the first level, 1 for the second


@dataclass(frozen=True)
class Cell:
    """The levels of all factors."""

    batch: int
    rate: str
    smoothing: float
    epochs: int
    kept: float
    start: float
    statistics: str


def cells() -> dict[Signs, Cell]:
    """The 16 cells of the design, by the signs of their levels."""
    found = {}
    for levels in product((-1, 1), repeat=len(FREE)):
        signs = dict(zip(FREE, levels, strict=True))
        signs |= {name: prod(signs[factor] for factor in word) for name, word in GENERATED.items()}
        found[tuple(signs.values())] = Cell(**{name: FACTORS[name][sign > 0] for name, sign in signs.items()})
    return found


@dataclass(frozen=True)
class Run:
    """One training. `whole` is the share of the steps, at the end, in which all samples are kept again."""

    method: str  # ordered, random or sgd, which has the rates of ordered SGD in this cell
    cell: Cell
    seed: int
    whole: float = 0.0
    norm: str = "batch"  # or group: GroupNorm in the place of BatchNorm


def plan() -> Iterator[Run]:
    """All runs in the order in which they are carried out: the more they tell, the earlier."""
    design = list(cells().values())
    yield from chain(*(primary(seed) for seed in CONTROL_SEEDS))
    yield from (Run("ordered", cell, seed, whole=0.25) for seed in CONTROL_SEEDS for cell in (design[0], design[-1]))
    yield from (replace(run, norm="group") for run in pairs(design[0]))
    yield from (Run("random", cell, CONTROL_SEEDS[0]) for cell in design)
    yield from pairs(replace(design[-1], epochs=LONG))
    lower = [cell for cell in design if cell.rate != BEST]
    yield from (Run("sgd", cell, seed) for seed in CONTROL_SEEDS for cell in lower)
    yield from (Run("random", cell, seed) for seed in CONTROL_SEEDS[1:] for cell in design)
    yield from chain(*(primary(seed) for seed in SEEDS if seed not in CONTROL_SEEDS))


def pairs(cell: Cell) -> Iterator[Run]:
    """SGD at its best rate and ordered SGD in a cell."""
    for seed in CONTROL_SEEDS:
        yield Run("sgd", replace(cell, rate=BEST), seed)
        yield Run("ordered", cell, seed)


def primary(seed: int) -> Iterator[Run]:
    """Ordered SGD in all cells, and SGD in those in which its rate is the best one."""
    for cell in cells().values():
        if cell.rate == BEST:
            yield Run("sgd", cell, seed)
        yield Run("ordered", cell, seed)


Record = tuple[Run, dict[str, float]]


def read(path: Path) -> list[Record]:
    """The runs of a file and their numbers; none if there is no file."""
    entries = json.loads(path.read_text()) if path.exists() else []
    return [(Run(**{**run, "cell": Cell(**run["cell"])}), numbers) for run, numbers in entries]


def write(path: Path, records: list[Record]) -> None:
    """Write runs and numbers, a line for each run."""
    lines = ",\n".join(json.dumps([asdict(run), numbers]) for run, numbers in records)
    path.write_text(f"[\n{lines}\n]\n")
