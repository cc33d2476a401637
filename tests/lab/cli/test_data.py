"""`osgd data`, by its click commands, with files of the test's own and a server on this machine."""

import gzip
import hashlib
import http.server
import importlib
import json
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from ordered_sgd.errors import ArgumentError, DataError
from ordered_sgd.installed import how_to_install
from ordered_sgd.lab.cli.data import command
from ordered_sgd.lab.data.catalog import CATALOG, Download, Entry
from ordered_sgd.lab.data.dataset import Dataset

BODY = b"hello" * 1000


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data root, and a working folder, of the test's own."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("ORDERED_SGD_DATA", str(tmp_path / "root"))
    return tmp_path / "root"


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Entry]:
    """A data set of two files in the catalog, and a server that has them."""
    monkeypatch.setenv("no_proxy", "*")
    (tmp_path / "served").mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    handler = partial(Quiet, directory=tmp_path / "served")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        files = []
        for name in ("a", "b"):
            (tmp_path / "served" / name).write_bytes(BODY)
            url = f"http://127.0.0.1:{server.server_address[1]}/{name}"
            files.append(Download(f"tiny/{name}", (url,), f"md5:{hashlib.md5(BODY).hexdigest()}", len(BODY)))
        entry = Entry("tiny", "A tiny set", ("x",), (1,), {"train": 1, "test": 1}, "none", tuple(files))
        monkeypatch.setitem(CATALOG, "tiny", entry)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield entry
        server.shutdown()
        thread.join()


def put_idx(path: Path, array: Any) -> None:
    """An IDX file, packed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    head = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(gzip.compress(head + array.tobytes()))


@pytest.fixture
def few_digits(root: Path) -> Path:
    """Thirty images in place of MNIST's: three of every class, in order of class."""
    images = np.random.default_rng(0).integers(0, 256, (30, 28, 28), dtype=np.uint8)
    for part in ("train", "t10k"):
        put_idx(root / f"MNIST/raw/{part}-images-idx3-ubyte.gz", images)
        put_idx(root / f"MNIST/raw/{part}-labels-idx1-ubyte.gz", np.arange(30, dtype=np.uint8) // 3)
    return root


def listed() -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in json.loads(run("list", "--json").stdout)}


def test_the_list_needs_no_file_and_says_what_every_set_is(root: Path) -> None:
    rows = listed()
    assert list(rows) == list(CATALOG)
    assert {name for name, row in rows.items() if row["here"] == "built in"} >= {
        "semeion",
        "digits",
        "figure1a",
        "figure1d",
    }
    assert rows["cifar10"] == {
        "name": "cifar10",
        "what": CATALOG["cifar10"].title,
        "train": 50_000,
        "test": 10_000,
        "here": "absent",
        "files": 0,
        "of": 7,
        "size": 0,
        "licence": CATALOG["cifar10"].licence,
    }
    assert not root.exists()


def test_the_list_tells_whole_from_partial_by_names_and_sizes(root: Path) -> None:
    def put(path: str, size: int) -> None:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()
        os.truncate(root / path, size)  # takes no room on the disk

    for download in CATALOG["mnist"].downloads:
        put(download.path, download.size)
    for path in CATALOG["cifar10"].downloads[0].members:
        put(path, 31_000_000)
    for path in CATALOG["cifar100"].downloads[0].members:
        put(path, 1000)  # all names, and too small to hold the pixels
    put("semeion.data", 2_889_702)  # in the root itself
    put("svhn/train_32x32.mat", 1000)
    rows = listed()
    states = {name: (row["here"], row["files"], row["of"]) for name, row in rows.items() if row["of"]}
    assert states == {
        "semeion": ("built in", 1, 2),  # the package brings it
        "mnist": ("whole", 4, 4),
        "kmnist": ("absent", 0, 4),
        "fashion-mnist": ("absent", 0, 4),
        "cifar10": ("whole", 7, 7),
        "cifar100": ("partial", 3, 3),
        "svhn": ("partial", 1, 2),
    }
    assert rows["cifar10"]["size"] == 217_000_000
    shown = run("list").stdout
    assert "partial 1/2" in shown
    assert "217.0 MB" in shown
    assert max(len(line) for line in shown.split("\n")) <= 80


