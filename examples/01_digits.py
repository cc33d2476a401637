"""Mini-batch SGD, ordered SGD and the honest controls on scikit-learn's handwritten digits.

Ordered SGD keeps the q largest losses of each batch, by the paper's rule. It is set against plain SGD and against as
many samples drawn at random, at the paper's learning rate; and against plain SGD once more with both at the best rate
of a grid, because keeping large losses acts partly as a larger step. Everything that matters is in `train`; the rest
averages over seeds and prints.

Run: python examples/01_digits.py --seeds 20
"""

import argparse
import time
from dataclasses import dataclass

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scipy import stats
from sklearn.datasets import load_digits
from torch import Tensor, nn

from ordered_sgd import AccuracyRule, FixedQ, OrderedStep, batches
from ordered_sgd.lab.experiments.plan import Replay
from ordered_sgd.rules import Rule

# The paper's settings: batch size, learning rate, and the epoch from which the rate is a tenth.
S = 64
RATE = 0.01
DROP = 10
GRID = (0.01, 0.03, 0.1, 0.3)  # for "best rate"

Data = tuple[Tensor, Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Run:
    """What one training gave: test error in percent, test cross-entropy, the q of each epoch, training time."""

    rate: float
    last: float
    best: float
    cross_entropy: float
    path: tuple[int, ...]
    seconds: float


def load(seed: int) -> Data:
    """1,797 images of 8 x 8 pixels: half to train and half to test, split by the seed."""
    x, y = load_digits(return_X_y=True)
    shuffled = np.random.default_rng(seed).permutation(len(y))
    images, labels = torch.from_numpy(x[shuffled]).float() / 16, torch.from_numpy(y[shuffled])
    half = len(y) // 2
    return images[:half], labels[:half], images[half:], labels[half:]


def train(data: Data, rule: Rule, *, seed: int, epochs: int, rate: float = RATE, at_random: bool = False) -> Run:
    """One training of a small network."""
    x, y, x_test, y_test = data
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[DROP - 1])
    step = OrderedStep(
        model,
        nn.CrossEntropyLoss(reduction="none"),
        optimizer,
        q=rule,
        selection="random" if at_random else "top",
        generator=torch.Generator().manual_seed(seed),
    )
    errors: list[float] = []
    path: list[int] = []
    seconds = 0.0
    for _ in range(epochs):
        start = time.perf_counter()
        for batch in batches.epoch_batches(len(y), S, rng):
            index = torch.from_numpy(batch)
            step(x[index], y[index])
        seconds += time.perf_counter() - start
        path.append(step.q or S)
        step.end_epoch()
        scheduler.step()
        with torch.no_grad():
            outputs = model(x_test)
        errors.append(100 * (outputs.argmax(1) != y_test).double().mean().item())
    cross_entropy = nn.functional.cross_entropy(outputs, y_test).item()
    return Run(rate, errors[-1], min(errors), cross_entropy, tuple(path), seconds)


def best_rate(data: Data, rule: Rule, *, seed: int, epochs: int) -> float:
    """The rate of the grid with the lowest error on a fifth of the training half, held out."""
    x, y, _, _ = data
    cut = len(y) * 4 // 5
    held_out = (x[:cut], y[:cut], x[cut:], y[cut:])
    return min(GRID, key=lambda rate: train(held_out, rule, seed=seed, epochs=epochs, rate=rate).last)


def compare(seed: int, epochs: int) -> dict[str, Run]:
    """The trainings of one seed, on the same split, first weights and order of samples."""
    data = load(seed)
    plain, paper = FixedQ(1.0), AccuracyRule()
    ordered = train(data, paper, seed=seed, epochs=epochs)
    rates = [best_rate(data, rule, seed=seed, epochs=epochs) for rule in (plain, paper)]
    return {
        "SGD": train(data, plain, seed=seed, epochs=epochs),
        "ordered SGD": ordered,
        "random q": train(data, Replay(ordered.path), seed=seed, epochs=epochs, at_random=True),
        "SGD, best rate": train(data, plain, seed=seed, epochs=epochs, rate=rates[0]),
        "ordered, best rate": train(data, paper, seed=seed, epochs=epochs, rate=rates[1]),
    }


def in_words(runs: list[dict[str, Run]], one: str, other: str) -> str:
    """What the difference in test error says: mean over seeds, paired, and half its 99 % interval."""
    differences = [run[one].last - run[other].last for run in runs]
    mean, half = np.mean(differences), stats.t.ppf(0.995, len(runs) - 1) * stats.sem(differences)
    verdict = "not clearly different from" if abs(mean) <= half else "better than" if mean < 0 else "worse than"
    return f"{one} is {verdict} {other}: {mean:+.2f} ± {half:.2f} points of test error"


def main() -> None:
    """Train, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10, help="at least 2: the interval is over seeds")
    parser.add_argument("--epochs", type=int, default=30)
    arguments = parser.parse_args()
    if arguments.seeds < 2 or arguments.epochs < 1:
        parser.error("--seeds must be at least 2 and --epochs at least 1.")
    torch.set_num_threads(1)
    console = Console()
    seeds = track(range(arguments.seeds), description="seeds", console=console, transient=True)
    runs = [compare(seed, arguments.epochs) for seed in seeds]
    for one, other in [
        ("ordered SGD", "SGD"),
        ("ordered SGD", "random q"),
        ("ordered, best rate", "SGD, best rate"),
    ]:
        console.print(in_words(runs, one, other), highlight=False, soft_wrap=True)
    size = f"{arguments.seeds} seeds, {arguments.epochs} epochs"
    table = Table(title=f"digits, {size}: test error (std), cross-entropy (CE)")
    for column in ("method", "error %", "lowest", "rate", "CE", "q", "ms"):
        table.add_column(column, justify="left" if column == "method" else "right")
    for name in runs[0]:
        rows = [run[name] for run in runs]
        last, best, entropy = ([getattr(r, key) for r in rows] for key in ("last", "best", "cross_entropy"))
        table.add_row(
            name,
            f"{np.mean(last):.2f} ({np.std(last, ddof=1):.2f})",
            f"{np.mean(best):.2f}",
            ", ".join(f"{rate:g}" for rate in sorted({r.rate for r in rows})),
            f"{np.mean(entropy):.3f}",
            f"{rows[0].path[0]} to {min(r.path[-1] for r in rows)}",
            f"{1000 * np.mean([r.seconds for r in rows]) / arguments.epochs:.1f}",
        )
    console.print(table)


if __name__ == "__main__":
    main()
