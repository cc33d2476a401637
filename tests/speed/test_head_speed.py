"""The head of a language model at q = 1/4, in an ordinary process: one that gives freed memory back to the system."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.bench


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """In a process of its own: what other measurements tell malloc cannot be undone."""
    found: dict[str, float] = {}
    for words, width, step in ((32_768, 256, "--step"), (50_304, 512, "--no-step")):
        out = tmp_path_factory.mktemp("head") / "record.json"
        options = f"--words {words} --widths {width} --q 0.25 --no-probe --no-keep-freed {step} --out {out}"
        osgd = Path(sys.executable).with_name("osgd")
        subprocess.run([osgd, "bench", "head", *options.split()], check=True, capture_output=True, timeout=900)
        record = json.loads(out.read_text())
        found |= {str(row["words"]): row["ratio"] for row in record["heads"] if row["way"] == "ordered"}
        found |= {f"step, {row['way']}": row["speedup"] for row in record["steps"]}
    print(found)
    return found


def test_the_head_with_32k_words_takes_at_most_60_percent_of_plain(measured: dict[str, float]) -> None:
    assert measured["32768"] <= 0.60


def test_the_head_with_50k_words_takes_at_most_65_percent_of_plain(measured: dict[str, float]) -> None:
    assert measured["50304"] <= 0.65


def test_a_step_of_a_small_gpt_is_at_least_a_quarter_faster(measured: dict[str, float]) -> None:
    assert measured["step, ordered"] >= 1.25
