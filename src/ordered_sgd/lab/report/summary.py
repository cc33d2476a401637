"""The numbers of a comparison, computed once, and the columns in which terminal, page and report show them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ordered_sgd.lab.experiments.comparison import Arm, Difference, paired

Numbers = Mapping[str, Any]  # a row of `summary`


def summary(arms: Sequence[Arm], clock: str = "seconds") -> list[dict[str, Any]]:
    """One row of numbers per arm, compared with the first one, a tuned arm with the first tuned one.

    None where there is no number, as for the interval of a difference that is the same in all seeds.

    Errors are in percent, times in seconds (of training steps; ``clock="cpu_seconds"``: of the processor), standard
    deviations with ddof = 0 as in the paper's scripts.
    """
    first_tuned = next((arm for arm in arms if arm.tuned), arms[0])
    return [_row(arm, first_tuned if arm.tuned else arms[0], clock) for arm in arms]


def _row(arm: Arm, plain: Arm, clock: str) -> dict[str, Any]:
    error, epochs = arm.last("test_error"), np.array([len(run.rows) for run in arm.runs])
    gained, before = difference(arm, plain, "test_error"), finite(np.mean, plain.last("test_error"))
    alone = arm is plain or not comparable(arm, plain)
    samples = arm.total("samples")
    row = {
        "method": arm.name,
        "seeds": len(arm.runs),
        "diverged": arm.diverged,
        "error": finite(np.mean, error),
        "std": finite(np.std, error),
        "difference": None if alone else gained.mean,
        "half_width": None if alone or not spreads(gained) else gained.half,
        "improvement": None if alone or not before else -100 * gained.mean / before,
        "best_error": finite(np.mean, arm.best("test_error")),
        "best_std": finite(np.std, arm.best("test_error")),
        "cross_entropy": finite(np.mean, arm.last("test_cross_entropy")),
        "cross_entropy_scaled": finite(np.mean, arm.last("test_cross_entropy_scaled")),
        "calibration_error": finite(np.mean, arm.last("calibration_error")),
        "seconds_per_epoch": finite(np.mean, arm.total(clock) / epochs),
        "seconds_to_error": finite(np.mean, seconds_to(arm, plain, clock)),
        "reached": int(np.isfinite(seconds_to(arm, plain, clock)).sum()),
        "compile_seconds": float(np.mean(arm.total("compile_seconds"))) or None,
        "backpropagated": float(np.sum(arm.total("backpropagated")) / np.sum(samples)) if samples.sum() else None,
        "scored": float(np.sum(arm.total("scored")) / np.sum(samples)) if arm.total("scored").any() else None,
        "recall": finite(np.mean, arm.last("recall")),
    }
    return {name: _plain(value) for name, value in row.items()}


def seconds_to(arm: Arm, plain: Arm, clock: str = "seconds") -> np.ndarray:
    """Training seconds until the last test error of the plain run with the same seed is reached; NaN if it never is."""
    targets = plain.last("test_error")
    found = []
    for run, target in zip(arm.runs, targets, strict=True):
        spent, reached = 0.0, np.nan
        for row in run.rows:
            spent += getattr(row, clock) or 0.0
            if row.test_error is not None and row.test_error <= target:
                reached = spent
                break
        found.append(reached)
    return np.array(found)


def values_of(arm: Arm, number: str) -> tuple[np.ndarray, np.ndarray]:
    """A number by seed, of the last epoch and of the best one: seconds as means over epochs, accuracies in percent."""
    if number == "seconds":
        mean = arm.total("seconds") / np.array([len(run.rows) for run in arm.runs])
        return mean, mean
    if number == "train_accuracy":  # the best is the largest
        curves = [[100 * (row.train_accuracy or 0.0) for row in run.rows] for run in arm.runs]
        return np.array([curve[-1] for curve in curves]), np.array([max(curve) for curve in curves])
    return arm.last(number), arm.best(number)


def difference(arm: Arm, other: Arm, number: str) -> Difference:
    """How much larger a number of an arm is than that of another, paired over seeds."""
    return paired(values_of(arm, number)[0], values_of(other, number)[0])


def spreads(found: Difference) -> bool:
    """Whether a difference varies over seeds; an interval of no width tells nothing."""
    return found.half > 1e-9 * max(1.0, abs(found.mean))


def comparable(arm: Arm, other: Arm) -> bool:
    """Whether all runs of both came to their end: what is left of an arm that diverged would flatter it."""
    return not arm.diverged and not other.diverged


def spread(mean: float | None, std: float | None, diverged: int = 0, seeds: int = 0) -> str:
    """A mean with its standard deviation, as the paper prints them, and how many of the seeds it leaves out.

    >>> spread(7.7, 0.06), spread(4.0, None), spread(None, None)
    ('7.70 (0.06)', '4.00', 'diverged')
    >>> spread(8.05, 0.05, 3, 5)
    '8.05 (0.05), 3 of 5 diverged'
    """
    if mean is None:
        return "diverged"
    shown = f"{mean:.2f}" if std is None else f"{mean:.2f} ({std:.2f})"
    return f"{shown}, {diverged} of {seeds} diverged" if diverged else shown


def spread_of(values: np.ndarray) -> str:
    """The mean of seeds with its standard deviation; NaN is one that diverged.

    >>> spread_of(np.array([8.0, 8.1, np.nan]))
    '8.05 (0.05), 1 of 3 diverged'
    """
    return spread(finite(np.mean, values), finite(np.std, values), int(np.isnan(values).sum()), len(values))


def interval(mean: float | None, half: float | None) -> str:
    """A difference with half the width of its interval; nothing where there is none.

    >>> interval(-1.0, 0.25), interval(-1.0, None), interval(None, None)
    ('-1.00 ± 0.25', '-1.00', '')
    """
    if mean is None:
        return ""
    return f"{mean:+.2f}" if half is None else f"{mean:+.2f} ± {half:.2f}"


def finite(how: Callable[[np.ndarray], Any], values: np.ndarray) -> float | None:
    """A statistic of the seeds that did not diverge; None if all did."""
    kept = values[np.isfinite(values)]
    return float(how(kept)) if len(kept) else None


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not np.isfinite(value) else value


@dataclass(frozen=True)
class Column:
    """A column of a comparison.

    Parameters
    ----------
    key
        Its number in a row of `summary`.
    short, long
        Its heading in the terminal, and on pages.
    digits, scale, unit
        Decimals, factor and unit of the number.
    after
        Follows the number, with other numbers of the row in braces.
    missing
        Stands for a number that is None.
    show, also
        Makes the text of the number and of these others, where it is not just a number.
    """

    key: str
    short: str
    long: str
    digits: int = 3
    scale: float = 1.0
    unit: str = ""
    after: str = ""
    missing: str = "–"
    show: Callable[..., str] | None = None
    also: tuple[str, ...] = ()

    def text(self, row: Numbers, *, brief: bool = False) -> str:
        """The cell of a row; `brief`: the number to three significant digits, without scale and unit."""
        value, after = row[self.key], self.after.format_map(row)
        if self.show is not None:
            return self.show(value, *(row[name] for name in self.also))
        if value is None:
            return self.missing + after
        if brief:
            return f"{value:.3g}{after}"
        return f"{round(self.scale * value, self.digits) + 0:.{self.digits}f}{self.unit}{after}"  # + 0: not -0.0


METHOD = Column("method", "method", "method", show=str)
ERRORS = (
    METHOD,
    Column("error", "last", "last epoch", show=spread, also=("std", "diverged", "seeds")),
    Column("best_error", "best", "best epoch", show=spread, also=("best_std",)),
    Column("difference", "against sgd", "against SGD", show=interval, also=("half_width",)),
    Column("improvement", "improvement", "improvement", digits=1, unit=" %", missing=""),
)
COSTS = (
    METHOD,
    Column("cross_entropy", "entropy", "cross-entropy"),
    Column("cross_entropy_scaled", "scaled", "scaled"),
    Column("calibration_error", "calib.", "calibration error"),
    Column("seconds_per_epoch", "s/epoch", "s per epoch"),
    Column("seconds_to_error", "s to sgd", "s to SGD's error", digits=2, after=" ({reached}/{seeds})"),
    Column("compile_seconds", "compile", "s to compile", digits=1),
    Column("backpropagated", "backprop.", "back-propagated", digits=0, scale=100, unit=" %"),
)
MEMORY = (
    METHOD,
    Column("scored", "scored", "scored", digits=0, scale=100, unit=" %"),
    Column("recall", "recall", "recall"),
)


def shown(rows: Sequence[Numbers], columns: Sequence[Column], *, long: bool = False) -> list[dict[str, str]]:
    """Rows of `summary` as text for a terminal, or with `long` headings for a page."""
    return [{column.long if long else column.short: column.text(row) for column in columns} for row in rows]


def comparison_table(arms: Sequence[Arm], clock: str = "seconds") -> list[dict[str, str]]:
    """The numbers of all arms in one table of a report, with times by a clock of `summary`."""
    rows = summary(arms, clock)
    columns = (*ERRORS[:-1], *COSTS[1:-1], *(MEMORY[1:] if remembered(rows) else ()))
    return [{column.long: column.text(row, brief=True) for column in columns} for row in rows]


def remembered(rows: Sequence[Numbers]) -> list[Numbers]:
    """The rows of arms whose engine scored only some of the samples."""
    return [row for row in rows if row["scored"] is not None]
