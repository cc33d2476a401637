"""A short training: how fast accuracy rises, how concentrated losses are, how well old ones predict new ones."""

import itertools
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ordered_sgd.diagnostics.suspects import find_suspects
from ordered_sgd.errors import ArgumentError, NonFiniteLossError, message
from ordered_sgd.lab.advise.candidate import Candidate
from ordered_sgd.lab.advise.steps import levels
from ordered_sgd.lab.bench.opponents import call
from ordered_sgd.rules import AccuracyRule
from ordered_sgd.step import OrderedStep

LOOKS = 6  # at the held batches, evenly over the warm-up
MOST_EPOCHS = 5
_PARTS = 12  # of an epoch, whose accuracies make the curve


@dataclass(frozen=True)
class WarmUp:
    """What a short training under the paper's rule showed; under a full q where the rule has no accuracy.

    Parameters
    ----------
    steps, per_epoch
        Steps taken, and those of a whole epoch.
    seconds
        Of a step while q kept the whole batch, the median.
    loading
        Seconds in which the loader alone yields a batch, the mean.
    curve
        Pairs of a step and the training accuracy around it.
    carried
        By q: the share of a batch's loss that its q largest losses carry, at the end.
    remembered
        By q: the share of a batch's q largest losses that are among the q largest by the losses of the look before.
    apart
        Steps between two looks.
    suspects
        How many of the samples looked at have losses that stand apart from their class over all looks.
    looked_at
        Samples that were looked at.
    """

    steps: int
    per_epoch: int
    seconds: float
    loading: float
    curve: tuple[tuple[float, float], ...]
    carried: dict[int, float]
    remembered: dict[int, float]
    apart: int
    suspects: int
    looked_at: int

    @property
    def epochs(self) -> float:
        """Epochs that were trained."""
        return self.steps / self.per_epoch

    @property
    def accuracy(self) -> float | None:
        """The last training accuracy."""
        return self.curve[-1][1] if self.curve else None


@dataclass
class _Seen:
    """What is collected while training."""

    steps: int = 0
    per_epoch: int | None = None
    whole: list[float] = field(default_factory=list)  # seconds of steps at the full q
    right: list[tuple[int, float, int]] = field(default_factory=list)  # step, right answers, samples
    looks: list[tuple[int, NDArray[np.float64]]] = field(default_factory=list)


def warm_up(candidate: Candidate, *, seconds: float, tick: Callable[[float], object]) -> WarmUp:
    """Train a copy for about so many seconds, at most a few epochs; `tick` is told the share done."""
    seen, model = _Seen(per_epoch=length(candidate.loader)), candidate.copy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a rule that cannot move is what is to be found out
        try:
            _train(candidate, model, seen, seconds, tick)
        except NonFiniteLossError as error:
            got, remedy = f"nan or inf after {seen.steps:,} steps", "Lower the learning rate."
            raise ArgumentError(message("advise", "losses", "stay finite in the training", got, remedy)) from error
    if len(seen.looks) < 2:
        seen.looks.append((seen.steps, _losses(candidate, model)))
    if seen.per_epoch is None:
        got, remedy = f"more than {seen.steps:,} batches", "Give the loader a length, or pass a list of batches."
        raise ArgumentError(message("advise", "an epoch", "end while it is looked at, or have a length", got, remedy))
    y = torch.cat([y for _, y in candidate.held]).cpu().numpy()
    mean = np.mean([losses for _, losses in seen.looks], axis=0).reshape(-1)
    suspects = len(find_suspects(mean, y).indices) if candidate.countable else 0
    steps = [step for step, _ in seen.looks]
    return WarmUp(
        steps=seen.steps,
        per_epoch=seen.per_epoch,
        seconds=float(np.median(seen.whole)),
        loading=loading_seconds(candidate),
        curve=_curve(seen.right, seen.per_epoch),
        carried=carried(seen.looks[-1][1], levels(candidate.s)),
        remembered=_remembered(seen.looks, levels(candidate.s)),
        apart=int(np.median(np.diff(steps))) if len(steps) > 1 else 0,
        suspects=suspects,
        looked_at=mean.size,
    )


