"""What `selective_backward` saves in a plain training loop whose loss leaves samples without a gradient.

A plain and a selective copy of one LeNet train on the same batches of real images. Each step (forward, loss, backward,
update) is timed on both copies, one right after the other and in alternating order. Then their gradients are compared,
and the selective copy takes over the weights of the plain one, so that rounding does not add up.
"""

import copy
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from ordered_sgd.batches import epoch_batches
from ordered_sgd.lab.bench.timing import measurements, summary, threads_of_torch
from ordered_sgd.lab.data.dataset import Dataset
from ordered_sgd.lab.experiments.allocator import keep_freed_memory
from ordered_sgd.lab.models import LeNet, channels_last
from ordered_sgd.selective import explain_backward, selective_backward

PLAIN, SELECTIVE = "plain", "selective"
CLIP = 0.2  # PPO's epsilon (Schulman et al., 2017, table 3)
PASSES = 4  # over the images of a rollout
ROLLOUT = 1_024  # images
GROUP = 8  # actions for each image in GRPO

Loss = Callable[[Sequence[Tensor], Any], Tensor]


class LabelledImages:
    """The first n images of a data set with their classes, and the generator that batches are drawn with."""

    def __init__(self, dataset: Dataset, n: int, rng: np.random.Generator) -> None:
        self.x = torch.from_numpy(dataset.x[:n]).float().div(255)
        self.y = torch.from_numpy(dataset.y[:n].astype(np.int64))
        self.rng = rng

    def __len__(self) -> int:
        return len(self.y)

    def take(self, rows: NDArray[np.int64]) -> Tensor:
        """The images in these rows, channels-last; unlike `contiguous`, `to` sets the strides of one channel too."""
        return self.x[rows].to(memory_format=torch.channels_last)

    def batches(self, n: int, s: int) -> Iterator[NDArray[np.int64]]:
        """A shuffle of n positions in batches of s; the rest is left out, so that all steps cost the same."""
        return (rows for rows in epoch_batches(n, s, self.rng) if len(rows) == s)


@dataclass(frozen=True)
class LossBatch:
    """The inputs of each call of the model, and what else the loss needs."""

    inputs: tuple[Tensor, ...]
    targets: Any = None


@dataclass(frozen=True)
class LossTask:
    """What is trained.

    Parameters
    ----------
    loss
        ``loss(outputs, targets)`` is the mean loss of a batch; `outputs` has one tensor for each call of the model.
    batches
        ``batches(model, images, s)`` yields the batches of an epoch; PPO asks the model for its actions.
    outputs
        Width of the model's output: classes or dimensions of an embedding.
    lr
        Learning rate of Adam.
    """

    loss: Loss
    batches: Callable[[nn.Module, LabelledImages, int], Iterator[LossBatch]]
    outputs: int = 10
    lr: float = 1e-3


@dataclass(frozen=True)
class LossEpoch:
    """One epoch of training with one loss.

    Parameters
    ----------
    loss, epoch, steps
        What was measured: a key of `TASKS`, the epoch counted from 1, and how many steps it has.
    share
        Share of samples with a gradient, as `explain_backward` counts them.
    plain, selective
        Median seconds of a step.
    speedup, low, high
        Plain over selective seconds of the same step: median and quartiles over steps.
    difference
        Norm of the difference of the two gradients over the norm of the plain one, the largest of all steps.
    why
        Why the selective copy ran whole backward passes; empty if only because every sample had a gradient.
    """

    loss: str
    epoch: int
    steps: int
    share: float
    plain: float
    selective: float
    speedup: float
    low: float
    high: float
    difference: float
    why: str = ""


def hinge(outputs: Sequence[Tensor], y: Tensor) -> Tensor:
    """Mean multiclass hinge loss."""
    return F.multi_margin_loss(outputs[0], y)


def labelled(_: nn.Module, images: LabelledImages, s: int) -> Iterator[LossBatch]:
    """All images with their classes, shuffled."""
    for rows in images.batches(len(images), s):
        yield LossBatch((images.take(rows),), images.y[rows])


def triplet(outputs: Sequence[Tensor], _: None) -> Tensor:
    """Mean triplet loss with torch's margin of 1, of three outputs or of one that holds the three parts in a row."""
    anchor, positive, negative = outputs if len(outputs) == 3 else outputs[0].chunk(3)
    return F.triplet_margin_loss(anchor, positive, negative)


def triplets(_: nn.Module, images: LabelledImages, s: int, *, joined: bool) -> Iterator[LossBatch]:
    """Each image as an anchor, with a random image of its class and a random image of another class."""
    y = images.y.numpy()
    same, other = ({k: np.flatnonzero((y == k) == wanted) for k in np.unique(y)} for wanted in (True, False))
    for rows in images.batches(len(images), s):
        positives, negatives = (np.array([images.rng.choice(pool[k]) for k in y[rows]]) for pool in (same, other))
        parts = tuple(images.take(part) for part in (rows, positives, negatives))
        yield LossBatch((torch.cat(parts),) if joined else parts)


