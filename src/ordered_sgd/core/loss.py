"""Any per-sample criterion, reduced by its q largest losses."""

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from ordered_sgd.core.adaptive import AdaptiveQ
from ordered_sgd.core.selection import check_losses, mean, mean_of_rows, random_rows, top_rows
from ordered_sgd.errors import ArgumentError, check_choice, message
from ordered_sgd.rules import Rule

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Selection = Literal["top", "random"]


class OrderedLoss(nn.Module):
    """The mean of a criterion's q largest losses in training, the plain mean in eval mode.

    Parameters
    ----------
    criterion
        Module or function that returns one loss per sample: build it with ``reduction="none"``.
    q
        A count, or a share of each batch in (0, 1].
    rule
        How q moves over training, in place of `q`; call :meth:`end_epoch` once per epoch.
    selection
        ``"top"`` keeps the largest losses; ``"random"`` keeps as many at random, the control of every comparison.
    generator
        Source of the random selection, on the CPU; one with seed 0 when not given.
    group
        Keep the q largest of all ranks of this process group instead of each rank's own; see
        :func:`ordered_sgd.ordered_mean`. In training mode every rank must call the loss equally often (with an empty
        batch, if need be); the rule sees what all ranks saw, so that q and the state are the same on each. The random
        control needs generators of the same seed. In eval mode the mean is this rank's own.

    Examples
    --------
    >>> loss_fn = OrderedLoss(nn.CrossEntropyLoss(reduction="none"), q=0.5)
    >>> logits = torch.tensor([[2.0, 0.0], [0.0, 2.0]])
    >>> round(loss_fn(logits, torch.tensor([0, 0])).item(), 4)
    2.1269
    """

    def __init__(
        self,
        criterion: Callable[..., Tensor],
        *,
        q: float | None = None,
        rule: Rule | None = None,
        selection: Selection = "top",
        generator: torch.Generator | None = None,
        group: "ProcessGroup | None" = None,
        _where: str = "OrderedLoss",  # whose arguments error messages speak of
    ) -> None:
        super().__init__()
        self._where = _where
        self._adaptive = AdaptiveQ(q, rule, _where)
        refuse_reduced(criterion, _where)
        check_choice(_where, "selection", selection, ("top", "random"))
        self.criterion = criterion
        self.selection = selection
        self.generator = generator or torch.Generator().manual_seed(0)
        self.group = group
        if group is not None:
            from ordered_sgd.core.distributed import check_group  # only those who train on several ranks load it

            check_group(group, _where)

    def forward(self, *args: Any, sample_weight: Tensor | None = None, **kwargs: Any) -> Tensor:
        """The ordered loss of a batch; `args` go to the criterion, usually outputs and targets.

        `sample_weight`, shape (s,), multiplies the losses before they are ordered. Batches seen without gradients
        do not count towards the rule: validation does not move q. For the plain mean there, call ``loss_fn.eval()``
        (and ``loss_fn.train()`` after it), as for the model.
        """
        losses = self.per_sample(*args, sample_weight=sample_weight, **kwargs)
        if not self.training:
            return mean(losses)
        if self.group is not None:
            return self._over_ranks(losses, count_correct(*args, *kwargs.values()))
        if torch.is_grad_enabled():
            self._adaptive.see(losses.shape[0])
            self._adaptive.observe(losses.detach(), count_correct(*args, *kwargs.values()))
        return mean_of_rows(losses, self.choose(losses.detach()))

    def _over_ranks(self, losses: Tensor, correct: Tensor | None) -> Tensor:
        """The ordered loss of the batches of all ranks together."""
        from ordered_sgd.core.distributed import join, mean_over_ranks

        assert self.group is not None
        joined = join(losses, correct, self.group, self._where)
        if torch.is_grad_enabled():
            self._adaptive.see(joined.losses.shape[0])
            self._adaptive.observe(joined.losses, joined.correct)
        return mean_over_ranks(losses, self.choose(joined.losses), joined)

    def per_sample(self, *args: Any, sample_weight: Tensor | None = None, **kwargs: Any) -> Tensor:
        """The criterion's losses, shape (s,), weighted, not reduced."""
        losses = self.criterion(*args, **kwargs)
        remedy = 'Build it with reduction="none".'
        if isinstance(losses, Tensor) and losses.dim() == 0:
            raise ArgumentError(message(self._where, "criterion", _ONE_LOSS_EACH, "a scalar", remedy))
        if isinstance(losses, Tensor) and losses.dim() == 2 and _broadcast(args):
            got = f"shape {tuple(losses.shape)} from {tuple(args[0].shape)} and {tuple(args[1].shape)}"
            advice = "Give outputs and targets the same shape."
            raise ArgumentError(message(self._where, "criterion", _ONE_LOSS_EACH, got, advice))
        losses = check_losses(losses, self._where, empty=self.group is not None and self.training)
        inputs = _tensors_of(args, kwargs)
        # no set of sizes: torch.compile would take the batch size for a constant
        if inputs and not any(a.shape[0] == losses.shape[0] for a in inputs):
            got = f"shape {tuple(losses.shape)} for a batch of {inputs[-1].shape[0]}"
            raise ArgumentError(message(self._where, "criterion", _ONE_LOSS_EACH, got, remedy))
        if sample_weight is None:
            return losses
        if sample_weight.shape != losses.shape:
            got = f"shape {tuple(sample_weight.shape)} for {losses.shape[0]} losses"
            advice = "Pass one weight per sample of the batch."
            raise ArgumentError(message(self._where, "sample_weight", "have shape (s,)", got, advice))
        return losses * sample_weight

    def choose(self, losses: Tensor) -> Tensor:
        """Positions of the samples to keep: line 4 of Algorithm 1, or the random control."""
        s = losses.shape[0]
        q = self._adaptive.q_for(s)
        if self.selection == "random":
            rows = random_rows(s, q, self.generator)
            if losses.device.type == "cuda" and rows.device.type == "cpu":
                rows = rows.pin_memory()  # from ordinary memory the copy would wait for the device
            return rows.to(losses.device, non_blocking=True)
        return top_rows(losses, q)

    def see(self, s: int) -> None:
        """Tell the rule that a training batch of s came which does not go through `forward`."""
        self._adaptive.see(s)

    def observe(self, losses: Tensor, correct: Tensor | None) -> None:
        """Tell the rule what such a batch showed: its losses, detached, and how many answers were right."""
        self._adaptive.observe(losses, correct)

    def q_for(self, s: int) -> int:
        """How many samples of a batch of s are kept now; asking changes nothing."""
        return self._adaptive.q_for(s)

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
        return self._adaptive.s == 0 or self._adaptive.q_for(self._adaptive.s) >= self._adaptive.s

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
        rule = self._adaptive.rule
        how = f"q={self._adaptive.fixed}" if rule is None else f"rule={rule}"
        return how if self.selection == "top" else f"{how}, selection={self.selection!r}"


