"""What several commands share: options, and tables or JSON on standard output."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ordered_sgd.errors import ArgumentError, message
from ordered_sgd.rules import resolve_q

_WIDE = 10_000  # columns of a file or a pipe: a table takes what it needs, and every row is one line, to be searched


class Q(click.ParamType):  # type: ignore[type-arg]  # generic only in new versions of click
    """How many samples are kept: a count, or a share of the mini-batch."""

    name = "q"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """An int or a float; what they may be is checked with s."""
        try:
            return int(value)
        except ValueError:
            pass
        try:
            return float(value)
        except ValueError:
            self.fail(f"must be a count such as 16 or a share such as 0.25; got {value!r}", param, ctx)


class Counts(click.ParamType):  # type: ignore[type-arg]  # generic only in new versions of click
    """Integers separated by commas: ``200,1000``."""

    name = "counts"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """The integers; a default is passed through."""
        if isinstance(value, tuple):
            return value
        try:
            return tuple(int(part.replace("_", "")) for part in value.split(","))
        except ValueError:
            self.fail(f"must be integers separated by commas; got {value!r}", param, ctx)


class Floats(click.ParamType):  # type: ignore[type-arg]  # generic only in new versions of click
    """Numbers separated by commas: ``0.5,0.25``."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...]:
        """The numbers."""
        if isinstance(value, tuple):
            return value
        try:
            return tuple(float(part) for part in value.split(","))
        except ValueError:
            self.fail(f"must be numbers separated by commas; got {value!r}", param, ctx)


class Shares(Floats):
    """Shares separated by commas: ``1,0.5``; 1 is the whole."""

    name = "shares"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...]:
        """The shares; a default is passed through."""
        found = super().convert(value, param, ctx)
        if not all(0 < share <= 1 for share in found):
            self.fail(f"must be shares in (0, 1] separated by commas; got {value!r}", param, ctx)
        return found


def kept(q: float, s: int, where: str) -> int:
    """How many of s samples `--q` keeps; an error where it is more than all of them, for which a share may be meant.

    >>> kept(16, 64, "osgd q"), kept(0.25, 64, "osgd q"), kept(0.001, 64, "osgd q")
    (16, 16, 1)
    """
    if isinstance(q, int) and 1 <= q <= s:
        return q
    if isinstance(q, float) and 0 < q <= 1:
        return resolve_q(q, s, where)
    remedy = f"For {q:g} % of the mini-batch pass the share: --q {q / 100:g}."
    if not 1 < q <= 100:
        remedy = "Pass --q 1 for the largest loss alone, or a share such as --q 0.25."
    raise ArgumentError(message(where, "--q", f"be a count from 1 to s = {s} or a share in (0, 1]", q, remedy))


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines instead of a table.")


def out_option(name: str, words: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """``--out``, by default a file of this name in the present folder."""
    return click.option("--out", type=click.Path(path_type=Path), default=Path(name), show_default=True, help=words)


def backend_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Where runs are carried out: the options of the commands that train."""
    for option in (
        click.option("--address", default=None, help="A running Ray: auto or host:6379; by default one is started."),
        click.option("--backend", default="processes", show_default=True, help="processes, or ray: docs/cluster.md."),
        click.option(
            "--workers", type=click.IntRange(min=1), default=None, help="Runs side by side; the cores by default."
        ),
    ):
        command = option(command)
    return command


def given(*names: str) -> list[str]:
    """The options among these parameters that were given on the command line, as they are spelled there."""
    context = click.get_current_context()
    typed = [name for name in names if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE]
    return [param.opts[0] for param in context.command.params if param.name in typed]


def show(rows: Sequence[Mapping[str, Any]], *, title: str, as_json: bool) -> None:
    """Print rows as a table or as a JSON list; the keys of the first row are the columns."""
    if as_json:
        click.echo(json.dumps(list(rows), indent=2))
        return
    table = Table(title=title, title_justify="left")
    for column in rows[0]:
        # Folded and not cut: an id is there to be copied. That of a run is short enough to stay in one piece.
        heading = column.replace("_", " ") if column.isidentifier() else column  # names out of data stay as they are
        table.add_column(heading, justify="right", overflow="fold", no_wrap=column == "run_id")
    for row in rows:
        table.add_row(*(_cell(value) for value in row.values()))
    console = Console(markup=False, emoji=False)  # a note in square brackets is no style, :cat: no picture
    if not console.is_terminal:
        console.width = _WIDE
    console.print(table)


def show_record(
    record: Mapping[str, Any], tables: Callable[[Any], Mapping[str, Sequence[Mapping[str, Any]]]], as_json: bool
) -> None:
    """Print a record as JSON, or as the tables, by title, that are made of it."""
    if as_json:
        click.echo(json.dumps(record, indent=1))
        return
    for title, rows in tables(record).items():
        show(rows, title=title, as_json=False)


def check_out(where: str, path: Path) -> None:
    """Refuse a file that cannot be written, before hours of training; leaves none behind."""
    new = not path.exists()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a"):
            pass
    except OSError as error:
        rule, got, remedy = "be a file that can be written", f"{path} ({error.strerror})", "Name another one."
        raise ArgumentError(message(where, "--out", rule, got, remedy)) from error
    if new:
        path.unlink()


def write(path: Path, text: str) -> Path:
    """Write a text file, its folder made if it is missing."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:  # of a full disk the system does not say which file it was
        raise OSError(error.errno, error.strerror, str(path)) from error
    return path


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Replace the file in one go, so that Ctrl-C never leaves half of it."""
    part = write(path.with_name(path.name + ".part"), json.dumps(document, indent=1) + "\n")
    part.replace(path)


@contextmanager
def progress(text: str, total: int, *, quiet: bool = False) -> Iterator[Callable[..., None]]:
    """A bar on standard error, and ``tick(text=None, count=1)`` to move it and to change its text.

    It is drawn only when it is moved: a thread that refreshes it would be measured too.
    """
    parts = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*parts, console=Console(stderr=True), auto_refresh=False, transient=True, disable=quiet) as bar:
        task = bar.add_task(text, total=total)

        def tick(text: str | None = None, count: int = 1) -> None:
            bar.update(task, advance=count, description=text, refresh=True)

        yield tick


def _cell(value: Any) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
