"""The paper's numbers beside ours, and a plain verdict on every row."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ordered_sgd.lab.experiments.comparison import Arm
from ordered_sgd.lab.experiments.recipes.exhibit import Exhibit, Reproduced
from ordered_sgd.lab.report.findings import against_first, ends_grid, judged, never_ordered
from ordered_sgd.lab.report.sentences import compared, spoken
from ordered_sgd.lab.report.summary import comparable, comparison_table, difference, finite, interval, spread, values_of


def found(results: Sequence[Reproduced], shown: Exhibit) -> list[str]:
    """What an exhibit says, in sentences."""
    if shown.compared:
        return [f"{_name(one)}: {sentence}" for one in results for sentence in _by_engine(one.arms)]
    if shown.along:
        return _along(results, shown)
    if shown.crossed:
        return _best_of_grid(results, shown.number)
    return [verdict(one, shown.number) for one in results]


def table(results: Sequence[Reproduced], shown: Exhibit) -> list[dict[str, str]]:
    """The numbers of an exhibit as text."""
    if shown.compared:
        rows = [(one, line) for one in results for line in comparison_table(one.arms, "cpu_seconds")]
        return [{"row": _name(one), **line} for one, line in rows]
    if shown.along:
        return _by_arm(results, shown)
    if shown.crossed:
        return [_side_by_side(one, shown.number) for one in results]
    return [line for one in results for line in _lines(one, shown.number)]


def _by_engine(arms: Sequence[Arm]) -> list[str]:
    """All arms against plain SGD; the other ordered ones against the first of them; and all of them against SGD's best.

    The best is one of another rate, where there are such.
    """
    ordered = [arm for arm in arms[1:] if arm.name.startswith("ordered")]
    best = min((arm for arm in arms if arm.name.startswith("sgd")), key=lambda arm: _mean_or_all(arm, "test_error"))
    against_best = against_first([best, *ordered]) if best is not arms[0] else []
    return [*against_first(arms), *against_first(ordered), *against_best]


def cells(one: Reproduced, number: str) -> list[dict[str, Any]]:
    """One entry per arm: the paper's mean and deviation where it prints them, ours of the last and the best epoch."""
    rows = []
    for arm in one.arms:
        printed = one.row.printed.get(arm.name)
        last, best = values_of(arm, number)
        rows.append(
            {
                "row": one.row.id,
                "method": arm.name,
                "paper": None if printed is None else printed.mean,
                "paper_std": None if printed is None else printed.std,
                "last": finite(np.mean, last),
                "last_std": finite(np.std, last),
                "best": finite(np.mean, best),
                "best_std": finite(np.std, best),
                "seeds": len(arm.runs),
                "diverged": arm.diverged,
                "shrunk": one.row.shrunk,
            }
        )
    return rows


def verdict(one: Reproduced, number: str) -> str:
    """What the row says: the direction, whether it is clear, and how far the means are from the printed ones."""
    plain, ordered = one.arms[0], one.arms[1]
    text = f"{one.row.id}: {compared(ordered, plain, number)}."
    if never_ordered(ordered):
        text = f"{one.row.id}: q never moved, so {spoken(ordered.name)} was {spoken(plain.name)}."
        return f"{text}{_beside_paper(one, number) if one.row.shrunk else ''}"
    if number == "train_accuracy":
        gained = values_of(ordered, number)[0] - values_of(plain, number)[0]
        more, fewer = (int((sign * gained > 1e-6).sum()) for sign in (1, -1))
        less = f" and fewer in {fewer}" if fewer else ""
        text += f" More points are classified correctly in {more} of {len(gained)} seeds{less}."
    return f"{text}{_beside_paper(one, number)}"


class BesidePaper(NamedTuple):
    """Whether the two means differ as the printed ones do, and lie within two printed standard deviations of them."""

    same_direction: bool
    near: tuple[bool | None, ...]  # of plain and ordered; None where no deviation is printed

    @property
    def comes_out(self) -> bool:
        """Whether nothing speaks against it."""
        return self.same_direction and False not in self.near


def beside_paper(one: Reproduced, number: str, *, best: bool) -> BesidePaper:
    """A row with printed numbers against them, in its last or its best epoch."""
    plain, ordered = (float(np.mean(values_of(arm, number)[best])) for arm in one.arms[:2])
    printed = [one.row.printed[arm.name] for arm in one.arms[:2]]
    same = (ordered - plain) * (printed[1].mean - printed[0].mean) > 0
    near = (
        None if p.std is None else abs(mean - p.mean) <= 2 * p.std
        for mean, p in zip((plain, ordered), printed, strict=True)
    )
    return BesidePaper(same, tuple(near))


def _beside_paper(one: Reproduced, number: str) -> str:
    """The last epoch beside the printed numbers, in words; a row that was cut is not held against them."""
    printed = all(arm.name in one.row.printed for arm in one.arms[:2]) and number != "seconds"
    if one.row.shrunk:
        return f" Not judged against the paper: {one.row.shrunk}." if printed else f" [{one.row.shrunk}]"
    if not printed or not comparable(*one.arms[:2]):
        return ""
    found = beside_paper(one, number, best=False)
    direction = f" The paper's difference has {'the same' if found.same_direction else 'the other'} sign"
    known = [(spoken(arm.name), near) for arm, near in zip(one.arms, found.near, strict=False) if near is not None]
    return f"{direction}{_distance(known)}."