def test_fetch_downloads_checks_and_says_where(root: Path, tiny: Entry) -> None:
    done = run("fetch", "tiny", "tiny", "--json")
    assert done.exit_code == 0, done.output
    files = [str(root / "tiny" / name) for name in "ab"]
    assert json.loads(done.stdout) == [{"name": "tiny", "file": file, "size": len(BODY)} for file in files]
    assert all(Path(file).read_bytes() == BODY for file in files)
    assert "5.0/5.0 kB" in done.stderr
    again = run("fetch", "tiny")
    assert again.exit_code == 0
    assert again.stderr == ""
    assert "tiny/b" in again.stdout


def test_fetch_goes_on_with_a_part(root: Path, tiny: Entry) -> None:
    (root / "tiny").mkdir(parents=True)
    (root / "tiny/a.part").write_bytes(BODY[:2000])
    assert run("fetch", "tiny").exit_code == 0
    assert sorted(path.name for path in (root / "tiny").iterdir()) == ["a", "b"]


def test_fetch_that_fails_names_the_files(root: Path, tiny: Entry, tmp_path: Path) -> None:
    (tmp_path / "served" / "b").unlink()
    done = run("fetch", "tiny")
    assert isinstance(done.exception, DataError)
    assert "tiny/b must arrive with 5,000 bytes" in str(done.exception)
    assert "HTTP 404" in str(done.exception)
    assert (root / "tiny/a").exists()


def test_verify_tells_right_from_wrong(root: Path, tiny: Entry) -> None:
    run("fetch", "tiny")
    assert run("verify", "tiny").exit_code == 0
    (root / "tiny/b").write_bytes(b"other")
    done = run("verify", "tiny", "--json")
    assert done.exit_code == 1
    expected, other = f"md5:{hashlib.md5(BODY).hexdigest()}", f"md5:{hashlib.md5(b'other').hexdigest()}"
    assert [(row["path"], row["state"], row["expected"], row["found"]) for row in json.loads(done.stdout)] == [
        ("tiny/a", "ok", expected, expected),
        ("tiny/b", "differs", expected, other),
    ]
    assert run("verify").exit_code == 1
    assert other[4:12] in run("verify").stdout


def test_verify_minds_what_is_missing_only_of_sets_that_are_named(root: Path, tiny: Entry) -> None:
    run("fetch", "tiny")
    (root / "tiny/b").rename(root / "tiny/b.part")
    done = run("verify")
    assert done.exit_code == 0
    assert "part" in done.stdout
    assert run("verify", "tiny").exit_code == 1
    assert run("verify", "mnist").exit_code == 1


def test_a_set_that_comes_with_the_package_is_never_missing(root: Path) -> None:
    done = run("verify", "semeion", "--json")
    assert done.exit_code == 0
    assert {row["state"] for row in json.loads(done.stdout)} == {"built in"}
    (root / "semeion").mkdir(parents=True)
    (root / "semeion/semeion.data").write_bytes(b"0")
    assert run("verify", "semeion").exit_code == 1  # a file of the data folder is read, and so it must be right


def test_verify_does_not_call_an_unpacked_file_wrong(root: Path) -> None:
    raw = root / "MNIST/raw/train-labels-idx1-ubyte"
    raw.parent.mkdir(parents=True)
    raw.write_bytes(b"labels")
    done = run("verify", "--json")
    assert done.exit_code == 0
    states = {row["path"]: row["state"] for row in json.loads(done.stdout)}
    assert states.pop("MNIST/raw/train-labels-idx1-ubyte") == "unpacked"
    assert set(states.values()) == {"missing"}


