"""What is said of a table's target in a comparison: recalls of rare classes, AUC, R² and absolute error by method."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ordered_sgd.lab.data.dataset import Dataset
from ordered_sgd.lab.data.naming import shortened
from ordered_sgd.lab.experiments.comparison import Arm
from ordered_sgd.lab.experiments.judged import mean_recalls
from ordered_sgd.lab.report.summary import finite

UNEXPLAINED = "unexplained variance"  # what takes the place of the test error in a regression
_CLASSES = 8  # columns of a table; of more classes the rarest are shown


def numbers_of(arm: Arm) -> dict[str, Any]:
    """The numbers of an arm's last epochs, averaged over seeds; only those that there are."""
    found: dict[str, Any] = {
        name: finite(np.mean, arm.last(name)) for name in ("balanced_accuracy", "auc", "r2", "mae")
    }
    texts = [text for run in arm.runs if (text := run.rows[-1].recalls)]
    found["recalls"] = [round(recall, 4) for recall in mean_recalls(texts).tolist()] if texts else None
    return {name: value for name, value in found.items() if value is not None}


def target_table(arms: Sequence[Arm], train: Dataset) -> list[dict[str, str]]:
    """A line for each arm, or nothing where there is nothing beyond the error."""
    known = [(arm.name, numbers_of(arm)) for arm in arms]
    if not any(numbers for _, numbers in known):
        return []
    if not train.classes:
        return [{"method": name, **_texts(numbers, {"R²": "r2", "MAE": "mae"})} for name, numbers in known]
    counts = np.bincount(train.y, minlength=len(train.classes))
    rarest = sorted(np.argsort(counts, kind="stable")[:_CLASSES].tolist(), key=lambda at: -counts[at])
    heads = {"balanced accuracy": "balanced_accuracy", "AUC": "auc"}
    if len(train.classes) != 2:
        del heads["AUC"]
    lines = []
    for name, numbers in known:
        recalls = numbers.get("recalls")
        shown = {
            f"recall of {shortened(train.classes[at], 24)} ({counts[at]:,})": "–"
            if recalls is None
            else f"{recalls[at]:.3f}"
            for at in rarest
        }
        lines.append({"method": name, **_texts(numbers, heads), **shown})
    return lines


def target_title(train: Dataset) -> str:
    """The heading of that table."""
    if not train.classes:
        return "R² and mean absolute error on the test set"
    rest = f"; of {len(train.classes):,} classes the {_CLASSES} rarest" if len(train.classes) > _CLASSES else ""
    return f"recall on the test set, by class with its number of training samples{rest}"


def _texts(numbers: dict[str, Any], heads: dict[str, str]) -> dict[str, str]:
    return {head: f"{numbers[name]:.4g}" if name in numbers else "–" for head, name in heads.items()}
