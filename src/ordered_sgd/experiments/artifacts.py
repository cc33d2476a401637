"""What a run leaves beside its numbers per epoch: how often each sample was kept, and the boundary in the plane."""

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

SELECTION = "selection"  # counts (n,): how often each training sample was kept
BOUNDARY = "boundary"  # x, y (m,): a grid; scores (m, m): how much class 1 leads at (x[j], y[i])
_GRID, _MARGIN = 161, 0.15  # points along an axis; what the grid shows beyond the samples, in their range


def pack(**arrays: NDArray[Any]) -> bytes:
    """Arrays by name as the content of an artifact."""
    file = io.BytesIO()
    np.savez_compressed(file, allow_pickle=False, **arrays)
    return file.getvalue()


def unpack(content: bytes) -> dict[str, NDArray[Any]]:
    """The arrays that `pack` was given.

    >>> unpack(pack(counts=np.arange(3)))
    {'counts': array([0, 1, 2])}
    """
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        return dict(file)


def grid_around(points: NDArray[Any]) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    """A grid that shows all points (n, 2): its x, its y, and its own points, row by row."""
    low, high = points.min(axis=0), points.max(axis=0)
    margin = _MARGIN * (high - low)
    x, y = (np.linspace(low[i] - margin[i], high[i] + margin[i], _GRID, dtype=np.float32) for i in (0, 1))
    return x, y, np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)
