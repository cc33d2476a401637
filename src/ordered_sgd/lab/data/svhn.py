"""SVHN's MATLAB files: their structure is checked here, their numbers are read by SciPy.

SciPy allocates what a header promises and follows nested cells as deep as they go. So each element is unpacked within
its bounds and compared with the two that SVHN has, ``X`` (32, 32, 3, n) of uint8 and ``y`` (n, 1); only then does
SciPy see it.
"""

import io
import math
import struct
import zlib
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ordered_sgd.lab.data.files import CHUNK, fault, opened, reason

_HEADER = 128
_COMPRESSED, _MATRIX = 15, 14  # element types of MATLAB's format 5
_NUMBER_BYTES = {1: 1, 2: 1, 3: 2, 4: 2, 5: 4, 6: 4, 7: 4, 9: 8, 12: 8, 13: 8}  # element type -> bytes a number
_DOUBLE, _UINT8 = 6, 9  # array classes; numeric ones lie from double to 64-bit integers
_NUMERIC = range(_DOUBLE, 16)
_IMAGE = (32, 32, 3)
_ROOM = 1024  # bytes for the headers of an element


def read_svhn(path: Path, most: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images (n, 3, 32, 32) and the digit (n,) of each; the file's label 10 is digit 0."""
    from scipy import io as scipy_io

    limit = most * (3 * 32 * 32 + 8) + 4 * _ROOM
    with opened(path, limit) as handle:
        checked = _checked(path, handle, limit)
    try:
        with checked:  # frees its bytes before the images are copied
            found = scipy_io.loadmat(checked, variable_names=("X", "y"))
    except Exception as error:  # SciPy promises no exception types
        raise fault(path, "be a MATLAB file that SciPy reads", reason(error)) from error
    x, labels = found["X"], found["y"].ravel()
    n = x.shape[3]
    if not 1 <= n <= most:
        raise fault(path, f"hold 1 to {most:,} images", f"{n:,}")
    if len(labels) != n:
        raise fault(path, "hold as many labels as images", f"{len(labels):,} for {n:,}")
    wrong = np.flatnonzero(~np.isin(labels, np.arange(1, 11)))
    if wrong.size:
        raise fault(path, "hold labels from 1 to 10", f"{labels[wrong[0]]} at position {wrong[0]}")
    return np.ascontiguousarray(x.transpose(3, 2, 0, 1)), labels.astype(np.int64) % 10


def _checked(path: Path, handle: IO[bytes], limit: int) -> io.BytesIO:
    """The file with its elements unpacked, after comparing them with what SVHN must hold."""
    head = handle.read(_HEADER)
    order = {b"\x00\x01IM": "<", b"\x01\x00MI": ">"}.get(head[124:])
    if order is None:
        raise fault(path, "be a MATLAB file of format 5", f"{head[124:].hex() or len(head)} at the end of its header")
    plain = io.BytesIO()
    # the free text of the header stays behind: by a zero in it SciPy would take the file for one of format 4
    plain.write(b"MATLAB 5.0 MAT-file".ljust(116) + bytes(8) + head[124:])
    names: list[str] = []
    while tag := handle.read(8):
        start = plain.tell()
        if len(tag) < 8 or len(names) == 2:
            raise fault(path, "hold the elements X and y alone", "more bytes")
        kind, count = struct.unpack(order + "II", tag)
        if kind not in (_COMPRESSED, _MATRIX):
            raise fault(path, "hold matrices", f"an element of type {kind}")
        if kind == _MATRIX:
            plain.write(tag)
        _copy(path, handle, count, plain, limit, zlib.decompressobj() if kind == _COMPRESSED else None)
        with plain.getbuffer() as view:
            names.append(_check_matrix(path, view[start:], order))
    if sorted(names) != ["X", "y"]:
        raise fault(path, "hold the variables X and y", f"{' and '.join(names) or 'none'}")
    plain.seek(0)
    return plain


def _copy(
    path: Path, handle: IO[bytes], count: int, plain: io.BytesIO, limit: int, packed: "zlib._Decompress | None"
) -> None:
    """Append an element's bytes, unpacked, as long as they stay within the limit."""
    while count:
        piece = handle.read(min(CHUNK, count))
        if not piece:
            raise fault(path, "hold what its headers promise", "an earlier end")
        count -= len(piece)
        while piece:
            out = packed.decompress(piece, CHUNK) if packed else piece
            piece = packed.unconsumed_tail if packed else b""
            if plain.tell() + len(out) > limit:
                raise fault(path, f"unpack to at most {limit:,} bytes", "more")
            plain.write(out)
    if packed and (not packed.eof or packed.unused_data):
        raise fault(path, "hold whole compressed elements", "one that ends too early or too late")


class _Part(NamedTuple):
    """A piece of a matrix: its type and its bytes."""

    kind: int
    data: memoryview


def _parts(path: Path, body: memoryview, order: str) -> list[_Part]:
    """The pieces of a matrix: flags, dimensions, name, numbers."""
    parts: list[_Part] = []
    at = 0
    while at < len(body) and len(parts) < 5:
        if at + 8 > len(body):
            raise fault(path, "hold whole matrices", "one that is cut short")
        kind, count = struct.unpack_from(order + "II", body, at)
        if kind >> 16:  # up to four bytes are packed into the tag itself
            kind, count, start, step = kind & 0xFFFF, kind >> 16, at + 4, 8
        else:
            start, step = at + 8, 8 + count + -count % 8
        parts.append(_Part(kind, body[start : start + count]))
        if len(parts[-1].data) != count:
            raise fault(path, "hold whole matrices", "one that is cut short")
        at += step
    return parts


def _check_matrix(path: Path, view: memoryview, order: str) -> str:
    """The name of the matrix, X or y, once its pieces agree with each other and with what SVHN holds."""
    if len(view) < 8 or struct.unpack_from(order + "II", view) != (_MATRIX, len(view) - 8):
        raise fault(path, "hold matrices of the length they state", "another length")
    parts = _parts(path, view[8:], order)
    kinds = [part.kind for part in parts]
    if kinds[:3] != [6, 5, 1] or len(parts) != 4 or kinds[3] not in _NUMBER_BYTES:
        raise fault(path, "hold matrices of numbers", f"parts of types {kinds}")
    flags, dims, name, numbers = (part.data for part in parts)
    if len(flags) != 8 or not len(dims) or len(dims) % 4 or len(name) > 31:
        raise fault(path, "hold matrices of numbers", "malformed headers")
    said = struct.unpack_from(order + "I", flags)[0]
    shape = struct.unpack(f"{order}{len(dims) // 4}i", dims)
    label = bytes(name).decode("latin-1")
    if said & 0x0800 or said & 0xFF not in _NUMERIC:  # 0x0800: complex
        raise fault(path, "hold real numbers", f"an array of class {said & 0xFF} as {label!r}")
    expected = (*_IMAGE, *shape[-1:]) if label == "X" else (*shape[:1], 1)
    if label not in ("X", "y") or shape != expected or min(shape) < 1:
        raise fault(path, "hold X of shape (32, 32, 3, n) and y of shape (n, 1)", f"{label!r} of shape {shape[:8]}")
    if label == "X" and (said & 0xFF != _UINT8 or kinds[3] != 2):
        raise fault(path, "hold X as unsigned bytes", f"class {said & 0xFF}, type {kinds[3]}")
    if len(numbers) != math.prod(shape) * _NUMBER_BYTES[kinds[3]]:
        raise fault(path, f"hold as many numbers as {label!r} of shape {shape} needs", f"{len(numbers):,} bytes")
    return label
