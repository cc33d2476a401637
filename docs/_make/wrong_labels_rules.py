"""Rules that set trim and q of `wrong_labels.py` without being told which share of the labels is wrong.

A rule is asked before every epoch for `trim` and q, and before every step for the scores by which the batch is ordered.
"""

from typing import Protocol

import torch
from torch import Tensor, nn

MOST, RAMP = 0.5, 10  # the largest trim, and the epochs over which it grows


class Rule(Protocol):
    """What sets trim and q, an epoch at a time."""

    share: float | None

    def before(self, epoch: int) -> tuple[float, float]:
        """`trim` and q of an epoch, both shares of the batch."""

    def scores(self, losses: Tensor, labels: Tensor) -> Tensor:
        """What a batch is ordered by: the losses, or something else of their shape."""

    def after(self, probabilities: Tensor, labels: Tensor) -> None:
        """Take the probabilities (n, C) that the samples had when they were trained on in the epoch that ends."""


class Fixed:
    """The same q in every epoch, and a trim that grows to its value over ten of them."""

    def __init__(self, trim: float, q: float) -> None:
        self.trim, self.q = trim, q
        self.share: float | None = None

    def before(self, epoch: int) -> tuple[float, float]:
        """`trim` and q of an epoch."""
        return self.trim * min(1.0, epoch / RAMP), self.q

    def scores(self, losses: Tensor, labels: Tensor) -> Tensor:
        """The losses."""
        return losses

    def after(self, probabilities: Tensor, labels: Tensor) -> None:
        """Nothing."""


def suspects(probabilities: Tensor, labels: Tensor) -> Tensor:
    """The samples that a model assigns to another class with confidence, as booleans (n,).

    A sample counts if another class is as probable as that class is on the average for its own samples: the confident
    joint of Northcutt, Jiang and Chuang, "Confident Learning", JAIR 2021. Probabilities (n, C), labels (n,).
    """
    own = nn.functional.one_hot(labels, probabilities.shape[1]).to(probabilities)
    expected = (own * probabilities).sum(0) / own.sum(0).clamp(min=1)
    confident = torch.where(probabilities >= expected, probabilities, 0.0)
    return (confident.amax(1) > 0) & (confident.argmax(1) != labels)


class WatchedTrim:
    """trim and q from what an epoch showed: nothing is dropped until the training error has stopped falling fast.

    Then the share of `suspects` in that epoch is taken for good, since later the model learns the wrong labels by
    heart, and a little more of it is dropped, over some epochs; all the rest is kept.
    """

    LEAST, RAMP, MORE, NOTICED = 0.05, 5, 1.2, 0.03

    def __init__(self) -> None:
        self.error, self.epochs = 1.0, 0
        self.share: float | None = None
        self.since = 0  # epochs since the share was found

    def before(self, epoch: int) -> tuple[float, float]:
        """`trim` and q of an epoch."""
        if self.share is None:
            return 0.0, 1.0
        trim = min(MOST, self.MORE * self.share) * min(1.0, self.since / self.RAMP)
        return trim, 1 - trim

    def scores(self, losses: Tensor, labels: Tensor) -> Tensor:
        """The losses."""
        return losses

    def after(self, probabilities: Tensor, labels: Tensor) -> None:
        """Look for the epoch that shows the share, and count the epochs since."""
        self.epochs += 1
        before, self.error = self.error, float((probabilities.argmax(1) != labels).float().mean())
        if self.share is None:
            if self.epochs < 3 or before - self.error >= self.LEAST:
                return
            found = float(suspects(probabilities, labels).float().mean())
            self.share = found if found > self.NOTICED else 0.0
        self.since += 1


class HeldOutTrim:
    """trim and q from predictions for samples that a model was not trained on, made before the training proper.

    `trim` is the share of `suspects` among these predictions. q is half the batch if the model is right about nine in
    ten of the samples that are no suspects, and all that is not trimmed otherwise. Both are reached over ten epochs.
    Within a batch, samples are ordered by their loss minus half the median loss of their label in the last epoch. If
    they are ordered by the loss alone, a class that is learned late can be trimmed as a whole and is never learned.
    """

    GOOD, Q = 0.1, 0.5  # error on samples that are no suspects below which q shrinks, and the share that it shrinks to
    RELATIVE = 0.5  # share of the median that is subtracted

    def __init__(self, held_out: Tensor, labels: Tensor) -> None:
        suspect = suspects(held_out, labels)
        self.share: float | None = float(suspect.float().mean())
        self.trim = min(MOST, self.share)
        error = float((held_out.argmax(1) != labels)[~suspect].float().mean())
        self.q = self.Q if error < self.GOOD else 1.0
        self.typical = torch.zeros(held_out.shape[1])

    def before(self, epoch: int) -> tuple[float, float]:
        """`trim` and q of an epoch."""
        ramp = min(1.0, epoch / RAMP)
        return self.trim * ramp, 1 - (1 - self.q) * ramp

    def scores(self, losses: Tensor, labels: Tensor) -> Tensor:
        """The losses minus half the median of their labels."""
        return losses - self.RELATIVE * self.typical[labels]

    def after(self, probabilities: Tensor, labels: Tensor) -> None:
        """Take the median loss of each label."""
        losses = -probabilities[torch.arange(len(labels)), labels].clamp(min=1e-30).log()
        for label in range(len(self.typical)):
            own = losses[labels == label]
            self.typical[label] = own.median() if len(own) else 0.0
