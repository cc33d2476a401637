"""What a batch sampler costs beside a step, and what it saves where loading is what takes the time."""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as Samples

from ordered_sgd.errors import require
from ordered_sgd.indexed import with_index
from ordered_sgd.lab.bench.opponents import new_optimizer, sgd_step
from ordered_sgd.lab.bench.timing import measurements, summary, threads_of_torch
from ordered_sgd.lab.bench.workloads import WORKLOADS
from ordered_sgd.lab.data.dataset import Dataset
from ordered_sgd.mean import ordered_mean
from ordered_sgd.sampler import OrderedBatchSampler

PADDING = 8  # pixels around a picture before the crop


@dataclass(frozen=True)
class SamplerCost:
    """Processor seconds of drawing and remembering one batch, and of steps to compare them with.

    Parameters
    ----------
    recall
        What the sampler holds; None: it yields q samples and some others.
    seconds, low, high
        Of drawing a batch and taking its losses: median and quartiles.
    step, kept_step
        Of a step of LeNet with plain SGD on s samples, and on as many as the sampler yields.
    """

    recall: float | None
    seconds: float
    low: float
    high: float
    step: float
    kept_step: float


@dataclass(frozen=True)
class EpochTime:
    """Seconds of an epoch of the same training, loaded whole or through a sampler.

    Parameters
    ----------
    way
        ``"plain"`` or ``"sampler"``.
    seconds, low, high
        Median and quartiles over rounds.
    ratio, ratio_low, ratio_high
        Of the seconds to those of the plain epoch in the same round.
    loaded
        The share of the samples that were loaded.
    recall
        The measured recall at the end; None for the plain epoch.
    """

    way: str
    seconds: float
    low: float
    high: float
    ratio: float
    ratio_low: float
    ratio_high: float
    loaded: float
    recall: float | None


def measure_cost(
    *, s: int = 64, q: float = 0.25, n: int = 60_000, recalls: tuple[float | None, ...] = (None, 0.8), rounds: int = 15
) -> list[SamplerCost]:
    """What the sampler costs a batch, in processor time of one thread, interleaved with steps of LeNet.

    >>> (cost,) = measure_cost(s=8, n=80, recalls=(None,), rounds=2)
    >>> 0 < cost.seconds < cost.step
    True
    """
    with threads_of_torch(1):
        samplers = {recall: OrderedBatchSampler(n, s, q=q, recall=recall) for recall in recalls}
        yielded = min(s, samplers[recalls[0]].q + 4)
        calls: dict[Any, Callable[[], object]] = {recall: _turn(sampler) for recall, sampler in samplers.items()}
        for _ in range(2 * len(samplers[recalls[0]])):  # every sample was seen, and the number of candidates is found
            for call in calls.values():
                call()
        calls |= {"step": _lenet_step(s), "kept": _lenet_step(yielded)}
        times = measurements(calls, rounds=rounds, inner=20, warmup=2, clock=time.process_time)
    step, kept = (statistics.median(times[name]) for name in ("step", "kept"))
    found = {recall: summary(times[recall]) for recall in recalls}  # type: ignore[index]
    return [SamplerCost(recall, one.median, one.low, one.high, step, kept) for recall, one in found.items()]


def _turn(sampler: OrderedBatchSampler) -> Callable[[], object]:
    """Draw a batch and remember losses that are a little different each time."""
    losses = torch.rand(60_000) * 3

    def batches() -> Iterator[None]:
        while True:
            for drawn in sampler:
                index = torch.tensor(drawn)  # as a loader gives it
                sampler.update(index, losses[index])
                yield

    return batches().__next__


def _lenet_step(s: int) -> Callable[[], Tensor]:
    workload = WORKLOADS["lenet"]
    model = workload.build()
    optimizer = workload.optimizer(model)
    x, y = workload.make_batch(s, torch.Generator().manual_seed(0))
    return lambda: sgd_step(model, workload.mean_loss, optimizer, x, y)


