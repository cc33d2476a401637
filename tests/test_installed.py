"""The hint for a missing extra is a command that works for the way in which the package was installed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ordered_sgd import installed
from ordered_sgd.installed import how_to_install
from tests.word_by_word import checkout

ROOT = Path(__file__).parents[1]


@pytest.fixture
def site_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package's file as it lies in an environment, with metadata of its own."""
    folder = tmp_path / "lib" / "site-packages"
    (folder / "ordered_sgd").mkdir(parents=True)
    monkeypatch.setattr(installed, "__file__", str(folder / "ordered_sgd" / "installed.py"))
    metadata = folder / "ordered_sgd-0.1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: ordered-sgd\nVersion: 0.1\n")
    monkeypatch.syspath_prepend(folder)
    return metadata


def from_record(metadata: Path, record: object) -> str:
    (metadata / "direct_url.json").write_text(json.dumps(record))
    return how_to_install("lab")


def test_in_a_source_tree_it_is_installed_from_there() -> None:
    assert how_to_install("lab") == f'Run in {ROOT}: pip install -e ".[lab]"'


def test_a_folder_that_was_installed_is_gone_back_to(site_packages: Path, tmp_path: Path) -> None:
    checkout = tmp_path / "a checkout"
    checkout.mkdir()
    (checkout / "pyproject.toml").write_text('[project]\nname = "ordered-sgd"\n')
    record = {"url": checkout.as_uri(), "dir_info": {}}
    assert from_record(site_packages, record) == f'Run in {checkout}: pip install ".[lab]"'
    record["dir_info"] = {"editable": True}
    assert from_record(site_packages, record) == f'Run in {checkout}: pip install -e ".[lab]"'
    (checkout / "pyproject.toml").unlink()  # the folder was moved
    assert from_record(site_packages, record) == 'Run: pip install "ordered-sgd[lab]"'


def test_a_repository_or_a_file_is_named_by_its_address(site_packages: Path) -> None:
    record: dict[str, object] = {"url": "https://host/x.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}}
    assert from_record(site_packages, record) == 'Run: pip install "ordered-sgd[lab] @ git+https://host/x.git@abc"'
    record = {"url": "file:///tmp/x.whl", "archive_info": {}}
    assert from_record(site_packages, record) == 'Run: pip install "ordered-sgd[lab] @ file:///tmp/x.whl"'


def test_without_a_record_an_index_is_taken_for_the_source(site_packages: Path) -> None:
    assert how_to_install("lab") == 'Run: pip install "ordered-sgd[lab]"'
    (site_packages / "direct_url.json").write_text("not JSON")
    assert how_to_install("lab") == 'Run: pip install "ordered-sgd[lab]"'
    assert from_record(site_packages, ["a list"]) == 'Run: pip install "ordered-sgd[lab]"'


@pytest.mark.slow
@pytest.mark.parametrize("editable", [True, False])
def test_the_hint_is_true_of_a_real_installation(editable: bool, tmp_path: Path) -> None:
    """pip writes the record; the package's needs are left out, and the hint is asked for without importing them."""
    environment = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    python = environment / "bin" / "python"
    copy = checkout(tmp_path / "copy")
    flag = ["-e"] if editable else []
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", "--no-deps", *flag, str(copy)], check=True)
    script = (
        "try:\n    from ordered_sgd.errors import require; require('jinja2', extra='lab', where='osgd')\n"
        "except ImportError as error:\n    print(error)"
    )
    alone = {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}  # not this tree
    asked = subprocess.run(
        [str(python), "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path, env=alone
    )
    fault, _, remedy = asked.stdout.strip().partition(". Run in ")
    assert fault == "osgd: jinja2 must be installed; got no module 'jinja2'"
    folder, _, command = remedy.partition(": ")
    assert folder == str(copy)
    assert command == f'pip install {"-e " if editable else ""}".[lab]"'
    command = command.replace("pip install", f"{python} -m pip install --quiet --no-deps --dry-run")
    assert subprocess.run(command, shell=True, cwd=folder, capture_output=True).returncode == 0
