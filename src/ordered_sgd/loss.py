"""Any per-sample criterion, reduced by its q largest losses."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from ordered_sgd.adaptive import AdaptiveQ
from ordered_sgd.criterion import (
    ONE_LOSS_EACH,
    check_returned,
    count_correct,
    ignore_index,
    not_ignored,
    refuse_reduced,
)
from ordered_sgd.errors import ArgumentError, check_choice, message
from ordered_sgd.ranks import check_group, join, mean_over_ranks
from ordered_sgd.rules import Rule, resolve_q, warn_of_one
from ordered_sgd.selection import mean_of_rows, random_rows, top_rows
from ordered_sgd.traps import warn_of_small_q, warn_of_weights
from ordered_sgd.units import (
    Unit,
    Within,
    as_units,
    capped,
    check_mask,
    check_mixture,
    check_unit,
    mean_of_units,
    mixed,
    plain_trim,
    trimmed,
)

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Selection = Literal["top", "random"]


class OrderedLoss(nn.Module):
    """The mean of a criterion's q largest losses in training, the plain mean in eval mode.

    Parameters
    ----------
    criterion : Callable[..., Tensor]
        Module or function that returns one loss per sample, or per element: build it with ``reduction="none"``. Targets
        equal to its `ignore_index` are never kept and never counted.
    q : float or Rule
        A count, a share of each batch in (0, 1], or a rule that moves q over training, such as `AccuracyRule()`; then
        call `end_epoch` once per epoch. A rule's q is a count of samples, and a share of the valid units otherwise.
        Note that ``q=1`` keeps one sample and ``q=1.0`` all of them.
    selection : {"top", "random"}, default="top"
        ``"top"`` keeps the largest losses; ``"random"`` keeps as many at random, the control of every comparison.
    generator : torch.Generator or None, default=None
        Source of the random selection, on the CPU; one with seed 0 when None.
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

    def __init__(
        self,
        criterion: Callable[..., Tensor],
        *,
        q: float | Rule,
        selection: Selection = "top",
        generator: torch.Generator | None = None,
        unit: Unit = "sample",
        within: Within = "batch",
        trim: float = 0,
        trim_epochs: int = 5,
        mix: float = 0.0,
        cap: float | None = None,
        group: "ProcessGroup | None" = None,
        _where: str = "OrderedLoss",  # whose arguments error messages speak of
    ) -> None:
        super().__init__()
        self._where = _where
        self._adaptive = AdaptiveQ(q, _where)
        if isinstance(criterion, OrderedLoss):
            remedy = "Pass the criterion that it wraps."
            raise ArgumentError(message(_where, "criterion", ONE_LOSS_EACH, "an OrderedLoss", remedy))
        refuse_reduced(criterion, _where)
        check_choice(_where, "selection", selection, ("top", "random"))
        check_unit(unit, within, group, _where)
        check_mixture(trim, mix, cap, _where, trim_epochs)
        self.criterion = criterion
        self.selection = selection
        self.generator = generator or torch.Generator().manual_seed(0)
        self.unit = unit
        self.within = within
        self.trim = plain_trim(trim)
        self.trim_epochs = trim_epochs
        self.mix = mix
        self.cap = cap
        self.group = group
        self._ignored = ignore_index(criterion)
        self._warned = False  # of a doubtful q
        if selection == "top":
            warn_of_weights(_where, criterion)
        if group is not None:
            check_group(group, _where)

    def forward(
        self,
        *args: Any,
        sample_weight: Tensor | None = None,
        mask: Tensor | None = None,
        ids: Tensor | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """The ordered loss of a batch; `args` go to the criterion, usually outputs and targets.

        `sample_weight`, shape (s,), or that of the losses, multiplies the losses before they are ordered. `mask`, of
        the shape of the losses, is true where an element counts, and `ids` number the groups of ``unit="group"``.
        Batches seen without gradients do not count towards the rule: validation does not move q. For the plain mean
        there, call ``loss_fn.eval()`` (and ``loss_fn.train()`` after it), as for the model.
        """
        losses = self._losses(args, kwargs, sample_weight)
        valid = not_ignored(losses, self._ignored, args, kwargs)
        if mask is not None:
            given = check_mask(losses, mask, self._where)
            valid = given if valid is None else valid & given
        values, units = self._units(losses, valid, ids)
        if not self.training:
            return mean_of_units(values, units, 1.0, where=self._where)
        correct = counted = None
        if self.counts_answers:
            correct = count_correct(*args, *kwargs.values(), like=losses, valid=valid)
            counted = torch.tensor(losses.numel(), device=losses.device) if valid is None else valid.sum()
        if self.group is not None:
            mine = values.flatten() if units is None else values[units]
            return self._over_ranks(mine, correct if values.shape == losses.shape else None, masked=mask is not None)
        s = values.shape[1:].numel() if self.within == "sample" else values.numel()
        if s == 0:  # every element of every group is masked
            return mean_of_units(values, units, 1.0, where=self._where)
        if torch.is_grad_enabled():
            self.see(s)
            self._adaptive.observe(
                values.detach().flatten(),
                correct,
                counted,
                None if units is None else units.flatten(),
            )
        if units is None and self.unit == "sample":
            return mixed(mean_of_rows(values, self.choose(values.detach())), values, self._trim_now, self.mix)
        draw = self._draw if self.selection == "random" else None
        q, trim = self._adaptive.level(s, share=self.unit != "sample"), self._trim_now
        return mean_of_units(
            values, units, q, within=self.within, trim=trim, mix=self.mix, draw=draw, where=self._where
        )

    def _over_ranks(self, losses: Tensor, correct: Tensor | None, *, masked: bool) -> Tensor:
        """The ordered loss of the valid units of all ranks together."""
        assert self.group is not None
        # what is decided here must be the same on every rank, whether or not something of its own is masked
        may_be_empty = masked or self._ignored is not None or self.unit != "sample"
        joined = join(losses, correct, self.group, self._where, empty=may_be_empty)
        s = joined.losses.shape[0]
        if torch.is_grad_enabled() and s > 0:
            self.see(s)
            self._adaptive.observe(joined.losses, joined.correct)
        share = self.unit != "sample" and s > 0
        q = resolve_q(self._adaptive.level(s, share=True), s, self._where) if share else None
        rows = self.choose(joined.losses, q) if s > 0 else torch.empty(0, dtype=torch.int64, device=losses.device)
        return mean_over_ranks(losses, rows, joined, trim=self._trim_now, mix=self.mix)

    def _losses(self, args: tuple[Any, ...], kwargs: dict[str, Any], sample_weight: Tensor | None) -> Tensor:
        """What the criterion returns, weighted."""
        losses = check_returned(self.criterion(*args, **kwargs), args, kwargs, self._where)
        if sample_weight is None:
            return losses
        if not isinstance(sample_weight, Tensor):
            got, advice = type(sample_weight).__name__, "Use torch.tensor(sample_weight)."
            raise ArgumentError(message(self._where, "sample_weight", "be a torch tensor", got, advice))
        if sample_weight.shape == losses.shape[:1]:
            sample_weight = sample_weight.reshape(-1, *[1] * (losses.dim() - 1))
        elif sample_weight.shape != losses.shape:
            got = f"shape {tuple(sample_weight.shape)} for {losses.shape[0]} losses"
            advice = "Pass one weight per sample of the batch."
            raise ArgumentError(message(self._where, "sample_weight", "have shape (s,)", got, advice))
        return losses * sample_weight

    def _units(self, losses: Tensor, valid: Tensor | None, ids: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """One loss per unit, capped, and which are valid."""
        empty = self.group is not None and self.training
        values, units = as_units(losses, valid, self.unit, ids, self._where, empty=empty)
        return capped(values, self.cap) if self.training else values, units

    def per_sample(self, *args: Any, sample_weight: Tensor | None = None, **kwargs: Any) -> Tensor:
        """The criterion's losses, shape (s,), weighted and capped, not reduced."""
        return self._units(self._losses(args, kwargs, sample_weight), None, None)[0]

    def choose(self, losses: Tensor, q: int | None = None, *, s: int | None = None) -> Tensor:
        """Positions of the samples to keep: line 4 of Algorithm 1, or the random control.

        With `s` the losses are some of a batch of s, and as many are kept as of the whole batch.
        """
        s = losses.shape[0] if s is None else s
        r = self.trimmed_of(s)
        q = self.q_for(s) if q is None else min(q, s - r)
        if self.selection == "random":
            rows = random_rows(s, q, self.generator)
            if losses.device.type == "cuda" and rows.device.type == "cpu":
                rows = rows.pin_memory()  # from ordinary memory the copy would wait for the device
            return rows.to(losses.device, non_blocking=True)
        return top_rows(losses, q, r)

    def _draw(self, values: Tensor) -> Tensor:
        """Random numbers in the place of losses: the largest of them are a random choice."""
        return torch.rand(values.shape, generator=self.generator).to(values.device)

    @property
    def _trim_now(self) -> float:
        """What is trimmed in this epoch."""
        if self.epoch >= self.trim_epochs:
            return self.trim
        now = self.trim * self.epoch / self.trim_epochs
        return now if isinstance(self.trim, float) else int(now)

    def see(self, s: int) -> None:
        """Tell the rule that a training batch of s came; `OrderedStep` does so for its own."""
        larger = s > self._adaptive.s and self._adaptive.epoch == 0
        if larger and not self._warned:
            self._warned = self._warn_of_q(s)
        self._adaptive.see(s)

    def _warn_of_q(self, s: int) -> bool:
        """Whether there was something to warn of in the q for a batch of s."""
        if self._adaptive.fixed is not None and warn_of_one(self._adaptive.fixed, s, self._where):
            return True
        ordered = self.selection == "top" and self.unit == "sample"
        return ordered and warn_of_small_q(self._where, self._adaptive.q_for(s), s)

    def observe(self, losses: Tensor, correct: Tensor | None, count: Tensor | None = None) -> None:
        """Tell the rule what such a batch showed: its losses, detached, and the right answers, of how many."""
        self._adaptive.observe(losses, correct, count)

    def q_for(self, s: int) -> int:
        """How many samples of a batch of s are kept now; asking changes nothing."""
        return min(self._adaptive.q_for(s), s - self.trimmed_of(s))

    def trimmed_of(self, s: int) -> int:
        """How many of the largest losses of a batch of s are dropped now."""
        return trimmed(self._trim_now, s)

    def end_epoch(self, accuracy: float | None = None) -> int:
        """The q of the next epoch.

        Parameters
        ----------
        accuracy
            Training accuracy in [0, 1], for a rule that needs it. Without it the right answers counted during the
            epoch are used, which outputs of shape (s, C) with integer targets of shape (s,) allow.
        """
        return self._adaptive.end_epoch(accuracy)

    @property
    def keeps_all(self) -> bool:
        """Whether the largest batch so far would be kept whole, or none has come yet."""
        return self._adaptive.s == 0 or self.q_for(self._adaptive.s) >= self._adaptive.s

    @property
    def counts_answers(self) -> bool:
        """Whether the rule wants to know how many answers are right."""
        return self._adaptive.counts_answers

    @property
    def q(self) -> int | None:
        """The present q for a full batch; None before the first one."""
        return self._adaptive.q

    @property
    def epoch(self) -> int:
        """Epochs ended so far."""
        return self._adaptive.epoch

    def get_extra_state(self) -> dict[str, Any]:
        """What `state_dict` carries: q, s, the epoch, what was observed, and the generator of the random control."""
        return {**self._adaptive.state_dict(), "generator": self.generator.get_state()}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_extra_state` returned."""
        self._adaptive.load_state_dict(state)
        self.generator.set_state(state["generator"].cpu())

    def extra_repr(self) -> str:
        """The part of the repr after the criterion."""
        level = self._adaptive.fixed or self._adaptive.rule
        defaults = {"selection": "top", "unit": "sample", "within": "batch", "trim": 0, "mix": 0.0, "cap": None}
        others = [f"{name}={value!r}" for name in defaults if (value := getattr(self, name)) != defaults[name]]
        return ", ".join([f"q={level}", *others])
