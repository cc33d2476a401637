"""Algorithm 1: one update of ordered SGD."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ordered_sgd.criterion import countable, right_answers
from ordered_sgd.engines import Computed, Right, Scored, count_right
from ordered_sgd.engines.accumulate import one_pass, samples_in_all, two_passes
from ordered_sgd.engines.auto import ENGINES, AutoEngine, make_engine
from ordered_sgd.engines.memory import MemoryEngine, check_index, refuse_for_memory
from ordered_sgd.engines.parallel import parallel
from ordered_sgd.engines.recall import Kept, Recall
from ordered_sgd.errors import ArgumentError, check_choice, message
from ordered_sgd.loss import OrderedLoss, Selection
from ordered_sgd.nonfinite import Verdict, inspect_losses, masked_step, masks_itself
from ordered_sgd.ranks import Joined, join
from ordered_sgd.record import StepRecord
from ordered_sgd.rewind import Buffers, device_of
from ordered_sgd.rules import Rule
from ordered_sgd.selection import row_weights
from ordered_sgd.traps import has_batchnorm, warn_of_batchnorm

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
        if engine == "memory":
            refuse_for_memory(selection, group)
            engine_options = {**engine_options, "generator": self.loss.generator}
        self._engine = make_engine(engine, self._parallel.model, self._score, engine_options, self._parallel)
        self._memory = self._engine if isinstance(self._engine, MemoryEngine) else None
        self.forward = forward or _call
        self.max_grad_norm = max_grad_norm
        self.scaler = scaler if scaler is not None and scaler.is_enabled() else None
        self.nonfinite = nonfinite
        self.steps = 0
        self._verdict = Verdict()
        self._divisor = 1.0  # what the sum of the kept losses is divided by
        self._joined: Joined | None = None  # the losses of all ranks, and which are kept, of the last step
        self._kept: Tensor | None = None
        self._buffers = Buffers(self._parallel.model)
        self._couples = has_batchnorm(self._parallel.model)

    def __call__(self, x: Any, y: Any = None, *, sample_weight: Tensor | None = None, index: Any = None) -> StepRecord:
        """One update on a mini-batch (line 3 of Algorithm 1), or on a list of micro-batches ``[(x1, y1), (x2, y2)]``.

        `sample_weight`, shape (s,), multiplies the losses before they are ordered; a micro-batch carries its own as
        ``(x, y, sample_weight)``. A list of micro-batches is one mini-batch: the q largest of all are kept. `index`,
        integers of shape (s,), says which samples of the training set these are: ``engine="memory"`` needs it, and no
        other engine looks at it.
        """
        self._raise_late()
        if self._memory is not None:
            index = check_index(index, y, device_of(self._parallel.model))
        batches = self._micro_batches(x, sample_weight) if y is None else [(x, y, sample_weight)]
        self.optimizer.zero_grad()
        self._parallel.begin()
        before = self._buffers.save()
        computed = self._gradient(batches, whole=y is not None, index=index)  # lines 4 and 5
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
        return self._record(computed)

    def end_epoch(self, accuracy: float | None = None) -> int:
        """The q of the next epoch; see `OrderedLoss.end_epoch`."""
        self._raise_late()
        return self.loss.end_epoch(accuracy)

    @property
    def why(self) -> str | None:
        """Why another way of computing the gradient ran than the engine's name promises; None when it did not."""
        return self._engine.why

    @property
    def recall(self) -> Recall | None:
        """Share of the q largest losses that ``engine="memory"`` found in its last audits, with its interval."""
        return None if self._memory is None else self._memory.recall

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
        operations = self._engine.operations if isinstance(self._engine, AutoEngine) else None
        state = {"loss": self.loss.state_dict(), "steps": self.steps, "operations": operations}
        return state if self._memory is None else {**state, "memory": self._memory.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self.loss.load_state_dict(state["loss"])
        self.steps = state["steps"]
        if state.get("operations") is not None and isinstance(self._engine, AutoEngine):
            self._engine.resume(state["operations"])  # not anew: the next step must be the one that would have come
        if self._memory is not None and "memory" in state:
            self._memory.load_state_dict(state["memory"])
        self._verdict = Verdict()  # of a step that has been undone

    def _gradient(
        self, batches: Sequence[tuple[Any, Any, Tensor | None]], *, whole: bool, index: Any = None
    ) -> Computed:
        """Lines 4 and 5: the q largest losses, and the gradient of their mean in the parameters."""
        if self._memory is not None:
            s = index.shape[0]
            kept = Kept(self.loss.q_for(s), self.loss.trimmed_of(s))
            return self._memory(batches[0], kept.q >= s, self._choose, self._backward, index=index, kept=kept)
        if whole and self.group is not None:  # how many there are in all is known with the losses: go by those so far
            return self._engine(batches[0], self.loss.keeps_all, self._choose, self._backward)
        sizes = [_length(y) for _, y, _ in batches]
        total = None if None in sizes else sum(size for size in sizes if size is not None)
        s = total
        if self.group is not None:
            total = samples_in_all(total, len(batches), self._parallel)
        keeps_all = total is not None and self.loss.q_for(total) >= total  # else it is known once the losses are
        if len(batches) == 1 and self.group is None:
            return self._engine(batches[0], keeps_all, self._choose, self._backward)
        if keeps_all and s is not None and total is not None:
            self._divisor = total / self._parallel.ranks
            return one_pass(batches, s, self._score, self._choose, self._backward, self._parallel)
        return two_passes(batches, self._buffers, self._score, self._choose, self._backward, self._parallel)

    def _score(self, batch: tuple[Any, Any, Tensor | None]) -> Scored:
        x, y, sample_weight = batch
        outputs = self.forward(self._parallel.model, x)
        losses = self.loss.per_sample(outputs, y, sample_weight=sample_weight)
        if self.loss.counts_answers or torch.compiler.is_compiling() or not isinstance(outputs, Tensor):
            return Scored(losses, right_answers(outputs, y, like=losses))
        if not countable(outputs, y, losses):
            return Scored(losses, None)  # a record would hold the outputs for nothing
        # if somebody asks
        return Scored(losses, partial(right_answers, outputs.detach(), y, like=losses.detach()))

    def _choose(
        self, losses: Tensor, right: Right, scored: Tensor | None = None, s: int | None = None
    ) -> Tensor | None:
        """Line 4, or None if a loss is seen not to be finite; `scored` are the losses' positions in a batch of s."""
        if self.group is not None:
            return self._choose_over_ranks(losses, count_right(right), self.group)
        at_once = _reads_are_free(losses)
        self._verdict = inspect_losses(losses, self.steps, at_once=at_once, scored=scored, s=s)
        if at_once and self._verdict.error() is not None:
            return None
        self.loss.see(s or losses.shape[0])
        rows = self.loss.choose(losses, s=s)
        if self._couples and rows.shape[0] <= 2 and rows.shape[0] < losses.shape[0]:
            self._couples = False  # said once
            warn_of_batchnorm("OrderedStep", rows.shape[0])
        self._divisor = rows.shape[0]
        return rows

    def _choose_over_ranks(self, losses: Tensor, correct: Tensor | None, group: "ProcessGroup") -> Tensor | None:
        """Line 4 for the batches of all ranks together: the positions that are this rank's."""
        joined = self._joined = join(losses, correct, group, "OrderedStep")
        self._kept = None
        self._verdict = inspect_losses(joined.losses, self.steps, at_once=True, sizes=joined.sizes)
        if self._verdict.error() is not None:
            return None
        self.loss.see(joined.losses.shape[0])
        self._kept = self.loss.choose(joined.losses)
        self._divisor = self._kept.shape[0] / len(joined.sizes)  # DDP and FSDP average over the ranks
        return joined.mine(self._kept)

    def _may_update(self) -> bool:
        """Whether the losses are finite, or the optimizer can be left to find out on the device."""
        if self._verdict.bad is None or (self.scaler is None and masks_itself(self.optimizer)):
            return True
        if self._verdict.error() is not None:
            return False
        self._verdict = Verdict()
        return True

    def _backward(self, losses: Tensor, rows: Tensor | None) -> None:
        """Line 5: the gradient of the mean over q, given to the losses themselves instead of through a graph for it."""
        weights = row_weights(losses, rows, self._divisor)
        if self.scaler is not None:
            weights = self.scaler.scale(weights)
        torch.autograd.backward(losses, weights)

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

    def _record(self, computed: Computed) -> StepRecord:
        losses, rows, right, engine, estimate = computed
        skipped = rows is None
        if rows is None:
            rows = torch.empty(0, dtype=torch.int64, device=losses.device)
        if self._joined is not None:
            joined, kept = self._joined, rows[:0] if self._kept is None else self._kept
            self._joined = self._kept = None
            if not skipped:
                self.loss.observe(joined.losses, joined.correct)
            count = joined.losses.shape[0]
            return StepRecord(kept.shape[0], count, engine, losses, rows, joined.correct, None, (joined.losses, kept))
        estimated = None if estimate is None else estimate.correct
        correct = estimated or partial(count_right, right)
        if not skipped:
            self._observe(losses, correct() if self.loss.counts_answers else None)
        record = StepRecord(rows.shape[0], losses.shape[0], engine, losses, rows, correct, self._verdict.bad)
        if estimate is None:
            return record
        return replace(record, scored=estimate.scored, recall=estimate.recall, _mean=estimate.mean_loss)

    def _observe(self, losses: Tensor, right: Tensor | None) -> None:
        """Show the batch to the rule; not the answers of one that the device may yet find to be skipped."""
        count = None
        if right is not None and self._verdict.bad is not None:
            fine = 1 - self._verdict.bad
            right, count = right * fine, losses.shape[0] * fine
        self.loss.observe(losses, right, count)

    def _raise_late(self) -> None:
        """Raise for a loss of the last step that was not finite, once it is known."""
        verdict, self._verdict = self._verdict, Verdict()
        error = verdict.error() if self.nonfinite == "raise" else None
        if error is not None:
            raise error

    def _micro_batches(self, batches: Any, sample_weight: Tensor | None) -> list[tuple[Any, Any, Tensor | None]]:
        """The parts as (x, y, sample_weight)."""
        where = "OrderedStep"
        pairs = isinstance(batches, list | tuple) and len(batches) > 0
        if not pairs or not all(isinstance(part, list | tuple) and len(part) in (2, 3) for part in batches):
            got = f"{type(batches).__name__} without y"
            remedy = "Call step(x, y), or step([(x1, y1), (x2, y2)]) for micro-batches."
            raise ArgumentError(message(where, "the batch", "be x and y, or a list of (x, y) pairs", got, remedy))
        if sample_weight is not None:
            remedy = "Pass [(x1, y1, weight1), (x2, y2, weight2)]."
            got = "sample_weight="
            raise ArgumentError(message(where, "weights of micro-batches", "be inside the list", got, remedy))
        if self.group is None and isinstance(self.model, nn.parallel.DistributedDataParallel):
            remedy = "Pass one batch, or group=."
            rule = "not be wrapped in DistributedDataParallel for micro-batches without a group"
            raise ArgumentError(message(where, "model", rule, "a wrapped one", remedy))
        return [(*part, None)[:3] for part in batches]


def _reads_are_free(losses: Tensor) -> bool:
    """Whether reading a number does not make the host wait for a queue of work."""
    return losses.is_cpu


def _call(model: nn.Module, x: Any) -> Any:
    if isinstance(x, Mapping):
        return model(**x)
    return model(*x) if type(x) in (tuple, list) else model(x)  # a PackedSequence is a tuple too


def _length(y: Any) -> int | None:
    """Samples in a micro-batch, as its targets tell; None when they do not."""
    return y.shape[0] if isinstance(y, Tensor) and y.dim() > 0 else None
