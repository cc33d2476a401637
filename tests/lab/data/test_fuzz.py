"""Every reader on spoilt files: it gives what it promises or raises `DataError`, in bounded memory."""

import io
import re
import resource
import struct
import time
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ordered_sgd.errors import DataError
from ordered_sgd.lab.data.cifar import read_batch
from ordered_sgd.lab.data.custom import read_table
from ordered_sgd.lab.data.idx import read_images, read_labels
from ordered_sgd.lab.data.npz import read_npy
from ordered_sgd.lab.data.semeion import read_semeion
from ordered_sgd.lab.data.svhn import read_svhn
from tests.lab.data.small_files import (
    idx,
    images,
    labels,
    mat,
    npy,
    npz,
    packed,
    pickled,
    python2_pickle,
    semeion,
    table,
    zipped,
)

Arrays = tuple[np.ndarray, np.ndarray]
Wrap = Callable[[bytes], bytes]
MOST = 4  # samples that the readers are told to expect at most
EACH = 25_000  # files for each reader: 200,000 in all
EXTRA = 256 << 20  # bytes of address space that reading may take
MESSAGE = re.compile(r"load: .*must .+; got .+\. .+", re.DOTALL)

NUMBERS = [0, 1, 2, 3, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1]
# What the formats themselves are made of: spliced in, it gets further than noise does.
WORDS = [
    *(bytes((code,)) for code in b"()]}teuRb.02N\x85\x86\x87\x93\x94"),  # instructions of pickles
    *(b"q\x01", b"h\x01", b"r\xff\xff\xff\x7f", b"K\x01", b"M\xff\xff", b"J\xff\xff\xff\xff", b"\x8a\xff", b"U\x02O8"),
    *(b"T\xff\xff\xff\x7f", b"\x8e" + b"\xff" * 8, b"\x95" + b"\xff" * 8, b"P1\n"),
    *(b"cos\nsystem\n", b"cnumpy\ndtype\n", b"c_codecs\nencode\n"),
    *(b"\x00\x00\x08\x03", b"\x1f\x8b\x08"),  # IDX, gzip
    *(
        b"\x00\x01IM",
        struct.pack("<II", 14, 2**32 - 1),
        struct.pack("<II", 15, 8),
        b"\x01\x00\x01\x00X\0\0\0",
    ),  # MATLAB
    *(b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06"),
    *(b"\x93NUMPY", b"'|O'", b"(999999999,)", b"(2, 0)", b"'<U9999'", b"True"),
    *(b",", b'"', b"\n", b"\r\n", b"\x00", b"nan", b"1e999", b"-0", b"\xff\xfe", b"\xef\xbb\xbf", b"0.5", b" "),
]


@dataclass(frozen=True)
class Target:
    """A reader, whole files for it, and how what is inside them is wrapped."""

    name: str
    read: Callable[[Path], Arrays]
    files: tuple[tuple[bytes, Wrap], ...]
    suffix: str = ""


def same(data: bytes) -> bytes:
    return data


def mat_of(body: bytes) -> bytes:
    """A MATLAB file whose second element is compressed, however spoilt it is."""
    first = mat(2)
    end = 136 + struct.unpack("<I", first[132:136])[0]
    packed_body = zlib.compress(body, 1)
    return first[:end] + struct.pack("<II", 15, len(packed_body)) + packed_body


def mat_element() -> bytes:
    """The second element, y, as it is before compression."""
    first = mat(2)
    end = 136 + struct.unpack("<I", first[132:136])[0]
    return zlib.decompress(first[end + 8 :])


def member(name: str) -> Wrap:
    """An archive with one spoilt array and one whole one."""
    whole = {"x": npy(np.ones((10, 2))), "y": npy(np.arange(10) % 2)}
    return lambda data: zipped({f"{key}.npy": data if key == name else kept for key, kept in whole.items()})


def deflated(data: bytes) -> bytes:
    return zipped({"x.npy": npy(np.ones((10, 2))), "y.npy": data}, zipfile.ZIP_DEFLATED)


def own(path: Path) -> Arrays:
    data = read_table(path, "test", -1)
    return data.x, data.y


def both(read: Callable[[Path], np.ndarray]) -> Callable[[Path], Arrays]:
    def twice(path: Path) -> Arrays:
        found = read(path)
        return found, found

    return twice


def parquet(rows: int) -> bytes:
    """A small Parquet file of numbers, words and gaps."""
    words = [None if at % 7 == 0 else "ab"[at % 2] for at in range(rows)]
    table = pa.table({"a": [at * 7 % 11 for at in range(rows)], "w": words, "y": [at % 2 for at in range(rows)]})
    with io.BytesIO() as file:
        pq.write_table(table, file)
        return file.getvalue()


X, Y = idx(images(3, (28, 28))), idx(labels(3))
PARTS = {
    "x_train": np.ones((3, 2)),
    "y_train": np.array(["a", "b", "a"]),
    "x_test": np.ones((2, 2), "f4"),
    "y_test": np.array([b"c", b"a"]),
}
TARGETS = [
    Target(
        "IDX images", both(lambda p: read_images(p, MOST, (1, 28, 28))), ((X, same), (packed(X), same), (X, packed))
    ),
    Target("IDX labels", both(lambda p: read_labels(p, MOST, 10)), ((Y, same), (packed(Y), same), (Y, packed))),
    Target(
        "CIFAR",
        lambda p: read_batch(p, MOST, "labels", 10),
        ((python2_pickle(2), same), (pickled(2, protocol=2), same), (pickled(2, protocol=4), same)),
    ),
    Target(
        "SVHN",
        lambda p: read_svhn(p, MOST),
        ((mat(2), same), (mat(2, compressed=False), same), (mat_element(), mat_of)),
    ),
    Target("Semeion", lambda p: read_semeion(p, MOST), ((semeion(3), same),)),
    Target("npy", both(lambda p: read_npy(p, 4096)), ((npy(np.arange(9)), same), (npy(np.array(["a", "bc"])), same))),
    Target(
        "npz",
        own,
        (
            (npz(x=np.ones((10, 2)), y=np.arange(10) % 2), same),
            (npz(True, **PARTS), same),
            (npy(np.ones((10, 2))), member("x")),
            (npy(np.arange(10) % 2), member("y")),
            (npy(np.array(["a", "bc"] * 5)), deflated),
        ),
        ".npz",
    ),
    Target("Parquet", own, ((parquet(40), same),), ".parquet"),
    Target(
        "CSV", own, ((table(9), same), (table(9, word=False), same), (b"1,2,0\n3,4,1\n5,6,0\n7,8,0\n", same)), ".csv"
    ),
]


def spoil(data: bytes, rng: np.random.Generator) -> bytes:
    """The data after one to three accidents."""
    spoilt = bytearray(data)
    for _ in range(rng.integers(1, 4)):
        size = len(spoilt)
        # faults in headers are the interesting ones, and headers lie at the front and, in archives, at the end
        near = [
            int(rng.integers(0, size + 1)),
            int(rng.integers(0, min(size, 200) + 1)),
            max(0, size - int(rng.integers(0, 300))),
        ]
        at = near[rng.integers(3)]
        kind = rng.integers(8)
        if kind == 0:
            del spoilt[at:]
        elif kind == 1 and at < size:
            spoilt[at] ^= 1 << int(rng.integers(8))
        elif kind == 2:
            spoilt[at : at + int(rng.integers(1, 9))] = rng.bytes(int(rng.integers(0, 9)))
        elif kind == 3:
            start = int(rng.integers(0, size + 1))
            spoilt[at:at] = spoilt[start : start + int(rng.integers(1, 400))]
        elif kind == 4:
            del spoilt[at : at + int(rng.integers(1, 100))]
        elif kind == 5:
            width = [1, 2, 4, 8][rng.integers(4)]
            value = NUMBERS[rng.integers(len(NUMBERS))] & (256**width - 1)
            spoilt[at : at + width] = value.to_bytes(width, ["little", "big"][rng.integers(2)])
        elif kind == 6:
            spoilt[at:at] = WORDS[rng.integers(len(WORDS))] * int(rng.choice([1, 1, 1, 2, 50]))
        else:
            word = WORDS[rng.integers(len(WORDS))]
            spoilt[at : at + len(word)] = word
    return bytes(spoilt)


@contextmanager
def bounded_memory() -> Iterator[None]:
    """A process that asks for more than EXTRA bytes on top of what it has gets a MemoryError."""
    if not Path("/proc/self/statm").exists():
        pytest.skip("how much memory the process has is read from Linux's /proc")
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + EXTRA, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def fuzz(target: Target, count: int, path: Path, seed: int) -> Counter:
    """How often spoilt files were read and how often refused; anything else fails, naming what to repeat."""
    outcomes: Counter = Counter()
    for data, wrap in target.files:
        path.write_bytes(wrap(data))
        target.read(path)  # whole, it is read
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        data, wrap = target.files[number % len(target.files)]
        path.write_bytes(wrap(spoil(data, rng)))
        said, x, y = None, np.empty(0), np.empty(0)
        try:
            x, y = target.read(path)
        except DataError as error:
            said = str(error)
        except Exception as error:
            pytest.fail(f"{target.name}, input {number} of seed {seed}: {type(error).__name__}: {error}")
        repeat = f"{target.name}, input {number} of seed {seed}: {said}"
        if said is None:
            assert len(x) == len(y) > 0, repeat
        else:
            assert MESSAGE.fullmatch(said), repeat
            assert str(path) in said, repeat
            assert len(said) < 1500, repeat
        outcomes["read" if said is None else "refused"] += 1
    return outcomes


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_spoilt_files_are_refused_or_read_and_nothing_else(target, tmp_path):
    with bounded_memory():
        outcomes = fuzz(target, 300, tmp_path / f"file{target.suffix}", seed=1)
    assert outcomes["refused"] > 50  # the accidents do spoil something


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_two_hundred_thousand_spoilt_files_are_refused_or_read_and_nothing_else(target, tmp_path):
    start = time.perf_counter()
    with bounded_memory():
        outcomes = fuzz(target, EACH, tmp_path / f"file{target.suffix}", seed=2)
    print(f"{target.name}: {dict(outcomes)} in {time.perf_counter() - start:.0f} s")
