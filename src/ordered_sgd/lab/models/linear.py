"""The linear model: logistic regression with cross-entropy, a support vector machine with the multiclass hinge."""

from torch import Tensor, nn


class LinearModel(nn.Module):
    """Class scores a = W x + b, shape (s, classes), of samples of any shape, flattened to vectors.

    The loss decides its name: with `torch.nn.functional.cross_entropy` it is the paper's "logistic model" (multinomial
    logistic regression), with `ordered_sgd.multiclass_hinge` its "SVM".

    Parameters
    ----------
    features : int
        Numbers in a sample: 784 for MNIST and its variants, 256 for Semeion.
    classes : int, default=10
        Number of classes.

    Examples
    --------
    >>> import torch
    >>> LinearModel(784)(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    >>> sum(p.numel() for p in LinearModel(784).parameters())
    7850
    """

    def __init__(self, features: int, classes: int = 10) -> None:
        super().__init__()
        self.classifier = nn.Linear(features, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Scores (s, classes) of samples (s, ...) with `features` numbers each."""
        scores: Tensor = self.classifier(x.flatten(1))
        return scores
