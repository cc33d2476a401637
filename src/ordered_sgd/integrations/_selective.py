"""Selective backward passes in a trainer: turned on while it trains, with what they computed for its log."""

import logging

import torch
from torch import nn

from ordered_sgd.selective import explain_backward, restore_backward, selective_backward

log = logging.getLogger("ordered_sgd")
KEPT = "only kept samples"
OFF = "whole batches: selective=False"


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
        self._wanted = wanted
        self._modules: list[nn.Module] = []  # those that were made selective here
        self._watched: list[nn.Module] = []  # and those that were before
        self._left: list[str] = []  # why others were not
        self._before = (0, 0.0)

    def add(self, module: nn.Module) -> None:
        """Make the backward of a module selective; one that cannot be keeps its own, with a reason."""
        if not self._wanted or any(module is known for known in self._watched):
            return
        inner = module.module if isinstance(module, nn.parallel.DistributedDataParallel) else module
        compiled = isinstance(inner, torch._dynamo.OptimizedModule) or inner._compiled_call_impl is not None
        if compiled and explain_backward(inner).plain is not None:
            self.leave("the model is compiled without selective_backward")
            return
        if not compiled:
            self._modules.append(selective_backward(module))
        self._watched.append(module)

    def leave(self, reason: str) -> None:
        """A module keeps its own backward, for this reason."""
        if self._wanted:
            self._left.append(reason)
            self._say(f"whole batches: {reason}")

    def restore(self) -> None:
        """Give back the modules as they were."""
        for module in self._modules:
            restore_backward(module)
        self._modules, self._watched, self._left, self._before = [], [], [], (0, 0.0)

    def share(self) -> float:
        """The share of samples whose gradient was computed since this was asked last; says in the log what ran."""
        reports = [explain_backward(module) for module in self._watched]
        passes, batches = sum(r.passes for r in reports), sum(r.batches for r in reports)
        (passes_before, batches_before), self._before = self._before, (passes, batches)
        reasons = [reason for r in reports for reason in ([r.plain] if r.plain else [*r.reasons][-1:])] + self._left
        if any(r.skipping for r in reports):
            self._say(KEPT if not reasons else f"{KEPT} in a part; elsewhere whole batches: {reasons[-1]}")
        elif reasons:
            self._say(f"whole batches: {reasons[-1]}")
        plain = self._left or any(r.plain for r in reports)
        if passes == passes_before or plain:
            return 1.0
        return (batches - batches_before) / (passes - passes_before)

    def _say(self, ran: str) -> None:
        if ran != self.ran:
            self.ran = ran
            log.info("backward passes compute %s", ran)
