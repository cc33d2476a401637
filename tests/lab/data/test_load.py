"""`load`: every set by name, whole or partial, and what is said when something is missing."""

import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from ordered_sgd.errors import ArgumentError, DataError, MissingExtraError
from ordered_sgd.lab.data import CATALOG, load
from ordered_sgd.lab.data.semeion import read_order
from tests.lab.data.small_files import batch, idx, images, labels, mat, npy, npz, packed, pickled, semeion

splits = pytest.mark.parametrize("split", ["train", "test"])


def put(root: Path, path: str, data: bytes) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_bytes(data)


@splits
@pytest.mark.parametrize(
    "name", ["semeion", "mnist", "fashion-mnist", "digits", "figure1a", "figure1b", "figure1c", "figure1d"]
)
def test_whole_sets_are_as_the_catalog_says(name, split, request):
    entry = CATALOG[name]
    if not entry.included:
        for download in entry.downloads:
            request.getfixturevalue("real_file")(download.path)
    data = load(name, split)
    assert data.x.shape == (entry.counts[split], *entry.shape)
    assert data.x.dtype == (np.uint8 if len(entry.shape) == 3 else np.float32)
    assert data.y.dtype == np.int64
    assert set(data.y) == set(range(len(entry.classes)))
    assert (data.classes, data.name, data.split, data.licence) == (entry.classes, name, split, entry.licence)
    assert not data.partial
    assert data.x.flags.c_contiguous
    assert data.x.flags.writeable


def test_mnist_has_its_known_number_of_each_digit(real_file):
    real_file("MNIST/raw/train-labels-idx1-ubyte.gz")
    assert_array_equal(np.bincount(load("mnist").y), [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949])
    assert_array_equal(np.bincount(load("mnist", "test").y), [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009])


def test_kmnist_s_test_images_load_and_its_missing_training_images_do_not_even_as_a_part(real_file, real_root):
    real_file("KMNIST/raw/t10k-images-idx3-ubyte.gz")
    assert_array_equal(np.bincount(load("kmnist", "test").y), [1000] * 10)
    if (real_root / "KMNIST/raw/train-images-idx3-ubyte.gz").exists():
        pytest.skip("KMNIST is whole here")
    for partial in (False, True):
        with pytest.raises(DataError) as caught:
            load("kmnist", partial=partial)
        assert str(caught.value) == (
            "load: kmnist must be in the data folder; got no KMNIST/raw/train-images-idx3-ubyte.gz in "
            f"{real_root}. Run: osgd data fetch kmnist"
        )


def test_one_of_cifar10_s_batches_loads_as_a_part_only(real_file, real_root):
    real_file("cifar-10-batches-py/data_batch_1")
    if (real_root / "cifar-10-batches-py/data_batch_2").exists():
        pytest.skip("CIFAR-10 is whole here")
    with pytest.raises(
        DataError, match="load: cifar10 must be whole; got a set without 40,000 of 50,000 training samples"
    ) as caught:
        load("cifar10")
    assert "(no data_batch_2, data_batch_3, data_batch_4, data_batch_5)" in str(caught.value)
    assert str(caught.value).endswith("Run: osgd data fetch cifar10, or pass partial=True.")
    data = load("cifar10", partial=True)
    assert data.label == "cifar10 (partial: without 40,000 of 50,000 training samples)"
    assert data.x.shape == (10_000, 3, 32, 32)
    assert_array_equal(np.bincount(data.y), [1005, 974, 1032, 1016, 999, 937, 1030, 1001, 1025, 981])
    test = load("cifar10", "test")
    assert not test.partial
    assert_array_equal(np.bincount(test.y), [1000] * 10)


@pytest.mark.parametrize(
    ("name", "split", "n", "missing"),
    [
        ("cifar100", "train", 486, "49,514 of 50,000 training samples"),
        ("cifar100", "test", 500, "9,500 of 10,000 test samples"),
        ("svhn", "train", 500, "72,757 of 73,257 training samples"),
    ],
)
def test_samples_of_a_set_load_as_a_part_only(sample_root, name, split, n, missing):
    with pytest.raises(DataError, match=f"load: {name} must be whole; got a set without {missing} in "):
        load(name, split)
    data = load(name, split, partial=True)
    assert (len(data), data.missing) == (n, missing)
    assert data.x.shape == (n, 3, 32, 32)


