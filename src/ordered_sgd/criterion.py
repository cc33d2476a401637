"""What a criterion is given and what it returns: checked, and the right answers in it counted."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ordered_sgd.errors import ArgumentError, message

ONE_LOSS_EACH = "return one loss per sample, shape (s,)"


def check_returned(losses: Any, args: tuple[Any, ...], kwargs: dict[str, Any], where: str) -> Tensor:
    """What a criterion returned, if it is a loss for every sample or element of what it was given."""
    remedy = 'Build it with reduction="none".'
    if isinstance(losses, Tensor) and losses.dim() == 0:
        raise ArgumentError(message(where, "criterion", ONE_LOSS_EACH, "a scalar", remedy))
    if isinstance(losses, Tensor) and losses.dim() == 2 and losses.shape[1] != 1 and _broadcast(args):
        got = f"shape {tuple(losses.shape)} from {tuple(args[0].shape)} and {tuple(args[1].shape)}"
        advice = "Give outputs and targets the same shape."
        raise ArgumentError(message(where, "criterion", ONE_LOSS_EACH, got, advice))
    if not isinstance(losses, Tensor):
        advice = "Return a torch tensor."
        raise ArgumentError(message(where, "criterion", ONE_LOSS_EACH, type(losses).__name__, advice))
    inputs = _tensors_of(args, kwargs)
    # no set of sizes: torch.compile would take the batch size for a constant
    if inputs and not any(a.shape[0] == losses.shape[0] for a in inputs):
        got = f"shape {tuple(losses.shape)} for a batch of {inputs[-1].shape[0]}"
        raise ArgumentError(message(where, "criterion", ONE_LOSS_EACH, got, remedy))
    return losses


def weighted_losses(
    criterion: Callable[..., Tensor],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    sample_weight: Tensor | None,
    where: str,
) -> Tensor:
    """What the criterion returns, checked, and multiplied by the samples' weights where there are some."""
    losses = check_returned(criterion(*args, **kwargs), args, kwargs, where)
    if sample_weight is None:
        return losses
    if not isinstance(sample_weight, Tensor):
        got, advice = type(sample_weight).__name__, "Use torch.tensor(sample_weight)."
        raise ArgumentError(message(where, "sample_weight", "be a torch tensor", got, advice))
    if sample_weight.shape == losses.shape[:1]:
        sample_weight = sample_weight.reshape(-1, *[1] * (losses.dim() - 1))
    elif sample_weight.shape != losses.shape:
        got = f"shape {tuple(sample_weight.shape)} for {losses.shape[0]} losses"
        advice = "Pass one weight per sample of the batch."
        raise ArgumentError(message(where, "sample_weight", "have shape (s,)", got, advice))
    return losses * sample_weight


def looks_at_each_sample(criterion: Callable[..., Tensor]) -> bool:
    """Whether the loss of a sample is known to depend on no other: cross-entropy of torch itself.

    >>> looks_at_each_sample(torch.nn.CrossEntropyLoss(reduction="none"))
    True
    """
    function = criterion.func if isinstance(criterion, functools.partial) else criterion
    return type(criterion) is torch.nn.CrossEntropyLoss or function is torch.nn.functional.cross_entropy


