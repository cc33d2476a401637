"""The entry point: finds the command, and turns errors into one line and an exit code."""

import importlib
import sys
from typing import Any

import click

from ordered_sgd import __version__
from ordered_sgd.errors import ArgumentError, OrderedSGDError, check_choice
from ordered_sgd.lab.cli.notes import noted_warnings

# Command -> one line of help. The module of the same name in this package is imported when it is run, so that
# `osgd --help` answers at once.
COMMANDS = {
    "advise": "What ordered SGD would save in a training of yours: one verdict, and the figures behind it.",
    "compare": "Ordered SGD against plain SGD and the random-q control, on a named data set or your own.",
    "reproduce": "The paper's tables and figures: its numbers beside ours, with a verdict on every row.",
    "report": "Everything that was recorded, as one HTML page with tables and figures.",
    "records": "What has been run: list, export, import, forget.",
    "data": "The paper's data sets: what is here, download, check, and a sheet of images.",
    "gamma": "The weights that a choice of (n, s, q) gives to the ranks of the losses, as numbers and a figure.",
    "q": "What a choice of q means: effective sample size, CVaR level, share of the hardest samples.",
    "bench": "Speed measured on this machine: a training step with each engine, against plain SGD and its limits.",
    "playground": "A local web page: watch SGD, ordered SGD and a random q train on points in the plane.",
}

_GO_ON = ("compare", "reproduce")  # record every epoch, and go on from there


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if not ctx.resilient_parsing:  # a shell that completes a line says nothing
            check_choice("osgd", "command", args[0], tuple(COMMANDS), "Run: osgd --help")
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"ordered_sgd.lab.cli.{cmd_name}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "--version", message="%(prog)s %(version)s")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def osgd(debug: bool) -> None:
    """Ordered SGD: train on what the model still gets wrong."""


def main(arguments: list[str] | None = None) -> Any:
    """Run `osgd`: exit code 0, or 2 for a wrong command, 1 for a failed run, 130 for Ctrl-C."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        with noted_warnings():
            code = osgd.main(arguments, prog_name="osgd", standalone_mode=False)
        sys.exit(code or 0)
    except (click.Abort, KeyboardInterrupt):
        click.echo(_stopped(arguments), err=True)
        sys.exit(130)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        sys.exit(2)
    except click.UsageError as error:
        where = _where(arguments)
        text = error.format_message().rstrip(".")
        click.echo(f"{where}: {text}. Run: {where} --help", err=True)
        sys.exit(2)
    except click.ClickException as error:
        click.echo(f"osgd: {error.format_message()}", err=True)
        sys.exit(1)
    except OrderedSGDError as error:
        if "--debug" in arguments:
            raise
        inner, _, text = str(error).partition(": ")
        click.echo(str(error) if inner.startswith("osgd") else f"{_where(arguments)}: {text}", err=True)
        sys.exit(2 if isinstance(error, ArgumentError) else 1)
    except OSError as error:
        if "--debug" in arguments:
            raise
        click.echo(f"osgd: {error.strerror}: {error.filename}", err=True)
        sys.exit(1)


def _stopped(arguments: list[str]) -> str:
    """What Ctrl-C left, and how to go on."""
    where = _where(arguments)
    if where.removeprefix("osgd ") not in _GO_ON:
        return f"{where}: stopped."
    if "--force" in arguments:
        return f"{where}: stopped; with --force the same command starts from the beginning."
    return f"{where}: stopped; what was recorded stays, and the same command goes on."


def _where(arguments: list[str]) -> str:
    """The command as it was called, ``osgd q``; click leaves it out where an option lacks its value."""
    return " ".join(["osgd", *(name for name in arguments[:2] if name in COMMANDS)][:2])
