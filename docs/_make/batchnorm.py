"""What makes ordered SGD worse than SGD with BatchNorm: a factorial on CIFAR-10, resumable, and its tables in a page.

``python docs/_make/batchnorm.py`` needs CIFAR-10 (`osgd data fetch cifar10`) and about 90 minutes of one core; the
design is in `batchnorm_design.py`. Runs that have a record are not run again.
"""

import argparse
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from batchnorm_design import BEST_RATE, RECORD, Cell, Run, plan, read, write
from batchnorm_tables import PAGE, tables
from torch import Tensor, nn
from torch.nn import functional as F

from ordered_sgd import select_top_q
from ordered_sgd.lab.data import load
from ordered_sgd.lab.data.augment import Bordered, PadCrop
from ordered_sgd.lab.models import channels_last
from ordered_sgd.lab.report.marked import fill
from ordered_sgd.selection import random_rows

WARM_UP = 0.2  # share of the steps in which the rate rises from a fifth; then it falls to zero in a straight line
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


class Network(nn.Sequential):
    """Four convolutions with BatchNorm: 4 x 4 with stride 2, then three of 3 x 3, each with max-pooling."""

    def __init__(self, norm: str = "batch") -> None:
        widths = (8, 24, 64, 128)
        layers: list[nn.Module] = [nn.Conv2d(3, widths[0], 4, stride=2, padding=1, bias=False)]
        layers += [normalised(norm, widths[0]), nn.ReLU(inplace=True)]
        for before, after in pairwise(widths):
            layers += [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.MaxPool2d(2)]
            layers += [normalised(norm, after), nn.ReLU(inplace=True)]
        super().__init__(*layers, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 10))

    def norms(self) -> list[nn.BatchNorm2d]:
        """The BatchNorm layers."""
        return [layer for layer in self if isinstance(layer, nn.BatchNorm2d)]