_ONE_LOSS_EACH = "return one loss per sample, shape (s,)"


def _tensors_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """The criterion's inputs with a first dimension; the usual outputs and targets without a search."""
    if len(args) == 2 and not kwargs and all(type(a) is Tensor and a.dim() > 0 for a in args):
        return list(args)
    return [a for a in _leaves((args, kwargs)) if isinstance(a, Tensor) and a.dim() > 0]


def _leaves(tree: Any) -> list[Any]:
    """What is in nested tuples, lists and dicts."""
    if isinstance(tree, dict):
        return [leaf for value in tree.values() for leaf in _leaves(value)]
    if isinstance(tree, tuple | list):
        return [leaf for value in tree for leaf in _leaves(value)]
    return [tree]


def _broadcast(args: tuple[Any, ...]) -> bool:
    """Whether outputs and targets are (s, 1) and (s,): compared, they give a loss for every pair of samples."""
    shapes = [tuple(a.shape) for a in args if isinstance(a, Tensor)]
    return len(shapes) == 2 and sorted(map(len, shapes)) == [1, 2] and max(shapes, key=len)[1] == 1 < shapes[0][0]


def count_correct(*args: Any) -> Tensor | None:
    """How many rows of outputs (s, C) have their largest entry at the integer target, or None for other shapes."""
    if len(args) != 2 or not all(isinstance(a, Tensor) for a in args):
        return None
    outputs, target = args
    countable = outputs.dim() == 2 and outputs.shape[1] > 1 and target.dim() == 1
    if not countable or target.is_floating_point() or target.dtype == torch.bool:
        return None
    if outputs.device.type == "cpu" and not torch.compiler.is_compiling() and outputs.dtype == torch.float32:
        try:
            right = np.count_nonzero(outputs.detach().numpy().argmax(1) == target.numpy())
            return torch.tensor(right)
        except RuntimeError:  # a tensor without memory of its own
            pass
    correct: Tensor = (outputs.detach().argmax(1) == target).sum()
    return correct


def refuse_reduced(criterion: Callable[..., Tensor], where: str) -> None:
    """Raise if the criterion can be seen to return something else than one loss per sample."""
    if not callable(criterion):
        remedy = "Pass a loss module or function."
        raise ArgumentError(message(where, "criterion", "be callable", repr(criterion), remedy))
    if isinstance(criterion, OrderedLoss):
        remedy = "Pass the criterion that it wraps."
        raise ArgumentError(message(where, "criterion", _ONE_LOSS_EACH, "an OrderedLoss", remedy))
    reduction = getattr(criterion, "reduction", None)
    if reduction is None:
        reduction = _default_reduction(criterion)
    if isinstance(reduction, str) and reduction != "none":
        remedy = 'Build it with reduction="none".'
        if inspect.isfunction(criterion) or isinstance(criterion, functools.partial):
            name = getattr(criterion, "__name__", "criterion")
            remedy = f'Use functools.partial({name}, reduction="none").'
        raise ArgumentError(message(where, "criterion", _ONE_LOSS_EACH, f"reduction={reduction!r}", remedy))


def _default_reduction(criterion: Callable[..., Tensor]) -> object:
    try:
        parameter = inspect.signature(criterion).parameters.get("reduction")
    except (TypeError, ValueError):  # a builtin without a signature: the first call will tell
        return None
    return None if parameter is None else parameter.default
