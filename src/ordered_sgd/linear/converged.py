"""Whether a fit ended too early: how far one Newton-like step from its weights lowers the loss."""

from typing import Any

import numpy as np
from scipy import linalg, sparse, special

from ordered_sgd.linear.objective import Array, Objective
from ordered_sgd.linear.reference import PER_SAMPLE
from ordered_sgd.linear.training import Samples

FALLS = 0.05  # warn if the loss can fall by at least this share of the loss at zero weights
JUDGED_FROM = 10  # epochs; a shorter fit is not meant to converge
_ROWS = 2000  # samples for computing the step, and as many others for comparing the loss
_FULL = 300  # up to so many columns the step uses the full Hessian, beyond that its diagonal
_SHARES = (1.0, 0.5, 0.25, 0.125, 0.0625)  # of the step; the best one counts


def could_fall(samples: Samples, coef: Array, intercept: Array, objective: Objective, q: int, s: int) -> float:
    """The fall of the training loss by a Newton-like step, as a share of the loss without any weights.

    The loss is the ordered risk of q out of s plus the penalty. If there are more samples than a few thousand, the step
    is computed from some and judged on others. A fall that is found is possible; one that is not found may be.
    """
    rows = np.arange(len(samples.y)) if samples.positions is None else samples.positions
    rows = rows[samples.weight[rows] > 0]
    if len(rows) == 0:
        return 0.0
    rows = rows[np.random.default_rng(0).permutation(len(rows))[: 2 * _ROWS]]
    given, judged = (rows[:_ROWS], rows[_ROWS:]) if len(rows) > _ROWS * 1.2 else (rows, rows)
    part, weights = (
        _Portion(samples, given, objective, q, s),
        (np.atleast_2d(coef).astype(float), intercept.astype(float)),
    )
    with np.errstate(over="ignore", invalid="ignore"):
        step = part.step(*weights)
    if not all(np.isfinite(moved).all() for moved in step):  # sums that overflow tell nothing
        return 0.0
    other = part if judged is given else _Portion(samples, judged, objective, q, s)
    nothing = np.zeros_like(weights[0]), other.constant(len(intercept))
    with np.errstate(over="ignore", invalid="ignore"):
        now, scale = other.loss(*weights), other.loss(*nothing)
        moved = [other.loss(*(w - share * d for w, d in zip(weights, step, strict=True))) for share in _SHARES]
    best = min(value for value in [now, *moved] if np.isfinite(value))
    return max(0.0, (now - best) / scale) if scale > 0 else 0.0


class _Portion:
    """Some samples, and the loss on them."""

    def __init__(self, samples: Samples, rows: Array, objective: Objective, q: int, s: int) -> None:
        X = samples.X[rows]
        self.X: Any = (X.astype(float) if sparse.issparse(X) else np.asarray(X, float)) * objective.input_scale
        self.y, self.weight, self.objective = samples.y[rows].astype(float), samples.weight[rows], objective
        places = (np.arange(len(rows)) + 0.5) / len(rows)
        by_rank = np.ones(len(rows)) if q >= s else s / q * special.betaincc(q, s - q, places)
        self.by_rank = by_rank / by_rank.sum()  # weights of the ordered risk (Theorem 1) for many samples

    def constant(self, columns: int) -> Array:
        """The intercept of a model without weights."""
        regression = self.objective.loss not in ("log_loss", "hinge")
        return np.full(columns, self.y.mean() if regression and self.objective.fit_intercept else 0.0)

    def _of_samples(self, coef: Array, intercept: Array) -> tuple[Array, Array, Array]:
        """Losses, their slopes, and the weight of each sample in the ordered risk."""
        loss, slope = PER_SAMPLE[self.objective.loss](self.X @ coef.T + intercept, self.y, self.objective.epsilon)
        loss = loss * self.weight
        share = np.empty(len(loss))
        share[np.argsort(-loss, kind="stable")] = self.by_rank
        return loss, slope, share * self.weight

    def loss(self, coef: Array, intercept: Array) -> float:
        """The ordered risk and the penalty."""
        losses, _, _ = self._of_samples(coef, intercept)
        penalty = self.objective.l2 / 2 * (coef**2).sum() + self.objective.l1 * abs(coef).sum()
        return float(np.sort(losses)[::-1] @ self.by_rank + penalty)

    def step(self, coef: Array, intercept: Array) -> tuple[Array, Array]:
        """The gradient over the curvature that the loss has at most, of weights and intercept."""
        o = self.objective
        _, slope, share = self._of_samples(coef, intercept)
        slope = slope * share[:, None]
        down = slope.T @ self.X + o.l2 * coef + o.l1 * np.sign(coef)
        down = np.where(coef == 0, np.sign(down) * np.maximum(abs(down) - o.l1, 0), down) if o.l1 else down
        bend = 1.0 if o.loss != "log_loss" else 0.25 if len(coef) == 1 else 0.5
        means = share @ self.X if o.fit_intercept else np.zeros(coef.shape[1])
        flat = slope.sum(axis=0) if o.fit_intercept else np.zeros(len(coef))
        down = down - flat[:, None] * means / share.sum()
        if coef.shape[1] <= _FULL:
            X = self.X.toarray() if sparse.issparse(self.X) else self.X
            moments = bend * ((X * share[:, None]).T @ X - np.outer(means, means) / share.sum())
            scale = np.sqrt(np.maximum(np.diag(moments) + o.l2, 1e-300))  # columns may differ by many orders
            moments = moments / scale[:, None] / scale + 1e-9 * np.eye(len(scale)) + np.diag(o.l2 / scale**2)
            if not (np.isfinite(moments).all() and np.isfinite(down).all()):
                return np.full_like(down, np.nan), flat
            moved = linalg.lstsq(moments, (down / scale).T)[0].T / scale
        else:
            squares = self.X.power(2) if sparse.issparse(self.X) else self.X**2
            diagonal = bend * (share @ squares - means**2 / share.sum()) + o.l2
            moved = np.divide(down, diagonal, out=np.zeros_like(down), where=diagonal > 0)
        return moved, flat / (bend * share.sum()) - moved @ means / share.sum()
