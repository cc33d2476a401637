"""`osgd bench`: what is measured on this machine."""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ordered_sgd.errors import ArgumentError, check_choice, message, require
from ordered_sgd.lab.cli.bench_accumulation import accumulation
from ordered_sgd.lab.cli.bench_distributed import distributed
from ordered_sgd.lab.cli.bench_head import head
from ordered_sgd.lab.cli.bench_linear import linear
from ordered_sgd.lab.cli.bench_losses import losses
from ordered_sgd.lab.cli.bench_page import page, read_record
from ordered_sgd.lab.cli.bench_sampler import sampler
from ordered_sgd.lab.cli.bench_tokens import tokens
from ordered_sgd.lab.cli.bench_trainers import trainers
from ordered_sgd.lab.cli.options import Counts, json_option, out_option, progress, show, write_json

if TYPE_CHECKING:
    from ordered_sgd.lab.bench.step_cost import BenchPlan, StepRow

_HELP = {"help_option_names": ["-h", "--help"]}
_OWN_LIMIT = {"selective": "limit-b", "selective-compiled": "limit-b", "rows": "limit-b", "twopass": "limit-a"}
_SHORT = {
    "selective-backprop": "select. backprop",
    "selective-compiled": "select. compiled",
}  # for terminals of 80 columns
_OF = {"limit-a": "of_limit_a", "limit-b": "of_limit_b"}


@click.group(context_settings=_HELP)
def command() -> None:
    """Speed measured on this machine."""


command.add_command(linear)
command.add_command(distributed)
command.add_command(losses)
command.add_command(tokens)
command.add_command(head)
command.add_command(accumulation)
command.add_command(trainers)
command.add_command(sampler)
command.add_command(page)


@command.command(context_settings=_HELP)
@click.option("--models", default=None, help="Names separated by commas, e.g. lenet,vit; all if not given.")
@click.option(
    "--rows", default=None, help="Kinds of step beside sgd, e.g. selective,rows; all but compiled ones if not given."
)
@click.option("--s", type=int, default=64, show_default=True, help="Samples in a mini-batch.")
@click.option("--q", "qs", type=Counts(), default=None, help="Samples kept, e.g. 32,16; s, s/2 ... s/16 if not given.")
@click.option("--threads", type=Counts(), default=None, help="Numbers of threads, e.g. 1,2; one and all if not given.")
@click.option("--device", default="cpu", show_default=True, help="Where to train: cpu, cuda, cuda:1, mps, xpu.")
@click.option("--rounds", type=int, default=11, show_default=True, help="Measurements of each step.")
@click.option("--probe/--no-probe", default=True, help="Saved bytes, peak memory and compile seconds, or only speed.")
@click.option("--resume", is_flag=True, help="Keep what the JSON file of --out holds, and measure the rest.")
@out_option("bench-step", "JSON and figure files, without suffix.")
@json_option
def step(
    models: str | None,
    rows: str | None,
    s: int,
    qs: tuple[int, ...] | None,
    threads: tuple[int, ...] | None,
    device: str,
    rounds: int,
    probe: bool,
    resume: bool,
    out: Path,
    as_json: bool,
) -> None:
    """What a training step costs with each engine.

    Compares the engines, and a plain loop after selective_backward, with plain SGD (the same model in its best
    layout, fused optimizer), with Selective Backprop, and with two limits: limit-a = forward of s without a graph +
    SGD step of q; limit-b = forward of s with a graph + backward of q + update. All are measured in turn in one
    run. Writes JSON as it goes, and a bar chart as PNG and SVG at the end; Ctrl-C keeps what is there, and --resume
    goes on from it. The engine with a memory scores 3q candidates and four others. Two more rows, compiled-sgd and
    selective-compiled, run models that inductor compiles; only --rows names them, because that takes minutes. The
    model bert needs Transformers and is left out where it is not installed. Keep the machine quiet.

    Every gradient is compared with autograd's for the whole batch, and the largest relative error is shown and
    recorded. With --device the models train on an accelerator, and the clock stops when it has finished; the JSON file
    names the device and can be shared (docs/gpus.md).
    """
    from ordered_sgd.lab.bench.step_cost import machine

    plan = _plan(models, rows, s, qs, threads, rounds, probe, device)
    out = out.with_suffix("") if out.suffix in (".json", ".png", ".svg") else out
    document = out.with_name(out.name + ".json")
    table = _kept(document, s, device) if resume else []
    interrupted = False
    try:
        for column in _with_progress(plan, {(row["model"], row["threads"], row["q"]) for row in table}):
            table += [asdict(row) for row in column]
            write_json(document, {"machine": machine(device), "rows": table})
    except KeyboardInterrupt:
        interrupted = True
    if table:
        _show(table, as_json)
        _draw(table, out)
        click.echo(f"written: {document}", err=True)
    if interrupted:
        raise KeyboardInterrupt


