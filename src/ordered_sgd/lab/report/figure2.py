"""The weights of the ranks as a picture: Figure 2 of the paper."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ordered_sgd.lab.report.canvas import COLOURS, new_figure
from ordered_sgd.theory import gamma_limit, gamma_weights

_POINTS = 1000  # a curve of more points looks the same and makes a heavy file
# Figure 2 of the paper: its (s, q), with our choice of n (the text does not give it).
FIGURE_2: list[tuple[int, int, tuple[int, ...]]] = [
    (10, 3, (10, 20, 100)),
    (100, 30, (100, 200, 1000)),
    (100, 60, (100, 200, 1000)),
]


def draw_gamma(panels: Sequence[tuple[int, int, Sequence[int]]]) -> Any:
    """A figure of n gamma_j against j/n, a panel for each (s, q, several n), with the limit for large n.

    Points between ranks are joined by straight lines, as in the paper.
    """
    figure, axes = new_figure(len(panels))
    for axis, (s, q, ns) in zip(axes, panels, strict=True):
        for n, colour in zip(ns, COLOURS * len(ns), strict=False):
            ranks = np.unique(np.linspace(1, n, min(n, _POINTS)).round().astype(np.int64))
            weights = gamma_weights(n, s, q)[ranks - 1]
            axis.plot(ranks / n, n * weights, color=colour, linewidth=1.4, label=f"n = {n:,}")
        z = np.linspace(0, 1, _POINTS)
        axis.plot(z, gamma_limit(z, s, q), color="black", linewidth=1.1, linestyle=(0, (4, 3)), label="limit")
        axis.set(title=f"s = {s}, q = {q}", xlabel="rank of the loss, j / n", xlim=(0, 1), ylim=(0, 1.05 * s))
        axis.legend(frameon=False)
    axes[0].set_ylabel("weight, n · gamma")
    return figure
