"""Semeion's text: the real file against NumPy's reading, what is refused, and the copy of the package."""

import hashlib
from importlib import resources

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from ordered_sgd.errors import DataError
from ordered_sgd.lab.data.catalog import CATALOG
from ordered_sgd.lab.data.semeion import included_semeion, read_order, read_semeion
from tests.lab.data.small_files import labels, semeion


@pytest.fixture
def write(tmp_path):
    def write(data: bytes):
        path = tmp_path / "semeion.data"
        path.write_bytes(data)
        return path

    return write


def test_the_real_file_is_what_numpy_reads(real_file):
    path = real_file("semeion/semeion.data")
    x, y = read_semeion(path, 1593)
    trusted = np.loadtxt(path)
    assert trusted.shape == (1593, 266)
    assert_array_equal(x.reshape(1593, 256), (trusted[:, :256] * 255).astype(np.uint8))
    assert_array_equal(y, np.nonzero(trusted[:, 256:])[1])
    assert (x.shape, x.dtype, y.dtype) == ((1593, 1, 16, 16), np.uint8, np.int64)


def test_the_package_s_copy_is_the_published_file_byte_for_byte():
    x, y = included_semeion()
    rows = zip(x.reshape(-1, 256) // 255, np.eye(10, dtype=int)[y], strict=True)
    lines = (" ".join([*(f"{pixel:.4f}" for pixel in row), *map(str, hot)]) + " \r\n" for row, hot in rows)
    text = "".join(lines).encode()
    order = (resources.files("ordered_sgd.lab.data") / "included/random_index.npy").read_bytes()
    for download, data in zip(CATALOG["semeion"].downloads, (text, order), strict=True):
        assert (len(data), "sha256:" + hashlib.sha256(data).hexdigest()) == (download.size, download.checksum)


def test_the_package_s_copy_is_read_as_the_text_is(write):
    text = semeion(12)
    x, y = read_semeion(write(text), 12)
    brought_x, brought_y = included_semeion()
    assert (brought_x.shape[1:], brought_x.dtype, brought_y.dtype) == (x.shape[1:], x.dtype, y.dtype)
    assert brought_x.shape == (1593, 1, 16, 16)
    assert set(np.unique(brought_x)) == {0, 255}


def test_the_authors_permutation_is_used_where_no_file_is_given():
    order = read_order(None, 1593)
    assert order.dtype == np.int64
    assert_array_equal(np.sort(order), np.arange(1593))


@pytest.mark.parametrize("end", [b"", b"\r\n", b"\n\n  \n"])
def test_rows_come_back_whatever_the_line_ends_are(write, end):
    x, y = read_semeion(write(semeion(12).replace(b"\r\n", b"\n") + end), 20)
    assert set(np.unique(x)) == {0, 255}
    assert_array_equal(y, labels(12))


ROW = semeion(1).split()


def rows(*cells: list[bytes]) -> bytes:
    return b"\n".join(b" ".join(row) for row in cells)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "hold 1 to 3 rows; got 0"),
        (b"\n\n\n", "hold 1 to 3 rows; got 0"),
        (rows(ROW, ROW, ROW, ROW), "hold 1 to 3 rows; got 4"),
        (rows(ROW, ROW[:-1]), "hold 266 values a row; got 265 in row 2"),
        (rows([*ROW, b"0"], ROW), "hold 266 values a row; got more in row 1"),
        (rows(ROW, [], ROW), "hold 266 values a row; got 0 in row 2"),
        (rows([b"0.5", *ROW[1:]]), "hold the values 0 and 1 alone; got another one in row 1"),
        (rows([b"nan", *ROW[1:]]), "hold the values 0 and 1 alone; got another one in row 1"),
        (rows([b"1e999", *ROW[1:]]), "hold the values 0 and 1 alone"),
        (rows([b"one", *ROW[1:]]), "hold the values 0 and 1 alone"),
        (rows([b"\xff\xfe", *ROW[1:]]), "hold the values 0 and 1 alone"),
        (rows([*ROW[:256], *[b"0"] * 10]), "mark one digit in the last 10 columns of each row; got 0 in row 1"),
        (rows(ROW, [*ROW[:256], *[b"1"] * 10]), "mark one digit in the last 10 columns of each row; got 10 in row 2"),
        (b"1" * 20_000, "take at most 12,768 bytes; got 20,000"),
        (b"1" * 12_000, "hold 266 values a row; got 1 in row 1"),
    ],
)
def test_files_that_lie_are_refused(write, data, reason):
    with pytest.raises(DataError, match=f"semeion.data must {reason}"):
        read_semeion(write(data), 3)
