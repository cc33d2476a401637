"""Algorithm 1: one update of ordered SGD."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ordered_sgd.amounts import Above
from ordered_sgd.criterion import ignore_index
from ordered_sgd.engines import Strategy, as_strategy
from ordered_sgd.engines.accumulate import MicroBatches, micro_batches, samples_of
from ordered_sgd.engines.parallel import parallel
from ordered_sgd.engines.phases import Engine, Parts, Recall, Scored
from ordered_sgd.errors import ArgumentError, check_choice, check_state, message
from ordered_sgd.keywords import names_unknown
from ordered_sgd.loss import Accuracy, check_criterion, check_score
from ordered_sgd.policy import Policy, Selection
from ordered_sgd.present import Present
from ordered_sgd.record import StepRecord
from ordered_sgd.rewind import Buffers
from ordered_sgd.rules import Rule
from ordered_sgd.scoring import Scoring
from ordered_sgd.selector import RanksSelector, Selector
from ordered_sgd.units import check_mixture, check_reduce
from ordered_sgd.update import Updater

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["OrderedStep", "StepRecord"]


class OrderedStep:
    """Ordered SGD for a model, a criterion and any torch optimizer: ``record = step(x, y)`` is one update.

    Parameters
    ----------
    model : nn.Module
        Called as ``model(x)``, ``model(*x)`` for a tuple and ``model(**x)`` for a dict.
    criterion : Callable[..., Tensor]
        ``criterion(outputs, y)`` returns one loss per sample: build it with ``reduction="none"``. A sample whose target
        is the criterion's `ignore_index` is never kept and never counted.
    optimizer : torch.optim.Optimizer
        Any torch optimizer over the parameters to train; learning-rate schedulers work unchanged.
    q : float or Above or Rule
        A count, a share of each batch in (0, 1], `Above` a value, or a rule that moves q at each `end_epoch`, such as
        `AccuracyRule()`. Note that ``q=1`` keeps one sample and ``q=1.0`` all of them.
    selection : {"top", "random"}, default="top"
        ``"random"`` keeps q samples at random instead, the control of every comparison.
    generator : torch.Generator or None, default=None
        Source of the random selection, and of the random choices of the engine with a memory (which other samples it
        scores, and when a whole batch); one with seed 0 when None.
    score : Callable[[Any, Any], Tensor] or None, default=None
        ``score(outputs, y)`` returns what samples are ordered by instead of their losses: those with the largest scores
        are kept, and the step is on the mean of their losses; see `ordered_sgd.scores`.
    reduce : str or None, default=None
        ``"mean"`` takes losses (s, ...) and averages them over the other dimensions, which are refused otherwise.
    engine : str or Strategy, default="auto"
        How the gradient is computed: a name, or a value of `ordered_sgd.engines` with options, such as
        ``Rows(verify_every=50)``. ``"dense"`` back-propagates through the whole batch; ``"rows"`` and ``"twopass"``
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
    accuracy : str, default="counted"
        As of `OrderedLoss`: ``"given"`` if you call ``end_epoch(accuracy=...)``.
    group : ProcessGroup or None, default=None
        Keep the q largest of all ranks of this process group; the model is in DistributedDataParallel or sharded by
        `fully_shard`, and its averaged gradient is then that of one process on the joined batch. Every rank must step
        equally often, with an empty batch where it has none; q, the rule's state and skipped or refused batches are the
        same on all. `forward` is given the module inside the wrapper.

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

    @names_unknown
    def __init__(
        self,
        model: nn.Module,
        criterion: Callable[..., Tensor],
        optimizer: Optimizer,
        *,
        q: float | Above | Rule,
        selection: Selection = "top",
        generator: torch.Generator | None = None,
        score: Callable[[Any, Any], Tensor] | None = None,
        reduce: Literal["mean"] | None = None,
        engine: Literal["auto", "dense", "rows", "twopass", "memory"] | Strategy = "auto",
        forward: Callable[[Any, Any], Any] | None = None,
        max_grad_norm: float | None = None,
        scaler: torch.amp.GradScaler | None = None,
        nonfinite: Literal["raise", "skip"] = "raise",
        trim: float = 0,
        trim_epochs: int = 5,
        cap: float | None = None,
        accuracy: Accuracy = "counted",
        group: "ProcessGroup | None" = None,
    ) -> None:
        if group is None and nonfinite == "skip" and isinstance(model, nn.parallel.DistributedDataParallel):
            remedy = "A batch that one rank skips would leave the others waiting: pass group=."
            must = "be 'raise' for a model in DistributedDataParallel without a group"
            raise ArgumentError(message("OrderedStep", "nonfinite", must, "'skip'", remedy))
        check_mixture(trim, 0.0, cap, "OrderedStep", trim_epochs)
        check_reduce(reduce, "sample", "OrderedStep")
        check_score(score, "OrderedStep")
        check_choice("OrderedStep", "accuracy", accuracy, ("counted", "given"))
        check_criterion(criterion, selection, "OrderedStep")
        self.policy = Policy(
            q,
            selection=selection,
            generator=generator,
            trim=trim,
            trim_epochs=trim_epochs,
            where="OrderedStep",
            above=True,
        )
        self.model, self.optimizer = model, optimizer
        self._parallel = parallel(model, group)
        inner = self._parallel.model
        scaler = scaler if scaler is not None and scaler.is_enabled() else None
        counts = self.policy.adaptive.counts_answers
        self._ignored, self._averages = ignore_index(criterion), reduce is not None
        scoring = Scoring(
            inner, criterion, forward, cap=cap, score=score, reduce=reduce, counts=counts, empty=group is not None
        )
        buffers = Buffers(inner, criterion) if isinstance(criterion, nn.Module) else Buffers(inner)
        choice = self.policy.generator, selection, group, self.policy.counts_ahead, score is not None
        parts = Parts(inner, scoring, self._parallel, buffers, *choice)
        strategy = as_strategy(engine, "OrderedStep")
        self.engine = strategy.build(parts)
        self.selector = Selector(self.policy, inner, scaler, counting=accuracy == "counted")
        if group is not None:
            others: dict[str, object] = {"engine": strategy, "cap": cap, "nonfinite": nonfinite, "reduce": reduce}
            others |= {"max_grad_norm": max_grad_norm, "scaler": scaler}
            self.selector = RanksSelector(self.policy, inner, scaler, group, others, counting=accuracy == "counted")
        self.updater = Updater(optimizer, buffers, scaler=scaler, max_grad_norm=max_grad_norm, nonfinite=nonfinite)
        self._micro = MicroBatches(scoring, self._parallel, buffers)
        self._ran: Engine | MicroBatches = self.engine
        self._alone = group is None
        self.steps = 0

    def __call__(self, x: Any, y: Any = None, *, sample_weight: Tensor | None = None, index: Any = None) -> StepRecord:
        """One update on a mini-batch (line 3 of Algorithm 1), or on a list of micro-batches ``[(x1, y1), (x2, y2)]``.

        `sample_weight`, shape (s,), multiplies the losses before they are ordered; a micro-batch carries its own as
        ``(x, y, sample_weight)``. A list of micro-batches is one mini-batch: the q largest of all are kept, and are
        regrouped into as few micro-batches as they fill where that is exact. `index`, integers of shape (s,), says
        which samples of the training set these are: ``engine="memory"`` needs it, and no other engine looks at it.
        """
        self.updater.raise_late()
        index = self.engine.checked_index(index, y)
        batches = micro_batches(x, sample_weight) if y is None else [(x, y, sample_weight)]
        self._parallel.begin()
        self.selector.begin()
        before = self.updater.begin()
        present = Present([y for _, y, _ in batches], self._ignored, elements=self._averages)
        scored = self._forward(batches, present, whole=y is not None, index=index)  # line 3: losses with their graph
        choice = self.selector.choose(scored, self.steps, present)  # line 4
        computed = scored.abandon() if choice.kept is None else scored.backward(choice.kept)  # line 5
        if not self.updater.step(choice.verdict, before, gradient=choice.kept is not None):  # line 6
            computed = computed._replace(rows=None)
        self.steps += 1
        return self.selector.record(computed, choice, self.updater.verdict)

    def end_epoch(self, accuracy: float | None = None) -> int:
        """The q of the next epoch; see `OrderedLoss.end_epoch`."""
        self.updater.raise_late()
        return self.policy.end_epoch(accuracy)

    @property
    def why(self) -> str | None:
        """Why another way of computing the gradient ran than the engine's name promises; None when it did not."""
        return self._ran.why

    @property
    def recall(self) -> Recall | None:
        """Share of the q largest losses that ``engine="memory"`` found in its last audits, with its interval."""
        return self.engine.recall

    @property
    def q(self) -> int | None:
        """The present q for a full batch; None before the first one."""
        return self.policy.q

    @property
    def epoch(self) -> int:
        """Epochs ended so far."""
        return self.policy.epoch

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs beside the model's, the optimizer's and the scaler's state."""
        return {"policy": self.policy.state_dict(), "steps": self.steps, "engine": self.engine.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up where `state_dict` left off; a state that is not this step's is refused before anything changes."""
        where, remedy = "OrderedStep.load_state_dict", 'Pass the part that is this step\'s, such as checkpoint["step"].'
        check_state(where, "the state", state, ("policy", "steps", "engine"), remedy)
        own, remedy = self.engine.state_dict(), "Use the engine that the checkpoint was saved with."
        check_state(where, "the engine's state", state["engine"] or own, tuple(own), remedy)
        self.policy.load_state_dict(state["policy"])
        self.steps = state["steps"]
        if state["engine"]:
            self.engine.load_state_dict(state["engine"])
        self.updater.forget()

    def _forward(
        self, batches: list[tuple[Any, Any, Tensor | None]], present: Present, *, whole: bool, index: Tensor | None
    ) -> Scored:
        """Line 3: the losses of a batch, or of micro-batches as one."""
        s = samples_of(batches) if index is None else index.shape[0]
        one = whole or (len(batches) == 1 and self._alone)
        self._ran = self.engine if one else self._micro
        if one:
            count = s if s is None or index is None else present.count(s)
            return self.engine.forward(batches[0], self.selector.ahead(count, index))
        return self._micro.forward(batches, None if present.rows is not None else s, self.selector.everything)
