"""Three trainings that differ only in which samples of a mini-batch they step on."""

import copy
import warnings
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from ordered_sgd.batches import algorithm_batches
from ordered_sgd.errors import NonFiniteLossError, TrapWarning
from ordered_sgd.lab.data.figure1 import Panel, figure1
from ordered_sgd.lab.models import build
from ordered_sgd.lab.playground.settings import OWN, Settings
from ordered_sgd.step import OrderedStep

ARMS = ("sgd", "ordered", "random")
MOMENTUM = 0.9


@dataclass
class Side:
    """One model with its optimizer; `kept` are the samples of the last step, `diverged` the step that failed."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    step: OrderedStep | None = None
    kept: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    diverged: int | None = None


class SideBySide:
    """SGD, ordered SGD and a random q from the same first weights, on the same mini-batches, step by step.

    Parameters
    ----------
    settings
        The problem, the model, the optimizer and its numbers. A learning rate, s, q or points that change are taken up
        where the training stands; another problem, model, optimizer or seed begins anew.

    Examples
    --------
    >>> training = SideBySide(Settings(q=4))
    >>> training.advance(3)
    >>> training.steps, {name: len(arm.kept) for name, arm in training.arms.items()}
    (3, {'sgd': 64, 'ordered': 4, 'random': 4})
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.reset()

    def reset(self) -> None:
        """Begin anew with the present settings."""
        self.steps = 0
        self.batch = np.empty(0, np.int64)
        self._rng = np.random.default_rng(self.settings.seed)
        self._generator = torch.Generator().manual_seed(self.settings.seed)
        self.arms = _new_arms(self.settings)
        self._take_points()
        self._tune()

    def change(self, settings: Settings) -> None:
        """Take up new settings."""
        before, self.settings = self.settings, settings
        if before == settings:
            return
        if any(getattr(before, name) != getattr(settings, name) for name in ("problem", "model", "optimizer", "seed")):
            self.reset()
            return
        if before.points != settings.points:
            self._take_points()
            if settings.points[: len(before.points)] != before.points:  # not only more: positions mean other points
                self._forget_step()
        self._tune()

    def advance(self, steps: int) -> None:
        """So many steps of every arm that has not diverged; none while there are no points."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TrapWarning)  # to step into traps is what a playground is for
            for _ in range(steps if self.n else 0):
                self._step_all()

    @property
    def n(self) -> int:
        """Points in all."""
        return len(self.x)

    @property
    def s(self) -> int:
        """Points in a mini-batch: the slider's, or all there are."""
        return min(self.settings.s, self.n)

    @property
    def q(self) -> int:
        """Points kept of a mini-batch: the slider's, or the whole batch."""
        return min(self.settings.q, self.s)

    def _step_all(self) -> None:
        self.batch = next(algorithm_batches(self.n, self.s, self._rng))
        rows = torch.from_numpy(self.batch)
        x, y = self.x[rows], self.y[rows]
        for arm in self.arms.values():
            if arm.diverged is None:
                self._step(arm, x, y)
        self.steps += 1

    def _step(self, arm: Side, x: Tensor, y: Tensor) -> None:
        assert arm.step is not None
        try:
            record = arm.step(x, y)
        except NonFiniteLossError:
            arm.diverged, arm.kept = self.steps, self.batch[:0]
            return
        arm.kept = self.batch[record.rows.numpy()]

    def _take_points(self) -> None:
        x, y = points_of(self.settings)
        self.x, self.y = torch.from_numpy(x), torch.from_numpy(y)

    def _forget_step(self) -> None:
        self.batch = self.batch[:0]
        for arm in self.arms.values():
            arm.kept = self.batch

    def _tune(self) -> None:
        """Hand the learning rate and q to every arm, whose weights and momentum stay."""
        for name, arm in self.arms.items():
            for group in arm.optimizer.param_groups:
                group["lr"] = self.settings.lr
            q: float = 1.0 if name == "sgd" else max(1, self.q)
            chance = {"selection": "random", "generator": self._generator} if name == "random" else {}
            arm.step = OrderedStep(arm.model, _losses, arm.optimizer, q=q, engine="dense", **chance)  # type: ignore[arg-type]


def points_of(settings: Settings) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Points (n, 2) and classes (n,), 0 or 1: the problem's, then those drawn by hand."""
    drawn = np.array(settings.points, np.float32).reshape(-1, 3)
    if settings.problem == OWN:
        return drawn[:, :2].copy(), drawn[:, 2].copy()
    data = figure1(cast(Panel, settings.problem[-1]), settings.seed)
    return np.concatenate([data.x, drawn[:, :2]]), np.concatenate([data.y.astype(np.float32), drawn[:, 2]])


def _losses(scores: Tensor, y: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(scores, y, reduction="none")


def _new_arms(settings: Settings) -> dict[str, Side]:
    with torch.random.fork_rng(devices=[]):  # `build` draws from the global generator
        torch.manual_seed(settings.seed)
        first = build(settings.model, (2,), 2)
    models = {name: copy.deepcopy(first) for name in ARMS}
    return {name: Side(model, _new_optimizer(model, settings)) for name, model in models.items()}


def _new_optimizer(model: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    if settings.optimizer == "adam":
        return torch.optim.Adam(model.parameters(), lr=settings.lr)
    return torch.optim.SGD(model.parameters(), lr=settings.lr, momentum=MOMENTUM * (settings.optimizer == "momentum"))
