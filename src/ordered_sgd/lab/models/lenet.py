"""LeNet: two convolutions and two fully connected layers."""

from torch import Tensor, nn

from ordered_sgd.errors import ArgumentError, message


class LeNet(nn.Module):
    """Class scores of small images, shape (s, classes): twice conv, max-pool, ReLU; two fully connected layers.

    The paper's text and its authors' published scripts differ. The defaults are the text's; the scripts have
    ``hidden=1024, dropout=0.5``.

    Parameters
    ----------
    classes : int, default=10
        Number of classes.
    size : int, default=28
        Side of the square images: 28 for MNIST and its variants, 16 for Semeion.
    channels : int, default=1
        Channels of the images.
    hidden : int, default=1014
        Units of the first fully connected layer.
    dropout : float, default=0.0
        Share of these units dropped in training.

    Examples
    --------
    >>> import torch
    >>> LeNet()(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    >>> sum(p.numel() for p in LeNet(hidden=1024, dropout=0.5).parameters())
    1163978
    """

    def __init__(
        self, classes: int = 10, *, size: int = 28, channels: int = 1, hidden: int = 1014, dropout: float = 0.0
    ) -> None:
        super().__init__()
        side = ((size - 4) // 2 - 4) // 2  # a 5x5 convolution without padding takes 4, the pooling halves; twice
        if side < 1:
            remedy = "Pad or enlarge the images."
            raise ArgumentError(message("LeNet", "size", "be at least 16", size, remedy))
        self.features = nn.Sequential(
            nn.Conv2d(channels, 64, kernel_size=5),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(64, 64, kernel_size=5),
            nn.MaxPool2d(2),
            nn.ReLU(),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Linear(64 * side * side, hidden),
            nn.ReLU(),
            nn.Dropout(dropout) if dropout > 0 else nn.Identity(),
            nn.Linear(hidden, classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Scores (s, classes) of images (s, channels, size, size)."""
        scores: Tensor = self.classifier(self.features(x))
        return scores
