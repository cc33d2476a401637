"""Whether two computations of the same numbers agree up to rounding."""

from typing import Any

import torch
from torch import Tensor

from ordered_sgd.selection import widen


def agree(a: Tensor, b: Tensor) -> bool:
    """Whether two computations of the same losses differ by no more than rounding; reads from the device."""
    a, tolerance = widen(a.detach()), rounding(dtype_around(a))
    return torch.allclose(a, b.to(a.dtype), rtol=tolerance, atol=tolerance, equal_nan=True)


def rounding(dtype: torch.dtype) -> float:
    """How far two computations of the same losses or gradients may be apart, relative to their size.

    In float32 rounding reaches 2e-4, for a triplet loss; samples that influence each other start near 1e-2.
    """
    return {torch.float64: 1e-6, torch.float32: 1e-3}.get(dtype, 5e-2)


def dtype_around(values: Tensor) -> torch.dtype:
    """The dtype that values were computed in: that of an autocast around them, or their own."""
    kind = values.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else values.dtype


def is_inexact(value: Any) -> bool:
    """Whether a value is a tensor of real or complex floating-point numbers."""
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


def largest_difference(found: Any, expected: Any) -> float | None:
    """The largest error of the results relative to their size; None when they are not finite."""
    pairs = _pairs(found, expected).values()
    scale = max((float(b.abs().max()) for _, b in pairs if b.numel()), default=0.0)  # a rank may hold none of them
    worst = 0.0
    for a, b in pairs:
        if not bool(a.isfinite().all() & b.isfinite().all()):
            return None
        if b.numel():
            worst = max(worst, float((a - b).abs().max()) / (float(b.abs().max()) + 1e-3 * scale + 1e-30))
    return worst


def differences(found: Any, expected: Any) -> dict[int, float]:
    """The largest error of each result relative to that result's size, by the result's position.

    Results that cannot be compared are left out: those that are not finite, and those that are zero in both.
    """
    errors = {}
    for i, (a, b) in _pairs(found, expected).items():
        if b.numel() and bool(a.isfinite().all() & b.isfinite().all()):
            size, error = float(b.abs().max()), float((a - b).abs().max())
            if size or error:
                errors[i] = error / size if size else float("inf")
    return errors


def _pairs(found: Any, expected: Any) -> dict[int, tuple[Tensor, Tensor]]:
    """Results of two computations that rounding may change, side by side, by their position."""
    both = enumerate(zip(found, expected, strict=True))
    # None: not used at all, as a branch that none of the samples takes
    return {i: (torch.zeros_like(b) if a is None else a, b) for i, (a, b) in both if is_inexact(b)}
