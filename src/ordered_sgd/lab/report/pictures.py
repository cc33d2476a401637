"""The pictures of an exhibit of the paper, each by its title."""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ordered_sgd.lab.experiments.recipes.exhibit import Exhibit, Reproduced
from ordered_sgd.lab.report.boundaries import draw_boundaries
from ordered_sgd.lab.report.curves import draw_along, draw_panels, draw_times
from ordered_sgd.lab.report.page import ReadArtifact


def pictures(
    shown: Exhibit, results: Sequence[Reproduced], artifact: ReadArtifact = lambda spec, name: None
) -> dict[str, Callable[[], Any]]:
    """Functions that draw: boundaries for Figure 1, error over time for whole trainings, curves for others.

    One whose records hold nothing to draw returns None.
    """
    if shown.crossed or shown.serial:
        return {}
    if shown.along:
        return {shown.title: partial(draw_along, results, shown.along, shown.number)}
    if shown.compared:
        return {one.row.title: partial(draw_times, one.arms) for one in results}
    curves: dict[str, Callable[[], Any]] = {"Learning curves": partial(draw_panels, results, shown.number)}
    if shown.name == "figure1":
        return {"Decision boundaries, seed 0": partial(draw_boundaries, results, artifact), **curves}
    return curves


def file_words(text: str) -> str:
    """A text as a part of a file's name.

    >>> file_words("Decision boundaries, seed 0")
    'decision-boundaries-seed-0'
    """
    return "-".join(re.findall(r"[a-z0-9]+", text.lower()))
