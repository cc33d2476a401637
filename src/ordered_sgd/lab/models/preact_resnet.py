"""PreActResNet18: the 18-layer residual network whose blocks normalize and activate before they convolve."""

import math
from typing import Literal

from torch import Tensor, nn

from ordered_sgd.errors import ArgumentError, check_choice, message

Norm = Literal["batch", "group"]

_GROUPS = 32  # of GroupNorm, as in its paper (Wu & He, 2018); fewer where a narrow layer does not divide


class PreActResNet18(nn.Module):
    """Class scores of images, shape (s, classes): a 3x3 stem, four stages of two blocks, mean over pixels, linear.

    Stages have 64, 128, 256 and 512 channels; each but the first halves the image. As in the scripts of the paper's
    authors, there is no normalization after the last block, and a block that changes the shape has a plain 1x1
    convolution of the activated input as shortcut.

    Parameters
    ----------
    classes : int, default=10
        Number of classes.
    channels : int, default=3
        Channels of the images, whose sides are multiples of 8.
    norm : {"batch", "group"}, default="batch"
        ``"batch"`` as in the paper, or ``"group"``, which keeps the samples of a batch independent.
    width : float, default=1.0
        Multiplier of the channels of every stage.

    Examples
    --------
    >>> import torch
    >>> PreActResNet18(width=0.125)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    >>> sum(p.numel() for p in PreActResNet18().parameters())
    11171146
    """

    def __init__(self, classes: int = 10, *, channels: int = 3, norm: Norm = "batch", width: float = 1.0) -> None:
        super().__init__()
        check_choice("PreActResNet18", "norm", norm, ("batch", "group"))
        widths = [round(stage * width) for stage in (64, 128, 256, 512)]
        if widths[0] < 1:
            remedy = "Use width=1 for the paper's network."
            raise ArgumentError(message("PreActResNet18", "width", "leave at least one channel", width, remedy))
        self.stem = nn.Conv2d(channels, widths[0], kernel_size=3, padding=1, bias=False)
        self.stages = nn.Sequential(
            _stage(widths[0], widths[0], stride=1, norm=norm),
            _stage(widths[0], widths[1], stride=2, norm=norm),
            _stage(widths[1], widths[2], stride=2, norm=norm),
            _stage(widths[2], widths[3], stride=2, norm=norm),
        )
        self.classifier = nn.Linear(widths[3], classes)

    def forward(self, x: Tensor) -> Tensor:
        """Scores (s, classes) of images (s, channels, height, width)."""
        maps = self.stages(self.stem(x))
        scores: Tensor = self.classifier(maps.mean(dim=(2, 3)))
        return scores


class PreActBlock(nn.Module):
    """Residual block: the input plus two normalized, activated 3x3 convolutions of it."""

    def __init__(self, before: int, after: int, *, stride: int, norm: Norm) -> None:
        super().__init__()
        self.norm1 = norm_layer(norm, before)
        self.conv1 = nn.Conv2d(before, after, kernel_size=3, stride=stride, padding=1, bias=False)
        self.norm2 = norm_layer(norm, after)
        self.conv2 = nn.Conv2d(after, after, kernel_size=3, padding=1, bias=False)
        self.shortcut: nn.Conv2d | None = None
        if stride != 1 or before != after:
            self.shortcut = nn.Conv2d(before, after, kernel_size=1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Feature maps (s, after, height / stride, width / stride) of maps (s, before, height, width)."""
        activated = self.norm1(x).relu()
        kept = x if self.shortcut is None else self.shortcut(activated)
        out: Tensor = self.conv2(self.norm2(self.conv1(activated)).relu())
        return out + kept


def _stage(before: int, after: int, *, stride: int, norm: Norm) -> nn.Sequential:
    first = PreActBlock(before, after, stride=stride, norm=norm)
    return nn.Sequential(first, PreActBlock(after, after, stride=1, norm=norm))


def norm_layer(norm: Norm, channels: int) -> nn.Module:
    """BatchNorm, or GroupNorm with the largest number of groups that divides both `_GROUPS` and the channels."""
    if norm == "batch":
        return nn.BatchNorm2d(channels)
    return nn.GroupNorm(math.gcd(_GROUPS, channels), channels)
