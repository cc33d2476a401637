"""What a pass over a batch has to do with other ranks: nothing, or as DDP and FSDP2 share gradients and parameters.

Engines run three kinds of pass: without gradients (scoring, comparing), with gradients kept local (all micro-batches
but the last), and one per step whose gradient is averaged over ranks. Only the last kind involves the other ranks,
unless every pass does: to gather parameters (`fully_shard`) or batch statistics (SyncBatchNorm).
"""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ordered_sgd.errors import ArgumentError, message
from ordered_sgd.ranks import check_group, numbers_of_all
from ordered_sgd.rewind import device_of

_FOUND = "what an engine found out about the model"


class OneProcess:
    """A model on one process: no pass needs another rank.

    Attributes
    ----------
    model
        What passes run that no other rank takes part in.
    why_not_rows
        Why the rows engine cannot run, or None.
    over_ranks, ranks
        Whether choices are made with other ranks, and how many there are in all.
    """

    why_not_rows: str | None = None
    over_ranks = False
    ranks = 1

    def __init__(self, model: nn.Module, group: "dist.ProcessGroup | None" = None) -> None:
        self.model, self.group = model, group
        if group is not None:
            self.over_ranks, self.ranks = True, group.size()

    @property
    def in_step(self) -> bool:
        """Whether every pass is one of all ranks, so that each must run as many."""
        return self.shares_statistics()

    def shares_statistics(self) -> bool:
        """Whether a pass takes batch statistics over ranks: SyncBatchNorm in training."""
        return self.over_ranks and any(isinstance(m, nn.SyncBatchNorm) and m.training for m in self.model.modules())

    def weights(self) -> list[Tensor]:
        """The parameters, or what this rank has of them, to be read and written in place."""
        return [p.detach() for p in self.model.parameters()]

    def gradient(self, losses: Tensor, weights: Tensor) -> list[Tensor | None]:
        """The gradient of a weighted sum of losses, or what this rank has of it; the parameters' own is left alone."""
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        return list(torch.autograd.grad(losses, parameters, weights, allow_unused=True))

    def worst(self, error: float | None) -> float | None:
        """The largest error of all ranks (None if one could not tell) where each runs as many passes; else its own."""
        if not self.in_step:
            return error
        errors = [number for (number,) in self.numbers(math.nan if error is None else error, about=_FOUND)]
        return None if any(map(math.isnan, errors)) else max(errors)

    def largest(self, number: int) -> int:
        """The largest of the ranks' numbers."""
        return int(max(found for (found,) in self.numbers(number, about=_FOUND)))

    def begin(self) -> None:
        """A new step begins."""

    def through(self, score: Callable[[Any], Any], batch: Any) -> Any:
        """``score(batch)`` as the pass whose gradient is averaged over ranks."""
        return score(batch)

    def abandon(self, losses: Tensor) -> None:
        """Leave a pass of `through` without its gradient."""

    def unsynced(self) -> AbstractContextManager[None]:
        """Inside, gradients are added up on their rank."""
        return nullcontext()

    def numbers(self, *numbers: float, about: str = "the sizes of micro-batches") -> list[tuple[float, ...]]:
        """The numbers of every rank, in the order of the ranks; `about` is what an error calls them."""
        if self.group is None:
            return [numbers]
        return [tuple(row) for row in numbers_of_all(list(numbers), self.group, device_of(self.model), about)]

    def any(self, *flags: bool) -> list[bool]:
        """Which of the flags are set on some rank."""
        return [max(column) > 0 for column in zip(*self.numbers(*map(float, flags), about=_FOUND), strict=True)]


class _Wrapped(OneProcess):
    def abandon(self, losses: Tensor) -> None:
        # the wrapper expects a backward after each forward; zeros leave it as after any other step
        torch.autograd.backward(losses, torch.zeros_like(losses))


