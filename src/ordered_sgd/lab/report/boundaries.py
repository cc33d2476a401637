"""Decision boundaries of classifiers in the plane: Figure 1 of the paper."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ordered_sgd.lab.experiments.artifacts import BOUNDARY, unpack
from ordered_sgd.lab.experiments.recipes.exhibit import Reproduced
from ordered_sgd.lab.experiments.run import problem_for
from ordered_sgd.lab.experiments.spec import ExperimentSpec
from ordered_sgd.lab.report.canvas import COLOURS, figure_grid

_CLASSES = (COLOURS[1], COLOURS[2])  # of points, and of the regions where a class leads


def draw_boundaries(results: Sequence[Reproduced], artifact: Callable[[ExperimentSpec, str], bytes | None]) -> Any:
    """A panel for each problem and arm, of seed 0: points, regions, boundary; None where no boundary is recorded."""
    contents = [[artifact(arm.runs[0].spec, BOUNDARY) for arm in one.arms] for one in results]
    if any(content is None for row in contents for content in row):
        return None
    figure, axes = figure_grid(len(results), len(results[0].arms), width=3.0, height=2.9)
    for one, row, line in zip(results, contents, axes, strict=True):
        points = problem_for(one.arms[0].runs[0].spec).train
        for arm, content, axis in zip(one.arms, row, line, strict=True):
            assert content is not None
            grid = unpack(content)
            scores, furthest = grid["scores"], np.abs(grid["scores"]).max() + 1
            axis.contourf(grid["x"], grid["y"], scores, levels=[-furthest, 0, furthest], colors=_CLASSES, alpha=0.18)
            if scores.min() < 0 < scores.max():
                axis.contour(grid["x"], grid["y"], scores, levels=[0], colors="black", linewidths=1.3)
            for label, colour in enumerate(_CLASSES):
                own = points.x[points.y == label]
                axis.plot(*own.T, ".", color=colour, markersize=3, rasterized=True)  # thousands of marks are heavy
            right = round(100 * (arm.runs[0].rows[-1].train_accuracy or 0.0), 1)
            axis.set(title=f"{one.row.id[-1]}: {arm.name}, {right:g} % right", xticks=[], yticks=[], aspect="equal")
            axis.grid(visible=False)
    return figure
