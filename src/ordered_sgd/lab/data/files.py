"""Files that may lie: read with bounded memory, and every fault a `DataError` that names the file and the reason."""

import gzip
import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

import numpy as np
from numpy.typing import NDArray

from ordered_sgd.errors import DataError, message

CHUNK = 1 << 20  # bytes read at a time
_SLACK = 1 << 16  # room for gzip's own header, which may carry a name and a comment
REPLACE = "Replace it by a whole copy; `osgd data verify` checks the published files."


def fault(path: Path, rule: str, got: object, remedy: str = REPLACE) -> DataError:
    """The error to raise about a file.

    >>> fault(Path("a.gz"), "begin with 1f8b", "0000", "Replace it.")
    DataError('load: a.gz must begin with 1f8b; got 0000. Replace it.')
    """
    return DataError(message("load", str(path), rule, got, remedy))


def reason(error: Exception) -> str:
    """What an exception says, on one line of bounded length."""
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(f"{said or type(error).__name__}"[:200].split()).rstrip(".")


@contextmanager
def opened(path: Path, limit: int | None, *, unpack: bool = False) -> Iterator[IO[bytes]]:
    """A regular file of at most `limit` bytes, open for reading; with `unpack`, what a gzip file holds.

    What goes wrong in the body of the ``with`` is a `DataError` too: truncation, a wrong check sum, a failing disk.
    """
    try:
        about = os.stat(path)
        if not stat.S_ISREG(about.st_mode):  # opening a pipe would wait for ever
            raise fault(path, "be a regular file", "a folder, a pipe or a device")
        if limit is not None and about.st_size > limit + _SLACK * unpack:
            raise fault(path, f"take at most {limit:,} bytes", f"{about.st_size:,}")
        with open(path, "rb") as plain:
            packed = unpack and plain.read(2) == b"\x1f\x8b"
            plain.seek(0)
            if not packed:
                yield plain
                return
            with gzip.GzipFile(fileobj=plain) as unpacked:
                yield cast(IO[bytes], unpacked)
    except FileNotFoundError as error:
        raise fault(path, "exist", "no such file", "Check the path.") from error
    except (OSError, EOFError, zlib.error) as error:
        raise fault(path, "be readable to its end", reason(error)) from error


def take(handle: IO[bytes], count: int, path: Path) -> NDArray[np.uint8]:
    """The next `count` bytes of an open file; fewer, or more to come, is a fault."""
    try:
        taken = np.empty(count, np.uint8)
    except MemoryError as error:
        raise fault(path, "fit into memory", f"{count:,} bytes", "Use a machine with more memory.") from error
    at = 0
    while at < count:
        piece = handle.read(min(CHUNK, count - at))
        if not piece:
            raise fault(path, f"hold {count:,} bytes after its header", f"{at:,}")
        taken[at : at + len(piece)] = np.frombuffer(piece, np.uint8)
        at += len(piece)
    if handle.read(1):  # a gzip file's check sum is compared here
        raise fault(path, f"end {count:,} bytes after its header", "more bytes")
    return taken


def read_plain(path: Path, limit: int) -> bytes:
    """All bytes of a plain file of at most `limit` bytes."""
    with opened(path, limit) as handle:
        return handle.read(
            os.fstat(handle.fileno()).st_size
        )  # a number: reading to the end would follow a growing file