class Replicated(_Wrapped):
    """A model in DistributedDataParallel: only the pass whose gradient is averaged goes through the wrapper.

    The wrapper is called once in each step on every rank, whatever the engine does besides, so that ranks may differ in
    what they compute. Without a group each rank chooses by itself: they share gradients, and nothing else.
    """

    def __init__(self, wrapper: nn.parallel.DistributedDataParallel, group: "dist.ProcessGroup | None") -> None:
        super().__init__(wrapper.module, group)
        self._wrapper = wrapper
        self._passed = False

    def begin(self) -> None:
        """A new step begins, in which the wrapper has not been called."""
        self._passed = False

    def through(self, score: Callable[[Any], Any], batch: Any) -> Any:
        """``score(batch)`` from inside the wrapper's forward: DDP goes around the engine, not the other way round."""
        x, *rest = batch
        if self._passed:  # a second attempt at the same pass: other ranks do not broadcast buffers again
            self._wrapper.require_forward_param_sync = False
        self._passed = True
        self._wrapper.module = _StandIn(self.model, lambda x: score((x, *rest)))
        try:
            return self._wrapper(x)
        finally:
            self._wrapper.module = self.model


class _StandIn(nn.Module):
    """In a wrapper's place for its module: runs a function, and has the module's buffers to be broadcast."""

    def __init__(self, module: nn.Module, run: Callable[[Any], Any]) -> None:
        super().__init__()
        self.run = run
        self.named_buffers = module.named_buffers  # type: ignore[method-assign]
        self.named_modules = module.named_modules  # type: ignore[method-assign]

    def forward(self, x: Any) -> Any:
        return self.run(x)


class Sharded(_Wrapped):
    """A model whose parameters `fully_shard` has spread over the ranks: every pass gathers them from all."""

    why_not_rows = "fully_shard gathers the parameters between the modules, where a traced step would break off"

    @property
    def in_step(self) -> bool:
        """Yes: the parameters are gathered from all ranks in every pass."""
        return True

    def weights(self) -> list[Tensor]:
        """The shards of this rank."""
        return [_local(p.detach()) for p in self._parameters()]

    def gradient(self, losses: Tensor, weights: Tensor) -> list[Tensor | None]:
        """The shards of this rank of the gradient, averaged over all."""
        torch.autograd.backward(losses, weights)
        parameters = self._parameters()
        found = [None if p.grad is None else _local(p.grad) for p in parameters]
        for p in parameters:
            p.grad = None
        return found

    def _parameters(self) -> list[nn.Parameter]:
        for module in _sharded(self.model):
            module.reshard()  # else some were still whole, and the next pass would not see what is written to shards
        return list(self.model.parameters())

    @contextmanager
    def unsynced(self) -> Iterator[None]:
        """Inside, gradients are kept whole and added up on their rank."""
        sharded = _sharded(self.model)
        for module in sharded:
            module.set_requires_gradient_sync(False, recurse=False)
        try:
            yield
        finally:
            for module in sharded:
                module.set_requires_gradient_sync(True, recurse=False)


def parallel(model: nn.Module, group: Any) -> OneProcess:
    """How the model shares its gradients with the ranks of the group; without one each rank chooses by itself."""
    if group is None:
        return Replicated(model, None) if isinstance(model, nn.parallel.DistributedDataParallel) else OneProcess(model)
    group = check_group(group, "OrderedStep")
    if isinstance(model, nn.parallel.DistributedDataParallel):
        _check_ranks(group, dist.get_process_group_ranks(model.process_group))
        return Replicated(model, group)
    if _sharded(model):
        meshes = [p.device_mesh for p in model.parameters() if hasattr(p, "device_mesh")]
        if meshes and meshes[0].ndim == 1:  # of several dimensions, some may share the work on a sample
            _check_ranks(group, meshes[0].mesh.tolist())
        return Sharded(model, group)
    if group.size() == 1:
        return OneProcess(model)
    remedy = "Wrap it (a compiled model: DistributedDataParallel(torch.compile(model)))."
    rule = "be in DistributedDataParallel or sharded by fully_shard for a group"
    raise ArgumentError(message("OrderedStep", "model", rule, type(model).__name__, remedy))


def _check_ranks(group: "dist.ProcessGroup", averaged: list[int]) -> None:
    if averaged != dist.get_process_group_ranks(group):
        rule, remedy = "hold the ranks over which gradients are averaged", "Pass the group that the model was given."
        raise ArgumentError(message("OrderedStep", "group", rule, f"others than {averaged}", remedy))


def _local(tensor: Any) -> Tensor:
    """What this rank has of a DTensor; a parameter that `fully_shard` was told to leave alone is not one."""
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local


def _sharded(model: nn.Module) -> list[Any]:
    from torch.distributed.fsdp import FSDPModule  # takes a second to load

    return [module for module in model.modules() if isinstance(module, FSDPModule)]
