"""The tables of docs/batchnorm.md, from the records of the runs alone."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from batchnorm_design import BEST, FACTORS, Cell, Record, Run, Signs, cells
from numpy.typing import NDArray

from ordered_sgd.lab.experiments.comparison import paired
from ordered_sgd.lab.report.marked import markdown_table

PAGE = Path(__file__).parents[1] / "batchnorm.md"
HEADS = {"rate": "rate while q < s", "kept": "q / s", "start": "q from", "epochs": "epochs"}
START = {0.5: "half the steps", 0.0: "the first step"}

Array = NDArray[np.float64]
Reference = Callable[[Cell, int], Run]


def at_best_rate(cell: Cell, seed: int) -> Run:
    """SGD with the cell's batch size, smoothing and length at its best rate: the cell's twin that keeps this rate."""
    own = (cell.batch, cell.smoothing, cell.epochs)
    twins = (twin for twin in cells().values() if (twin.batch, twin.smoothing, twin.epochs) == own)
    return Run("sgd", next(twin for twin in twins if twin.rate == BEST), seed)


def at_same_rates(cell: Cell, seed: int) -> Run:
    """SGD with the rate of ordered SGD in every step."""
    return Run("sgd", cell, seed)


class Numbers:
    """What was measured, by run."""

    def __init__(self, records: list[Record]) -> None:
        self.of = dict(records)

    def differences(self, method: str, reference: Reference, number: str = "test_error") -> Array:
        """A method less its reference: a row for each seed of which no run is missing, a column for each cell."""
        rows = []
        for seed in sorted({run.seed for run in self.of}):
            pairs = [(Run(method, cell, seed), reference(cell, seed)) for cell in cells().values()]
            if all(run in self.of for pair in pairs for run in pair):
                rows.append([self.of[one][number] - self.of[other][number] for one, other in pairs])
        return np.array(rows).reshape(-1, len(cells()))

    def mean(self, method: str, cell: Cell, number: str = "test_error", whole: float = 0.0) -> float:
        """The mean over the seeds; NaN where nothing ran."""
        values = [n[number] for run, n in self.of.items() if run == Run(method, cell, run.seed, whole)]
        return float(np.mean(values)) if values else np.nan


def effects(differences: Array) -> dict[str, Array]:
    """By factor, and by seed, how much its second level changes a difference; under "" the mean over all cells."""
    signs = np.array(list(cells()))  # (cells, factors)
    changes = differences @ signs / (len(signs) / 2)
    return {"": differences.mean(axis=1), **{name: changes[:, i] for i, name in enumerate(FACTORS)}}


def interval(values: Array) -> str:
    """Mean and half the 95 % interval over the seeds, in bold where it leaves out zero."""
    if not len(values):
        return ""
    found = paired(values, np.zeros(len(values)))
    if not np.isfinite(found.half):
        return f"{found.mean:+.2f}"
    text = f"{found.mean:+.2f} ± {found.half:.2f}"
    return f"**{text}**" if found.clear else text


def effects_table(numbers: Numbers) -> str:
    """The effect of each factor on three differences."""
    columns = {
        "ordered − SGD at its best rate": numbers.differences("ordered", at_best_rate),
        "ordered − SGD at the same rates": numbers.differences("ordered", at_same_rates),
        "ordered − random q": numbers.differences("ordered", lambda cell, seed: Run("random", cell, seed)),
    }
    by_column = {head: effects(values) for head, values in columns.items()}
    lines = [
        {
            "factor": head(name) if name else "mean of all cells",
            "from": shown(name, FACTORS[name][0]) if name else "",
            "to": shown(name, FACTORS[name][1]) if name else "",
            **{column: interval(found[name]) for column, found in by_column.items()},
        }
        for name in ("", *FACTORS)
    ]
    seeds = ", ".join(f"{len(values)}" for values in columns.values())
    return f"{markdown_table(lines)}\n\n*Points of test error, and half the 95 % interval over seeds ({seeds}).*"


def head(name: str) -> str:
    """What a factor is called in a table."""
    return HEADS.get(name, name)


def shown(name: str, level: object) -> str:
    """What a level is called in a table."""
    return START[level] if name == "start" else str(level)  # type: ignore[index]


def cells_table(numbers: Numbers) -> str:
    """Errors by cell, with the controls, and the processor time of ordered SGD over SGD's."""
    lines = []
    for cell in cells().values():
        best, ordered = at_best_rate(cell, 0).cell, numbers.mean("ordered", cell)
        time = numbers.mean("ordered", cell, "seconds") / numbers.mean("sgd", best, "seconds")
        errors = {
            "SGD, best rate": numbers.mean("sgd", best),
            "SGD, same rates": numbers.mean("sgd", cell),
            "random q": numbers.mean("random", cell),
            "ordered": ordered,
        }
        levels = {head(name): shown(name, getattr(cell, name)) for name in FACTORS}
        written = {name: f"{error:.1f}" if np.isfinite(error) else "" for name, error in errors.items()}
        fit = numbers.mean("ordered", cell, "train_error") - numbers.mean("sgd", best, "train_error")
        change = {
            "ordered − best": f"{ordered - errors['SGD, best rate']:+.1f}",
            "on training images": f"{fit:+.1f}",
            "time": f"{time:.2f}",
        }
        lines.append((ordered - errors["SGD, best rate"], {**levels, **written, **change}))
    return markdown_table([line for _, line in sorted(lines, key=lambda pair: -pair[0])])


