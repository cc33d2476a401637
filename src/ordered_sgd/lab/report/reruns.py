"""Our numbers beside those of independent reruns of the authors' scripts."""

from collections.abc import Sequence

from ordered_sgd.lab.experiments.comparison import Arm
from ordered_sgd.lab.experiments.recipes.exhibit import Reproduced
from ordered_sgd.lab.experiments.recipes.published import RERUN_ERRORS, RERUN_Q
from ordered_sgd.lab.experiments.requests import Request
from ordered_sgd.lab.experiments.store import Run
from ordered_sgd.lab.report.summary import spread_of

_WHOLE = "whole-training"
_SHOWN = ("table1", "ablation", _WHOLE)


def reruns(reproduced: Sequence[tuple[Request, Reproduced]]) -> list[dict[str, str]]:
    """A line for each arm of a row that was rerun elsewhere, in the scripts' protocol: errors, q by epoch.

    Whole rows, and whole trainings, which are shorter and say so.
    """
    return [
        _line(one, arm, method)
        for request, one in reproduced
        if request.protocol == "authors-code" and not request.switches and request.exhibit in _SHOWN
        if one.row.id in RERUN_ERRORS and (request.exhibit == _WHOLE or not one.row.shrunk)
        for method, arm in zip(("plain", "ordered"), one.arms, strict=False)
    ]


def rerun_notes(lines: Sequence[dict[str, str]]) -> tuple[str, ...]:
    """What is to be known of the lines, and which reruns have none."""
    missing = sorted(name for name in RERUN_ERRORS if not any(line["row"].startswith(name) for line in lines))
    return (
        "Test errors of the last epoch; the reruns of Semeion have 10 seeds (LeNet 3), the others one.",
        "In whole trainings accuracy is counted while training, in the scripts by a pass after the epoch, when the "
        "network is better: q may move sooner there.",
        *([f"Not compared, because the row was not run whole: {', '.join(missing)}."] if missing else []),
    )


def _line(one: Reproduced, arm: Arm, method: str) -> dict[str, str]:
    plain, ordered = RERUN_ERRORS[one.row.id]
    paths = method == "ordered"
    return {
        "row": one.row.id + (f" [{one.row.shrunk}]" if one.row.shrunk else ""),
        "method": arm.name,
        "reruns": f"{plain if method == 'plain' else ordered:.2f}",
        "ours": spread_of(arm.last("test_error")),
        "q by epoch, reruns": RERUN_Q.get(one.row.id, "") if paths else "",
        "q by epoch, ours, seed 0": q_by_epoch(arm.runs[0]) if paths else "",
    }


def q_by_epoch(run: Run) -> str:
    """The epochs of every q: ``"64 (1), 8 (2-8), 4 (9-)"``."""
    spans: list[tuple[int, int]] = []  # q, its first epoch
    for row in run.rows:
        if not spans or spans[-1][0] != row.q:
            spans.append((row.q, row.epoch))
    ends = [start - 1 for _, start in spans[1:]]
    words = [
        f"{q} ({start})" if start == end else f"{q} ({start}-{end})"
        for (q, start), end in zip(spans, ends, strict=False)
    ]
    return ", ".join([*words, f"{spans[-1][0]} ({spans[-1][1]}-)"])