@splits
def test_semeion_of_the_package_is_that_of_the_data_folder(real_file, tmp_path, monkeypatch, split):
    real_file("semeion/semeion.data")
    read = load("semeion", split)
    monkeypatch.setenv("ORDERED_SGD_DATA", str(tmp_path / "none"))
    brought = load("semeion", split)
    assert_array_equal(brought.x, read.x)
    assert_array_equal(brought.y, read.y)
    assert (brought.x.dtype, brought.y.dtype, brought.label) == (read.x.dtype, read.y.dtype, read.label)


def test_semeion_is_split_by_the_authors_permutation(real_file):
    order = np.load(real_file("semeion/random_index.npy"))
    rows = np.loadtxt(real_file("semeion/semeion.data"))
    pixels, digits = rows[:, :256] * 255, rows[:, 256:].argmax(axis=1)
    train, test = load("semeion"), load("semeion", "test")
    assert_array_equal(train.x.reshape(1000, -1), pixels[order[:1000]])
    assert_array_equal(test.x.reshape(593, -1), pixels[order[1000:]])
    assert_array_equal(train.y, digits[order[:1000]])
    assert_array_equal(test.y, digits[order[1000:]])


def test_a_folder_without_the_permutation_gets_the_authors_one(empty_root):
    put(empty_root, "semeion.data", semeion(1593))
    order = read_order(None, 1593)
    assert_array_equal(load("semeion").y, labels(1593)[order[:1000]])
    assert_array_equal(load("semeion", "test").y, labels(1593)[order[1000:]])


@pytest.mark.parametrize(
    "order",
    [np.arange(1592), np.arange(1593) + 1, np.zeros(1593, int), np.arange(1593.0), np.arange(1593).reshape(27, 59)],
)
def test_a_file_that_holds_no_permutation_is_refused(empty_root, order):
    put(empty_root, "semeion/semeion.data", semeion(1593))
    put(empty_root, "semeion/random_index.npy", npy(order))
    with pytest.raises(DataError, match=r"random_index.npy must hold a permutation of 0 to 1,592; got"):
        load("semeion")


def test_part_of_semeion_keeps_its_split(empty_root):
    put(empty_root, "semeion/semeion.data", semeion(1000))
    put(empty_root, "semeion/random_index.npy", npy(np.arange(1593)[::-1]))
    train, test = load("semeion", partial=True), load("semeion", "test", partial=True)
    assert train.missing == "593 of 1,000 training samples"
    assert not test.partial
    assert_array_equal(np.concatenate([train.y, test.y]), labels(1000)[::-1])


@pytest.mark.parametrize(
    ("images_name", "labels_name", "pack"),
    [
        ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz", packed),
        ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte", bytes),
        ("t10k-images.idx3-ubyte", "t10k-labels.idx1-ubyte", bytes),
        ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte.gz", bytes),
    ],
)
def test_files_of_mnist_may_be_packed_or_not_and_have_either_name(empty_root, images_name, labels_name, pack):
    x, y = images(10_000, (28, 28)), labels(10_000)
    put(empty_root, f"MNIST/raw/{images_name}", pack(idx(x)))
    put(empty_root, f"MNIST/raw/{labels_name}", pack(idx(y)))
    data = load("mnist", "test")
    assert_array_equal(data.x[:, 0], x)
    assert_array_equal(data.y, y)


def test_images_and_labels_must_be_as_many(empty_root):
    put(empty_root, "KMNIST/raw/t10k-images-idx3-ubyte", idx(images(5, (28, 28))))
    put(empty_root, "KMNIST/raw/t10k-labels-idx1-ubyte", idx(labels(4)))
    with pytest.raises(DataError, match="t10k-labels-idx1-ubyte must hold a label for each of 5 images; got 4"):
        load("kmnist", "test", partial=True)


@pytest.mark.parametrize("folder", ["", "svhn/"])
def test_svhn_may_lie_in_the_root_or_in_a_folder_of_its_own(empty_root, folder):
    put(empty_root, f"{folder}test_32x32.mat", mat(5))
    assert load("svhn", "test", partial=True).missing == "26,027 of 26,032 test samples"


def test_cifar10_s_batches_come_in_their_order(empty_root):
    for number in (3, 1):
        data = {**batch(2), b"labels": [number, number]}
        put(empty_root, f"cifar-10-batches-py/data_batch_{number}", pickle.dumps(data, protocol=2))
    data = load("cifar10", partial=True)
    assert data.y.tolist() == [1, 1, 3, 3]
    assert data.missing == "49,996 of 50,000 training samples"


