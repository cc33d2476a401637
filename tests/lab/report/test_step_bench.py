import re
from pathlib import Path
from typing import Any

from ordered_sgd.lab.report.step_bench import draw_step_bench

SPEEDS = {"sgd": 1.0, "dense": 0.98, "rows": 1.9, "twopass": 1.7, "auto": 1.9, "limit-a": 1.8, "limit-b": 2.0}


def rows(models: tuple[str, ...] = ("lenet", "vit"), threads: tuple[int, ...] = (1, 2)) -> list[dict[str, Any]]:
    """What the command prints, as far as the figure reads it."""
    cells = [(m, t, q, name) for m in models for t in threads for q in (64, 32) for name in SPEEDS]
    cells += [(m, t, 32, "selective-backprop") for m in models for t in threads]
    table = []
    for model, count, q, name in cells:
        speed = SPEEDS.get(name, 1.2)
        spread = (None, None) if name.startswith("limit") else (speed - 0.1, speed + 0.1)
        keys = ("model", "threads", "q", "row", "speedup", "speedup_low", "speedup_high")
        table.append(dict(zip(keys, (model, count, q, name, speed, *spread), strict=True)))
    return table


def test_a_panel_for_each_model_and_number_of_threads_and_the_same_bytes_again(tmp_path: Path) -> None:
    png, svg = draw_step_bench(rows(), tmp_path / "a" / "chart")
    assert png.read_bytes().startswith(b"\x89PNG")
    assert len(re.findall(r'id="axes_', svg.read_text())) == 4
    assert svg.read_bytes() == draw_step_bench(rows(), tmp_path / "b")[1].read_bytes()


def test_columns_that_are_missing_after_an_interruption_are_left_out(tmp_path: Path) -> None:
    some = [row for row in rows(("lenet",), (1,)) if row["q"] == 64]
    assert all(path.exists() for path in draw_step_bench(some, tmp_path / "chart"))
