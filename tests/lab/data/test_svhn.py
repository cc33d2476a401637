"""SVHN's MATLAB files: real ones against SciPy alone, and what is refused before SciPy sees it."""

import struct
import zlib

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from scipy import io as scipy_io

from ordered_sgd.errors import DataError
from ordered_sgd.lab.data import svhn
from ordered_sgd.lab.data.svhn import read_svhn
from tests.lab.data.small_files import HEADER, images, labels, mat


@pytest.fixture
def write(tmp_path):
    def write(data: bytes):
        path = tmp_path / "train_32x32.mat"
        path.write_bytes(data)
        return path

    return write


def element(kind: int, data: bytes, order: str = "<") -> bytes:
    return struct.pack(order + "II", kind, len(data)) + data + bytes(-len(data) % 8)


def matrix(
    name: bytes,
    dims: tuple[int, ...],
    data: bytes,
    *,
    cls: int = 9,
    kind: int = 2,
    flags: int = 0,
    order: str = "<",
    count: int | None = None,
) -> bytes:
    numbers = element(kind, data, order) if count is None else struct.pack(order + "II", kind, count) + data
    body = (
        element(6, struct.pack(order + "II", flags << 8 | cls, 0), order)
        + element(5, struct.pack(f"{order}{len(dims)}i", *dims), order)
        + element(1, name, order)
        + numbers
    )
    return element(14, body, order)


def file(*elements: bytes, order: str = "<", packed: bool = False) -> bytes:
    head = HEADER + bytes(8) + (b"\x00\x01IM" if order == "<" else b"\x01\x00MI")
    if packed:
        elements = tuple(struct.pack(order + "II", 15, len(z)) + z for z in map(zlib.compress, elements))
    return head + b"".join(elements)


PIXELS = images(3, (3, 32, 32))
X = PIXELS.transpose(0, 1, 3, 2).tobytes()  # a column of MATLAB's runs down the picture
GOOD_X = matrix(b"X", (32, 32, 3, 3), X)
GOOD_Y = matrix(b"y", (3, 1), b"\x0a\x01\x09")


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("order", ["<", ">"])
def test_files_written_by_hand_come_back(write, order, packed):
    parts = matrix(b"X", (32, 32, 3, 3), X, order=order), matrix(b"y", (3, 1), b"\x0a\x01\x09", order=order)
    x, y = read_svhn(write(file(*parts, order=order, packed=packed)), 10)
    assert_array_equal(x, PIXELS)
    assert_array_equal(y, [0, 1, 9])  # 10 stands for digit 0
    assert (x.dtype, y.dtype) == (np.uint8, np.int64)
    assert x.flags.c_contiguous
    assert x.flags.writeable


@pytest.mark.parametrize("text", [bytes(124), b"\xff" * 124, b"\0\0\0\1".ljust(124), b"\x89HDF\r\n\x1a\n".ljust(124)])
def test_the_free_text_of_the_header_changes_nothing(write, text):
    x, _ = read_svhn(write(text + file(GOOD_X, GOOD_Y)[124:]), 10)  # SciPy alone reads the first as format 4
    assert_array_equal(x, PIXELS)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("kind", [np.uint8, np.float64, np.int32])
def test_files_written_by_scipy_come_back(write, compressed, kind):
    x, y = read_svhn(write(mat(12, compressed=compressed, y=(labels(12) + 1).reshape(12, 1).astype(kind))), 12)
    assert_array_equal(x, images(12, (3, 32, 32)))
    assert_array_equal(y, (labels(12) + 1) % 10)


