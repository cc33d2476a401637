"""The tables of "Can the share of wrong labels be read off the training?" in docs/units.md, from the record alone."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import mean, median

from wrong_labels_design import CELLS, DATA, DEVELOPMENT, MODELS, RULES, SEEDS, Found, Run, fixed_arms, read_classes

from ordered_sgd.lab.report.marked import markdown_table

PAGE = Path(__file__).parents[1] / "units.md"
LOSERS = ("0.4 1", "held-out")  # arms whose lost classes are counted
GOAL = 0.5  # points of test error above the best fixed arm

Cell = tuple[str, str, float, str]  # model, data, share of wrong labels, their kind
Errors = dict[str, float]  # by arm


def name_of(flipped: float, kind: str) -> str:
    """The heading of a column."""
    return f"{flipped:.0%}" + (f" {kind}" if flipped else "")


def seeds_of(found: Found, cell: Cell) -> list[int]:
    """The seeds in which every arm of a cell was run."""
    model, data, flipped, kind = cell
    arms = [*RULES, *fixed_arms(model, flipped)]
    return [s for s in SEEDS if all(Run(data, model, flipped, kind, s, arm) in found for arm in arms)]


def errors_of(found: Found, cell: Cell, arms: list[str], seeds: list[int]) -> Errors:
    """Mean test error of each arm over the seeds."""
    model, data, flipped, kind = cell
    return {arm: mean(found[Run(data, model, flipped, kind, s, arm)]["error"] for s in seeds) for arm in arms}


def measured(found: Found) -> Iterator[tuple[Cell, list[int], Errors]]:
    """The cells in which there is a seed with every arm."""
    for model, data, (flipped, kind) in itertools.product(MODELS, DATA, CELLS):
        cell = (model, data, flipped, kind)
        if seeds := seeds_of(found, cell):
            yield cell, seeds, errors_of(found, cell, [*RULES, *fixed_arms(model, flipped)], seeds)


def best_of(errors: Errors) -> str:
    """The fixed arm with the least error."""
    fixed = {arm: error for arm, error in errors.items() if arm not in RULES}
    return min(fixed, key=lambda arm: fixed[arm])


def developed(found: Found, cell: Cell) -> str | None:
    """The fixed arm that was best on the development seeds, if there are any of this cell."""
    model, data, flipped, kind = cell
    arms = fixed_arms(model, flipped)
    seeds = [s for s in DEVELOPMENT if all(Run(data, model, flipped, kind, s, arm) in found for arm in arms)]
    return best_of(errors_of(found, cell, arms, seeds)) if seeds else None


def by_data(found: Found, text: Callable[[Cell, list[int], Errors], str]) -> str:
    """A table with a row for each data set and model and a column for each share and kind of wrong labels."""
    rows: dict[tuple[str, str], dict[str, str]] = {}
    seeds: dict[tuple[str, str], set[int]] = {}
    for cell, of_cell, errors in measured(found):
        model, data, flipped, kind = cell
        blank = dict.fromkeys(itertools.starmap(name_of, CELLS), "-")
        row = rows.setdefault((model, data), {"model": MODELS[model], "data": data, "seeds": "", **blank})
        row[name_of(flipped, kind)] = text(cell, of_cell, errors)
        seeds.setdefault((model, data), set()).add(len(of_cell))
    for key, counts in seeds.items():
        rows[key]["seeds"] = " to ".join(map(str, sorted({min(counts), max(counts)})))
    return markdown_table(list(rows.values()))


def four(cell: Cell, seeds: list[int], errors: Errors) -> str:
    """SGD, the best fixed arm and the two rules; a rule that reaches the goal in bold."""
    best = errors[best_of(errors)]
    rules = [f"**{errors[r]:.1f}**" if errors[r] - best <= GOAL else f"{errors[r]:.1f}" for r in RULES]
    return " / ".join([f"{errors['0 1']:.1f}", f"{best:.1f}", *rules])


def reached(found: Found, model: str) -> dict[str, str]:
    """In how many cells of a model an arm is within half a point of the best fixed one."""
    cells = [(cell, errors) for cell, _, errors in measured(found) if cell[0] == model]
    arms: dict[str, Callable[[Cell], str | None]] = {
        "watched": lambda cell: "watched",
        "held-out": lambda cell: "held-out",
        "plain SGD": lambda cell: "0 1",
        "told the share: trim is the share, all the rest is kept": lambda cell: f"{cell[2]:g} 1",
        "told the cell: the fixed arm that was best on other seeds (one or two)": lambda cell: developed(found, cell),
    }
    row = {"model": MODELS[model]}
    for name, choose in arms.items():
        gaps = [errors[arm] - errors[best_of(errors)] for cell, errors in cells if (arm := choose(cell))]
        near, nearly = (sum(gap <= goal for gap in gaps) for goal in (GOAL, 2 * GOAL))
        row[name] = f"{near} of {len(gaps)} ({nearly}; {mean(gaps):+.1f})" if gaps else "-"
    return row


def share(found: Found, cell: Cell, seeds: list[int]) -> str:
    """The share of wrong labels that "held-out" found, in percent."""
    model, data, flipped, kind = cell
    return f"{100 * mean(found[Run(data, model, flipped, kind, s, 'held-out')]['share'] for s in seeds):.1f}"


def cost(found: Found) -> str:
    """What the held-out predictions took, in trainings."""
    parts = []
    for model, name in MODELS.items():
        own = [v for run, v in found.items() if run.model == model and run.arm == "held-out"]
        if own:
            parts.append(f"{median(v['before'] / v['seconds'] for v in own):.1f} trainings of the {name} model")
    return f"What held-out does before the training takes as long as {' and '.join(parts)} (median of the runs)."


def lost_classes() -> str:
    """In how many trainings at 40 % of wrong labels a class was lost."""
    found = read_classes()
    said = []
    for model, name in MODELS.items():
        counts = {arm: [lost for run, lost in found.items() if run[0] == model and run[4] == arm] for arm in LOSERS}
        if all(counts.values()):
            told, rule = (f"{sum(lost > 0 for lost in own)} of {len(own)}" for own in counts.values())
            said.append(f"with the {name} model {told} trainings that are told the share and {rule} with held-out")
    return (
        f"With 40 % of the labels wrong, trainings lose a class (recall below 5 %): {'; '.join(said)}." if said else ""
    )


def tables(found: Found) -> list[str]:
    """Test errors, how often the goal is reached, and the shares that "held-out" found."""
    models = [model for model in MODELS if any(cell[0] == model for cell, _, _ in measured(found))]
    return [
        "Test error in percent, means over the seeds: plain SGD / the best fixed trim and q / watched / held-out. A "
        "rule within half a point of the best fixed arm is in bold.",
        by_data(found, four),
        "Cells within half a point of the best fixed arm; in brackets, cells within one point, and mean distance "
        "in points:",
        markdown_table([reached(found, model) for model in models]),
        "Share of wrong labels that held-out finds, in percent:",
        by_data(found, lambda cell, seeds, errors: share(found, cell, seeds)),
        lost_classes(),
        cost(found),
    ]
