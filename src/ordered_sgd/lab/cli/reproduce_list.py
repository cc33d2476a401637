"""`osgd reproduce --list`: rows with their runs, and an estimate of the time that they take here."""

import time
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import click

from ordered_sgd.lab.cli.options import show

if TYPE_CHECKING:
    from ordered_sgd.lab.experiments.recipes import Protocol, RecipeRow
    from ordered_sgd.lab.experiments.requests import Request

A_YEAR = 365 * 24.0  # hours; nobody waits for a row that takes longer
Picked = Sequence[tuple[Mapping[str, str], "RecipeRow", int]]  # what stands before a row, the row, its trials


def show_list(protocol: "Protocol", wanted: Sequence[str], trials: int, *, longest: float, as_json: bool) -> None:
    """Every row of every exhibit, or those that are wanted."""
    from ordered_sgd.lab.experiments.recipes.exhibit import check_rows
    from ordered_sgd.lab.experiments.recipes.listing import list_rows

    listed = list_rows(protocol)
    check_rows("osgd reproduce", "--rows", wanted, [row.id for _, row in listed])
    picked = [
        ({"exhibit": exhibit}, row, trials)
        for exhibit, row in listed
        if not wanted or any(fnmatchcase(row.id, name) for name in wanted)
    ]
    _show_times(picked, f"protocol {protocol.name}, {trials} seeds; ", longest, as_json)
    if not as_json and not wanted:
        click.echo("note: Figure 2 needs no training: osgd gamma --figure2", err=True)


def show_rows(requests: Sequence["Request"], *, longest: float, as_json: bool) -> None:
    """The rows of these requests."""
    picked = [
        ({"exhibit": one.exhibit, "protocol": one.how.name}, row, one.trials)
        for one in requests
        for row in one.shown().rows
    ]
    _show_times(picked, "", longest, as_json)


def _show_times(picked: Picked, of: str, longest: float, as_json: bool) -> None:
    """Print rows with their runs and hours for so many trials, shorter ones only; for people in a unit that fits."""
    from ordered_sgd.lab.experiments.recipes.listing import row_work

    speed, lines, hidden = _speed(), [], 0
    for head, row, trials in picked:
        hours = trials * row_work(row) / speed / 3600
        if hours > longest:
            hidden += 1
            continue
        spent = {"hours": hours} if as_json else {"time": _duration(hours)}
        lines.append({**head, "row": row.id, "runs": trials * row.runs, **spent})
    if lines or as_json:
        show(lines, title=f"{of}processor time of one core on this machine, roughly", as_json=as_json)
    if hidden:
        rows = "1 row takes" if hidden == 1 else f"{hidden:,} rows take"
        click.echo(f"note: {rows} more than a year and {'is' if hidden == 1 else 'are'} hidden; add --all.", err=True)


def _duration(hours: float) -> str:
    """Hours in a unit in which the number is short.

    >>> [_duration(hours) for hours in (0.003383, 0.25, 30.4, 2.023e4)]
    ['12 s', '15 min', '30 h', '843 days']
    """
    for unit, in_an_hour, below in (("s", 3600, 1 / 60), ("min", 60, 1), ("h", 1, 48)):
        if hours < below:
            return f"{hours * in_an_hour:.2g} {unit}"
    return f"{hours / 24:,.0f} days"


def _speed() -> float:
    """Floating-point operations per second of processor time that a small LeNet reaches here, on one thread."""
    import torch

    from ordered_sgd.lab.bench.timing import threads_of_torch
    from ordered_sgd.lab.experiments.recipes.work import BACKWARD, forward_flops
    from ordered_sgd.lab.models import LeNet

    with threads_of_torch(1):
        model, x = LeNet(), torch.randn(64, 1, 28, 28).to(memory_format=torch.channels_last)
        seconds = []
        for _ in range(5):
            start = time.process_time()
            model(x).sum().backward()
            seconds.append(time.process_time() - start)
    return 64 * (1 + BACKWARD) * forward_flops("lenet", (), (1, 28, 28), 10) / min(seconds)
