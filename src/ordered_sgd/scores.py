"""What to order samples, tokens or pixels by instead of their losses; large is hard.

`entropy` and `negative_margin` take outputs and targets, as a criterion does: pass them as ``score=`` to `OrderedLoss`
or `OrderedStep`, or what they return as ``scores=`` to `ordered_mean`. `excess` takes losses, and those of a reference
model, which `reference_losses` computes.

Outputs are logits or log-probabilities (s, C, ...), with the classes second as in torch's cross-entropy: transpose
those of a language model, (s, T, C), by ``outputs.transpose(1, 2)``. Scores are detached and at least in single
precision.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, SequentialSampler

from ordered_sgd.criterion import weighted_losses
from ordered_sgd.errors import ArgumentError, message
from ordered_sgd.selection import widen

# Outputs with more numbers than this are gone through in parts, so that copies of logits of a large vocabulary stay
# small beside the logits.
_AT_ONCE = 2**24


def entropy(outputs: Tensor, targets: Any = None) -> Tensor:
    r"""Entropy of the predicted classes, in nats: how unsure the model is, whatever the target.

    .. math:: H = -\sum_c p_c \ln p_c, \qquad p = \mathrm{softmax}(z)

    Reinforcement learning of language models keeps the fifth of the tokens with the largest entropy (`Wang et al. 2025
    <https://arxiv.org/abs/2506.01939>`_); active learning chooses by it what to label.

    Parameters
    ----------
    outputs
        Logits or log-probabilities, shape (s, C, ...). A class of logit -inf cannot occur and adds nothing.
    targets
        Only their shape is looked at, if they are classes.

    Returns
    -------
    Tensor
        Shape (s, ...), from 0 to ln C.

    Examples
    --------
    >>> entropy(torch.tensor([[0.0, 0.0], [9.0, 0.0], [9.0, -torch.inf]]))
    tensor([0.6931, 0.0012, 0.0000])
    """
    _check_outputs(outputs, targets, "scores.entropy")
    return _in_parts(_entropy, outputs.detach())


def _entropy(logits: Tensor) -> Tensor:
    logits = widen(logits)
    logits = logits.clamp(max=torch.finfo(logits.dtype).max)  # softmax of inf is NaN, though the class is certain
    terms: Tensor = torch.special.entr(logits.softmax(1))
    return terms.sum(1)


def negative_margin(outputs: Tensor, targets: Tensor) -> Tensor:
    r"""How far the best other class is ahead of the right one, positive where the answer is wrong.

    .. math:: \max_{c \neq y} z_c - z_y

    This is the margin of multiclass support vector machines (`Crammer & Singer 2001
    <https://www.jmlr.org/papers/v2/crammer01a.html>`_) and of AUM (`Pleiss et al. 2020
    <https://arxiv.org/abs/2001.10528>`_), with the opposite sign, so that large is hard.

    Parameters
    ----------
    outputs
        Logits or log-probabilities, shape (s, C, ...).
    targets
        Classes, integers of shape (s, ...). One that is no class, such as an ignored -100, gets the score 0.

    Returns
    -------
    Tensor
        Shape (s, ...); what would be infinite is the largest finite number.

    Examples
    --------
    >>> negative_margin(torch.tensor([[3.0, 1.0, 0.0], [3.0, 1.0, 0.0]]), torch.tensor([0, 2]))
    tensor([-2.,  3.])
    """
    where = "scores.negative_margin"
    _check_outputs(outputs, targets, where)
    if not _are_classes(targets):
        remedy = "Use entropy, which needs no targets."
        raise ArgumentError(
            message(where, "targets", f"be classes of shape {_shape_of(outputs)}", _kind(targets), remedy)
        )
    return _in_parts(_negative_margin, outputs.detach(), targets)


def _negative_margin(logits: Tensor, targets: Tensor) -> Tensor:
    logits = widen(logits)
    classes = targets.clamp(0, logits.shape[1] - 1).unsqueeze(1)
    ahead = logits.scatter(1, classes, -torch.inf).amax(1) - logits.gather(1, classes).squeeze(1)
    limit = torch.finfo(logits.dtype).max
    return torch.where(targets == classes.squeeze(1), ahead.clamp(-limit, limit), 0)


def excess(losses: Tensor, reference: Tensor) -> Tensor:
    """The losses minus those of a reference model: RHO-LOSS, what is left to learn of each sample.

    A sample that the reference model has not learned either, because it is noise, is not kept for its large loss
    (`Mindermann et al. 2022 <https://arxiv.org/abs/2206.07137>`_, Eq. 3, who train the reference model on held-out data
    and call its losses irreducible).

    Parameters
    ----------
    losses
        Of the model that is trained, any shape.
    reference
        Of the same samples and shape: compute them beforehand with `reference_losses`, or in the loop.

    Examples
    --------
    >>> from ordered_sgd import ordered_mean
    >>> losses, reference = torch.tensor([4.0, 3.0, 1.0]), torch.tensor([3.9, 0.1, 0.2])
    >>> ordered_mean(losses, q=1, scores=excess(losses, reference))  # the first has the largest loss, but is noise
    tensor(3.)
    """
    if not isinstance(reference, Tensor) or reference.shape != losses.shape:
        rule, remedy = f"have the shape of the losses, {tuple(losses.shape)}", "Index it by the samples of the batch."
        raise ArgumentError(message("scores.excess", "reference", rule, _kind(reference), remedy))
    return widen(losses.detach()) - widen(reference.detach()).to(losses.device)


def reference_losses(model: nn.Module, criterion: Callable[..., Tensor], batches: Iterable[Any]) -> Tensor:
    """The loss of each sample under a model in eval mode, without gradients, in the order of the batches.

    Parameters
    ----------
    model
        The reference model; every part of it is in the mode it was in afterwards.
    criterion
        Returns one loss per sample, or per element: build it with ``reduction="none"``.
    batches
        Each ``(x, y)``, or with more that is not looked at, such as those of a loader that does not shuffle and drops
        no last batch.

    Returns
    -------
    Tensor
        The losses of all batches in one tensor, at least in single precision, on the device of the outputs.

    Examples
    --------
    >>> x, y = torch.randn(10, 4), torch.randint(0, 3, (10,))
    >>> loader = DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=4)
    >>> reference_losses(nn.Linear(4, 3), nn.CrossEntropyLoss(reduction="none"), loader).shape
    torch.Size([10])
    """
    where = "scores.reference_losses"
    _check_in_order(batches, where)
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            found = [widen(weighted_losses(criterion, (model(x), y), {}, None, where)) for x, y, *_ in batches]
    finally:
        for module, training in modes:
            module.training = training
    if not found:
        raise ArgumentError(message(where, "batches", "hold at least one batch", "none", "Pass a loader, or a list."))
    return torch.cat(found)


def _check_in_order(batches: Iterable[Any], where: str) -> None:
    """Raise if a loader does not go through all of its data in order: losses are found again by position."""
    if not isinstance(batches, DataLoader) or not hasattr(batches.dataset, "__len__"):
        return
    sampler = getattr(batches.batch_sampler, "sampler", batches.batch_sampler) or batches.sampler
    got = None if isinstance(sampler, SequentialSampler) else f"a loader with a {type(sampler).__name__}"
    if batches.drop_last and len(batches.dataset) % (batches.batch_size or 1):
        got = "a loader that drops the last batch"
    if got is not None:
        remedy = "Build the loader with shuffle=False and drop_last=False."
        raise ArgumentError(message(where, "batches", "go through the data once, in order", got, remedy))


def _check_outputs(outputs: Any, targets: Any, where: str) -> None:
    """Raise unless the classes are seen to lie in the second dimension."""
    if not isinstance(outputs, Tensor) or not outputs.is_floating_point() or outputs.dim() < 2 or outputs.shape[1] < 2:
        rule = "be logits of at least two classes, shape (s, C, ...)"
        remedy = "Logits z of a yes or no are torch.stack((torch.zeros_like(z), z), 1)."
        raise ArgumentError(message(where, "outputs", rule, _kind(outputs), remedy))
    if _are_classes(targets) and targets.shape != _shape_of(outputs):
        rule = f"be classes of shape {_shape_of(outputs)}"
        remedy = "Classes are the second dimension of outputs: transpose those of shape (s, T, C)."
        raise ArgumentError(message(where, "targets", rule, _kind(targets), remedy))


def _kind(value: Any) -> str:
    """What a value is, for a message."""
    return f"{value.dtype} of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def _are_classes(targets: Any) -> bool:
    return isinstance(targets, Tensor) and not targets.is_floating_point() and targets.dtype != torch.bool


def _shape_of(outputs: Tensor) -> tuple[int, ...]:
    """The shape of the classes that outputs predict."""
    return (*outputs.shape[:1], *outputs.shape[2:])


def _in_parts(score: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """The scores of a few samples after the other, where outputs are large."""
    outputs = tensors[0]
    if outputs.numel() <= _AT_ONCE:
        return score(*tensors)
    size = max(1, _AT_ONCE // outputs[0].numel())
    return torch.cat([score(*parts) for parts in zip(*(tensor.split(size) for tensor in tensors), strict=True)])
