"""The one loop over epochs: data -> model -> ordered steps -> a row of numbers per epoch. It prints nothing."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from ordered_sgd.diagnostics.tracker import SelectionTracker
from ordered_sgd.errors import NonFiniteLossError, TrapWarning
from ordered_sgd.lab.data.dataset import Dataset
from ordered_sgd.lab.experiments.allocator import keep_freed_memory
from ordered_sgd.lab.experiments.artifacts import BOUNDARY, SELECTION, TRACKER, grid_around, pack, pack_tracker
from ordered_sgd.lab.experiments.epoch import EpochRow
from ordered_sgd.lab.experiments.evaluate import judged, measured
from ordered_sgd.lab.experiments.kernel_epochs import KernelEpochs
from ordered_sgd.lab.experiments.plan import HIDDEN_RULE_FROM, learning_rate, rule_for
from ordered_sgd.lab.experiments.sampled_epochs import SampledEpochs
from ordered_sgd.lab.experiments.setting import Epochs, Setting, still
from ordered_sgd.lab.experiments.spec import SAMPLED, ExperimentSpec
from ordered_sgd.lab.experiments.torch_epochs import TorchEpochs

_TRACKED = 100_000  # samples of the largest set whose losses are kept by sample: some ten bytes each in the record


@dataclass
class Training:
    """A run in progress: everything that a checkpoint must carry, and the loop."""

    spec: ExperimentSpec
    train_set: Dataset
    test_set: Dataset
    own_model: nn.Module | None = None  # where the spec does not name one of `models`
    sums: dict[str, float] = field(default_factory=dict)  # over the batches of the present epoch
    epoch: int = 1  # the present one
    engine: str = ""  # that ran in the last full batch
    decayed: bool = False  # whether the hidden rule has fired

    def __post_init__(self) -> None:
        torch.set_num_threads(self.spec.threads)
        keep_freed_memory()
        self.setting = Setting(self.spec, self.train_set, self.test_set, self.own_model)
        self.runner: Epochs = epochs_for(self.spec)(self.setting)
        self.counts = torch.zeros(len(self.train_set), dtype=torch.int32)  # how often each sample was kept
        self.tracker = _tracker(self.spec, self.train_set)

    def epochs(self) -> Iterator[EpochRow | None]:
        """A row after every epoch, and None wherever else a checkpoint may be taken.

        A loss or a final score that is not finite ends the run with a row that says so.
        """
        while self.epoch <= self.spec.epochs:
            try:
                yield from self._train()
                row = self._finish()
            except NonFiniteLossError:
                yield EpochRow(self.epoch, self.runner.ordered.q or self.setting.source.s, self._rate(), diverged=True)
                return
            self.epoch, self.sums = self.epoch + 1, {}
            yield row

    def _train(self) -> Iterator[None]:
        for done in self.runner.train(self.epoch, self._rate()):
            self.sums = {name: self.sums.get(name, 0.0) + value for name, value in done.sums.items()}
            self.counts[done.indices[done.rows]] += 1  # an epoch has every sample once
            if self.tracker is not None:
                self.tracker.update(done.indices, done)
            self.engine = done.engine or self.engine
            yield None

    def _finish(self) -> EpochRow:
        """Accuracy, the rules, and the model over whole sets."""
        if self.tracker is not None:
            self.tracker.end_epoch()
        spec, q, rate = self.spec, self.runner.ordered.q or 0, self._rate()
        if spec.path:
            q = min(spec.path[self.epoch - 1][0], self.setting.source.s)
        accuracy = self._accuracy()  # may refresh BatchNorm: before the scores
        judges = rule_for(spec).needs == "accuracy" or (spec.hidden_rule and not spec.path)
        train = None
        if not spec.timed or self.epoch == spec.epochs or (accuracy is None and judges):
            train = self.runner.scores(self.setting.plain)
            if accuracy is None and self.train_set.classes:
                accuracy = 1 - train.error / 100
        test = self.runner.scores(self.setting.test)
        if not (np.isfinite(test.scores).all() and np.isfinite(test.losses).all()):
            raise NonFiniteLossError  # in the last step, whose losses nobody took
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TrapWarning)  # that q never moved is a finding of the comparison
            self.runner.ordered.end_epoch(accuracy)
        self.decayed = self.decayed or (spec.hidden_rule and accuracy is not None and accuracy >= HIDDEN_RULE_FROM)
        row = EpochRow(self.epoch, q, rate, self.engine, train_accuracy=accuracy)
        row = measured(row, self.sums, train, test, s=self.setting.source.s)
        return judged(row, test, self.test_set)

    def artifacts(self) -> dict[str, bytes]:
        """Beside the epochs: how often each sample was kept, if not always; its losses; the boundary in a plane."""
        found = {}
        if self.spec.method != "sgd":
            found[SELECTION] = pack(counts=self.counts.numpy())
        if self.tracker is not None:
            found[TRACKER] = pack_tracker(self.tracker, self.train_set)
        if self.train_set.x.shape[1:] == (2,) and len(self.train_set.classes) == 2:
            x, y, plane = grid_around(self.train_set.x)
            points = replace(self.train_set, x=plane, y=np.zeros(len(plane), np.int64))
            scores = self.runner.scores(still(points, self.setting.scaling, self.spec.seed)).scores
            found[BOUNDARY] = pack(x=x, y=y, scores=(scores[:, 1] - scores[:, 0]).reshape(len(y), len(x)))
        return found

    def _rate(self) -> float:
        return learning_rate(self.spec, self.epoch, decayed=self.decayed)

    def _accuracy(self) -> float | None:
        """Training accuracy: counted in the epoch, or by a second pass; None: that of the scores, or a regression."""
        if self.spec.accuracy == "clean" or not self.train_set.classes:
            return None
        if self.spec.accuracy == "epoch" and not np.isnan(self.sums["correct"]):
            return self.sums["correct"] / self.sums["samples"]
        return self.runner.accuracy()

    def state_dict(self) -> dict[str, Any]:
        """Everything that the rest of the run depends on."""
        return {
            "spec": self.spec.to_json(),
            "epoch": self.epoch,
            "sums": self.sums,
            "counts": self.counts,
            "tracker": None if self.tracker is None else self.tracker.state_dict(),
            "decayed": self.decayed,
            "engine": self.engine,
            "runner": self.runner.state_dict(),
            "test": self.setting.test.state_dict(),  # Semeion's test images are augmented
            "random": torch.get_rng_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        self.epoch, self.sums = state["epoch"], dict(state["sums"])
        self.decayed, self.engine = state["decayed"], state["engine"]
        self.counts.copy_(state["counts"])
        if self.tracker is not None:
            self.tracker.load_state_dict(state["tracker"])
        self.runner.load_state_dict(state["runner"])
        self.setting.test.load_state_dict(state["test"])
        torch.set_rng_state(state["random"])


def epochs_for(spec: ExperimentSpec) -> type[KernelEpochs] | type[SampledEpochs] | type[TorchEpochs]:
    """The way to run the epochs of a spec."""
    if spec.engine_used.compiled:
        return KernelEpochs
    return SampledEpochs if spec.method in SAMPLED else TorchEpochs


def _tracker(spec: ExperimentSpec, train: Dataset) -> SelectionTracker | None:
    """A tracker for the run that a report shows: ordered, of the first seed, and of no search for a rate."""
    shown = spec.method == "ordered" and spec.seed == 0 and spec.validation == 0
    if not shown or spec.augment == "mixup" or len(train) > _TRACKED:  # a mixed sample has two labels
        return None
    if not train.classes:
        return SelectionTracker(len(train))
    return SelectionTracker(len(train), y=train.y, classes=train.classes)