def extremes_table(numbers: Numbers) -> str:
    """The two extreme cells, and what whole batches in the last quarter of the steps change."""
    design: dict[Signs, Cell] = cells()
    names = {-1: "all as in our trainings", 1: "all as in airbench96"}
    lines = []
    for sign, name in names.items():
        cell = design[(sign,) * len(FACTORS)]
        lines.append(
            {
                "cell": name,
                "SGD, best rate": f"{numbers.mean('sgd', at_best_rate(cell, 0).cell):.2f}",
                "ordered": f"{numbers.mean('ordered', cell):.2f}",
                "difference": interval(gaps(numbers, cell, 0.0)),
                "ordered, last quarter whole": f"{numbers.mean('ordered', cell, whole=0.25):.2f}",
                "its difference": interval(gaps(numbers, cell, 0.25)),
            }
        )
    return markdown_table(lines)


def gaps(numbers: Numbers, cell: Cell, whole: float) -> Array:
    """Ordered SGD in a cell less SGD at its best rate, by seed."""
    pairs = [
        (n, at_best_rate(cell, run.seed))
        for run, n in numbers.of.items()
        if run == Run("ordered", cell, run.seed, whole)
    ]
    return np.array([n["test_error"] - numbers.of[best]["test_error"] for n, best in pairs if best in numbers.of])


def statistics_table(numbers: Numbers) -> str:
    """What running statistics that are estimated again, from all samples alike, change."""
    lines = []
    for statistics in FACTORS["statistics"]:
        line = {"statistics in training": f"of {statistics} samples"}
        for method in ("sgd", "random", "ordered"):
            by_seed: dict[int, list[float]] = {}
            for run, n in numbers.of.items():
                if (run.method, run.cell.statistics, run.whole) == (method, statistics, 0.0):
                    by_seed.setdefault(run.seed, []).append(n["test_error_again"] - n["test_error"])
            line[method] = interval(np.array([np.mean(values) for values in by_seed.values() if len(values) == 8]))
        lines.append(line)
    return markdown_table(lines)


def tables(records: list[Record]) -> dict[str, str]:
    """What belongs between the marks of the page; texts that say so before there are runs."""
    numbers = Numbers(records)
    if not len(numbers.differences("ordered", at_best_rate)):
        return dict.fromkeys(("effects", "cells", "extremes", "statistics"), "*No seed is complete yet.*")
    seconds = sum(n["seconds"] for n in numbers.of.values())
    ran = f"{len(records)} runs, {seconds / 60:.0f} minutes of one core."
    return {
        "effects": f"{effects_table(numbers)}\n\n*{ran}*",
        "cells": cells_table(numbers),
        "extremes": extremes_table(numbers),
        "statistics": statistics_table(numbers),
    }
