"""Whether samples can be run without the others in their batch: the gradient of some, compared with the dense one."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_map

from ordered_sgd.agreement import differences, dtype_around, largest_difference, rounding
from ordered_sgd.engines.first_difference import first_difference_of
from ordered_sgd.engines.phases import Parts
from ordered_sgd.engines.replay import Drawn, take
from ordered_sgd.errors import first_line, message, warn
from ordered_sgd.generic_position import KEPT, ROUNDINGS, SAMPLES, TOLERANCE, in_generic_position, sketch, widened
from ordered_sgd.rewind import RandomState, Saved, device_of, random_state, restore_random_state
from ordered_sgd.selective.explain import hint_for
from ordered_sgd.watch import Writes

log = logging.getLogger("ordered_sgd")

FAILURES = (RuntimeError, IndexError, ValueError)  # of a model that is given fewer samples


class Apart:
    """Looks once whether samples influence each other, and remembers the answer.

    Parameters
    ----------
    parts
        What the engine is built from.
    name
        The engine that messages speak of, as in "engine twopass".
    remedy
        What they advise.
    compares
        Whether gradients are compared; without it only BatchNorm in training is looked for.
    subset
        Whether BatchNorm in training is let through. Gradients are then compared with constant statistics, so that
        other couplings are still found. SyncBatchNorm, whose statistics are those of all ranks, is not let through.

    Attributes
    ----------
    looked
        Whether a batch has been compared. A batch with a loss that is not finite cannot be; the next one is.
    coupled
        Whether samples influence each other, as far as is known.
    everywhere
        Whether every rank runs the whole batch, or this rank has no others to wait for.
    why
        Why samples cannot be run by themselves; None if they can.
    """

    def __init__(self, parts: Parts, name: str, remedy: str, *, compares: bool = True, subset: bool = False) -> None:
        self.model, self.score, self.parallel = parts.model, parts.score, parts.parallel
        self.name, self._hint = name, hint_for(parts.model)
        self._remedy = f"{remedy} {self._hint}".strip()
        self._compares, self._subset = compares, subset
        self.buffers = parts.buffers
        self.looked = self.coupled = self.everywhere = False
        self.why: str | None = None

    def look(self, batch: Any) -> bool:
        """Whether samples can be run without the others in their batch, as far as it shows; `why` says why not."""
        if not self.looked:
            self._look(batch)
        return self.looked and not self.coupled

    def agree_with_other_ranks(self) -> None:
        """Run dense on all ranks if one of them must, and look again on all if one of them could not tell."""
        coupled, unsure = self.parallel.any(self.coupled, not self.looked)
        if coupled and not self.coupled:
            self.why = "samples influence each other on another rank"
        self.coupled = self.everywhere = coupled
        self.looked = not unsure

    def found(self, where: str) -> None:
        """Samples influence each other: say where, once."""
        self.coupled = True
        # a rank that gives up alone still scores first, as the others do: their messages must meet
        self.everywhere = self.parallel.in_step or not self.parallel.over_ranks
        self.why = f"samples influence each other in {where}"
        log.info("%s: the whole batch runs: %s", self.name, self.why)
        rule = f"not influence each other for {self.name}"
        warn(message("OrderedStep", "samples", rule, self.why, self._remedy))

    def cannot_run(self, reason: Exception) -> None:
        """The model fails on some samples alone: run the whole batch from now on."""
        self.coupled = True
        self.everywhere = self.parallel.in_step or not self.parallel.over_ranks
        why = f"the chosen samples cannot be run by themselves ({first_line(reason)})"
        self.why = f"{why}. {self._hint}" if self._hint else why
        log.info("%s: the whole batch runs: %s", self.name, self.why)

    def _look(self, batch: Any) -> None:
        """Give up if the gradient of some samples, computed from them alone, is not the one-liner's."""
        self.looked = True
        norms = [m for m in self.model.modules() if isinstance(m, _BatchNorm) and m.training]
        if self._subset and not self.parallel.shares_statistics():
            blamed = [norm for norm in norms if takes_statistics_over_processes(norm)]
        else:
            blamed = norms
        if blamed:
            self.found(f"{type(blamed[0]).__name__} in training")
            return
        if self._compares:
            with _constant_statistics(norms, next(self.model.parameters(), torch.empty(0))):
                self._compare(batch)

    def _compare(self, batch: Any) -> None:
        """Give up if the gradient of some samples depends on the others, or the model fails on some alone."""
        device = device_of(self.model)
        random, saved = random_state(device), self.buffers.save()
        try:
            where, s = self._as_it_is(batch, random, saved, device)
            if where is None and self.looked and not self.parallel.in_step:
                where = self._in_generic_position(batch, s)
            if where is not None:
                self.found(where)
        except FAILURES as reason:
            if self.parallel.in_step:  # the other ranks are in the middle of a pass
                raise
            self.cannot_run(reason)
        finally:
            restore_random_state(random, device)
            self.buffers.load(saved)

    def _as_it_is(self, batch: Any, random: RandomState, saved: Saved, device: torch.device) -> tuple[str | None, int]:
        """Where samples influence each other by more than rounding may hide, and the number of samples."""
        for weights in (_without_zeros(self.parallel.weights()), nullcontext()):
            with weights:
                own, tolerance, rows, s = self._largest_error(batch, random, saved, device)
            error = self.parallel.worst(own)
            restore_random_state(random, device)
            self.buffers.load(saved)
            if error is not None:
                break
        self.looked = error is not None
        coupled = error is not None and error > tolerance
        return first_difference_of(self.model, self.score, batch, rows, s) if coupled else None, s

    def _in_generic_position(self, batch: Any, s: int) -> str | None:
        """Where samples influence each other with noise in place of the parameters; None if they do not, or no telling.

        Their gradients are compared on a few samples, tensor by tensor: for some of them and for the rest, since a
        sample that dominates the others, as the largest does, is only missed among those without it.
        """
        device = device_of(self.model)
        few = torch.arange(min(s, SAMPLES), device=device)
        parts = [[row for row in range(len(few)) if (row in KEPT) is kept] for kept in (True, False)]
        try:
            generic = _Generic(self, tree_map(widened, take(batch, few, s)), len(few))
            for rows in (torch.tensor(part, device=device) for part in parts if 0 < len(part) < s):
                if generic.differs(rows):
                    with in_generic_position(self.buffers.modules):
                        return first_difference_of(self.model, self.score, generic.batch, rows, generic.s, 1e-9)
        except Exception as reason:  # whatever a model raises of a dtype or a batch size that it does not expect
            log.info("%s: cannot compare in float64: %s", self.name, first_line(reason))
        return None

    def _largest_error(
        self, batch: Any, random: RandomState, saved: Saved, device: torch.device
    ) -> tuple[float | None, float, Tensor, int]:
        """Distance of the gradient of every other sample from the dense one, for random weights, and its tolerance."""
        drawn, writes = Drawn(), Writes(self.model)
        with drawn, writes if not self.parallel.in_step else nullcontext():
            losses = self.score(batch).losses
        if (written := writes.undone()) is not None:
            raise ValueError(f"a pass changes the parameter {written!r}")
        s = losses.shape[0]
        rows = torch.arange(0, s, 2, device=losses.device)
        weights = _weights(rows, losses)
        dense = self.parallel.gradient(losses.index_select(0, rows), weights)
        restore_random_state(random, device)
        self.buffers.load(saved)
        with drawn.again(rows, s):
            kept = self.score(take(batch, rows, s)).losses
        found = self.parallel.gradient(kept, weights)
        return largest_difference(found, dense), rounding(dtype_around(losses)), rows, s


