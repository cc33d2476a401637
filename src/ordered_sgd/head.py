"""`ordered_linear_cross_entropy`: the largest token losses of a language model's head, at the cost of those alone.

Every token is scored without storing its logits. The backward pass reads off the incoming gradient which tokens were
kept, as `selective_backward` does for samples, and computes logits again for these alone. Both passes walk over the
vocabulary in blocks that fit into the processor's cache, so that the weight and its gradient are touched once.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ordered_sgd.amounts import Above
from ordered_sgd.errors import ArgumentError, message
from ordered_sgd.mean import ordered_mean
from ordered_sgd.units import check_mask

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_WHERE = "ordered_linear_cross_entropy"
_LOGITS = 2**20  # held at a time: 4 MB in float32
_TOKENS = 4096  # at a time, so that a block holds at least 256 words


def ordered_linear_cross_entropy(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    q: float | Above,
    *,
    linear_bias: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    mask: Tensor | None = None,
    softcap: float | None = None,
    trim: float = 0,
    mix: float = 0.0,
    cap: float | None = None,
    group: "ProcessGroup | None" = None,
    chunk: int | None = None,
) -> Tensor:
    """Mean of the q largest cross-entropies of the tokens, computed from the input of the output layer.

    The value and the gradients are those of::

        losses = F.cross_entropy(F.linear(input, linear_weight), target, reduction="none")
        ordered_mean(losses, q, unit="token", mask=target != ignore_index)

    but no more than a block of logits exists at any time, and tokens that are not kept cost no backward pass. Losses of
    half-precision inputs are computed in float32. Second derivatives are not supported.

    Parameters
    ----------
    input
        The input of the output layer, shape (..., d).
    linear_weight
        The weight of the output layer, shape (V, d); it may be tied to an embedding.
    target
        One integer per token, below V or equal to `ignore_index`; the shape of `input` without its last dimension.
    q
        A count, a share in (0, 1] of the valid tokens, or `Above` a value; ``q=1.0`` is the plain mean.
    linear_bias
        The bias of the output layer, shape (V,).
    ignore_index
        Tokens with this target are never kept and never counted.
    label_smoothing
        As in `torch.nn.functional.cross_entropy`.
    mask
        True or not zero where a token counts, in the shape of `target`.
    softcap
        Replaces each logit z by ``softcap * tanh(z / softcap)``, as Gemma 2 does.
    trim, mix, cap, group
        As in `ordered_mean`.
    chunk
        Words of the vocabulary per block; by default a block holds about a million logits.

    Examples
    --------
    >>> hidden, weight = torch.randn(2, 6, 8, requires_grad=True), torch.randn(100, 8, requires_grad=True)
    >>> target = torch.randint(100, (2, 6))
    >>> loss = ordered_linear_cross_entropy(hidden, weight, target, q=0.25)
    >>> loss.backward()
    >>> (hidden.grad.abs().sum(-1) > 0).sum()  # a quarter of the 12 tokens
    tensor(3)
    """
    valid = target != ignore_index
    if mask is not None:
        valid = valid & check_mask(target, mask, _WHERE)
    losses = token_losses(
        input,
        linear_weight,
        target,
        linear_bias=linear_bias,
        label_smoothing=label_smoothing,
        valid=valid,
        softcap=softcap,
        chunk=chunk,
    )
    return ordered_mean(losses, q, mask=valid, unit="token", trim=trim, mix=mix, cap=cap, group=group)


def token_losses(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    linear_bias: Tensor | None = None,
    label_smoothing: float = 0.0,
    valid: Tensor | None = None,
    softcap: float | None = None,
    chunk: int | None = None,
) -> Tensor:
    """The cross-entropy of every token, in the shape of `target`; a token without a gradient costs no backward pass.

    The losses of tokens that are not `valid` are 0.
    """
    _check(input, linear_weight, linear_bias, target, label_smoothing, softcap, chunk)
    kind = input.device.type
    if torch.is_autocast_enabled(kind) and input.dtype != torch.float64:
        dtype = torch.get_autocast_dtype(kind)
        input, linear_weight = input.to(dtype), linear_weight.to(dtype)
        linear_bias = None if linear_bias is None else linear_bias.to(dtype)
    valid = torch.ones_like(target, dtype=torch.bool) if valid is None else valid
    losses, _ = torch.ops.ordered_sgd.token_losses(
        input.reshape(-1, input.shape[-1]),
        linear_weight,
        linear_bias,
        target.reshape(-1),
        valid.reshape(-1),
        label_smoothing,
        softcap or 0.0,
        chunk or 0,
    )
    result: Tensor = losses.reshape(target.shape)
    return result


def _check(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    label_smoothing: float,
    softcap: float | None,
    chunk: int | None,
) -> None:
    """Raise one clear error for arguments that do not fit."""
    if weight.dim() != 2 or input.shape[-1:] != weight.shape[1:]:
        rule, got = "have shape (V, d) for an input of shape (..., d)", f"{tuple(weight.shape)}, {tuple(input.shape)}"
        raise ArgumentError(message(_WHERE, "linear_weight", rule, got, "Pass the weight of the output layer."))
    if bias is not None and bias.shape != weight.shape[:1]:
        rule, remedy = "have shape (V,)", "Pass the bias of the output layer."
        raise ArgumentError(message(_WHERE, "linear_bias", rule, tuple(bias.shape), remedy))
    if target.shape != input.shape[:-1] or target.dtype != torch.int64:
        rule, got = "hold one int64 per token", f"{target.dtype} of shape {tuple(target.shape)}"
        raise ArgumentError(message(_WHERE, "target", rule, got, f"Its shape must be {tuple(input.shape[:-1])}."))
    if not 0 <= label_smoothing <= 1:
        remedy = "Use 0 for none."
        raise ArgumentError(message(_WHERE, "label_smoothing", "be in [0, 1]", label_smoothing, remedy))
    if softcap is not None and not softcap > 0:
        raise ArgumentError(message(_WHERE, "softcap", "be positive", softcap, "Use None for none."))
    if chunk is not None and chunk < 1:
        raise ArgumentError(message(_WHERE, "chunk", "be at least 1", chunk, "Leave it out for blocks that fit."))


@torch.library.custom_op("ordered_sgd::token_losses", mutates_args=())
def _losses(
    rows: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    valid: Tensor,
    smoothing: float,
    softcap: float,
    chunk: int,
) -> tuple[Tensor, Tensor]:
    """The losses of all rows, and the logarithms of their normalizers; both 0 where not valid."""
    losses = rows.new_zeros(rows.shape[0], dtype=_wide(rows.dtype))
    norms = torch.zeros_like(losses)
    words = weight.shape[0]
    for some in valid.nonzero().squeeze(1).split(_TOKENS):
        part, goal = rows.index_select(0, some), target.index_select(0, some)
        if goal.is_cpu:
            _check_words(goal, words)
        # A target outside the vocabulary keeps its NaN: on a device it could not be refused without a wait.
        of_goal, sums, totals = norms.new_full(goal.shape, torch.nan), [], norms.new_zeros(goal.shape)
        for block in _blocks(words, part.shape[0], chunk):
            logits = _logits(part, weight, bias, softcap, block)
            place = goal - block.start
            here = (place >= 0) & (place < logits.shape[1])
            found = logits.gather(1, place.clamp(0, logits.shape[1] - 1)[:, None]).squeeze(1)
            of_goal = torch.where(here, found, of_goal)
            if smoothing:
                totals += logits.sum(1)
            # -inf minus -inf would be NaN in a block of words that are all forbidden
            largest = logits.amax(1, keepdim=True).clamp(min=torch.finfo(logits.dtype).min)
            sums.append(logits.sub_(largest).exp_().sum(1).log_() + largest.squeeze(1))
        norm = torch.stack(sums, 1).logsumexp(1)
        norms[some] = norm
        losses[some] = norm - ((1 - smoothing) * of_goal + (smoothing / words) * totals if smoothing else of_goal)
    return losses, norms


def _check_words(goal: Tensor, words: int) -> None:
    wrong = goal[(goal < 0) | (goal >= words)]
    if wrong.shape[0]:
        rule, remedy = f"be words from 0 to {words - 1}", "Mark tokens without one by ignore_index or mask."
        raise ArgumentError(message(_WHERE, "target", rule, int(wrong[0]), remedy))


def _blocks(words: int, tokens: int, chunk: int) -> Iterator[slice]:
    """The vocabulary in blocks of so many words, of which `tokens` logits each fit into the cache."""
    size = chunk or max(1, _LOGITS // max(tokens, 1))
    for start in range(0, words, size):
        yield slice(start, min(start + size, words))


def _wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype of losses."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _logits(rows: Tensor, weight: Tensor, bias: Tensor | None, softcap: float, block: slice) -> Tensor:
    """The logits of a block of words, in float32 at least."""
    logits = F.linear(rows, weight[block], None if bias is None else bias[block]).to(_wide(rows.dtype))
    return logits.div_(softcap).tanh_().mul_(softcap) if softcap else logits


@_losses.register_fake
def _(rows: Tensor, *given: Any) -> tuple[Tensor, Tensor]:
    losses = rows.new_empty(rows.shape[0], dtype=_wide(rows.dtype))
    return losses, torch.empty_like(losses)


@torch.library.custom_op("ordered_sgd::token_losses_backward", mutates_args=())
def _gradients(
    gradient: Tensor,
    rows: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    valid: Tensor,
    norms: Tensor,
    smoothing: float,
    softcap: float,
    chunk: int,
    wanted: list[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of rows, weight and bias, computed for the rows that have one; empty if not wanted."""
    of_rows = torch.zeros_like(rows) if wanted[0] else rows.new_empty(0)
    of_bias = norms.new_zeros(weight.shape[0]) if wanted[2] else norms.new_empty(0)
    parts = ((gradient != 0) & valid).nonzero().squeeze(1).split(_TOKENS)
    # One part writes the gradient of a block of words once; over several the sum is taken in float32 at least.
    once, dtype = len(parts) == 1, weight.dtype if len(parts) == 1 else norms.dtype
    of_weight = torch.zeros_like(weight, dtype=dtype) if wanted[1] else weight.new_empty(0)
    for some in parts:
        part, goal = rows.index_select(0, some), target.index_select(0, some)
        norm, scale = norms.index_select(0, some)[:, None], gradient.index_select(0, some)[:, None]
        of_part = torch.zeros_like(part, dtype=norms.dtype)
        for block in _blocks(weight.shape[0], part.shape[0], chunk):
            logits = _logits(part, weight, bias, softcap, block)
            slope = 1 - (logits / softcap).square() if softcap else None
            pull = logits.sub_(norm).exp_()
            if smoothing:
                pull.sub_(smoothing / weight.shape[0])
            place = goal - block.start
            here = (place >= 0) & (place < pull.shape[1])
            of_goal = here[:, None].to(pull) * (smoothing - 1)
            pull.scatter_add_(1, place.clamp(0, pull.shape[1] - 1)[:, None], of_goal)
            pull.mul_(scale)
            if slope is not None:
                pull.mul_(slope)
            if wanted[2]:
                of_bias[block] += pull.sum(0)
            pull = pull.to(rows.dtype)
            if wanted[0]:
                of_part += pull @ weight[block]
            if wanted[1] and once:
                torch.mm(pull.t(), part, out=of_weight[block])
            elif wanted[1]:
                of_weight[block] += pull.t() @ part
        if wanted[0]:
            of_rows[some] = of_part.to(rows.dtype)
    return of_rows, of_weight.to(weight.dtype), of_bias.to(weight.dtype)


@_gradients.register_fake
def _(gradient: Tensor, rows: Tensor, weight: Tensor, *given: Any) -> tuple[Tensor, Tensor, Tensor]:
    wanted = given[-1]
    return (
        torch.empty_like(rows) if wanted[0] else rows.new_empty(0),
        torch.empty_like(weight) if wanted[1] else weight.new_empty(0),
        weight.new_empty(weight.shape[0]) if wanted[2] else weight.new_empty(0),
    )


def _remember(ctx: Any, inputs: Any, output: Any) -> None:
    rows, weight, bias, target, valid, smoothing, softcap, chunk = inputs
    ctx.save_for_backward(rows, weight, bias, target, valid, output[1])
    ctx.options = smoothing, softcap, chunk
    ctx.mark_non_differentiable(output[1])


def _backward(ctx: Any, gradient: Tensor, _: Any) -> tuple[Tensor | None, ...]:
    wanted = list(ctx.needs_input_grad[:3])
    found = torch.ops.ordered_sgd.token_losses_backward(gradient, *ctx.saved_tensors, *ctx.options, wanted)
    return *(g if asked else None for g, asked in zip(found, wanted, strict=True)), None, None, None, None, None


_losses.register_autograd(_backward, setup_context=_remember)
