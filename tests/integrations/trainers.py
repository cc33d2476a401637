"""The same training by every trainer: what is compared with a plain loop. Partners are imported where they are used."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from ordered_sgd import OrderedLoss, explain_backward, selective_backward
from ordered_sgd.rules import Observed

S, BATCHES, CLASSES = 8, 10, 4


@dataclass(frozen=True)
class Falling:
    """A rule by the calendar that tells what it was asked: 8, 4, 2, 1, 1, ..."""

    asked: list[tuple[int, float | None]] = field(default_factory=list, compare=False)
    needs: Any = "accuracy"

    def first_q(self, s: int) -> int:
        return s

    def next_q(self, q: int, s: int, observed: Observed) -> int:
        self.asked.append((observed.epoch, observed.accuracy))
        return max(1, q // 2)


def samples() -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    x = torch.randn(S * BATCHES, 6, generator=g)
    return x, (x[:, :CLASSES] + torch.randn(len(x), CLASSES, generator=g)).argmax(1)


def batches(s: int = S) -> DataLoader[Any]:
    return DataLoader(TensorDataset(*samples()), s)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, CLASSES))


def sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


@dataclass
class Task:
    """What is to be trained, and how."""

    how: dict[str, Any]
    folder: Path
    epochs: int = 2  # of ten steps
    criterion: Any = None
    stop: int | None = None  # save after this many epochs, and go on from there in new objects
    selective: bool = False


@dataclass
class Outcome:
    weights: Tensor
    q: int | None
    epoch: int
    ran: str | None = None  # what backward passes computed


def outcome(model: nn.Module, loss_fn: OrderedLoss, ran: str | None = None) -> Outcome:
    return Outcome(torch.cat([p.detach().flatten() for p in model.parameters()]), loss_fn.q, loss_fn.epoch, ran)


def plain_loop(task: Task) -> Outcome:
    model, loss_fn = network(), OrderedLoss(nn.CrossEntropyLoss(reduction="none"), **task.how)
    optimizer = sgd(model)
    for _ in range(task.epochs):
        for x, y in batches():
            optimizer.zero_grad()
            loss_fn(model(x), y).backward()
            optimizer.step()
        loss_fn.end_epoch()
    return outcome(model, loss_fn)


def by_lightning(task: Task) -> Outcome:
    from ordered_sgd.integrations.lightning import OrderedCallback
    from tests.integrations.lightning_parts import Net, fit

    criterion = nn.CrossEntropyLoss() if task.criterion is None else task.criterion
    for epochs in [task.stop, task.epochs] if task.stop else [task.epochs]:
        resumed = task.stop is not None and epochs == task.epochs
        model, callback = Net(criterion), OrderedCallback(**task.how, selective=task.selective)
        trainer = fit(model, callback, epochs=epochs, ckpt_path=task.folder / "run.ckpt" if resumed else None)
        trainer.save_checkpoint(task.folder / "run.ckpt")
    return outcome(model, callback.loss_fn, callback.backward_ran)


def by_huggingface(task: Task) -> Outcome:
    from ordered_sgd.integrations.huggingface import OrderedLossFunc, OrderedRule
    from tests.integrations.huggingface_parts import Logits, fit

    for epochs in [task.stop, task.epochs] if task.stop else [task.epochs]:
        resume = task.stop is not None and epochs == task.epochs
        loss_func = OrderedLossFunc("sequence", criterion=task.criterion, **task.how)
        model = Logits(network())
        rows = [{"x": x, "labels": y} for x, y in zip(*samples(), strict=True)]
        options: dict[str, Any] = {"epochs": epochs, "saves": True, "resume": resume, "selective": task.selective}
        trainer = fit(model, rows, task.folder, compute_loss_func=loss_func, **options)
    (rule,) = (callback for callback in trainer.callback_handler.callbacks if isinstance(callback, OrderedRule))
    return outcome(model, loss_func.loss_fn, rule.backward_ran)


def by_skorch(task: Task) -> Outcome:
    from ordered_sgd.integrations.skorch import OrderedNeuralNetClassifier

    criterion = nn.CrossEntropyLoss if task.criterion is None else functools.partial(_given, task.criterion)
    options = {"lr": 0.1, "optimizer__momentum": 0.9, "batch_size": S, "train_split": None, "verbose": 0}
    options["selective"] = task.selective
    how = {name if name == "q" else f"ordered__{name}": value for name, value in task.how.items()}
    files = {f"f_{name}": task.folder / name for name in ("params", "optimizer", "ordered")}
    x, y = samples()
    for epochs in [task.stop, task.epochs - task.stop] if task.stop else [task.epochs]:
        net = OrderedNeuralNetClassifier(network(), criterion=criterion, max_epochs=epochs, **how, **options)
        net.initialize()
        if files["f_ordered"].exists():
            net.load_params(**files)
        net.partial_fit(x, y)
        net.save_params(**files)
    return outcome(net.module_, net.ordered_, net.backward_ran_)


def _given(criterion: Any) -> Any:
    """skorch makes its criterion by a call."""
    return criterion


def by_accelerate(task: Task) -> Outcome:
    from accelerate import Accelerator

    criterion = nn.CrossEntropyLoss(reduction="none") if task.criterion is None else task.criterion
    for epochs in [task.stop, task.epochs] if task.stop else [task.epochs]:
        accelerator = Accelerator(cpu=True)
        model = selective_backward(network()) if task.selective else network()
        loss_fn = OrderedLoss(criterion, **task.how)
        model, optimizer, loader = accelerator.prepare(model, sgd(model), batches())
        accelerator.register_for_checkpointing(loss_fn)
        if (task.folder / "state").exists():
            accelerator.load_state(str(task.folder / "state"))
        while loss_fn.epoch < epochs:
            for x, y in loader:
                optimizer.zero_grad()
                accelerator.backward(loss_fn(model(x), y))
                optimizer.step()
            loss_fn.end_epoch()
        accelerator.save_state(str(task.folder / "state"))
    return outcome(model, loss_fn, "only kept samples" if explain_backward(model).skipping else None)


TRAINERS: dict[str, Callable[[Task], Outcome]] = {
    "lightning": by_lightning,
    "huggingface": by_huggingface,
    "skorch": by_skorch,
    "accelerate": by_accelerate,
}
