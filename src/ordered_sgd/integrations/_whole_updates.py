"""Gradient accumulation with the q largest of a whole update, and a backward pass for the kept samples alone.

A trainer brings the micro-batches of an update one by one. `WholeUpdates` keeps them until the last one has come,
scores all of them without a graph, lets the loss function choose, and back-propagates what it keeps by `MicroBatches`.
"""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ordered_sgd.engines.accumulate import MicroBatches
from ordered_sgd.engines.parallel import parallel
from ordered_sgd.engines.phases import Computed, Kept, Losses
from ordered_sgd.integrations._labels import OrderedLossFunc
from ordered_sgd.integrations._sampled import Sampled
from ordered_sgd.integrations._selective import EVERYTHING, KEPT, WHOLE
from ordered_sgd.integrations._watched import UnitLosses
from ordered_sgd.rewind import Buffers, device_of, random_state, restore_random_state
from ordered_sgd.traps import has_batchnorm

log = logging.getLogger("ordered_sgd")
WHOLE_UPDATES = "whole updates"
Compute = Callable[[Any, Any], Tensor]


class NotByUnitError(Exception):
    """The loss of a micro-batch is more than the losses of its units."""


class WholeUpdates:
    """The micro-batches of an update, ordered as one batch.

    Parameters
    ----------
    ordered
        The loss function.
    compute
        ``compute(model, inputs)`` runs the model and returns what `ordered` makes of the outputs.
    around
        Makes the context in which losses are computed, such as autocast.

    Attributes
    ----------
    ran : str or None
        ``"whole updates"``, or ``"micro-batches: "`` and the reason; None before the first update of several.
    backward_ran : str or None
        ``"only kept samples"``, or ``"whole batches: "`` and the reason, in the last update; None before the first one.
    scoring : bool
        Whether losses are being computed here.
    sampled : Sampled or None
        Knows which samples a batch sampler has drawn for the update.
    waiting : list
        The micro-batches of this update so far.
    """

    def __init__(
        self, ordered: OrderedLossFunc, compute: Compute, around: Callable[[], AbstractContextManager[Any]]
    ) -> None:
        self.ordered, self._compute, self._around = ordered, compute, around
        self.ran: str | None = None
        self.backward_ran: str | None = None
        self.scoring = False
        self.sampled: Sampled | None = None
        self.waiting: list[Any] = []
        self._given_up: str | None = None
        self._model: nn.Module | None = None
        self._micro: MicroBatches | None = None  # for this model
        self._units: list[UnitLosses] = []
        self._samples = self._computed = 0  # since the last log: that were kept waiting, and that had a backward pass

    def begin(self) -> None:
        """A training begins."""
        self.waiting, self._given_up, self.backward_ran = [], None, None
        self._model = self._micro = None
        self._samples = self._computed = 0

    def usable(self, model: nn.Module, reason: str | None) -> bool:
        """Whether the update is ordered as a whole; `reason` is the trainer's own why not."""
        why = self._given_up or reason or self._unfit(model)
        self._say(WHOLE_UPDATES if why is None else f"micro-batches: {why}")
        return why is None

    def give_up(self, reason: str) -> list[Any]:
        """The micro-batches that wait, to be trained on one by one; later ones will not wait."""
        waiting, self.waiting, self._given_up = self.waiting, [], reason
        self._say(f"micro-batches: {reason}")
        return waiting

    def share(self) -> float | None:
        """The share of samples that had a backward pass since this was asked last; None if none has come."""
        samples, computed = self._samples, self._computed
        self._samples = self._computed = 0
        return computed / samples if samples else None

    def backward(self, model: nn.Module, scaler: Any) -> Tensor:
        """Leave the gradient of the kept samples in the parameters; returns the ordered loss of the update.

        Raises `NotByUnitError`, with random numbers as before, if the loss is more than those of its samples.
        """
        loss_fn, micro = self.ordered.loss_fn, self._micro_batches(model)
        sharing, self._units = micro.parallel, []
        sharing.begin()

        def everything(total: int) -> Kept | None:
            """All of the update's samples, if they are kept; over several ranks their gradients are averaged."""
            if loss_fn.policy.q_for(total) < total:
                return None
            return Kept(torch.arange(total), total / sharing.ranks, scaler)

        scored = micro.forward([(inputs,) for inputs in self.waiting], self._size(), everything)
        units = UnitLosses.joined(self._units)
        leaf = units.values.detach().requires_grad_()
        if self.sampled is not None:
            self.sampled.expect()
        loss = loss_fn.order(units._replace(values=leaf))
        if self.sampled is not None:
            self.sampled.leave()
        (weights,) = torch.autograd.grad(loss, leaf)
        rows = weights.nonzero().squeeze(1)
        # all weights are (number of ranks) / q, and rounded
        divisor = round(sharing.ranks / float(weights[rows[0]])) / sharing.ranks if rows.shape[0] else 1.0
        self._count(weights, scored.backward(Kept(rows, divisor, scaler)), micro.why)
        self.ordered.saw(1.0)
        self.waiting, self._units = [], []
        return loss.detach()

    def _micro_batches(self, model: nn.Module) -> MicroBatches:
        """What runs the micro-batches, for a whole training."""
        model = _alone(model)
        if self._micro is not None and self._model is model:
            return self._micro
        sharing = parallel(model, self.ordered.loss_fn.group)
        inner, device = sharing.model, device_of(sharing.model)
        buffers = Buffers(inner)
        state, held = random_state(device), buffers.save()
        try:  # a first pass does more, such as probing the output layer, which a replay must not repeat
            with torch.no_grad():
                self._score(inner, (self.waiting[0],))
        finally:
            restore_random_state(state, device)
            buffers.load(held)
        self._model, self._micro = model, MicroBatches(partial(self._score, inner), sharing, buffers)
        return self._micro

    def _count(self, weights: Tensor, computed: Computed, why: str | None) -> None:
        """Count the samples of an update, and those whose gradient was computed."""
        sizes = [len(units.values) for units in self._units]
        kept = [int(part.count_nonzero()) for part in weights.split(sizes)]
        regrouped = "regrouped" in computed.engine
        rows = sum(kept) if regrouped else sum(size for size, some in zip(sizes, kept, strict=True) if some)
        self._samples, self._computed = self._samples + sum(sizes), self._computed + rows
        if rows < sum(sizes):
            self.backward_ran = KEPT
        elif sum(kept) < sum(sizes):
            self.backward_ran = f"{WHOLE}{why or 'each micro-batch has a kept sample'}"
        else:
            self.backward_ran = EVERYTHING

    def _say(self, ran: str) -> None:
        if ran != self.ran:
            self.ran = ran
            log.info("the q largest losses are those of %s", ran)

    def _score(self, model: nn.Module, batch: tuple[Any]) -> Losses:
        """The losses of a micro-batch, by sample."""
        self.scoring = True
        new = len(self._units) < len(self.waiting)  # later on some are run again
        if self.sampled is not None and new:
            self.sampled.expect(len(self._units))
        try:
            with self.ordered.loss_fn.by_unit() as found, self._around():
                losses = self._compute(model, dict(batch[0]))
        finally:
            self.scoring = False
            if new:
                self.ordered.loss_fn.seen()
        (units,) = found
        if not torch.allclose(losses, units.values, rtol=0, atol=0, equal_nan=True):
            raise NotByUnitError("the loss has a part that is not that of single samples, as of a router")
        if new:
            self._units.append(units._replace(values=units.values.detach()))
        return Losses(losses, None)

    def _size(self) -> int | None:
        """How many samples wait, where labels show that all are valid."""
        labels = [inputs.get("labels") for inputs in self.waiting]
        known = self.ordered.loss_fn.ignored in (None, -100) and all(map(_all_valid, labels))
        return sum(map(len, labels)) if known else None

    def _unfit(self, model: nn.Module) -> str | None:
        """Why the samples of several micro-batches cannot be ordered together."""
        loss_fn, model = self.ordered.loss_fn, _alone(model)
        if loss_fn.unit != "sample":
            return f"{loss_fn.unit}s are ordered"
        if loss_fn.mix:
            return "mix gives every sample a gradient"
        wrapped = isinstance(model, DistributedDataParallel)
        if wrapped and loss_fn.group is None:
            return "each process orders its own samples"
        if wrapped and model.static_graph:
            return "DistributedDataParallel expects a static graph"
        if not wrapped and loss_fn.group is not None and loss_fn.group.size() > 1:
            return "the model is not in DistributedDataParallel"
        if isinstance(model, torch._dynamo.OptimizedModule):
            return "the model is compiled"
        if has_batchnorm(model):
            return "BatchNorm takes statistics over each of them"
        return None


def _alone(model: nn.Module) -> nn.Module:
    """The module inside a wrapper that shares gradients with no other process, else the model itself."""
    alone = isinstance(model, DistributedDataParallel) and model.process_group.size() == 1
    inner: nn.Module = model.module if alone else model  # type: ignore[assignment]
    return inner


def _all_valid(labels: Any) -> bool:
    """Whether each sample has a label that counts, though its first one may be no prediction."""
    if not isinstance(labels, Tensor) or labels.dim() == 0 or len(labels) == 0:
        return False
    if labels.is_floating_point():
        return True
    counts = labels != -100
    return bool(counts.all() if labels.dim() == 1 else counts[..., 1:].flatten(1).any(1).all())
