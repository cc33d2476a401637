"""Learning curves: the mean over seeds of a number per epoch, and its spread as a band."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ordered_sgd.experiments.compare import Arm
from ordered_sgd.report.figures import COLOURS, new_figure

LINES = ("#7f7f7f", *COLOURS[1:], COLOURS[0])  # plain SGD, the first, is grey

PANELS = {"test_error": "test error (%)", "train_loss": "training loss L", "q": "q"}


def draw_curves(arms: Sequence[Arm], panels: dict[str, str] = PANELS, *, log: tuple[str, ...] = ("train_loss",)) -> Any:
    """A figure with a panel for each number, a line for each arm, and a band of one standard deviation over seeds.

    Parameters
    ----------
    arms
        Runs of the same length; one that diverged is drawn as far as it got.
    panels
        Fields of an epoch's row, and what the axis calls them.
    log
        Panels with a logarithmic axis.
    """
    figure, axes = new_figure(len(panels), width=4.2, height=3.4)
    for axis, (number, label) in zip(axes, panels.items(), strict=True):
        for position, arm in enumerate(arms):
            mean, std = by_epoch(arm, number)
            epochs = np.arange(1, len(mean) + 1)
            colour = LINES[position % len(LINES)]
            axis.plot(epochs, mean, color=colour, label=arm.name, linewidth=1.6)
            axis.fill_between(epochs, mean - std, mean + std, color=colour, alpha=0.15, linewidth=0)
        axis.set(xlabel="epoch", ylabel=label)
        if number in log:
            axis.set_yscale("log")
    figure.legend(
        *axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=min(4, len(arms)), frameon=False
    )
    return figure


def by_epoch(arm: Arm, number: str) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation over seeds of a number, epoch by epoch, as far as all runs got."""
    length = min(sum(not row.diverged for row in run.rows) for run in arm.runs)
    values = np.array([[getattr(row, number) for row in run.rows[:length]] for run in arm.runs], dtype=float)
    return values.mean(axis=0), values.std(axis=0)