def _plan(
    models: str | None,
    rows: str | None,
    s: int,
    qs: tuple[int, ...] | None,
    threads: tuple[int, ...] | None,
    rounds: int,
    probe: bool,
    device: str,
) -> "BenchPlan":
    """What to measure, or one clear error before anything is measured."""
    where = "osgd bench"
    least = {"--s": (s, 1), "--rounds": (rounds, 2), **{f"--threads {n}": (n, 1) for n in threads or ()}}
    for name, (value, floor) in least.items():
        if value < floor:
            raise ArgumentError(message(where, name.split()[0], f"be at least {floor}", value, f"Run: {where} step -h"))
    for q in qs or ():
        if not 1 <= q <= s:
            remedy = "Leave it out for s, s/2 ... s/16."
            raise ArgumentError(message(where, "--q", f"be integers from 1 to s = {s}", q, remedy))
    import torch

    from ordered_sgd.lab.bench.step_cost import BenchPlan, check_device, default_qs
    from ordered_sgd.lab.bench.subjects import ON_REQUEST, ROWS, SGD
    from ordered_sgd.lab.bench.workloads import WORKLOADS, installed

    check_device(device, where)
    names = installed() if models is None else [name.strip() for name in models.split(",")]
    for name in names:
        check_choice(where, "--models", name, tuple(WORKLOADS), "Leave it out for all.")
        if WORKLOADS[name].needs:
            require(WORKLOADS[name].needs, extra="huggingface", where=where)
    kinds = set(ROWS) if rows is None else {SGD, *(name.strip() for name in rows.split(","))}
    for name in sorted(kinds):
        check_choice(where, "--rows", name, (*ROWS, *ON_REQUEST), "Leave it out for those that compile fast.")
    both = (1, torch.get_num_threads()) if device == "cpu" else (torch.get_num_threads(),)
    counts = threads or tuple(dict.fromkeys(both))
    in_order = [name for name in (*ROWS, *ON_REQUEST) if name in kinds]
    return BenchPlan(
        names,
        s=s,
        qs=qs or default_qs(s),
        threads=counts,
        rounds=rounds,
        probe=probe,
        rows=in_order,
        device=device,
    )


def _kept(document: Path, s: int, device: str) -> list[dict[str, Any]]:
    """The rows of an earlier run of the same kind, or none."""
    if not document.exists():
        return []
    from ordered_sgd.lab.bench.step_cost import machine

    earlier = read_record(document)
    rows: list[dict[str, Any]] = earlier["rows"]
    if earlier["machine"] != machine(device) or rows[0]["s"] != s:
        remedy = "Name another file with --out, or leave --resume out."
        rule = "continue with the same s, machine and versions"
        raise ArgumentError(message("osgd bench", "--resume", rule, f"others in {document}", remedy))
    return rows


@command.command(context_settings=_HELP)
@click.option("--s", type=click.IntRange(min=1), default=64, show_default=True, help="Samples in a mini-batch.")
@click.option("--rounds", type=click.IntRange(min=2), default=11, show_default=True, help="Measurements of each way.")
@json_option
def feed(s: int, rounds: int, as_json: bool) -> None:
    """What a batch costs before the model sees it.

    The batch source of this package against a DataLoader over tensors, and with random crops and flips against a
    DataLoader over PIL images, in one process and thread; and both against a step of LeNet. Keep the machine quiet.
    """
    from ordered_sgd.lab.bench.feed import SHAPES, measure_feed

    rows = [asdict(row) for found in measure_feed(tuple(SHAPES), s=s, rounds=rounds) for row in found]
    if as_json:
        show(rows, title="", as_json=True)
        return
    table = [
        {
            "shape": row["shape"],
            "fed by": row["row"],
            "samples_per_second": f"{row['samples_per_second']:,.0f}",
            "speed-up": "" if row["speedup"] is None else f"{row['speedup']:.1f}",
            "of a LeNet step": "" if row["of_step"] is None else f"{100 * row['of_step']:.2f} %",
        }
        for row in rows
    ]
    show(table, title="speed-up over the DataLoader that does the same", as_json=False)


