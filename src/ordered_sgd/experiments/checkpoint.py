"""Checkpoints: a file that is either whole or not there, read without running anything that is in it."""

import os
import pickle
from pathlib import Path
from typing import Any

import torch

from ordered_sgd.errors import RecordError, message


def save_checkpoint(state: dict[str, Any], path: Path) -> None:
    """Write the state and put it in place of the old one in one go."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as RuntimeError
        part.unlink(missing_ok=True)
        reason = error.strerror if isinstance(error, OSError) else str(error).splitlines()[0]
        remedy = "Free some space or set ORDERED_SGD_HOME to a folder that can be written."
        raise RecordError(message("checkpoint", str(path), "be writable", reason, remedy)) from error


def load_checkpoint(path: Path) -> dict[str, Any] | None:
    """The state that was saved, or None when there is none."""
    if not path.exists():
        return None
    try:
        state: dict[str, Any] = torch.load(path, weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError, KeyError, pickle.UnpicklingError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:120]
        remedy = "Remove it: the run then starts from its beginning."
        raise RecordError(message("checkpoint", str(path), "be a whole checkpoint", reason, remedy)) from error
    return state
