"""Hugging Face Transformers: an ordered loss for `Trainer`, a callback that moves q, and a trainer that has both."""

import base64
import functools
import io
import weakref
from typing import Any

import torch

from ordered_sgd.errors import ArgumentError, message, require
from ordered_sgd.integrations._head import HeadForward
from ordered_sgd.integrations._labels import OrderedLossFunc
from ordered_sgd.integrations._own_loss import check_own_loss
from ordered_sgd.integrations._tasks import Task, task_of
from ordered_sgd.integrations._watched import world
from ordered_sgd.rules import Rule

if require("transformers", extra="huggingface", where="ordered_sgd.integrations.huggingface"):
    require("accelerate", extra="huggingface", where="ordered_sgd.integrations.huggingface")  # Trainer needs it
    from transformers import Trainer, TrainerCallback

__all__ = ["OrderedLossFunc", "OrderedRule", "OrderedTrainer"]
_KEY = "ordered_sgd"  # of the state in a checkpoint's trainer_state.json


class OrderedRule(TrainerCallback):
    """Moves the q of an `OrderedLossFunc` at the end of each epoch; the checkpoint carries its state.

    Parameters
    ----------
    loss_func : OrderedLossFunc
        The loss function that the same `Trainer` has.
    """

    def __init__(self, loss_func: OrderedLossFunc) -> None:
        self.loss_fn = loss_func.loss_fn
        self._first = self.loss_fn.policy.state_dict()
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
        self._model = None if model is None else weakref.ref(model)
        if text := state.stateful_callbacks.get(_KEY):
            stored = io.BytesIO(base64.b64decode(text))
            self.loss_fn.policy.load_state_dict(torch.load(stored, weights_only=True))
        elif before is not None and before() is not model:
            self.loss_fn.policy.load_state_dict(self._first)

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

    def _keep(self, state: Any) -> None:
        stored = io.BytesIO()
        torch.save(self.loss_fn.policy.state_dict(), stored)
        state.stateful_callbacks[_KEY] = base64.b64encode(stored.getvalue()).decode()  # the file is JSON


class OrderedTraining:
    """What trainers of Transformers and TRL share: the ordered loss, the forward pass that it needs, and the log."""

    ordered: OrderedLossFunc
    _forward: HeadForward

    def order(
        self,
        task: str | Task | None,
        q: float | Rule | None,
        unit: str | None,
        given: OrderedLossFunc | None,
        head: bool,
    ) -> None:
        """Set the loss function, made from q and unit unless it is given."""
        if given is not None and not (q is None and unit is None):
            remedy = "Give them to the OrderedLossFunc."
            raise ArgumentError(message(type(self).__name__, "q and unit", "be left out", "some", remedy))
        if given is None:
            assert task is not None
            given = OrderedLossFunc(task, q=q, unit=unit, group=world())  # type: ignore[arg-type]  # refuses q=None
        self.ordered = given
        self._forward = HeadForward(given.needs_logits if head else "head=False")

    @property
    def loss_from(self) -> str | None:
        """``"head: only kept tokens"``, or ``"logits: "`` and the reason; None before the first step."""
        return self._forward.ran

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log, with q and the plain mean loss beside the ordered one."""
        parent: Any = super()
        parent.log({**logs, **self.ordered.numbers()} if "loss" in logs else logs, *args, **kwargs)


class OrderedTrainer(OrderedTraining, Trainer):
    """A `Trainer` with an `OrderedLossFunc` and its `OrderedRule`; logs q and the plain mean as well.

    The output layer of a language model runs backward for the kept tokens only, and its logits are never stored, where
    that gives the same gradients. The attribute `loss_from` says whether it does, or why not.

    Parameters
    ----------
    model : PreTrainedModel or None, default=None
        As for `Trainer`; its class and its configuration tell the task. On the first batch the model's own loss is
        compared with that of the task, and must be the same.
    *args
        As for `Trainer`.
    q : float or Rule or None, default=None
        A count, a share in (0, 1] or a rule, as in `OrderedLossFunc`; needed unless `compute_loss_func` is given.
    unit : str or None, default=None
        As in `OrderedLossFunc`.
    head : bool, default=True
        Whether the losses of a language model may be computed from the input of its output layer. False computes all
        logits, as `Trainer` does.
    compute_loss_func : OrderedLossFunc or None, default=None
        In place of `q` and `unit`, for its other options.
    callbacks : list of TrainerCallback or None, default=None
        As for `Trainer`; an `OrderedRule` is added.
    **kwargs
        As for `Trainer`.

    """

    def __init__(
        self,
        model: Any = None,
        *args: Any,
        q: float | Rule | None = None,
        unit: str | None = None,
        head: bool = True,
        compute_loss_func: OrderedLossFunc | None = None,
        callbacks: Any = None,
        **kwargs: Any,
    ) -> None:
        self.order(task_of(model) if compute_loss_func is None else None, q, unit, compute_loss_func, head)
        callbacks = [*(callbacks or []), OrderedRule(self.ordered)]
        super().__init__(model, *args, compute_loss_func=self.ordered, callbacks=callbacks, **kwargs)
        self._unchecked = compute_loss_func is None  # the model's name has told the task, and its loss must agree
        if self.ordered.task.name != "causal":
            self._loss_shifts_labels = False  # else Trainer leaves the first label of each sequence out of its count
        if self.ordered.router_aux_loss_coef is None:
            self.ordered.router_aux_loss_coef = _router_aux_loss_coef(self.model)

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The loss of a micro-batch; see `Trainer`."""
        if self._unchecked and torch.is_grad_enabled():
            check_own_loss(self.ordered, model, inputs)
            self._unchecked = False
        task = self.ordered.task
        inputs = task.relabel(inputs, task.ignored)
        decoder = task.decoder(self.model, inputs)  # labels reach the loss function, not the model
        if torch.is_grad_enabled() and not return_outputs:  # who asks for the outputs expects logits
            model = functools.partial(self._forward, model)
        return super().compute_loss(functools.partial(model, **decoder), inputs, return_outputs, num_items_in_batch)

    def _get_num_items_in_batch(self, batch_samples: Any, device: Any) -> Any:
        """The labels of an update, counted as the loss function counts them."""
        task = self.ordered.task
        batches = [task.relabel(batch, task.ignored) for batch in batch_samples]
        return super()._get_num_items_in_batch(batches, device)


def _router_aux_loss_coef(model: Any) -> float | None:
    """What the model multiplies its `aux_loss` by, from itself or from its configuration; None if neither says."""
    config: Any = getattr(model, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    for holder in (model, text):
        for name in ("router_aux_loss_coef", "aux_loss_coef"):
            found = getattr(holder, name, None)
            if isinstance(found, int | float):
                return found
    return None
