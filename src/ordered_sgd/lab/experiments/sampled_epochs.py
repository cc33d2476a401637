"""Epochs over a batch sampler that remembers losses: ours, and InfoBatch's rule behind the same interface.

What a sampler leaves out is neither augmented nor scored. The training accuracy that a rule needs is estimated.
"""

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ordered_sgd.draws import DrawnBatch, Order
from ordered_sgd.engines.phases import KeptRanks
from ordered_sgd.engines.remembered import RememberedLosses
from ordered_sgd.lab.data.source import Batch, BatchSource
from ordered_sgd.lab.experiments.baselines import ANNEALED, infobatch
from ordered_sgd.lab.experiments.evaluate import Scores, batches, scores_of, two_columns
from ordered_sgd.lab.experiments.plan import rule_for
from ordered_sgd.lab.experiments.setting import Setting, Trained
from ordered_sgd.lab.experiments.spec import ExperimentSpec
from ordered_sgd.lab.experiments.torch_epochs import lay_out_like_weights, optimizer_for
from ordered_sgd.loading import Amounts, Loading
from ordered_sgd.mean import ordered_mean
from ordered_sgd.policy import Policy
from ordered_sgd.sampler import OrderedBatchSampler
from ordered_sgd.selection import top_rows


class InfoBatchSampler(OrderedBatchSampler):
    """The rule of InfoBatch (Qin et al., 2024): drop samples of small loss by chance; the others of them count twice.

    Samples are dropped from their batch, which is then smaller; in the last eighth of the epochs nothing is dropped.
    """

    def __init__(self, n: int, s: int, epochs: int, seed: int) -> None:
        super().__init__(n, s, q=1.0, epochs=epochs, whole_last=1 - ANNEALED, seed=seed)
        self._loading = _InfoBatch(self._loading.policy, self._loading.amounts, self._loading.where)


class _InfoBatch(Loading):
    """What InfoBatch loads of a batch."""

    def __init__(self, policy: Policy, amounts: Amounts, where: str) -> None:
        super().__init__(policy, amounts, where)
        self.memory = RememberedLosses(fresh=1.0)

    def draw(self, order: Order, number: int) -> DrawnBatch:
        drawn = super().draw(order, number)  # whole
        if self.whole(order.epoch):
            return drawn
        rows, weight = infobatch(drawn.remembered, self.memory.mean, order.cut.generator(order.epoch, number))
        return replace(drawn, kept=KeptRanks(len(rows)), part=None, positions=rows, weight=weight)


class SampledEpochs:
    """A plain loop over the batches of a sampler."""

    def __init__(self, setting: Setting) -> None:
        spec, self.setting = setting.spec, setting
        self.optimizer = optimizer_for(spec, setting.model)
        self.ordered = sampler_for(spec, len(setting.train_set))

    def train(self, epoch: int, rate: float) -> Iterator[Trained]:
        """One update per batch of the rest of the epoch."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.ordered.set_epoch(epoch - 1)
        for x, y, indices in batches(SampledBatches(self.setting.source, self.ordered), self.setting.model):
            start, cpu_start = time.perf_counter(), time.process_time()
            drawn = self.ordered.drawn(indices)
            losses, right, rows = self._step(x, y, drawn)
            self.ordered.update(indices, losses, right)
            spent = {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - cpu_start}
            yield Trained({**spent, **self._sums(drawn, losses, right, rows)}, "dense", indices, losses, rows)

    def _step(self, x: Tensor, y: Tensor, drawn: DrawnBatch) -> tuple[Tensor, Tensor, Tensor]:
        """The losses of what was loaded, which answers are right, and which losses were kept."""
        outputs = self.setting.model(x)
        losses = self.setting.criterion(outputs, y)
        self.optimizer.zero_grad()
        q = min(drawn.kept.q, losses.shape[0])
        loss = ordered_mean(losses, q) if drawn.weight is None else (drawn.weight * losses).mean()
        loss.backward()
        self.optimizer.step()
        losses = losses.detach()
        return losses, two_columns(outputs.detach()).argmax(1) == y, top_rows(losses, q)

    def _sums(self, drawn: DrawnBatch, losses: Tensor, right: Tensor, rows: Tensor) -> dict[str, float]:
        """The numbers of a step that are added over an epoch; of the whole batch where they can be estimated."""
        measured = self.ordered.recall
        recall = 1.0 if drawn.s == losses.shape[0] else None if measured is None else measured.mean
        return {
            "samples": drawn.s,
            "backpropagated": len(rows),
            "ordered_loss": float(losses[rows].mean()) * len(rows),
            "loss": float(drawn.mean(losses)) * drawn.s,
            "correct": float(drawn.correct(right)),
            "scored": losses.shape[0],
            "found": (recall or 0.0) * drawn.s,
            "measured": 0 if recall is None else drawn.s,
        }

    def accuracy(self) -> float | None:
        """None: a second pass would score what the sampler leaves out."""
        return None

    def scores(self, source: BatchSource) -> Scores:
        """Scores and losses of all samples of a source."""
        return scores_of(self.setting.model, source, self.setting.criterion)

    def state_dict(self) -> dict[str, Any]:
        """Everything that the following batches depend on."""
        return {
            "model": self.setting.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "sampler": self.ordered.state_dict(),
            "source": self.setting.source.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self.setting.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        lay_out_like_weights(self.optimizer)
        self.ordered.load_state_dict(state["sampler"])
        self.setting.source.load_state_dict(state["source"])


class SampledBatches:
    """The batches that a sampler picks from a source, made as the source makes its own."""

    def __init__(self, source: BatchSource, sampler: OrderedBatchSampler) -> None:
        self.source, self.sampler = source, sampler

    def __iter__(self) -> Iterator[Batch]:
        for positions in self.sampler:
            yield self.source.batch(torch.tensor(positions).numpy())


def sampler_for(spec: ExperimentSpec, n: int) -> OrderedBatchSampler:
    """The sampler that a spec names."""
    s, seed = min(spec.s, n), spec.seed
    if spec.method == "infobatch-sampler":
        return InfoBatchSampler(n, s, spec.epochs, seed)
    return OrderedBatchSampler(n, s, q=rule_for(spec), seed=seed)
