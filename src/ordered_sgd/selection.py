"""Line 4 of Algorithm 1: the q samples of a mini-batch with the largest losses.

Ties go to the lower index (the paper's footnote), NaN ranks as the largest, and positions come back in ascending order,
so that the same losses always give the same rows.
"""

import numpy as np
import torch
from torch import Tensor

from ordered_sgd.errors import ArgumentError, message
from ordered_sgd.rules import resolve_q

# Below this many losses sorting all of them is faster than looking for the q-th largest (measured on the CPU:
# 10 against 15 us at 256 losses, 41 against 22 us at 1024).
_SORT_BELOW = 512


def select_top_q(losses: Tensor, q: float) -> Tensor:
    """Positions of the q largest losses, ascending.

    Parameters
    ----------
    losses
        One loss per sample, shape (s,) or (s, 1), any float dtype and device.
    q
        A count, or a share of the batch in (0, 1]; more than the batch means all of it.

    Returns
    -------
    Tensor
        int64 positions on the device of `losses`. Equal losses: the lower index is kept. NaN counts as the largest.

    Examples
    --------
    >>> select_top_q(torch.tensor([0.1, 2.0, 0.5, 2.0]), q=3)
    tensor([1, 2, 3])
    >>> select_top_q(torch.ones(8), q=0.25)
    tensor([0, 1])
    """
    values = check_losses(losses, "select_top_q")
    if values.requires_grad:
        values = values.detach()
    return top_rows(values, resolve_q(q, values.shape[0], "select_top_q"))


def random_rows(s: int, q: int, generator: torch.Generator) -> Tensor:
    """Positions of q of s samples drawn at random, ascending: the control that every comparison needs.

    >>> random_rows(64, 4, torch.Generator().manual_seed(0)).shape
    torch.Size([4])
    """
    rows: Tensor = torch.randperm(s, generator=generator, device=generator.device)[:q].sort().values
    return rows


def check_losses(
    losses: Tensor,
    where: str,
    remedy: str = 'Build the criterion with reduction="none".',
    *,
    empty: bool = False,
) -> Tensor:
    """The losses as shape (s,), or one clear error; (s, 1) is squeezed, and s may be 0 if `empty`."""
    if type(losses) is Tensor and losses.dim() == 1 and losses.dtype is torch.float32 and losses.shape[0] > 0:
        return losses  # the usual case first: on 64 losses every check counts
    rule = "be one loss per sample, shape (s,)"
    if not isinstance(losses, Tensor):
        raise ArgumentError(message(where, "losses", rule, type(losses).__name__, "Pass a torch tensor."))
    if losses.dim() == 0:
        raise ArgumentError(message(where, "losses", rule, "a scalar", remedy))
    if losses.dim() == 2 and losses.shape[1] == 1:
        losses = losses.squeeze(1)
    if losses.dim() != 1:
        advice = "Reduce the other dimensions, as in losses.flatten(1).mean(1), or let a loss do it by "
        advice += 'reduce="mean". To order tokens or pixels, use '
        advice += 'OrderedLoss(unit="token"), or ordered_linear_cross_entropy for a language model, in a plain loop.'
        raise ArgumentError(message(where, "losses", rule, f"shape {tuple(losses.shape)}", advice))
    if losses.shape[0] == 0 and not empty:
        raise ArgumentError(message(where, "losses", "hold at least one sample", "none", "Skip empty batches."))
    if not losses.is_floating_point():
        raise ArgumentError(message(where, "losses", "be floating-point", losses.dtype, "Use losses.float()."))
    return losses


def mean(values: Tensor) -> Tensor:
    """Mean in the dtype of the values, half precision in float32."""
    return widen(values).mean()


def row_weights(losses: Tensor, rows: Tensor | None, q: float) -> Tensor:
    """1/q at the chosen rows (None: all) and zero elsewhere: the gradient of their mean with respect to the losses."""
    if rows is None or rows.shape[0] == losses.shape[0]:
        return torch.full_like(losses, 1 / q)
    if losses.is_cpu and losses.dtype == torch.float32:
        weights = np.zeros(losses.shape[0], dtype=np.float32)
        weights[rows.numpy()] = 1 / q
        return torch.from_numpy(weights)
    return torch.zeros_like(losses).index_fill_(0, rows, 1 / q)