def _train(
    candidate: Candidate, model: nn.Module, seen: _Seen, seconds: float, tick: Callable[[float], object]
) -> None:
    q = AccuracyRule() if candidate.countable else 1.0
    step = OrderedStep(model, candidate.criterion, candidate.make_optimizer(model), q=q, engine="dense")
    started, looked = time.perf_counter(), 0
    for _ in range(MOST_EPOCHS):
        first = seen.steps
        for x, y in candidate.epoch():
            begun = time.perf_counter()
            record = step(x, y)
            if record.correct is not None:
                seen.right.append((seen.steps, float(record.correct), len(y)))
            if len(y) == candidate.s and record.q == candidate.s:
                seen.whole.append(time.perf_counter() - begun)
            seen.steps += 1
            done = (time.perf_counter() - started) / seconds
            if seen.per_epoch is not None:
                done = max(done, seen.steps / (MOST_EPOCHS * seen.per_epoch))
            if done * LOOKS >= looked + 1:
                seen.looks.append((seen.steps, _losses(candidate, model)))
                looked = int(done * LOOKS)
                tick(min(1.0, done))
            if done >= 1:
                return
        seen.per_epoch = seen.steps - first
        step.end_epoch()


def loading_seconds(candidate: Candidate, *, batches: int = 100, seconds: float = 3.0) -> float:
    """Seconds in which the loader yields a batch when nobody trains, its start left out."""
    yielded, start = 0, 0.0
    for yielded, _ in enumerate(candidate.epoch()):
        start = start or time.perf_counter()
        if yielded == batches or time.perf_counter() - start > seconds:
            break
    return (time.perf_counter() - start) / max(1, yielded)


def length(loader: Iterable[Any]) -> int | None:
    """Batches of an epoch, if the loader knows."""
    try:
        return len(loader)  # type: ignore[arg-type]
    except TypeError:
        return None


@torch.no_grad()
def _losses(candidate: Candidate, model: nn.Module) -> NDArray[np.float64]:
    """Losses of the held batches in evaluation mode, one row for each batch."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        rows = [candidate.criterion(call(model, x), y).double().cpu().numpy() for x, y in candidate.held]
    finally:
        for module, training in modes.items():
            module.training = training
    return np.stack(rows)


def carried(losses: NDArray[np.float64], qs: Sequence[int]) -> dict[int, float]:
    """By q: the share of a batch's loss that its q largest losses carry, the mean over batches.

    >>> carried(np.array([[3.0, 1.0, 0.0, 0.0]]), [1, 2])
    {1: 0.75, 2: 1.0}
    """
    ordered = -np.sort(-losses, axis=1)
    shares = ordered.cumsum(axis=1) / np.maximum(ordered.sum(axis=1, keepdims=True), 1e-300)
    return {q: float(shares[:, q - 1].mean()) for q in qs}


def found_again(before: NDArray[np.float64], now: NDArray[np.float64], q: int) -> float:
    """The share of the q largest losses of each batch that are among the q largest of those before.

    >>> found_again(np.array([[4.0, 3.0, 2.0, 1.0]]), np.array([[4.0, 1.0, 2.0, 3.0]]), 2)
    0.5
    """
    old, new = (np.argsort(-losses, axis=1, kind="stable")[:, :q] for losses in (before, now))
    return float(np.mean([len(np.intersect1d(a, b)) / q for a, b in zip(old, new, strict=True)]))


def _remembered(looks: Sequence[tuple[int, NDArray[np.float64]]], qs: Sequence[int]) -> dict[int, float]:
    """As `found_again`, the mean over pairs of looks in the second half, when the training has settled."""
    pairs = list(itertools.pairwise(looks))[-max(1, len(looks) // 2) :]
    return {q: float(np.mean([found_again(a, b, q) for (_, a), (_, b) in pairs])) for q in qs}


def _curve(right: Sequence[tuple[int, float, int]], per_epoch: int) -> tuple[tuple[float, float], ...]:
    """Training accuracy in parts of an epoch: at its middle step, the share of right answers."""
    size = max(1, per_epoch // _PARTS)
    parts = [right[start : start + size] for start in range(0, len(right), size)]
    return tuple(
        (float(np.mean([at for at, _, _ in part])) + 0.5, sum(r for _, r, _ in part) / sum(n for _, _, n in part))
        for part in parts
    )
