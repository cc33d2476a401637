"""The advice as one HTML page."""

from collections.abc import Iterator, Sequence
from typing import Any

from ordered_sgd.lab.advise.advice import Advice
from ordered_sgd.lab.advise.forecast import Expected
from ordered_sgd.lab.advise.steps import StepTime, levels
from ordered_sgd.lab.advise.words import NAMES, duration, path_of
from ordered_sgd.lab.bench.subjects import SGD
from ordered_sgd.lab.report.canvas import COLOURS, new_figure
from ordered_sgd.lab.report.page import render

Row = dict[str, str]


def advice_page(advice: Advice, name: str) -> str:
    """The verdict, the lines to write, a picture of the step times, and tables."""
    return render(
        "advice.html",
        title=f"What ordered SGD would save: {name}",
        verdict=advice.verdict,
        findings=advice.findings,
        code=advice.code,
        steps=step_rows(advice),
        expected=expected_rows(advice.expected),
        picture=draw_advice(advice),
        machine=advice.machine,
        epochs=advice.epochs,
        s=advice.s,
    )


def draw_advice(advice: Advice) -> Any:
    """A step's share of a plain step's time over q, and the expected times of whole trainings."""
    figure, (over_q, trainings) = new_figure(2, width=4.8)
    qs = levels(advice.s)
    for number, name in enumerate(name for name in _engines(advice) if name != SGD):
        shares = [advice.costs.at(name, q).ratio for q in qs]
        if None not in shares:
            over_q.plot(qs, shares, marker="o", color=COLOURS[number % len(COLOURS)], label=NAMES[name])
    over_q.axhline(1, color="black", linewidth=0.8)
    over_q.set_xscale("log", base=2)
    over_q.set(xlabel="q", ylabel="of a plain step's time", xticks=qs, xticklabels=[str(q) for q in qs])
    over_q.set_ylim(bottom=0)
    over_q.invert_xaxis()
    over_q.legend(frameon=False, fontsize=8)
    ways = advice.expected[::-1]
    trainings.barh([way.way for way in ways], [way.ratio for way in ways], color=COLOURS[1])
    trainings.axvline(1, color="black", linewidth=0.8)
    trainings.set(xlabel="of plain SGD's time, whole training")
    for place, way in enumerate(ways):
        trainings.annotate(f" {duration(way.seconds)}", (way.ratio, place), va="center", fontsize=8)
    trainings.margins(x=0.15)
    return figure


def step_rows(advice: Advice) -> list[Row]:
    """A row for each engine: its share of a plain step's time at each q."""
    qs = levels(advice.s)
    rows = [_step_row(name, [advice.costs.at(name, q) for q in qs]) for name in _engines(advice)]
    if not any(row["remark"] for row in rows):
        rows = [{name: text for name, text in row.items() if name != "remark"} for row in rows]
    return rows


def _step_row(name: str, steps: Sequence[StepTime]) -> Row:
    row = {"step": NAMES[name]}
    row |= {f"q = {step.q}": "failed" if step.ratio is None else f"{step.ratio:.2f}" for step in steps}
    exact = name == SGD or all(step.exact for step in steps)
    return row | {
        "gradient": "exact" if exact else "not the same",
        "remark": next((s.why for s in steps[1:] if s.why), ""),
    }


def _engines(advice: Advice) -> Iterator[str]:
    yield from dict.fromkeys(step.engine for step in advice.costs.steps)


def expected_rows(expected: Sequence[Expected]) -> list[Row]:
    """A row for each way to train: its expected time."""
    return [
        {
            "training": way.way,
            "by": NAMES[way.engine],
            "expected time": duration(way.seconds),
            "of plain SGD's": f"{way.ratio:.2f}",
            "q by epoch": path_of(way.qs),
        }
        for way in expected
    ]
