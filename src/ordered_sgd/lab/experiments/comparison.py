"""Ordered SGD against plain SGD and the random-q control, as given and at the best rate of each."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from ordered_sgd.lab.experiments.epoch import EpochRow
from ordered_sgd.lab.experiments.spec import PAPER_RULE, ExperimentSpec, Method
from ordered_sgd.lab.experiments.store import Run

GRID = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)  # learning rates of exhibits that cross them
# Learning rates that a search for the best one may try; it begins with those of `FIRST`.
LADDER = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
FIRST = (0.01, 0.03, 0.1)
HELD_OUT = 0.2  # share of the training set on which the rate is picked
TUNING_SEEDS = 3
LEVEL = 0.95  # of the intervals

RunAll = Callable[[Sequence[ExperimentSpec]], list[Run]]


@dataclass(frozen=True)
class Arm:
    """One line of a comparison: its name, a run for each seed, and whether it is at its best rate."""

    name: str
    runs: tuple[Run, ...]
    tuned: bool = False

    @property
    def diverged(self) -> int:
        """Runs that ended in a loss that was not finite."""
        return sum(run.rows[-1].diverged for run in self.runs)

    def last(self, number: str) -> np.ndarray:
        """A number of the last epoch, by seed."""
        return np.array([_number(run.rows[-1], number) for run in self.runs])

    def best(self, number: str) -> np.ndarray:
        """The lowest value over the epochs, by seed."""
        found = ([v for row in run.rows if np.isfinite(v := _number(row, number))] for run in self.runs)
        return np.array([min(values, default=np.nan) for values in found])

    def total(self, number: str) -> np.ndarray:
        """The sum over the epochs, by seed."""
        return np.array([np.nansum([_number(row, number) for row in run.rows]) for run in self.runs])


def _number(row: EpochRow, name: str) -> float:
    """A number of an epoch; NaN where there is none, as after a divergence."""
    value = getattr(row, name)
    return np.nan if value is None else float(value)


class Difference(NamedTuple):
    """Mean of paired differences over seeds, half the width of its interval, and the seeds."""

    mean: float
    half: float
    seeds: int

    @property
    def clear(self) -> bool:
        """Whether the interval leaves out zero; one of no width, as of seeds that change nothing, tells nothing."""
        return abs(self.mean) > self.half > 1e-9 * abs(self.mean)


def paired(one: ArrayLike, other: ArrayLike, level: float = LEVEL) -> Difference:
    """How much larger `one` is than `other`, seed by seed, with Student's interval; pairs with a NaN are left out.

    >>> paired([1.0, 2.0, 3.0], [0.5, 1.0, 2.5])
    Difference(mean=0.666..., half=0.717..., seeds=3)
    """
    differences = np.asarray(one, dtype=float) - np.asarray(other, dtype=float)
    differences = differences[np.isfinite(differences)]
    n = len(differences)
    if n < 2:
        return Difference(float(differences.mean()) if n else np.nan, np.inf, n)
    half = stats.t.ppf((1 + level) / 2, n - 1) * stats.sem(differences)
    return Difference(float(differences.mean()), float(half), n)


def compare(
    base: ExperimentSpec, run_all: RunAll, *, trials: int, tune: bool, extra: Sequence[ExperimentSpec] = ()
) -> list[Arm]:
    """The arms of a comparison: plain, ordered and random at the given rate, extras, the three at their best rates.

    Parameters
    ----------
    base
        What is trained; its method and seed do not matter.
    run_all
        Carries out runs and returns their records.
    trials
        Seeds 0, 1, ...
    tune
        Whether to add each method at its best rate.
    extra
        More specs, each an arm of its own: ordered Adam, fixed q.
    """
    seeds = range(trials)
    given = [base.but(method="sgd"), base.but(method="ordered"), *extra]
    found = _by_seed(given, seeds, run_all)
    arms = [Arm(spec.method_name, runs) for spec, runs in zip(given, found, strict=True)]
    arms.insert(2, Arm("random", _replayed(arms[1].runs, run_all)))
    if tune:
        plain = given[:2]
        rates = best_rates(plain, run_all, trials)
        tuned = [spec.but(lr=rate) for spec, rate in zip(plain, rates, strict=True)]
        best = _by_seed(tuned, seeds, run_all)
        arms += [Arm(f"{s.method_name} at {s.lr:g}", runs, tuned=True) for s, runs in zip(tuned, best, strict=True)]
        arms.append(Arm(f"random at {tuned[1].lr:g}", _replayed(best[1], run_all), tuned=True))
    return arms


def runs_of(extra: Sequence[ExperimentSpec], *, trials: int, tune: bool) -> int:
    """How many runs `compare` makes if one rate outside of `FIRST` has to be tried for each method.

    >>> runs_of([], trials=5, tune=True)  # 3 methods, 4 rates for 2 of them on 3 seeds, 3 methods again
    54
    """
    searched = (len(FIRST) + 1) * 2 * min(trials, TUNING_SEEDS) + 3 * trials
    return trials * (3 + len(extra)) + (searched if tune else 0)


def best_rates(specs: Sequence[ExperimentSpec], run_all: RunAll, trials: int) -> list[float]:
    """For each spec the rate with the lowest mean error on a held-out share of the training set.

    The search begins with `FIRST` and goes on until the best rate has been tried between its neighbours on the
    `LADDER`, or lies at its end.
    """
    seeds = range(min(trials, TUNING_SEEDS))
    tried: list[dict[float, tuple[Run, ...]]] = [{} for _ in specs]
    wanted = [(at, rate) for at in range(len(specs)) for rate in FIRST]
    while wanted:
        asked = [specs[at].but(lr=rate, validation=HELD_OUT) for at, rate in wanted]
        for (at, rate), runs in zip(wanted, _by_seed(asked, seeds, run_all), strict=True):
            tried[at][rate] = runs
        wanted = [(at, rate) for at, known in enumerate(tried) for rate in _around(lowest(known)) if rate not in known]
    return [lowest(known) for known in tried]


def _around(rate: float) -> tuple[float, ...]:
    """The neighbours of a rate on the ladder.

    >>> _around(0.1), _around(10.0)
    ((0.03, 0.3), (3.0,))
    """
    at = LADDER.index(rate)
    return (*LADDER[max(0, at - 1) : at], *LADDER[at + 1 : at + 2])


def lowest(tried: Mapping[float, Sequence[Run]]) -> float:
    """The rate whose runs end with the lowest mean error; one that diverged is all wrong, or the worst."""
    predicts = any(run.spec.loss == "squared" for runs in tried.values() for run in runs)  # errors may exceed 100 %
    wrong = np.inf if predicts else 100.0
    errors = {rate: Arm("", tuple(runs)).last("test_error") for rate, runs in tried.items()}
    return min(errors, key=lambda rate: float(np.mean(np.nan_to_num(errors[rate], nan=wrong))))


def _by_seed(specs: Sequence[ExperimentSpec], seeds: range, run_all: RunAll) -> list[tuple[Run, ...]]:
    found = run_all([spec.but(seed=seed) for spec in specs for seed in seeds])
    return [tuple(found[i * len(seeds) : (i + 1) * len(seeds)]) for i in range(len(specs))]


def _replayed(ordered: Sequence[Run], run_all: RunAll) -> tuple[Run, ...]:
    """Random control of each ordered run: the same seed, q and rate in every epoch, other samples."""
    return tuple(run_all([replay_of(run) for run in ordered]))


def replay_of(run: Run, method: Method = "random") -> ExperimentSpec:
    """The spec of the control of an ordered run by this method; of a run that diverged, as far as it got."""
    path = tuple((row.q, row.lr) for row in run.rows)
    unfixed = {} if run.spec.fixed_q is None else {"q": PAPER_RULE}  # the path takes the place of a fixed q
    return run.spec.but(method=method, path=path, epochs=len(path), **unfixed)