def _distance(known: Sequence[tuple[str, bool]]) -> str:
    """Which of two means lie near the printed ones; nothing where no deviation is printed.

    >>> _distance([("SGD", True), ("ordered SGD", False)])
    '; SGD lies within two of its standard deviations, ordered SGD does not'
    """
    if not known:
        return ""
    words = "within two of its standard deviations"
    near, far = ([name for name, close in known if close is wanted] for wanted in (True, False))
    if not far:
        return f"; both means lie {words}"
    return f"; {near[0]} lies {words}, {far[0]} does not" if near else f"; neither mean lies {words}"


def _lines(one: Reproduced, number: str) -> list[dict[str, str]]:
    """The cells of a row, a line for each arm; a time is a mean over epochs, and has no best one."""
    epochs = {"s per epoch": "last"} if number == "seconds" else {"last epoch": "last", "best epoch": "best"}
    note = f" [{one.row.shrunk}]" if one.row.shrunk else ""
    return [
        {
            "row": cell["row"],
            "method": cell["method"],
            "paper": "" if cell["paper"] is None else spread(cell["paper"], cell["paper_std"]),
            **{head: _cell(cell, epoch) + note for head, epoch in epochs.items()},
        }
        for cell in cells(one, number)
    ]


def _cell(cell: Mapping[str, Any], epoch: str = "last") -> str:
    return spread(cell[epoch], cell[f"{epoch}_std"], cell["diverged"], cell["seeds"])


def _side_by_side(one: Reproduced, number: str) -> dict[str, str]:
    """A row in one line: every arm, and how much the second differs from the first and from the last, its control."""
    plain, ordered, *_, control = one.arms
    return {
        "row": _name(one),
        **{cell["method"]: _cell(cell) for cell in cells(one, number)},
        **{f"{ordered.name} - {other.name}": _shown(ordered, other, number) for other in (plain, control)},
    }


def _name(one: Reproduced) -> str:
    return one.row.id + (f" [{one.row.shrunk}]" if one.row.shrunk else "")


def _shown(arm: Arm, other: Arm, number: str) -> str:
    """The difference of two arms; nothing where one of them diverged."""
    if not comparable(arm, other):
        return ""
    found = difference(arm, other, number)
    return interval(found.mean, found.half)


def at_best_rates(results: Sequence[Reproduced], number: str) -> dict[str, tuple[Arm, Arm]]:
    """For rows that differ in their rate alone: ordered and plain, each at the rate where its error is lowest."""
    groups: dict[str, list[Reproduced]] = {}
    for one in results:
        groups.setdefault(one.row.id.rpartition("-lr-")[0], []).append(one)

    def lowest(group: Sequence[Reproduced], arm: int) -> Arm:
        return min((one.arms[arm] for one in group), key=lambda arm: _mean_or_all(arm, number))

    return {name: (lowest(group, 1), lowest(group, 0)) for name, group in groups.items()}


def _best_of_grid(results: Sequence[Reproduced], number: str) -> list[str]:
    """A sentence for every problem of a grid of rates."""
    sentences, shrunk = [], results[0].row.shrunk
    for name, (ordered, plain) in at_best_rates(results, number).items():
        names = f"ordered SGD at {ordered.runs[0].spec.lr:g}", f"SGD at {plain.runs[0].spec.lr:g}"
        ends = [who for who, arm in zip(names, (ordered, plain), strict=True) if ends_grid(arm)]
        last = f" No learning rate beyond that of {' and '.join(ends)} was tried." if ends else ""
        where = f"{name}{f' [{shrunk}]' if shrunk else ''}: at their best learning rates, picked on the test set"
        sentences.append(f"{where}, {compared(ordered, plain, number, names=names)}.{last}")
    return sentences


def _by_arm(results: Sequence[Reproduced], shown: Exhibit) -> list[dict[str, str]]:
    """A line for each arm, a column for each row."""
    columns = [(f"{shown.along} {_at(one, shown)}", cells(one, shown.number)) for one in results]
    return [
        {"method": arm.name} | {head: _cell(column[number]) for head, column in columns}
        for number, arm in enumerate(results[0].arms)
    ]


def _at(one: Reproduced, shown: Exhibit) -> str:
    return f"{getattr(one.arms[0].runs[0].spec, shown.along):g}"


def _along(results: Sequence[Reproduced], shown: Exhibit) -> list[str]:
    """Every arm against the first, in one sentence over all rows."""
    sentences = []
    for number, arm in enumerate(results[0].arms[1:], 1):
        parts = []
        for one in results:
            other, first = one.arms[number], one.arms[0]
            clear = " (clear)" if judged(other, first, shown.number) in ("better than", "worse than") else ""
            parts.append(f"{_shown(other, first, shown.number) or 'diverged'}{clear} at {_at(one, shown)}")
        words = f"in points of error by {shown.along}: {', '.join(parts)}"
        sentences.append(f"{arm.name} - {results[0].arms[0].name}, {words}.")
    return sentences


def _mean_or_all(arm: Arm, number: str) -> float:
    """Mean over seeds; a run that diverged counts as all wrong."""
    return float(np.mean(np.nan_to_num(arm.last(number), nan=100.0)))
