"""Algorithm 1: one update of ordered SGD."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ordered_sgd.criterion import countable, right_answers
from ordered_sgd.engines import Ahead, Losses, Recall, Scored
from ordered_sgd.engines.accumulate import MicroBatches, micro_batches, samples_in_all, samples_of
from ordered_sgd.engines.auto import ENGINES, make_engine
from ordered_sgd.engines.memory import refuse_for_memory
from ordered_sgd.engines.parallel import parallel
from ordered_sgd.errors import ArgumentError, check_choice, message
from ordered_sgd.loss import OrderedLoss, Selection
from ordered_sgd.nonfinite import Verdict, masked_step, masks_itself
from ordered_sgd.record import StepRecord
from ordered_sgd.rewind import Buffers
from ordered_sgd.rules import Rule
from ordered_sgd.selector import RanksSelector, Selector

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["ENGINES", "OrderedStep", "StepRecord"]


class OrderedStep:
    """Ordered SGD for a model, a criterion and any torch optimizer: ``record = step(x, y)`` is one update.

    Parameters
    ----------
    model : nn.Module
        Called as ``model(x)``, ``model(*x)`` for a tuple and ``model(**x)`` for a dict.
    criterion : Callable[..., Tensor]
        ``criterion(outputs, y)`` returns one loss per sample: build it with ``reduction="none"``. A sample whose target
        is the criterion's `ignore_index` counts as one of loss 0: leave it out of the batch, or use `OrderedLoss`.
    optimizer : torch.optim.Optimizer
        Any torch optimizer over the parameters to train; learning-rate schedulers work unchanged.
    q : float or Rule
        A count, a share of each batch in (0, 1], or a rule that moves q at each `end_epoch`, such as `AccuracyRule()`.
        Note that ``q=1`` keeps one sample and ``q=1.0`` all of them.
    selection : {"top", "random"}, default="top"
        ``"random"`` keeps q samples at random instead, the control of every comparison.
    generator : torch.Generator or None, default=None
        Source of the random selection, and of the random choices of the engine with a memory (which other samples it
        scores, and when a whole batch); one with seed 0 when None.
    engine : {"auto", "dense", "rows", "twopass", "memory"}, default="auto"
        How the gradient is computed: ``"dense"`` back-propagates through the whole batch; ``"rows"`` and ``"twopass"``
        only through the kept samples; ``"auto"`` decides by what the model is (docs/engines.md). ``"memory"`` scores
        only samples whose loss was large when they were last seen: not exact, and never chosen by ``"auto"``.
    forward : Callable[[Any, Any], Any] or None, default=None
        ``forward(model, x)`` returns the outputs, for models that need more than a call.
    max_grad_norm : float or None, default=None
        Clip the gradient's norm to this before the update.
    scaler : torch.amp.GradScaler or None, default=None
        For float16 training.
    nonfinite : {"raise", "skip"}, default="raise"
        What to do about a NaN or infinite loss: raise, naming step and position, or skip the update; parameters,
        optimizer, rule and the model's buffers stay as they were. On an accelerator a fused optimizer masks its update
        on the device and the error comes with the next step; with any other optimizer the update waits until the
        losses are known, while the device is busy with the backward pass.
    trim : float, default=0
        Drop this many of the largest losses first, a count or a share of the batch, because they often have wrong
        labels. They do not yet in the first epochs, so the number grows with the epochs.
    trim_epochs : int, default=5
        Epochs, counted by `end_epoch`, over which `trim` grows from none to all of it; 0 trims from the first step.
    cap : float or None, default=None
        A loss above the cap counts as the cap and has no gradient; the record holds the capped losses. (The `mix` of
        `OrderedLoss` needs the gradient of the whole batch, so a step would have nothing to save.)
    group : ProcessGroup or None, default=None
        Keep the q largest of all ranks of this process group; the model is in DistributedDataParallel or sharded by
        `fully_shard`, and its averaged gradient is then that of one process on the joined batch. Every rank must step
        equally often, with an empty batch where it has none; q, the rule's state and skipped or refused batches are the
        same on all. `forward` is given the module inside the wrapper.
    **engine_options
        Of the engine: `verify_every` and `batchnorm` (rows), `scoring`, `score_dtype`, `replay`, `batchnorm` (twopass);
        `recall`, the share of the q largest losses to be found, or `candidates`, a fixed number (memory).

    Examples
    --------
    >>> _ = torch.manual_seed(0)
    >>> model = nn.Linear(4, 3)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> step = OrderedStep(model, nn.CrossEntropyLoss(reduction="none"), optimizer, q=0.25)
    >>> record = step(torch.randn(8, 4), torch.randint(0, 3, (8,)))
    >>> record.q, record.count, bool(record.ordered_loss >= record.mean_loss)
    (2, 8, True)
    """

    def __init__(
        self,
        model: nn.Module,
        criterion: Callable[..., Tensor],
        optimizer: Optimizer,
        *,
        q: float | Rule,
        selection: Selection = "top",
        generator: torch.Generator | None = None,
        engine: Literal["auto", "dense", "rows", "twopass", "memory"] = "auto",
        forward: Callable[[Any, Any], Any] | None = None,
        max_grad_norm: float | None = None,
        scaler: torch.amp.GradScaler | None = None,
        nonfinite: Literal["raise", "skip"] = "raise",
        trim: float = 0,
        trim_epochs: int = 5,
        cap: float | None = None,
        group: "ProcessGroup | None" = None,
        **engine_options: Any,
    ) -> None:
        check_choice("OrderedStep", "nonfinite", nonfinite, ("raise", "skip"))
        if group is None and nonfinite == "skip" and isinstance(model, nn.parallel.DistributedDataParallel):
            remedy = "A batch that one rank skips would leave the others waiting: pass group=."
            must = "be 'raise' for a model in DistributedDataParallel without a group"
            raise ArgumentError(message("OrderedStep", "nonfinite", must, "'skip'", remedy))
        if max_grad_norm is not None and not max_grad_norm > 0:
            remedy = "Use max_grad_norm=None for no clipping."
            raise ArgumentError(message("OrderedStep", "max_grad_norm", "be positive", max_grad_norm, remedy))
        if isinstance(optimizer, torch.optim.LBFGS):
            remedy = "Use OrderedLoss in its closure."
            raise ArgumentError(message("OrderedStep", "optimizer", "step without a closure", "LBFGS", remedy))
        self.model = model
        self.optimizer = optimizer
        self.group = group
        self.loss = OrderedLoss(
            criterion,
            q=q,
            selection=selection,
            generator=generator,
            trim=trim,
            trim_epochs=trim_epochs,
            cap=cap,
            group=group,
            _where="OrderedStep",
        )
        self._parallel = parallel(model, group)
        inner = self._parallel.model
        if engine == "memory":
            refuse_for_memory(selection, group)
            engine_options = {**engine_options, "generator": self.loss.generator}
        self.engine = make_engine(engine, inner, self._score, engine_options, self._parallel)
        self.forward = forward or _call
        self.max_grad_norm = max_grad_norm
        self.scaler = scaler if scaler is not None and scaler.is_enabled() else None
        self.selector = (
            Selector(self.loss, inner, self.scaler)
            if group is None
            else RanksSelector(self.loss, inner, self.scaler, group)
        )
        self.nonfinite = nonfinite
        self.steps = 0
        self._verdict = Verdict()
        self._buffers = Buffers(inner)
        self._micro = MicroBatches(self._score, self._parallel, self._buffers)

    def __call__(self, x: Any, y: Any = None, *, sample_weight: Tensor | None = None, index: Any = None) -> StepRecord:
        """One update on a mini-batch (line 3 of Algorithm 1), or on a list of micro-batches ``[(x1, y1), (x2, y2)]``.

        `sample_weight`, shape (s,), multiplies the losses before they are ordered; a micro-batch carries its own as
        ``(x, y, sample_weight)``. A list of micro-batches is one mini-batch: the q largest of all are kept. `index`,
        integers of shape (s,), says which samples of the training set these are: ``engine="memory"`` needs it, and no
        other engine looks at it.
        """
        self._raise_late()
        index = self.engine.checked_index(index, y)
        batches = micro_batches(x, sample_weight) if y is None else [(x, y, sample_weight)]
        self.optimizer.zero_grad()
        self._parallel.begin()
        before = self._buffers.save()
        scored = self._forward(batches, whole=y is not None, index=index)  # line 3: losses with their graph
        choice = self.selector.choose(scored, self.steps)  # line 4
        self._verdict = choice.verdict
        computed = scored.abandon() if choice.kept is None else scored.backward(choice.kept)  # line 5
        if computed.rows is not None and self._may_update():
            self._update()  # line 6
            if self._verdict.bad is not None:
                self._buffers.load(before, where=self._verdict.bad)
        else:
            self.optimizer.zero_grad()
            self._buffers.load(before)
            if self.nonfinite == "raise":
                self._raise_late()
            computed = computed._replace(rows=None)
        self.steps += 1
        return self.selector.record(computed, choice, self._verdict)

    def end_epoch(self, accuracy: float | None = None) -> int:
        """The q of the next epoch; see `OrderedLoss.end_epoch`."""
        self._raise_late()
        return self.loss.end_epoch(accuracy)

    @property
    def why(self) -> str | None:
        """Why another way of computing the gradient ran than the engine's name promises; None when it did not."""
        return self.engine.why

    @property
    def recall(self) -> Recall | None:
        """Share of the q largest losses that ``engine="memory"`` found in its last audits, with its interval."""
        return self.engine.recall

    @property
    def q(self) -> int | None:
        """The present q for a full batch; None before the first one."""
        return self.loss.q

    @property
    def epoch(self) -> int:
        """Epochs ended so far."""
        return self.loss.epoch

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs beside the model's, the optimizer's and the scaler's state."""
        return {"loss": self.loss.state_dict(), "steps": self.steps, "engine": self.engine.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self.loss.load_state_dict(state["loss"])
        self.steps = state["steps"]
        if state["engine"]:
            self.engine.load_state_dict(state["engine"])
        self._verdict = Verdict()  # of a step that has been undone

    def _forward(self, batches: list[tuple[Any, Any, Tensor | None]], *, whole: bool, index: Tensor | None) -> Scored:
        """Line 3: the losses of a batch, or of micro-batches as one."""
        s = samples_of(batches) if index is None else index.shape[0]
        if whole or (len(batches) == 1 and self.group is None):
            ranks = None if s is None else self.selector.ranks(s)
            return self.engine.forward(batches[0], Ahead(self.selector.of_batch(s), ranks, index))
        if self.group is None and isinstance(self.model, nn.parallel.DistributedDataParallel):
            rule = "not be wrapped in DistributedDataParallel for micro-batches without a group"
            raise ArgumentError(message("OrderedStep", "model", rule, "a wrapped one", "Pass one batch, or group=."))
        total = s if self.group is None else samples_in_all(s, len(batches), self._parallel)
        keeps_all = s is not None and total is not None and self.selector.keeps_all(total)
        return self._micro.forward(batches, s, self.selector.everything(total) if keeps_all and total else None)

    def _score(self, batch: tuple[Any, Any, Tensor | None]) -> Losses:
        x, y, sample_weight = batch
        outputs = self.forward(self._parallel.model, x)
        losses = self.loss.per_sample(outputs, y, sample_weight=sample_weight)
        if self.loss.counts_answers or torch.compiler.is_compiling() or not isinstance(outputs, Tensor):
            return Losses(losses, right_answers(outputs, y, like=losses))
        if not countable(outputs, y, losses):
            return Losses(losses, None)  # a record would hold the outputs for nothing
        # if somebody asks
        return Losses(losses, partial(right_answers, outputs.detach(), y, like=losses.detach()))

    def _may_update(self) -> bool:
        """Whether the losses are finite, or the optimizer can be left to find out on the device."""
        if self._verdict.bad is None or (self.scaler is None and masks_itself(self.optimizer)):
            return True
        if self._verdict.error() is not None:
            return False
        self._verdict = Verdict()
        return True

    def _update(self) -> None:
        """Line 6, by the optimizer."""
        if self.max_grad_norm is not None:
            if self.scaler is not None:
                self.scaler.unscale_(self.optimizer)
            parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
            nn.utils.clip_grad_norm_(parameters, self.max_grad_norm)
        if self.scaler is not None:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        elif self._verdict.bad is not None:
            masked_step(self.optimizer, self._verdict.bad)
        else:
            self.optimizer.step()
        torch.clear_autocast_cache()  # inside an autocast block it would keep serving the weights of before

    def _raise_late(self) -> None:
        """Raise for a loss of the last step that was not finite, once it is known."""
        verdict, self._verdict = self._verdict, Verdict()
        error = verdict.error() if self.nonfinite == "raise" else None
        if error is not None:
            raise error


def _call(model: nn.Module, x: Any) -> Any:
    if isinstance(x, Mapping):
        return model(**x)
    return model(*x) if type(x) in (tuple, list) else model(x)  # a PackedSequence is a tuple too
