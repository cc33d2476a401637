"""`osgd bench trainers`: what an update costs in other people's trainers."""

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from ordered_sgd.errors import ArgumentError, MissingExtraError, check_choice, message
from ordered_sgd.lab.cli.bench_page import read_record
from ordered_sgd.lab.cli.options import Shares, json_option, out_option, progress, show_record, write_json

_PARTNERS = ("accelerate", "lightning", "skorch", "transformers", "trl")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--trainers", default=None, help="Names separated by commas, e.g. lightning-vit; all if not given.")
@click.option("--q", "qs", type=Shares(), default=None, help="Shares kept, e.g. 0.25,0.125; each trainer's own list.")
@click.option("--rounds", type=click.IntRange(min=2), default=7, show_default=True, help="Measurements of each update.")
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True, help="Threads of torch.")
@click.option("--resume", is_flag=True, help="Keep what the file of --out holds, and measure the rest.")
@out_option("bench-trainers.json", "File for the record.")
@json_option
def trainers(
    trainers: str | None,
    qs: tuple[float, ...] | None,
    rounds: int,
    threads: int,
    resume: bool,
    out: Path,
    as_json: bool,
) -> None:
    """What an update costs in other people's trainers.

    Trains with Lightning, Transformers, TRL, skorch and Accelerate, plain and with the q largest losses, and reports
    the speed of whole updates relative to the plain trainer: loader, forward and backward pass, optimizer, and what
    the trainer does around them. Random batches are made beforehand. Trainers that are not installed are left out.

    Plain and ordered trainers take turns, update by update. With one thread the clock is the processor time of this
    process. Compiling is measured by itself. At the end every training is repeated with whole backward passes, and
    the gradients that the optimizer is given are compared.

    The record is written after each trainer; Ctrl-C keeps it, and --resume continues it. Keep the machine quiet.
    """
    from ordered_sgd.lab.bench.step_cost import machine
    from ordered_sgd.lab.bench.trainer_inputs import FULL
    from ordered_sgd.lab.bench.trainer_subjects import SUBJECTS
    from ordered_sgd.lab.report.trainers_bench import trainers_bench_tables

    names = list(SUBJECTS) if trainers is None else [name.strip() for name in trainers.split(",")]
    for name in names:
        check_choice("osgd bench", "--trainers", name, tuple(SUBJECTS), "Leave it out for all.")
    record: dict[str, Any] = {"machine": machine(), "partners": _versions(), "q": None if qs is None else list(qs)}
    record |= {"threads": threads, "rounds": rounds, "sizes": asdict(FULL)}
    record |= {"trainers": [], "left_out": {}}
    if resume and out.exists():
        record = _continued(record, out)
    interrupted = False
    try:
        for part in _measured(record, list(dict.fromkeys(names))):
            record |= part
            write_json(out, record)
    except KeyboardInterrupt:
        interrupted = True
    for name, reason in record["left_out"].items():
        click.echo(f"left out: {name}: {reason}", err=True)
    if record["trainers"]:
        show_record(record, trainers_bench_tables, as_json)
        click.echo(f"written: {out}", err=True)
    if interrupted:
        raise KeyboardInterrupt


def _versions() -> dict[str, str]:
    """The versions of the partners that are installed."""
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in _PARTNERS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _continued(record: dict[str, Any], out: Path) -> dict[str, Any]:
    """The record of an earlier run with the same settings; what was left out is tried again."""
    earlier = read_record(out)
    if any(earlier.get(key) != value for key, value in record.items() if key not in ("trainers", "left_out")):
        rule = "continue with the same q, threads, rounds, machine and versions"
        remedy = "Name another file with --out, or leave --resume out."
        raise ArgumentError(message("osgd bench", "--resume", rule, f"others in {out}", remedy))
    return earlier | {"left_out": {}}


def _measured(record: dict[str, Any], names: list[str]) -> Iterable[dict[str, Any]]:
    """The parts of the record that have grown, after each trainer."""
    from ordered_sgd.lab.bench.trainer_cost import measure_trainer, trainer_ticks
    from ordered_sgd.lab.bench.trainer_inputs import FULL
    from ordered_sgd.lab.bench.trainer_subjects import SUBJECTS

    known = {row["trainer"] for row in record["trainers"]}
    missing = [name for name in names if name not in known]
    given, rounds, threads = record["q"], record["rounds"], record["threads"]
    qs = {name: given or SUBJECTS[name].qs for name in missing}
    with progress("osgd bench trainers", sum(trainer_ticks(qs[name], rounds) for name in missing)) as tick:
        for name in missing:
            tick(SUBJECTS[name].title, 0)
            try:
                rows = measure_trainer(name, qs[name], sizes=FULL, rounds=rounds, threads=threads, tick=tick)
            except MissingExtraError as error:
                yield {"left_out": record["left_out"] | {name: str(error)}}
                continue
            yield {"trainers": record["trainers"] + [asdict(row) for row in rows]}
