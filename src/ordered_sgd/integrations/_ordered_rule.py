"""The callback of a Transformers trainer that moves q, and makes the model's backward pass selective."""

import base64
import io
import weakref
from collections.abc import Callable
from typing import Any

import torch
from accelerate.state import AcceleratorState
from transformers import TrainerCallback

from ordered_sgd.errors import ArgumentError, message
from ordered_sgd.integrations._labels import OrderedLossFunc
from ordered_sgd.integrations._sampled import Sampled
from ordered_sgd.integrations._selective import COMPILED, SelectiveModules
from ordered_sgd.sampler import OrderedBatchSampler

_KEY = "ordered_sgd"  # of the state in a checkpoint's trainer_state.json


class OrderedRule(TrainerCallback):
    """Moves the q of an `OrderedLossFunc` at the end of each epoch, and lets the model skip samples that are not kept.

    A checkpoint carries the state of the rule.

    Parameters
    ----------
    loss_func : OrderedLossFunc
        The loss function that the same `Trainer` has.
    selective : bool, default=True
        Whether the model's backward pass may leave out samples without a gradient while it trains.

    Attributes
    ----------
    backward_ran : str or None
        ``"only kept samples"``, or ``"whole batches: "`` and the reason; None before the first step.
    """

    def __init__(
        self, loss_func: OrderedLossFunc, selective: bool = True, *, _part: Callable[[Any], Any] = lambda model: model
    ) -> None:
        self.loss_fn = loss_func.loss_fn
        self.selective = SelectiveModules(selective)
        self._part = _part  # the module of the model that is to be selective, or why none is
        self.compiles = False  # whether it is compiled with inductor, in place of the trainer's torch.compile
        self._first = self.loss_fn.policy.state_dict()
        self.sampled: Sampled | None = None  # set by a trainer that has a batch sampler
        self._model: weakref.ref[Any] | None = None  # of the last training

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Refuse what would be passed over without a word."""
        smoothing, devices = args.label_smoothing_factor, args.n_gpu
        if smoothing:
            remedy = 'Pass criterion=nn.CrossEntropyLoss(label_smoothing=..., reduction="none") instead.'
            raise ArgumentError(message("OrderedRule", "label_smoothing_factor", "be 0", smoothing, remedy))
        if self.loss_fn.group is not None and not args.average_tokens_across_devices:
            rule, remedy = "be true for a group", "Leave it as it is by default."
            raise ArgumentError(message("OrderedRule", "average_tokens_across_devices", rule, False, remedy))
        if devices > 1:
            remedy = "Start one process for each with torchrun."
            raise ArgumentError(message("OrderedRule", "devices of a process", "be one", devices, remedy))

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Take up what a checkpoint has brought; without one a new model, as in a search, starts from the first q."""
        before, model = self._model, kwargs.get("model")
        self._check_sampler(kwargs.get("train_dataloader"), another=before is not None and before() is not model)
        self._model = None if model is None else weakref.ref(model)
        if text := state.stateful_callbacks.get(_KEY):
            stored = io.BytesIO(base64.b64decode(text))
            self.loss_fn.policy.load_state_dict(torch.load(stored, weights_only=True))
        elif before is not None and before() is not model:
            self.loss_fn.policy.load_state_dict(self._first)
        self.selective.restore()  # of a training that an error has ended
        part = COMPILED if args.torch_compile and not self.compiles else self.part_of(model)
        if isinstance(part, str):
            self.selective.leave(part)
        else:
            self.selective.add(part, compile=self.compiles)

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Say what the backward passes computed."""
        self.selective.look()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Give the model back as it was."""
        self.selective.restore()

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End the epoch before, if the checkpoint was written between its last step and its end."""
        if state.global_step > 0 and state.epoch == int(state.epoch) and self.loss_fn.policy.adaptive.began:
            self.loss_fn.end_epoch()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Move q."""
        self.loss_fn.end_epoch()
        self._keep(state)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Keep the state for a checkpoint that is about to be written."""
        if control.should_save:
            self._keep(state)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Keep the state: what was found may call for a checkpoint."""
        self._keep(state)

    def part_of(self, model: Any) -> Any:
        """The module of the model that is to be selective, or why none is."""
        if model is None:
            return "there is no model"
        return run_by() or self.loss_fn.skips_nothing or self._part(model)

    def _check_sampler(self, loader: Any, *, another: bool) -> None:
        """Raise if a batch sampler was not given to the trainer, or remembers the losses of another model."""
        batches = getattr(loader, "batch_sampler", None)
        if isinstance(getattr(batches, "batch_sampler", batches), OrderedBatchSampler):
            remedy = "Pass OrderedTrainer(..., batch_sampler=sampler)."
            rule, got = "be an argument of the trainer", "one in its loader"
            raise ArgumentError(message("OrderedRule", "an OrderedBatchSampler", rule, got, remedy))
        if self.sampled is not None and another:
            rule, remedy = "be the same in every training with a batch sampler", "Make a new trainer and sampler."
            raise ArgumentError(message("OrderedRule", "the model", rule, "another one", remedy))

    @property
    def backward_ran(self) -> str | None:
        """What the backward passes compute."""
        return self.selective.ran

    def _keep(self, state: Any) -> None:
        stored = io.BytesIO()
        torch.save(self.loss_fn.policy.state_dict(), stored)
        state.stateful_callbacks[_KEY] = base64.b64encode(stored.getvalue()).decode()  # the file is JSON


def run_by() -> str | None:
    """Who runs the model in place of torch or DistributedDataParallel: its passes are not ours to change."""
    kind = str(AcceleratorState().distributed_type.value)
    return None if kind == "NO" or kind.startswith("MULTI_") else f"{kind} runs the model"