class Pictures(Samples[tuple[Tensor, int]]):
    """PNG files that are decoded, cropped and mirrored one by one, as in a usual data set of pictures."""

    def __init__(self, folder: Path, labels: list[int]) -> None:
        self.paths = [folder / f"{number}.png" for number in range(len(labels))]
        self.labels = labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        from PIL import Image, ImageOps

        with Image.open(self.paths[index]) as file:
            picture = file.convert("RGB")
        side = picture.width
        top, left, mirrored = np.random.default_rng().integers((2 * PADDING + 1, 2 * PADDING + 1, 2)).tolist()
        picture = ImageOps.expand(picture, border=PADDING, fill=0).crop((left, top, left + side, top + side))
        pixels = np.array(ImageOps.mirror(picture) if mirrored else picture)
        return torch.from_numpy(pixels).permute(2, 0, 1).float().div_(255), self.labels[index]


def write_pictures(dataset: Dataset, folder: Path, n: int, side: int) -> Pictures:
    """The first n images of a data set as PNG files of another size."""
    require("PIL", extra="lab", where="osgd bench sampler")
    from PIL import Image

    for number in range(n):
        pixels = dataset.x[number]
        picture = Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0))
        picture.resize((side, side), Image.Resampling.BICUBIC).save(folder / f"{number}.png")
    return Pictures(folder, dataset.y[:n].tolist())


def measure_epochs(
    dataset: Dataset,
    *,
    n: int = 10_000,
    side: int = 96,
    s: int = 64,
    q: float = 0.25,
    workers: int = 2,
    rounds: int = 5,
    tick: Callable[[], object] = lambda: None,
) -> list[EpochTime]:
    """The time of epochs over PNG files with a small network, whole and through the sampler, in turn.

    Both trainings keep the q largest losses; what differs is which samples are decoded. The first epoch of each, which
    starts the workers, does not count.
    """
    with threads_of_torch(1), tempfile.TemporaryDirectory() as folder:
        pictures = write_pictures(dataset, Path(folder), min(n, len(dataset)), side)
        sampler = OrderedBatchSampler(pictures, s, q=q)
        shared: dict[str, Any] = {"num_workers": workers, "persistent_workers": workers > 0}
        torch.manual_seed(0)
        epochs = {
            "plain": _epoch(DataLoader(with_index(pictures), s, shuffle=True, **shared), sampler.q, None),
            "sampler": _epoch(DataLoader(with_index(pictures), batch_sampler=sampler, **shared), sampler.q, sampler),
        }
        times = measurements({**epochs, "tick": tick}, rounds=rounds, warmup=1)
        recall = sampler.recall
    found = []
    for way, loaded in (("plain", 1.0), ("sampler", sampler.loaded)):
        one = summary(times[way])
        ratio = summary([ours / plain for ours, plain in zip(times[way], times["plain"], strict=True)])
        measured = recall.mean if way == "sampler" and recall is not None else None
        numbers = one.median, one.low, one.high, ratio.median, ratio.low, ratio.high
        found.append(EpochTime(way, *numbers, loaded=loaded, recall=measured))
    return found


def _epoch(loader: DataLoader[Any], q: int, sampler: OrderedBatchSampler | None) -> Callable[[], None]:
    """An epoch of a network so small that loading is what takes the time."""
    model = nn.Sequential(nn.AvgPool2d(8), nn.Flatten(), nn.LazyLinear(10))
    model(next(iter(DataLoader(loader.dataset, 2)))[0])
    optimizer = new_optimizer(model)
    for group in optimizer.param_groups:
        group["lr"] = 0.01

    def run() -> None:
        for x, y, index in loader:
            losses = nn.functional.cross_entropy(model(x), y, reduction="none")
            optimizer.zero_grad()
            ordered_mean(losses, q).backward()
            optimizer.step()
            if sampler is not None:
                sampler.update(index, losses)

    return run
