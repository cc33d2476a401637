"""NumPy's files: what NumPy writes comes back, and what lies is refused within bounds."""

import io
import struct
import zipfile

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from ordered_sgd.errors import DataError
from ordered_sgd.lab.data.npz import read_npy, read_npz
from tests.lab.data.small_files import npy, npz, zipped

XY = (("x", "y"),)


@pytest.fixture
def write(tmp_path):
    def write(data: bytes):
        path = tmp_path / "own.npz"
        path.write_bytes(data)
        return path

    return write


ARRAYS = [
    np.arange(6).astype(dtype).reshape(2, 3)
    for dtype in ("u1", "i1", "<i2", ">i4", "<i8", ">u8", "<f2", "<f4", ">f4", "<f8", "?")
]


@pytest.mark.parametrize(
    "array", [*ARRAYS, np.array(["a", "bc", ""]), np.array([b"a", b"bc"])], ids=lambda a: a.dtype.str
)
@pytest.mark.parametrize("fortran", [False, True])
def test_what_numpy_saves_is_what_numpy_loads(write, array, fortran):
    array = np.asfortranarray(array) if fortran else array
    path = write(npy(array))
    read = read_npy(path, 10_000)
    assert_array_equal(read, np.load(path))
    assert read.dtype.isnative
    assert read.dtype == array.dtype.newbyteorder("=")


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_every_version_of_the_format_is_read(write, version):
    file = io.BytesIO()
    np.lib.format.write_array(file, np.arange(5), version=version)
    assert_array_equal(read_npy(write(file.getvalue()), 1000), np.arange(5))


def test_the_long_integers_of_python_2_are_read(write):
    data = npy(np.arange(6).reshape(2, 3)).replace(b"(2, 3), }  ", b"(2L, 3L), }")
    assert read_npy(write(data), 1000).shape == (2, 3)


@pytest.mark.parametrize("compressed", [False, True])
def test_the_first_set_of_names_that_is_there_is_read(write, compressed):
    path = write(npz(compressed, X=np.ones((3, 2)), y=np.arange(3), other=np.ones(1)))
    arrays = read_npz(path, (("x_train", "y_train"), ("x", "y")))
    assert list(arrays) == ["x", "y"]
    assert_array_equal(arrays["y"], np.arange(3))


def header(text: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode("latin-1")


def described(descr: str = "'<f8'", order: str = "False", shape: str = "(2,)") -> bytes:
    return header(f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n") + bytes(16)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "hold arrays in NumPy's format; got bytes none"),
        (b"\x93NUMPY\x01", "hold arrays in NumPy's format"),
        (b"PK\x03\x04" + bytes(100), "hold arrays in NumPy's format; got bytes 504b03040000"),
        (described("'|O'"), "hold plain arrays of numbers or text; got another header"),
        (described("'<f16'"), "hold plain arrays"),
        (described("'<M8[s]'"), "hold plain arrays"),
        (described("[('a', '<f8')]"), "hold plain arrays"),
        (described("'(1000000,)f8'"), "hold plain arrays"),
        (described("'V2147483647'"), "hold plain arrays"),
        (described("'<U0'"), "hold plain arrays"),
        (described("__import__('os').system('true')"), "hold plain arrays"),
        (described(shape="(2, -1)"), "hold plain arrays"),
        (described(shape="(" * 2000 + ")" * 2000), "hold plain arrays"),
        (described(order="1"), "hold plain arrays"),
        (described(shape="()"), r"hold arrays of 1 to 4 dimensions that are not empty; got shape \(\)"),
        (described(shape="(2, 0)"), r"that are not empty; got shape \(2, 0\)"),
        (described(shape="(1, 1, 1, 1, 2)"), "hold arrays of 1 to 4 dimensions"),
        (described(shape="(999999999999999999, 0)"), "that are not empty"),
        (described(shape="(999999999999,)"), "unpack to at most 10,000 bytes; got 7,999,999,999,992 in a header"),
        (described(shape="(3,)"), "hold 24 bytes after its header; got 16"),
        (described(shape="(1,)"), "end 8 bytes after its header; got more bytes"),
        (npy(np.array([{}, None])), "hold plain arrays of numbers or text"),
    ],
)
def test_npy_files_that_lie_are_refused(write, data, reason):
    with pytest.raises(DataError, match=f"own.npz must .*{reason}"):
        read_npy(write(data), 10_000)
    if len(data) > 8 and b"(((" not in data:
        with pytest.raises(DataError, match=r"own.npz must"):
            read_npz(write(zipped({"x.npy": data, "y.npy": npy(np.ones(2))})), XY)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "be a whole .npz file; got File is not a zip file"),
        (b"no archive at all" * 10, "be a whole .npz file; got File is not a zip file"),
        (npz(x=np.ones(3))[:-1], "be a whole .npz file"),
        (npz(x=np.ones(3), Z=np.ones(3)), "have the arrays x and y; got x, z"),
        (zipped({}), "have the arrays x and y; got none"),
        (
            zipped({"x.npy": npy(np.ones(2)), "y.npy": npy(np.ones(2))}, zipfile.ZIP_LZMA),
            "be stored or deflated; got another compression of x",
        ),
        (zipped({"x.npy": npy(np.ones(2)), "y.npy": npy(np.ones(2))}, zipfile.ZIP_BZIP2), "be stored or deflated"),
    ],
)
def test_npz_files_that_lie_are_refused(write, data, reason):
    with pytest.raises(DataError, match=f"own.npz must {reason}"):
        read_npz(write(data), XY)


def test_a_flipped_bit_in_an_array_is_found_by_the_check_sum(write):
    data = bytearray(npz(x=np.ones((50, 2)), y=np.arange(50)))
    data[400] ^= 1
    with pytest.raises(DataError, match=r"own.npz must be a whole .npz file; got Bad CRC-32"):
        read_npz(write(data), XY)


def test_an_encrypted_archive_is_refused(write):
    data = bytearray(npz(x=np.ones(2), y=np.ones(2)))
    for at in range(len(data) - 4):
        if data[at : at + 4] == b"PK\x01\x02":
            data[at + 8] |= 1
        if data[at : at + 4] == b"PK\x03\x04":
            data[at + 6] |= 1
    with pytest.raises(DataError, match=r"must be a whole .npz file; got File .* is encrypted"):
        read_npz(write(data), XY)


def test_a_zip_bomb_is_refused_by_its_header(write, peak):
    path = write(zipped({"x.npy": npy(np.zeros(1 << 24)), "y.npy": npy(np.ones(2))}, zipfile.ZIP_DEFLATED))
    with pytest.raises(
        DataError, match=r"own.npz must unpack to at most 67,108,864 bytes; got 134,217,728 in a header"
    ):
        read_npz(path, XY)
    assert peak(lambda: read_npz(path, XY)) < 4 << 20


def test_a_zip_bomb_behind_an_honest_header_is_stopped(write, peak):
    path = write(zipped({"x.npy": npy(np.zeros(4)) + bytes(1 << 27), "y.npy": npy(np.ones(2))}, zipfile.ZIP_DEFLATED))
    with pytest.raises(DataError, match=r"own.npz must end 32 bytes after its header; got more bytes"):
        read_npz(path, XY)
    assert peak(lambda: read_npz(path, XY)) < 4 << 20
