"""Selective backward passes in a trainer: turned on while it trains, with what they computed for its log."""

import logging

import torch
from torch import nn

from ordered_sgd.selective import BackwardReport, explain_backward, restore_backward, selective_backward

log = logging.getLogger("ordered_sgd")
KEPT = "only kept samples"
WHOLE = "whole batches: "
OFF = f"{WHOLE}selective=False"
EVERYTHING = f"{WHOLE}every sample had a gradient"
COMPILED = "the model is compiled without selective_backward"


class SelectiveModules:
    """The modules of a training whose backward passes skip samples without a gradient.

    Parameters
    ----------
    wanted
        Whether backward passes may be selective at all.

    Attributes
    ----------
    ran : str or None
        ``"only kept samples"``, or ``"whole batches: "`` and the reason; None before the first backward pass.
    """

    def __init__(self, wanted: bool) -> None:
        self.ran: str | None = None if wanted else OFF
        self.wanted = wanted
        self._modules: list[nn.Module] = []  # those that were made selective here
        self._watched: list[nn.Module] = []  # and those that were before
        self._left: list[str] = []  # why others were not
        self._before = (0, 0.0)

    def add(self, module: nn.Module, *, compile: bool = False) -> None:
        """Make the backward of a module selective, compiled by inductor if asked for.

        One that cannot be selective keeps its own backward, with a reason.
        """
        if not self.wanted or any(module is known for known in self._watched):
            return
        inner = module.module if isinstance(module, nn.parallel.DistributedDataParallel) else module
        compiled = isinstance(inner, torch._dynamo.OptimizedModule) or inner._compiled_call_impl is not None
        reason = _unfit(inner)
        if compiled and explain_backward(inner).plain is not None:
            reason = COMPILED
        if reason is not None:
            self.leave(reason)
            return
        if not compiled:
            self._modules.append(selective_backward(module, compile=compile))
            explain_backward(module).quiet = True
        self._watched.append(module)
        report = explain_backward(module)
        self._before = self._before[0] + report.passes, self._before[1] + report.batches

    def leave(self, reason: str) -> None:
        """A module keeps its own backward, for this reason."""
        if self.wanted:
            self._left.append(reason)
            self._say(WHOLE + reason)

    def restore(self) -> None:
        """Give back the modules as they were."""
        self.look()
        for module in self._modules:
            restore_backward(module)
        self._modules, self._watched, self._left, self._before = [], [], [], (0, 0.0)

    def share(self) -> float:
        """The share of samples whose gradient was computed since this was asked last; says in the log what ran."""
        reports = self.look()
        passes, batches = sum(r.passes for r in reports), sum(r.batches for r in reports)
        (passes_before, batches_before), self._before = self._before, (passes, batches)
        if passes == passes_before or self._left or any(r.plain for r in reports):
            return 1.0
        return (batches - batches_before) / (passes - passes_before)

    def look(self) -> list[BackwardReport]:
        """The reports of all modules; says what ran."""
        reports = [explain_backward(module) for module in self._watched]
        reasons = [reason for r in reports for reason in ([r.plain] if r.plain else [*r.reasons][-1:])] + self._left
        if any(r.skipping for r in reports):
            self._say(KEPT if not reasons else f"{KEPT} in a part; elsewhere {WHOLE}{reasons[-1]}")
        elif reasons:
            self._say(WHOLE + reasons[-1])
        elif any(r.passes for r in reports):
            self._say(EVERYTHING)
        return reports

    def _say(self, ran: str) -> None:
        if ran != self.ran:
            self.ran = ran
            log.info("backward passes compute %s", ran)


def _unfit(module: nn.Module) -> str | None:
    """Why a module cannot be compiled here, as far as it can be seen from the outside."""
    if any(type(inner).__name__ == "FullyShardedDataParallel" for inner in module.modules()):
        return "the parameters are sharded"
    if any(hasattr(p, "device_mesh") or hasattr(p, "ds_id") for p in module.parameters()):
        return "the parameters are sharded"  # by fully_shard or tensor parallelism, or by DeepSpeed
    return None
