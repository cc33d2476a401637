"""Learning curves: the mean over seeds of a number per epoch or over time, and its spread as a band."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ordered_sgd.lab.experiments.comparison import Arm
from ordered_sgd.lab.experiments.recipes.exhibit import Reproduced
from ordered_sgd.lab.report.canvas import COLOURS, figure_grid, new_figure

LINES = ("#7f7f7f", *COLOURS[1:], COLOURS[0])  # plain SGD, the first, is grey

LABELS = {
    "test_error": "test error (%)",
    "train_loss": "training loss L",
    "train_accuracy": "training accuracy",
    "q": "q",
}
_FIELDS = {"flipped": "share of wrong training labels"}
PANELS = ("test_error", "train_loss", "q")
_LOGARITHMIC = ("train_loss",)
_MOST = 200  # epochs of a curve that are drawn: more look the same and make a heavy file


def draw_curves(arms: Sequence[Arm], panels: Sequence[str] = PANELS) -> Any:
    """A figure with a panel for each number, a line for each arm, and a band of one standard deviation over seeds.

    Parameters
    ----------
    arms
        Runs of the same length; one that diverged is drawn as far as it got.
    panels
        Fields of an epoch's row.
    """
    figure, axes = new_figure(len(panels), width=4.2, height=3.4)
    for axis, number in zip(axes, panels, strict=True):
        _draw(axis, arms, number)
    _legend(figure, axes[0], len(arms))
    return figure


def draw_panels(results: Sequence[Reproduced], number: str) -> Any:
    """A row of panels for each problem, as the paper has them: a number by epoch, the training loss, and q."""
    panels = tuple(dict.fromkeys([number, "train_loss", "q"]))
    figure, axes = figure_grid(len(results), len(panels), width=4.0, height=2.9)
    for one, line in zip(results, axes, strict=True):
        for axis, panel in zip(line, panels, strict=True):
            _draw(axis, one.arms, panel)
        line[0].set_title(one.row.title, loc="left", fontsize="medium")
    _legend(figure, axes[0][0], len(results[0].arms))
    return figure


def draw_times(arms: Sequence[Arm]) -> Any:
    """Test error over the processor time of training steps, and that of the whole training, an arm each."""
    figure, (curves, bars) = new_figure(2, width=5.2, height=3.4)
    trained = [arm for arm in arms if len(by_epoch(arm, "test_error")[0])]  # an epoch at least, in all seeds
    for position, arm in enumerate(trained):
        colour, again = LINES[position % len(LINES)], position >= len(LINES)  # a colour that is used twice is dashed
        seconds = np.cumsum(by_epoch(arm, "cpu_seconds")[0])
        mean, std = by_epoch(arm, "test_error")
        style = {"linestyle": (0, (3, 2)) if again else "-", "linewidth": 1.6}
        curves.plot(seconds, mean, color=colour, label=arm.name, marker=".", **style)
        if len(trained) <= len(LINES):  # of more arms bands only hide each other
            curves.fill_between(seconds, mean - std, mean + std, color=colour, alpha=0.15, linewidth=0)
        total = arm.total("cpu_seconds")
        look = {"facecolor": "none", "edgecolor": colour, "hatch": "////"} if again else {"color": colour}
        bars.barh(position, total.mean(), xerr=total.std(), height=0.7, **look)
    curves.axhline(float(arms[0].last("test_error").mean()), color=LINES[0], linewidth=0.8, linestyle=(0, (4, 3)))
    curves.set(xlabel="seconds of the processor in training steps", ylabel=LABELS["test_error"])
    if trained:
        lowest = min(float(np.nanmin(arm.best("test_error"))) for arm in trained)
        early = max(float(by_epoch(arm, "test_error")[0][:3][-1]) for arm in trained)  # where the end is told apart
        curves.set_ylim(0.9 * lowest, max(1.1 * early, 1.5 * lowest))
    bars.set(
        xlabel="seconds of the processor, whole training",
        yticks=range(len(trained)),
        yticklabels=[arm.name for arm in trained],
    )
    bars.invert_yaxis()
    _legend(figure, curves, len(trained))
    return figure


def draw_along(results: Sequence[Reproduced], field: str, number: str) -> Any:
    """The last value of a number over a field of the spec in which the rows differ, an arm each."""
    figure, (axis,) = new_figure(1, width=6.4, height=3.8)
    x = [getattr(one.arms[0].runs[0].spec, field) for one in results]
    for position, arm in enumerate(results[0].arms):
        values = [one.arms[position].last(number) for one in results]
        mean, std = (np.array([getattr(v, how)() for v in values]) for how in ("mean", "std"))
        colour = LINES[position % len(LINES)]
        axis.plot(x, mean, color=colour, label=arm.name, linewidth=1.6, marker="o", markersize=4)
        axis.fill_between(x, mean - std, mean + std, color=colour, alpha=0.15, linewidth=0)
    axis.set(xlabel=_FIELDS.get(field, field), ylabel=LABELS.get(number, number), xticks=x, yscale="log")
    low, high = axis.get_ylim()  # arms that fail would press the others together on a plain scale
    axis.set_yticks([tick for tick in (0.5, 1, 2, 5, 10, 20, 50, 100) if low <= tick <= high])
    axis.yaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_minor_formatter("")
    _legend(figure, axis, 3)
    return figure


def _draw(axis: Any, arms: Sequence[Arm], number: str) -> None:
    for position, arm in enumerate(arms):
        mean, std = by_epoch(arm, number)
        shown = np.unique(np.linspace(0, len(mean) - 1, min(len(mean), _MOST)).round().astype(int))
        epochs, mean, std = shown + 1, mean[shown], std[shown]
        colour = LINES[position % len(LINES)]
        style = (0, (4, 2)) if arm.name.startswith("random") else "-"  # where it lies on another line, both are seen
        axis.plot(epochs, mean, color=colour, label=arm.name, linewidth=1.6, linestyle=style)
        axis.fill_between(epochs, mean - std, mean + std, color=colour, alpha=0.15, linewidth=0)
    label = LABELS.get(number, number)
    if number == "test_error" and arms[0].runs[0].spec.loss == "squared":
        label = "unexplained variance (%)"
    axis.set(xlabel="epoch", ylabel=label)
    axis.xaxis.get_major_locator().set_params(integer=True)
    if number == "train_accuracy":
        axis.set_ylim(top=1.02)
    if number in _LOGARITHMIC and any(len(by_epoch(arm, number)[0]) for arm in arms):
        axis.set_yscale("log")


def _legend(figure: Any, axis: Any, arms: int) -> None:
    columns = max(1, min(4, arms))
    figure.legend(*axis.get_legend_handles_labels(), loc="outside upper left", ncols=columns, frameon=False)


def by_epoch(arm: Arm, number: str) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation over seeds of a number, epoch by epoch, as far as all runs got."""
    length = min(sum(not row.diverged for row in run.rows) for run in arm.runs)
    values = np.array([[getattr(row, number) for row in run.rows[:length]] for run in arm.runs], dtype=float)
    return values.mean(axis=0), values.std(axis=0)
