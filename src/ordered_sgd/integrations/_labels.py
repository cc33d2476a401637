"""The ordered loss of a model's labels, as the Trainer of Transformers asks for it; needs nothing but torch.

The q largest are those of each micro-batch as it comes (with several processes, of all of them). Their mean is weighted
by the micro-batch's valid labels over `num_items_in_batch`, those of the whole update, so that with ``q=1.0`` an update
is the one on the mean over all its valid labels, however they are padded and accumulated.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import pad

from ordered_sgd.criterion import ignore_index
from ordered_sgd.errors import ArgumentError, check_choice, message
from ordered_sgd.integrations._head import Unprojected, logits_of
from ordered_sgd.integrations._watched import WatchedLoss
from ordered_sgd.rules import Rule


class OrderedLossFunc:
    """A ``compute_loss_func`` for `Trainer`: the ordered loss in training, the plain mean in evaluation.

    Parameters
    ----------
    task : str
        ``"sequence"``: logits (s, C), a label each; ``"token"``: logits (s, T, C), labels (s, T); ``"causal"``: the
        same with every label predicted one position before it.
    q : float or Rule
        A count, a share in (0, 1], or a rule that moves q: then give `Trainer` an `OrderedRule` as well.
    unit : str or None, default=None
        What is ordered, ``"sample"`` or ``"token"``; None means ``"token"`` unless the task is ``"sequence"``.
        ``"sample"`` orders whole sequences by the mean loss of their tokens.
    criterion : Callable[..., Tensor] or None, default=None
        One loss per label, from logits (n, C) and labels (n,); None means cross-entropy that ignores -100.
    router_aux_loss_coef : float or None, default=None
        What the ``aux_loss`` of a mixture of experts is multiplied by before it is added to the loss. `OrderedTrainer`
        reads it from the model; elsewhere a model that returns an ``aux_loss`` needs it.
    **options
        What else `ordered_sgd.OrderedLoss` takes, such as ``group``.

    Examples
    --------
    >>> loss_func = OrderedLossFunc("token", q=0.5)
    >>> labels = torch.tensor([[0, 1, -100]])
    >>> loss_func({"logits": torch.zeros(1, 3, 2)}, labels, num_items_in_batch=4)  # log 2, and half of the labels
    tensor(0.3466)
    """

    def __init__(
        self,
        task: str,
        *,
        q: float | Rule,
        unit: str | None = None,
        criterion: Any = None,
        router_aux_loss_coef: float | None = None,
        **options: Any,
    ) -> None:
        where = type(self).__name__
        check_choice(where, "task", task, ("sequence", "token", "causal"))
        self.task, self._classes = task, criterion is None
        self.router_aux_loss_coef = router_aux_loss_coef
        criterion = criterion or nn.CrossEntropyLoss(reduction="none")
        unit = unit or ("sample" if task == "sequence" else "token")
        self._ignored = ignore_index(criterion)
        self.loss_fn = WatchedLoss(criterion, q=q, unit=unit, **options, _where=where)  # type: ignore[arg-type]
        if task != "sequence":
            self.loss_fn.criterion = _PerToken(criterion)
        self._sums: list[Any] = [0.0, 0.0]  # since the last log: of mean losses times weights, and of the weights

    def __call__(self, outputs: Any, labels: Tensor | None, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """The loss of a micro-batch, to be added to those of the others of the same update."""
        if labels is None:
            remedy = "Trainer drops what the model's forward does not name; set remove_unused_columns=False."
            raise ArgumentError(message("OrderedLossFunc", "labels", "be in every batch", "none", remedy))
        if self._classes and labels.is_floating_point():
            remedy = "Pass OrderedLossFunc(task, criterion=...) for regression and for several labels at once."
            raise ArgumentError(message("OrderedLossFunc", "labels", "be classes", labels.dtype, remedy))
        logits = logits_of(outputs)
        labels = labels.to(logits.device)
        if self.task == "causal":
            labels = pad(labels, (0, 1), value=-100)[..., 1:]  # the last position predicts nothing
        if isinstance(logits, Tensor):
            logits = logits if logits.dtype == torch.float64 else logits.float()
            if self.task != "sequence":
                logits = logits.transpose(1, 2)  # the classes second, as torch has it
            if labels.is_floating_point() and logits.shape == (*labels.shape, 1):
                logits = logits.squeeze(-1)  # a regression
        there = labels != -100
        if not labels.is_floating_point():  # a criterion of another mind must not stumble over -100
            labels = labels.masked_fill(~there, 0 if self._ignored is None else self._ignored)
        training = torch.is_grad_enabled()  # evaluation is without
        mask = there if there.dim() == 1 or self.task != "sequence" else None  # else labels are not one for each loss
        loss: Tensor = self.loss_fn.train(training)(logits, labels, mask=mask)
        if num_items_in_batch is not None:
            loss = loss * self._weight(there.sum(), num_items_in_batch, training)
        return loss + self._router_loss(outputs)

    def _weight(self, valid: Tensor, in_all: Tensor | int, training: bool) -> Tensor:
        """The share of the update's valid labels that this micro-batch has."""
        group = self.loss_fn.group
        if training and group is not None:
            dist.all_reduce(valid, group=group)
            valid = valid / group.size()  # Trainer multiplies by the number of processes
        weight = valid / torch.as_tensor(in_all, device=valid.device).clamp(min=1)
        if training:
            self.saw(weight)
        return weight

    def saw(self, weight: Tensor | float) -> None:
        """Count the last plain mean for the log, with a weight."""
        if self.loss_fn.mean_loss is not None:
            self._sums = [self._sums[0] + self.loss_fn.mean_loss * weight, self._sums[1] + weight]

    def _router_loss(self, outputs: Any) -> Tensor | float:
        """The loss that keeps a mixture of experts balanced, which is the same for every q; 0 for other models.

        It is not divided among the micro-batches of an update, since models of Transformers do not divide it either.
        """
        found = outputs.get("aux_loss") if isinstance(outputs, dict) else None
        if not isinstance(found, Tensor):
            return 0.0
        if self.router_aux_loss_coef is None:
            rule, got = "be given for a model that returns an aux_loss", None
            remedy = "Pass the model's config.router_aux_loss_coef, or use OrderedTrainer, which reads it."
            raise ArgumentError(message("OrderedLossFunc", "router_aux_loss_coef", rule, got, remedy))
        return self.router_aux_loss_coef * found

    @property
    def needs_logits(self) -> str | None:
        """Why the losses cannot be computed from the input of an output layer; None if they can."""
        if self.task == "sequence":
            return "the task is to classify whole samples"
        if not self._classes:
            return "a criterion was given"
        if self.loss_fn.policy.adaptive.counts_answers:
            return f"{type(self.loss_fn.policy.adaptive.rule).__name__} counts right answers"
        return None

    def numbers(self) -> dict[str, float]:
        """The q of the last step, and the plain mean loss since this was asked last."""
        (total, weight), self._sums = self._sums, [0.0, 0.0]
        mean = float(total) / max(float(weight), 1e-9)
        return {"ordered/q": float(self.loss_fn.kept_q or 0), "ordered/mean_loss": mean}


class _PerToken(nn.Module):
    """A criterion of (n, C) and (n,) for (s, C, T) and (s, T): flattened, which is faster than by columns."""

    def __init__(self, criterion: Any) -> None:
        super().__init__()
        self.criterion = criterion
        self.ignore_index = ignore_index(criterion)

    def forward(self, logits: Tensor | Unprojected, labels: Tensor) -> Tensor:
        if isinstance(logits, Unprojected):
            return logits.losses(labels, self.ignore_index)
        losses: Tensor = self.criterion(logits.transpose(1, 2).flatten(0, 1), labels.flatten())
        return losses if losses.dim() == 0 else losses.view_as(labels)