def test_verify_of_an_empty_folder_says_so(root: Path) -> None:
    done = run("verify")
    assert done.exit_code == 0
    assert done.stdout == ""
    assert done.stderr == f"files in {root}: none. Run: osgd data fetch NAME\n"
    assert json.loads(run("verify", "--json").stdout) == []


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What was given to be drawn, in place of drawing it."""
    calls: list[dict[str, Any]] = []

    def sheet(images: Any, labels: Any, classes: Any, **rest: Any) -> bytes:
        calls.append({"images": images, "labels": labels.tolist(), "classes": classes, **rest})
        return b"PNG"

    monkeypatch.setattr("ordered_sgd.lab.report.contact.contact_sheet", sheet)
    return calls


def test_show_writes_a_sheet_of_a_set_that_needs_no_file(root: Path) -> None:
    done = run("show", "digits", "--split", "test", "--out", "new/sheet.png")
    assert done.exit_code == 0, done.output
    assert done.stderr == f"written: {Path('new/sheet.png')}\n"
    assert Path("new/sheet.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("few_digits")
def test_show_puts_versions_beside_each_image_and_says_what_is_partial(drawn: list[dict[str, Any]]) -> None:
    assert run("show", "mnist").exit_code == 0
    (one,) = drawn
    assert one["labels"] == list(range(10))
    assert one["title"].startswith("mnist (partial: without 59,970 of 60,000 training samples), train\nfirst of each")
    assert "padding=2" in one["title"]
    assert "degrees=15" in one["title"]
    assert one["versions"].shape == (10, 9, 1, 28, 28)
    assert one["versions"].dtype == np.uint8
    assert len(np.unique(one["versions"][0], axis=0)) == 9
    assert Path("mnist-train.png").read_bytes() == b"PNG"
    run("show", "mnist", "--seed", "1")
    run("show", "mnist", "--seed", "0")
    assert not np.array_equal(drawn[1]["versions"], one["versions"])
    assert np.array_equal(drawn[2]["versions"], one["versions"])


@pytest.mark.usefixtures("few_digits")
@pytest.mark.parametrize("arguments", [("--augment", "none"), ("--split", "test")])
def test_show_without_augmentation_takes_every_class_in_turn(
    arguments: tuple[str, ...], drawn: list[dict[str, Any]]
) -> None:
    assert run("show", "mnist", "--n", "25", *arguments).exit_code == 0
    assert drawn[0]["versions"] is None
    assert drawn[0]["labels"] == [*range(10), *range(10), *range(5)]


def test_show_undoes_the_scaling_of_the_recipe(
    root: Path, drawn: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    colour = np.array([200, 100, 50], np.uint8)[:, None, None]
    data = Dataset(np.broadcast_to(colour, (4, 3, 32, 32)).copy(), np.arange(4), tuple("abcd"), "cifar10")
    module = importlib.import_module("ordered_sgd.lab.data.load")
    monkeypatch.setattr(module, "load", lambda *_, **__: data)
    for kind in ("standard", "mixup"):
        assert run("show", "cifar10", "--augment", kind).exit_code == 0
        middle = drawn[-1]["versions"][:, :, :, 8:-8, 8:-8]  # no border of zeros reaches here
        assert (middle == colour).all()
    assert run("show", "cifar10", "--augment", "random-erasing").exit_code == 0
    assert not (drawn[-1]["versions"][:, :, :, 8:-8, 8:-8] == colour).all()


def test_show_reads_a_file_of_the_user(root: Path, drawn: list[dict[str, Any]]) -> None:
    np.savez("mine.npz", x=np.zeros((10, 8, 8), np.uint8), y=np.arange(10) / 4)
    done = run("show", "mine.npz")
    assert done.exit_code == 0, done.exception
    assert drawn[0]["classes"] == ()
    assert Path("mine-train.png").exists()


def test_show_of_points_is_refused(root: Path) -> None:
    done = run("show", "figure1c")
    assert isinstance(done.exception, ArgumentError)
    assert "NAME must hold images; got samples of shape (2,). Run: osgd data list" in str(done.exception)


def test_show_without_matplotlib_names_the_extra(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    done = run("show", "digits")
    assert how_to_install("lab") in str(done.exception)
    assert not list(Path().iterdir())


def test_the_help_loads_nothing_heavy() -> None:
    script = (
        "import sys; from ordered_sgd.lab.cli.main import main\n"
        "try: main(['data', 'show', '--help'])\nfinally: print(*sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    *lines, modules = shown.strip().split("\n")
    assert any("contact sheet" in line for line in lines)
    assert not {"torch", "numpy", "matplotlib"} & set(modules.split())


@pytest.mark.parametrize(("name", "below"), [("mnist", ""), ("cifar10", ""), ("semeion", ""), ("svhn", "samples")])
def test_real_images_make_a_sheet(name: str, below: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = os.environ.get("ORDERED_SGD_DATA")
    if not given or not listed_at(Path(given, below), name, monkeypatch):
        pytest.skip(f"ORDERED_SGD_DATA is not set, or {name} is not there")
    done = run("show", name, "--n", "5", "--out", str(tmp_path / "sheet.png"))
    assert done.exit_code == 0, done.output
    assert (tmp_path / "sheet.png").stat().st_size > 10_000


def listed_at(root: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setenv("ORDERED_SGD_DATA", str(root.absolute()))
    return bool(listed()[name]["files"])
