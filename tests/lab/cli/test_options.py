import io
from functools import partial

import pytest
from rich.console import Console

from ordered_sgd.lab.cli import options

ROWS = [
    {
        "run_id": f"{number:016x}",
        "row": f"semeion-svm-hidden-off-hinge-mean-lr-0.{number:02d}",
        "verdict": "better " * 6,
        "notes": "[width 0.25]",
    }
    for number in (1, 2)
]


def shown(monkeypatch: pytest.MonkeyPatch, *, terminal: bool) -> str:
    out = io.StringIO()
    monkeypatch.setattr(options, "Console", partial(Console, file=out, force_terminal=terminal, color_system=None))
    monkeypatch.setenv("COLUMNS", "80")
    options.show(ROWS, title="", as_json=False)
    return out.getvalue()


def test_ids_are_folded_and_not_cut_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(monkeypatch, terminal=True)
    cells = [line.split("│")[2].strip() for line in text.splitlines() if line.startswith("│")]
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    assert "".join(cells) == "".join(row["row"] for row in ROWS)
    assert all(row["run_id"] in text for row in ROWS)  # in one piece, to be copied


def test_in_a_pipe_every_row_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [line for line in shown(monkeypatch, terminal=False).splitlines() if line.startswith("│")]
    assert len(lines) == len(ROWS)
    assert all("[width 0.25]" in line for line in lines)  # not taken for a style
    assert all(row["row"] in line and row["run_id"] in line for row, line in zip(ROWS, lines, strict=True))
