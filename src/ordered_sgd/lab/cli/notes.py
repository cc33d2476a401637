"""Warnings as people at a terminal want them: one line each, once, without a line of source code."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

_SILENCE = " Silence: "  # how to silence a warning in Python; a command has no such line


@contextmanager
def noted_warnings() -> Iterator[None]:
    """A block in which every warning is a note on standard error; the same one is not repeated."""
    seen: set[str] = set()

    def note(message: Warning | str, *about: Any, **more: Any) -> None:
        text = " ".join(str(message).partition(_SILENCE)[0].split())
        if text not in seen:
            seen.add(text)
            click.echo(f"note: {text}", err=True)

    with warnings.catch_warnings():
        warnings.showwarning = note
        yield