def test_a_real_file_is_what_scipy_reads(real_file):
    path = real_file("samples/svhn/train_32x32.mat")
    x, y = read_svhn(path, 73_257)
    trusted = scipy_io.loadmat(path)
    assert_array_equal(x, trusted["X"].transpose(3, 2, 0, 1))
    assert_array_equal(np.where(y == 0, 10, y), trusted["y"].ravel())


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "be a MATLAB file of format 5; got 0 at the end of its header"),
        (b"\x89HDF\r\n\x1a\n" + bytes(200), "be a MATLAB file of format 5; got 00000000"),
        (file(), "hold the variables X and y; got none"),
        (file(GOOD_X), "hold the variables X and y; got X"),
        (file(GOOD_X, GOOD_X), "hold the variables X and y; got X and X"),
        (file(GOOD_X, GOOD_Y, GOOD_Y), "hold the elements X and y alone; got more bytes"),
        (file(GOOD_X, GOOD_Y) + b"\0", "hold the elements X and y alone; got more bytes"),
        (file(GOOD_X, element(2, b"12345678")), "hold matrices; got an element of type 2"),
        (file(GOOD_X, GOOD_Y)[:-8], "hold what its headers promise; got an earlier end"),
        (file(GOOD_X, matrix(b"z", (3, 1), b"\1\1\1")), r"hold X of shape .* got 'z' of shape \(3, 1\)"),
        (file(GOOD_X, matrix(b"y", (1, 3), b"\1\1\1")), r"hold X of shape .* got 'y' of shape \(1, 3\)"),
        (file(GOOD_X, matrix(b"y", (-3, 1), b"\1\1\1")), r"hold X of shape .* got 'y' of shape \(-3, 1\)"),
        (file(GOOD_X, matrix(b"y", (3,), b"\1\1\1")), r"hold X of shape .* got 'y' of shape \(3,\)"),
        (file(GOOD_X, matrix(b"y", (2, 1), b"\1\1")), "hold as many labels as images; got 2 for 3"),
        (
            file(GOOD_X, matrix(b"y", (3, 1), b"\1\1")),
            r"hold as many numbers as 'y' of shape \(3, 1\) needs; got 2 bytes",
        ),
        (file(GOOD_X, matrix(b"y", (3, 1), b"\1\x0b\1")), "hold labels from 1 to 10; got 11 at position 1"),
        (file(GOOD_X, matrix(b"y", (3, 1), b"\1\0\1")), "hold labels from 1 to 10; got 0 at position 1"),
        (
            file(GOOD_X, matrix(b"y", (3, 1), struct.pack("<3d", 1, 1.5, 2), cls=6, kind=9)),
            "hold labels from 1 to 10; got 1.5",
        ),
        (
            file(GOOD_X, matrix(b"y", (3, 1), struct.pack("<3d", 1, 2, float("nan")), cls=6, kind=9)),
            "hold labels from 1 to 10; got nan",
        ),
        (file(GOOD_X, matrix(b"y", (3, 1), b"\1\1\1", cls=1)), "hold real numbers; got an array of class 1 as 'y'"),
        (file(GOOD_X, matrix(b"y", (3, 1), b"\1\1\1", cls=4)), "hold real numbers; got an array of class 4 as 'y'"),
        (file(GOOD_X, matrix(b"y", (3, 1), b"\1\1\1", flags=8)), "hold real numbers"),
        (
            file(GOOD_X, matrix(b"y", (3, 1), b"\1\1\1", kind=14)),
            r"hold matrices of numbers; got parts of types \[6, 5, 1, 14\]",
        ),
        (file(GOOD_Y, matrix(b"X", (32, 32, 1, 3), X[:3072])), r"hold X of shape"),
        (file(GOOD_Y, matrix(b"X", (32, 32, 3, 3), X, kind=1)), "hold X as unsigned bytes; got class 9, type 1"),
        (file(GOOD_Y, matrix(b"X", (32, 32, 3, 3), X, cls=8)), "hold X as unsigned bytes; got class 8, type 2"),
        (
            file(GOOD_Y, matrix(b"X", (32, 32, 3, 3), X, count=1 << 31)),
            "hold whole matrices; got one that is cut short",
        ),
        (file(GOOD_Y, matrix(b"X", (32, 32, 3, 2**31 - 1), X)), "hold as many numbers as 'X' of shape"),
        (file(GOOD_X, matrix(b"y" * 40, (3, 1), b"\1\1\1")), "hold matrices of numbers; got malformed headers"),
        (
            file(GOOD_X, element(14, b"1234")),
            "hold what its headers promise|hold whole matrices|hold matrices of the length",
        ),
        (
            file(GOOD_X, struct.pack("<II", 15, 9) + b"not zlib!"),
            "be readable to its end; got Error -3 while decompressing",
        ),
        (file(GOOD_X, struct.pack("<II", 15, 20) + zlib.compress(GOOD_Y)[:20]), "hold whole compressed elements"),
        (file(GOOD_X, struct.pack("<II", 15, 1000) + zlib.compress(GOOD_Y)), "hold what its headers promise"),
    ],
)
def test_files_that_lie_are_refused_before_scipy_sees_them(write, data, reason):
    with pytest.raises(DataError, match=f"train_32x32.mat must ({reason})"):
        read_svhn(write(data), 10)


def test_more_images_than_published_are_refused(write):
    with pytest.raises(DataError, match=r"must (hold 1 to 3 images; got 4|take at most)"):
        read_svhn(write(mat(4)), 3)
    with pytest.raises(DataError, match="must hold 1 to 2 images; got 3"):
        read_svhn(write(file(GOOD_X, GOOD_Y, packed=True)), 2)


def test_cells_nested_a_million_deep_are_refused_and_crash_nothing(write):
    cell = element(6, struct.pack("<II", 1, 0)) + element(5, struct.pack("<2i", 1, 1)) + element(1, b"y")
    deep = b""
    for _ in range(200):  # each level doubles nothing: its length is in its tag
        deep = element(14, cell + deep)
    with pytest.raises(DataError, match="must hold matrices of numbers; got parts of types"):
        read_svhn(write(file(GOOD_X, deep, packed=True)), 100)


def test_a_zlib_bomb_is_stopped_at_the_limit(write, peak):
    bomb = zlib.compress(bytes(1 << 27))
    path = write(file(GOOD_X, struct.pack("<II", 15, len(bomb)) + bomb))
    read_svhn(write(file(GOOD_X, GOOD_Y)), 100)  # SciPy's own imports do not count
    path = write(file(GOOD_X, struct.pack("<II", 15, len(bomb)) + bomb))
    assert peak(lambda: read_svhn(path, 100)) < 4 << 20


def test_what_scipy_cannot_read_is_a_data_error_too(write, monkeypatch):
    def stumble(*_: object, **__: object) -> None:
        raise KeyError("whatever")

    monkeypatch.setattr(scipy_io, "loadmat", stumble)
    with pytest.raises(DataError, match="must be a MATLAB file that SciPy reads; got 'whatever'"):
        read_svhn(write(mat(3)), 10)


def test_the_module_loads_without_scipy():
    assert not hasattr(svhn, "scipy_io")
