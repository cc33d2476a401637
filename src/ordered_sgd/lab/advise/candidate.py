"""What is advised on: a model, its loss, batches of its data and its optimizer."""

import copy
import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer
from torch.utils._pytree import tree_map

from ordered_sgd.criterion import check_returned, countable, setting_of
from ordered_sgd.engines.auto import convolves_channels_last
from ordered_sgd.errors import ArgumentError, message
from ordered_sgd.lab.bench.opponents import call
from ordered_sgd.rewind import device_of

Batch = tuple[Any, Tensor]
PerSample = Callable[[Any, Any], Tensor]

_HELD = 32  # batches that are kept to be looked at again
_SAMPLES = 2048  # and no more samples than these
_REMEDY = "Yield pairs (x, y), or dicts with labels."


@dataclass(frozen=True)
class Candidate:
    """A training to be advised on.

    Parameters
    ----------
    model
        In training mode; it is never changed, only copied.
    criterion
        One loss per sample, shape (s,).
    loader
        Yields the batches of an epoch each time it is iterated over.
    make_optimizer
        ``make_optimizer(model)`` returns the optimizer of a copy of the model.
    held
        The first full batches, to be measured with.
    countable
        Whether right answers can be counted, which the paper's rule needs.
    """

    model: nn.Module
    criterion: PerSample
    loader: Iterable[Any]
    make_optimizer: Callable[[nn.Module], Optimizer]
    held: tuple[Batch, ...]
    countable: bool

    @property
    def s(self) -> int:
        """The batch size."""
        return len(self.held[0][1])

    @property
    def coupled(self) -> bool:
        """Whether BatchNorm couples the samples of a batch in training."""
        return any(isinstance(module, _BatchNorm) and module.training for module in self.model.modules())

    def epoch(self) -> Iterator[Batch]:
        """The batches of an epoch, where the model is."""
        device, convolves = device_of(self.model), convolves_channels_last(self.model)
        return (placed(pair(batch), device, channels_last=convolves) for batch in self.loader)

    def copy(self) -> nn.Module:
        """A copy of the model to train."""
        return copy.deepcopy(self.model)


def make_candidate(
    model: nn.Module, criterion: Callable[..., Tensor], loader: Iterable[Any], optimizer: Optimizer | None
) -> Candidate:
    """A `Candidate` of what a training loop has, or one clear error."""
    _check_parts(model, loader, optimizer)
    make = plain_sgd if optimizer is None else alike(optimizer, model)
    trained, losses = model.training, per_sample(criterion)
    model = copy.deepcopy(model)
    if not trained:  # a model in training keeps the modes of its parts: BatchNorm may be frozen on purpose
        model.train()
    device, convolves = device_of(model), convolves_channels_last(model)
    drawn = [placed(pair(batch), device, channels_last=convolves) for batch in itertools.islice(loader, _HELD)]
    held = _of_one_size(drawn)
    x, y = held[0]
    with torch.no_grad():
        outputs = call(copy.deepcopy(model), x)
        found = losses(outputs, y)
    answers = isinstance(outputs, Tensor) and outputs.dim() == 2 and countable(criterion, outputs, y, found)
    return Candidate(model, losses, loader, make, held, answers)


def _check_parts(model: Any, loader: Any, optimizer: Any) -> None:
    """Refuse what cannot be measured, before anything is copied."""
    if not isinstance(model, nn.Module):
        got, remedy = type(model).__name__, "Pass the model that you train."
        raise ArgumentError(message("advise", "model", "be a torch module", got, remedy))
    if not any(parameter.requires_grad for parameter in model.parameters()):
        got, remedy = "none", "Set requires_grad where it trains."
        raise ArgumentError(message("advise", "model", "have parameters to train", got, remedy))
    if not isinstance(loader, Iterable) or isinstance(loader, nn.Module):
        got, remedy = type(loader).__name__, "Pass a DataLoader, or a list of batches."
        raise ArgumentError(message("advise", "loader", "yield batches", got, remedy))
    if isinstance(loader, Iterator):
        remedy = "Pass the DataLoader, or a list of its batches."
        rule = "be one that can be gone through several times"
        raise ArgumentError(message("advise", "loader", rule, f"a {type(loader).__name__}", remedy))
    if optimizer is not None and (not isinstance(optimizer, Optimizer) or isinstance(optimizer, torch.optim.LBFGS)):
        got, remedy = type(optimizer).__name__, "Leave it out for SGD at a rate of 0.01."
        rule = "be a torch optimizer whose step needs no closure"
        raise ArgumentError(message("advise", "optimizer", rule, got, remedy))


