"""WRN-28-10: the wide residual network of the experiment with random erasing."""

from torch import Tensor, nn

from ordered_sgd.errors import ArgumentError, check_choice, message
from ordered_sgd.lab.models.preact_resnet import Norm, norm_layer


class WideResNet(nn.Module):
    """Class scores of images, shape (s, classes): a 3x3 stem, three stages of blocks, mean over pixels, linear.

    The stem has 16 channels, the stages 16, 32 and 64 times `widen`; the second and third stage halve the image, and a
    norm and ReLU follow the last block. As in the random-erasing code that the paper builds on, a block that changes
    the shape has a plain 1x1 convolution of the activated input as shortcut, convolutions are initialized from He's
    normal distribution (variance 2 / (output channels x kernel area)), the last bias is 0, and dropout is off.

    Parameters
    ----------
    classes : int, default=10
        Number of classes.
    channels : int, default=3
        Channels of the images, whose sides are multiples of 4.
    depth : int, default=28
        Number of layers, 6 per block of a stage plus 4: 10, 16, 22, 28, ...
    widen : int, default=10
        Multiplier of the channels of every stage, `k` in WRN-d-k.
    dropout : float, default=0.0
        Share of the values between a block's two convolutions dropped in training.
    norm : {"batch", "group"}, default="batch"
        ``"batch"`` as in the paper, or ``"group"``, which keeps the samples of a batch independent.

    Examples
    --------
    >>> import torch
    >>> WideResNet(depth=10, widen=1)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    >>> with torch.device("meta"):
    ...     sum(p.numel() for p in WideResNet().parameters())
    36479194
    """

    def __init__(
        self,
        classes: int = 10,
        *,
        channels: int = 3,
        depth: int = 28,
        widen: int = 10,
        dropout: float = 0.0,
        norm: Norm = "batch",
    ) -> None:
        super().__init__()
        check_choice("WideResNet", "norm", norm, ("batch", "group"))
        if depth < 10 or (depth - 4) % 6:
            remedy = "Use depth=28 for the paper's network."
            raise ArgumentError(message("WideResNet", "depth", "be 6 n + 4 with n of at least 1", depth, remedy))
        if widen < 1:
            remedy = "Use widen=10 for the paper's network."
            raise ArgumentError(message("WideResNet", "widen", "be at least 1", widen, remedy))
        blocks = (depth - 4) // 6  # of a stage
        widths = [16, 16 * widen, 32 * widen, 64 * widen]
        self.stem = nn.Conv2d(channels, widths[0], kernel_size=3, padding=1, bias=False)
        self.stages = nn.Sequential(
            _stage(blocks, widths[0], widths[1], stride=1, dropout=dropout, norm=norm),
            _stage(blocks, widths[1], widths[2], stride=2, dropout=dropout, norm=norm),
            _stage(blocks, widths[2], widths[3], stride=2, dropout=dropout, norm=norm),
        )
        self.norm = norm_layer(norm, widths[3])
        self.classifier = nn.Linear(widths[3], classes)
        self._initialise()

    def forward(self, x: Tensor) -> Tensor:
        """Scores (s, classes) of images (s, channels, height, width)."""
        maps = self.norm(self.stages(self.stem(x))).relu()
        scores: Tensor = self.classifier(maps.mean(dim=(2, 3)))
        return scores

    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        nn.init.zeros_(self.classifier.bias)


class WideBlock(nn.Module):
    """Residual block: the input plus two normalized, activated 3x3 convolutions of it, with dropout between them."""

    def __init__(self, before: int, after: int, *, stride: int, dropout: float, norm: Norm) -> None:
        super().__init__()
        self.norm1 = norm_layer(norm, before)
        self.conv1 = nn.Conv2d(before, after, kernel_size=3, stride=stride, padding=1, bias=False)
        self.norm2 = norm_layer(norm, after)
        self.dropout = nn.Dropout(dropout) if dropout > 0 else nn.Identity()
        self.conv2 = nn.Conv2d(after, after, kernel_size=3, padding=1, bias=False)
        self.shortcut: nn.Conv2d | None = None
        if before != after:  # the stages that halve the image widen it too
            self.shortcut = nn.Conv2d(before, after, kernel_size=1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Feature maps (s, after, height / stride, width / stride) of maps (s, before, height, width)."""
        activated = self.norm1(x).relu()
        kept = x if self.shortcut is None else self.shortcut(activated)
        out: Tensor = self.conv2(self.dropout(self.norm2(self.conv1(activated)).relu()))
        return out + kept


def _stage(blocks: int, before: int, after: int, *, stride: int, dropout: float, norm: Norm) -> nn.Sequential:
    first = WideBlock(before, after, stride=stride, dropout=dropout, norm=norm)
    others = (WideBlock(after, after, stride=1, dropout=dropout, norm=norm) for _ in range(blocks - 1))
    return nn.Sequential(first, *others)
