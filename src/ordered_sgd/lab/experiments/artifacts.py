"""What a run leaves beside its numbers per epoch: which samples were kept, their losses, the boundary in the plane."""

import io
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ordered_sgd.diagnostics.tracker import SelectionTracker
from ordered_sgd.lab.data.dataset import Dataset

SELECTION = "selection"  # counts (n,): how often each training sample was kept
BOUNDARY = "boundary"  # x, y (m,): a grid; scores (m, m): how much class 1 leads at (x[j], y[i])
TRACKER = "tracker"  # the state of a SelectionTracker, the labels, and the hardest samples where they are images
HARDEST = 20  # images that are kept
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


class Tracked(NamedTuple):
    """A tracker as it was when the run was over, positions of the hardest samples, and these if they are images."""

    tracker: SelectionTracker
    hardest: NDArray[np.int64]
    images: NDArray[np.uint8] | None


def pack_tracker(tracker: SelectionTracker, data: Dataset) -> bytes:
    """A tracker of the runs on a data set as the content of an artifact; means of losses are rounded to float32."""
    state = {name: np.asarray(value) for name, value in tracker.state_dict().items()}
    with np.errstate(over="ignore"):  # of a run that diverged they may be infinite
        state |= {name: state[name].astype(np.float32) for name in ("mean", "squares")}
    state["hardest"] = tracker.hardest(HARDEST)
    if data.classes:
        state |= {"y": data.y.astype(np.int32), "classes": np.array(data.classes)}
    if data.images:
        state["images"] = data.x[state["hardest"]]
    return pack(**state)


def _listed(names: NDArray[Any] | None) -> list[str] | None:
    return None if names is None else names.tolist()


def unpack_tracker(content: bytes) -> Tracked:
    """What `pack_tracker` was given, as far as it is kept."""
    state = unpack(content)
    tracker = SelectionTracker(int(state["n"]), y=state.get("y"), classes=_listed(state.get("classes")))
    tracker.load_state_dict(state)
    return Tracked(tracker, state["hardest"], state.get("images"))
