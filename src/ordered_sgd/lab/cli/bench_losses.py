"""`osgd bench losses`: what `selective_backward` saves with hinge, triplet and PPO losses."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from ordered_sgd.errors import ArgumentError, check_choice, message
from ordered_sgd.lab.cli.options import json_option, out_option, show_record, write

_COUNT = click.IntRange(min=1)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--losses", "names", default=None, help="Names separated by commas, e.g. hinge,ppo; all if not given.")
@click.option("--data", default="fashion-mnist", show_default=True, help="A data set of images.")
@click.option("--n", type=_COUNT, default=4_096, show_default=True, help="Training images.")
@click.option("--s", type=click.IntRange(1, 512), default=64, show_default=True, help="Samples or triplets in a batch.")
@click.option("--epochs", type=_COUNT, default=8, show_default=True, help="Epochs, or rollouts of PPO and GRPO.")
@click.option("--threads", type=_COUNT, default=1, show_default=True, help="Threads of torch.")
@out_option("bench-losses.json", "File for the record.")
@json_option
def losses(names: str | None, data: str, n: int, s: int, epochs: int, threads: int, out: Path, as_json: bool) -> None:
    """What selective_backward saves with losses other than the q largest.

    hinge: multiclass hinge loss. triplet: triplet loss of random triplets, three calls of the model; triplet-joined:
    the same with one call. ppo: PPO's clipped objective for a policy that picks a class for an image and is rewarded
    if it is right, four passes over each rollout of 1,024 images; grpo: the same with eight actions per image, whose
    rewards are compared with each other. A plain and a selective copy of a LeNet train in step, and each step is timed
    on both. Keep the machine quiet.
    """
    from ordered_sgd.lab.bench.loss_epochs import TASKS, measure_loss
    from ordered_sgd.lab.bench.step_cost import machine
    from ordered_sgd.lab.data import load
    from ordered_sgd.lab.report.losses_bench import losses_bench_tables

    wanted = list(TASKS) if names is None else [name.strip() for name in names.split(",")]
    for name in wanted:
        check_choice("osgd bench", "--losses", name, tuple(TASKS), "Leave it out for all.")
    dataset = load(data)
    if not dataset.images:
        got, remedy = f"samples of shape {dataset.x.shape[1:]}", "Leave it out for fashion-mnist."
        raise ArgumentError(message("osgd bench", "--data", "hold images", got, remedy))
    n = min(n, len(dataset))
    if n < 2 * s:
        rule, remedy = f"be at least two batches of s = {s}", "Lower --s, or use more images."
        raise ArgumentError(message("osgd bench", "--n", rule, n, remedy))
    record: dict[str, Any] = {"machine": machine(), "data": data, "n": n, "s": s, "epochs": epochs}
    record |= {"threads": threads, "losses": []}
    for name in wanted:
        click.echo(f"measuring: {name}", err=True)
        found = measure_loss(name, dataset, n=n, s=s, epochs=epochs, threads=threads)
        record["losses"] += [asdict(row) for row in found]
        write(out, json.dumps(record, indent=1) + "\n")
    show_record(record, losses_bench_tables, as_json)
    click.echo(f"written: {out}", err=True)
