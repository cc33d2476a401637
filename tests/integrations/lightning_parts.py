"""A LightningModule that knows nothing of ordered SGD, and a quiet trainer."""

import operator
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from torch import Tensor, nn

from tests.integrations.trainers import batches, network, sgd


class Net(pl.LightningModule):
    def __init__(self, criterion: Any) -> None:
        super().__init__()
        self.net = network()
        self.criterion = criterion

    def training_step(self, batch: list[Tensor], index: int) -> Any:
        return self.criterion(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        return sgd(self)


class Validated(Net):
    def validation_step(self, batch: list[Tensor], index: int) -> None:
        self.log("valid", self.criterion(self.net(batch[0]), batch[1]))


def fit(
    model: pl.LightningModule,
    *callbacks: Any,
    epochs: int = 2,
    train: Any = None,
    valid: Any = None,
    ckpt_path: Path | None = None,
    **options: Any,
) -> pl.Trainer:
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    quiet |= {"enable_checkpointing": False} if "default_root_dir" not in options else {}
    trainer = pl.Trainer(accelerator="cpu", max_epochs=epochs, callbacks=list(callbacks), **quiet, **options)
    loader = batches() if train is None else None if callable(train) else train  # or the module's own
    trainer.fit(model, loader, valid, ckpt_path=ckpt_path)
    return trainer


class Function(Net):
    """The criterion is a function in an attribute."""

    def __init__(self, function: Any) -> None:
        super().__init__(nn.Identity())
        self.loss_fn = function

    def training_step(self, batch: list[Tensor], index: int) -> Any:
        return self.loss_fn(self.net(batch[0]), batch[1])


class Nested(Net):
    """The criterion, with weights, lies in a submodule."""

    def __init__(self) -> None:
        super().__init__(nn.Identity())
        self.losses = nn.ModuleDict({"main": nn.CrossEntropyLoss()})

    def training_step(self, batch: list[Tensor], index: int) -> Any:
        return self.losses.main(self.net(batch[0]), batch[1])


def attribute(model: Any, name: str) -> Any:
    return operator.attrgetter(name)(model)
