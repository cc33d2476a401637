"""Segmentation with the hardest quarter of the pixels: `OrderedLoss(..., unit="pixel")` and an ignore index.

A scene is 24 x 24 pixels of paper with some of scikit-learn's handwritten digits on it; every pixel is to be named:
paper, or ink of which digit. Nine pixels in ten are paper and soon easy, so that a plain mean is mostly over what is
known. The faint rim of a stroke is neither and has the label 255: it is never kept and never counted. Compared are the
plain mean, class weights, which are the usual remedy, the quarter of the pixels with the largest losses of each batch
or of each image, and a quarter at random: by intersection over union (IoU) on scenes of other digits, half way and at
the end, since what learns faster need not end better.

Run: python examples/07_pixels.py            (six minutes on an idle core)
     python examples/07_pixels.py --seeds 2 --epochs 2 --scenes 32
"""

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn

from ordered_sgd import OrderedLoss, batches
from ordered_sgd.lab.data import Dataset, load
from ordered_sgd.lab.data.dataset import Split
from ordered_sgd.lab.experiments.comparison import paired
from ordered_sgd.lab.report.summary import interval

SIDE, DIGITS, S = 24, 6, 4  # pixels of a scene, digits that are tried to place in it, scenes in a batch
RATE = 0.005  # for all; at half and at twice of it ordered ended above plain as well, in both of the two seeds tried
PAPER, FAINT = 0, 255  # labels; ink of digit d is d + 1
NAMES = ("paper", *map(str, range(10)))
METHODS: dict[str, dict[str, Any]] = {  # options of OrderedLoss; a share q is one of the pixels that count
    "plain": {"q": 1.0},
    "weights": {},  # no OrderedLoss: it would order by the weights
    "ordered": {"q": 0.25},
    "by image": {"q": 0.25, "within": "sample"},
    "random": {"q": 0.25, "selection": "random"},
}
SPLITS: tuple[Split, ...] = ("train", "test")
Scenes = tuple[Tensor, Tensor]


def draw_scenes(digits: Dataset, count: int, rng: np.random.Generator) -> Scenes:
    """Images (count, 1, 24, 24) from 0 to 1, and a label for each of their pixels, (count, 24, 24)."""
    images = np.zeros((count, 1, SIDE, SIDE), np.float32)
    labels = np.full((count, SIDE, SIDE), PAPER)
    for image, label in zip(images[:, 0], labels, strict=True):
        for pick in rng.integers(len(digits), size=DIGITS):
            digit, (row, column) = digits.x[pick, 0], rng.integers(SIDE - 7, size=2)
            place = (slice(row, row + 8), slice(column, column + 8))
            if image[place].any():
                continue  # another one is there
            image[place] = digit / np.float32(255)
            ink = np.where(digit > 127, digits.y[pick] + 1, FAINT)
            label[place] = np.where(digit > 0, ink, PAPER)
    return torch.from_numpy(images), torch.from_numpy(labels)


def build(seed: int) -> nn.Module:
    """Five convolutions that see 19 x 19 pixels around each one."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for channels, dilation in ((1, 1), (16, 2), (16, 4), (16, 2)):
        layers += [nn.Conv2d(channels, 16, 3, padding=dilation, dilation=dilation), nn.GroupNorm(4, 16), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(16, len(NAMES), 1))


def loss_for(method: str, labels: Tensor, seed: int) -> Callable[[Tensor, Tensor], Tensor]:
    """The loss of a batch: all that the methods differ in."""
    if method == "weights":
        counts = torch.bincount(labels[labels != FAINT], minlength=len(NAMES))
        return nn.CrossEntropyLoss(weight=1 / counts.clamp(min=1), ignore_index=FAINT)
    criterion = nn.CrossEntropyLoss(reduction="none", ignore_index=FAINT)
    draws = torch.Generator().manual_seed(seed)
    return OrderedLoss(criterion, unit="pixel", generator=draws, **METHODS[method])


def train(method: str, scenes: Scenes, test: Scenes, seed: int, epochs: int) -> list[NDArray[np.float64]]:
    """The overlaps half way and at the end of one training."""
    x, y = scenes
    model, loss_fn = build(seed), loss_for(method, y, seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    rng = np.random.default_rng(seed)
    found = []
    for epoch in range(1, epochs + 1):
        for batch in batches.epoch_batches(len(x), S, rng):
            index = torch.from_numpy(batch)
            optimizer.zero_grad()
            loss_fn(model(x[index]), y[index]).backward()
            optimizer.step()
        if epoch in (epochs // 2, epochs):
            found.append(overlaps(model, test))
    return found


def overlaps(model: nn.Module, scenes: Scenes) -> NDArray[np.float64]:
    """Intersection over union of each class, in percent, over all pixels that count."""
    x, y = scenes
    with torch.no_grad():
        named = model(x).argmax(1)
    counts = y != FAINT
    pairs = torch.bincount(y[counts] * len(NAMES) + named[counts], minlength=len(NAMES) ** 2)
    table = pairs.reshape(len(NAMES), -1).numpy()
    both = table.diagonal()
    shares: NDArray[np.float64] = 100 * both / np.maximum(table.sum(axis=0) + table.sum(axis=1) - both, 1)
    return shares


def compare(seed: int, count: int, epochs: int) -> NDArray[np.float64]:
    """The overlaps of every method, (methods, 2, classes): the same scenes, first weights and order."""
    rng = np.random.default_rng(seed)
    scenes, test = (draw_scenes(load("digits", split, seed=seed), count, rng) for split in SPLITS)
    return np.array([train(method, scenes, test, seed, epochs) for method in METHODS])


def set_against(one: str, other: str, results: NDArray[np.float64]) -> str:
    """How much more the mean IoU of one method is, seed by seed, half way and at the end."""
    parts = []
    for place, when in enumerate(("half way", "at the end")):
        difference = paired(*(results[:, list(METHODS).index(name), place].mean(axis=1) for name in (one, other)))
        clear = " (clear)" if difference.clear else ""
        parts.append(f"{interval(difference.mean, difference.half)}{clear} {when}")
    return f"{one} - {other}, points of mean IoU: {', '.join(parts)}"


def main() -> None:
    """Train every seed, print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=4, help="at least 2: the interval is over seeds")
    parser.add_argument("--epochs", type=int, default=16, help="at least 2")
    parser.add_argument("--scenes", type=int, default=400, help="to train, and as many to test; at least 4")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    seeds = track(range(arguments.seeds), description="seeds", transient=True)
    results = np.array([compare(seed, arguments.scenes, arguments.epochs) for seed in seeds])
    title = f"{arguments.scenes} scenes, {arguments.epochs} epochs, means of {arguments.seeds} seeds: IoU in percent"
    table = Table(title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))  # narrow enough for 80 columns
    for column in ("method", "half way", "at the end", *NAMES):
        table.add_column(column, justify="left" if column == "method" else "right", no_wrap=True)
    for method, (half, end) in zip(METHODS, results.mean(axis=0), strict=True):
        table.add_row(method, f"{half.mean():.1f}", f"{end.mean():.1f}", *(f"{value:.0f}" for value in end))
    console = Console()
    console.print(table)
    for other in ("plain", "weights", "random"):
        console.print(set_against("ordered", other, results), highlight=False, soft_wrap=True)
    console.print(set_against("by image", "ordered", results), highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
