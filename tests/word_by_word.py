"""What a stranger does with a page: its blocks in order, typed into one shell, in a copy of the checkout."""

import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"# (\w+\.py)\n")  # a block that the page asks to save as a file begins with its name
STOPPED = ("osgd playground", "# hours; Ctrl-C stops")  # in a line that a page says Ctrl-C ends
LEFT_OUT = {"make test": "it is the suite that this test belongs to"}
OF_YOUR_OWN = {  # files that a page takes to be there
    "table.csv": "height,weight,label\n"
    + "".join(f"{i % 7},{i % 5},{'cat' if i % 7 > 3 else 'dog'}\n" for i in range(200)),
    "my/module.py": """import numpy as np
from torch import nn

from ordered_sgd.lab.data import from_arrays


def function():
    x = np.random.default_rng(0).normal(size=(200, 4))
    return from_arrays(x, (x[:, 0] > 0).astype(int)), nn.Linear(4, 2)
""",
}


@dataclass(frozen=True)
class Block:
    """A block of a page: Python, or lines for the shell."""

    python: bool
    text: str

    @property
    def file(self) -> str | None:
        """The name that the page asks to save it by."""
        named = NAMED.match(self.text) if self.python else None
        return None if named is None else named[1]

    @property
    def commands(self) -> list[str]:
        """The lines that are typed."""
        return [] if self.python else [line for line in self.text.splitlines() if line.strip()]


def blocks(page: Path) -> Iterator[Block]:
    """The blocks of a page that are typed or run, in order."""
    for language, text in BLOCK.findall(page.read_text()):
        if language in ("", "sh", "python"):
            yield Block(language == "python", text)


def why_not(command: str) -> str | None:
    """Why a line is left out, or None if it is typed."""
    return next((why for words, why in LEFT_OUT.items() if command.startswith(words)), None)


def checkout(folder: Path) -> Path:
    """A copy of the tracked files."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    subprocess.run(["git", "init", "--quiet", str(folder)], check=True)  # .gitignore counts in a repository only
    return folder


class Shell:
    """One bash for the whole page, so that an environment that was activated stays so."""

    _MARK = "--- end of the command:"

    def __init__(self, folder: Path, home: Path) -> None:
        own = str(Path(sys.prefix) / "bin")
        path = [part for part in os.environ["PATH"].split(os.pathsep) if part != own]
        kept = {name: text for name, text in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
        kept |= {"PATH": os.pathsep.join(path), "ORDERED_SGD_HOME": str(home), "XDG_DATA_HOME": str(home / "data")}
        pipe = subprocess.PIPE
        self._bash = subprocess.Popen(
            ["bash", "--norc"], cwd=folder, env=kept, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        self._type("trap : INT")  # the shell outlives a command that is stopped

    def run(self, command: str, *, seconds: float, stop_after: float | None = None) -> tuple[int, str]:
        """Exit code and output of a line; with `stop_after`, Ctrl-C is pressed after so many seconds."""
        self._type(f"{command}\nprintf '\\n{self._MARK} %s\\n' $?")
        end, stop = time.monotonic() + seconds, None if stop_after is None else time.monotonic() + stop_after
        text = ""
        while (done := re.search(rf"\n{self._MARK} (\d+)\n", text)) is None:
            now = time.monotonic()
            if stop is not None and now > stop:
                os.killpg(self._bash.pid, signal.SIGINT)
                stop = None
            if now > end:
                raise TimeoutError(f"{command}: not over after {seconds:.0f} s; so far:\n{text}")
            assert self._bash.stdout is not None
            if select.select([self._bash.stdout], [], [], 0.2)[0]:
                text += os.read(self._bash.stdout.fileno(), 65536).decode(errors="replace")
        return int(done[1]), text[: done.start()].strip()

    def close(self) -> None:
        """End the shell and what it started."""
        with self._bash:
            os.killpg(self._bash.pid, signal.SIGKILL)

    def _type(self, line: str) -> None:
        assert self._bash.stdin is not None
        self._bash.stdin.write(f"{line}\n".encode())
        self._bash.stdin.flush()
