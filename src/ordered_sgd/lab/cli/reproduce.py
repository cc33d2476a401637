"""`osgd reproduce`: the paper's tables and figures."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import click

from ordered_sgd.errors import ArgumentError, check_choice, message
from ordered_sgd.lab.cli.options import backend_options, given, json_option, show
from ordered_sgd.lab.cli.progress import epoch_bar

if TYPE_CHECKING:
    from ordered_sgd.lab.experiments.recipes import Protocol, RecipeRow
    from ordered_sgd.lab.experiments.requests import Request

_WHERE = "osgd reproduce"
_ALL = "results"  # stands for everything that RESULTS.md shows
_OF_ONE = ("wanted", "trials", "protocol", "switches", "epochs", "train_size", "width")  # options that `results` fixes
_SIZES = ("epochs", "train_size", "width")
_WORDS = {"true": True, "false": False, "on": True, "off": False, "yes": True, "no": False, "1": True, "0": False}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("name", metavar="EXHIBIT", required=False)
@click.option("--rows", "wanted", default=None, help="Ids separated by commas; patterns such as 'semeion-*' do too.")
@click.option("--trials", type=click.IntRange(min=1), default=10, show_default=True, help="Seeds.")
@click.option("--protocol", default="paper", show_default=True, help="paper or authors-code.")
@click.option("--switch", "switches", multiple=True, help="One difference alone, e.g. hidden_rule=true; repeatable.")
@click.option("--epochs", type=int, default=None, help="Fewer epochs than the paper; every cell then says so.")
@click.option("--train-size", type=int, default=None, help="Fewer training samples.")
@click.option("--width", type=float, default=None, help="Narrower PreActResNet18, e.g. 0.25.")
@click.option("--list", "only_list", is_flag=True, help="Show the rows and an estimate of their time; run nothing.")
@backend_options
@click.option("--force", is_flag=True, help="Run again what is recorded already.")
@click.option("--quiet", is_flag=True, help="No progress bar.")
@json_option
def command(
    name: str | None,
    wanted: str | None,
    trials: int,
    protocol: str,
    switches: tuple[str, ...],
    epochs: int | None,
    train_size: int | None,
    width: float | None,
    only_list: bool,
    workers: int | None,
    backend: str,
    address: str | None,
    force: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """The paper's tables and figures.

    EXHIBIT is table1 ... table5, figure1, figure3 ... figure8, ablation, whole-training, memory, batchnorm or
    label-noise; or results, for everything that RESULTS.md shows; Figure 2 is drawn by osgd gamma --figure2. The
    paper's numbers stand beside ours, with a verdict on every row. Runs are recorded and not run twice; Ctrl-C stops,
    and the same command goes on. Tables 2 and 4 show times: they run one at a time, in this process whatever the
    backend; keep the machine quiet.
    """
    from ordered_sgd.lab.experiments.recipes import preset
    from ordered_sgd.lab.experiments.requests import Request
    from ordered_sgd.lab.experiments.results import RESULTS

    turned = _turned(switches)
    rows = () if wanted is None else tuple(part.strip() for part in wanted.split(","))
    if name is None:
        if not only_list:
            remedy = "See them all: osgd reproduce --list"
            raise ArgumentError(message(_WHERE, "EXHIBIT", "be named", "none", remedy))
        if typed := given(*_SIZES):
            remedy = "Name one table or figure to see it smaller."
            raise ArgumentError(message(_WHERE, "EXHIBIT", f"be named with {typed[0]}", "none", remedy))
        _show_list(preset(protocol, **turned), rows, trials, as_json)
        return
    if name == _ALL:
        _check_alone()
        requests = RESULTS
    else:
        requests = (Request(name, rows, trials, protocol, turned, epochs, train_size, width),)
        _check_sizes(requests[0])
    if only_list:
        _show_rows(requests, as_json)
        return
    how = {"name": backend, "workers": workers, "address": address, "again": force}
    cells = [cell for one in requests for cell in _carry_out(one, how, quiet=quiet, told=not as_json)]
    if as_json:
        show(cells, title="", as_json=True)


def _carry_out(request: "Request", how: Mapping[str, Any], *, quiet: bool, told: bool) -> list[dict[str, Any]]:
    """Train what is not recorded, and tell what was found, or only give it back in numbers."""
    from ordered_sgd.lab.experiments.backends.choose import backend
    from ordered_sgd.lab.experiments.requests import reproduce
    from ordered_sgd.lab.experiments.store import Records
    from ordered_sgd.lab.report.verdicts import cells, found, table

    shown = request.shown()
    total = sum(request.trials * row.runs * next(iter(row.arms.values())).epochs for row in shown.rows)
    if shown.serial:
        how = {"name": "processes", "workers": 1, "again": how["again"]}
    records = Records()
    with (
        backend(records=records, **how) as run_all,  # first: a wrong choice gets its line, and no bar
        epoch_bar(f"{_WHERE} {shown.name}", total, quiet=quiet) as run_all.progress,
    ):
        records.ask({"command": "reproduce", **request.to_dict()})
        results = reproduce(shown.rows, run_all, trials=request.trials)
    if told:
        for sentence in found(results, shown):
            click.echo(sentence)
        seeds = f"mean (standard deviation) of {request.trials} seeds; {request.how.name}"
        show(table(results, shown), title=f"{shown.title}: {shown.number.replace('_', ' ')}, {seeds}", as_json=False)
        for note in dict.fromkeys([*shown.notes, *(note for one in results for note in one.row.notes)]):
            click.echo(f"note: {note}", err=True)
    return [cell for one in results for cell in cells(one, shown.number)]


def _check_alone() -> None:
    """Refuse options that would make `results` something else than RESULTS.md."""
    if typed := given(*_OF_ONE):
        remedy = "Name one table or figure to change it."
        raise ArgumentError(message(_WHERE, _ALL, "be used without other options", typed[0], remedy))


def _check_sizes(request: "Request") -> None:
    """Refuse a size that no row reaches, and tell of rows that stay whole because they are below it."""
    from ordered_sgd.lab.experiments.recipes.shrink import train_samples

    rows = replace(request, epochs=None, train_size=None, width=None).shown().rows
    specs = {row.id: next(iter(row.arms.values())) for row in rows}
    for option, size, own in (
        ("--epochs", request.epochs, {name: spec.epochs for name, spec in specs.items()}),
        ("--train-size", request.train_size, {name: train_samples(spec) for name, spec in specs.items()}),
    ):
        below = [name for name, number in own.items() if size is not None and number < size]
        if len(below) == len(own):
            rule, remedy = f"be at most {max(own.values()):,}", "Leave it out for whole rows."
            raise ArgumentError(message(_WHERE, option, rule, f"{size:,}", remedy))
        if below:
            click.echo(f"note: {option} {size} leaves rows whole that have fewer: {', '.join(below)}", err=True)


def _turned(switches: Sequence[str]) -> dict[str, Any]:
    """The switches by name, each with a value of its kind."""
    from ordered_sgd.lab.experiments.recipes import SWITCHES

    turned: dict[str, Any] = {}
    for switch in switches:
        key, equals, text = switch.partition("=")
        key = key.replace("-", "_")
        if not equals or key not in SWITCHES:
            rule = f"be name=value with one of {', '.join(SWITCHES)}"
            raise ArgumentError(message(_WHERE, "--switch", rule, repr(switch), "Try hidden_rule=true."))
        turned[key] = _value(key, text)
    return turned


def _value(switch: str, text: str) -> Any:
    """The text as a value of the switch's kind; whether the switch may have it, `preset` checks."""
    from ordered_sgd.lab.experiments.recipes import PAPER

    usual = getattr(PAPER, switch)
    if isinstance(usual, bool):
        check_choice(_WHERE, switch, text.lower(), tuple(_WORDS), f"Try {switch}=true.")
        return _WORDS[text.lower()]
    try:
        return type(usual)(text)
    except ValueError as error:
        rule = "be an integer" if isinstance(usual, int) else "be a number"
        raise ArgumentError(message(_WHERE, switch, rule, repr(text), f"The paper's is {usual}.")) from error


