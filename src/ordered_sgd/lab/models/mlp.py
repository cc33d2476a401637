"""A small multilayer perceptron, for tables whose classes no plane divides."""

import itertools

from torch import Tensor, nn


class MLP(nn.Module):
    """Fully connected layers with ReLU between them; the input is flattened.

    Parameters
    ----------
    features : int
        Numbers in a sample.
    classes : int, default=10
        Number of classes; 1 for a regression.
    hidden : int, default=64
        Units of each hidden layer.
    depth : int, default=2
        Hidden layers.

    Examples
    --------
    >>> import torch
    >>> MLP(13, 3)(torch.zeros(2, 13)).shape
    torch.Size([2, 3])
    >>> sum(p.numel() for p in MLP(13, 3).parameters())  # 14 * 64 + 65 * 64 + 65 * 3
    5251
    """

    def __init__(self, features: int, classes: int = 10, hidden: int = 64, depth: int = 2) -> None:
        super().__init__()
        widths = [features, *[hidden] * depth]
        layers = [part for a, b in itertools.pairwise(widths) for part in (nn.Linear(a, b), nn.ReLU())]
        self.features = nn.Sequential(nn.Flatten(), *layers)
        self.classifier = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        """Scores (s, classes) of samples (s, ...) with `features` numbers each."""
        scores: Tensor = self.classifier(self.features(x))
        return scores
