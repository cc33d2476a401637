"""A comparison in numbers and in words: what was found, also when the answer is "no difference" or "worse"."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ordered_sgd.lab.experiments.comparison import GRID, Arm, Difference, paired
from ordered_sgd.lab.experiments.store import Run


def summary(arms: Sequence[Arm], clock: str = "seconds") -> list[dict[str, Any]]:
    """One row of numbers per arm; the first arm is what the others are compared with. None where there is no number.

    Errors are in percent, times in seconds (of training steps; ``clock="cpu_seconds"``: of the processor), standard
    deviations with ddof = 0 as in the paper's scripts.
    """
    return [_row(arm, arms[0], clock) for arm in arms]


def _row(arm: Arm, plain: Arm, clock: str) -> dict[str, Any]:
    error, epochs = arm.last("test_error"), np.array([len(run.rows) for run in arm.runs])
    gained, before = difference(arm, plain, "test_error"), _mean(plain.last("test_error"))
    alone = arm is plain or not comparable(arm, plain)
    samples = arm.total("samples")
    row = {
        "method": arm.name,
        "seeds": len(arm.runs),
        "diverged": arm.diverged,
        "error": _mean(error),
        "std": _std(error),
        "difference": None if alone else gained.mean,
        "half_width": None if alone else gained.half,
        "improvement": None if alone or not before > 0 else -100 * gained.mean / before,
        "best_error": _mean(arm.best("test_error")),
        "best_std": _std(arm.best("test_error")),
        "cross_entropy": _mean(arm.last("test_cross_entropy")),
        "cross_entropy_scaled": _mean(arm.last("test_cross_entropy_scaled")),
        "calibration_error": _mean(arm.last("calibration_error")),
        "seconds_per_epoch": _mean(arm.total(clock) / epochs),
        "seconds_to_error": _mean(seconds_to(arm, plain, clock)),
        "reached": int(np.isfinite(seconds_to(arm, plain, clock)).sum()),
        "backpropagated": float(np.sum(arm.total("backpropagated")) / np.sum(samples)) if samples.sum() else None,
        "scored": float(np.sum(arm.total("scored")) / np.sum(samples)) if arm.total("scored").any() else None,
        "recall": _mean(arm.last("recall")),
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


def verdicts(arms: Sequence[Arm]) -> list[str]:
    """What the comparison says, a sentence for each pair that matters."""
    sgd, ordered, random, *others = arms
    same = "at the same learning rate"
    pairs = [(ordered, sgd, same), (ordered, random, "with the same q and learning rate")]
    named = {arm.name: arm for arm in others}
    pairs += [
        (arm, named["adam"] if "adam" in name else sgd, same)
        for name, arm in named.items()
        if name.startswith("ordered") and not arm.tuned
    ]
    tuned = [arm for arm in others if arm.tuned]
    if tuned:
        pairs.append((tuned[1], tuned[0], "each at its best rate"))
        pairs.append((tuned[1], tuned[2], "with the same q and learning rate"))
    idle = [f"{arm.name} kept every batch whole: {_IDLE}" for arm in (ordered, *tuned[1:2]) if never_ordered(arm)]
    return [*(_verdict(*pair) for pair in pairs), *_at_the_end_of_the_grid(tuned[:2]), *idle]


def _at_the_end_of_the_grid(tuned: Sequence[Arm]) -> list[str]:
    """What a search cannot say where it ends: that the rate it picked is the best."""
    return [
        f"{arm.name}: no rate beyond {arm.runs[0].spec.lr:g} was tried, and its best may lie there."
        for arm in tuned
        if ends_grid(arm)
    ]


def ends_grid(arm: Arm) -> bool:
    """Whether its rate is the smallest or the largest of those that were tried."""
    return arm.runs[0].spec.lr in (GRID[0], GRID[-1])


_IDLE = "training never became accurate enough for q to move, and this is plain SGD. Train longer, or fix q (--q 0.5)."


def never_ordered(arm: Arm) -> bool:
    """Whether no epoch of any run left a sample out."""
    return bool((arm.total("backpropagated") == arm.total("samples")).all()) and not arm.diverged


def _verdict(one: Arm, other: Arm, how: str) -> str:
    return f"{one.name} is {judged(one, other)} {other.name} {how}: {in_points(one, other, 'points of test error')}."


def against_first(arms: Sequence[Arm]) -> list[str]:
    """A sentence for every arm but the first: how its error and its processor time compare with the first one's."""
    plain, *others = arms
    return [_in_error_and_time(arm, plain) for arm in others]


def _in_error_and_time(arm: Arm, plain: Arm) -> str:
    error = in_points(arm, plain, "points of test error")
    return f"{arm.name} is {judged(arm, plain)} {plain.name}: {error}; {_in_time(arm, plain)}."


