"""Rows of the paper's exhibits, carried out."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ordered_sgd.errors import RecordError, message
from ordered_sgd.lab.experiments.comparison import Arm, RunAll, lowest, replay_of
from ordered_sgd.lab.experiments.recipes.exhibit import TRIALS, Exhibit, RecipeRow, Reproduced
from ordered_sgd.lab.experiments.recipes.listing import exhibit
from ordered_sgd.lab.experiments.recipes.protocols import Protocol, preset
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


def reproduce(rows: Sequence[RecipeRow], run_all: RunAll, *, trials: int) -> list[Reproduced]:
    """The runs of rows, over seeds 0, 1, ...: a search for the rate where a row has one, the arms, the controls."""
    settled = [_at_picked_rate(row, run_all, trials) for row in rows]
    wanted = [spec for row in settled for seed in range(trials) for spec in row.trial(seed).values()]
    found = {run.spec: run for run in run_all(wanted)}
    results = []
    for row in settled:
        specs = {name: [spec.but(seed=seed) for seed in range(trials)] for name, spec in row.arms.items()}
        results.append(Reproduced(row, _arms(specs, found)))
    wanted = [spec for one in results for specs in _controls(one).values() for spec in specs]
    found = {run.spec: run for run in run_all(wanted)}
    return [replace(one, arms=one.arms + _arms(_controls(one), found)) for one in results]


def _arms(specs: Mapping[str, Sequence[ExperimentSpec]], found: Mapping[ExperimentSpec, Run]) -> tuple[Arm, ...]:
    return tuple(Arm(name, tuple(found[spec] for spec in own)) for name, own in specs.items())


def _at_picked_rate(row: RecipeRow, run_all: RunAll, trials: int) -> RecipeRow:
    stage = row.first_stage()
    if not stage:
        return row
    runs = run_all([spec.but(seed=seed) for spec in stage.values() for seed in range(trials)])
    rate = lowest({rate: runs[i * trials : (i + 1) * trials] for i, rate in enumerate(stage)})
    return replace(row.at_rate(rate), notes=(*row.notes, f"The rate that was picked: {rate:g}."))


def _controls(one: Reproduced) -> dict[str, list[ExperimentSpec]]:
    """The controls of a row by name, each as the specs of its runs."""
    several = len(one.row.controls) > 1
    return {
        f"{method} for {name}" if several else method: [replay_of(run, method) for run in one.arm(name).runs]
        for method in one.row.repeated
        for name in one.row.controls
    }
