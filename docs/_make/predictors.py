"""What to remember of a sample: the table of docs/memory.md, measured beside exact training and written into the page.

``python docs/_make/predictors.py`` takes minutes. LeNet is trained on Semeion by
exact ordered SGD; beside it every predictor keeps a memory of its own, which learns only the losses that it would have
scored: those of its candidates and of four random others.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ordered_sgd import AccuracyRule, OrderedStep
from ordered_sgd.engines.remembered import FRESH, PROBES
from ordered_sgd.lab.data import load
from ordered_sgd.lab.data.protocol import recipe
from ordered_sgd.lab.data.source import BatchSource
from ordered_sgd.lab.models import build
from ordered_sgd.lab.report.marked import fill, markdown_table

PAGE = Path(__file__).parents[1] / "memory.md"
EPOCHS, DROP, S, SEEDS = 40, 9, 64, 3  # the rate falls to a tenth in the tenth epoch, as in the paper
CANDIDATES = (3, 2)  # times q
# share of dropout, whether images are augmented, and the epoch from which the rate is a tenth
SETTINGS = {
    "plain": (0.0, False, DROP),
    "dropout 0.5": (0.5, False, DROP),
    "augmentation": (0.0, True, DROP),
    "both": (0.5, True, DROP),
    "plain, rate kept": (0.0, False, EPOCHS),
}

Numbers = NDArray[np.float64]


class Memory:
    """What is known of every sample: its last loss, how that had changed, a running mean, and when it was scored."""

    def __init__(self, n: int, fresh: float) -> None:
        self.fresh = fresh
        self.last, self.mean = np.full(n, np.inf), np.full(n, np.inf)
        self.change, self.epoch = np.zeros(n), np.zeros(n)

    def learn(self, index: NDArray[np.int64], losses: Numbers, epoch: int) -> None:
        """Take up the losses of the samples that were scored."""
        known = np.isfinite(self.last[index])
        self.change[index] = np.where(known, losses - self.last[index], 0.0)
        self.mean[index] = self.fresh * losses + (1 - self.fresh) * np.where(known, self.mean[index], losses)
        self.last[index], self.epoch[index] = losses, epoch


def decaying(rate: float) -> Callable[[Memory, NDArray[np.int64], int], Numbers]:
    """A guess that goes to the mean of all losses with the age of the sample's own."""

    def guess(memory: Memory, index: NDArray[np.int64], epoch: int) -> Numbers:
        middle = memory.last[np.isfinite(memory.last)].mean() if np.isfinite(memory.last).any() else 0.0
        return middle + (memory.last[index] - middle) * rate ** (epoch - memory.epoch[index])

    return guess


def running_mean(memory: Memory, index: NDArray[np.int64], epoch: int) -> Numbers:
    """A running mean of the losses."""
    return memory.mean[index]


def with_trend(memory: Memory, index: NDArray[np.int64], epoch: int) -> Numbers:
    """The last loss, moved on by a quarter of its change."""
    return memory.last[index] + memory.change[index] / 4


# what a line of the table is called -> how a loss is guessed, and how much of the newest is in the running mean
PREDICTORS = {
    "last loss": (running_mean, 1.0),
    f"**running mean, {FRESH} of the newest**": (running_mean, FRESH),
    "running mean, 0.5 of the newest": (running_mean, 0.5),
    "last loss, decaying to the mean by 0.9 an epoch": (decaying(0.9), 1.0),
    "last loss, decaying to the mean by 0.7 an epoch": (decaying(0.7), 1.0),
    "last loss + 1/4 of its change": (with_trend, 1.0),
}


def recalls(dropout: float, augmented: bool, drop: int, seed: int) -> dict[tuple[str, int], float]:
    """The share of the q largest losses that each predictor finds with so many times q candidates."""
    n = len(load("semeion"))
    memories = {(name, times): Memory(n, PREDICTORS[name][1]) for name in PREDICTORS for times in CANDIDATES}
    found: dict[tuple[str, int], list[float]] = defaultdict(list)
    rng = np.random.default_rng(seed)
    for epoch, index, losses, kept in exact_training(dropout, augmented, drop, seed):
        q, s = len(kept), len(index)
        for (name, times), memory in memories.items():
            guesses = PREDICTORS[name][0](memory, index, epoch)
            order = np.argsort(-guesses, kind="stable")
            c = max(times * q, int(np.isinf(guesses).sum()))
            probes = rng.choice(order[c:], PROBES, replace=False) if c + PROBES < s else order[c:]
            scored = np.concatenate([order[:c], probes])
            memory.learn(index[scored], losses[scored], epoch)
            if 4 * q <= S and s == S:
                found[name, times].append(float(np.isin(kept, scored).mean()))
    return {line: float(np.mean(shares)) for line, shares in found.items()}


def exact_training(
    dropout: float, augmented: bool, drop: int, seed: int
) -> Iterator[tuple[int, NDArray[np.int64], Numbers, NDArray[np.int64]]]:
    """Every batch of a training of LeNet by the paper's rule: epoch, samples, losses, positions that were kept."""
    torch.manual_seed(seed)
    data = load("semeion")
    model = build("lenet", data.x.shape[1:], len(data.classes), dropout=dropout, hidden=1024)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    step = OrderedStep(model, nn.CrossEntropyLoss(reduction="none"), optimizer, q=AccuracyRule())
    source = BatchSource.by_recipe(data, S, recipe("semeion", "standard" if augmented else "none"), rng=seed)
    for epoch in range(EPOCHS):
        optimizer.param_groups[0]["lr"] = 0.01 if epoch < drop else 0.001
        for x, y, index in source:
            record = step(x, y)
            yield epoch, index.numpy(), record.losses.double().numpy(), record.rows.numpy()
        step.end_epoch()


def main() -> None:
    """Measure, and write the tables between their marks."""
    torch.set_num_threads(1)
    measured = {title: [recalls(*how, seed) for seed in range(SEEDS)] for title, how in SETTINGS.items()}
    tables = []
    for times in CANDIDATES:
        lines = []
        for name in PREDICTORS:
            shares = {title: [one[name, times] for one in runs] for title, runs in measured.items()}
            cells = {title: f"{np.mean(values):.3f} ({np.std(values):.3f})" for title, values in shares.items()}
            lines.append({f"{times}q candidates": name, **cells})
        tables.append(markdown_table(lines))
    PAGE.write_text(fill(PAGE.read_text(), "predictors", tables))
    print("\n\n".join(tables))


if __name__ == "__main__":
    main()
