"""`SelectionTracker`: how often samples were seen and kept, and how their losses developed."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ordered_sgd.diagnostics.arrays import as_array
from ordered_sgd.diagnostics.suspects import Suspects, find_suspects
from ordered_sgd.diagnostics.table import write_table
from ordered_sgd.errors import ArgumentError, message, require

if TYPE_CHECKING:
    from ordered_sgd.record import StepRecord

LEVELS = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)  # quantiles of the losses that are kept for every epoch

_WHERE = "SelectionTracker"
_MOST = 256  # steps that may wait on an accelerator until their numbers are read in one go
_STATE = ("seen", "chosen", "now", "times", "epochs", "mean", "squares")


class ClassShare(NamedTuple):
    """How often the samples of a class were kept.

    Attributes
    ----------
    name : str
        Name of the class.
    seen : float
        Share of the class among the samples seen.
    chosen : float
        Share of the class among the samples kept.
    ratio : float
        ``chosen / seen``.
    """

    name: str
    seen: float
    chosen: float
    ratio: float


class DataMap(NamedTuple):
    """Loss of each sample over epochs; NaN for a sample that was not seen.

    Attributes
    ----------
    mean : ndarray of shape (n,)
        Mean of the loss.
    spread : ndarray of shape (n,)
        Standard deviation of the loss.
    """

    mean: NDArray[np.float64]
    spread: NDArray[np.float64]


class SelectionTracker:
    """Records which samples are kept and how their losses develop: ``tracker.update(indices, record)`` after each step.

    It costs a few array operations per step and 56 bytes per sample. It does not wait for an accelerator: the numbers
    are read after a few hundred steps, at the end of an epoch, or when a result is requested. With several ranks, each
    rank has its own tracker.

    Parameters
    ----------
    n : int
        Number of samples in the training set.
    y : array_like of shape (n,) or None, default=None
        Class numbers; needed for `class_shares`, and for suspects relative to their class.
    classes : sequence of str or None, default=None
        Names of the classes; None uses their numbers.

    Examples
    --------
    >>> tracker = SelectionTracker(4, y=[0, 0, 1, 1], classes=("cat", "dog"))
    >>> for losses in ([0.1, 0.2, 0.9, 0.4], [0.1, 0.4, 0.7, 0.4]):
    ...     tracker.update([0, 1, 2, 3], losses, rows=[2])
    ...     tracker.end_epoch()
    >>> tracker.chosen.tolist(), tracker.saved
    ([0, 0, 2, 0], 0.75)
    >>> tracker.class_shares()[1]
    ClassShare(name='dog', seen=0.5, chosen=1.0, ratio=2.0)
    >>> tracker.data_map().mean.round(2).tolist()
    [0.1, 0.3, 0.8, 0.4]
    """

    def __init__(self, n: int, *, y: ArrayLike | None = None, classes: Sequence[str] | None = None) -> None:
        if n < 1:
            raise ArgumentError(message(_WHERE, "n", "be at least 1", n, "Pass the size of the training set."))
        self.n = n
        self.y = None if y is None else _checked_labels(n, as_array(y))
        self.classes = _names(self.y, classes)
        self.epoch = 0  # epochs that have ended
        self.nonfinite = 0  # losses that were NaN or infinite: their samples are seen, the losses left out
        self._seen, self._chosen = np.zeros(n, np.int64), np.zeros(n, np.int64)
        self._now, self._times = np.zeros(n), np.zeros(n, np.int64)  # sum and number of a sample's losses in this epoch
        self._epochs, self._mean, self._squares = np.zeros(n, np.int64), np.zeros(n), np.zeros(n)  # Welford's sums
        self._quantiles: list[list[float]] = []
        self._waiting: list[tuple[Any, Any, Any, Any]] = []

    def update(self, indices: Any, losses: "StepRecord | Any", rows: Any = None) -> None:
        """Record a step. Arrays may be NumPy arrays, or tensors on any device.

        Parameters
        ----------
        indices : array_like of shape (s,)
            Positions of the batch's samples in the training set. A sample may occur twice.
        losses : StepRecord or array_like of shape (s,)
            The record of the step, or its losses. A loss that is not finite is left out, as is one that was remembered
            and not computed (``engine="memory"``); the sample still counts as seen.
        rows : array_like or None, default=None
            Positions in the batch that were kept, if `losses` is not a record; None means all.
        """
        record: Any = losses
        scored = None
        if hasattr(record, "rows"):
            losses, rows, scored = record.losses, record.rows, record.scored
        if _reads_are_free(losses):
            self._catch_up()
            self._add(indices, losses, rows, scored)
            return
        self._waiting.append((indices, losses, rows, scored))
        if len(self._waiting) >= _MOST:
            self._catch_up()

    def end_epoch(self) -> None:
        """End the epoch, adding the mean loss of each sample in it to the data map."""
        self._catch_up()
        here = np.flatnonzero(self._times)
        losses = self._now[here] / self._times[here]
        self._epochs[here] += 1
        step = losses - self._mean[here]
        self._mean[here] += step / self._epochs[here]
        self._squares[here] += step * (losses - self._mean[here])
        self._quantiles.append(np.quantile(losses, LEVELS).tolist() if len(here) else [float("nan")] * len(LEVELS))
        self._now[:], self._times[:] = 0, 0
        self.epoch += 1

    @property
    def seen(self) -> NDArray[np.int64]:
        """How often each sample was in a batch, shape (n,)."""
        self._catch_up()
        return self._seen.copy()

    @property
    def chosen(self) -> NDArray[np.int64]:
        """How often each sample was kept, shape (n,)."""
        self._catch_up()
        return self._chosen.copy()

    @property
    def saved(self) -> float:
        """Share of the samples seen that were not back-propagated; NaN if none were seen."""
        seen = self.seen.sum()
        return float(1 - self.chosen.sum() / seen) if seen else float("nan")

    @property
    def loss_quantiles(self) -> NDArray[np.float64]:
        """The quantiles `LEVELS` of the losses in each finished epoch, shape (epochs, levels)."""
        return np.array(self._quantiles).reshape(-1, len(LEVELS))

    def class_shares(self) -> list[ClassShare]:
        """Share of each class among the samples seen and among those kept."""
        if self.y is None:
            remedy = "Build the tracker with y=, the labels of the training set."
            raise ArgumentError(message(f"{_WHERE}.class_shares", "y", "be given", "no labels", remedy))
        shares = []
        for counts in (self.seen, self.chosen):
            by_class = np.bincount(self.y, weights=counts, minlength=len(self.classes))
            shares.append(by_class / max(1, counts.sum()))
        with np.errstate(invalid="ignore"):  # a class that was not seen has no ratio
            ratios = shares[1] / shares[0]
        columns = (part.tolist() for part in (*shares, ratios))
        return [ClassShare(name, *numbers) for name, *numbers in zip(self.classes, *columns, strict=True)]

    def data_map(self) -> DataMap:
        """Mean and spread of each sample's loss over the finished epochs."""
        with np.errstate(invalid="ignore"):  # 0 / 0 is NaN: not seen
            spread = np.sqrt(self._squares / self._epochs)
        return DataMap(np.where(self._epochs > 0, self._mean, np.nan), spread)

    def hardest(self, count: int = 20) -> NDArray[np.int64]:
        """The samples with the largest mean losses, the largest first; fewer if fewer were seen."""
        mean = self.data_map().mean
        return np.argsort(-mean, kind="stable")[: min(count, int(np.isfinite(mean).sum()))]

    def suspects(self) -> Suspects:
        """Samples whose label may be wrong, the most suspicious first; see `find_suspects`."""
        return find_suspects(self.data_map().mean, self.y)

    def columns(self) -> dict[str, NDArray[Any]]:
        """All values per sample by name, each of shape (n,); the class only if `y` was given."""
        mean, spread = self.data_map()
        suspicion, suspect = self.suspects().suspicion, np.zeros(self.n, np.bool_)
        suspect[self.suspects().indices] = True
        labels = {} if self.y is None else {"class": np.array(self.classes)[self.y]}
        counts = {"index": np.arange(self.n), **labels, "seen": self.seen, "chosen": self.chosen}
        return counts | {"mean_loss": mean, "spread": spread, "suspicion": suspicion, "suspect": suspect}

    def to_frame(self) -> Any:
        """`columns` as a pandas data frame; needs pandas."""
        frame = require("pandas", extra="pandas", where=f"{_WHERE}.to_frame").DataFrame(self.columns())
        return frame.set_index("index")

    def to_csv(self, path: str | Path) -> None:
        """Write `columns` as a CSV file."""
        write_table(path, self.columns())

    def state_dict(self) -> dict[str, Any]:
        """The state as tensors and numbers, which ``torch.load(..., weights_only=True)`` can read."""
        import torch

        self._catch_up()
        arrays = {name: torch.from_numpy(getattr(self, f"_{name}").copy()) for name in _STATE}
        quantiles = torch.tensor(self._quantiles, dtype=torch.float64).reshape(-1, len(LEVELS))
        return {"n": self.n, "epoch": self.epoch, "nonfinite": self.nonfinite, "quantiles": quantiles, **arrays}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`, replacing everything recorded so far."""
        if int(state["n"]) != self.n:
            remedy = f"Build the tracker with n={int(state['n'])}."
            raise ArgumentError(message(_WHERE, "n", f"be {int(state['n'])} as in the saved state", self.n, remedy))
        for name in _STATE:
            getattr(self, f"_{name}")[:] = as_array(state[name])
        self._quantiles = as_array(state["quantiles"]).tolist()
        self.epoch, self.nonfinite = int(state["epoch"]), int(state["nonfinite"])
        self._waiting = []

    def _catch_up(self) -> None:
        """Read the steps that are still on an accelerator."""
        waiting, self._waiting = self._waiting, []
        for step in waiting:
            self._add(*step)

    def _add(self, indices: Any, losses: Any, rows: Any, scored: Any) -> None:
        where, values = _positions(indices), as_array(losses)
        kept = None if rows is None else _positions(rows)
        _check_step(self.n, where, values, kept)
        np.add.at(self._seen, where, 1)  # not += 1: a sample may be in a batch twice
        np.add.at(self._chosen, where if kept is None else where[kept], 1)
        if scored is not None:
            where, values = where[_positions(scored)], values[_positions(scored)]
        if not np.isfinite(values).all():
            finite = np.isfinite(values)
            self.nonfinite += int(len(values) - finite.sum())
            where, values = where[finite], values[finite]
        np.add.at(self._now, where, values)
        np.add.at(self._times, where, 1)


def _reads_are_free(losses: Any) -> bool:
    """Whether the losses can be read without waiting for an accelerator."""
    return bool(getattr(losses, "is_cpu", True))


def _positions(values: Any) -> NDArray[Any]:
    found = as_array(values)
    return found if found.size else found.astype(np.int64)  # NumPy makes floats of an empty list


def _check_step(n: int, indices: NDArray[Any], losses: NDArray[Any], rows: NDArray[Any] | None) -> None:
    """Raise one clear error if the arrays of a step do not fit together."""
    if indices.ndim != 1 or losses.shape != indices.shape:
        got = f"shapes {indices.shape} and {losses.shape}"
        remedy = "Pass one loss per sample: tokens or pixels are averaged over their sample first."
        raise ArgumentError(message(_WHERE, "indices and losses", "both have shape (s,)", got, remedy))
    _check_positions("indices", indices, n, "Pass positions in the training set.")
    if rows is not None:
        _check_positions("rows", rows, len(indices), "Pass the positions in the batch that were kept.")


def _check_positions(name: str, positions: NDArray[Any], below: int, remedy: str) -> None:
    if positions.ndim != 1 or positions.dtype.kind not in "iu":
        got = f"{positions.dtype} of shape {positions.shape}"
        raise ArgumentError(message(_WHERE, name, "be integers in one dimension", got, remedy))
    if len(positions) and not 0 <= positions.min() <= positions.max() < below:
        got = f"{positions.min()} to {positions.max()}"
        raise ArgumentError(message(_WHERE, name, f"be at least 0 and below {below}", got, remedy))


def _checked_labels(n: int, y: NDArray[Any]) -> NDArray[np.int64]:
    if y.shape != (n,) or y.dtype.kind not in "iu" or y.min() < 0:
        got = f"{y.dtype} of shape {y.shape}"
        remedy = "Number the classes 0, 1, ...; leave y out for a regression."
        raise ArgumentError(message(_WHERE, "y", f"be {n} class numbers of at least 0", got, remedy))
    return y.astype(np.int64)


def _names(y: NDArray[np.int64] | None, classes: Sequence[str] | None) -> tuple[str, ...]:
    """Names of the classes, or their numbers if no names are given."""
    if y is None:
        return ()
    needed = int(y.max()) + 1
    if classes is None:
        return tuple(map(str, range(needed)))
    if len(classes) < needed:
        remedy = "Name every class, or leave classes out."
        raise ArgumentError(message(_WHERE, "classes", f"be at least {needed} names", len(classes), remedy))
    return tuple(classes)