def clipped(outputs: Sequence[Tensor], targets: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """PPO's clipped objective (Schulman et al., 2017, equation 7), negated."""
    actions, old, advantage = targets
    ratio = (outputs[0].log_softmax(1).gather(1, actions) - old).exp()
    return -torch.min(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage).mean()


def rollout(policy: nn.Module, images: LabelledImages, s: int, *, actions: int) -> Iterator[LossBatch]:
    """Classes that the policy picks for some images, rewarded by 1 if right, in several passes of shuffled batches.

    With one action per image, the advantage is the reward standardised over the rollout. With several, the reward is
    standardised over the actions of each image, as in GRPO (Shao et al., 2024): zero if all got the same reward.
    """
    rows = images.rng.permutation(len(images))[:ROLLOUT]
    with torch.no_grad():
        log_p = torch.cat([policy(images.take(part)).log_softmax(1) for part in np.split(rows, range(s, len(rows), s))])
    generator = torch.Generator().manual_seed(int(images.rng.integers(2**31)))
    drawn = torch.multinomial(log_p.exp(), actions, replacement=True, generator=generator)
    reward = (drawn == images.y[rows, None]).float()
    std, mean = torch.std_mean(reward, dim=(0, 1) if actions == 1 else 1, keepdim=True)
    targets = drawn, log_p.gather(1, drawn), (reward - mean) / (std + 1e-8)
    for _ in range(PASSES):
        for part in images.batches(len(rows), s):
            yield LossBatch((images.take(rows[part]),), tuple(target[part] for target in targets))


TASKS: dict[str, LossTask] = {
    "hinge": LossTask(hinge, labelled),
    "triplet": LossTask(triplet, partial(triplets, joined=False), outputs=64),
    "triplet-joined": LossTask(triplet, partial(triplets, joined=True), outputs=64),
    "ppo": LossTask(clipped, partial(rollout, actions=1), lr=3e-4),
    "grpo": LossTask(clipped, partial(rollout, actions=GROUP), lr=3e-4),
}


def loop_step(model: nn.Module, optimizer: Optimizer, loss: Loss, batch: LossBatch) -> None:
    """A step of a plain training loop."""
    optimizer.zero_grad()
    loss([model(x) for x in batch.inputs], batch.targets).backward()
    optimizer.step()


def measure_loss(
    name: str, dataset: Dataset, *, n: int = 4_096, s: int = 64, epochs: int = 8, threads: int = 1
) -> Iterator[LossEpoch]:
    """The epochs of a training with the loss of this name, as they end.

    Seconds are processor time on one thread and elapsed time on several, where threads that wait count as busy. The
    model is compiled in the first step, which the medians leave out.
    """
    keep_freed_memory()  # or how long a step takes depends on what was freed before it
    torch.manual_seed(0)
    task, images = TASKS[name], LabelledImages(dataset, n, np.random.default_rng(0))
    plain = channels_last(LeNet(task.outputs, channels=images.x.shape[1], size=images.x.shape[2]))
    models = {PLAIN: plain, SELECTIVE: selective_backward(copy.deepcopy(plain))}
    optimizers = {kind: torch.optim.Adam(model.parameters(), lr=task.lr, fused=True) for kind, model in models.items()}
    clock = time.process_time if threads == 1 else time.perf_counter
    report = explain_backward(models[SELECTIVE])
    for epoch in range(1, epochs + 1):
        seconds: dict[str, list[float]] = {PLAIN: [], SELECTIVE: []}
        differences, rows, samples = [], report.rows, report.samples
        with threads_of_torch(threads):
            for number, batch in enumerate(task.batches(plain, images, s)):
                order = (PLAIN, SELECTIVE) if number % 2 else (SELECTIVE, PLAIN)
                calls = {kind: partial(loop_step, models[kind], optimizers[kind], task.loss, batch) for kind in order}
                for kind, (taken,) in measurements(calls, rounds=1, warmup=0, clock=clock).items():
                    seconds[kind].append(taken)
                differences.append(gradient_difference(*models.values()))
                models[SELECTIVE].load_state_dict(plain.state_dict())
        ratio = summary([one / other for one, other in zip(*seconds.values(), strict=True)])
        yield LossEpoch(
            loss=name,
            epoch=epoch,
            steps=len(differences),
            share=(report.rows - rows) / (report.samples - samples) if report.samples > samples else 1.0,
            plain=summary(seconds[PLAIN]).median,
            selective=summary(seconds[SELECTIVE]).median,
            speedup=ratio.median,
            low=ratio.low,
            high=ratio.high,
            difference=max(differences),
            why=report.plain or "; ".join(report.reasons),
        )


def gradient_difference(plain: nn.Module, other: nn.Module) -> float:
    """Norm of the difference of the gradients of two models, over the norm of the first one's gradient unless zero."""
    gradients = zip(plain.parameters(), other.parameters(), strict=True)
    pairs = [(one.grad, two.grad) for one, two in gradients if one.grad is not None and two.grad is not None]
    apart = sum(float((one - two).square().sum()) for one, two in pairs)
    return math.sqrt(apart / (sum(float(one.square().sum()) for one, _ in pairs) or 1.0))
