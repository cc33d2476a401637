"""Rows of the paper's exhibits, carried out."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ordered_sgd.errors import RecordError, message
from ordered_sgd.lab.experiments.comparison import Arm, RunAll, lowest, replay_of
from ordered_sgd.lab.experiments.recipes import TRIALS, Exhibit, Protocol, RecipeRow, exhibit, preset
from ordered_sgd.lab.experiments.spec import ExperimentSpec
from ordered_sgd.lab.experiments.store import Run


@dataclass(frozen=True)
class Request:
    """What is asked for: rows of an exhibit in a protocol, as they are or smaller.

    Records keep it, so that a report can show it again.

    Parameters
    ----------
    exhibit, rows
        Its name, and ids or patterns such as ``"semeion-*"``; all rows if none is given.
    trials
        Seeds 0, 1, ...
    protocol, switches
        Name of a preset, and switches of it that are turned.
    epochs, train_size, width
        To make the rows smaller.

    Examples
    --------
    >>> [row.id for row in Request("table1", ("semeion-s*",)).shown().rows]
    ['semeion-svm']
    """

    exhibit: str
    rows: tuple[str, ...] = ()
    trials: int = TRIALS
    protocol: str = "paper"
    switches: Mapping[str, Any] = field(default_factory=dict)
    epochs: int | None = None
    train_size: int | None = None
    width: float | None = None

    @classmethod
    def from_dict(cls, kept: Mapping[str, Any]) -> "Request":
        """The request that `to_dict` gave, as JSON keeps it."""
        try:
            return cls(**{**kept, "rows": tuple(kept["rows"])})
        except (TypeError, KeyError) as error:
            remedy = "Another version of this package wrote it: run its command again."
            raise RecordError(message("records", "a request", "be one of this version", error, remedy)) from error

    def to_dict(self) -> dict[str, Any]:
        """The request for the records."""
        return asdict(self)

    @property
    def how(self) -> Protocol:
        """The protocol with its switches turned."""
        return preset(self.protocol, **self.switches)

    def shown(self) -> Exhibit:
        """The exhibit with the rows that are asked for, in their size."""
        whole = exhibit(self.exhibit, self.how)
        picked = whole.pick(self.rows) if self.rows else whole.rows
        rows = (row.shrink(epochs=self.epochs, train_size=self.train_size, width=self.width) for row in picked)
        return replace(whole, rows=tuple(rows))


@dataclass(frozen=True)
class Reproduced:
    """A row of an exhibit and its runs: the arms of the recipe, then the random controls."""

    row: RecipeRow
    arms: tuple[Arm, ...]

    def arm(self, name: str) -> Arm:
        """The arm of that name."""
        return next(arm for arm in self.arms if arm.name == name)


def reproduce(rows: Sequence[RecipeRow], run_all: RunAll, *, trials: int) -> list[Reproduced]:
    """The runs of rows, over seeds 0, 1, ...: a search for the rate where a row has one, the arms, the controls."""
    settled = [_at_picked_rate(row, run_all, trials) for row in rows]
    wanted = [spec for row in settled for seed in range(trials) for spec in row.trial(seed).values()]
    found = {run.spec: run for run in run_all(wanted)}
    results = []
    for row in settled:
        arms = [
            Arm(name, tuple(found[spec.but(seed=seed)] for seed in range(trials))) for name, spec in row.arms.items()
        ]
        results.append(Reproduced(row, tuple(arms)))
    controls = [
        replay_of(run, method)
        for one in results
        for method in one.row.repeated
        for name in one.row.controls
        for run in one.arm(name).runs
    ]
    repeated = {run.spec: run for run in run_all(controls)}
    return [_with_controls(one, repeated) for one in results]


def _at_picked_rate(row: RecipeRow, run_all: RunAll, trials: int) -> RecipeRow:
    stage = row.first_stage()
    if not stage:
        return row
    runs = run_all([spec.but(seed=seed) for spec in stage.values() for seed in range(trials)])
    rate = lowest({rate: runs[i * trials : (i + 1) * trials] for i, rate in enumerate(stage)})
    return replace(row.at_rate(rate), notes=(*row.notes, f"The rate that was picked: {rate:g}."))


def _with_controls(one: Reproduced, repeated: Mapping[ExperimentSpec, Run]) -> Reproduced:
    controls = tuple(
        Arm(
            method if len(one.row.controls) == 1 else f"{method} for {name}",
            tuple(repeated[replay_of(run, method)] for run in one.arm(name).runs),
        )
        for method in one.row.repeated
        for name in one.row.controls
    )
    return replace(one, arms=one.arms + controls)
