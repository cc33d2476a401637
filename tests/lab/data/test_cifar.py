"""CIFAR's batches: real ones against Python's own unpickler, and what is refused."""

import pickle

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from ordered_sgd.errors import DataError
from ordered_sgd.lab.data.catalog import CATALOG
from ordered_sgd.lab.data.cifar import read_batch
from ordered_sgd.lab.data.unpickle import read_pickle
from tests.lab.data.small_files import batch, images, labels, pickled, python2_pickle


@pytest.fixture
def write(tmp_path):
    def write(data: bytes):
        path = tmp_path / "data_batch_1"
        path.write_bytes(data)
        return path

    return write


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize("key", ["labels", "fine_labels"])
def test_batches_of_every_protocol_come_back(write, protocol, key):
    x, y = read_batch(write(pickled(12, key=key, protocol=protocol)), 20, key, 10)
    assert_array_equal(x, images(12, (3072,)).reshape(12, 3, 32, 32))
    assert_array_equal(y, labels(12))
    assert (x.dtype, y.dtype) == (np.uint8, np.int64)


@pytest.mark.parametrize("module", [b"numpy.core.multiarray", b"numpy._core.multiarray"])
def test_batches_of_python_2_come_back(write, module):
    x, y = read_batch(write(python2_pickle(5, module=module)), 5, "labels", 10)
    assert_array_equal(x.reshape(5, -1), images(5, (3072,)))
    assert_array_equal(y, labels(5))


def test_keys_may_be_str(write):
    x, _ = read_batch(write(pickle.dumps(batch(2, text=True), protocol=4)), 5, "labels", 10)
    assert len(x) == 2


def test_a_real_batch_is_what_python_s_unpickler_reads(real_file):
    path = real_file("cifar-10-batches-py/test_batch")
    x, y = read_batch(path, 10_000, "labels", 10)
    with open(path, "rb") as handle:
        trusted = pickle.load(handle, encoding="latin1")  # our own file
    assert_array_equal(x.reshape(10_000, -1), trusted["data"])
    assert y.tolist() == trusted["labels"]
    # the known means of CIFAR-10's test images
    assert_allclose(x.mean(axis=(0, 2, 3)) / 255, [0.49421428, 0.48513139, 0.45040909], atol=5e-9)


@pytest.mark.parametrize(
    ("path", "key", "name"),
    [
        ("cifar-10-batches-py/batches.meta", "label_names", "cifar10"),
        ("samples/cifar-100-python/meta", "fine_label_names", "cifar100"),
    ],
)
def test_the_catalog_s_classes_are_those_of_the_published_names(real_file, path, key, name):
    names = read_pickle(real_file(path), 10_000, 1000)[key]  # the str of Python 2: bytes
    assert tuple(name.decode() for name in names) == CATALOG[name].classes


def change(**parts: object) -> bytes:
    changed = {**batch(4, text=True), **parts}
    return pickle.dumps({key: part for key, part in changed.items() if part is not None}, protocol=4)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (change(labels=None), "have the keys 'data' and 'labels'; got no 'labels'"),
        (change(data=None), "have the keys 'data' and 'labels'; got no 'data'"),
        (change(data=b"bytes"), "hold an array under 'data'; got bytes"),
        (change(data=images(4, (3071,))), r"hold 1 to 10 rows of 3072 pixels; got shape \(4, 3071\)"),
        (change(data=images(4, (3, 1024))), r"hold 1 to 10 rows of 3072 pixels; got shape \(4, 3, 1024\)"),
        (change(data=images(0, (3072,))), r"hold 1 to 10 rows of 3072 pixels; got shape \(0, 3072\)"),
        (change(data=images(11, (3072,))), r"hold 1 to 10 rows of 3072 pixels; got shape \(11, 3072\)"),
        (change(data=images(4, (3072,)).astype(np.int16)), "hold an array of unsigned bytes; got another dtype"),
        (change(data=np.array([None, "a"])), "hold an array of unsigned bytes; got another dtype"),
        (change(data=np.zeros(4, "u1,u1")), "be a pickle of plain data; got a dtype with fields"),
        (change(labels=[0, 1, 2]), "hold as many labels as images; got 3 for 4"),
        (change(labels=[0, 1, 10, 3]), "hold labels from 0 to 9; got another one at position 2"),
        (change(labels=[0, -1, 2, 3]), "hold labels from 0 to 9; got another one at position 1"),
        (change(labels=[0, 2**4000, 2, 3]), "(be a pickle of plain data|hold labels from 0 to 9)"),
        (change(labels=[0, True, 2, 3]), "hold its labels as a list of int; got something else"),
        (change(labels=[0, "1", 2, 3]), "hold its labels as a list of int; got something else"),
        (change(labels=np.arange(4, dtype=np.uint8)), "hold its labels as a list of int; got something else"),
    ],
)
def test_batches_that_lie_are_refused(write, data, reason):
    with pytest.raises(DataError, match=f"data_batch_1 must {reason}"):
        read_batch(write(data), 10, "labels", 10)


@pytest.mark.parametrize("end", [0, 1, 50, 3000, -1])
def test_truncated_batches_are_refused(write, end):
    with pytest.raises(DataError, match="data_batch_1 must be a pickle of plain data; got"):
        read_batch(write(pickled(4)[:end]), 10, "labels", 10)


def test_a_file_far_larger_than_its_samples_is_not_read(write):
    with pytest.raises(DataError, match="data_batch_1 must take at most"):
        read_batch(write(bytes(1 << 20)), 10, "labels", 10)
