import sys
from pathlib import Path

import pytest

from ordered_sgd.errors import ArgumentError, MissingExtraError, OrderedSGDError, check_choice, require, warn


def test_a_missing_extra_names_the_command_that_brings_it() -> None:
    with pytest.raises(MissingExtraError) as error:
        require("no_such_package.sub", extra="linear", where="OrderedLogisticRegression")
    expected = (
        "OrderedLogisticRegression: no_such_package must be installed; got no module 'no_such_package'. "
        f'Run in {Path(__file__).parents[1]}: pip install -e ".[linear]"'
    )
    assert str(error.value) == expected
    assert isinstance(error.value, ImportError)


def test_a_module_that_is_there_but_broken_is_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "half_installed.py").write_text("import something_it_needs\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="something_it_needs") as error:
        require("half_installed", extra="linear", where="test")
    assert not isinstance(error.value, MissingExtraError)
    assert "half_installed" not in sys.modules


def test_argument_errors_are_caught_as_value_and_as_type_errors() -> None:
    for kind in (ValueError, TypeError, OrderedSGDError):
        with pytest.raises(kind):
            check_choice("test", "engine", "x", ("dense",))


def test_a_value_far_from_every_choice_gets_the_first_as_advice() -> None:
    with pytest.raises(ArgumentError, match=r"test: engine must be one of dense, rows; got 7. Use engine='dense' when"):
        check_choice("test", "engine", 7, ("dense", "rows"))


def test_a_warning_points_at_the_line_of_the_user() -> None:
    with pytest.warns(UserWarning, match="look here") as caught:
        warn("look here")
    assert caught[0].filename == __file__
