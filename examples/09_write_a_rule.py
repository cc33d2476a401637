"""A rule of your own: q follows the error on held-out samples, beside the paper's rule, plain SGD and a random q.

A rule is any object with three members: `needs`, what it must be told; `first_q(s)`, the q of the first epoch; and
`next_q(q, s, observed)`, the q of the next one. It remembers nothing but q itself: the state is kept by whoever trains,
so that a checkpoint of `OrderedStep` carries it. The one below keeps a multiple of the samples that would be wrong in a
batch if training samples were as hard as held-out ones. The paper's rule goes by training accuracy, which nears 100 %
also where the held-out one does not. The rule is checked against the promises that every rule makes, stopped half way
and taken up again, and compared on scikit-learn's digits: with plain SGD at the same rate and at a larger one, with the
paper's rule, and with as many samples at random.

Run: python examples/09_write_a_rule.py            (a minute or two)
     python examples/09_write_a_rule.py --seeds 2 --epochs 4
"""

import argparse
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor, nn

from ordered_sgd import AccuracyRule, FixedQ, OrderedStep, batches
from ordered_sgd.lab.experiments.comparison import paired
from ordered_sgd.lab.experiments.plan import Replay
from ordered_sgd.lab.report.findings import in_words
from ordered_sgd.lab.report.summary import interval
from ordered_sgd.rules import Need, Observed, Rule

S, RATE, DROP = 64, 0.03, 20  # the rate is a tenth after so many epochs
# Keeping large losses acts partly as a larger step: so plain SGD also gets the best for it of 0.03, 0.1 and 0.3, by
# test error over a few seeds. The others do badly there.
LARGER = 0.3
Part = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class HeldOutRule:
    """Keep `factor` times as many samples as are wrong of s held-out ones; q grows back when their error does."""

    factor: float = 4.0
    q_min: int = 4
    needs: ClassVar[Need] = "accuracy"  # what end_epoch(accuracy=...) is given, or the training accuracy it counted

    def first_q(self, s: int) -> int:
        """The whole batch: nothing is known yet."""
        return s

    def next_q(self, q: int, s: int, observed: Observed) -> int:
        """The multiple of the wrong ones, not below the floor and not above the batch."""
        assert observed.accuracy is not None  # `needs` sees to that
        return min(s, max(self.q_min, math.ceil(self.factor * (1 - observed.accuracy) * s)))


def check(rule: Rule) -> None:
    """Raise unless the rule keeps what every rule promises: an int from 1 to s, and no memory of its own."""
    for s in (1, 2, 7, 64, 1000):
        q = rule.first_q(s)
        for epoch, accuracy in enumerate((0.0, 0.3, 0.95, 0.5, 1.0), 1):
            assert isinstance(q, int)
            assert 1 <= q <= s
            observed = Observed(epoch, accuracy=accuracy)
            answers = {rule.next_q(q, s, observed) for _ in range(2)}  # a batch larger than before asks once more
            assert len(answers) == 1
            q = answers.pop()


def split(seed: int) -> list[Part]:
    """Digits, 800 to train, 300 held out for the rule, 697 to test."""
    x, y = load_digits(return_X_y=True)
    parts = np.split(np.random.default_rng(seed).permutation(len(y)), [800, 1100])
    return [(torch.from_numpy(x[rows]).float() / 16, torch.from_numpy(y[rows])) for rows in parts]


