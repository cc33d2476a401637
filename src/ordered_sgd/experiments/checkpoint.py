"""Checkpoints: a file that is either whole or not there, read without running anything that is in it."""

import contextlib
import os
import zipfile
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
    except (OSError, RuntimeError) as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        remedy = "Free some space or set ORDERED_SGD_HOME to a folder that can be written."
        raise RecordError(message("checkpoint", str(path), "be writable", _reason(error), remedy)) from error


def load_checkpoint(path: Path) -> dict[str, Any] | None:
    """The state that was saved, or None when there is none."""
    if not path.exists():
        return None
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()  # torch does not look at the checksums that it writes
        if damaged is not None:
            raise ValueError(f"a wrong checksum of {damaged}")
        state = torch.load(path, weights_only=True)
        if not isinstance(state, dict):
            raise TypeError(f"a {type(state).__name__}")
    except Exception as error:  # readers of damaged files raise whatever they stumble over
        remedy = "Remove it: the run then starts from its beginning."
        raise RecordError(message("checkpoint", str(path), "be a whole checkpoint", _reason(error), remedy)) from error
    return state


def _reason(error: BaseException) -> str:
    """What went wrong in a few words: the system's, which torch's writer hides behind an error of its own."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return (str(error).splitlines() or [type(error).__name__])[0][:120].rstrip(".")
