"""Checkpoints: a file that is either whole or not there, read without running anything that is in it."""

import contextlib
import hashlib
import io
import os
from pathlib import Path
from typing import Any

import torch

from ordered_sgd.errors import RecordError, first_line, message

_SUM = hashlib.sha256().digest_size  # bytes at the end of the file: torch does not notice a changed weight by itself


def save_checkpoint(state: dict[str, Any], path: Path) -> None:
    """Write the state and put it in place of the old one in one go."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("w+b") as file:
            torch.save(state, file)
            file.seek(0)
            file.write(hashlib.file_digest(file, "sha256").digest())
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
        content = path.read_bytes()
        if hashlib.sha256(content[:-_SUM]).digest() != content[-_SUM:]:
            raise ValueError("another checksum than was written")
        state: dict[str, Any] = torch.load(io.BytesIO(content[:-_SUM]), weights_only=True)
    except (OSError, ValueError) as error:
        remedy = "Remove it: the run then starts from its beginning."
        raise RecordError(message("checkpoint", str(path), "be a whole checkpoint", _reason(error), remedy)) from error
    return state


def _reason(error: BaseException) -> str:
    """What went wrong in a few words: the system's, which torch's writer hides behind an error of its own."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__context__
    return first_line(error)
