"""The setting of a run: its model, its loss, its batches, and what every way of running epochs offers."""

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from ordered_sgd.lab.data.catalog import CATALOG
from ordered_sgd.lab.data.dataset import Dataset
from ordered_sgd.lab.data.protocol import Recipe, Scaling, recipe
from ordered_sgd.lab.data.source import BatchSource
from ordered_sgd.lab.experiments.evaluate import Scores, criterion_for
from ordered_sgd.lab.experiments.judged import class_weights
from ordered_sgd.lab.experiments.plan import EVALUATE
from ordered_sgd.lab.experiments.spec import ExperimentSpec
from ordered_sgd.lab.models import build, channels_last
from ordered_sgd.policy import Policy
from ordered_sgd.sampler import OrderedBatchSampler
from ordered_sgd.step import OrderedStep


class Setting:
    """What a run trains, and the samples it uses.

    Attributes
    ----------
    model, criterion
        The model, with weights drawn by the seed unless it is the user's own, and its loss per sample.
    source
        Batches to train on, shuffled and augmented.
    plain, test
        The training set without augmentation, and the test set, in their stored order.
    scaling
        How samples are scaled, without augmentation.
    """

    def __init__(self, spec: ExperimentSpec, train: Dataset, test: Dataset, own_model: nn.Module | None) -> None:
        torch.manual_seed(spec.seed)  # weights and dropout draw from torch's own generator
        self.spec, self.train_set = spec, train
        self.model, changes = own_model or model_for(spec, train), changes_for(spec, train)
        self.criterion = criterion_for(spec.loss, mixed=changes.mixup is not None, weights=weights_for(spec, train))
        self.source = BatchSource.by_recipe(train, min(spec.s, len(train)), changes, rng=spec.seed)
        self.scaling = Recipe(changes.scaling)
        self.plain, self.test = still(train, self.scaling, spec.seed), still(test, changes, spec.seed)


class Trained(NamedTuple):
    """Samples that were trained on: their positions, their losses, and which of them were kept.

    `sums` are to be added over an epoch; `engine` is empty for a smaller last batch. `scored` are the samples whose
    losses were computed, if not all were.
    """

    sums: dict[str, float]
    engine: str
    indices: Tensor
    losses: Tensor
    rows: Tensor
    scored: Tensor | None = None


class Epochs(Protocol):
    """A way to run epochs, with all the state that it needs."""

    @property
    def ordered(self) -> OrderedStep | Policy | OrderedBatchSampler:
        """Holds the present q and its rule."""

    def train(self, epoch: int, rate: float) -> Iterator[Trained]:
        """Train for the rest of an epoch; after each item the state can be saved."""

    def accuracy(self) -> float | None:
        """Training accuracy by a second pass in training mode; None where the scores of the set tell it."""

    def scores(self, source: BatchSource) -> Scores:
        """Scores and losses of all samples of a source."""

    def state_dict(self) -> dict[str, Any]:
        """Everything that the following epochs depend on, with the model."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""


def model_for(spec: ExperimentSpec, train: Dataset) -> nn.Module:
    """A new model of the kind that the spec names, or an error if it does not fit the data."""
    return channels_last(build(spec.model, train.x.shape[1:], max(1, len(train.classes)), **dict(spec.model_options)))


def weights_for(spec: ExperimentSpec, train: Dataset) -> Tensor | None:
    """The weight of each class in the loss, or None."""
    if spec.class_weight == "none":
        return None
    return torch.from_numpy(class_weights(train.y, len(train.classes)))


def changes_for(spec: ExperimentSpec, train: Dataset) -> Recipe:
    """How samples are scaled and augmented; columns of a user's own arrays are standardized, those of a table are."""
    known = recipe(spec.data, spec.augment)
    if train.table is not None:
        return known
    return known if train.images or spec.data in CATALOG else Recipe(standard_scaling(train))


def standard_scaling(table: Dataset) -> Scaling:
    """Mean and standard deviation of every column of a training set; a constant column is only shifted."""
    mean, std = table.x.mean(axis=0, dtype=np.float64), table.x.std(axis=0, dtype=np.float64)
    return Scaling(tuple(mean.tolist()), tuple(np.where(std > 0, std, 1.0).tolist()))


def still(data: Dataset, changes: Recipe, seed: int) -> BatchSource:
    """The set in its stored order, for evaluation."""
    return BatchSource.by_recipe(data, min(EVALUATE, len(data)), changes, rng=seed, order="stored")