def _with_progress(plan: "BenchPlan", known: Set[tuple[str, int, int]]) -> Iterable[list["StepRow"]]:
    """The columns as they are measured, with a bar on standard error."""
    from ordered_sgd.lab.bench.step_cost import measure

    with progress("osgd bench step", plan.ticks) as tick:
        for column in measure(plan, tick, known):
            tick(f"{column[0].model}, q = {column[0].q}", 0)
            yield column


def _show(rows: Sequence[Mapping[str, Any]], as_json: bool) -> None:
    """The rows as JSON, or a table of speed-ups for each model and number of threads, and one of costs per model."""
    if as_json:
        show(rows, title="", as_json=True)
        return
    from ordered_sgd.lab.bench.workloads import WORKLOADS

    for model, threads in dict.fromkeys((row["model"], row["threads"]) for row in rows):
        own = [row for row in rows if (row["model"], row["threads"]) == (model, threads)]
        title = f"{model}, {threads} thread{'s' * (threads > 1)}: speed-up over SGD, ± half the interquartile range"
        notes = WORKLOADS[model].notes
        show(speed_table(own), title=f"{title}\n{notes}".strip(), as_json=False)
        checked = [row for row in own if row.get("error") is not None]
        if checked:
            title = f"{model}: largest error of the gradient, relative to autograd's for the whole batch"
            show(_pivot(checked, "{row}", lambda row: f"{row['error']:.0e}"), title=title, as_json=False)
    for model in dict.fromkeys(row["model"] for row in rows if row["saved_bytes"] is not None):
        first = next(row["threads"] for row in rows if row["model"] == model)
        own = [row for row in rows if (row["model"], row["threads"]) == (model, first)]
        title = f"{model}: MiB saved for backward / peak MiB of a step; seconds to compile"
        show(cost_table(own), title=title, as_json=False)


def speed_table(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Speed-ups, then how near an engine comes to its own limit, then what ran, where it was not what was asked."""
    lines = _pivot(rows, "{row}", _speed)
    for name, limit in _OWN_LIMIT.items():
        own = [row for row in rows if row["row"] == name]
        lines += _pivot(own, f"{{row}}/{limit}", lambda row: f"{row[_OF[_OWN_LIMIT[row['row']]]]:.0%}")
    other = {row["row"] for row in rows if row["ran"] not in ("", row["row"])}
    return lines + _pivot([row for row in rows if row["row"] in other], "{row} ran", lambda row: str(row["ran"]))


def cost_table(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Memory of every step, and what compiling took where anything was compiled."""
    probed = [row for row in rows if row["saved_bytes"] is not None]
    compiled = {row["row"] for row in probed if row["compile_seconds"] >= 0.1}
    lines = _pivot(probed, "{row}", _memory)
    compiling = [row for row in probed if row["row"] in compiled]
    return lines + _pivot(compiling, "{row} compile s", lambda row: f"{row['compile_seconds']:.1f}")


def _pivot(
    rows: Sequence[Mapping[str, Any]], name: str, cell: Callable[[Mapping[str, Any]], str]
) -> list[dict[str, str]]:
    """A line for each kind of step, a column for each q."""
    qs = dict.fromkeys(row["q"] for row in rows)
    cells = {(row["row"], row["q"]): cell(row) for row in rows}
    steps = dict.fromkeys(row["row"] for row in rows)
    return [
        {"step": name.format(row=_SHORT.get(kind, kind)), **{f"q = {q}": cells.get((kind, q), "") for q in qs}}
        for kind in steps
    ]


def _speed(row: Mapping[str, Any]) -> str:
    if row["speedup_low"] is None or row["row"] == "sgd":
        return f"{row['speedup']:.2f}"
    return f"{row['speedup']:.2f}±{(row['speedup_high'] - row['speedup_low']) / 2:.2f}"


def _memory(row: Mapping[str, Any]) -> str:
    return f"{_mebibytes(row['saved_bytes'])}/{_mebibytes(row['peak_bytes'])}"


def _mebibytes(count: int | None) -> str:
    if count is None:
        return "?"
    return f"{count / 2**20:.2f}" if count < 10 * 2**20 else f"{count / 2**20:.0f}"


def _draw(rows: Sequence[Mapping[str, Any]], stem: Path) -> None:
    from ordered_sgd.lab.report.step_bench import draw_step_bench

    for path in draw_step_bench(rows, stem):
        click.echo(f"written: {path}", err=True)
