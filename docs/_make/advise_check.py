"""Is the advice right? Twelve trainings: what `advise` expects, beside what the whole training takes.

``python docs/_make/advise_check.py`` runs what has no record yet and writes the table into docs/advise.md; ``--page``
only writes the table. Six of the trainings were used while `advise` was written, six were set aside. It needs the data
folder (MNIST, Fashion-MNIST and part of CIFAR-10), a quiet machine and about 40 minutes.
"""

import argparse
import copy
import json
import sysconfig
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.utils.data import DataLoader, TensorDataset

from ordered_sgd import AccuracyRule, OrderedLoss, OrderedStep, selective_backward
from ordered_sgd.lab.advise import advise
from ordered_sgd.lab.advise.forecast import PAPER, RECOMMENDED, WORTH
from ordered_sgd.lab.bench.workloads import CausalTransformer, ViT
from ordered_sgd.lab.data import load
from ordered_sgd.lab.models import LeNet, PreActResNet18, build, channels_last
from ordered_sgd.lab.report.marked import fill, markdown_table

PAGE = Path(__file__).parents[1] / "advise.md"
RECORD = Path(__file__).parents[1] / "records" / "advise.json"
MINUTES, WAYS = 1.0, ("plain SGD", *RECOMMENDED)
CLOSE = 0.15  # of the time that was measured


@dataclass(frozen=True)
class Training:
    """A training to be advised on: its parts, and its length."""

    model: nn.Module
    criterion: Callable[..., Tensor]  # one loss per sample
    loader: Iterable[Any]
    epochs: int
    test: tuple[Tensor, Tensor]
    optimizer: Callable[[nn.Module], Optimizer] = lambda model: torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)


def images(name: str, model: nn.Module, n: int, epochs: int, **more: Any) -> Training:
    """A classifier of the first n images of a set."""
    x, y = _tensors(load(name, "train", partial=True), n)
    test = _tensors(load(name, "test", partial=True), 1000)
    loader = DataLoader(TensorDataset(x, y), 64, shuffle=True)
    return Training(channels_last(model), nn.CrossEntropyLoss(reduction="none"), loader, epochs, test, **more)


def _tensors(data: Any, n: int) -> tuple[Tensor, Tensor]:
    order = np.random.default_rng(0).permutation(len(data))[:n]
    return torch.from_numpy(data.x[order]).float() / float(data.x.max()), torch.from_numpy(data.y[order])


def flat(training: Training) -> Training:
    """The same with images as vectors."""
    return Training(nn.Sequential(nn.Flatten(), training.model), *list(vars(training).values())[1:])


class Rows(nn.Module):
    """An LSTM that reads an image row by row."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(28, 128, batch_first=True), nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Scores (s, 10) of images (s, 1, 28, 28)."""
        scores: Tensor = self.out(self.lstm(x[:, 0])[0][:, -1])
        return scores


def adam(rate: float) -> Callable[[nn.Module], Optimizer]:
    """A maker of Adam."""
    return lambda model: torch.optim.Adam(model.parameters(), rate)


def per_sequence(outputs: Tensor, y: Tensor) -> Tensor:
    """Mean loss of each sequence."""
    return F.cross_entropy(outputs.transpose(1, 2), y, reduction="none").mean(1)


