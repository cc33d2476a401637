"""Small files in the formats of the readers: whole ones, to be loaded or spoilt."""

import gzip
import io
import pickle
import struct
import zipfile

import numpy as np
from scipy import io as scipy_io

HEADER = "MATLAB 5.0 MAT-file, made for a test".ljust(116).encode()


def images(n: int, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, *shape), dtype=np.uint8)


def labels(n: int, classes: int = 10) -> np.ndarray:
    return np.arange(n) % classes


def idx(values: np.ndarray, *, kind: int = 8, dims: tuple[int, ...] | None = None) -> bytes:
    dims = values.shape if dims is None else dims
    return bytes((0, 0, kind, len(dims))) + struct.pack(f">{len(dims)}I", *dims) + values.astype(np.uint8).tobytes()


def packed(data: bytes) -> bytes:
    return gzip.compress(data, compresslevel=1, mtime=0)


def batch(n: int, *, key: str = "labels", text: bool = False) -> dict:
    """A CIFAR batch; with `text`, the keys are str."""
    parts = {
        "batch_label": b"testing batch",
        key: labels(n).tolist(),
        "data": images(n, (3072,)),
        "filenames": [b"name_%d.png" % at for at in range(n)],
    }
    return parts if text else {name.encode(): part for name, part in parts.items()}


def pickled(n: int, *, key: str = "labels", protocol: int = 2) -> bytes:
    return pickle.dumps(batch(n, key=key), protocol=protocol)


def short(text: bytes) -> bytes:
    """SHORT_BINSTRING, the str of Python 2."""
    return b"U" + bytes((len(text),)) + text


def python2_pickle(n: int, *, module: bytes = b"numpy.core.multiarray", key: bytes = b"labels") -> bytes:
    """A batch as CIFAR's makers wrote it: Python 2, protocol 2."""
    pixels = images(n, (3072,)).tobytes()
    array = (
        b"c" + module + b"\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + short(b"b") + b"\x87R"
        b"(K\x01" + struct.pack("<cH", b"M", n) + struct.pack("<cH", b"M", 3072) + b"\x86"
        b"cnumpy\ndtype\n"
        + short(b"u1")
        + b"K\x00K\x01\x87R(K\x03"
        + short(b"|")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        b"\x89T" + struct.pack("<I", len(pixels)) + pixels + b"tb"
    )
    numbers = b"](" + b"".join(b"K" + bytes((label,)) for label in labels(n).tolist()) + b"e"
    return b"\x80\x02}q\x01(" + short(key) + numbers + short(b"data") + array + b"u."


def mat(n: int, *, compressed: bool = True, **changes: object) -> bytes:
    """SVHN's X and y; `changes` replace or add variables."""
    variables = {"X": images(n, (3, 32, 32)).transpose(2, 3, 1, 0), "y": (labels(n) + 1).reshape(n, 1).astype(np.uint8)}
    file = io.BytesIO()
    kept = {name: value for name, value in {**variables, **changes}.items() if value is not None}
    scipy_io.savemat(file, kept, do_compression=compressed)
    return file.getvalue()


def semeion(n: int) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 2, (n, 256))
    hot = np.eye(10, dtype=int)[labels(n)]
    rows = zip(pixels, hot, strict=True)
    text = (" ".join([*(f"{p:.4f}" for p in row), *map(str, one)]) + " \r\n" for row, one in rows)
    return "".join(text).encode()


def npy(values: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, values, allow_pickle=True)
    return file.getvalue()


def npz(compressed: bool = False, **arrays: np.ndarray) -> bytes:
    file = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(file, **arrays)
    return file.getvalue()


def zipped(members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file.getvalue()


def table(n: int, word: bool = True) -> bytes:
    rng = np.random.default_rng(0)
    rows = ["width,height,kind"] + [
        f"{a:.3f},{b:.3f},{['cat', 'dog'][at % 2] if word else at % 3}"
        for at, (a, b) in enumerate(rng.normal(size=(n, 2)))
    ]
    return "\n".join(rows).encode()