def _show_list(protocol: "Protocol", wanted: Sequence[str], trials: int, as_json: bool) -> None:
    from ordered_sgd.lab.experiments.recipes.listing import list_rows

    listed = list_rows(protocol)
    for name in wanted:
        if not any(fnmatchcase(row.id, name) for _, row in listed):
            remedy = "See them all: osgd reproduce --list"
            raise ArgumentError(message(_WHERE, "--rows", "be ids or patterns of rows", repr(name), remedy))
    picked = [
        ({"exhibit": exhibit}, row, trials)
        for exhibit, row in listed
        if not wanted or any(fnmatchcase(row.id, name) for name in wanted)
    ]
    _show_times(picked, f"protocol {protocol.name}, {trials} seeds; ", as_json)
    if not as_json and not wanted:
        click.echo("note: Figure 2 needs no training: osgd gamma --figure2", err=True)


def _show_rows(requests: Sequence["Request"], as_json: bool) -> None:
    picked = [
        ({"exhibit": one.exhibit, "protocol": one.how.name}, row, one.trials)
        for one in requests
        for row in one.shown().rows
    ]
    _show_times(picked, "", as_json)


def _show_times(picked: Sequence[tuple[Mapping[str, str], "RecipeRow", int]], of: str, as_json: bool) -> None:
    """Print rows with their runs and hours for so many trials; for people in a unit that fits."""
    from ordered_sgd.lab.experiments.recipes.listing import row_work

    speed, lines = _speed(), []
    for head, row, trials in picked:
        hours = trials * row_work(row) / speed / 3600
        spent = {"hours": hours} if as_json else {"time": _duration(hours)}
        lines.append({**head, "row": row.id, "runs": trials * row.runs, **spent})
    show(lines, title=f"{of}time of one core on this machine, roughly", as_json=as_json)


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
    """Floating-point operations per second that a small LeNet reaches here, on one thread."""
    import torch

    from ordered_sgd.lab.bench.timing import threads_of_torch
    from ordered_sgd.lab.experiments.recipes.work import BACKWARD, forward_flops
    from ordered_sgd.lab.models import LeNet

    with threads_of_torch(1):
        model, x = LeNet(), torch.randn(64, 1, 28, 28).to(memory_format=torch.channels_last)
        seconds = []
        for _ in range(5):
            start = time.perf_counter()
            model(x).sum().backward()
            seconds.append(time.perf_counter() - start)
    return 64 * (1 + BACKWARD) * forward_flops("lenet", (), (1, 28, 28), 10) / min(seconds)