def normalised(norm: str, channels: int) -> nn.Module:
    """BatchNorm, or GroupNorm with groups of 8 channels."""
    return nn.BatchNorm2d(channels) if norm == "batch" else nn.GroupNorm(channels // 8, channels)


class Images:
    """CIFAR-10, and its batches with the padding of 2 and the mirroring of a seed."""

    def __init__(self) -> None:
        train, test = load("cifar10"), load("cifar10", split="test")
        self.x, self.y = torch.from_numpy(np.array(train.x)), torch.from_numpy(train.y)
        self.test_x, self.test_y = torch.from_numpy(np.array(test.x)), torch.from_numpy(test.y)
        self.bordered, self.crop = Bordered(self.x, 2), PadCrop(2, flip=0.5)

    def batches(self, s: int, epochs: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Whole batches of `epochs` passes; the last samples of a pass that make no batch are left out."""
        rng = np.random.default_rng(seed)
        for _ in range(epochs):
            order = rng.permutation(len(self.x))
            for start in range(0, len(order) - s + 1, s):
                index = order[start : start + s]
                yield scaled(self.bordered.take(index, self.crop.draw(rng.random((s, 3)), 32, 32))), self.y[index]


def scaled(images: Tensor) -> Tensor:
    """Channels-last float32 images from bytes, of mean 0 and variance 1."""
    mean, std = (255 * torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
    return (images.to(memory_format=torch.channels_last).float() - mean) / std


def logits(model: nn.Module, x: Tensor) -> Tensor:
    """Float32 outputs; the convolutions compute in bfloat16."""
    with torch.autocast("cpu", torch.bfloat16):
        outputs: Tensor = model(x)
    return outputs.float()


def train(run: Run, images: Images) -> Network:
    """The network after a run."""
    cell = run.cell
    torch.manual_seed(run.seed)
    draws = torch.Generator().manual_seed(run.seed)
    model = Network(run.norm)
    channels_last(model)
    best = BEST_RATE[cell.batch, cell.epochs]
    optimizer = torch.optim.SGD(model.parameters(), best, momentum=0.9, nesterov=True, weight_decay=5e-4, fused=True)
    steps = len(images.x) // cell.batch * cell.epochs
    for step, (x, y) in enumerate(images.batches(cell.batch, cell.epochs, run.seed)):
        done = step / steps
        choosing = cell.start <= done < 1 - run.whole
        factor = cell.kept if choosing and cell.rate == "times q/s" else 1.0
        for group in optimizer.param_groups:
            group["lr"] = best * factor * min(0.2 + 0.8 * done / WARM_UP, (1 - done) / (1 - WARM_UP))
        whole = run.method == "sgd" or not choosing
        loss = losses(model, x, y, cell).mean() if whole else kept_mean(model, x, y, run, draws)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def losses(model: nn.Module, x: Tensor, y: Tensor, cell: Cell) -> Tensor:
    """The loss of each sample."""
    return F.cross_entropy(logits(model, x), y, reduction="none", label_smoothing=cell.smoothing)


def kept_mean(model: Network, x: Tensor, y: Tensor, run: Run, draws: torch.Generator) -> Tensor:
    """Mean loss of the kept samples, normalised by the statistics of all samples or of the kept ones."""
    q = int(run.cell.kept * len(x))
    if run.cell.statistics == "all":
        every = losses(model, x, y, run.cell)
        return every[select_top_q(every, q) if run.method == "ordered" else random_rows(len(x), q, draws)].mean()
    if run.method == "random":
        rows = random_rows(len(x), q, draws)
    else:
        for norm in model.norms():
            norm.momentum = 0.0  # the scoring pass leaves the running statistics alone
        with torch.no_grad():
            rows = select_top_q(losses(model, x, y, run.cell), q)
        for norm in model.norms():
            norm.momentum = 0.1
    return losses(model, x[rows], y[rows], run.cell).mean()


def evaluate(model: Network, images: Images) -> dict[str, float]:
    """Losses and errors; the last error with running statistics that are estimated again, from all samples alike."""
    model.eval()
    some_x, some_y = images.x[:10_000], images.y[:10_000]
    on_train, on_test = outputs(model, some_x), outputs(model, images.test_x)
    for norm in model.norms():
        norm.reset_running_stats()
        norm.momentum = None  # a plain mean over the batches
    model.train()
    outputs(model, some_x)
    model.eval()
    again = outputs(model, images.test_x)
    return {
        "test_error": percent_wrong(on_test, images.test_y),
        "test_loss": float(F.cross_entropy(on_test, images.test_y)),
        "train_error": percent_wrong(on_train, some_y),
        "train_loss": float(F.cross_entropy(on_train, some_y)),
        "test_error_again": percent_wrong(again, images.test_y),
    }


@torch.no_grad()
def outputs(model: nn.Module, x: Tensor) -> Tensor:
    """The outputs for images as they are stored."""
    return torch.cat([logits(model, scaled(part)) for part in x.split(1000)])


def percent_wrong(scores: Tensor, y: Tensor) -> float:
    """The error in percent."""
    return 100 * float((scores.argmax(1) != y).double().mean())


def carry_out(runs: Iterator[Run], record: Path, minutes: float) -> None:
    """Carry out the runs that have no record, one after the other, while `minutes` of the processor last."""
    images, records = Images(), read(record)
    known = {run for run, _ in records}
    for run in runs:
        if run in known:
            continue
        if time.process_time() > 60 * minutes:
            return
        begun = time.process_time()
        model = train(run, images)
        seconds = time.process_time() - begun
        numbers = {**evaluate(model, images), "seconds": seconds}
        records.append((run, {name: round(value, 4) for name, value in numbers.items()}))
        write(record, records)
        print(len(records), run, records[-1][1], flush=True)


def main() -> None:
    """Carry out the runs that have no record, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", action="store_true", help="only write the page, from the records")
    parser.add_argument("--record", type=Path, default=RECORD, help="another file for the records; no page is written")
    parser.add_argument("--minutes", type=float, default=100, help="start no run after this processor time")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if not options.page:
        carry_out(plan(), options.record, options.minutes)
    if options.record == RECORD:
        page = PAGE.read_text()
        for mark, text in tables(read(RECORD)).items():
            page = fill(page, f"batchnorm-{mark}", [text])
        PAGE.write_text(page)


if __name__ == "__main__":
    main()
