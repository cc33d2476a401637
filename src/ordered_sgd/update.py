"""Line 6 of Algorithm 1: the optimizer's update, and none for losses that are not finite."""

from typing import Literal

import torch
from torch import nn
from torch.optim import Optimizer

from ordered_sgd.errors import ArgumentError, check_choice, message
from ordered_sgd.nonfinite import Verdict, masked_step, masks_itself
from ordered_sgd.rewind import Buffers, Saved


class Updater:
    """Steps an optimizer, or leaves everything as it was.

    Parameters
    ----------
    optimizer, scaler, max_grad_norm, nonfinite
        As of `ordered_sgd.OrderedStep`.
    buffers
        Of the model: they are put back where a batch is skipped.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        buffers: Buffers,
        *,
        scaler: torch.amp.GradScaler | None,
        max_grad_norm: float | None,
        nonfinite: Literal["raise", "skip"],
    ) -> None:
        check_choice("OrderedStep", "nonfinite", nonfinite, ("raise", "skip"))
        if max_grad_norm is not None and not max_grad_norm > 0:
            remedy = "Use max_grad_norm=None for no clipping."
            raise ArgumentError(message("OrderedStep", "max_grad_norm", "be positive", max_grad_norm, remedy))
        if isinstance(optimizer, torch.optim.LBFGS):
            remedy = "Use OrderedLoss in its closure."
            raise ArgumentError(message("OrderedStep", "optimizer", "step without a closure", "LBFGS", remedy))
        self.optimizer, self.buffers, self.scaler = optimizer, buffers, scaler
        self.max_grad_norm, self.nonfinite = max_grad_norm, nonfinite
        self.verdict = Verdict()  # on the last step, which may not be known yet
        self._trains = False  # whether the optimizer is known to hold parameters of the model

    def begin(self) -> Saved:
        """Forget the last gradient; what comes back is how the buffers were before the step."""
        self.optimizer.zero_grad()
        return self.buffers.save()

    def step(self, verdict: Verdict, before: Saved, *, gradient: bool) -> bool:
        """Whether the parameters were updated, by the gradient that there is unless a loss was seen not to be finite.

        On an accelerator this may only be known later: then the update masks itself, or waits.
        """
        self.verdict = verdict
        if gradient and not self._trains:
            self._trains = self._check_optimizer()
        if gradient and self._may_update():
            self._update()
            if self.verdict.bad is not None:
                self.buffers.load(before, where=self.verdict.bad)
            return True
        self.optimizer.zero_grad()
        self.buffers.load(before)
        if self.nonfinite == "raise":
            self.raise_late()
        return False

    def raise_late(self) -> None:
        """Raise for a loss of the last step that was not finite, once it is known, unless such batches are skipped."""
        verdict, self.verdict = self.verdict, Verdict()
        error = verdict.error() if self.nonfinite == "raise" else None
        if error is not None:
            raise error

    def forget(self) -> None:
        """The last step has been undone."""
        self.verdict = Verdict()

    def _check_optimizer(self) -> bool:
        """Whether the optimizer holds something to train: parameters of the model, or others with a gradient."""
        own = {id(p) for p in self.buffers.model.parameters() if p.requires_grad}
        held = [p for group in self.optimizer.param_groups for p in group["params"]]
        if not any(id(p) in own or p.grad is not None for p in held):
            rule = "hold parameters that the loss depends on"
            got = f"{len(held)} without a gradient, none of them a trainable parameter of the model"
            remedy = "Build it with model.parameters(), after fully_shard or LoRA has replaced parameters."
            raise ArgumentError(message("OrderedStep", "optimizer", rule, got, remedy))
        return True

    def _may_update(self) -> bool:
        """Whether the losses are finite, or the optimizer can be left to find out on the device."""
        if self.verdict.bad is None or (self.scaler is None and masks_itself(self.optimizer)):
            return True
        if self.verdict.error() is not None:
            return False
        self.verdict = Verdict()
        return True

    def _update(self) -> None:
        if self.max_grad_norm is not None:
            if self.scaler is not None:
                self.scaler.unscale_(self.optimizer)
            parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
            nn.utils.clip_grad_norm_(parameters, self.max_grad_norm)
        if self.scaler is not None:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        elif self.verdict.bad is not None:
            masked_step(self.optimizer, self.verdict.bad)
        else:
            self.optimizer.step()
        torch.clear_autocast_cache()  # inside an autocast block it would keep serving the weights of before
