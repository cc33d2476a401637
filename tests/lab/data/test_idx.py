"""IDX files: real ones against a reading by hand, and what is refused."""

import gzip
import struct

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from ordered_sgd.errors import DataError
from ordered_sgd.lab.data.idx import read_idx, read_images, read_labels
from tests.lab.data.small_files import idx, images, labels, packed


@pytest.fixture
def write(tmp_path):
    def write(data: bytes):
        path = tmp_path / "file-idx"
        path.write_bytes(data)
        return path

    return write


@pytest.mark.parametrize("pack", [bytes, packed])
def test_images_and_labels_come_back_packed_or_not(write, pack):
    x = images(7, (28, 28))
    read = read_images(write(pack(idx(x))), 10, (1, 28, 28))
    assert_array_equal(read, x[:, None])
    assert read.dtype == np.uint8
    assert read.flags.writeable
    y = read_labels(write(pack(idx(labels(7)))), 10, 10)
    assert_array_equal(y, labels(7))
    assert y.dtype == np.int64


@pytest.mark.parametrize("folder", ["MNIST", "FashionMNIST", "KMNIST"])
def test_real_test_images_are_those_of_a_reading_by_hand(real_file, folder):
    path = real_file(f"{folder}/raw/t10k-images-idx3-ubyte.gz")
    raw = gzip.decompress(path.read_bytes())
    assert struct.unpack(">4I", raw[:16]) == (2051, 10_000, 28, 28)
    by_hand = np.array(list(raw[16:]), np.uint8)
    assert_array_equal(read_images(path, 10_000, (1, 28, 28)).ravel(), by_hand)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "begin with the IDX magic number 00000801; got no bytes"),
        (b"\0\0", "begin with the IDX magic number 00000801; got 0000"),
        (b"\0\0\x08\x01\0\0", "hold a header of 8 bytes; got 6"),
        (idx(images(2, (28, 28))), "begin with the IDX magic number 00000801; got 00000803"),
        (idx(labels(5), kind=13), "begin with the IDX magic number 00000801; got 00000d01"),
        (idx(labels(5)[:0]), "hold 1 to 10 samples; got 0 in its header"),
        (idx(labels(11)), "hold 1 to 10 samples; got 11 in its header|take at most 18 bytes"),
        (idx(labels(5), dims=(4_294_967_295,)), "hold 1 to 10 samples; got 4,294,967,295 in its header"),
        (idx(labels(5), dims=(6,)), "hold 6 bytes after its header; got 5"),
        (idx(labels(5), dims=(4,)), "end 4 bytes after its header; got more bytes"),
        (idx(np.array([1, 2, 10, 3])), "hold labels from 0 to 9; got 10 at position 2"),
    ],
)
@pytest.mark.parametrize("pack", [bytes, packed])
def test_label_files_that_lie_are_refused(write, data, reason, pack):
    with pytest.raises(DataError, match=f"file-idx must ({reason})"):
        read_labels(write(pack(data)), 10, 10)


@pytest.mark.parametrize("shape", [(28, 27), (27, 28), (1, 784)])
def test_images_of_another_size_are_refused(write, shape):
    with pytest.raises(DataError, match=r"must hold samples of shape \(28, 28\); got \(.*\)\."):
        read_images(write(idx(images(3, shape))), 10, (1, 28, 28))


def test_a_header_that_promises_gigabytes_allocates_nothing(write, peak):
    data = idx(images(1, (28, 28)), dims=(60_001, 28, 28))
    assert peak(lambda: read_idx(write(data), 60_000, (28, 28))) < 1 << 20


def test_a_bomb_behind_an_honest_header_is_stopped(write, peak):
    path = write(packed(idx(images(1, (28, 28))) + bytes(1 << 27)))
    assert peak(lambda: read_idx(path, 60_000, (28, 28))) < 1 << 20
