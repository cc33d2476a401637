"""`osgd reproduce`: the paper's tables and figures."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ordered_sgd.errors import ArgumentError, MissingExtraError, check_choice, message
from ordered_sgd.lab.cli.options import backend_options, check_out, given, json_option, show
from ordered_sgd.lab.cli.progress import epoch_bar
from ordered_sgd.lab.cli.reproduce_list import A_YEAR, show_list, show_rows

if TYPE_CHECKING:
    from ordered_sgd.lab.experiments.recipes.exhibit import Exhibit, Reproduced
    from ordered_sgd.lab.experiments.requests import Request
    from ordered_sgd.lab.experiments.store import Records

_WHERE = "osgd reproduce"
_ALL = "results"  # stands for everything that RESULTS.md shows
_SIZES = ("epochs", "train_size", "width")
_OF_ONE = ("wanted", "trials", "protocol", "switches", "out", *_SIZES)  # options that `results` fixes
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
@click.option("--all", "with_long", is_flag=True, help="With --list: also rows that take more than a year.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=None,
    show_default="the figure's name, such as figure1; a table has none",
    help="Also the pictures, as PNG and SVG files; without suffix.",
)
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
    with_long: bool,
    out: Path | None,
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
    longest = float("inf") if wanted is not None or with_long else A_YEAR  # rows that are named are wanted
    rows = () if wanted is None else tuple(part.strip() for part in wanted.split(","))
    if name is None:
        if not only_list:
            remedy = "See them all: osgd reproduce --list"
            raise ArgumentError(message(_WHERE, "EXHIBIT", "be named", "none", remedy))
        if typed := given(*_SIZES):
            remedy = "Name one table or figure to see it smaller."
            raise ArgumentError(message(_WHERE, "EXHIBIT", f"be named with {typed[0]}", "none", remedy))
        show_list(preset(protocol, **turned), rows, trials, longest=longest, as_json=as_json)
        return
    if name == _ALL:
        _check_alone()
        requests = RESULTS
    else:
        requests = (Request(name, rows, trials, protocol, turned, epochs, train_size, width),)
        _check_sizes(requests[0])
    if only_list:
        show_rows(requests, longest=longest, as_json=as_json)
        return
    how = {"name": backend, "workers": workers, "address": address, "again": force}
    if name.startswith("figure"):
        out = out or Path(name)
    if out is not None:
        check_out(_WHERE, out.with_name(f"{out.name}.png"))
    cells = [cell for one in requests for cell in _carry_out(one, how, out, quiet=quiet, told=not as_json)]
    if as_json:
        show(cells, title="", as_json=True)


def _carry_out(
    request: "Request", how: Mapping[str, Any], out: Path | None, *, quiet: bool, told: bool
) -> list[dict[str, Any]]:
    """Train what is not recorded, and tell what was found, or only give it back in numbers; draw it into files."""
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
    if out is not None:
        _draw(shown, results, records, out)
    return [cell for one in results for cell in cells(one, shown.number)]


def _draw(shown: "Exhibit", results: Sequence["Reproduced"], records: "Records", out: Path) -> None:
    """Write the pictures and say where: by the name alone where there is one, else with their titles added."""
    from ordered_sgd.lab.report.attempts import Attempts
    from ordered_sgd.lab.report.canvas import save
    from ordered_sgd.lab.report.pictures import file_words, pictures

    attempts = Attempts(raised=(MissingExtraError, OSError))
    drawn = attempts.pictures(pictures(shown, results, records.artifact))
    stem = out.with_suffix("") if out.suffix in (".png", ".svg") else out
    for title, figure in drawn.items():
        one = stem if len(drawn) == 1 else stem.with_name(f"{stem.name}-{file_words(title)}")
        for path in attempts(f"the picture “{title}”", partial(save, figure, one), []):
            click.echo(f"written: {path}", err=True)
    for sentence in attempts.missing:
        click.echo(f"note: {sentence}", err=True)
    if not drawn and not attempts.missing:
        click.echo(f"note: {shown.name} has no picture, and --out was not used.", err=True)


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
