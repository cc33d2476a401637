"""A progress bar over the epochs of many runs, for the commands that train."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from ordered_sgd.lab.experiments.spec import ExperimentSpec


@contextmanager
def epoch_bar(title: str, total: int, *, quiet: bool) -> Iterator[Callable[["ExperimentSpec", int], None]]:
    """A bar on standard error, and the function that moves it: called with a run and its epochs so far."""
    percent, ends = (
        TextColumn("{task.percentage:3.0f} %"),
        (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn()),
    )
    done: dict[ExperimentSpec, int] = {}
    bar = Progress(
        TextColumn(title), BarColumn(), percent, *ends, console=Console(stderr=True), transient=True, disable=quiet
    )
    with bar:
        task = bar.add_task(title, total=total)

        def move(spec: "ExperimentSpec", epochs: int) -> None:
            done[spec] = max(epochs, done.get(spec, 0))
            bar.update(task, completed=sum(done.values()))

        yield move
