"""Hugging Face Transformers: an ordered loss for `Trainer`, a callback that moves q, and a trainer that has both."""

import functools
from typing import Any

import torch

from ordered_sgd.amounts import Above
from ordered_sgd.errors import require
from ordered_sgd.integrations._labels import OrderedLossFunc
from ordered_sgd.integrations._own_loss import check_own_loss
from ordered_sgd.integrations._tasks import task_of
from ordered_sgd.rules import Rule
from ordered_sgd.sampler import OrderedBatchSampler

if require("transformers", extra="huggingface", where="ordered_sgd.integrations.huggingface"):
    require("accelerate", extra="huggingface", where="ordered_sgd.integrations.huggingface")  # Trainer needs it
    from transformers import Trainer

    from ordered_sgd.integrations._ordered_rule import OrderedRule
    from ordered_sgd.integrations._ordered_training import OrderedTraining

__all__ = ["OrderedLossFunc", "OrderedRule", "OrderedTrainer"]


class OrderedTrainer(OrderedTraining, Trainer):
    """A `Trainer` with an `OrderedLossFunc` and its `OrderedRule`; logs q and the plain mean as well.

    The output layer of a language model runs backward for the kept tokens only, and its logits are never stored, where
    that gives the same gradients. The attribute `loss_from` says whether it does, or why not.

    Where whole samples are ordered, those that are not kept need no backward pass: `backward_ran` says whether they are
    left out. With gradient accumulation the q largest are those of the whole update: `ordered_over` says so.

    Parameters
    ----------
    model : PreTrainedModel or None, default=None
        As for `Trainer`; its class and its configuration tell the task. On the first batch the model's own loss is
        compared with that of the task, and must be the same.
    *args
        As for `Trainer`.
    q : float or Above or Rule or None, default=None
        A count, a share in (0, 1], `Above` a value or a rule, as in `OrderedLossFunc`; needed unless
        `compute_loss_func` is given.
    unit : str or None, default=None
        As in `OrderedLossFunc`.
    head : bool, default=True
        Whether the losses of a language model may be computed from the input of its output layer. False computes all
        logits, as `Trainer` does.
    selective : bool, default=True
        Whether the backward pass of the model may leave out samples that are not kept, as `selective_backward` does.
    compute_loss_func : OrderedLossFunc or None, default=None
        In place of `q` and `unit`, for its other options.
    batch_sampler : OrderedBatchSampler or None, default=None
        Draws the batches of `train_dataset` where whole samples are ordered; its `q` and `batch_size` are those of the
        trainer. It is updated after each step, and checkpoints hold its state.
    callbacks : list of TrainerCallback or None, default=None
        As for `Trainer`; an `OrderedRule` is added.
    **kwargs
        As for `Trainer`.

    """

    def __init__(
        self,
        model: Any = None,
        *args: Any,
        q: float | Above | Rule | None = None,
        unit: str | None = None,
        head: bool = True,
        selective: bool = True,
        compute_loss_func: OrderedLossFunc | None = None,
        batch_sampler: OrderedBatchSampler | None = None,
        callbacks: Any = None,
        **kwargs: Any,
    ) -> None:
        task = task_of(model) if compute_loss_func is None else None
        rule = self.order(task, q, unit, compute_loss_func, batch_sampler, head=head, selective=selective)
        super().__init__(model, *args, compute_loss_func=self.ordered, callbacks=[*(callbacks or []), rule], **kwargs)
        self._unchecked = compute_loss_func is None  # the model's name has told the task, and its loss must agree
        if self.ordered.task.name != "causal":
            self._loss_shifts_labels = False  # else Trainer leaves the first label of each sequence out of its count
        if self.ordered.router_aux_loss_coef is None:
            self.ordered.router_aux_loss_coef = _router_aux_loss_coef(self.model)

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """The loss of a micro-batch, or of a whole update; see `Trainer`."""
        if self._unchecked:
            self._unchecked = False
            with self.compute_loss_context_manager():
                check_own_loss(self.ordered, model, self._prepare_inputs(inputs))
        return super().training_step(model, inputs, num_items_in_batch)

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The loss of a micro-batch; see `Trainer`."""
        task = self.ordered.task
        inputs = task.relabel(inputs, task.ignored)
        decoder = task.decoder(self.model, inputs)  # labels reach the loss function, not the model
        training = torch.is_grad_enabled() or self._updates.scoring
        if training and not return_outputs:  # who asks for the outputs expects logits
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
