"""NumPy's .npy and .npz files, read without pickles, without evaluating their headers, and within bounds."""

import math
import re
import struct
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ordered_sgd.errors import DataError
from ordered_sgd.lab.data.files import fault, opened, reason, take

AGAIN = "Save the arrays again with numpy.savez."
_RATIO, _FLOOR = 200, 1 << 26  # an array may be that many times as large as its file, or that many bytes: no bombs
_SIDES = 4  # images have four, nothing here has more
_LONGEST = 1 << 12  # bytes of a header; NumPy writes 128
# Fixed-width numbers and text; Python 2 wrote its long integers with an L.
_HEADER = re.compile(
    r"\{'descr': '([<>|](?:[iu][1248]|f[248]|b1|[SU][1-9]\d{0,4}))', "
    r"'fortran_order': (True|False), 'shape': \(((?:\d{1,18}L?, ?)*(?:\d{1,18}L?)?)\),? ?\} *\n"
)
# zipfile raises whatever it stumbles over; RuntimeError is an encrypted file, NotImplementedError an unknown method
_FAULTS = (zipfile.BadZipFile, RuntimeError, EOFError, OSError, ValueError, LookupError, zlib.error, struct.error)


def read_npy(path: Path, limit: int) -> NDArray[Any]:
    """The array of a .npy file of at most `limit` bytes."""
    with opened(path, limit) as handle:
        return _read_array(handle, path, limit, "Save it again with numpy.save.")


def read_npz(path: Path, wanted: tuple[tuple[str, ...], ...]) -> dict[str, NDArray[Any]]:
    """The arrays of a .npz file under the first set of names that it has all of; case does not count."""
    with opened(path, None) as handle:
        limit = max(_FLOOR, _RATIO * handle.seek(0, 2))
        try:
            return _read_members(handle, path, wanted, limit)
        except DataError:
            raise
        except _FAULTS as error:
            raise fault(path, "be a whole .npz file", reason(error), AGAIN) from error


def _read_members(
    handle: IO[bytes], path: Path, wanted: tuple[tuple[str, ...], ...], limit: int
) -> dict[str, NDArray[Any]]:
    with zipfile.ZipFile(handle) as archive:
        members = {info.filename.lower().removesuffix(".npy"): info for info in archive.infolist()}
        names = next((names for names in wanted if all(name in members for name in names)), None)
        if names is None:
            rule = "have the arrays " + ", or ".join(" and ".join(names) for names in wanted)
            got = ", ".join(name[:40] for name in list(members)[:8]) or "none"
            raise fault(path, rule, got, AGAIN)
        arrays = {}
        for name in names:
            info = members[name]
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # LZMA allocates what it is told
                raise fault(path, "be stored or deflated", f"another compression of {name}", AGAIN)
            with archive.open(info) as member:
                arrays[name] = _read_array(member, path, limit, AGAIN)
        return arrays


def _read_array(handle: IO[bytes], path: Path, limit: int, remedy: str) -> NDArray[Any]:
    """The array that an open .npy file holds; its header is compared with NumPy's form, not evaluated."""
    start = handle.read(8)
    wide = start[6:7] in (b"\x02", b"\x03")
    field = handle.read(4 if wide else 2)
    if start[:6] != b"\x93NUMPY" or len(field) < (4 if wide else 2):
        raise fault(path, "hold arrays in NumPy's format", f"bytes {start[:6].hex() or 'none'}", remedy)
    length = int.from_bytes(field, "little")
    header = handle.read(min(length, _LONGEST)).decode("latin-1")
    match = _HEADER.fullmatch(header)
    if match is None:
        raise fault(path, "hold plain arrays of numbers or text", "another header", remedy)
    dtype = np.dtype(match[1])
    shape = tuple(int(side.rstrip("L")) for side in re.split(", ?", match[3]) if side)
    count = dtype.itemsize * math.prod(shape)
    if not 1 <= len(shape) <= _SIDES or count == 0:
        raise fault(path, f"hold arrays of 1 to {_SIDES} dimensions that are not empty", f"shape {shape[:8]}", remedy)
    if count > limit:
        raise fault(path, f"unpack to at most {limit:,} bytes", f"{count:,} in a header", remedy)
    taken = take(handle, count, path)
    if dtype.kind == "U" and taken.view(dtype.byteorder + "u4").max() > 0x10FFFF:  # NumPy would make str of it and fail
        raise fault(path, "hold characters that exist", "others", remedy)
    values = taken.view(dtype)
    return values.reshape(shape, order="F" if match[2] == "True" else "C").astype(dtype.newbyteorder("="), copy=False)
