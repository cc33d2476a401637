"""The ordered loss of a model's labels, as the Trainer of Transformers asks for it; needs nothing but torch.

The q largest are those of each micro-batch as it comes (with several processes, of all of them). Their mean is weighted
by the micro-batch's valid labels over `num_items_in_batch`, those of the whole update, so that with ``q=1.0`` an update
is the one on the mean over all its valid labels, however they are padded and accumulated.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ordered_sgd.amounts import Above
from ordered_sgd.criterion import ignore_index
from ordered_sgd.errors import ArgumentError, message
from ordered_sgd.integrations._compared import PerToken
from ordered_sgd.integrations._tasks import Task, task_named
from ordered_sgd.integrations._watched import WatchedLoss
from ordered_sgd.rules import Rule


class OrderedLossFunc:
    """A ``compute_loss_func`` for `Trainer`: the ordered loss in training, the plain mean in evaluation.

    Parameters
    ----------
    task : str or Task
        What the model's logits are compared with: ``"sequence"``, ``"multi_label"``, ``"regression"``, ``"token"``,
        ``"causal"``, ``"seq2seq"``, ``"question_answering"`` or ``"segmentation"``; docs/trainers.md has the table.
    q : float or Above or Rule
        A count, a share in (0, 1], `Above` a value, or a rule that moves q: then give `Trainer` an `OrderedRule` as
        well.
    unit : str or None, default=None
        What is ordered, ``"sample"``, ``"token"`` or ``"pixel"``; None leaves it to the task. ``"sample"`` orders whole
        sequences by the mean loss of their tokens, and images by that of their pixels.
    criterion : Callable[..., Tensor] or None, default=None
        One loss per label, from logits (n, C) and labels (n,), in place of the task's own loss; that of tokens gets
        them flattened.
    router_aux_loss_coef : float or None, default=None
        What the ``aux_loss`` of a mixture of experts is multiplied by before it is added to the loss. `OrderedTrainer`
        reads it from the model; elsewhere a model that returns an ``aux_loss`` needs it.
    **options
        What else `ordered_sgd.OrderedLoss` takes, such as ``group``; a `score` is given what `criterion` is, classes
        second.

    Examples
    --------
    >>> loss_func = OrderedLossFunc("token", q=0.5)
    >>> labels = torch.tensor([[0, 1, -100]])
    >>> loss_func({"logits": torch.zeros(1, 3, 2)}, labels, num_items_in_batch=4)  # log 2, and half of the labels
    tensor(0.3466)
    """

    def __init__(
        self,
        task: str | Task,
        *,
        q: float | Above | Rule,
        unit: str | None = None,
        criterion: Any = None,
        router_aux_loss_coef: float | None = None,
        **options: Any,
    ) -> None:
        self.task, self._given = task_named(task), criterion is not None
        self.router_aux_loss_coef = router_aux_loss_coef
        criterion = self.task.criterion(self.task.ignored) if criterion is None else criterion
        ignored = ignore_index(criterion)
        self._ignored = 0 if ignored is None else ignored  # a criterion of another mind must not stumble over -100
        where = type(self).__name__
        self.loss_fn = WatchedLoss(criterion, q=q, unit=unit or self.task.unit, **options, _where=where)  # type: ignore[arg-type]
        if self.task.head:
            self.loss_fn.criterion = PerToken(criterion)
        self._sums: list[Any] = [0.0, 0.0]  # since the last log: of mean losses times weights, and of the weights

    def __call__(self, outputs: Any, labels: Tensor | None, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """The loss of a micro-batch, to be added to those of the others of the same update."""
        if labels is None:
            remedy = (
                "Trainer passes on the column 'labels' alone, and drops what the model's forward does not name: "
                "set remove_unused_columns=False, or use OrderedTrainer for labels of other names."
            )
            raise ArgumentError(message("OrderedLossFunc", "labels", "be in every batch", "none", remedy))
        logits, labels, valid, items = self.task.compare(outputs, labels, self._ignored)
        training = torch.is_grad_enabled()  # evaluation is without
        loss: Tensor = self.loss_fn.train(training)(logits, labels, mask=valid)
        if num_items_in_batch is not None:
            loss = loss * self._weight(items, num_items_in_batch, training)
        return loss + self.router_loss(outputs)

    def _weight(self, valid: Tensor, in_all: Tensor | int, training: bool) -> Tensor:
        """The share of the update's valid labels that this micro-batch has."""
        group = self.loss_fn.group
        if training and group is not None:
            dist.all_reduce(valid, group=group)
            valid = valid / group.size()  # Trainer multiplies by the number of processes
        weight = valid / torch.as_tensor(in_all, device=valid.device).clamp(min=1)
        if training:
            self.saw(weight if group is None else weight * group.size())
        return weight

    def saw(self, weight: Tensor | float) -> None:
        """Count the last plain mean for the log, with a weight."""
        if self.loss_fn.mean_loss is not None:
            self._sums = [self._sums[0] + self.loss_fn.mean_loss * weight, self._sums[1] + weight]

    def router_loss(self, outputs: Any) -> Tensor | float:
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
        if not self.task.head:
            return f"the task {self.task.name!r} needs them"
        if self._given:
            return "a criterion was given"
        if self.loss_fn.score is not None:
            return "the score looks at them"
        if self.loss_fn.policy.adaptive.counts_answers:
            return f"{type(self.loss_fn.policy.adaptive.rule).__name__} counts right answers"
        return None

    def numbers(self) -> dict[str, float]:
        """The q of the last step, and the plain mean loss since this was asked last."""
        (total, weight), self._sums = self._sums, [0.0, 0.0]
        mean = float(total) / max(float(weight), 1e-9)
        return {"ordered/q": float(self.loss_fn.kept_q or 0), "ordered/mean_loss": mean}
