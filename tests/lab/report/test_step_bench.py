import json
import re
from pathlib import Path
from typing import Any

from ordered_sgd.lab.bench.subjects import ON_REQUEST, ROWS
from ordered_sgd.lab.report.step_bench import _BARS, draw_step_bench, step_bench_markdown, step_bench_page

SPEEDS = {
    "sgd": 1.0,
    "dense": 0.98,
    "selective": 1.8,
    "rows": 1.9,
    "twopass": 1.7,
    "auto": 1.9,
    "limit-a": 1.8,
    "limit-b": 2.0,
}


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


def test_every_step_has_a_bar_of_its_own_colour(tmp_path: Path) -> None:
    assert set(_BARS) == {*ROWS, *ON_REQUEST} - {"sgd"}
    assert len(set(_BARS.values())) == len(_BARS)


def test_a_record_without_the_newest_steps_still_renders(tmp_path: Path) -> None:
    record = json.loads((Path(__file__).parents[3] / "docs" / "records" / "bench-step.json").read_text())
    old = {**record, "rows": [row for row in record["rows"] if row["row"] != "selective"]}
    page = step_bench_page("<!-- bench-step -->\n<!-- /bench-step -->", old, "a.svg")
    assert "| lenet | rows |" in page
    assert "selective_backward" not in page
    assert all(path.exists() for path in draw_step_bench(old["rows"], tmp_path / "a", (".svg",)))


def test_a_selective_step_that_left_nothing_out_says_so() -> None:
    cell = {"model": "vit", "threads": 1, "s": 64, "row": "selective", "speedup": 0.97}
    lines = step_bench_markdown([{**cell, "q": 64, "ran": "whole"}, {**cell, "q": 32, "ran": "selective"}])
    assert "| vit | plain loop, selective_backward | 0.97 (whole) | 0.97 |" in lines
