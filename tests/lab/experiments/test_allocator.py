"""Freed memory is not given back to the system, where the C library can be told so."""

import platform
import subprocess
import sys

import pytest

# Every turn takes 40 MB in pieces and frees them; how often the system had to hand out a page in the last turns.
TURNS = """
import resource, sys
from ordered_sgd.lab.experiments.allocator import keep_freed_memory
told = sys.argv[1] == "keep" and keep_freed_memory()
for turn in range(30):
    if turn == 10:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    held = [b"x" * (8 << 20) for piece in range(5)]
    del held
print(told, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> tuple[bool, int]:
    """Whether malloc was told, and the pages that were faulted in."""
    printed = subprocess.run([sys.executable, "-c", TURNS, how], capture_output=True, text=True, check=True).stdout
    told, count = printed.split()
    return told == "True", int(count)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc: no other malloc is told anything")
def test_pages_that_a_turn_frees_are_there_in_the_next() -> None:
    told, kept = faults("keep")
    assert told
    assert kept < 100  # of 20 turns with 10,240 pages each
    _, given_back = faults("leave")
    assert given_back > 10 * (kept + 1)