def test_cifar100_is_read_with_its_fine_labels(empty_root):
    put(empty_root, "cifar-100-python/test", pickled(30, key="fine_labels"))
    data = load("cifar100", "test", partial=True)
    assert_array_equal(data.y, labels(30))
    assert len(data.classes) == 100
    put(empty_root, "cifar-100-python/test", pickled(30, key="coarse_labels"))
    with pytest.raises(DataError, match="test must have the keys 'data' and 'fine_labels'; got no 'fine_labels'"):
        load("cifar100", "test", partial=True)


@splits
@pytest.mark.parametrize("name", [name for name, entry in CATALOG.items() if entry.downloads and not entry.included])
def test_a_missing_set_is_named_with_its_folder_and_the_command_that_brings_it(empty_root, name, split):
    for partial in (False, True):
        with pytest.raises(DataError) as caught:
            load(name, split, partial)
        assert str(caught.value).startswith(f"load: {name} must be in the data folder; got no ")
        assert str(caught.value).endswith(f" in {empty_root}. Run: osgd data fetch {name}")


def test_a_damaged_file_is_named(real_file, empty_root):
    source = real_file("MNIST/raw/t10k-labels-idx1-ubyte.gz")  # found before the root was changed
    shutil.copytree(source.parent, empty_root / "MNIST/raw")
    place = empty_root / "MNIST/raw/t10k-labels-idx1-ubyte.gz"
    place.chmod(0o644)
    place.write_bytes(source.read_bytes()[:-100])
    with pytest.raises(DataError, match=f"load: {place} must be readable to its end; got Compressed file ended"):
        load("mnist", "test", partial=True)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("mnis", "Did you mean 'mnist'?"),
        ("MNIST", "Did you mean 'mnist'?"),
        ("Fashion_MNIST", "Did you mean 'fashion-mnist'?"),
        ("figure1", "Did you mean 'figure1"),
        ("imagenet", "Of a file give the path, such as pets.csv."),
    ],
)
def test_an_unknown_name_is_refused_with_a_near_one(name, remedy):
    with pytest.raises(ArgumentError, match="load: name must be one of semeion, mnist") as caught:
        load(name)
    assert remedy in str(caught.value)


def test_an_unknown_split_or_suffix_is_refused(tmp_path):
    with pytest.raises(ArgumentError, match="load: split must be one of train, test; got 'valid'"):
        load("digits", "valid")
    put(tmp_path, "own.xlsx", b"PK")
    with pytest.raises(
        DataError, match=r"load: .*own.xlsx must be a table in text, Parquet or .npz; got .xlsx. Save it"
    ):
        load(tmp_path / "own.xlsx")


@pytest.mark.parametrize("kind", [str, Path])
def test_a_user_s_own_file_is_loaded_by_its_path(tmp_path, kind):
    put(tmp_path, "own.npz", npz(x=np.ones((50, 3)), y=np.arange(50) % 2))
    put(tmp_path, "own.CSV", b"kind,a\n" + b"".join(b"%d,%d\n" % (at % 2, at % 9) for at in range(50)))
    assert load(kind(tmp_path / "own.npz"), "test").x.shape == (10, 3)
    assert load(kind(tmp_path / "own.CSV"), target="kind").x.shape == (40, 1)


def test_a_home_folder_is_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    put(tmp_path, "own.npz", npz(x=np.ones((50, 3)), y=np.arange(50) % 2))
    assert len(load("~/own.npz")) == 40


def test_digits_are_scikit_learn_s_with_a_fixed_stratified_split():
    from sklearn.datasets import load_digits

    train, test = load("digits"), load("digits", "test")
    assert_array_equal(np.bincount(test.y), [36, 36, 35, 37, 36, 36, 36, 36, 35, 36])
    both = np.concatenate([train.x, test.x]).reshape(1797, 64)
    published = load_digits().data
    assert both.max() == 255
    assert_array_equal(np.sort(both.sum(axis=1)), np.sort(np.rint(published * 255 / 16).sum(axis=1)))
    assert_array_equal(load("digits", "test").x, test.x)


def test_without_scikit_learn_digits_name_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(
        MissingExtraError, match=r'load: sklearn must be installed; got .* Run.*: pip install .*\[linear\]"'
    ):
        load("digits")


def test_the_test_part_of_figure_1_is_a_second_draw():
    train, test = load("figure1a"), load("figure1a", "test")
    assert (train.split, test.split) == ("train", "test")
    assert not np.array_equal(train.x, test.x)


def test_importing_and_loading_need_neither_torch_nor_scipy_nor_scikit_learn():
    code = (
        "import sys\nimport ordered_sgd.lab.data as data\ndata.load('figure1c')\n"
        "print(sorted({'torch', 'scipy', 'sklearn', 'pandas'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ})
    assert run.stdout == "[]\n"
