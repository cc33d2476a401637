"""A LightningModule that computes its loss inline, trained on the q largest losses: two lines change.

`F.cross_entropy(...)` inside `training_step` leaves no attribute that `OrderedCallback` could swap. So the module asks
for one loss per sample and takes `ordered_mean`, and `selective_backward` makes its network skip the backward pass of
the other samples. All samples are kept in the first epochs, when the largest losses say little. The plain and the
ordered module train in turn with the same first weights, order of samples and learning rate. Data: scikit-learn's
handwritten digits, 1,438 to train and 359 to test; the network is a small vision transformer.

Run: python examples/10_lightning_inline.py [--q 0.125] [--epochs 12]
"""

import argparse
import logging
import statistics
import time
import warnings
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from ordered_sgd import explain_backward, ordered_mean, selective_backward
from ordered_sgd.lab import data

S, WIDTH, PATCHES = 64, 96, 16  # batch size; width of the network; patches of 2 x 2 pixels
WHOLE = 4  # epochs that keep all samples


class Network(nn.Module):
    """Scores (s, 10) of images (s, 1, 8, 8)."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, WIDTH, kernel_size=2, stride=2)
        self.position = nn.Parameter(0.02 * torch.randn(PATCHES, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.classifier = nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        """The scores."""
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.position
        scores: Tensor = self.classifier(self.layers(tokens).mean(1))
        return scores


class Plain(pl.LightningModule):
    """As tutorials write it."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Network()

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        """The loss of a batch."""
        x, y = batch
        return F.cross_entropy(self.net(x), y)

    def configure_optimizers(self) -> Any:
        """AdamW."""
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class Ordered(Plain):
    """The same with the q largest losses."""

    def __init__(self, q: float) -> None:
        super().__init__()
        self.q = q
        self.net = selective_backward(self.net)  # new

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        """The ordered loss of a batch."""
        x, y = batch
        q = 1.0 if self.current_epoch < WHOLE else self.q
        return ordered_mean(F.cross_entropy(self.net(x), y, reduction="none"), q)  # changed


class Clock(pl.Callback):
    """Seconds of processor time of each step."""

    def __init__(self) -> None:
        self.steps: list[float] = []

    def on_train_batch_start(self, *_: Any) -> None:
        """A step begins."""
        self._start = time.process_time()

    def on_train_batch_end(self, *_: Any) -> None:
        """A step has ended."""
        self.steps.append(time.process_time() - self._start)


def digits(split: data.dataset.Split) -> TensorDataset:
    """Images (n, 1, 8, 8) with values from 0 to 1."""
    part = data.load("digits", split)
    return TensorDataset(torch.from_numpy(part.x).reshape(-1, 1, 8, 8) / 255, torch.from_numpy(part.y))


def trainer(epochs: int, clock: Clock) -> pl.Trainer:
    """A trainer that writes nothing."""
    quiet: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    return pl.Trainer(accelerator="cpu", max_epochs=epochs, callbacks=[clock], enable_model_summary=False, **quiet)


def main() -> None:
    """Train both, and print what the second saved."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--q", type=float, default=0.125, help="share of each batch that is kept")
    parser.add_argument("--epochs", type=int, default=12)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", ".*does not have many workers.*")
    train, (x_test, y_test) = digits("train"), digits("test").tensors

    clocks: dict[str, Clock] = {}
    for name in ("plain", "ordered"):
        torch.manual_seed(0)
        model = Plain() if name == "plain" else Ordered(arguments.q)
        clocks[name] = Clock()
        batches = DataLoader(train, S, shuffle=True, generator=torch.Generator().manual_seed(0), drop_last=True)
        trainer(arguments.epochs, clocks[name]).fit(model, batches)
        with torch.no_grad():
            wrong = (model.eval().net(x_test).argmax(1) != y_test).double().mean().item()
        seconds = clocks[name].steps
        last = statistics.median(seconds[-len(batches) :])
        took = f"{sum(seconds):.1f} s, a step of the last epoch {1000 * last:.1f} ms"
        print(f"{name}: test error {100 * wrong:.2f} %, {took}")

    print(explain_backward(model.net))
    plain, ordered = (statistics.median(clock.steps[-len(batches) :]) for clock in clocks.values())
    first = clocks["ordered"].steps[0]
    print(f"the last epoch was {plain / ordered:.2f} times as fast; the first step compiles and took {first:.1f} s")


if __name__ == "__main__":
    main()