def python_text() -> Training:
    """A byte-level language model of Python's own library."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:60]
    text = torch.frombuffer(bytearray(b"".join(file.read_bytes() for file in files)), dtype=torch.uint8).long()
    windows = text[: len(text) // 65 * 65].view(-1, 65)
    windows = windows[torch.randperm(len(windows), generator=torch.Generator().manual_seed(0))][:2000]
    x, y = windows[:, :-1].contiguous(), windows[:, 1:].contiguous()
    model = CausalTransformer(layers=2, width=128, length=64)
    loader = DataLoader(TensorDataset(x[:1800], y[:1800]), 32, shuffle=True)
    return Training(model, per_sequence, loader, 8, (x[1800:], y[1800:]), adam(1e-3))


def table() -> Training:
    """Regression on a table."""
    from sklearn.datasets import load_diabetes

    x, y = load_diabetes(return_X_y=True)
    x, y = torch.tensor(x * 20).float(), torch.tensor((y - y.mean()) / y.std()).float()
    model = nn.Sequential(
        nn.Linear(10, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1), nn.Flatten(0)
    )
    loader = DataLoader(TensorDataset(x[:350], y[:350]), 64, shuffle=True)
    return Training(model, nn.MSELoss(reduction="none"), loader, 200, (x[350:], y[350:]))


def mlp() -> nn.Module:
    """Two hidden layers of 1,024."""
    return nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))


def norm_free(width: float, norm: Any) -> nn.Module:
    """A residual network of a small width."""
    return PreActResNet18(width=width, norm=norm)


SEEN: dict[str, Callable[[], Training]] = {
    "LeNet, Fashion-MNIST": lambda: images("fashion-mnist", LeNet(), 4000, 12),
    "LeNet, Semeion": lambda: images("semeion", build("lenet", (1, 16, 16), 10), 1000, 40),
    "linear, digits": lambda: flat(images("digits", nn.Linear(64, 10), 1400, 60)),
    "ViT, CIFAR-10": lambda: images("cifar10", ViT(layers=2), 2000, 6, optimizer=adam(1e-3)),
    "MLP, MNIST": lambda: flat(images("mnist", mlp(), 5000, 15)),
    "ResNet with BatchNorm, CIFAR-10": lambda: images("cifar10", norm_free(0.25, "batch"), 1500, 4),
}
ASIDE: dict[str, Callable[[], Training]] = {
    "LeNet, MNIST": lambda: images("mnist", LeNet(), 4000, 12),
    "LSTM over rows, MNIST": lambda: images("mnist", Rows(), 4000, 15, optimizer=adam(2e-3)),
    "ResNet with GroupNorm, CIFAR-10": lambda: images("cifar10", norm_free(0.25, "group"), 1500, 4),
    "transformer, Python's library": python_text,
    "linear, MNIST": lambda: flat(images("mnist", nn.Linear(784, 10), 6000, 20)),
    "MLP, diabetes (regression)": table,
}


def train(training: Training, way: str, engine: str) -> tuple[float, float]:
    """Seconds of a whole training, and its test error in percent, or mean loss where there are no classes."""
    torch.manual_seed(0)
    model = copy.deepcopy(training.model).train()
    optimizer = training.optimizer(model)
    q: Any = AccuracyRule() if way == PAPER else 0.5
    start = time.perf_counter()
    if way == WAYS[0]:
        for _ in range(training.epochs):
            for x, y in training.loader:
                optimizer.zero_grad()
                training.criterion(model(x), y).mean().backward()
                optimizer.step()
    elif engine == "selective":
        selective_backward(model)
        loss_of = OrderedLoss(training.criterion, q=q)
        for _ in range(training.epochs):
            for x, y in training.loader:
                optimizer.zero_grad()
                loss_of(model(x), y).backward()
                optimizer.step()
            loss_of.end_epoch()
    else:
        step = OrderedStep(model, training.criterion, optimizer, q=q, engine=engine)  # type: ignore[arg-type]
        for _ in range(training.epochs):
            for x, y in training.loader:
                step(x, y)
            step.end_epoch()
    seconds = time.perf_counter() - start
    x, y = training.test
    with torch.no_grad():
        outputs = model.eval()(x)
        if outputs.dim() == 2 and not y.is_floating_point():
            return seconds, 100 * float((outputs.argmax(1) != y).float().mean())
        return seconds, float(training.criterion(outputs, y).mean())


def check(name: str, make: Callable[[], Training]) -> dict[str, Any]:
    """What is expected of a training, and what it takes."""
    torch.manual_seed(0)
    training = make()
    optimizer = training.optimizer(training.model)
    found = advise(
        training.model, training.criterion, training.loader, optimizer, epochs=training.epochs, minutes=MINUTES
    )
    ways = {way.way: asdict(way) for way in found.expected if way.way in WAYS}
    for way, row in ways.items():
        row["measured"], row["test"] = train(training, way, row["engine"])
    return {
        "name": name,
        "aside": name in ASIDE,
        "verdict": found.verdict,
        "worth": found.worth,
        "ways": ways,
        "machine": found.machine,
    }


def rows_of(record: list[dict[str, Any]]) -> list[dict[str, str]]:
    """A row for each training."""
    rows = []
    for one in record:
        ways = one["ways"]
        row = {"training": one["name"], "set aside": "yes" if one["aside"] else ""}
        for way in WAYS:
            expected, measured = ways.get(way, {}).get("seconds"), ways.get(way, {}).get("measured")
            row[way] = "" if measured is None else f"{expected:.1f} / {measured:.1f} s"
        row["worth it?"] = f"{_yes(one['worth'])} / {_yes(truly(one))}"
        tests = [f"{ways[way]['test']:.3g}" for way in WAYS if way in ways]
        rows.append(row | {"test error": " / ".join(tests)})
    return rows


def _yes(answer: bool) -> str:
    return "yes" if answer else "no"


def truly(one: dict[str, Any]) -> bool:
    """Whether it was worth it, as measured."""
    ways = one["ways"]
    return bool(min(ways[way]["measured"] for way in RECOMMENDED if way in ways) <= WORTH * ways[WAYS[0]]["measured"])


def said(record: list[dict[str, Any]]) -> str:
    """How often the advice was right."""
    parts = []
    for title, group in (("All", record), ("Set aside", [one for one in record if one["aside"]])):
        pairs = [(way["seconds"], way["measured"]) for one in group for way in one["ways"].values()]
        close = sum(abs(expected - measured) <= CLOSE * measured for expected, measured in pairs)
        shares = [
            (way["ratio"], way["measured"] / one["ways"][WAYS[0]]["measured"])
            for one in group
            for name, way in one["ways"].items()
            if name != WAYS[0]
        ]
        near = sum(abs(expected - measured) <= CLOSE * measured for expected, measured in shares)
        right = sum(one["worth"] == truly(one) for one in group)
        text = (
            f"{title}: the verdict was right in {right} of {len(group)}; the expected time was within 15 % in {close} "
        )
        text += f"of {len(pairs)} trainings, the expected share of plain SGD's time in {near} of {len(shares)}."
        parts.append(text)
    return " ".join(parts)


def main() -> None:
    """Run what is missing, and write the table between its marks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", action="store_true", help="only write the table, from the record")
    parser.add_argument("--only", action="append", help="trainings whose name contains this; run again")
    options = parser.parse_args()
    torch.set_num_threads(1)
    record = json.loads(RECORD.read_text()) if RECORD.exists() else []
    for name, make in {} if options.page else (SEEN | ASIDE).items():
        known = any(one["name"] == name for one in record)
        asked = options.only and any(part in name for part in options.only)
        if asked or not (known or options.only):
            one = check(name, make)
            record = [other for other in record if other["name"] != name] + [one]
            print(rows_of([one])[0], one["verdict"], flush=True)
            RECORD.write_text(json.dumps(record, indent=1) + "\n")
    names = list(SEEN | ASIDE)
    record.sort(key=lambda one: names.index(one["name"]))
    if record and PAGE.exists():
        PAGE.write_text(fill(PAGE.read_text(), "advise-check", [said(record), markdown_table(rows_of(record))]))
    print(said(record))


if __name__ == "__main__":
    main()
