"""Runs of linear models by the kernels of `ordered_sgd.linear`: an epoch in one call, many times faster than torch."""

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from ordered_sgd.batches import epoch_batches
from ordered_sgd.errors import ArgumentError, message
from ordered_sgd.lab.data.source import Batch, BatchSource
from ordered_sgd.lab.experiments.evaluate import Scores, scores_of
from ordered_sgd.lab.experiments.plan import rule_for
from ordered_sgd.lab.experiments.train import Training
from ordered_sgd.lab.models.linear import LinearModel

KERNELS = "kernels"  # the engine of a spec that asks for them
_LOSSES = {"cross-entropy": "log_loss", "hinge-sum": "hinge", "hinge-mean": "hinge"}


class LinearTraining(Training):
    """A run of plain mini-batch steps on a linear model: the same weights, order, rules and records as in torch.

    Equal to `Training` up to rounding, which can flip a choice between two losses. The random control draws from
    another generator.
    """

    def __post_init__(self) -> None:
        from ordered_sgd.linear.objective import Objective, State

        super().__post_init__()
        spec = self.spec
        plain = spec.optimizer == "sgd" and not spec.nesterov and spec.augment == "none" and not spec.trim
        if not (plain and self.baseline is None and isinstance(self.model, LinearModel) and spec.loss in _LOSSES):
            got = f"{spec.model}, {spec.method}, {spec.loss}, {spec.optimizer}, augmentation {spec.augment}"
            got += f", trim {spec.trim:g}"
            rule = "train a linear model by plain SGD without augmentation and trim"
            raise ArgumentError(message("ExperimentSpec", "engine='kernels'", rule, got, "Use engine='auto'."))
        n = len(self.train_set)
        as_stored = self.train_set.x.dtype == np.uint8 and self.scaling.scaling is None
        x = self.train_set.x if as_stored else torch.cat([batch.x for batch in self.plain]).numpy()
        self.x, self.y = np.ascontiguousarray(x.reshape(n, -1)), self.train_set.y.astype(np.float32)
        share = 1 / len(self.train_set.classes) if spec.loss == "hinge-mean" else 1.0
        self.weight = np.full(n, share, np.float32)
        self.objective = Objective(
            _LOSSES[spec.loss],  # type: ignore[arg-type]
            l2=spec.weight_decay,
            l2_intercept=spec.weight_decay,
            momentum=spec.momentum,
            input_scale=1 / 255 if as_stored else 1.0,
        )
        layer = self.model.classifier
        self.state = State.start(layer.weight.detach().numpy(), layer.bias.detach().numpy())
        layer.weight.data = torch.from_numpy(
            self.state.coef
        )  # one memory: what the kernels train is evaluated by torch
        layer.bias.data = torch.from_numpy(self.state.intercept)
        self.rng = np.random.default_rng(spec.seed)  # draws the order that the batch source would draw
        self._kept: dict[BatchSource, list[Batch]] = {}  # as floats: to convert them takes longer than to score them

    def _batches(self) -> Iterator[None]:
        """The whole epoch at once."""
        from ordered_sgd.linear.kernels import train_epoch
        from ordered_sgd.linear.objective import Batches

        loss, n, s = self.step.loss, len(self.train_set), self.source.s
        (order,) = epoch_batches(n, n, self.rng)
        loss.see(s)
        keys = None
        if self.spec.method == "random":
            keys = np.random.default_rng([self.spec.seed, self.epoch]).random(n, np.float32)
        batches = Batches(order, s, loss.q_for(s), loss.q_for(n - (n - 1) // s * s), keys)
        start, cpu_start = time.perf_counter(), time.process_time()
        done = train_epoch(self.x, self.y, self.weight, self.state, self.objective, batches, lr=self._rate())
        self.sums = {
            "seconds": time.perf_counter() - start,
            "cpu_seconds": time.process_time() - cpu_start,
            "samples": n,
            "backpropagated": int(done.kept.sum()),
            "ordered_loss": done.ordered_loss * int(done.kept.sum()),
            "loss": done.mean_loss * n,
            "correct": done.correct,
        }
        if rule_for(self.spec).needs == "loss_share":
            for first in range(0, n, s):
                loss.observe(torch.from_numpy(done.losses[first : first + s]), None)
        self.counts.numpy()[order] += done.kept
        if self.tracker is not None:
            self.tracker.update(order, done.losses, np.flatnonzero(done.kept))
        self.engine = KERNELS
        yield from ()  # no checkpoint here: it would be of weights of this epoch, which would be trained once more

    def _scores(self, source: BatchSource) -> Scores:
        if source not in self._kept:
            self._kept[source] = list(source)
        return scores_of(self.model, self._kept[source], self.criterion)

    def _accuracy(self) -> float | None:
        if self.spec.accuracy != "pass":
            return super()._accuracy()
        epoch_batches(len(self.train_set), self.source.s, self.rng)  # a pass would draw its order
        return None  # a linear model answers in training mode as it does in evaluation mode

    def state_dict(self) -> dict[str, Any]:
        """Everything that the rest of the run depends on."""
        velocity = (self.state.velocity.copy(), self.state.intercept_velocity.copy())
        return {
            **super().state_dict(),
            "velocity": [torch.from_numpy(part) for part in velocity],
            "order": self.rng.bit_generator.state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        super().load_state_dict(state)
        self.state.velocity[:], self.state.intercept_velocity[:] = (part.numpy() for part in state["velocity"])
        self.rng.bit_generator.state = state["order"]
