"""A row of a table or a panel of a figure as specs, with what the paper prints beside them."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

from ordered_sgd.errors import ArgumentError, message
from ordered_sgd.lab.experiments.comparison import Arm
from ordered_sgd.lab.experiments.recipes.published import Printed, PrintedRow
from ordered_sgd.lab.experiments.recipes.shrink import shrink
from ordered_sgd.lab.experiments.spec import ExperimentSpec, Method

TRIALS = 10  # "over ten random trials"


@dataclass(frozen=True)
class RateSearch:
    """A first stage: `arm` is trained at every rate, and the one with its lowest mean error is taken for all arms.

    Parameters
    ----------
    arm
        Whose error decides.
    rates
        The grid.
    validation
        The share of the training set that the error is taken on; 0 for the test set itself.
    """

    arm: str
    rates: tuple[float, ...]
    validation: float = 0.0


@dataclass(frozen=True)
class RecipeRow:
    """What is to be run for one row, and what the paper prints there.

    Parameters
    ----------
    id, title
        Name among the rows of its table or figure, and words for it.
    arms
        Name -> spec of seed 0: `trial` gives the others.
    printed, place
        Name of an arm -> what the paper prints for it, and where; nothing for an arm that the paper does not have.
    controls
        Ordered arms whose finished runs are each repeated with other samples: `compare.replay_of` makes the spec.
    repeated
        The methods that repeat them: random samples, and what else is to be seen beside them.
    search
        The first stage of a row whose rate is not given but picked.
    notes
        What is our choice here, because the text leaves it out.
    shrunk
        What is smaller than in the paper; belongs into every cell.
    """

    id: str
    title: str
    arms: Mapping[str, ExperimentSpec]
    printed: Mapping[str, Printed] = field(default_factory=dict)
    place: str | None = None
    controls: tuple[str, ...] = ()
    repeated: tuple[Method, ...] = ("random",)
    search: RateSearch | None = None
    notes: tuple[str, ...] = ()
    shrunk: str = ""

    def trial(self, seed: int) -> dict[str, ExperimentSpec]:
        """The arms with that seed."""
        return {name: spec.but(seed=seed) for name, spec in self.arms.items()}

    def but(self, **changes: Any) -> "RecipeRow":
        """The row with some fields of every spec changed: the engine, the threads."""
        return replace(self, arms={name: spec.but(**changes) for name, spec in self.arms.items()})

    def first_stage(self) -> dict[float, ExperimentSpec]:
        """Rate -> spec of the runs that the rate is picked by; empty when it is given."""
        if self.search is None:
            return {}
        arm, validation = self.arms[self.search.arm], self.search.validation
        return {rate: arm.but(lr=rate, validation=validation) for rate in self.search.rates}

    def at_rate(self, rate: float) -> "RecipeRow":
        """The second stage: every arm at the rate that was picked."""
        return replace(self.but(lr=rate), search=None)

    def shrink(
        self, *, epochs: int | None = None, train_size: int | None = None, width: float | None = None
    ) -> "RecipeRow":
        """The row with every spec made smaller, and `shrunk` saying so."""
        smaller = {
            name: shrink(spec, epochs=epochs, train_size=train_size, width=width) for name, spec in self.arms.items()
        }
        (note,) = {note for _, note in smaller.values()}
        shrunk = ", ".join(filter(None, [self.shrunk, note]))
        return replace(self, arms={name: spec for name, (spec, _) in smaller.items()}, shrunk=shrunk)

    def different(self) -> list[ExperimentSpec]:
        """The specs of seed 0, of both stages, each once; the controls come on top."""
        specs = [*self.first_stage().values(), *self.arms.values()]
        return list({spec.run_id: spec for spec in specs}.values())

    @property
    def runs(self) -> int:
        """Runs of one trial, controls included."""
        return len(self.different()) + len(self.controls) * len(self.repeated)


@dataclass(frozen=True)
class Exhibit:
    """A table or a figure of the paper: its rows, and the number that it shows.

    Parameters
    ----------
    name, title
        ``"table1"``, and what it is about.
    number
        The field of `EpochRow` that it shows: as it is after the last epoch or, for a figure of curves, by epoch;
        ``"seconds"`` as the mean over epochs.
    rows
        With unique ids.
    serial
        Whether its runs must be made one at a time on a machine that does nothing else: it shows their times.
    compared
        Whether every arm is set against the first one, in error and in time, as `osgd compare` does.
    crossed
        Whether its rows are a grid, to be read side by side: a line each.
    along
        The field of a spec that its rows differ in, and the x of its figure: a line each, and a curve for each arm.
    notes
        What is our choice in all of its rows.
    """

    name: str
    title: str
    number: str
    rows: tuple[RecipeRow, ...]
    serial: bool = False
    compared: bool = False
    crossed: bool = False
    along: str = ""
    notes: tuple[str, ...] = ()

    def pick(self, wanted: Sequence[str]) -> tuple[RecipeRow, ...]:
        """The rows with these ids, in the order of the exhibit; ``"semeion-*"`` stands for several."""
        check_rows(self.name, "rows", wanted, [row.id for row in self.rows])
        return tuple(row for row in self.rows if any(fnmatchcase(row.id, name) for name in wanted))


@dataclass(frozen=True)
class Reproduced:
    """A row of an exhibit and its runs: the arms of the recipe, then the random controls."""

    row: RecipeRow
    arms: tuple[Arm, ...]

    def arm(self, name: str) -> Arm:
        """The arm of that name."""
        return next(arm for arm in self.arms if arm.name == name)


def check_rows(where: str, name: str, wanted: Sequence[str], ids: Sequence[str]) -> None:
    """Raise for an id or a pattern that is none of these, with the pattern that may be meant and the nearest ids.

    >>> check_rows("doctest", "rows", ("semeion-*",), ["semeion-svm", "mnist-svm"])
    """
    for one in wanted:
        if any(fnmatchcase(known, one) for known in ids):
            continue
        parts: list[str] = []
        for pattern in (f"{one}*", f"*{one}*"):
            meant = [known for known in ids if fnmatchcase(known, pattern)]
            if meant and not parts:
                parts.append(f"--rows '{pattern}' stands for {len(meant)} {'rows' if len(meant) > 1 else 'row'}.")
        near = difflib.get_close_matches(one, dict.fromkeys(ids), n=3, cutoff=0.5)
        if near:
            parts.append(f"Near names: {', '.join(near)}.")
        remedy = " ".join(parts) or f"They begin with {', '.join(sorted({known.partition('-')[0] for known in ids}))}."
        raise ArgumentError(message(where, name, "be ids or patterns of rows", repr(one), remedy))


def against_plain(ordered: ExperimentSpec) -> dict[str, ExperimentSpec]:
    """Two arms by name: plain, and the ordered one that is given.

    Plain keeps every sample, so that how q is counted is left out: protocols that differ in it alone share the run.
    """
    plain = ordered.but(method="sgd", counts=False)
    return {plain.method_name: plain, ordered.method_name: ordered}


def printed_for(arms: Mapping[str, ExperimentSpec], row: PrintedRow | None) -> dict[str, Any]:
    """The fields `printed` and `place` of a row whose first two arms are the paper's plain and ordered."""
    if row is None:
        return {}
    plain, ordered, *_ = arms
    return {"printed": {plain: row.plain, ordered: row.ordered}, "place": row.place}
