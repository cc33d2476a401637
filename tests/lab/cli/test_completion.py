"""Tab in a real bash, set up by the line that the documentation shows."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ordered_sgd.lab.cli.main import COMMANDS

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")


def completed(*words: str) -> list[str]:
    """What bash offers when Tab is pressed at the end of the last word."""
    shown = re.search(r'^eval "\$\(_OSGD_COMPLETE=bash_source osgd\)"$', (ROOT / "docs" / "start.md").read_text(), re.M)
    assert shown is not None
    quoted = " ".join(f"'{word}'" for word in words)
    script = f"{shown[0]}\nCOMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}\n_osgd_completion osgd\n"
    script += 'complete -p osgd > /dev/null || exit 1\nprintf "%s\\n" "${COMPREPLY[@]}"'
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env={**os.environ, "PATH": path})
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


def test_commands_are_completed() -> None:
    assert completed("osgd", "") == list(COMMANDS)
    assert completed("osgd", "rep") == ["reproduce", "report"]
    assert completed("osgd", "records", "ex") == ["export"]


@pytest.mark.parametrize("name", COMMANDS)
def test_options_are_completed_for_every_command(name: str) -> None:
    assert "--help" in completed("osgd", name, "--h")


def test_a_wrong_command_completes_to_nothing_and_says_nothing() -> None:
    assert completed("osgd", "recod", "l") == []
