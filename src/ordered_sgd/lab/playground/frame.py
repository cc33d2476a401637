"""What the page draws of a training: points, boundaries, losses, weights of the ranks; plain numbers for JSON."""

import base64
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from ordered_sgd.lab.playground.settings import OWN, SQUARE
from ordered_sgd.lab.playground.side_by_side import Side, SideBySide
from ordered_sgd.theory import gamma_weights, ordered_risk

GRID = 65  # points along an axis at which scores are computed
_MARGIN = 0.12  # what the picture shows beyond the points, as a share of their range
_CURVE = 200  # points of the curve of weights: more look the same
_STEEPEST = 1e6  # scores are cut here: a colour and a boundary need no more


def frame(training: SideBySide) -> dict[str, Any]:
    """The training as it stands: every number finite or None, positions as in `points`."""
    low, high = view(training)
    points = torch.cat([training.x, training.y[:, None]], dim=1).double().numpy().round(3)
    return {
        "step": training.steps,
        "n": training.n,
        "s": training.s,
        "q": training.q,
        "view": [*low, *high],
        "points": points.tolist(),
        "batch": training.batch.tolist(),
        "arms": {name: _arm(training, arm) for name, arm in training.arms.items()},
        "gamma": weights(training.n, training.s, training.q),
    }


def view(training: SideBySide) -> tuple[list[float], list[float]]:
    """Lower left and upper right corner of a square that shows the problem's points; it stays while some are drawn."""
    if training.settings.problem == OWN:
        return [-SQUARE, -SQUARE], [SQUARE, SQUARE]
    x = training.x[: training.n - len(training.settings.points)].double().numpy()
    middle = (x.min(axis=0) + x.max(axis=0)) / 2
    half = (0.5 + _MARGIN) * np.ptp(x, axis=0).max()
    return (middle - half).round(4).tolist(), (middle + half).round(4).tolist()


def scores_on_grid(training: SideBySide, arm: Side) -> NDArray[np.float32]:
    """How much class 1 leads at GRID x GRID places of the view, the lowest row first."""
    low, high = view(training)
    x, y = (torch.linspace(low[i], high[i], GRID) for i in (0, 1))
    places = torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1).reshape(-1, 2)
    with torch.no_grad():
        scores: NDArray[np.float32] = arm.model(places).numpy().reshape(GRID, GRID)
    return np.clip(np.nan_to_num(scores), -_STEEPEST, _STEEPEST)


def weights(n: int, s: int, q: int) -> dict[str, list[float]]:
    """Ranks j, and gamma_j: how likely a step of ordered SGD keeps the sample with the j-th largest loss.

    >>> weights(5, 3, 2)
    {'rank': [1, 2, 3, 4, 5], 'ordered': [0.6, 0.6, 0.5, 0.3, 0.0]}
    """
    if n == 0:
        return {"rank": [], "ordered": []}
    ranks = np.unique(np.linspace(1, n, min(n, _CURVE)).round().astype(np.int64))
    return {"rank": ranks.tolist(), "ordered": gamma_weights(n, s, q)[ranks - 1].round(6).tolist()}


def _arm(training: SideBySide, arm: Side) -> dict[str, Any]:
    scores = base64.b64encode(scores_on_grid(training, arm).astype("<f4").tobytes()).decode()
    return {"kept": arm.kept.tolist(), "diverged": arm.diverged, "scores": scores, **_losses(training, arm)}


def _losses(training: SideBySide, arm: Side) -> dict[str, float | None]:
    """The mean loss L, the ordered loss L_q and the share of right answers, over all points."""
    nothing: dict[str, float | None] = {"mean": None, "ordered": None, "right": None}
    if not training.n:
        return nothing
    with torch.no_grad():
        scores = arm.model(training.x).double()
    losses = F.binary_cross_entropy_with_logits(scores, training.y.double(), reduction="none").numpy()
    if not np.isfinite(losses).all():
        return nothing
    right = ((scores > 0) == (training.y > 0.5)).double().mean()
    ordered = ordered_risk(losses, training.s, training.q)
    return {"mean": float(losses.mean()), "ordered": float(ordered), "right": float(right)}
