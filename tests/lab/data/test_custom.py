"""A user's own data: arrays and files as a `Dataset`."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from ordered_sgd.errors import ArgumentError, DataError
from ordered_sgd.lab.data import from_arrays
from ordered_sgd.lab.data.custom import held_out, read_table
from tests.lab.data.small_files import images, npz, table


@pytest.fixture
def write(tmp_path):
    def write(data: bytes, suffix: str = ".npz"):
        path = tmp_path / f"own{suffix}"
        path.write_bytes(data)
        return path

    return write


@pytest.mark.parametrize(
    ("given", "dtype"),
    [("f8", "f8"), ("f4", "f4"), ("f2", "f4"), ("i8", "f4"), ("u1", "f4"), ("?", "f4"), (">f8", "f8")],
)
def test_tables_become_floats(given, dtype):
    x = np.arange(6).reshape(3, 2).astype(given)
    data = from_arrays(x, [0, 1, 0])
    assert data.x.dtype == np.dtype(dtype)
    assert data.x.dtype.isnative
    assert_array_equal(data.x, x)
    assert not data.images


@pytest.mark.parametrize(("shape", "expected"), [((5, 8, 8), (5, 1, 8, 8)), ((5, 3, 8, 8), (5, 3, 8, 8))])
def test_bytes_of_three_or_four_dimensions_are_images(shape, expected):
    data = from_arrays(images(5, shape[1:]), np.arange(5))
    assert data.x.shape == expected
    assert data.x.dtype == np.uint8
    assert data.images


@pytest.mark.parametrize(
    ("y", "classes", "numbers"),
    [
        (["b", "a", "b"], ("a", "b"), [1, 0, 1]),
        (np.array([b"b", b"a", b"b"]), ("a", "b"), [1, 0, 1]),
        (np.array(["b", "a", "b"], object), ("a", "b"), [1, 0, 1]),
        ([10, 2, 10], ("2", "10"), [1, 0, 1]),
        ([True, False, True], ("False", "True"), [1, 0, 1]),
        (np.array([2**64 - 1, 0, 5], np.uint64), ("0", "5", "18446744073709551615"), [2, 0, 1]),
    ],
)
def test_words_and_integers_are_classes_in_sorted_order(y, classes, numbers):
    data = from_arrays(np.ones((3, 2)), y)
    assert data.classes == classes
    assert_array_equal(data.y, numbers)
    assert data.y.dtype == np.int64


@pytest.mark.parametrize(("given", "dtype"), [("f8", "f8"), ("f4", "f4"), ("f2", "f4")])
def test_floats_are_targets_of_a_regression(given, dtype):
    data = from_arrays(np.ones((3, 2)), np.array([0.5, 1.0, 2.0], given))
    assert data.classes == ()
    assert data.y.dtype == np.dtype(dtype)


def test_classes_may_be_named_and_absent_ones_keep_their_number():
    data = from_arrays(np.ones((2, 2)), [0, 2], classes=["no", "perhaps", "yes"], name="own", split="test")
    assert_array_equal(data.y, [0, 2])
    assert (data.classes, data.name, data.split) == (("no", "perhaps", "yes"), "own", "test")


@pytest.mark.parametrize(
    ("x", "y", "reason"),
    [
        (np.ones(3), [0, 1, 2], r"x must have shape \(n, features\) or \(n, channels, height, width\); got \(3,\)"),
        (np.ones((0, 3)), [], r"x must have shape .* got \(0, 3\)"),
        ([["a"]], [0], "x must hold numbers; got dtype <U1"),
        (np.ones((2, 1, 4, 4)), [0, 1], "x must hold images as uint8; got dtype float64"),
        (images(2, (8, 8, 3)), [0, 1], r"x must have the channels first; .* Use x.transpose\(0, 3, 1, 2\)"),
        ([[1.0, 2.0], [3.0, np.nan]], [0, 1], "x must be finite in float64; got nan in row 1, column 1"),
        (np.array([[1.0, np.inf]], "f4"), [0], "x must be finite in float32; got inf in row 0, column 1"),
        (np.ones((2, 1)), [0, 1, 2], "y must hold one label per sample; got 3 for 2"),
        (
            np.ones((2, 1)),
            [[0, 1], [1, 0]],
            r"y must hold one number or word per sample, shape \(n,\); got dtype int64 and shape \(2, 2\)",
        ),
        (np.ones((2, 1)), [0.5, np.nan], "y must be finite; got nan at position 1"),
        (np.ones((2, 1)), np.array([None, "a"], object), "y must hold one number or word per sample"),
        (np.ones((2, 1)), np.array([1j, 2]), "y must hold one number or word per sample"),
        (np.ones((1, 1)), np.array([b"\xff"]), "y must hold words in UTF-8"),
    ],
)
def test_arrays_that_are_no_data_set_are_refused(x, y, reason):
    with pytest.raises(ArgumentError, match=f"from_arrays: {reason}"):
        from_arrays(x, y)


@pytest.mark.parametrize(
    ("y", "got"), [([0, 2], "0 to 2"), ([-1, 0], "-1 to 0"), (["a", "b"], "dtype <U1"), ([0.0, 1.0], "dtype float64")]
)
def test_named_classes_need_numbers_that_fit(y, got):
    with pytest.raises(ArgumentError, match=f"y must hold class numbers from 0 to 1; got {got}"):
        from_arrays(np.ones((2, 1)), y, classes=("a", "b"))


def test_a_wrong_split_is_refused():
    with pytest.raises(ArgumentError, match="split must be one of train, test; got 'valid'"):
        from_arrays(np.ones((2, 1)), [0, 1], split="valid")


def test_a_fifth_of_each_class_is_held_out_and_always_the_same():
    y = np.repeat([0, 1, 2], [50, 23, 7])
    test = held_out(y, stratify=True)
    assert_array_equal(np.bincount(y[test]), [10, 5, 1])
    assert_array_equal(test, held_out(y, stratify=True))
    assert not np.array_equal(test, held_out(y, stratify=True, seed=1))
    assert held_out(np.linspace(0, 1, 52), stratify=False).sum() == 10


def test_the_order_of_the_samples_does_not_change_how_many_are_held_out():
    y = np.random.default_rng(0).permutation(np.repeat([0, 1, 2], [50, 23, 7]))
    assert_array_equal(np.bincount(y[held_out(y, stratify=True)]), [10, 5, 1])


def test_an_npz_file_with_parts_has_its_own_split_and_common_classes(write):
    path = write(
        npz(
            x_train=np.ones((3, 2)),
            y_train=np.array(["b", "c", "b"]),
            x_test=np.zeros((2, 2)),
            y_test=np.array(["a", "ccc"]),
        )
    )
    train, test = read_table(path, "train", -1), read_table(path, "test", -1)
    assert train.classes == test.classes == ("a", "b", "c", "ccc")
    assert_array_equal(train.y, [1, 2, 1])
    assert_array_equal(test.y, [0, 3])
    assert (len(train), len(test), test.split, test.name) == (3, 2, "test", "own.npz")


@pytest.mark.parametrize("labels", [np.arange(50) % 5, np.linspace(0, 1, 50)], ids=["classes", "regression"])
def test_of_an_npz_file_without_parts_a_fifth_is_the_test(write, labels):
    x = np.arange(100.0).reshape(50, 2)
    path = write(npz(x=x, y=labels))
    train, test = read_table(path, "train", -1), read_table(path, "test", -1)
    assert (len(train), len(test)) == (40, 10)
    assert_array_equal(np.sort(np.concatenate([train.x, test.x])[:, 0]), x[:, 0])
    if train.classes:
        assert_array_equal(np.bincount(test.y), [2] * 5)


def test_csv_files_are_read(write):
    path = write(table(50), ".csv")
    train, test = read_table(path, "train", -1), read_table(path, "test", "kind")
    assert (len(train), len(test)) == (40, 10)
    assert train.classes == test.classes == ("cat", "dog")
    assert train.x.dtype == np.float32


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"x": np.ones((3, 2)), "y": np.arange(4)}, "y in .*own.npz must hold one label per sample; got 4 for 3"),
        ({"x": np.ones((3, 2)), "y": np.ones((3, 2))}, r"y in .*own.npz must hold one number or word per sample"),
        ({"x": np.full((9, 2), np.nan), "y": np.zeros(9, int)}, "x in .*own.npz must be finite in float64"),
        (
            {"x": np.ones((2, 2)), "y": np.arange(2)},
            "y in .*own.npz must have samples for a training and a test part; got 2 samples of 2 classes",
        ),
        (
            {"x_train": np.ones((3, 2)), "y_train": np.arange(3), "x_test": np.ones((3, 2)), "y_test": np.ones(3)},
            "y in .*own.npz must hold one number or word per sample",
        ),
    ],
)
def test_files_that_are_no_data_set_are_refused(write, arrays, reason):
    with pytest.raises(DataError, match=f"load: {reason}"):
        read_table(write(npz(**arrays)), "train", -1)


@pytest.mark.parametrize(
    ("code", "reason"), [(0x110000, "must hold characters that exist"), (0xD800, "must hold words in UTF-8")]
)
@pytest.mark.parametrize("order", "<>")
def test_characters_that_do_not_exist_are_refused(write, code, reason, order):
    words = np.array([code, 97, 98], order + "u4").view(order + "U1")
    with pytest.raises(DataError, match=reason):
        read_table(write(npz(x=np.ones((3, 2)), y=words)), "train", -1)


def test_one_endless_word_does_not_widen_all_others(write, peak):
    """As one array of text the labels would take 4 bytes times the longest word times the samples: 4 GB."""
    parts = {"x_train": np.ones((100_000, 1)), "y_train": np.full(100_000, "a"), "x_test": np.full((1, 1), np.nan)}
    path = write(npz(**parts, y_test=np.array(["a" * 10_000])))
    assert peak(lambda: read_table(path, "test", -1)) < 16 << 20


def test_a_missing_file_is_named(tmp_path):
    for suffix in (".npz", ".csv", ".parquet"):
        with pytest.raises(
            DataError, match=f"none{suffix} must exist; got no such file; its folder has no files. Check the path."
        ):
            read_table(tmp_path / f"none{suffix}", "train", -1)
