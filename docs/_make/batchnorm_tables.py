"""The tables of docs/batchnorm.md, from the records of the runs alone."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from batchnorm_design import BEST, FACTORS, LONG, SEEDS, Cell, Record, Run, cells
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

    def mean(self, method: str, cell: Cell, number: str = "test_error") -> float:
        """The mean over the seeds; NaN where nothing ran."""
        values = [n[number] for run, n in self.of.items() if run == Run(method, cell, run.seed)]
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
    """The two extreme cells, and what whole batches at the end, GroupNorm and a longer training change."""
    ours, theirs = (cells()[(sign,) * len(FACTORS)] for sign in (-1, 1))
    long = replace(theirs, epochs=LONG)
    variants = [
        ("all as in our trainings", at_best_rate(ours, 0), Run("ordered", ours, 0)),
        ("the same, whole batches in the last quarter", at_best_rate(ours, 0), Run("ordered", ours, 0, whole=0.25)),
        ("the same with GroupNorm", Run("sgd", ours, 0, norm="group"), Run("ordered", ours, 0, norm="group")),
        ("all as in airbench96", at_best_rate(theirs, 0), Run("ordered", theirs, 0)),
        ("the same, whole batches in the last quarter", at_best_rate(theirs, 0), Run("ordered", theirs, 0, whole=0.25)),
        (f"the same, {LONG} epochs", Run("sgd", replace(long, rate=BEST), 0), Run("ordered", long, 0)),
    ]
    lines = []
    for name, *pair in variants:
        runs = [[replace(run, seed=seed) for run in pair] for seed in SEEDS]
        errors = [[numbers.of[run]["test_error"] for run in row] for row in runs if set(row) <= numbers.of.keys()]
        if errors:
            plain, ordered = np.array(errors).T
            shown_errors = {"SGD, best rate": f"{plain.mean():.2f}", "ordered": f"{ordered.mean():.2f}"}
            change = {"difference": interval(ordered - plain), "seeds": str(len(errors))}
            lines.append({"recipe": name, **shown_errors, **change})
    return markdown_table(lines)


def statistics_table(numbers: Numbers) -> str:
    """What running statistics that are estimated again, from all samples alike, change."""
    lines = []
    for statistics in FACTORS["statistics"]:
        changes = []
        for seed in SEEDS:
            runs = [Run("ordered", cell, seed) for cell in cells().values() if cell.statistics == statistics]
            if set(runs) <= numbers.of.keys():
                found = [numbers.of[run] for run in runs]
                changes.append(np.mean([n["test_error_again"] - n["test_error"] for n in found]))
        lines.append({"statistics in training": f"of {statistics} samples", "change": interval(np.array(changes))})
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
