"""Mixup: images mixed in pairs, and labels with them."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from ordered_sgd.errors import ArgumentError, message


class Mixed(NamedTuple):
    """Images mixed in pairs: ``x = weight * image + (1 - weight) * partner``, with the labels of both.

    The loss of a mixed image is ``weight * criterion(outputs, y) + (1 - weight) * criterion(outputs, partner_y)``, or,
    the same for cross-entropy, that of the soft `targets`.
    """

    x: Tensor
    y: Tensor
    partner_y: Tensor
    weight: Tensor  # (s,)

    def targets(self, classes: int) -> Tensor:
        """What a loss of probabilities compares with: mixed one-hot labels (s, classes), or mixed numbers (s,)."""
        if self.y.is_floating_point():
            return self.partner_y + self.weight * (self.y - self.partner_y)
        weight = self.weight[:, None]
        return weight * F.one_hot(self.y, classes) + (1 - weight) * F.one_hot(self.partner_y, classes)


@dataclass(frozen=True)
class Mixup:
    """Images mixed in pairs (Zhang et al., 2017), with one weight a batch from Beta(alpha, alpha).

    Examples
    --------
    >>> x, y = torch.tensor([[0.0], [1.0]]), torch.tensor([0, 1])
    >>> Mixup().apply(x, y, np.array([1, 0]), 0.75).targets(2).tolist()
    [[0.75, 0.25], [0.25, 0.75]]
    """

    alpha: float = 1.0

    def __post_init__(self) -> None:
        if not self.alpha > 0:
            remedy = "Use alpha=1 for weights that are uniform."
            raise ArgumentError(message("Mixup", "alpha", "be positive", self.alpha, remedy))

    def draw(self, s: int, rng: np.random.Generator) -> tuple[NDArray[np.int64], float]:
        """Every image's partner, a permutation, and the weight of the image itself."""
        return rng.permutation(s), rng.beta(self.alpha, self.alpha)

    def apply(self, x: Tensor, y: Tensor, partner: NDArray[np.int64], weight: float) -> Mixed:
        """The mixed images and what their loss needs."""
        rows = torch.from_numpy(partner).to(x.device)
        mixed = torch.lerp(x.index_select(0, rows), x, weight)
        return Mixed(mixed, y, y.index_select(0, rows), x.new_full((len(x),), weight))