def _in_time(arm: Arm, plain: Arm) -> str:
    """Shares of the plain run's time with the same seed; seconds of another processor are not its measure."""
    whole = plain.total("cpu_seconds")
    shares, until = arm.total("cpu_seconds") / whole, seconds_to(arm, plain, "cpu_seconds") / whole
    reached, seeds = int(np.isfinite(until).sum()), len(arm.runs)
    if any(_processor(one) != _processor(other) for one, other in zip(arm.runs, plain.runs, strict=True)):
        return f"it reaches its last error in {reached} of {seeds} seeds, but ran on another processor: no times"
    sooner = f"reaches its last error after {_mean(until):.2f} of it in" if reached else "reaches its last error in"
    return f"it takes {_mean(shares):.2f} of its training time, and {sooner} {reached} of {seeds} seeds"


def _processor(run: Run) -> str | None:
    return run.versions.get("processor")


def comparison_table(arms: Sequence[Arm], clock: str = "seconds") -> list[dict[str, str]]:
    """The numbers of all arms as text: error, cross-entropy, calibration and time by a clock of `summary`.

    Where an engine with a memory ran, also the share of samples that it scored, and its recall in the last epoch.
    """
    rows = summary(arms, clock)
    remembers = any(row["scored"] is not None for row in rows)
    return [
        {
            "method": row["method"],
            "last epoch": spread(row["error"], row["std"], row["diverged"], row["seeds"]),
            "best epoch": spread(row["best_error"], row["best_std"]),
            "against the first": interval(row["difference"], row["half_width"]),
            "cross-entropy": _number(row["cross_entropy"]),
            "scaled": _number(row["cross_entropy_scaled"]),
            "calibration error": _number(row["calibration_error"]),
            "s per epoch": _number(row["seconds_per_epoch"]),
            "s to SGD's error": f"{_number(row['seconds_to_error'])} ({row['reached']}/{row['seeds']})",
            **({"scored": _number(row["scored"]), "recall": _number(row["recall"])} if remembers else {}),
        }
        for row in rows
    ]


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def values_of(arm: Arm, number: str) -> tuple[np.ndarray, np.ndarray]:
    """A number by seed, of the last epoch and of the best one: seconds as means over epochs, accuracies in percent."""
    if number == "seconds":
        mean = arm.total("seconds") / np.array([len(run.rows) for run in arm.runs])
        return mean, mean
    if number == "train_accuracy":  # the best is the largest
        curves = [[100 * (row.train_accuracy or 0.0) for row in run.rows] for run in arm.runs]
        return np.array([curve[-1] for curve in curves]), np.array([max(curve) for curve in curves])
    return arm.last(number), arm.best(number)


def judged(arm: Arm, other: Arm, number: str = "test_error") -> str:
    """What the paired difference of two arms allows to say; of accuracies the larger is the better."""
    if not comparable(arm, other):
        return "not to be compared with"
    return in_words(difference(other, arm, number) if number == "train_accuracy" else difference(arm, other, number))


def difference(arm: Arm, other: Arm, number: str) -> Difference:
    """How much larger a number of an arm is than that of another, paired over seeds."""
    return paired(values_of(arm, number)[0], values_of(other, number)[0])


def comparable(arm: Arm, other: Arm) -> bool:
    """Whether all runs of both came to their end: what is left of an arm that diverged would flatter it."""
    return not arm.diverged and not other.diverged


def in_points(arm: Arm, other: Arm, unit: str, number: str = "test_error") -> str:
    """The paired difference of two arms with its interval, or why there is none."""
    if not comparable(arm, other):
        failed = (f"{one.name} diverged in {one.diverged} of {len(one.runs)} seeds" for one in (arm, other))
        return ", ".join(text for text, one in zip(failed, (arm, other), strict=True) if one.diverged)
    found = difference(arm, other, number)
    if found.seeds < 2:
        return f"{found.mean:+.2f} {unit} in one seed, which tells nothing"
    return f"{interval(found.mean, found.half)} {unit} over {found.seeds} seeds"


def in_words(difference: Difference) -> str:
    """What the interval of a difference in error allows to say.

    >>> in_words(Difference(-1.0, 0.5, 10)), in_words(Difference(-1.0, 1.5, 10))
    ('better than', 'not clearly different from')
    """
    if not difference.clear:
        return "not clearly different from"
    return "better than" if difference.mean < 0 else "worse than"


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
    return spread(_plain(_mean(values)), _plain(_std(values)), int(np.isnan(values).sum()), len(values))


def interval(mean: float | None, half: float | None) -> str:
    """A difference with half the width of its interval; nothing where there is none.

    >>> interval(-1.0, 0.25), interval(-1.0, None), interval(None, None)
    ('-1.00 ± 0.25', '-1.00', '')
    """
    if mean is None:
        return ""
    return f"{mean:+.2f}" if half is None else f"{mean:+.2f} ± {half:.2f}"


def _mean(values: np.ndarray) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else np.nan


def _std(values: np.ndarray) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.std()) if len(finite) else np.nan


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not np.isfinite(value) else value
