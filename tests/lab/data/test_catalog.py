"""The catalog: complete, consistent, and true of the real files."""

import hashlib
import re
from pathlib import Path

import platformdirs
import pytest

from ordered_sgd.lab.data import CATALOG, data_root
from ordered_sgd.lab.data.catalog import find, places

DOWNLOADS = [(name, download) for name, entry in CATALOG.items() for download in entry.downloads]
WHOLE = [(name, download) for name, download in DOWNLOADS if not download.members]

# MD5 sums that torchvision publishes for the files whose SHA-256 is in the catalog.
TORCHVISION = {
    "MNIST/raw/train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "MNIST/raw/train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "MNIST/raw/t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "MNIST/raw/t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
    "FashionMNIST/raw/train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "FashionMNIST/raw/train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
    "FashionMNIST/raw/t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
    "FashionMNIST/raw/t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
    "KMNIST/raw/train-labels-idx1-ubyte.gz": "e144d726b3acfaa3e44228e80efcd344",
    "KMNIST/raw/t10k-images-idx3-ubyte.gz": "5c965bf0a639b31b8f53240b1b52f4d7",
    "KMNIST/raw/t10k-labels-idx1-ubyte.gz": "7320c461ea6c1c855c0b718fb2a4b134",
    "semeion/semeion.data": "cb545d371d2ce14ec121470795a77432",
}


def test_every_set_of_the_paper_and_every_problem_of_figure_1_is_there():
    paper = {"semeion", "mnist", "kmnist", "fashion-mnist", "cifar10", "cifar100", "svhn"}
    assert set(CATALOG) == paper | {"digits", "figure1a", "figure1b", "figure1c", "figure1d"}
    assert {name for name, entry in CATALOG.items() if entry.downloads} == paper


@pytest.mark.parametrize("name", CATALOG)
def test_entries_are_filled_in(name):
    entry = CATALOG[name]
    assert entry.name == name
    assert entry.title
    assert entry.licence
    assert len(set(entry.classes)) == len(entry.classes) >= 2
    assert set(entry.counts) == {"train", "test"}


@pytest.mark.parametrize(("name", "download"), DOWNLOADS, ids=lambda value: getattr(value, "path", ""))
def test_downloads_have_addresses_a_checksum_and_a_size(name, download):
    sums = [download.checksum, *download.members.values()]
    assert all(re.fullmatch(r"md5:[0-9a-f]{32}|sha256:[0-9a-f]{64}", checksum) for checksum in sums)
    assert download.size > 0
    assert all(url.startswith("http") and url.endswith(Path(download.path).name) for url in download.urls)
    for path in (download.path, *download.members):
        assert not Path(path).is_absolute()
        assert ".." not in Path(path).parts


def test_no_two_files_share_a_checksum_or_a_place():
    sums = [s for _, d in DOWNLOADS for s in (d.checksum, *d.members.values())]
    paths = [p for _, d in DOWNLOADS for p in (d.path, *d.members)]
    assert len(set(sums)) == len(sums)
    assert len(set(paths)) == len(paths)


@pytest.mark.parametrize(("name", "download"), WHOLE, ids=lambda value: getattr(value, "path", ""))
def test_the_checksum_and_the_size_are_those_of_the_real_file(real_file, name, download):
    data = real_file(download.path).read_bytes()
    kind, _, expected = download.checksum.partition(":")
    assert len(data) == download.size
    assert hashlib.new(kind, data).hexdigest() == expected
    if download.path in TORCHVISION:
        assert hashlib.md5(data).hexdigest() == TORCHVISION[download.path]


def test_the_root_is_read_at_every_call(monkeypatch, tmp_path):
    monkeypatch.setenv("ORDERED_SGD_DATA", str(tmp_path))
    assert data_root() == tmp_path
    monkeypatch.setenv("ORDERED_SGD_DATA", "~/data")
    assert data_root() == Path.home() / "data"
    monkeypatch.setenv("ORDERED_SGD_DATA", "")
    assert data_root() == platformdirs.user_cache_path("ordered-sgd") / "data"
    monkeypatch.delenv("ORDERED_SGD_DATA")
    assert data_root() == platformdirs.user_cache_path("ordered-sgd") / "data"


def test_a_file_is_found_in_each_of_its_places_and_its_own_comes_first(tmp_path):
    path = "MNIST/raw/t10k-labels-idx1-ubyte.gz"
    assert find(tmp_path, path) is None
    (tmp_path / "MNIST/raw").mkdir(parents=True)
    for place in reversed(places(path)):
        (tmp_path / place).write_bytes(b"")
        assert find(tmp_path, path) == tmp_path / place


def test_the_table_of_the_documentation_is_the_catalog():
    page = (Path(__file__).parents[3] / "docs" / "data.md").read_text()
    table = page.partition("<!-- catalog -->\n\n")[2].partition("\n\n<!-- /catalog -->")[0]
    head = ["| name | what it is | one sample | train | test | licence |", "| --- | --- | --- | --- | --- | --- |"]
    rows = [
        f"| `{entry.name}` | {entry.title} | {' x '.join(map(str, entry.shape))} | {entry.counts['train']:,} "
        f"| {entry.counts['test']:,} | {entry.licence} |"
        for entry in CATALOG.values()
    ]
    assert table.splitlines() == head + rows


def test_archives_have_one_place():
    assert places("cifar-10-python.tar.gz") == ("cifar-10-python.tar.gz",)