def widen(values: Tensor) -> Tensor:
    """The values in float32 if they have fewer bits, else as they are."""
    return values if values.dtype in (torch.float32, torch.float64) else values.float()


def mean_of_rows(values: Tensor, rows: Tensor) -> Tensor:
    """Mean of the chosen values."""
    if rows.shape[0] == values.shape[0]:
        return mean(values)  # no gather: all rows are plain mini-batch SGD bit for bit
    return mean(values.index_select(0, rows))


def select_rows(tensor: Tensor, dim: int, rows: Tensor) -> Tensor:
    """The chosen rows of a tensor, in the memory layout that it has: `index_select` would forget channels-last."""
    if dim == 0 and tensor.dim() < 4 and tensor.is_contiguous():  # of four dimensions, it may be channels-last as well
        return tensor.index_select(0, rows)
    s, shape, strides = tensor.shape[dim], tensor.shape, tensor.stride()
    row = tensor.numel() // max(s, 1)
    others = [(size - 1) * stride for d, (size, stride) in enumerate(zip(shape, strides, strict=True)) if d != dim]
    if strides[dim] == row and sum(others) == row - 1:  # every row is one block of memory: copy the blocks
        blocks = tensor.as_strided((s, row), (row, 1)).index_select(0, rows)
        return blocks.as_strided((*shape[:dim], rows.shape[0], *shape[dim + 1 :]), strides)
    order = sorted(range(tensor.dim()), key=lambda d: -strides[d])
    taken = tensor.permute(order).index_select(order.index(dim), rows)
    return taken.permute(sorted(range(tensor.dim()), key=order.__getitem__))


def top_rows(values: Tensor, q: int, r: int = 0) -> Tensor:
    """Positions of the q largest of checked, detached values after the r largest, ascending."""
    s = values.shape[0]
    if q >= s:
        return torch.arange(s, device=values.device)
    if not values.is_cpu or torch.compiler.is_compiling():
        return _top_rows_torch(values, q, r)
    try:
        array = widen(values).numpy()  # NumPy has no bfloat16 and is slow on float16; the order stays
    except RuntimeError:  # a tensor without plain memory of its own: inside torch.func, fake, or negated when read
        return _top_rows_torch(values, q, r)
    return torch.from_numpy(_top_rows_numpy(array, q, r))


def _top_rows_torch(values: Tensor, q: int, r: int = 0) -> Tensor:
    """The specification, and what runs on accelerators and inside torch.compile: no step waits for the device."""
    order = widen(values).sort(descending=True, stable=True).indices
    rows: Tensor = order[r : r + q].sort().values
    return rows


def _top_rows_numpy(values: np.ndarray, q: int, r: int = 0) -> np.ndarray:
    """The same on the CPU, faster: a stable sort for a usual batch, a partition for a large one."""
    s = values.shape[0]
    if s < _SORT_BELOW:
        order: np.ndarray = (-values).argsort(kind="stable")
        smallest = values[order[-1]]
        if smallest != smallest:  # NaN sorts last, but ranks as the largest: sort the reversed array upwards instead
            order = np.flip(s - 1 - values[::-1].argsort(kind="stable")).copy()
        rows = order[r : r + q]
        rows.sort()
        return rows
    if r:
        both = _top_rows_numpy(values, r + q) if r + q < s else np.arange(s)
        return np.delete(both, _top_rows_numpy(values[both], r))
    threshold = np.partition(values, s - q)[s - q]  # the q-th largest; NaN sorts last, as the largest
    if np.isnan(threshold):
        return np.flatnonzero(np.isnan(values))[:q]
    kept = ~(values <= threshold)  # larger than the q-th, or NaN
    ties = q - np.count_nonzero(kept)
    kept[np.flatnonzero(values == threshold)[:ties]] = True
    return np.flatnonzero(kept)