def ignore_index(criterion: Callable[..., Tensor]) -> int | None:
    """The target that the criterion ignores: its attribute, its keyword, or its default; None if it knows none.

    >>> ignore_index(torch.nn.CrossEntropyLoss(reduction="none")), ignore_index(torch.nn.functional.mse_loss)
    (-100, None)
    """
    found = setting_of(criterion, "ignore_index")
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def not_ignored(losses: Tensor, ignored: int | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """Which targets are not the ignored one, in the shape of the losses; None where all count, or none is ignored."""
    if ignored is None:
        return None
    target = kwargs.get("target", args[1] if len(args) > 1 else None)
    if not isinstance(target, Tensor) or target.is_floating_point() or target.shape != losses.shape:
        return None
    valid = target != ignored
    reads_are_free = target.is_cpu and not torch.compiler.is_compiling()
    return None if target.dim() == 1 and reads_are_free and bool(valid.all()) else valid


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


def countable(criterion: Callable[..., Tensor], outputs: Any, target: Any, like: Tensor) -> bool:
    """Whether right answers can be counted: integer targets (s, ...) for outputs (s, C, ...), one for each loss."""
    if not (isinstance(outputs, Tensor) and isinstance(target, Tensor)) or outputs.dim() < 2 or outputs.shape[1] < 2:
        return False
    if outputs.shape[:1] + outputs.shape[2:] != target.shape or target.shape != like.shape:
        return False  # a mean over a sequence has fewer losses than answers
    if outputs.dim() > 2 and outputs.shape[:-1] == target.shape and not _has_classes_second(criterion):
        return False  # (s, T, C) with T == C looks like (s, C, T)
    return not target.is_floating_point() and target.dtype != torch.bool


def _has_classes_second(criterion: Callable[..., Tensor]) -> bool:
    """Whether outputs are known to be (s, C, ...): those of torch's own losses, and of a criterion that says so."""
    function = criterion.func if isinstance(criterion, functools.partial) else criterion
    if type(criterion) in (torch.nn.CrossEntropyLoss, torch.nn.NLLLoss):
        return True
    return function in (torch.nn.functional.cross_entropy, torch.nn.functional.nll_loss) or bool(
        getattr(criterion, "classes_second", False)
    )


def right_answers(criterion: Callable[..., Tensor], *args: Any, like: Tensor) -> Tensor | None:
    """Whether integer targets (s, ...) are where outputs (s, C, ...) are largest, or None for other shapes.

    There must be one target for each loss of `like`.
    """
    if len(args) != 2 or not countable(criterion, *args, like):
        return None
    outputs, target = args
    if outputs.device.type == "cpu" and not torch.compiler.is_compiling() and outputs.dtype == torch.float32:
        try:
            return torch.from_numpy(outputs.detach().numpy().argmax(1) == target.numpy())
        except RuntimeError:  # a tensor without memory of its own
            pass
    right: Tensor = outputs.detach().argmax(1) == target
    return right


def count_correct(
    criterion: Callable[..., Tensor], *args: Any, like: Tensor, valid: Tensor | None = None
) -> Tensor | None:
    """The number of right answers, or None where `right_answers` knows none; with `valid`, only of those."""
    right = right_answers(criterion, *args, like=like)
    if right is None or valid is None:
        return None if right is None else right.sum()
    return (right & valid).sum()


def refuse_reduced(criterion: Callable[..., Tensor], where: str) -> None:
    """Raise if the criterion can be seen to return something else than one loss per sample."""
    if not callable(criterion):
        remedy = "Pass a loss module or function."
        raise ArgumentError(message(where, "criterion", "be callable", repr(criterion), remedy))
    reduction = setting_of(criterion, "reduction")
    if isinstance(reduction, str) and reduction != "none":
        remedy = 'Build it with reduction="none".'
        if inspect.isfunction(criterion) or isinstance(criterion, functools.partial):
            name = getattr(criterion, "__name__", "criterion")
            remedy = f'Use functools.partial({name}, reduction="none").'
        raise ArgumentError(message(where, "criterion", ONE_LOSS_EACH, f"reduction={reduction!r}", remedy))


def setting_of(criterion: Callable[..., Tensor], name: str) -> object:
    """A setting of a criterion: its attribute, what a partial has set, or the default; None if it has no such thing."""
    found = getattr(criterion, name, None)
    if found is not None:
        return found
    try:
        parameter = inspect.signature(criterion).parameters.get(name)
    except (TypeError, ValueError):  # a builtin without a signature: the first call will tell
        return None
    return None if parameter is None else parameter.default