def start(rule: Rule, seed: int, *, rate: float = RATE, at_random: bool = False) -> OrderedStep:
    """A network of one hidden layer at its first weights, with all that trains it."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    return OrderedStep(
        model,
        nn.CrossEntropyLoss(reduction="none"),
        torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9),
        q=rule,
        selection="random" if at_random else "top",
        generator=torch.Generator().manual_seed(seed),
    )


def accuracy(step: OrderedStep, part: Part) -> float:
    """Share of right answers."""
    with torch.no_grad():
        return float((step.model(part[0]).argmax(1) == part[1]).double().mean())


def train(step: OrderedStep, parts: list[Part], seed: int, epochs: int, *, told: bool = False) -> list[int]:
    """Train from wherever the step is to that epoch; the q of each. `told`: the rule gets the held-out accuracy."""
    (x, y), held_out, _ = parts
    path = []
    while step.epoch < epochs:
        for batch in batches.epoch_batches(len(y), S, np.random.default_rng([seed, step.epoch])):
            index = torch.from_numpy(batch)
            step(x[index], y[index])
        path.append(step.q or S)
        step.end_epoch(accuracy(step, held_out) if told else None)
        if step.epoch == DROP:
            step.optimizer.param_groups[0]["lr"] /= 10
    return path


def same_after_a_restart(seed: int, epochs: int) -> bool:
    """Whether a run of the rule that is saved half way and taken up by new objects has the same q and weights."""
    parts = split(seed)
    whole, stopped, resumed = (start(HeldOutRule(), seed) for _ in range(3))
    path = train(whole, parts, seed, epochs, told=True)
    before = train(stopped, parts, seed, epochs // 2, told=True)
    file = io.BytesIO()
    torch.save([stopped.model.state_dict(), stopped.optimizer.state_dict(), stopped.state_dict()], file)
    file.seek(0)
    model, optimizer, step = torch.load(file)
    resumed.model.load_state_dict(model)
    resumed.optimizer.load_state_dict(optimizer)
    resumed.load_state_dict(step)  # q, and what the rule has been told of the epoch
    after = train(resumed, parts, seed, epochs, told=True)
    weights = zip(whole.model.parameters(), resumed.model.parameters(), strict=True)
    return before + after == path and all(torch.equal(one, other) for one, other in weights)


def compare(seed: int, epochs: int) -> dict[str, tuple[float, list[int]]]:
    """Test error in percent and the q of each epoch, by method; all see the same samples in the same order."""
    parts = split(seed)
    own = start(HeldOutRule(), seed)
    path = train(own, parts, seed, epochs, told=True)
    others = {
        "SGD": start(FixedQ(1.0), seed),
        f"SGD, rate {LARGER:g}": start(FixedQ(1.0), seed, rate=LARGER),
        "paper's rule": start(AccuracyRule(), seed),
        "random, own q": start(Replay(tuple(path)), seed, at_random=True),
    }
    paths = {name: train(step, parts, seed, epochs) for name, step in others.items()} | {"own rule": path}
    steps = others | {"own rule": own}
    return {name: (100 * (1 - accuracy(step, parts[2])), paths[name]) for name, step in steps.items()}


def show(runs: Sequence[dict[str, tuple[float, list[int]]]], title: str) -> None:
    """Means over seeds, what each differs from plain SGD seed by seed, and where q went."""
    console, table = Console(), Table(title=title)
    errors = {name: [run[name][0] for run in runs] for name in runs[0]}
    for column in ("method", "test error %", "against SGD", "q half way", "q at the end"):
        table.add_column(column, justify="left" if column == "method" else "right")
    for name, values in errors.items():
        against = "" if name == "SGD" else interval(*paired(values, errors["SGD"])[:2])
        q = np.mean([run[name][1] for run in runs], axis=0)
        table.add_row(name, f"{np.mean(values):.2f}", against, f"{q[len(q) // 2]:.1f}", f"{q[-1]:.1f}")
    console.print(table)
    for other in (f"SGD, rate {LARGER:g}", "paper's rule", "random, own q"):
        difference = paired(errors["own rule"], errors[other])
        numbers = f"{interval(difference.mean, difference.half)} points of test error, {difference.seeds} seeds"
        console.print(f"own rule is {in_words(difference)} {other}: {numbers}", highlight=False, soft_wrap=True)


def main() -> None:
    """Check the rule, train with it, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20, help="at least 2: the interval is over seeds")
    parser.add_argument("--epochs", type=int, default=30)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    check(HeldOutRule())
    same = same_after_a_restart(0, arguments.epochs)
    print(f"the rule keeps its promises; saved half way, it goes on {'alike' if same else 'otherwise'}")
    seeds = track(range(arguments.seeds), description="seeds", transient=True)
    runs = [compare(seed, arguments.epochs) for seed in seeds]
    show(runs, f"digits, 800 to train, {arguments.epochs} epochs, means of {arguments.seeds} seeds")


if __name__ == "__main__":
    main()