class _Generic:
    """A few samples of a batch, and their gradients in generic position."""

    def __init__(self, apart: Apart, batch: Any, s: int) -> None:
        self.apart, self.batch, self.s = apart, batch, s
        self._device = device_of(apart.model)
        self._random, self._drawn = random_state(self._device), Drawn()

    def differs(self, rows: Tensor) -> bool:
        """Whether the gradient of some samples depends on the others by more than rounding."""
        dense = self.gradient(rows)
        errors = differences(self.gradient(rows, alone=True), dense)
        beyond = {i: error for i, error in errors.items() if error > TOLERANCE}
        # a gradient that is zero but for rounding differs by its own size, and so it does after a rounding error
        off = differences(self.gradient(rows, moved=True), dense) if beyond else {}
        return any(error > ROUNDINGS * off.get(i, 0.0) for i, error in beyond.items())

    def gradient(self, rows: Tensor, *, alone: bool = False, moved: bool = False) -> list[Tensor | None]:
        """Sketches of the gradient of some samples, run with the others or alone, with random numbers as before."""
        apart = self.apart
        restore_random_state(self._random, self._device)
        if not (alone or moved):
            self._drawn = Drawn()
        drawing = self._drawn.again(rows, self.s) if alone else Drawn() if moved else self._drawn
        with in_generic_position(apart.buffers.modules, moved=moved):
            with drawing:
                losses = apart.score(take(self.batch, rows, self.s) if alone else self.batch).losses
            kept = losses if alone else losses.index_select(0, rows)
            return [None if g is None else sketch(g) for g in apart.parallel.gradient(kept, _weights(rows, kept))]


def _weights(rows: Tensor, losses: Tensor) -> Tensor:
    return torch.rand(rows.shape, generator=torch.Generator().manual_seed(0)).to(losses) + 0.5


@contextmanager
def _without_zeros(weights: list[Tensor]) -> Iterator[None]:
    """Zero entries of the parameters are replaced inside: a scale that is still zero would hide a coupling."""
    generator = torch.Generator().manual_seed(1)
    kept = [(p, p.clone()) for p in weights if p.is_floating_point() and bool((p == 0).any())]
    try:
        with torch.no_grad():
            for p, _ in kept:
                p.masked_scatter_(p == 0, torch.rand(p.shape, generator=generator).to(p) + 0.5)
        yield
    finally:
        with torch.no_grad():
            for p, value in kept:
                p.copy_(value)


def takes_statistics_over_processes(norm: _BatchNorm) -> bool:
    """Whether all processes must run a layer equally often, for they share its statistics."""
    return isinstance(norm, nn.SyncBatchNorm) and dist.is_available() and dist.is_initialized()


@contextmanager
def _constant_statistics(norms: list[_BatchNorm], like: Tensor) -> Iterator[None]:
    """Inside, BatchNorm layers in training normalise as in eval mode; one without running statistics, by 0 and 1."""
    before = [dict(norm._buffers) for norm in norms]
    try:
        for norm in norms:
            norm.training = False
            if norm.running_mean is None:
                norm.running_mean = like.new_zeros(norm.num_features)
                norm.running_var = like.new_ones(norm.num_features)
        yield
    finally:
        for norm, buffers in zip(norms, before, strict=True):
            norm.training = True
            norm._buffers.update(buffers)
