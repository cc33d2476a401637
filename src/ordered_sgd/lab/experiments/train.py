"""The one loop over epochs: data -> model -> ordered steps -> a row of numbers per epoch. It prints nothing."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from ordered_sgd.diagnostics.tracker import SelectionTracker
from ordered_sgd.errors import NonFiniteLossError
from ordered_sgd.lab.data.catalog import CATALOG
from ordered_sgd.lab.data.dataset import Dataset
from ordered_sgd.lab.data.protocol import Recipe, Scaling, recipe
from ordered_sgd.lab.data.source import BatchSource
from ordered_sgd.lab.experiments.allocator import keep_freed_memory
from ordered_sgd.lab.experiments.artifacts import BOUNDARY, SELECTION, TRACKER, grid_around, pack, pack_tracker
from ordered_sgd.lab.experiments.baselines import baseline_for
from ordered_sgd.lab.experiments.epoch import EpochRow, epoch_row
from ordered_sgd.lab.experiments.evaluate import Scores, batches, criterion_for, scores_of, two_columns
from ordered_sgd.lab.experiments.plan import HIDDEN_RULE_FROM, learning_rate, rule_for
from ordered_sgd.lab.experiments.spec import ExperimentSpec
from ordered_sgd.lab.models import build, channels_last
from ordered_sgd.step import OrderedStep

EVALUATE = 1000  # samples in a batch when nothing is learnt
_TRACKED = 100_000  # samples of the largest set whose losses are kept by sample: some ten bytes each in the record


@dataclass
class Training:
    """A run under way: everything that a checkpoint must carry, and the loop."""

    spec: ExperimentSpec
    train_set: Dataset
    test_set: Dataset
    own_model: nn.Module | None = None  # where the spec does not name one of `models`
    sums: dict[str, float] = field(default_factory=dict)  # over the batches of the present epoch
    epoch: int = 1  # the present one
    engine: str = ""  # that ran in the last full batch
    decayed: bool = False  # whether the hidden rule has fired

    def __post_init__(self) -> None:
        spec = self.spec
        torch.set_num_threads(spec.threads)
        keep_freed_memory()
        torch.manual_seed(spec.seed)  # weights and dropout draw from torch's own generator
        shape, classes = self.train_set.x.shape[1:], len(self.train_set.classes)
        self.model = self.own_model or channels_last(build(spec.model, shape, classes, **dict(spec.model_options)))
        changes = recipe(spec.data, spec.augment)
        if not self.train_set.images and spec.data not in CATALOG:
            changes = Recipe(standard_scaling(self.train_set))
        s = min(spec.s, len(self.train_set))
        self.source = BatchSource.by_recipe(self.train_set, s, changes, rng=spec.seed)
        self.test = _still(self.test_set, changes, spec.seed)
        self.scaling = Recipe(changes.scaling)
        self.plain = _still(self.train_set, self.scaling, spec.seed)
        self.counts = torch.zeros(len(self.train_set), dtype=torch.int32)  # how often each sample was kept
        self.tracker = _tracker(spec, self.train_set)
        self.criterion = criterion_for(spec.loss, mixed=changes.mixup is not None)
        self.step = OrderedStep(
            self.model,
            self.criterion,
            _optimizer(spec, self.model),
            rule=rule_for(spec),
            selection="random" if spec.method == "random" else "top",
            generator=torch.Generator().manual_seed(spec.seed),
            trim=spec.trim,
            trim_epochs=spec.trim_epochs,
            **_engine(spec),
        )
        self.baseline = baseline_for(spec, len(self.train_set), self.step)

    def epochs(self) -> Iterator[EpochRow | None]:
        """A row after every epoch, and None after every batch, when a checkpoint may be taken.

        A loss that is not finite, or a score after the last step, ends the run with a row that says so.
        """
        while self.epoch <= self.spec.epochs:
            try:
                yield from self._batches()
                row = self._finish()
            except NonFiniteLossError:
                yield EpochRow(self.epoch, self.step.q or self.source.s, self._rate(), diverged=True)
                return
            self.epoch, self.sums = self.epoch + 1, {}
            yield row

    def _batches(self) -> Iterator[None]:
        for group in self.step.optimizer.param_groups:
            group["lr"] = self._rate()
        for x, y, indices in batches(self.source, self.model):
            start, cpu_start = time.perf_counter(), time.process_time()
            if self.baseline is None:
                record = self.step(x, y, index=indices)
            else:
                record = self.baseline(x, y, indices, self.epoch)
            added = {
                "seconds": time.perf_counter() - start,
                "cpu_seconds": time.process_time() - cpu_start,
                "samples": record.count,
                "backpropagated": record.q,
                "ordered_loss": float(record.ordered_loss) * record.q,
                "loss": float(record.mean_loss) * record.count,
                "correct": float(record.correct) if record.correct is not None else np.nan,
            }
            if record.engine == "memory" or record.recall is not None:
                added["scored"] = record.count if record.scored is None else record.scored.shape[0]
                added["found"] = (record.recall or 0.0) * record.count
                added["measured"] = record.count if record.recall is not None else 0
            self.sums = {name: self.sums.get(name, 0.0) + value for name, value in added.items()}
            self.counts[indices[record.rows]] += 1  # an epoch has every sample once
            if self.tracker is not None:
                self.tracker.update(indices, record)
            if record.count == self.source.s:  # q may keep all of a smaller last batch, which is then a plain step
                self.engine = record.engine
            yield None

    def _finish(self) -> EpochRow:
        """Accuracy, the rules, and the model over whole sets."""
        if self.tracker is not None:
            self.tracker.end_epoch()
        spec, q, rate = self.spec, self.step.q or 0, self._rate()
        if spec.path:
            q = min(spec.path[self.epoch - 1][0], self.source.s)
        accuracy = self._accuracy()  # may refresh BatchNorm: before the scores
        judges = rule_for(spec).needs == "accuracy" or (spec.hidden_rule and not spec.path)
        train = None
        if not spec.timed or self.epoch == spec.epochs or (accuracy is None and judges):
            train = self._scores(self.plain)
            accuracy = 1 - train.error / 100 if accuracy is None else accuracy
        test = self._scores(self.test)
        if not (np.isfinite(test.scores).all() and np.isfinite(test.losses).all()):
            raise NonFiniteLossError  # in the last step, whose losses nobody took
        self.step.end_epoch(accuracy)
        self.decayed = self.decayed or (spec.hidden_rule and accuracy is not None and accuracy >= HIDDEN_RULE_FROM)
        return epoch_row(
            self.epoch,
            q=q,
            s=self.source.s,
            lr=rate,
            engine=self.engine,
            accuracy=accuracy,
            sums=self.sums,
            train=train,
            test=test,
        )

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
            scores = self._scores(_still(points, self.scaling, self.spec.seed)).scores
            found[BOUNDARY] = pack(x=x, y=y, scores=(scores[:, 1] - scores[:, 0]).reshape(len(y), len(x)))
        return found

    def _scores(self, source: BatchSource) -> Scores:
        return scores_of(self.model, source, self.criterion)

    def _rate(self) -> float:
        return learning_rate(self.spec, self.epoch, decayed=self.decayed)

    def _accuracy(self) -> float | None:
        """Training accuracy: counted in the epoch, or by another pass in training mode; None: that of the scores."""
        if self.spec.accuracy == "clean" or self.baseline is not None:
            return None
        if self.spec.accuracy == "epoch" and not np.isnan(self.sums["correct"]):
            return self.sums["correct"] / self.sums["samples"]
        right = total = 0
        with torch.no_grad():
            for x, y, indices in batches(self.source, self.model):
                labels = y if y.dim() == 1 else torch.from_numpy(self.train_set.y[indices.cpu().numpy()])
                right += int((two_columns(self.model(x)).argmax(1) == labels).sum())
                total += len(labels)
        return right / total

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
            "model": self.model.state_dict(),
            "optimizer": self.step.optimizer.state_dict(),
            "step": self.step.state_dict(),
            "baseline": None if self.baseline is None else self.baseline.state_dict(),
            "source": self.source.state_dict(),
            "test": self.test.state_dict(),  # Semeion's test images are augmented
            "random": torch.get_rng_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        self.epoch, self.sums = state["epoch"], dict(state["sums"])
        self.decayed, self.engine = state["decayed"], state["engine"]
        self.counts.copy_(state["counts"])
        if self.tracker is not None and state.get("tracker") is not None:
            self.tracker.load_state_dict(state["tracker"])
        else:
            self.tracker = None  # a checkpoint of an older version: what came before it is not known
        self.model.load_state_dict(state["model"])
        self.step.optimizer.load_state_dict(state["optimizer"])
        _lay_out_like_weights(self.step.optimizer)
        self.step.load_state_dict(state["step"])
        if self.baseline is not None:
            self.baseline.load_state_dict(state["baseline"])
        self.source.load_state_dict(state["source"])
        self.test.load_state_dict(state["test"])
        torch.set_rng_state(state["random"])


def standard_scaling(table: Dataset) -> Scaling:
    """Mean and standard deviation of every column of a training set; a constant column is only shifted."""
    mean, std = table.x.mean(axis=0, dtype=np.float64), table.x.std(axis=0, dtype=np.float64)
    return Scaling(tuple(mean.tolist()), tuple(np.where(std > 0, std, 1.0).tolist()))


def _tracker(spec: ExperimentSpec, train: Dataset) -> SelectionTracker | None:
    """A tracker for the run that a report shows: ordered, of the first seed, and of no search for a rate."""
    shown = spec.method == "ordered" and spec.seed == 0 and spec.validation == 0
    if not shown or spec.augment == "mixup" or len(train) > _TRACKED:  # a mixed sample has two labels
        return None
    return SelectionTracker(len(train), y=train.y, classes=train.classes)


def _still(data: Dataset, changes: Recipe, seed: int) -> BatchSource:
    """The set in its stored order, for evaluation."""
    return BatchSource.by_recipe(data, min(EVALUATE, len(data)), changes, rng=seed, order="stored")


def _engine(spec: ExperimentSpec) -> dict[str, Any]:
    """The engine of the step, and its options."""
    if spec.engine == "memory" and spec.method == "ordered":
        return {"engine": "memory", "recall": spec.recall, "candidates": spec.candidates}
    engine = {"kernels": "dense", "memory": "auto"}.get(spec.engine, spec.engine)  # nothing else needs a memory
    return {"engine": engine} if spec.batchnorm is None else {"engine": engine, "batchnorm": spec.batchnorm}


def _lay_out_like_weights(optimizer: torch.optim.Optimizer) -> None:
    """Give the optimizer's state the weights' layout, which fused updates take for granted and checkpoints may lack."""
    for weight, state in optimizer.state.items():
        for name, value in state.items():
            if isinstance(value, torch.Tensor) and value.shape == weight.shape and value.stride() != weight.stride():
                state[name] = torch.empty_like(weight, requires_grad=False).copy_(value)


def _optimizer(spec: ExperimentSpec, model: nn.Module) -> torch.optim.Optimizer:
    if spec.optimizer == "adam":
        return torch.optim.Adam(model.parameters(), lr=spec.lr, weight_decay=spec.weight_decay, fused=True)
    momentum: dict[str, Any] = {"momentum": spec.momentum, "nesterov": spec.nesterov}
    return torch.optim.SGD(model.parameters(), lr=spec.lr, weight_decay=spec.weight_decay, fused=True, **momentum)
