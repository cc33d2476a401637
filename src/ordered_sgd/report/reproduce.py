"""The paper's numbers beside ours, and a plain verdict on every row."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ordered_sgd.experiments.compare import Arm, paired
from ordered_sgd.experiments.reproduce import Reproduced
from ordered_sgd.report.compare import in_words, spread


def cells(one: Reproduced, number: str) -> list[dict[str, Any]]:
    """One entry per arm: the paper's mean and deviation where it prints them, ours of the last and the best epoch."""
    rows = []
    for arm in one.arms:
        printed = one.row.printed.get(arm.name)
        last, best = values_of(arm, number)
        rows.append(
            {
                "row": one.row.id,
                "method": arm.name,
                "paper": None if printed is None else printed.mean,
                "paper_std": None if printed is None else printed.std,
                "last": _finite(np.mean(last)),
                "last_std": _finite(np.std(last)),
                "best": _finite(np.mean(best)),
                "best_std": _finite(np.std(best)),
                "seeds": len(arm.runs),
                "diverged": arm.diverged,
                "shrunk": one.row.shrunk,
            }
        )
    return rows


def values_of(arm: Arm, number: str) -> tuple[np.ndarray, np.ndarray]:
    """A number by seed, of the last epoch and of the best one: seconds as means over epochs, accuracies in percent."""
    if number == "seconds":
        mean = arm.total("seconds") / np.array([len(run.rows) for run in arm.runs])
        return mean, mean
    if number == "train_accuracy":  # the best is the largest
        curves = [[100 * (row.train_accuracy or 0.0) for row in run.rows] for run in arm.runs]
        return np.array([curve[-1] for curve in curves]), np.array([max(curve) for curve in curves])
    return arm.last(number), arm.best(number)


def verdict(one: Reproduced, number: str) -> str:
    """What the row says: the direction, whether it is clear, and how far the means are from the printed ones."""
    plain, ordered = one.arms[0], one.arms[1]
    ours = values_of(ordered, number)[0], values_of(plain, number)[0]
    difference = paired(*ours)
    unit = {"seconds": "s per epoch", "train_accuracy": "points of accuracy"}.get(number, "points of error")
    numbers = f"{difference.mean:+.2f} ± {difference.half:.2f} {unit}, {difference.seeds} seeds"
    words = in_words(difference)
    if number == "train_accuracy" and difference.clear:
        words = "better than" if difference.mean > 0 else "worse than"
    text = f"{one.row.id}: {ordered.name} is {words} {plain.name} ({numbers})"
    return f"{text}{_beside_paper(one, number)}{f' [{one.row.shrunk}]' if one.row.shrunk else ''}."


def _beside_paper(one: Reproduced, number: str) -> str:
    """Whether the direction is the printed one, and the means are within two printed standard deviations."""
    printed = [one.row.printed.get(arm.name) for arm in one.arms[:2]]
    if None in printed or number == "seconds":
        return ""
    means = [float(np.mean(values_of(arm, number)[0])) for arm in one.arms[:2]]
    told = [p for p in printed if p is not None]
    same = (means[1] - means[0]) * (told[1].mean - told[0].mean) > 0
    near = [
        f"{arm.name} {'within' if abs(mean - p.mean) <= 2 * p.std else 'not within'} two of its"
        for arm, mean, p in zip(one.arms, means, told, strict=False)
        if p.std is not None
    ]
    distance = f", {' and '.join(near)} standard deviations" if near else ""
    return f"; {'same' if same else 'not the same'} direction as the paper{distance}"


def _finite(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None


def table(results: Sequence[Reproduced], number: str) -> list[dict[str, str]]:
    """The cells of all rows as text."""
    lines = []
    for one in results:
        for cell in cells(one, number):
            note = f" [{cell['shrunk']}]" if cell["shrunk"] else ""
            lines.append(
                {
                    "row": cell["row"],
                    "method": cell["method"],
                    "paper": "" if cell["paper"] is None else spread(cell["paper"], cell["paper_std"]),
                    "last epoch": spread(cell["last"], cell["last_std"]) + note,
                    "best epoch": spread(cell["best"], cell["best_std"]) + note,
                }
            )
    return lines
