"""What the losses of a model of Transformers compare, and the criteria that compare it; needs nothing but torch."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ordered_sgd.criterion import ignore_index
from ordered_sgd.errors import ArgumentError, message
from ordered_sgd.integrations._head import Unprojected, logits_of

IGNORED = -100  # the label that Transformers ignores, whatever the loss


class Compared(NamedTuple):
    """What a criterion compares, which of its losses count (None: all), and how many labels `Trainer` counts."""

    logits: Any
    labels: Tensor
    valid: Tensor | None
    items: Tensor


def wide(logits: Tensor) -> Tensor:
    """The logits in at least single precision."""
    return logits if logits.dtype == torch.float64 else logits.float()


def _there(outputs: Any, labels: Tensor) -> tuple[Any, Tensor, Tensor]:
    """The logits, the labels on the same device, and which of these Transformers does not ignore."""
    logits = logits_of(outputs)
    labels = labels.to(logits.device)
    return wide(logits) if isinstance(logits, Tensor) else logits, labels, labels != IGNORED


def samples(outputs: Any, labels: Tensor, ignored: int) -> Compared:
    """A class for each sample, or labels of the shape of the logits."""
    logits, labels, valid = _there(outputs, labels)
    if labels.is_floating_point() and logits.shape == (*labels.shape, 1):
        logits = logits.squeeze(-1)
    if not labels.is_floating_point():
        labels = labels.masked_fill(~valid, ignored)
        if labels.shape == (len(logits), 1):
            labels, valid = labels.squeeze(1), valid.squeeze(1)
    # labels of more dimensions are not one for each loss
    return Compared(logits, labels, valid if labels.dim() == 1 else None, valid.sum())


def numbers(outputs: Any, labels: Tensor, ignored: int) -> Compared:
    """Numbers for each sample, of the shape of the logits."""
    logits, labels, valid = _there(outputs, labels)
    if logits.shape[1:].numel() == labels.shape[1:].numel() == 1:
        logits, labels = logits.flatten(), labels.flatten()
    _check_shape("be numbers of the shape of the logits", logits, labels)
    return Compared(logits, labels.to(logits.dtype), None, valid.sum())


def every_label(outputs: Any, labels: Tensor, ignored: int) -> Compared:
    """0 or 1 for every class of each sample."""
    logits, labels, valid = _there(outputs, labels)
    _check_shape("be 0 or 1 for every class, of the shape of the logits", logits, labels)
    if not labels.is_floating_point():
        rule, remedy = "be floats for several labels at once", "Convert them with labels.float()."
        raise ArgumentError(message("OrderedLossFunc", "labels", rule, labels.dtype, remedy))
    return Compared(logits, labels.to(logits.dtype), None, valid.sum())


def _check_shape(rule: str, logits: Tensor, labels: Tensor) -> None:
    if logits.shape != labels.shape:
        got = f"shape {tuple(labels.shape)} for logits of shape {tuple(logits.shape)}"
        remedy = "Check num_labels and problem_type in the model's configuration."
        raise ArgumentError(message("OrderedLossFunc", "labels", rule, got, remedy))


def tokens(outputs: Any, labels: Tensor, ignored: int) -> Compared:
    """A class for each token."""
    logits, labels, valid = _there(outputs, labels)
    if isinstance(logits, Tensor):
        logits = logits.transpose(1, 2)  # the classes second, as torch has it
    if not labels.is_floating_point():
        labels = labels.masked_fill(~valid, ignored)
    return Compared(logits, labels, valid, valid.sum())


def next_tokens(outputs: Any, labels: Tensor, ignored: int) -> Compared:
    """For each token the one after it."""
    return tokens(outputs, F.pad(labels, (0, 1), value=IGNORED)[..., 1:], ignored)  # the last predicts nothing


def pixels(outputs: Any, labels: Tensor, ignored: int) -> Compared:
    """A class for each pixel; the logits are enlarged to the size of the labels, as models themselves do it."""
    logits, labels, there = _there(outputs, labels)
    logits = F.interpolate(logits, size=labels.shape[-2:], mode="bilinear", align_corners=False)
    valid = there & (labels != ignored)
    return Compared(logits, labels.masked_fill(~valid, ignored), valid, there.sum())


def spans(outputs: Any, labels: Tensor, ignored: int) -> Compared:
    """Two positions for each sample, shape (s, 2), and the logits of both, (s, T, 2)."""
    names = ("start_logits", "end_logits")
    if isinstance(outputs, dict) and not all(name in outputs for name in names):
        got, remedy = ", ".join(outputs), "Train this kind of model with Trainer."
        raise ArgumentError(message("OrderedLossFunc", "outputs", f"have {' and '.join(names)}", got, remedy))
    start, end = (outputs[name] for name in names) if isinstance(outputs, dict) else outputs[:2]
    length, labels = start.shape[1], labels.to(start.device)
    there = labels != IGNORED
    positions = labels.masked_fill(~there, length).clamp(0, length)  # models themselves ignore what lies beyond
    valid = (positions < length).any(1)
    return Compared(torch.stack((wide(start), wide(end)), 2), positions, valid, there.sum())


class PerSample(nn.Module):
    """Cross-entropy of a class, or of labels that are 0 or 1 each the mean binary cross-entropy."""

    ignore_index = IGNORED

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """One loss per sample."""
        if not labels.is_floating_point():
            return F.cross_entropy(logits, labels, reduction="none")
        if labels.shape != logits.shape or labels.dim() != 2:
            rule, got = "be classes (s,), or 0 and 1 for every class (s, C)", f"{labels.dtype} {tuple(labels.shape)}"
            remedy = 'For numbers pass OrderedLossFunc("regression", ...), or set num_labels=1 in the configuration.'
            raise ArgumentError(message("OrderedLossFunc", "labels", rule, got, remedy))
        return F.binary_cross_entropy_with_logits(logits, labels, reduction="none").mean(1)


class Squares(nn.Module):
    """Squared errors, averaged over the numbers of a sample."""

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """One loss per sample."""
        losses = F.mse_loss(logits, labels, reduction="none")
        return losses if losses.dim() == 1 else losses.flatten(1).mean(1)


class BothEnds(nn.Module):
    """Mean of the cross-entropies of start and end; that of an ignored end is 0."""

    def forward(self, logits: Tensor, positions: Tensor) -> Tensor:
        """One loss per sample."""
        return F.cross_entropy(logits, positions, ignore_index=logits.shape[1], reduction="none").mean(1)


class PerToken(nn.Module):
    """A criterion of (n, C) and (n,) for (s, C, T) and (s, T): flattened, which is faster than by columns."""

    classes_second = True

    def __init__(self, criterion: Any) -> None:
        super().__init__()
        self.criterion = criterion
        self.ignore_index = ignore_index(criterion)

    def forward(self, logits: Tensor | Unprojected, labels: Tensor) -> Tensor:
        """One loss per token."""
        if isinstance(logits, Unprojected):
            return logits.losses(labels, self.ignore_index)
        losses: Tensor = self.criterion(logits.transpose(1, 2).flatten(0, 1), labels.flatten())
        return losses if losses.dim() == 0 else losses.view_as(labels)
