import json
import sys
from pathlib import Path

import pytest

from ordered_sgd.installed import how_to_install
from ordered_sgd.lab.cli.main import main


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["gamma", *arguments])
    return int(ended.value.code or 0)


def test_the_summary_says_where_the_weights_fall_and_how_far_the_limit_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--n", "5,5000", "--s", "5", "--q", "2", "--json", "--out", str(tmp_path / "g")) == 0
    small, large = json.loads(capsys.readouterr().out)
    assert small["half_weight_rank"] == small["nonzero_ranks"] == 2  # n = s: the two largest, always
    assert small["effective_samples"] == pytest.approx(2)
    assert large["largest_weight"] == pytest.approx(5 / 5000)
    assert large["distance_from_limit"] < 1e-3 < small["distance_from_limit"]


def test_the_figure_is_a_png_and_an_svg_with_a_panel_each_and_the_same_bytes_again(tmp_path: Path) -> None:
    first, second = tmp_path / "new" / "a.b", tmp_path / "c"
    assert run("--figure2", "--out", str(first)) == 0
    assert run("--figure2", "--out", str(second)) == 0
    png, svg = (first.with_name("a.b" + suffix).read_bytes() for suffix in (".png", ".svg"))
    assert png.startswith(b"\x89PNG")
    assert svg.count(b'id="axes_') == 3
    assert svg == second.with_suffix(".svg").read_bytes()


def test_the_paper_s_figure_and_one_of_your_own_do_not_share_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("--n", "20", "--s", "8", "--q", "3") == 0
    assert run("--figure2") == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["figure2.png", "figure2.svg", "gamma.png", "gamma.svg"]


def test_a_suffix_is_not_doubled_and_the_figure_can_be_left_out(tmp_path: Path) -> None:
    assert run("--n", "20", "--s", "8", "--q", "0.25", "--no-figure", "--out", str(tmp_path / "none")) == 0
    assert run("--n", "20", "--s", "8", "--q", "0.25", "--out", str(tmp_path / "one.png")) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.png", "one.svg"]


def test_without_matplotlib_the_numbers_come_and_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert run("--n", "20", "--s", "5", "--q", "2", "--out", str(tmp_path / "g")) == 1
    out, err = capsys.readouterr()
    assert "half" in out
    assert err == (f"osgd: matplotlib must be installed; got no module 'matplotlib'. {how_to_install('lab')}\n")
