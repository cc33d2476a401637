"""One run from its spec to its record: found, resumed or trained."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from ordered_sgd.errors import ArgumentError, RecordError, first_line, message
from ordered_sgd.lab.data import Dataset, load
from ordered_sgd.lab.data.catalog import CATALOG
from ordered_sgd.lab.data.dataset import Split
from ordered_sgd.lab.data.noise import flip_labels
from ordered_sgd.lab.data.protocol import Recipe
from ordered_sgd.lab.data.tabular import fitted
from ordered_sgd.lab.experiments.checkpoint import load_checkpoint, save_checkpoint
from ordered_sgd.lab.experiments.epoch import EpochRow
from ordered_sgd.lab.experiments.kernel_epochs import linear_layer
from ordered_sgd.lab.experiments.own import Problem, check_model, is_function, own_problem
from ordered_sgd.lab.experiments.plan import HIDDEN_RULE_FROM
from ordered_sgd.lab.experiments.setting import changes_for, model_for, still
from ordered_sgd.lab.experiments.spec import ExperimentSpec
from ordered_sgd.lab.experiments.store import Records, Run, versions
from ordered_sgd.lab.experiments.train import Training

SPLITS: tuple[Split, ...] = ("train", "test")
EVERY = 30.0  # seconds between two checkpoints


def run(
    spec: ExperimentSpec,
    records: Records,
    *,
    again: bool = False,
    on_row: Callable[[EpochRow], object] = lambda row: None,
    data: tuple[Dataset, Dataset] | None = None,
    every: float = EVERY,
) -> Run:
    """The record of a spec: as it is if the run is finished, else trained on from its last checkpoint.

    Parameters
    ----------
    spec, records
        What to run, and where it is recorded.
    again
        Run again from the beginning even if there is a record; a finished record stays until the new one is complete.
    on_row
        Called with every epoch that is recorded by this call.
    data
        Training and test set, for data without a name; by default the spec's data is loaded.
    every
        Seconds between two checkpoints.
    """
    known = records.get(spec)
    if known is not None and known.finished and not again:
        return known
    if known is None and not again and (same := _same_training(spec, records)) is not None:
        records.copy(same.spec, spec)
        for row in same.rows:
            on_row(row)
        return same._replace(spec=spec)
    recorded = recorded_epochs(spec, records, again=again)
    for event in events(spec, records.checkpoint(spec), recorded=recorded, data=data, every=every):
        keep(event, spec, records, again=again)
        if isinstance(event, EpochRow):
            on_row(event)
    found = records.get(spec)
    assert found is not None
    return found


def _same_training(spec: ExperimentSpec, records: Records) -> Run | None:
    """A finished run that differs only in the hidden rule, if that made no difference.

    The rule never fired there, or the rates come from a path. Times are never taken from another run.
    """
    if spec.timed:
        return None
    other = records.get(spec.but(hidden_rule=not spec.hidden_rule))
    if other is None or not other.finished:
        return None
    fired = any((row.train_accuracy or 0.0) >= HIDDEN_RULE_FROM for row in other.rows)
    return other if spec.path or not fired else None


class Began(NamedTuple):
    """A run starts or continues, with these versions of the software it depends on."""

    versions: dict[str, str]
    first: bool  # in its first epoch


class Ended(NamedTuple):
    """A run is finished, and these are its artifacts."""

    artifacts: dict[str, bytes]


Event = Began | EpochRow | Ended


def events(
    spec: ExperimentSpec,
    checkpoint: Path | None,
    *,
    recorded: int,
    data: tuple[Dataset, Dataset] | None = None,
    every: float = EVERY,
) -> Iterator[Event]:
    """What to record of a run, as it happens, starting at the last checkpoint if there is one.

    `recorded` is the number of epochs in the records: a checkpoint that is ahead of them is not used.
    """
    training = Training(spec, *problem_for(spec, data))
    if checkpoint is not None:
        _resume(training, checkpoint, recorded=recorded)
    yield Began(versions(), first=training.epoch == 1)
    saved = time.monotonic()
    for row in training.epochs():
        if row is not None:
            yield row
        if checkpoint is not None and time.monotonic() - saved > every:
            save_checkpoint(training.state_dict(), checkpoint)
            saved = time.monotonic()
    yield Ended(training.artifacts())


def keep(event: Event, spec: ExperimentSpec, records: Records, *, again: bool = False) -> None:
    """Record an event of a run; an epoch that is already recorded stays as it is."""
    match event:
        case Began():
            known = records.get(spec)
            stale = known is not None and not known.finished and known.versions != event.versions
            # A run may continue with other versions, but does not keep epochs that are trained again.
            records.begin(spec, again=again or (stale and event.first), on=event.versions)
        case EpochRow():
            records.add(spec, event)
        case Ended():
            for name, content in event.artifacts.items():
                records.add_artifact(spec, name, content)
            records.finish(spec)
            records.checkpoint(spec).unlink(missing_ok=True)


def recorded_epochs(spec: ExperimentSpec, records: Records, *, again: bool = False) -> int:
    """The number of recorded epochs of a run; 0 if it is run `again`, which also removes its checkpoint."""
    if again:
        records.checkpoint(spec).unlink(missing_ok=True)
        return 0
    known = records.get(spec)
    return 0 if known is None else len(known.rows)


def problem_for(spec: ExperimentSpec, given: tuple[Dataset, Dataset] | None = None) -> Problem:
    """The training and test sets of a spec, and the user's own model if there is one.

    Without a published split the seed draws it, so that the spread over seeds includes the choice of test samples.

    `train_size` takes the first samples of a shuffle that depends on the data set only. `validation` then holds out a
    share by the seed, and the test set is not used. Columns of a table are encoded, filled in and standardised by what
    is then left to train on, and so are the targets of a regression. `flipped` finally changes labels, of the training
    set only. If only part of a published set is here, the spec must state the number of samples.
    """
    train, test, model = _loaded(spec) if given is None else Problem(*given)
    if train.partial and (spec.train_size is None or spec.train_size > len(train)):
        remedy = f"Run: osgd data fetch {spec.data}, or ask for what is here: --train-size {len(train)}"
        raise ArgumentError(message("problem_for", spec.data, "be whole", f"all but {train.missing}", remedy))
    if len(train.classes) == 1:
        remedy = "Give it a column of classes with --target."
        got = f"{train.classes[0]!r} alone"
        raise ArgumentError(message("problem_for", str(train.label), "hold two classes or more", got, remedy))
    if spec.train_size is not None and spec.train_size < len(train):
        train = train.take(np.random.default_rng(0).permutation(len(train))[: spec.train_size])
    if spec.validation > 0:
        order = np.random.default_rng(spec.seed).permutation(len(train))
        cut = len(train) - max(1, round(spec.validation * len(train)))
        train, test = train.take(order[:cut]), replace(train.take(order[cut:]), split="test")
    if spec.train_size is not None or spec.validation > 0:
        train, test = fitted(train, test)  # by what is left to train on
    if not train.classes:
        scale = float(train.y.mean()), float(train.y.std()) or 1.0
        train, test = train.standardised(scale), test.standardised(scale)
    if spec.flipped > 0:
        train, _ = flip_labels(train, spec.flipped, np.random.default_rng(spec.seed))
    return Problem(train, test, model)


def check_fit(spec: ExperimentSpec, problem: Problem) -> None:
    """Refuse a model that does not fit the data, or that the engine cannot train, before anything is trained."""
    train, _, model = problem
    if model is None:
        with torch.device("meta"):  # without memory for the weights
            model = model_for(spec, train)
    else:
        scaled = still(train, Recipe(changes_for(spec, train).scaling), spec.seed)
        check_model(spec.data, model, next(iter(scaled)).x[:2], max(1, len(train.classes)))
    _check_loss(spec, train)
    if spec.engine_used.compiled:
        linear_layer(spec, model)


def _check_loss(spec: ExperimentSpec, train: Dataset) -> None:
    """Refuse a loss for classes on a regression, and the other way round."""
    if bool(train.classes) == (spec.loss == "squared"):
        what = "classes" if train.classes else "numbers to be predicted"
        remedy = "Use model logistic, svm or mlp." if train.classes else "Use model linear or mlp."
        got = f"model {spec.model} and loss {spec.loss} for {what}"
        raise ArgumentError(message("problem_for", str(train.label), "fit the model and its loss", got, remedy))
    if spec.class_weight != "none" and (not train.classes or spec.loss == "binary"):
        remedy = "Leave class_weight out."
        raise ArgumentError(message("problem_for", "class_weight", "be used with classes", f"{spec.loss} loss", remedy))


def counted(spec: ExperimentSpec) -> ExperimentSpec:
    """The spec with the number of training samples that are here, where the published set has more."""
    if spec.data not in CATALOG:
        return spec
    train = load(spec.data, "train", partial=True, seed=spec.seed)
    return spec.but(train_size=len(train)) if train.partial and spec.train_size is None else spec


def _loaded(spec: ExperimentSpec) -> Problem:
    if is_function(spec.data):
        torch.manual_seed(spec.seed)  # the function makes the model
        return own_problem(spec.data, seed=spec.seed)
    given: dict[str, Any] = {"target": spec.target, "seed": spec.seed, "task": spec.task}
    train, test = (load(spec.data, split, partial=True, **given) for split in SPLITS)
    return Problem(train, test)


def _resume(training: Training, path: Path, *, recorded: int) -> None:
    """Continue from the checkpoint, if there is one and the epochs before it are recorded."""
    state = load_checkpoint(path)
    if state is None:
        return
    remedy = "Remove it: the run then starts from its beginning."
    if state.get("spec") != training.spec.to_json():
        raise RecordError(message("checkpoint", str(path), "belong to this run", "another spec", remedy))
    if recorded < state["epoch"] - 1:
        return  # the records were removed: start from the beginning, or they would lack the first epochs
    try:
        training.load_state_dict(state)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:  # the user's model has changed, or this package
        reason = first_line(error)
        raise RecordError(message("checkpoint", str(path), "fit the model of this run", reason, remedy)) from error
