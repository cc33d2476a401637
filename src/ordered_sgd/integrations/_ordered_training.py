"""What trainers of Transformers and TRL share: the ordered loss, its forward and backward passes, and the log."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from accelerate.utils import DynamoBackend
from torch import Tensor, nn
from transformers.training_args import OptimizerNames

from ordered_sgd.amounts import Above
from ordered_sgd.errors import ArgumentError, message
from ordered_sgd.integrations._drawn import check_orders_samples
from ordered_sgd.integrations._head import HeadForward, body_of
from ordered_sgd.integrations._labels import OrderedLossFunc
from ordered_sgd.integrations._ordered_rule import OrderedRule, run_by
from ordered_sgd.integrations._sampled_training import SampledTraining, check_arguments
from ordered_sgd.integrations._tasks import Task
from ordered_sgd.integrations._watched import world
from ordered_sgd.integrations._whole_updates import NotByUnitError, WholeUpdates
from ordered_sgd.rules import Rule
from ordered_sgd.sampler import OrderedBatchSampler


class OrderedTraining:
    """A trainer with an ordered loss; stands before the trainer's own class among its bases."""

    ordered: OrderedLossFunc
    batch_sampler: OrderedBatchSampler | None
    _forward: HeadForward
    _rule: OrderedRule
    _updates: WholeUpdates
    _sampled: SampledTraining | None

    def order(
        self,
        task: str | Task | None,
        q: float | Above | Rule | None,
        unit: str | None,
        given: OrderedLossFunc | None,
        batch_sampler: OrderedBatchSampler | None,
        *,
        head: bool,
        selective: bool,
    ) -> OrderedRule:
        """Set the loss function, made from q and unit unless it is given; returns its callback."""
        if given is not None and not (q is None and unit is None):
            remedy = "Give them to the OrderedLossFunc."
            raise ArgumentError(message(type(self).__name__, "q and unit", "be left out", "some", remedy))
        if given is None:
            assert task is not None
            given = OrderedLossFunc(task, q=q, unit=unit, group=world())  # type: ignore[arg-type]  # refuses q=None
        if batch_sampler is not None:
            check_orders_samples(given.loss_fn, type(self).__name__)
        trainer: Any = self
        self.ordered, self.batch_sampler, self._sampled = given, batch_sampler, None
        self._forward = HeadForward(given.needs_logits if head else "head=False")
        self._rule = OrderedRule(given, selective, _part=self._part)
        self._updates = WholeUpdates(given, trainer.compute_loss, trainer.compute_loss_context_manager)
        return self._rule

    @property
    def loss_from(self) -> str | None:
        """``"head: only kept tokens"``, or ``"logits: "`` and the reason; None before the first step."""
        return self._forward.ran

    @property
    def ordered_over(self) -> str | None:
        """``"whole updates"``, or ``"micro-batches: "`` and the reason; None without gradient accumulation."""
        return self._updates.ran

    @property
    def backward_ran(self) -> str | None:
        """``"only kept samples"``, or ``"whole batches: "`` and the reason; None before the first step."""
        return self._updates.backward_ran or self._rule.backward_ran

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train, and give the model back as it was, also by an error; see `Trainer`."""
        parent: Any = super()
        self._updates.begin()
        try:
            with self._compiled_here():
                return parent.train(*args, **kwargs)
        finally:
            self._rule.selective.restore()
            self.ordered.loss_fn.seen()  # an error may have left a batch that was expected

    def get_train_dataloader(self) -> Any:
        """The loader of the training set, with the batch sampler if there is one; see `Trainer`."""
        parent: Any = super()
        self._sampled, sampler = None, self.batch_sampler
        if sampler is not None:
            check_arguments(sampler, self)
            self._sampled = SampledTraining(sampler, self, parent.get_train_dataloader())
        self._rule.sampled = self._updates.sampled = self._sampled
        return parent.get_train_dataloader() if self._sampled is None else self._sampled.loader

    def get_batch_samples(self, *args: Any) -> Any:
        """The micro-batches of an update, without what `ordered_sgd.with_index` has added; see `Trainer`."""
        parent: Any = super()
        batches, items = parent.get_batch_samples(*args)
        return (batches if self._sampled is None else self._sampled.take(batches)), items

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """The loss of a micro-batch, or with the last one of an update that of all of them; see `Trainer`."""
        trainer: Any = self
        parent: Any = super()
        updates = self._updates
        alone = trainer.current_gradient_accumulation_steps == 1 and not updates.waiting
        if alone or not (updates.waiting or updates.usable(model, self._why_micro_batches())):
            return self._step_alone(lambda: parent.training_step(model, inputs, num_items_in_batch))
        model.train()
        if callable(getattr(trainer.optimizer, "train", None)):  # of a schedule-free optimizer
            trainer.optimizer.train()
        updates.waiting.append(trainer._prepare_inputs(inputs))
        self._count_tokens(inputs)
        if not trainer.accelerator.sync_gradients:
            return torch.zeros((), device=trainer.args.device)
        try:
            return updates.backward(model, trainer.accelerator.scaler)
        except NotByUnitError as reason:
            waiting = updates.give_up(str(reason))
            self._check_updates()
            self._rule.selective.leave(str(reason))
        losses = []
        for part in waiting:
            with nullcontext() if part is waiting[-1] else trainer.accelerator.no_sync(model):
                losses.append(parent.training_step(model, part, num_items_in_batch))
        return torch.stack(losses).sum()

    def _step_alone(self, step: Callable[[], Tensor]) -> Tensor:
        """The loss of a micro-batch that is ordered by itself."""
        if self._sampled is None:
            return step()
        self._check_updates()
        self._sampled.expect()
        loss = step()
        self._sampled.leave()
        return loss

    def _check_updates(self) -> None:
        """Raise if an update of a batch sampler has several micro-batches that are not ordered together."""
        trainer: Any = self
        if self._sampled is not None and trainer.current_gradient_accumulation_steps > 1:
            rule, remedy = "be ordered as a whole with a batch sampler", "Pass gradient_accumulation_steps=1."
            raise ArgumentError(message(type(self).__name__, "updates", rule, self.ordered_over, remedy))

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        parent: Any = super()
        parent._save_optimizer_and_scheduler(output_dir)
        if self._sampled is not None:
            self._sampled.save(output_dir)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        parent: Any = super()
        parent._load_optimizer_and_scheduler(checkpoint)
        if self._sampled is not None and checkpoint is not None:
            self._sampled.load(checkpoint)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log, with q, the share of samples that had a backward pass and the plain mean beside the ordered loss."""
        parent: Any = super()
        if "loss" in logs:
            share = self._updates.share()
            computed = self._mean_over_ranks(self._rule.selective.share() if share is None else share)
            logs = {**logs, **self.ordered.numbers(), "ordered/computed": computed}
            if self._sampled is not None:
                recall = self._sampled.recall()
                logs |= {name: self._mean_over_ranks(value) for name, value in self._sampled.since_log().items()}
                logs |= {} if recall is None else {"ordered/recall": recall}
        parent.log(logs, *args, **kwargs)

    @contextmanager
    def _compiled_here(self) -> Iterator[None]:
        """Inside, ``torch_compile=True`` is left to `selective_backward`, which compiles with inductor as well.

        Other backends and modes, and updates of several micro-batches, are left to the trainer.
        """
        trainer: Any = self
        args, plugin = trainer.args, trainer.accelerator.state.dynamo_plugin
        before, plain = plugin.backend, args.torch_compile_mode in (None, "default")
        here = args.torch_compile and before == DynamoBackend.INDUCTOR and plain and not plugin.use_regional_compilation
        here = here and args.gradient_accumulation_steps == 1 and self._rule.selective.wanted
        self._rule.compiles = here and isinstance(self._rule.part_of(trainer.model), nn.Module)
        plugin.backend = DynamoBackend.NO if self._rule.compiles else before
        try:
            yield
        finally:
            plugin.backend = before

    def _mean_over_ranks(self, number: float) -> float:
        trainer: Any = self
        gathered: Tensor = trainer.accelerator.gather(torch.tensor([number], device=trainer.args.device))
        return float(gathered.mean())

    def _part(self, model: nn.Module) -> nn.Module | str:
        """What of a model is to skip samples, or why nothing is: of a language model what is below its output layer."""
        trainer: Any = self
        accumulates = trainer.args.gradient_accumulation_steps > 1
        if accumulates and self._updates.usable(trainer.model_wrapped, self._why_micro_batches()):
            return "updates are ordered as a whole"
        body = body_of(model) if self._forward.needs_logits is None else None
        return model if body is None else body

    def _why_micro_batches(self) -> str | None:
        """Why an update cannot be ordered as a whole, as far as it depends on the trainer."""
        trainer: Any = self
        if trainer.args.optim in (OptimizerNames.LOMO, OptimizerNames.ADALOMO):
            return "LOMO updates parameters during the backward pass"
        if getattr(trainer.accelerator, "parallelism_config", None) is not None:
            return "parallelism_config is set"
        if getattr(trainer.args, "activation_offloading", False):
            return "activations are offloaded"
        return run_by()

    def _count_tokens(self, inputs: Any) -> None:
        """Count what is trained on, for a trainer's metrics."""
