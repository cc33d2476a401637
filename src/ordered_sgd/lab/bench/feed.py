"""What a batch costs before the model sees it: the batch source against DataLoaders, and against a step of LeNet.

Everything of one shape is measured in turn in one run and one process. Pixels and labels are random.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data import Dataset as Samples

from ordered_sgd.errors import require
from ordered_sgd.lab.bench.opponents import sgd_step
from ordered_sgd.lab.bench.timing import Timing, every, interleave, threads_of_torch
from ordered_sgd.lab.bench.workloads import WORKLOADS
from ordered_sgd.lab.data.dataset import Dataset
from ordered_sgd.lab.data.protocol import Recipe
from ordered_sgd.lab.data.source import BatchSource

# What is fed: channels, side, samples of the published training set, and the recipe of its kind.
SHAPES: dict[str, tuple[int, int, int, Recipe]] = {
    "mnist": (1, 28, 60_000, Recipe(padding=2, flip=True)),
    "cifar": (3, 32, 50_000, Recipe(padding=4, flip=True)),
}
AFFINE = Recipe(padding=2, degrees=15.0, zoom=(0.85, 1.15))  # MNIST's own, measured at its shape

# Rows: plain feeding, crop and flip, crop and affine map, and a step to compare them with.
SOURCE, LOADER = "source", "dataloader"
SOURCE_CROP, LOADER_CROP = "source crop flip", "dataloader pil crop flip"
SOURCE_AFFINE, LENET = "source crop affine", "lenet step"
AGAINST = {SOURCE: LOADER, SOURCE_CROP: LOADER_CROP}  # what the speed-up of a row is over


@dataclass(frozen=True)
class FeedRow:
    """One way of feeding at one shape.

    Parameters
    ----------
    shape, row, s
        What was measured: a key of `SHAPES`, the way of feeding, and the batch size.
    seconds, low, high
        Of one batch: median and quartiles.
    samples_per_second
        From the median.
    speedup
        Over the DataLoader that does the same; None for the DataLoaders themselves and where there is none.
    of_step
        Share of a step of LeNet with plain SGD, at MNIST's shape; None elsewhere.
    """

    shape: str
    row: str
    s: int
    seconds: float
    low: float
    high: float
    samples_per_second: float
    speedup: float | None
    of_step: float | None


class PilCropFlip(Samples[tuple[Tensor, int]]):
    """Samples changed one by one as torchvision does it: pad, crop and mirror a PIL image, then bytes to [0, 1].

    >>> images = np.zeros((3, 1, 28, 28), np.uint8)
    >>> PilCropFlip(images, np.arange(3), padding=2, rng=np.random.default_rng(0))[0][0].shape
    torch.Size([1, 28, 28])
    """

    def __init__(self, x: NDArray[np.uint8], y: NDArray[Any], *, padding: int, rng: np.random.Generator) -> None:
        require("PIL", extra="lab", where="osgd bench feed")
        self.pixels = np.ascontiguousarray(x[:, 0] if x.shape[1] == 1 else x.transpose(0, 2, 3, 1))
        self.y, self.padding, self.rng = y.tolist(), padding, rng

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, position: int) -> tuple[Tensor, int]:
        from PIL import Image, ImageOps

        picture = Image.fromarray(self.pixels[position])
        width, height = picture.size
        left, top = self.rng.integers(0, 2 * self.padding + 1, 2).tolist()
        picture = ImageOps.expand(picture, border=self.padding, fill=0).crop((left, top, left + width, top + height))
        if self.rng.random() < 0.5:
            picture = ImageOps.mirror(picture)
        pixels = torch.from_numpy(np.array(picture)).view(height, width, -1)
        return pixels.permute(2, 0, 1).contiguous().float().div(255), self.y[position]


def measure_feed(
    shapes: Iterable[str] = tuple(SHAPES),
    *,
    s: int = 64,
    n: int | None = None,
    threads: int = 1,
    rounds: int = 11,
    warmup: int = 2,
    inner: int = 20,
    tick: Callable[[], object] = lambda: None,
) -> Iterator[list[FeedRow]]:
    """The rows of the comparison, a shape at a time.

    Parameters
    ----------
    shapes
        Keys of `SHAPES`.
    s, n
        Batch size, and samples in all; as many as the published set when not given, because a small set is read from
        the processor's cache.
    threads
        Threads of torch's.
    rounds, warmup, inner
        Rounds that count, rounds before them, and batches in a measurement.
    tick
        Called once a round, outside what is timed.

    Examples
    --------
    >>> (rows,) = measure_feed(["cifar"], s=4, n=20, rounds=2, inner=1)
    >>> [row.row for row in rows]
    ['source', 'dataloader', 'source crop flip', 'dataloader pil crop flip']
    """
    with threads_of_torch(threads):
        for shape in shapes:
            calls: dict[str, Callable[[], object]] = {name: feed.__next__ for name, feed in _feeds(shape, s, n).items()}
            if shape == "mnist":
                calls[LENET] = _lenet_step(s)
            seconds = interleave({**calls, "tick": every(inner, tick)}, rounds=rounds, warmup=warmup, inner=inner)
            yield [_row(shape, name, s, seconds) for name in calls]


def _feeds(shape: str, s: int, n: int | None) -> dict[str, Iterator[Any]]:
    """Endless batches of every way of feeding, from the same samples."""
    channels, side, published, crop = SHAPES[shape]
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (n or published, channels, side, side), dtype=np.uint8)
    data = Dataset(x, rng.integers(0, 10, len(x)), tuple("0123456789"), shape)
    numbers = TensorDataset(torch.from_numpy(x).float().div_(255), torch.from_numpy(data.y))
    pictures = PilCropFlip(x, data.y, padding=crop.padding, rng=rng)
    feeds: dict[str, Iterable[Any]] = {
        SOURCE: BatchSource(data, s, rng=0),
        LOADER: DataLoader(numbers, s, shuffle=True),
        SOURCE_CROP: BatchSource.by_recipe(data, s, crop, rng=0),
        LOADER_CROP: DataLoader(pictures, s, shuffle=True),
    }
    if shape == "mnist":
        feeds[SOURCE_AFFINE] = BatchSource.by_recipe(data, s, AFFINE, rng=0)
    return {name: _endless(feed) for name, feed in feeds.items()}


def _endless(batches: Iterable[Any]) -> Iterator[Any]:
    while True:
        yield from batches


def _lenet_step(s: int) -> Callable[[], Tensor]:
    """A step of plain SGD on a batch that is there already."""
    workload = WORKLOADS["lenet"]
    model = workload.build()
    optimizer = workload.optimizer(model)
    x, y = workload.make_batch(s, torch.Generator().manual_seed(0))
    return lambda: sgd_step(model, workload.mean_loss, optimizer, x, y)


def _row(shape: str, name: str, s: int, seconds: dict[str, Timing]) -> FeedRow:
    timing, other = seconds[name], AGAINST.get(name)
    step = seconds[LENET].median if LENET in seconds and name != LENET else None
    return FeedRow(
        shape=shape,
        row=name,
        s=s,
        seconds=timing.median,
        low=timing.low,
        high=timing.high,
        samples_per_second=s / timing.median,
        speedup=None if other is None else seconds[other].median / timing.median,
        of_step=None if step is None else timing.median / step,
    )
