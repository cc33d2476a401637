"""`osgd advise`: what ordered SGD would save in a training of yours."""

import json
from pathlib import Path

import click

from ordered_sgd.errors import ArgumentError, message
from ordered_sgd.lab.cli.options import given, json_option, out_option, progress, show, write

_WHERE = "osgd advise"
_POSITIVE = click.FloatRange(min=0, min_open=True)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("function", required=False)
@click.option("--data", default=None, help="A data set or table instead of a function.")
@click.option("--target", default="-1", help="Column of the labels in a table; the last one by default.")
@click.option("--model", default=None, help="With --data: logistic, svm, mlp, lenet, ...; logistic by default.")
@click.option("--s", type=click.IntRange(min=2), default=64, show_default=True, help="With --data: batch size.")
@click.option("--lr", type=_POSITIVE, default=0.01, show_default=True, help="With --data: learning rate.")
@click.option("--epochs", type=click.IntRange(min=1), default=20, show_default=True, help="Of the whole training.")
@click.option("--minutes", type=_POSITIVE, default=3.0, show_default=True, help="About how long to measure.")
@click.option("--threads", type=click.IntRange(min=1), default=None, help="Of torch; as many as it uses by default.")
@click.option("--quiet", is_flag=True, help="No progress bar.")
@out_option("advice.html", "The advice as one HTML page.")
@json_option
def command(
    function: str | None,
    data: str | None,
    target: str,
    model: str | None,
    s: int,
    lr: float,
    epochs: int,
    minutes: float,
    threads: int | None,
    quiet: bool,
    out: Path,
    as_json: bool,
) -> None:
    """What ordered SGD would save in a training of yours: measured within minutes.

    FUNCTION is package.module:function. It returns (model, criterion, loader), and the optimizer as a fourth if it is
    not SGD at a rate of 0.01. Copies of the model take steps with every engine, and one trains for a short while; the
    answer is a verdict, the figures behind it and the lines to write. Keep the machine quiet.
    """
    import torch

    from ordered_sgd.lab.advise import advise
    from ordered_sgd.lab.advise.advice_page import advice_page, expected_rows, step_rows
    from ordered_sgd.lab.advise.named import from_function, from_spec
    from ordered_sgd.lab.experiments.spec import ExperimentSpec

    if (function is None) == (data is None):
        got = "both" if function else "neither"
        remedy = "Run: osgd advise my.module:function, or osgd advise --data table.csv"
        raise ArgumentError(message(_WHERE, "FUNCTION or --data", "be given", got, remedy))
    if function and (options := given("target", "model", "s", "lr")):
        got, remedy = f"{options[0]} with {function}", "Leave it out: the function decides."
        raise ArgumentError(message(_WHERE, options[0], "be used with --data", got, remedy))
    if threads is not None:
        torch.set_num_threads(threads)
    spec = ExperimentSpec(data=str(data), target=target, model=model or "logistic", s=s, lr=lr, epochs=epochs)
    parts = from_function(function, spec) if function else from_spec(spec)
    with progress(_WHERE, 100, quiet=quiet) as tick:
        done = 0

        def show_progress(share: float, text: str) -> None:
            nonlocal done
            tick(f"{_WHERE}: {text}", round(100 * share) - done)
            done = round(100 * share)

        found = advise(*parts, epochs=epochs, minutes=minutes, progress=show_progress)
    if as_json:
        click.echo(json.dumps(found.to_dict(), indent=1))
    else:
        click.echo(f"{found.verdict}\n")
        show(step_rows(found), title=f"a step's share of plain SGD's time, s = {found.s}", as_json=False)
        show(expected_rows(found.expected), title=f"a training of {epochs} epochs, expected", as_json=False)
        for sentence in found.findings:
            click.echo(f"- {sentence}")
        if found.code:
            click.echo(f"\n{found.code}\n")
    write(out, advice_page(found, function or str(data)))
    if not as_json:
        click.echo(f"written: {out}", err=True)
