"""Epochs of `OrderedStep` in torch, for every model and method."""

import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from ordered_sgd.engines import ENGINES
from ordered_sgd.lab.data.source import BatchSource
from ordered_sgd.lab.experiments.baselines import baseline_for
from ordered_sgd.lab.experiments.evaluate import Scores, batches, scores_of, two_columns
from ordered_sgd.lab.experiments.plan import rule_for
from ordered_sgd.lab.experiments.setting import Setting, Trained
from ordered_sgd.lab.experiments.spec import ExperimentSpec
from ordered_sgd.record import StepRecord
from ordered_sgd.step import OrderedStep


class TorchEpochs:
    """A step for each batch, after which a checkpoint can be taken."""

    def __init__(self, setting: Setting) -> None:
        spec, self.setting = setting.spec, setting
        engine, options = spec.engine_options
        strategy: Any = ENGINES[engine]
        self.ordered = OrderedStep(
            setting.model,
            setting.criterion,
            optimizer_for(spec, setting.model),
            q=rule_for(spec),
            selection="random" if spec.method == "random" else "top",
            generator=torch.Generator().manual_seed(spec.seed),
            trim=spec.trim,
            trim_epochs=spec.trim_epochs,
            accuracy="given",
            engine=replace(strategy, **options),
        )
        self.baseline = baseline_for(spec, len(setting.train_set), self.ordered)

    def train(self, epoch: int, rate: float) -> Iterator[Trained]:
        """One update per batch of the rest of the epoch."""
        for group in self.ordered.optimizer.param_groups:
            group["lr"] = rate
        source = self.setting.source
        for x, y, indices in batches(source, self.setting.model):
            graphs, start, cpu_start = _graphs(), time.perf_counter(), time.process_time()
            record = self.baseline(x, y, indices, epoch) if self.baseline else self.ordered(x, y, index=indices)
            seconds, cpu_seconds, compiling = time.perf_counter() - start, time.process_time() - cpu_start, 0.0
            if _graphs() != graphs:  # nearly all of the time of such a step goes into compiling
                seconds, cpu_seconds, compiling = 0.0, 0.0, seconds
            spent = {"seconds": seconds, "cpu_seconds": cpu_seconds, "compile_seconds": compiling}
            # q may keep all of a smaller last batch, which is then a plain step
            engine = record.engine if record.count == source.s else ""
            yield Trained({**spent, **_sums(record)}, engine, indices, record.losses, record.rows, record.scored)

    def accuracy(self) -> float | None:
        """Training accuracy by a pass in training mode; None for a baseline, which knows nothing of it."""
        if self.baseline is not None:
            return None
        right = total = 0
        with torch.no_grad():
            for x, y, indices in batches(self.setting.source, self.setting.model):
                labels = y if y.dim() == 1 else torch.from_numpy(self.setting.train_set.y[indices.cpu().numpy()])
                right += int((two_columns(self.setting.model(x)).argmax(1) == labels).sum())
                total += len(labels)
        return right / total

    def scores(self, source: BatchSource) -> Scores:
        """Scores and losses of all samples of a source."""
        return scores_of(self.setting.model, source, self.setting.criterion)

    def state_dict(self) -> dict[str, Any]:
        """Everything that the following batches depend on."""
        return {
            "model": self.setting.model.state_dict(),
            "optimizer": self.ordered.optimizer.state_dict(),
            "step": self.ordered.state_dict(),
            "baseline": None if self.baseline is None else self.baseline.state_dict(),
            "source": self.setting.source.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self.setting.model.load_state_dict(state["model"])
        self.ordered.optimizer.load_state_dict(state["optimizer"])
        lay_out_like_weights(self.ordered.optimizer)
        self.ordered.load_state_dict(state["step"])
        if self.baseline is not None:
            self.baseline.load_state_dict(state["baseline"])
        self.setting.source.load_state_dict(state["source"])


def _sums(record: StepRecord) -> dict[str, float]:
    """The numbers of a step that are added over an epoch."""
    sums = {
        "samples": record.count,
        "backpropagated": record.q,
        "ordered_loss": float(record.ordered_loss) * record.q,
        "loss": float(record.mean_loss) * record.count,
        "correct": float(record.correct) if record.correct is not None else np.nan,
    }
    if record.scored is not None or record.recall is not None:  # an engine that may leave samples out
        sums["scored"] = record.count if record.scored is None else record.scored.shape[0]
        sums["found"] = (record.recall or 0.0) * record.count
        sums["measured"] = record.count if record.recall is not None else 0
    return sums


def _graphs() -> int | None:
    """How many graphs torch.compile has made in this process; None before its compiler, slow to import, is there."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return None if dynamo is None else int(dynamo.counters["stats"]["unique_graphs"])


def lay_out_like_weights(optimizer: torch.optim.Optimizer) -> None:
    """Give the optimizer's state the weights' layout: fused updates rely on it, and checkpoints may lack it."""
    for weight, state in optimizer.state.items():
        for name, value in state.items():
            if isinstance(value, torch.Tensor) and value.shape == weight.shape and value.stride() != weight.stride():
                state[name] = torch.empty_like(weight, requires_grad=False).copy_(value)


def optimizer_for(spec: ExperimentSpec, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer that a spec names."""
    if spec.optimizer == "adam":
        return torch.optim.Adam(model.parameters(), lr=spec.lr, weight_decay=spec.weight_decay, fused=True)
    momentum: dict[str, Any] = {"momentum": spec.momentum, "nesterov": spec.nesterov}
    return torch.optim.SGD(model.parameters(), lr=spec.lr, weight_decay=spec.weight_decay, fused=True, **momentum)
