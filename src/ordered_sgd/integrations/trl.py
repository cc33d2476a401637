"""TRL: an `SFTTrainer` that steps on the largest token losses, without logits where that gives the same gradients."""

from typing import Any

import torch

from ordered_sgd.amounts import Above
from ordered_sgd.errors import ArgumentError, message, require
from ordered_sgd.integrations._head import logits_of
from ordered_sgd.integrations._labels import OrderedLossFunc
from ordered_sgd.rules import Rule
from ordered_sgd.sampler import OrderedBatchSampler

if require("trl", extra="trl", where="ordered_sgd.integrations.trl"):
    from trl import SFTTrainer

    from ordered_sgd.integrations._ordered_training import OrderedTraining

__all__ = ["OrderedSFTTrainer"]


class OrderedSFTTrainer(OrderedTraining, SFTTrainer):
    """A `trl.SFTTrainer` with an `OrderedLossFunc` and its `OrderedRule`; logs q and the plain mean as well.

    Evaluation is TRL's own. In training TRL's metrics ``entropy`` and ``mean_token_accuracy`` are left out: they need
    the logits of all tokens, which are not computed.

    Parameters
    ----------
    model : str or PreTrainedModel or PeftModel
        As for `SFTTrainer`.
    *args
        As for `SFTTrainer`.
    q : float or Above or Rule or None, default=None
        A count, a share in (0, 1], `Above` a value or a rule, as in `OrderedLossFunc`; needed unless
        `compute_loss_func` is given.
    unit : str or None, default=None
        As in `OrderedLossFunc`.
    head, selective : bool, default=True
        As in `OrderedTrainer`.
    compute_loss_func : OrderedLossFunc or None, default=None
        In place of `q` and `unit`, for its other options.
    batch_sampler : OrderedBatchSampler or None, default=None
        As in `OrderedTrainer`, with ``unit="sample"``.
    callbacks : list of TrainerCallback or None, default=None
        As for `SFTTrainer`; an `OrderedRule` is added.
    **kwargs
        As for `SFTTrainer`.

    """

    def __init__(
        self,
        model: Any,
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
        rule = self.order("causal", q, unit, compute_loss_func, batch_sampler, head=head, selective=selective)
        # evaluation keeps the loss function of TRL
        super().__init__(model, *args, callbacks=[*(callbacks or []), rule], **kwargs)
        if self.args.loss_type != "nll":
            remedy = "The ordered loss orders cross-entropies."
            raise ArgumentError(message("OrderedSFTTrainer", "loss_type", "be 'nll'", self.args.loss_type, remedy))

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The loss of a micro-batch; see `SFTTrainer`."""
        if not (torch.is_grad_enabled() or self._updates.scoring):
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        given = {name: value for name, value in inputs.items() if name != "labels"} | {"use_cache": False}
        if self.aux_loss_enabled:
            given["output_router_logits"] = True
        # who asks for the outputs expects logits
        outputs = model(**given) if return_outputs else self._forward(model, **given)
        loss = self.ordered({"logits": logits_of(outputs)}, inputs.get("labels"), num_items_in_batch)
        if self.args.average_tokens_across_devices and num_items_in_batch is not None:
            loss = loss * (self.accelerator.num_processes // self.get_tp_size())
        if self.aux_loss_enabled:  # weighted as TRL does it, over the micro-batches of an update
            aux_loss = outputs["aux_loss"]
            parts = 1 if num_items_in_batch is None else self.current_gradient_accumulation_steps
            loss = loss + self.router_aux_loss_coef * aux_loss / parts
            self._metrics["train"]["aux_loss"].append(self._over_ranks(aux_loss).mean().item())
        if not self._updates.scoring:  # those of a whole update are counted as they come
            self._count_tokens(inputs)
        return (loss, outputs) if return_outputs else loss

    def _why_micro_batches(self) -> str | None:
        return "the router's loss needs all samples" if self.aux_loss_enabled else super()._why_micro_batches()

    def _count_tokens(self, inputs: Any) -> None:
        """Count the tokens that were trained on, as TRL does; without padding there is no attention mask."""
        if "attention_mask" in inputs:
            tokens = inputs["attention_mask"].sum()
        else:
            tokens = torch.tensor(inputs["input_ids"].numel(), device=inputs["input_ids"].device)
        self._total_train_tokens += self._over_ranks(tokens).sum().item() // self._tp_size
        self._metrics["train"]["num_tokens"] = [self._total_train_tokens]

    def _over_ranks(self, number: torch.Tensor) -> torch.Tensor:
        gathered: torch.Tensor = self.accelerator.gather_for_metrics(number.detach())
        return gathered
