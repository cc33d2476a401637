"""`osgd records` as it is typed, on runs that nobody trained."""

from pathlib import Path

import pytest

from ordered_sgd.lab.cli.main import main
from ordered_sgd.lab.experiments.spec import ExperimentSpec
from ordered_sgd.lab.experiments.store import Records

SPECS = [ExperimentSpec(seed=seed) for seed in range(17)]  # more than there are first letters: two ids share theirs


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Records:
    monkeypatch.setenv("ORDERED_SGD_HOME", str(tmp_path))
    made = Records(tmp_path)
    for spec in SPECS:
        made.begin(spec)
    return made


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["records", *arguments])
    return int(ended.value.code or 0)


def left(records: Records) -> list[ExperimentSpec]:
    return [found.spec for found in records.runs()]


def test_a_run_is_forgotten_by_the_beginning_of_its_id(records: Records, capsys: pytest.CaptureFixture[str]) -> None:
    first, second, *others = SPECS
    assert run("rm", first.run_id[:10], second.run_id, second.run_id[:12]) == 0
    assert capsys.readouterr().err == "forgotten: 2\n"
    assert left(records) == others


def test_a_beginning_that_several_ids_share_is_refused_and_nothing_forgotten(
    records: Records, capsys: pytest.CaptureFixture[str]
) -> None:
    letters = [spec.run_id[0] for spec in SPECS]
    shared = next(letter for letter in letters if letters.count(letter) > 1)
    assert run("rm", SPECS[0].run_id, shared) == 2
    assert capsys.readouterr().err.startswith(
        f"osgd records: RUN_ID must be how one id alone begins; got {shared}, as {letters.count(shared)} do. Give more"
    )
    assert left(records) == SPECS


@pytest.mark.parametrize("arguments", [("list",), ("list", "--json"), ("export",), ("rm", "abc")], ids=" ".join)
@pytest.mark.parametrize("inside", ["", "deeper"])
def test_a_home_that_is_a_file_is_refused(
    arguments: tuple[str, ...],
    inside: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").touch()
    home = tmp_path / "file" / inside
    monkeypatch.setenv("ORDERED_SGD_HOME", str(home))
    assert run(*arguments) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"osgd records: {home} must be writable; got ")
    assert err.endswith(". Set ORDERED_SGD_HOME to a folder that can be written.\n")


def test_looking_makes_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORDERED_SGD_HOME", str(tmp_path / "home"))
    assert run("list") == 0
    assert not (tmp_path / "home").exists()
