"""`osgd compare`: ordered SGD against plain SGD and the random-q control."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ordered_sgd.errors import ArgumentError, message
from ordered_sgd.lab.cli.options import Q, backend_options, check_out, given, json_option, kept, out_option, show, write
from ordered_sgd.lab.cli.progress import epoch_bar

if TYPE_CHECKING:
    from ordered_sgd.lab.data.dataset import Dataset
    from ordered_sgd.lab.experiments.comparison import Arm

_WHERE = "osgd compare"
_TUNED = ("digits", "semeion")  # small enough for a search of the rate by default
_NAMES = {"logistic": "the linear model", "svm": "the linear SVM", "lenet": "LeNet"}
_MODELS, _EPOCHS = {"semeion": "lenet"}, {"semeion": 25}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--data", default="semeion", show_default=True, help="A name, a file, or package.module:function.")
@click.option(
    "--target", default="-1", help="Column of a table to be predicted, by name or number; the last one by default."
)
@click.option(
    "--task",
    type=click.Choice(["auto", "classification", "regression"]),
    default="auto",
    show_default=True,
    help="Of a table: what the target is.",
)
@click.option(
    "--model", default=None, help="logistic, svm, mlp, lenet, ...; by default lenet for Semeion, else logistic."
)
@click.option("--trials", type=click.IntRange(min=1), default=5, show_default=True, help="Seeds.")
@click.option(
    "--epochs", type=click.IntRange(min=1), default=None, help="Passes over the data; 25 for Semeion, else 20."
)
@click.option("--s", type=click.IntRange(min=1), default=64, show_default=True, help="Samples in a mini-batch.")
@click.option(
    "--lr", type=float, default=0.01, show_default=True, help="Learning rate, divided by 10 from epoch 10 on."
)
@click.option("--tune/--no-tune", default=None, help="Also each method at its best rate; on for digits and Semeion.")
@click.option("--q", "qs", type=Q(), multiple=True, help="Also ordered SGD with this fixed q; may be repeated.")
@click.option(
    "--class-weight",
    type=click.Choice(["none", "balanced"]),
    default="none",
    show_default=True,
    help="Also SGD and ordered SGD with weights for rare classes.",
)
@click.option("--adam", is_flag=True, help="Also Adam and ordered Adam, at a rate of 0.001.")
@click.option("--memory", is_flag=True, help="Also ordered SGD by the engine with a memory.")
@click.option("--recall", type=float, default=0.95, show_default=True, help="Recall that it is to hold.")
@click.option("--sampler", is_flag=True, help="Also a batch sampler that loads what was hard last time.")
@click.option("--engine", default="auto", show_default=True, help="Engine of ordered SGD.")
@backend_options
@click.option("--force", is_flag=True, help="Run again what is recorded already.")
@click.option("--quiet", is_flag=True, help="No progress bar.")
@out_option("compare.html", "The report, one HTML page.")
@json_option
def command(
    data: str,
    target: str,
    task: Any,
    model: str | None,
    trials: int,
    epochs: int | None,
    s: int,
    lr: float,
    tune: bool | None,
    qs: tuple[float, ...],
    class_weight: str,
    adam: bool,
    memory: bool,
    recall: float,
    sampler: bool,
    engine: str,
    workers: int | None,
    backend: str,
    address: str | None,
    force: bool,
    quiet: bool,
    out: Path,
    as_json: bool,
) -> None:
    """Ordered SGD against plain SGD and the random-q control.

    The control keeps as many samples as ordered SGD does in every epoch, at the same rate, but draws them at random.
    With --tune each method is also run at its best rate, picked on a fifth of the training set that is held out:
    keeping large losses acts partly as a larger step. Then the time of a step is measured. Without options this is a
    row of the paper's Table 1, LeNet on Semeion, in at most two minutes on two cores. Every run is recorded and not run
    twice; Ctrl-C stops, and the same command goes on; use --force after a change to a model of your own. Writes a
    report as one HTML page.
    """
    from ordered_sgd.lab.data.catalog import CATALOG
    from ordered_sgd.lab.experiments.backends import choose
    from ordered_sgd.lab.experiments.comparison import compare, runs_of
    from ordered_sgd.lab.experiments.own_table import by_default, fitting
    from ordered_sgd.lab.experiments.run import check_fit, counted, problem_for
    from ordered_sgd.lab.experiments.spec import ExperimentSpec
    from ordered_sgd.lab.experiments.store import Records
    from ordered_sgd.lab.report.findings import verdicts
    from ordered_sgd.lab.report.page import compare_page
    from ordered_sgd.lab.report.summary import summary
    from ordered_sgd.lab.report.targets import numbers_of

    if not lr > 0:
        raise ArgumentError(message(_WHERE, "--lr", "be positive", lr, "The paper's is 0.01."))
    epochs = epochs or _EPOCHS.get(data, 20)
    data, model, loss = _described(data, model or _MODELS.get(data, "logistic"))
    check_out(_WHERE, out)
    for q in qs:
        kept(q, s, _WHERE)
    base = ExperimentSpec(
        data=data, target=target, task=task, model=model, loss=loss, epochs=epochs, s=s, lr=lr, engine=engine
    )
    if "recall" in base.engine_used.options:
        base = base.but(recall=recall)
    elif given("recall") and not memory:
        remedy = "Add --memory, or leave --recall out."
        raise ArgumentError(message(_WHERE, "--recall", "be used with --memory or --engine memory", recall, remedy))
    base = counted(base)  # a published set may be here only in part
    problem = problem_for(base)
    base = fitting(base, problem.train, qs=qs, engine=bool(given("engine")), rate=bool(given("lr")))
    in_torch = base.but(engine="auto") if base.engine_used.compiled and not given("engine") else base
    extra = by_default(base, problem.train, qs, class_weight)
    if adam:
        extra += [in_torch.but(method=method, optimizer="adam", lr=0.001) for method in ("sgd", "ordered")]
    if memory:
        extra.append(base.but(engine="memory", recall=recall))
    if sampler:
        extra.append(in_torch.but(method="sampler"))
    for spec in (base, *extra):
        check_fit(spec, problem)
    train, test, _ = problem
    if data not in CATALOG:
        base, *extra = (spec.but(fingerprint=problem.fingerprint) for spec in (base, *extra))
    tuned = data in _TUNED if tune is None else tune
    records = Records()
    samples = f"{len(train):,} training and {len(test):,} test samples of {train.label}"
    if train.table is not None:
        lowered = [] if base.lr == lr else [f"learning rate {base.lr:g}: with more, squared losses may diverge"]
        click.echo("; ".join([*train.table.notes, *lowered]), err=True)
    request = {"base": base.to_json(), "extra": [spec.to_json() for spec in extra], "trials": trials, "tune": tuned}
    total = runs_of(extra, trials=trials, tune=tuned) * epochs
    with (
        choose.backend(backend, records, address=address, workers=workers, again=force) as run_all,
        epoch_bar(_WHERE, total, quiet=quiet) as run_all.progress,
    ):
        records.ask({"command": "compare", **request, "samples": samples})
        arms = compare(base, run_all, trials=trials, tune=tuned, extra=extra)
    rows, found = summary(arms, "cpu_seconds"), [*verdicts(arms), *_times(arms, train.name)]
    rows = [{**row, **numbers_of(arm)} for row, arm in zip(rows, arms, strict=True)]
    # Print first: the findings must not be lost if the page cannot be written.
    if as_json:
        show(rows, title="", as_json=True)
    else:
        _tell(found, rows, f"{samples}, {base.model}, {epochs} epochs", arms, train)
    write(out, compare_page(arms, rows, found, base, train, test, records.artifact))
    if not as_json:
        click.echo(f"written: {out}", err=True)


def _times(arms: "Sequence[Arm]", data: str) -> list[str]:
    """What a step of ordered SGD costs here and now, at its last q; nothing where q never moved."""
    import numpy as np

    from ordered_sgd.errors import first_line
    from ordered_sgd.lab.bench.own_step import lenet_step, own_step
    from ordered_sgd.lab.data.catalog import CATALOG
    from ordered_sgd.lab.experiments.own import is_function
    from ordered_sgd.lab.report.findings import never_ordered

    ordered = [arm for arm in arms if arm.runs[0].spec.method == "ordered" and not never_ordered(arm)]
    if not ordered:
        return []
    shown = next((arm for arm in ordered if arm.tuned), ordered[0])
    last = shown.runs[0]
    if last.spec.engine_used.compiled:
        plain = next(arm for arm in arms if arm.tuned == shown.tuned)
        share = np.median(shown.last("cpu_seconds")) / np.median(plain.last("cpu_seconds"))
        return [f"The last epoch of the compiled linear model took {share:.2f} of SGD's time."]
    model = "the model" if is_function(data) else _NAMES.get(last.spec.model, last.spec.model)
    of = f"{model} on {CATALOG[data].title.partition(',')[0] if data in CATALOG else data}"
    try:
        own = own_step(last.spec, last.rows[-1].q, of)
        return [own.told(), *([lenet_step().told()] if last.spec.model == "lenet" and data == "semeion" else [])]
    except Exception as error:  # the results are worth more than the measurement
        return [f"The time of a step could not be measured: {first_line(error)}."]


def _described(data: str, model: str) -> tuple[str, str, Any]:
    """Data, model and loss for the spec: a file by its absolute path; a function also names the model it returns."""
    from ordered_sgd.lab.data.catalog import CATALOG
    from ordered_sgd.lab.data.custom import is_file_name
    from ordered_sgd.lab.experiments.own import is_function

    is_file = data not in CATALOG and not is_function(data) and is_file_name(data)
    for option in given("target", "task"):
        if not is_file or Path(data).suffix.lower() == ".npz":
            rule, remedy = "be used with a table: a text or Parquet file", f"Leave {option} out."
            raise ArgumentError(message(_WHERE, option, rule, f"--data {data}", remedy))
    if is_function(data):
        if given("model"):
            remedy = "Leave --model out: the function returns the model."
            raise ArgumentError(message(_WHERE, "--model", "be used without a function", f"--data {data}", remedy))
        return data, data, "cross-entropy"
    return str(Path(data).expanduser().resolve()) if is_file else data, model, _loss(model)


def _tell(
    found: Sequence[str], rows: Sequence[dict[str, Any]], of: str, arms: "Sequence[Arm]", train: "Dataset"
) -> None:
    """The sentences and the tables, for people."""
    from ordered_sgd.lab.report.summary import COSTS, ERRORS, MEMORY, remembered, shown
    from ordered_sgd.lab.report.targets import UNEXPLAINED, target_table, target_title

    for sentence in found:
        click.echo(sentence)
    number = "test error" if train.classes else UNEXPLAINED
    show(shown(rows, ERRORS), title=f"{number} in percent, {of}", as_json=False)
    if judged := target_table(arms, train):
        show(judged, title=target_title(train), as_json=False)
    title = (
        "cross-entropy as it is and temperature-scaled, calibration error; seconds of the processor; samples "
        "back-propagated"
    )
    show(shown(rows, COSTS), title=title, as_json=False)
    if remembering := remembered(rows):
        title = "remembered losses: share of samples scored, and of the q largest losses found in the last epoch"
        show(shown(remembering, MEMORY), title=title, as_json=False)


def _loss(model: str) -> Any:
    return "hinge-sum" if model == "svm" else "binary" if model.startswith("figure1") else "cross-entropy"
