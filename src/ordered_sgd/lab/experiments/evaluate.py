"""What a model is worth: errors and losses over a whole set, in evaluation mode."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from ordered_sgd import theory
from ordered_sgd.diagnostics.calibration import best_temperature, calibration_error, cross_entropy
from ordered_sgd.engines.auto import convolves_channels_last
from ordered_sgd.hinge import multiclass_hinge
from ordered_sgd.lab.data.dataset import Dataset
from ordered_sgd.lab.data.source import Batch
from ordered_sgd.lab.experiments.epoch import EpochRow
from ordered_sgd.lab.experiments.judged import MOST, of_classes, of_regression
from ordered_sgd.lab.experiments.spec import Loss

AT_ONCE = 128  # samples: what a convolution makes of more does not stay in the processor's caches


class Scores(NamedTuple):
    """Of every sample: class scores (n, classes) or what is predicted (n, 1), loss (n,), label or target (n,)."""

    scores: NDArray[np.float32]
    losses: NDArray[np.float32]
    y: NDArray[Any]

    @property
    def error(self) -> float:
        """Share of wrong answers in percent; of a regression that of the variance which is not explained."""
        if self.y.dtype.kind == "f":
            return 100 * (1 - of_regression(self.scores[:, 0], self.y)[0])
        return 100 * float((self.scores.argmax(axis=1) != self.y).mean())


def batches(source: Iterable[Batch], model: nn.Module) -> Iterator[Batch]:
    """The batches of a source, with images laid out channels-last if the model's convolutions are: faster on a CPU."""
    convolves = convolves_channels_last(model)
    for x, y, indices in source:
        yield Batch(x.to(memory_format=torch.channels_last) if convolves and x.dim() == 4 else x, y, indices)


@torch.no_grad()
def scores_of(model: nn.Module, source: Iterable[Batch], criterion: Callable[[Tensor, Tensor], Tensor]) -> Scores:
    """Scores and losses of all samples of a source; the model's mode is put back."""
    was_training = model.training
    model.eval()
    try:
        cut = ((x.split(AT_ONCE), y.split(AT_ONCE)) for x, y, _ in batches(source, model))
        pieces = (piece for parts in cut for piece in zip(*parts, strict=True))
        found = [(outputs := model(x), criterion(outputs, y), y) for x, y in pieces]
    finally:
        model.train(was_training)
    outputs, losses, y = (torch.cat(part).cpu() for part in zip(*found, strict=True))
    columns = outputs.reshape(len(y), -1) if y.is_floating_point() else two_columns(outputs)
    return Scores(columns.numpy(), losses.numpy(), y.numpy())


def two_columns(outputs: Tensor) -> Tensor:
    """Class scores (n, classes); one score a of a binary classifier stands for (0, a)."""
    return torch.stack([torch.zeros_like(outputs), outputs], dim=1) if outputs.dim() == 1 else outputs


def measured(row: EpochRow, sums: Mapping[str, float], train: Scores | None, test: Scores, *, s: int) -> EpochRow:
    """The row of an epoch with its numbers, from sums over batches of s and the scores of both sets at its end."""
    predicts = test.y.dtype.kind == "f"
    return replace(
        row,
        seconds=sums["seconds"],
        cpu_seconds=sums["cpu_seconds"],
        samples=round(sums["samples"]),
        backpropagated=round(sums["backpropagated"]),
        running_loss=sums["loss"] / sums["samples"],
        running_ordered_loss=sums["ordered_loss"] / sums["backpropagated"],
        train_loss=None if train is None else float(train.losses.mean(dtype="float64")),
        ordered_risk=None if train is None else theory.ordered_risk(train.losses, s, row.q),
        test_error=test.error,
        test_loss=float(test.losses.mean(dtype="float64")),
        test_cross_entropy=None if predicts else cross_entropy(test.scores, test.y),
        test_cross_entropy_scaled=None if predicts else scaled_cross_entropy(test),
        calibration_error=None if predicts else calibration_error(test.scores, test.y),
        scored=round(sums["scored"]) if "scored" in sums else None,
        recall=sums["found"] / sums["measured"] if sums.get("measured") else None,
        compile_seconds=sums.get("compile_seconds") or None,
    )


def judged(row: EpochRow, test: Scores, data: Dataset) -> EpochRow:
    """The row with what a regression is judged by, or the classes of a table."""
    if not data.classes:
        r2, mae = of_regression(test.scores[:, 0], test.y)
        return replace(row, r2=r2, mae=mae * data.scale[1])
    if data.table is None or len(data.classes) > MOST:
        return row
    found = of_classes(test.scores, test.y)
    return replace(row, balanced_accuracy=found.balanced_accuracy, recalls=found.text, auc=found.auc)


def scaled_cross_entropy(scored: Scores) -> float | None:
    """Cross-entropy with a temperature that was fitted on the other half of the set: even on odd samples, and back."""
    scores, y = scored.scores, scored.y
    if len(y) < 2:
        return None
    halves = [(scores[i::2], y[i::2]) for i in (0, 1)]
    parts = [
        cross_entropy(*judged, temperature=best_temperature(*fitted)) * len(judged[1])
        for judged, fitted in (halves, halves[::-1])
    ]
    return sum(parts) / len(y)


def criterion_for(
    loss: Loss, *, mixed: bool = False, weights: Tensor | None = None
) -> Callable[[Tensor, Tensor], Tensor]:
    """The per-sample loss of a spec.

    `mixed` labels are shares of every class, as mixup gives them; `weights` of the classes multiply the losses.
    """
    if mixed:
        return mixed_loss
    if weights is None:
        return _CRITERIA[loss]
    plain = _CRITERIA[loss]

    def weighted(outputs: Tensor, y: Tensor) -> Tensor:
        return plain(outputs, y) * weights.to(y.device)[y]

    return weighted


def mixed_loss(outputs: Tensor, shares: Tensor) -> Tensor:
    """Binary cross-entropy of the softmax against shares or labels, mean over classes (Verma et al., 2019)."""
    if shares.dim() == 1:
        shares = F.one_hot(shares, outputs.shape[1]).to(outputs.dtype)
    return F.binary_cross_entropy(outputs.softmax(1), shares, reduction="none").mean(1)


def _cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(outputs, y, reduction="none")


def _mean_hinge(outputs: Tensor, y: Tensor) -> Tensor:
    return F.multi_margin_loss(outputs, y, reduction="none")


def _binary(outputs: Tensor, y: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(outputs, y.to(outputs.dtype), reduction="none")


def _squared(outputs: Tensor, y: Tensor) -> Tensor:
    return (outputs.reshape(y.shape) - y).square() / 2


_CRITERIA: dict[Loss, Callable[[Tensor, Tensor], Tensor]] = {
    "cross-entropy": _cross_entropy,
    "hinge-sum": multiclass_hinge,
    "hinge-mean": _mean_hinge,
    "binary": _binary,
    "squared": _squared,
}
