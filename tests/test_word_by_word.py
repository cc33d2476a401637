"""README and Start, followed word by word by a stranger: a copy of the checkout, a fresh environment, real commands."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.word_by_word import LEFT_OUT, OF_YOUR_OWN, ROOT, STOPPED, Block, Shell, blocks, checkout, why_not

PAGES = {  # and what is there in the end
    "README.md": ("compare.html", "report.html", ".venv/bin/osgd"),
    "docs/start.md": ("compare.html", "wine.html", "report.html"),
}
HALF_AN_HOUR = 1800.0


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    folder = checkout(tmp_path / "ordered-sgd")
    for name, text in OF_YOUR_OWN.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    one = Shell(folder, tmp_path / "home")
    yield one
    one.close()


@pytest.mark.slow
@pytest.mark.parametrize("page", list(PAGES))
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="the tracked files are known from git")
@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_a_page_works_word_by_word_in_a_fresh_environment(page: str, shell: Shell, tmp_path: Path) -> None:
    folder, before = tmp_path / "ordered-sgd", ""
    for block in blocks(ROOT / page):
        if block.file is not None:
            (folder / block.file).write_text(block.text)
        elif block.python:
            before += block.text  # a page is one session: a block goes on with what the ones before it made
            (tmp_path / "session.py").write_text(before)
            follow(shell, f"python {tmp_path / 'session.py'}")
        for command in block.commands:
            if why_not(command) is None:
                follow(shell, command)
    assert [name for name in PAGES[page] if not (folder / name).exists()] == []
    ruff = [sys.executable, "-m", "ruff", "check", "--extend-exclude", "my", "."]
    checked = subprocess.run(ruff, cwd=folder, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout  # what the page says to save is not taken for the project's code


def follow(shell: Shell, command: str) -> None:
    """Type a line, and press Ctrl-C where the page says that this ends it."""
    stopped = any(words in command for words in STOPPED)
    code, text = shell.run(command, seconds=HALF_AN_HOUR, stop_after=30 if stopped else None)
    print(f"$ {command}\n{text}\n")
    assert code in ((0, 130) if stopped else (0,)), f"{command}: exit code {code}\n{text}"
    assert "Traceback" not in text, f"{command}:\n{text}"


def test_both_pages_begin_with_an_environment_and_an_installation() -> None:
    for page in PAGES:
        first = next(blocks(ROOT / page))
        assert [line.split()[0] for line in first.commands] == ["python3", ".", "pip"], page


def test_what_is_left_out_or_stopped_is_still_in_the_pages() -> None:
    typed = [command for page in PAGES for block in blocks(ROOT / page) for command in block.commands]
    assert all(any(command.startswith(words) for command in typed) for words in LEFT_OUT)
    assert all(any(words in command for command in typed) for words in STOPPED)
    assert all(any(Path(name).stem in command for command in typed) for name in OF_YOUR_OWN)


def test_a_shell_keeps_its_state_and_survives_ctrl_c(tmp_path: Path) -> None:
    one = Shell(tmp_path, tmp_path / "home")
    try:
        assert one.run("greeting=hello", seconds=10) == (0, "")
        assert one.run("echo $greeting; false", seconds=10) == (1, "hello")
        code, _ = one.run("sleep 60", seconds=30, stop_after=0.5)
        assert code == 130
        assert one.run("echo $greeting", seconds=10)[1].endswith("hello")
        with pytest.raises(TimeoutError, match="sleep 60: not over after"):
            one.run("sleep 60", seconds=0.5)
    finally:
        one.close()


def test_a_block_with_a_file_name_is_saved_and_not_run() -> None:
    assert Block(True, "# first.py\nimport torch\n").file == "first.py"
    assert Block(True, "import torch  # first.py\n").file is None
    assert Block(False, "# first.py\n").file is None