def _of_one_size(drawn: list[Batch]) -> tuple[Batch, ...]:
    """The batches of the usual size, which most of them must have."""
    if not drawn:
        raise ArgumentError(message("advise", "loader", "yield batches", "none", _REMEDY))
    (s, times), *others = Counter(len(y) for _, y in drawn).most_common()
    if 2 * times <= len(drawn) and others:
        sizes = [len(y) for _, y in drawn]
        got, remedy = f"sizes from {min(sizes)} to {max(sizes)}", "Use a fixed batch_size to be advised."
        raise ArgumentError(message("advise", "loader", "yield batches of one size, but for the last", got, remedy))
    if s < 2:
        remedy = "Of a single sample nothing can be left out."
        raise ArgumentError(message("advise", "loader", "yield batches of at least 2 samples", s, remedy))
    return tuple((x, y) for x, y in drawn if len(y) == s)[: max(1, _SAMPLES // s)]


def pair(batch: Any) -> Batch:
    """The inputs and targets of what a loader yields."""
    if isinstance(batch, Mapping) and "labels" in batch:
        return {name: part for name, part in batch.items() if name != "labels"}, batch["labels"]
    if isinstance(batch, tuple | list) and len(batch) == 2 and isinstance(batch[1], Tensor):
        return batch[0], batch[1]
    got = f"a {type(batch).__name__}" + (f" of {len(batch)}" if isinstance(batch, tuple | list) else "")
    raise ArgumentError(message("advise", "loader", "yield inputs and targets", got, _REMEDY))


def placed(batch: Batch, device: torch.device, *, channels_last: bool) -> Batch:
    """A batch on a device, its images in the layout of the convolutions."""

    def place(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        leaf = leaf.to(device)
        return leaf.to(memory_format=torch.channels_last) if channels_last and leaf.dim() == 4 else leaf

    x, y = tree_map(place, batch)
    return (tuple(x) if isinstance(x, list) else x), y


def per_sample(criterion: Callable[..., Tensor]) -> PerSample:
    """The criterion with one loss per sample: `reduction` is set to "none", and further dimensions are averaged."""
    if not callable(criterion):
        got, remedy = type(criterion).__name__, "Pass the loss that you train."
        raise ArgumentError(message("advise", "criterion", "be callable", got, remedy))
    if isinstance(criterion, nn.Module) and isinstance(setting_of(criterion, "reduction"), str):
        criterion = copy.deepcopy(criterion)
        criterion.reduction = "none"  # type: ignore[assignment]
    elif isinstance(setting_of(criterion, "reduction"), str):
        criterion = functools.partial(criterion, reduction="none")

    def losses(outputs: Any, y: Any) -> Tensor:
        found = criterion(outputs, y)
        if isinstance(found, Tensor) and found.dim() == 1 and len(found) == y.numel() != len(y):
            found = found.view(len(y), -1)  # one for each token, the sequences one after the other
        found = check_returned(found, (outputs, y), {}, "advise")
        return found if found.dim() == 1 else found.flatten(1).mean(1)

    return losses


def plain_sgd(model: nn.Module) -> Optimizer:
    """The paper's optimizer."""
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)


def alike(optimizer: Optimizer, model: nn.Module) -> Callable[[nn.Module], Optimizer]:
    """A maker of copies of the optimizer, each for a copy of the model that it trains.

    >>> model = nn.Linear(2, 1)
    >>> make = alike(torch.optim.Adam(model.parameters(), lr=0.5), model)
    >>> make(copy.deepcopy(model)).param_groups[0]["lr"]
    0.5
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if any(id(parameter) not in names for parameter in trained):
        remedy = "Build it from model.parameters()."
        raise ArgumentError(message("advise", "optimizer", "train the model's parameters", "others", remedy))

    def make(copied: nn.Module) -> Optimizer:
        own = dict(copied.named_parameters())
        return copy.deepcopy(optimizer, {id(parameter): own[names[id(parameter)]] for parameter in trained})

    return make
