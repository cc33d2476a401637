"""Rows of the paper that do not come out as printed, and what was tried for them."""

from collections.abc import Iterator, Mapping, Sequence

from ordered_sgd.lab.experiments.recipes.exhibit import Reproduced
from ordered_sgd.lab.experiments.requests import Request
from ordered_sgd.lab.report.summary import spread, spread_of, values_of
from ordered_sgd.lab.report.verdicts import beside_paper

TITLE = "Rows that do not come out as printed, and what was tried"
NOTES = (
    "A row comes out when both means are within two printed standard deviations of the printed ones, and differ in the "
    "same direction. ✗ marks what is not.",
    "Settings are those that were run whole at the paper's rate. The best epoch is picked on the test set.",
)
_EPOCHS = {"last epoch": False, "best epoch": True}

Tried = Mapping[str, Mapping[str, Reproduced]]  # row -> setting -> what was found


def tried(asked: Sequence[tuple[Request, Sequence[Reproduced]]]) -> Tried:
    """The rows of tables that in some protocol do not come out, and every setting of them, each once."""
    whole = [
        (request, one)
        for request, results in asked
        if request.shown().number == "test_error"
        for one in results
        if one.row.printed and not one.row.shrunk
    ]
    missed = {
        one.row.place: one.row.id
        for request, one in whole
        if not request.shown().crossed and not _comes_out(one, best=False)
    }
    found: dict[str, dict[str, Reproduced]] = {name: {} for name in missed.values()}
    seen = set()
    for request, one in whole:
        specs = tuple(arm.runs[0].spec for arm in one.arms[:2])
        if one.row.place in missed and specs not in seen:  # a cell of a grid may be a row of a table again
            seen.add(specs)
            turned = one.row.title.partition("; ")[2] if request.shown().crossed else ""
            found[missed[one.row.place]][", ".join(filter(None, [request.how.name, turned]))] = one
    return found


def in_sentences(rows: Tried) -> list[str]:
    """For each row, the settings in which it comes out, and those in which only its best epoch does."""
    sentences = []
    for name, settings in rows.items():
        last = [setting for setting, one in settings.items() if _comes_out(one, best=False)]
        best = [setting for setting, one in settings.items() if setting not in last and _comes_out(one, best=True)]
        parts = [f"comes out in {'; '.join(last) or f'none of {len(settings)} settings'}"]
        parts += [f"in its best epoch also in {'; '.join(best)}"] if best else []
        sentences.append(f"{name}: {', '.join(parts)}.")
    return sentences


def as_table(rows: Tried) -> list[dict[str, str]]:
    """What is printed, then a line for each setting."""
    lines = []
    for name, settings in rows.items():
        plain, ordered = next(iter(settings.values())).row.printed.values()
        lines.append({"row": name, "setting": "as printed", "plain": spread(*plain), "ordered": spread(*ordered)})
        lines += [{"row": name, "setting": setting, **dict(_cells(one))} for setting, one in settings.items()]
    heads = list(lines[1]) if lines else []
    return [{head: line.get(head, "") for head in heads} for line in lines]


def _cells(one: Reproduced) -> Iterator[tuple[str, str]]:
    for epoch, best in _EPOCHS.items():
        beside, of = beside_paper(one, "test_error", best=best), "" if not best else f", {epoch}"
        for method, arm, near in zip(("plain", "ordered"), one.arms, beside.near, strict=False):
            values = values_of(arm, "test_error")[best]
            cell = spread_of(values)
            yield method + of, cell if near in (True, None) else f"{cell} ✗"
        yield f"direction{of}", "same" if beside.same_direction else "other ✗"


def _comes_out(one: Reproduced, *, best: bool) -> bool:
    return beside_paper(one, "test_error", best=best).comes_out
