"""What the backward passes of a model did: how many samples they computed, and why not fewer."""

import logging
from dataclasses import dataclass, field

from torch import nn

from ordered_sgd.errors import message, warn

log = logging.getLogger("ordered_sgd")

EXACT = "The gradient is exact, and no time is saved: call restore_backward(model) to silence this."


def hint_for(model: nn.Module) -> str:
    """Where to put the batch, for a model whose inputs may have time in its place; else empty."""
    if all(getattr(module, "batch_first", True) for module in model.modules()):
        return ""
    return "If time is the first dimension of the inputs (batch_first=False), put the batch first."


class NotCompiledError(Exception):
    """Why the compiled function cannot be used."""


class BackwardFailedError(RuntimeError):
    """Compiled code of a backward pass failed, and the model itself may not."""


@dataclass
class BackwardReport:
    """What the backward passes of a model did so far.

    Attributes
    ----------
    name : str
        Who ran them, for messages.
    remedy : str
        What a warning of samples that influence each other advises.
    hint : str
        What to look at first where no samples can be left out.
    passes : int
        Backward passes, one for each traced part of the model.
    skipping : int
        Passes that left samples out.
    rows : int
        Samples whose gradient was computed, in all passes whose batch is known.
    samples : int
        Samples in the batches of those passes.
    batches : float
        Passes, each counted as the share of its samples that it computed.
    reasons : dict of str to int
        Why a pass could not leave samples out, and how often.
    eager : bool
        Whether torch.compile leaves a part of the model alone, which is then computed for all samples.
    lowered : int
        How often inductor compiled a backward graph.
    unlowered : dict of str to int
        Why a graph ran node by node although ``compile=True``, and how often.
    plain : str or None
        Why the model runs as without `selective_backward`; None if it does not.
    quiet : bool
        Whether to log what would else be a warning: in a trainer, which turns it on by itself.
    """

    name: str = "selective_backward"
    remedy: str = EXACT
    hint: str = ""
    passes: int = 0
    skipping: int = 0
    rows: int = 0
    samples: int = 0
    batches: float = 0.0
    reasons: dict[str, int] = field(default_factory=dict)
    eager: bool = False
    lowered: int = 0
    unlowered: dict[str, int] = field(default_factory=dict)
    plain: str | None = None
    quiet: bool = False

    def some(self, rows: int, s: int) -> None:
        """A pass computed some rows of a batch of s."""
        self.passes += 1
        self.skipping += 1
        self.rows += rows
        self.samples += s
        self.batches += rows / s

    def whole(self, reason: str | None, s: int = 0) -> None:
        """A pass computed its whole batch: because every sample has a gradient (None), or for another reason."""
        self.passes += 1
        self.rows += s
        self.samples += s
        self.batches += 1
        if reason is not None:
            self.say(reason)

    def say(self, reason: str) -> None:
        """Count the reason; the first time it is logged."""
        if reason not in self.reasons:
            log.info("%s runs the whole backward: %s", self.name, reason)
        self.reasons[reason] = self.reasons.get(reason, 0) + 1

    def say_unlowered(self, reason: str) -> None:
        """Count why a graph is not run as inductor compiled it; the first time it is logged."""
        if reason not in self.unlowered:
            log.info("%s runs a graph node by node: %s", self.name, reason)
        self.unlowered[reason] = self.unlowered.get(reason, 0) + 1

    def warn_of(self, coupling: str) -> None:
        """Warn that samples influence each other."""
        remedy = f"{self.remedy} {self.hint}".strip()
        self.warn(message(self.name, "samples", "not influence each other", coupling, remedy))

    def warn(self, text: str) -> None:
        """Warn, or log it where nobody has asked for selective backward passes."""
        if self.quiet:
            log.info(text)
        else:
            warn(text)

    def __str__(self) -> str:
        if self.plain is not None:
            return f"The model runs as without selective_backward: {self.plain}."
        if self.passes == 0:
            return "No backward pass yet."
        share = f"{100 * self.rows / self.samples:.0f} % of the samples" if self.samples else "whole batches"
        text = f"{self.passes} backward passes computed {share}; {self.skipping} of them left samples out."
        text += " A part of the model is not traced, and computes them all." if self.eager else ""
        text += " Graphs are compiled with inductor." if self.lowered else ""
        why = "".join(f"\nWhole batch, {count} times: {reason}" for reason, count in self.reasons.items())
        why += "".join(f"\nNot compiled, {count} times: {reason}" for reason, count in self.unlowered.items())
        return text + why + (f"\n{self.hint}" if self.reasons and self.hint else "")
