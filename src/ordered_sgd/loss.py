"""Any per-sample criterion, reduced by its q largest losses."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from ordered_sgd.amounts import Above
from ordered_sgd.criterion import (
    ONE_LOSS_EACH,
    count_correct,
    ignore_index,
    looks_at_each_sample,
    not_ignored,
    refuse_reduced,
    weighted_losses,
)
from ordered_sgd.errors import ArgumentError, check_choice, message
from ordered_sgd.joined_units import join_units, mean_of_joined
from ordered_sgd.kept_units import finished, hidden_faults, kept_rows, mean_of_units, mean_or_zero
from ordered_sgd.keywords import names_unknown
from ordered_sgd.policy import Policy, Selection
from ordered_sgd.ranks import check_group, mean_over_ranks
from ordered_sgd.rules import Rule, resolve_q
from ordered_sgd.selection import mean_of_rows, select_rows
from ordered_sgd.traps import warn_of_no_grad, warn_of_weights
from ordered_sgd.units import (
    Unit,
    Units,
    Within,
    as_units,
    capped,
    check_mask,
    check_mixture,
    check_reduce,
    check_unit,
)

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

# Numbers in the outputs from which, at a quarter of the samples or fewer, it pays to run the criterion with a graph for
# the kept samples only (measured on the CPU: .6 to .9 of the criterion's time; at half of the samples none is saved).
SCORED_FROM = 2**18


Accuracy = Literal["counted", "given"]
WITHOUT_ANSWERS = 'Pass accuracy="given" and call end_epoch(accuracy=...), or use LossMassRule, which needs none.'


class OrderedLoss(nn.Module):
    """The mean of a criterion's q largest losses in training, the plain mean in eval mode.

    Parameters
    ----------
    criterion : Callable[..., Tensor]
        Module or function that returns one loss per sample, or per element: build it with ``reduction="none"``. Targets
        equal to its `ignore_index` are never kept and never counted.
    q : float or Above or Rule
        A count, a share of each batch in (0, 1], `Above` a value, or a rule that moves q over training, such as
        `AccuracyRule()`; then call `end_epoch` once per epoch. A rule's q is a count of samples, and a share of the
        valid units otherwise. Note that ``q=1`` keeps one sample and ``q=1.0`` all of them.
    selection : {"top", "random"}, default="top"
        ``"top"`` keeps the largest losses; ``"random"`` keeps as many at random, the control of every comparison.
    generator : torch.Generator or None, default=None
        Source of the random selection, on the CPU; one with seed 0 when None.
    score : Callable[..., Tensor] or None, default=None
        Given what the criterion is given, returns what is ordered by instead of the losses, of their shape or one
        number per sample; see `ordered_sgd.scores`.
    reduce : str or None, default=None
        ``"mean"`` orders samples of losses (s, ...) by the mean over the other dimensions, which are refused otherwise.
    unit : {"sample", "token", "pixel", "group"}, default="sample"
        What is ordered; see `ordered_sgd.ordered_mean`.
    within : {"batch", "sample"}, default="batch"
        Whether q counts over the batch, or within each sample.
    trim : float, default=0
        Drop this many of the largest losses first, a count or a share of the batch, because they often have wrong
        labels. They do not yet in the first epochs, so the number grows with the epochs.
    trim_epochs : int, default=5
        Epochs, counted by `end_epoch`, over which `trim` grows from none to all of it; 0 trims from the first step.
    mix : float, default=0.0
        Share of the plain mean in the loss: (1 - mix) times the ordered mean plus mix times the plain one.
    cap : float or None, default=None
        In training, a loss above the cap counts as the cap and has no gradient.
    accuracy : str, default="counted"
        Where the accuracy comes from that moves q by a rule: ``"counted"`` from outputs (s, C) with integer targets, or
        ``"given"`` by you in ``end_epoch(accuracy=...)``. With a rule that needs one, a first batch without anything to
        count is refused unless it is given.
    group : ProcessGroup or None, default=None
        Keep the q largest of all ranks of this process group instead of each rank's own; see
        `ordered_sgd.ordered_mean`. In training mode every rank must call the loss equally often (with an empty
        batch, if need be); the rule sees what all ranks saw, so that q and the state are the same on each. The random
        control needs generators of the same seed. In eval mode the mean is this rank's own.

    Examples
    --------
    >>> loss_fn = OrderedLoss(nn.CrossEntropyLoss(reduction="none"), q=0.5)
    >>> logits = torch.tensor([[2.0, 0.0], [0.0, 2.0]])
    >>> round(loss_fn(logits, torch.tensor([0, 0])).item(), 4)
    2.1269
    >>> pixels = OrderedLoss(nn.CrossEntropyLoss(reduction="none", ignore_index=255), q=0.25, unit="pixel")
    >>> scores, labels = torch.zeros(2, 3, 8, 8), torch.zeros(2, 8, 8, dtype=torch.int64)
    >>> labels[:, :4] = 255  # of 128 pixels 64 count, of which 16 are kept
    >>> round(pixels(scores, labels).item(), 4)  # log 3
    1.0986
    """

    _without_answers = WITHOUT_ANSWERS

    @names_unknown
    def __init__(
        self,
        criterion: Callable[..., Tensor],
        *,
        q: float | Above | Rule,
        selection: Selection = "top",
        generator: torch.Generator | None = None,
        score: Callable[..., Tensor] | None = None,
        reduce: Literal["mean"] | None = None,
        unit: Unit = "sample",
        within: Within = "batch",
        trim: float = 0,
        trim_epochs: int = 5,
        mix: float = 0.0,
        cap: float | None = None,
        accuracy: Accuracy = "counted",
        group: "ProcessGroup | None" = None,
        _where: str = "OrderedLoss",  # whose arguments error messages speak of
    ) -> None:
        super().__init__()
        self._where = _where
        check_criterion(criterion, selection, _where)
        check_unit(unit, within, group, _where)
        check_mixture(trim, mix, cap, _where, trim_epochs)
        check_reduce(reduce, unit, _where)
        check_score(score, _where)
        check_choice(_where, "accuracy", accuracy, ("counted", "given"))
        self._policy = Policy(
            q,
            selection=selection,
            generator=generator,
            trim=trim,
            trim_epochs=trim_epochs,
            where=_where,
            of_samples=unit == "sample",
            above=True,
        )
        self.criterion = criterion
        self.score = score
        self.reduce = reduce
        self.unit = unit
        self.within = within
        self.mix = mix
        self.cap = cap
        self.group = None if group is None else check_group(group, _where)
        self.counting = accuracy == "counted"
        self._ignored = ignore_index(criterion)
        self._warned = False  # of training mode without gradients

    def forward(
        self,
        *args: Any,
        sample_weight: Tensor | None = None,
        mask: Tensor | None = None,
        scores: Tensor | None = None,
        always_keep: Tensor | None = None,
        ids: Tensor | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """The ordered loss of a batch; `args` go to the criterion, usually outputs and targets.

        `sample_weight`, shape (s,), or that of the losses, multiplies the losses before they are ordered. `mask`, of
        the shape of the losses, is true where an element counts, and `ids` number the groups of ``unit="group"``.
        `scores` and `always_keep` are those of `ordered_sgd.ordered_mean`; scores go before the loss's own function.
        Batches seen without gradients do not count towards the rule: validation does not move q. For the plain mean
        there, call ``loss_fn.eval()`` (and ``loss_fn.train()`` after it), as for the model.
        """
        # how many are always kept would have to be read from a device
        known = mask is None and not (isinstance(always_keep, Tensor) and not always_keep.is_cpu)
        policy, twice = self._policy, known and self._scores_first(args, kwargs)
        with torch.no_grad() if twice else nullcontext():
            losses = weighted_losses(self.criterion, args, kwargs, sample_weight, self._where)
        valid = not_ignored(losses, self._ignored, args, kwargs)
        if mask is not None:
            given = check_mask(losses, mask, self._where)
            valid = given if valid is None else valid & given
        if self.training and scores is None and self.score is not None:
            with torch.no_grad():
                scores = self.score(*args, **kwargs)
        units = self._units(losses, valid, ids, scores, always_keep)
        if not self.training:
            policy.evaluated()
            return mean_of_units(units, 1.0, where=self._where)
        correct = counted = None
        if policy.adaptive.counts_answers:
            correct, counted = self._answers((*args, *kwargs.values()), losses, valid)
        if self.group is not None and units.losses.shape != losses.shape:
            correct = None  # answers are counted by element
        again = None if not twice else partial(self._mean_of_kept, args=args, sample_weight=sample_weight, valid=valid)
        return self._reduced(units, correct, counted, batch=losses.shape[0], masked=mask is not None, again=again)

    def _answers(self, args: tuple[Any, ...], losses: Tensor, valid: Tensor | None) -> tuple[Tensor | None, Tensor]:
        """How many answers of a batch are right, if that can be counted, and how many there are."""
        counted = torch.full((), losses.numel(), device=losses.device) if valid is None else valid.sum()
        return count_correct(self.criterion, *args, like=losses, valid=valid), counted

    def _reduced(
        self,
        units: Units,
        correct: Tensor | None,
        counted: Tensor | None,
        *,
        batch: int | None = None,
        masked: bool,
        again: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:
        """The ordered loss of units; the rule sees them and the right answers.

        `batch` says how many samples the units come from. `again` gives the mean loss of rows with its graph, where the
        losses have none.
        """
        policy, within = self._policy, self.within
        if not torch.is_grad_enabled():
            self._evaluated_in_training()
        elif self.group is None and self.counting:
            policy.adaptive.expect_answers(correct is not None, self._without_answers)
        if self.group is not None:
            return self._over_ranks(units.only_valid(), correct, self.group, batch=batch, masked=masked)
        s = units.losses.shape[1:].numel() if within == "sample" else units.losses.numel()
        if s == 0:  # every element of every group is masked
            return mean_of_units(units, 1.0, where=self._where)
        if torch.is_grad_enabled():
            policy.see(s, batch)
            if policy.adaptive.rule is not None:
                seen = units.reshaped(-1, s)
                policy.observe(seen.losses.detach(), correct, counted, seen.rest, scores=seen.scores)
        trim = policy.trim_now
        if units.plain and self.unit == "sample" and policy.counts_ahead:
            rows = policy.choose(units.keys)
            kept = mean_of_rows(units.losses, rows) if again is None else again(rows)
            return finished(kept, units, 1, trim, self.mix)
        draw = policy.draw if policy.selection == "random" else None
        q = policy.adaptive.level(s, share=self.unit != "sample")
        if again is not None:
            rows = kept_rows(units, None if draw is None else draw(units.keys), q, trim, self._where)
            return finished(again(rows), units, q, trim, self.mix)
        return mean_of_units(units, q, within=within, trim=trim, mix=self.mix, draw=draw, where=self._where)

    def _scores_first(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether to run the criterion without a graph for all samples, and with one for the kept samples only.

        This saves the criterion's backward for the other samples. It pays where outputs are large, as over a
        vocabulary, and is exact where the criterion is known to look at each sample by itself.
        """
        plain = self.training and self.unit == "sample" and self.mix == 0 and self.group is None and not kwargs
        if not plain or not torch.is_grad_enabled() or torch.compiler.is_compiling() or len(args) != 2:
            return False
        outputs, targets = args
        if not isinstance(outputs, Tensor) or not isinstance(targets, Tensor) or outputs.numel() < SCORED_FROM:
            return False
        if 4 * self._policy.q_for(outputs.shape[0]) > outputs.shape[0]:
            return False
        masked = (self._ignored is not None and not targets.is_floating_point()) or not self._policy.counts_ahead
        if masked and not outputs.is_cpu:  # how many samples are kept would have to be read from the device
            return False
        return outputs.requires_grad and looks_at_each_sample(self.criterion)

    def _mean_of_kept(
        self, rows: Tensor, args: tuple[Any, ...], sample_weight: Tensor | None, valid: Tensor | None
    ) -> Tensor:
        """The mean loss of the kept samples, with a graph through these alone."""
        kept = tuple(select_rows(value, 0, rows) for value in args)
        weight = None if sample_weight is None else sample_weight.index_select(0, rows)
        losses = weighted_losses(self.criterion, kept, {}, weight, self._where)
        part = None if valid is None else valid.index_select(0, rows)
        units = as_units(losses, part, "sample", None, self._where, reduce=self.reduce, empty=True)
        return mean_or_zero(capped(units.losses, self.cap))

    def _over_ranks(
        self, mine: Units, correct: Tensor | None, group: "ProcessGroup", *, batch: int | None, masked: bool
    ) -> Tensor:
        """The ordered loss of the valid units of all ranks together."""
        policy, trim, where = self._policy, self._policy.trim_now, self._where
        # what is decided here must be the same on every rank, whether or not something of its own is masked
        may_be_empty = masked or self._ignored is not None or self.unit != "sample"
        settings = {**policy.settings(), "unit": self.unit, "mix": self.mix, "cap": self.cap}
        joined, units = join_units(mine, correct, group, where, settings=settings, empty=may_be_empty)
        self._saw(joined.losses)
        s = joined.losses.shape[0]
        if torch.is_grad_enabled() and s > 0:
            if self.counting:
                policy.adaptive.expect_answers(joined.correct is not None, self._without_answers)
            policy.see(s, batch)
            policy.observe(joined.losses, joined.correct, None, units.rest, scores=units.scores)
        q = policy.adaptive.level(s, share=self.unit != "sample") if s else 1
        if s == 0 or not units.plain or isinstance(q, Above):
            draw = policy.draw if policy.selection == "random" else None
            return mean_of_joined(mine, joined, units, q, trim=trim, mix=self.mix, draw=draw, where=where)
        rows = policy.choose(joined.losses, resolve_q(q, s, where) if self.unit != "sample" else None)
        return mean_over_ranks(mine.losses, rows, joined, faults=hidden_faults(units, q, trim), mix=self.mix)

    def _evaluated_in_training(self) -> None:
        """A batch came without gradients, though not in eval mode."""
        self._policy.evaluated()
        if not (self._warned or self._policy.adaptive.fixed == 1.0 or torch.compiler.is_compiling()):
            self._warned = True
            warn_of_no_grad(self._where)

    def _saw(self, losses: Tensor) -> None:
        """The valid losses of all ranks, for those who keep a record."""

    def _units(
        self,
        losses: Tensor,
        valid: Tensor | None,
        ids: Tensor | None,
        scores: Tensor | None,
        always: Tensor | None,
    ) -> Units:
        """One loss per unit, capped, and what is known of each."""
        empty = self.group is not None and self.training
        parts = {"scores": scores, "always": always, "reduce": self.reduce}
        units = as_units(losses, valid, self.unit, ids, self._where, empty=empty, **parts)  # type: ignore[arg-type]
        return units.capped(self.cap) if self.training else units

    def end_epoch(self, accuracy: float | None = None) -> int:
        """The q of the next epoch.

        Parameters
        ----------
        accuracy
            Training accuracy in [0, 1], for a rule that needs it. Without it the right answers counted during the
            epoch are used, which outputs of shape (s, C) with integer targets of shape (s,) allow.
        """
        return self._policy.end_epoch(accuracy)

    @property
    def q(self) -> int | None:
        """The present q for a full batch; None before the first one."""
        return self._policy.q

    @property
    def epoch(self) -> int:
        """Epochs ended so far."""
        return self._policy.epoch

    def get_extra_state(self) -> dict[str, Any]:
        """What `state_dict` carries where q or the choice moves: q, s, the epoch, what was observed, the generator."""
        return self._policy.state_dict()

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_extra_state` returned."""
        self._policy.load_state_dict(state)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if not self._policy.moves:
            del destination[prefix + "_extra_state"]  # a fixed q has no state: any checkpoint of the model will do

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        others = missing_keys, unexpected_keys, error_msgs
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, *others)
        if not self._policy.moves and prefix + "_extra_state" in missing_keys:
            missing_keys.remove(prefix + "_extra_state")

    def extra_repr(self) -> str:
        """The part of the repr after the criterion."""
        policy = self._policy
        level = policy.adaptive.fixed or policy.adaptive.rule
        values: dict[str, object] = {"selection": policy.selection, "unit": self.unit, "within": self.within}
        values |= {"trim": policy.trim, "mix": self.mix, "cap": self.cap, "reduce": self.reduce}
        defaults: dict[str, object] = {
            "selection": "top",
            "unit": "sample",
            "within": "batch",
            "trim": 0,
            "mix": 0.0,
            "cap": None,
            "reduce": None,
        }
        others = [f"{name}={value!r}" for name, value in values.items() if value != defaults[name]]
        if self.score is not None:  # of a function the name says more than the address
            others.insert(0, f"score={getattr(self.score, '__name__', repr(self.score))}")
        return ", ".join([f"q={level}", *others])


def check_score(score: Callable[..., Tensor] | None, where: str) -> None:
    """Raise unless it is a function, or None."""
    if score is not None and not callable(score):
        remedy = "Pass a function of outputs and targets, such as ordered_sgd.scores.entropy."
        raise ArgumentError(message(where, "score", "be callable", repr(score), remedy))


def check_criterion(criterion: Callable[..., Tensor], selection: str, where: str) -> None:
    """Raise if the criterion can be seen not to return one loss per sample; warn if it weights what is ordered."""
    if isinstance(criterion, OrderedLoss):
        remedy = "Pass the criterion that it wraps."
        raise ArgumentError(message(where, "criterion", ONE_LOSS_EACH, "an OrderedLoss", remedy))
    refuse_reduced(criterion, where)
    if selection == "top":
        warn_of_weights(where, criterion)
