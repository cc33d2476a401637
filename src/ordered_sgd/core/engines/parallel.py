"""What a pass over a batch has to do with other ranks: nothing, or as DDP and FSDP2 share gradients and parameters.

Engines run passes of three kinds: such as no other rank takes part in (scoring, comparing), such whose gradient stays
on its rank for the time being (all but the last micro-batch), and one in each step whose gradient is averaged.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ordered_sgd.core.distributed import check_group, numbers_of_all
from ordered_sgd.core.engines.state import device_of
from ordered_sgd.errors import ArgumentError, message


class OneProcess:
    """A model whose passes are nobody else's business.

    Attributes
    ----------
    model
        What passes run that no other rank takes part in.
    why_dense
        Why no engine but dense can run, or None.
    in_step
        Whether every pass is one of all ranks, so that each must run as many.
    over_ranks, ranks
        Whether there are other ranks, and how many in all.
    """

    why_dense: str | None = None
    in_step = False
    over_ranks = False
    ranks = 1

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def shares_statistics(self) -> bool:
        """Whether a pass takes batch statistics over ranks: SyncBatchNorm in training."""
        return self.over_ranks and any(isinstance(m, nn.SyncBatchNorm) and m.training for m in self.model.modules())

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

    def numbers(self, *numbers: float) -> list[tuple[float, ...]]:
        """The numbers of every rank, in the order of the ranks."""
        return [numbers]

    def any(self, *flags: bool) -> list[bool]:
        """Which of the flags are set on some rank."""
        return [max(column) > 0 for column in zip(*self.numbers(*map(float, flags)), strict=True)]


class _OverRanks(OneProcess):
    over_ranks = True

    def __init__(self, model: nn.Module, group: "dist.ProcessGroup") -> None:
        super().__init__(model)
        self.group, self.ranks = group, group.size()

    def abandon(self, losses: Tensor) -> None:
        # the wrapper expects a backward after each forward; zeros leave it as after any other step
        torch.autograd.backward(losses, torch.zeros_like(losses))

    def numbers(self, *numbers: float) -> list[tuple[float, ...]]:
        return [tuple(row) for row in numbers_of_all(list(numbers), self.group, device_of(self.model))]


class Replicated(_OverRanks):
    """A model in DistributedDataParallel: only the pass whose gradient is averaged goes through the wrapper.

    The wrapper is called once in each step on every rank, whatever the engine does besides, so that ranks may differ in
    what they compute.
    """

    def __init__(self, wrapper: nn.parallel.DistributedDataParallel, group: "dist.ProcessGroup") -> None:
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


class Sharded(_OverRanks):
    """A model whose parameters `fully_shard` has spread over the ranks: every pass gathers them from all."""

    why_dense = "fully_shard spreads the parameters over the ranks"
    in_step = True

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
    """How the model shares its gradients with the ranks of the group; None: with nobody, as far as we know."""
    if group is None:
        return OneProcess(model)
    group = check_group(group, "OrderedStep")
    if isinstance(model, nn.parallel.DistributedDataParallel):
        averaged = dist.get_process_group_ranks(model.process_group)
        if averaged != dist.get_process_group_ranks(group):
            remedy = "Pass the group that DistributedDataParallel was given."
            rule = "hold the ranks over which gradients are averaged"
            raise ArgumentError(message("OrderedStep", "group", rule, f"others than {averaged}", remedy))
        return Replicated(model, group)
    if _sharded(model):
        return Sharded(model, group)
    if group.size() == 1:
        return OneProcess(model)
    remedy = "Wrap it (a compiled model: DistributedDataParallel(torch.compile(model)))."
    rule = "be in DistributedDataParallel or sharded by fully_shard for a group"
    raise ArgumentError(message("OrderedStep", "model", rule, type(model).__name__, remedy))


def _sharded(model: nn.Module) -> list[Any]:
    from torch.distributed.fsdp import FSDPModule  # takes a second to load

    return [module for module in model.modules() if isinstance(module, FSDPModule)]
