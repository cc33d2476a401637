"""Epochs of linear models in the kernels of `ordered_sgd.linear`: one call per epoch, many times faster than torch."""

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from ordered_sgd.batches import epoch_batches
from ordered_sgd.errors import ArgumentError, message
from ordered_sgd.lab.data.source import Batch, BatchSource
from ordered_sgd.lab.experiments.evaluate import Scores, scores_of
from ordered_sgd.lab.experiments.plan import rule_for
from ordered_sgd.lab.experiments.setting import Setting, Trained, weights_for
from ordered_sgd.lab.experiments.spec import ExperimentSpec
from ordered_sgd.lab.models.linear import LinearModel
from ordered_sgd.policy import Policy

_LOSSES = {"cross-entropy": "log_loss", "hinge-sum": "hinge", "hinge-mean": "hinge", "squared": "squared_error"}


class KernelEpochs:
    """Plain mini-batch steps on a linear model: the same weights, order, rules and records as in torch.

    Equal to `TorchEpochs` up to rounding, which can flip a choice between two losses. The random control draws from
    another generator.
    """

    def __init__(self, setting: Setting) -> None:
        from ordered_sgd.linear.objective import Objective, State

        spec, self.setting = setting.spec, setting
        layer = linear_layer(spec, setting.model)
        n = len(setting.train_set)
        as_stored = setting.train_set.x.dtype == np.uint8 and setting.scaling.scaling is None
        x = setting.train_set.x if as_stored else torch.cat([batch.x for batch in setting.plain]).numpy()
        self.x, self.y = np.ascontiguousarray(x.reshape(n, -1)), setting.train_set.y.astype(np.float32)
        share = 1 / len(setting.train_set.classes) if spec.loss == "hinge-mean" else 1.0
        weights = weights_for(spec, setting.train_set)
        self.weight = np.full(n, share, np.float32)
        if weights is not None:
            self.weight *= weights.numpy()[setting.train_set.y]
        self.objective = Objective(
            _LOSSES[spec.loss],  # type: ignore[arg-type]
            l2=spec.weight_decay,
            l2_intercept=spec.weight_decay,
            momentum=spec.momentum,
            input_scale=1 / 255 if as_stored else 1.0,
        )
        self.state = State.start(layer.weight.detach().numpy(), layer.bias.detach().numpy())
        # Shared memory: torch evaluates the weights that the kernels train.
        layer.weight.data, layer.bias.data = torch.from_numpy(self.state.coef), torch.from_numpy(self.state.intercept)
        self.ordered = Policy(
            rule_for(spec), selection="random" if spec.method == "random" else "top", where="ExperimentSpec"
        )
        self.rng = np.random.default_rng(spec.seed)  # draws the order that the batch source would draw
        self.trained = 0  # epochs
        self._compile()
        self._kept: dict[BatchSource, list[Batch]] = {}  # as floats: converting them takes longer than scoring them

    def _compile(self) -> None:
        """One batch on a copy of the weights, so that compiling the kernels is in no run's time."""
        from ordered_sgd.linear.kernels import train_epoch
        from ordered_sgd.linear.objective import Batches, State

        s = self.setting.source.s
        copy = State.start(self.state.coef, self.state.intercept)
        train_epoch(self.x, self.y, self.weight, copy, self.objective, Batches(np.arange(s), s, s, s), lr=0.0)

    def train(self, epoch: int, rate: float) -> Iterator[Trained]:
        """The whole epoch at once, unless a saved state has it already."""
        from ordered_sgd.linear.kernels import train_epoch
        from ordered_sgd.linear.objective import Batches

        if self.trained == epoch:
            return
        spec, policy, n, s = self.setting.spec, self.ordered, len(self.y), self.setting.source.s
        (order,) = epoch_batches(n, n, self.rng)
        policy.see(s)
        keys = None
        if spec.method == "random":
            keys = np.random.default_rng([spec.seed, epoch]).random(n, np.float32)
        batches = Batches(order, s, policy.q_for(s), policy.q_for(n - (n - 1) // s * s), keys)
        start, cpu_start = time.perf_counter(), time.process_time()
        done = train_epoch(self.x, self.y, self.weight, self.state, self.objective, batches, lr=rate)
        sums = {
            "seconds": time.perf_counter() - start,
            "cpu_seconds": time.process_time() - cpu_start,
            "samples": n,
            "backpropagated": int(done.kept.sum()),
            "ordered_loss": done.ordered_loss * int(done.kept.sum()),
            "loss": done.mean_loss * n,
            "correct": done.correct,
        }
        losses, rows = torch.from_numpy(done.losses), torch.from_numpy(np.flatnonzero(done.kept))
        if rule_for(spec).needs == "loss_share":
            for batch in losses.split(s):
                policy.observe(batch, None)
        self.trained = epoch
        yield Trained(sums, spec.engine, torch.from_numpy(order), losses, rows)

    def accuracy(self) -> None:
        """None: a linear model scores the same in training mode. The order that a pass would use is drawn."""
        epoch_batches(len(self.y), self.setting.source.s, self.rng)

    def scores(self, source: BatchSource) -> Scores:
        """Scores and losses of all samples of a source."""
        if source not in self._kept:
            self._kept[source] = list(source)
        return scores_of(self.setting.model, self._kept[source], self.setting.criterion)

    def state_dict(self) -> dict[str, Any]:
        """Everything that the following epochs depend on."""
        velocity = (self.state.velocity.copy(), self.state.intercept_velocity.copy())
        return {
            "model": self.setting.model.state_dict(),
            "velocity": [torch.from_numpy(part) for part in velocity],
            "policy": self.ordered.state_dict(),
            "order": self.rng.bit_generator.state,
            "trained": self.trained,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self.setting.model.load_state_dict(state["model"])
        self.state.velocity[:], self.state.intercept_velocity[:] = (part.numpy() for part in state["velocity"])
        self.ordered.load_state_dict(state["policy"])
        self.rng.bit_generator.state = state["order"]
        self.trained = state["trained"]


def linear_layer(spec: ExperimentSpec, model: nn.Module) -> nn.Linear:
    """The layer that the kernels train, or an error if they cannot train this model as the spec says."""
    plain = spec.optimizer == "sgd" and not spec.nesterov and spec.augment == "none" and not spec.trim
    trains = spec.method in ("sgd", "ordered", "random") and spec.loss in _LOSSES
    if not (plain and trains and isinstance(model, LinearModel)):
        got = f"{spec.model}, {spec.method}, {spec.loss}, {spec.optimizer}, augmentation {spec.augment}"
        got += f", trim {spec.trim:g}"
        rule = "train a linear model by plain SGD without augmentation and trim"
        raise ArgumentError(message("ExperimentSpec", "engine='kernels'", rule, got, "Use engine='auto'."))
    return model.classifier
