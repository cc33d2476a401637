import click
import pytest

from ordered_sgd.errors import MissingExtraError, NonFiniteLossError
from ordered_sgd.lab.cli import main as cli


def exit_code(monkeypatch: pytest.MonkeyPatch, error: BaseException, *arguments: str) -> int:
    def fail(**options: object) -> None:
        raise error

    command = click.Command("q", callback=fail)
    monkeypatch.setattr(cli._Lazy, "get_command", lambda self, ctx, name: command)
    with pytest.raises(SystemExit) as ended:
        cli.main([*arguments, "q"])
    return int(ended.value.code or 0)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NonFiniteLossError("osgd q: losses must be finite; got nan. Lower the rate."), 1),
        (MissingExtraError("osgd q: numba must be installed; got no module 'numba'. Run: pip"), 1),
        (click.FileError("x.csv", "gone"), 1),
        (KeyboardInterrupt(), 130),
        (click.Abort(), 130),
    ],
)
def test_failures_and_ctrl_c_have_their_exit_codes_and_no_traceback(
    error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(monkeypatch, error) == code
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("q",), "osgd q: stopped.\n"),
        (
            ("compare", "--quiet"),
            "osgd compare: stopped; what was recorded stays, and the same command goes on.\n",
        ),
        (
            ("--debug", "reproduce", "table1", "--force"),
            "osgd reproduce: stopped; with --force the same command starts from the beginning.\n",
        ),
    ],
    ids=lambda given: given[0],
)
def test_ctrl_c_is_told_with_the_way_to_go_on(
    arguments: tuple[str, ...], line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*given: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli.osgd, "main", stop)
    with pytest.raises(SystemExit) as ended:
        cli.main(list(arguments))
    assert (ended.value.code, capsys.readouterr().err) == (130, line)


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli._Lazy, "get_command", lambda self, ctx, name: click.Command("q", callback=fail))

    def fail() -> None:
        raise NonFiniteLossError("osgd q: it failed")

    with pytest.raises(NonFiniteLossError):
        cli.main(["--debug", "q"])
