"""LightningModules that call their networks and their criterion in other ways."""

from typing import Any

import torch
from torch import Tensor, nn

from tests.integrations.lightning_parts import Net
from tests.integrations.trainers import network, sgd


class BySelf(Net):
    """training_step calls the LightningModule, as examples often do."""

    def __init__(self) -> None:
        super().__init__(nn.CrossEntropyLoss())

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.net(x)
        return outputs

    def training_step(self, batch: list[Tensor], index: int) -> Any:
        return self.criterion(self(batch[0]), batch[1])


class LossInside(BySelf):
    """The criterion is called in `forward`."""

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        outputs: Tensor = self.net(x)
        return self.criterion(outputs, y)  # type: ignore[no-any-return]

    def training_step(self, batch: list[Tensor], index: int) -> Any:
        return self(*batch)


class Weighted(nn.Module):
    """A criterion of parts, with a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.ce = nn.CrossEntropyLoss()

    def forward(self, outputs: Tensor, y: Tensor) -> Tensor:
        return self.ce(outputs * self.scale, y) + 0.1 * self.scale.square()  # type: ignore[no-any-return]


class Composite(BySelf):
    """The criterion has parts, and the network is called in two."""

    def __init__(self) -> None:
        super().__init__()
        self.criterion = Weighted()

    def training_step(self, batch: list[Tensor], index: int) -> Any:
        return self.criterion(self.net[2](self.net[:2](batch[0])), batch[1])


class WithBatchNorm(BySelf):
    """Samples influence each other."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.BatchNorm1d(6), network())


class CompiledPart(BySelf):
    """The network is compiled inside the LightningModule that is called."""

    def __init__(self) -> None:
        super().__init__()
        self.net.compile(backend="eager")


class CompiledOutside(Net):
    """torch.compile has made another module of the network."""

    def __init__(self) -> None:
        super().__init__(nn.CrossEntropyLoss())
        self.net = torch.compile(network(), backend="eager")


class PartAndWhole(BySelf):
    """A part of the network is called first by itself, then in the whole."""

    def training_step(self, batch: list[Tensor], index: int) -> Any:
        hidden = self.net[0](batch[0])
        return self.criterion(self(batch[0]) + hidden[:, :4], batch[1])


class Adversaries(BySelf):
    """Two networks with an optimizer each, stepped by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.maker = nn.Linear(6, 6)

    def training_step(self, batch: list[Tensor], index: int) -> None:
        x, y = batch
        for optimizer, inputs in zip(self.optimizers(), (self.maker(x), self.maker(x).detach()), strict=True):
            self.toggle_optimizer(optimizer)
            optimizer.zero_grad()
            self.manual_backward(self.criterion(self.net(inputs), y))
            optimizer.step()
            self.untoggle_optimizer(optimizer)

    def configure_optimizers(self) -> Any:
        return [sgd(self.maker), sgd(self.net)]
