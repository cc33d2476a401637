"""Run in a process of its own: the library on the simulated accelerator, compared with the CPU, as JSON."""

import json
import math
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from ordered_sgd import (
    Above,
    AccuracyRule,
    LossMassRule,
    OrderedBatchSampler,
    OrderedLoss,
    OrderedStep,
    SelectionTracker,
    multiclass_hinge,
    ordered_linear_cross_entropy,
    ordered_mean,
    select_top_q,
    with_index,
)
from ordered_sgd.errors import NonFiniteLossError, TrapWarning
from ordered_sgd.integrations._sampled import Sampled
from ordered_sgd.integrations._watched import WatchedLoss
from ordered_sgd.lab.bench.subjects import EXACT
from ordered_sgd.lab.cli.bench import command
from ordered_sgd.rules import CosineDecay, FixedQ, LinearDecay
from tests import test_selection, test_step
from tests.accelerator import NAME, register, watching
from tests.accelerator_ways import (
    BATCHES,
    FUSED,
    STEADY,
    WAYS,
    Q,
    S,
    Way,
    batches,
    close,
    new_model,
    step_of,
    train,
    trains_as_on_the_cpu,
)
from tests.contracts import test_optimizers
from tests.step_parts import CE, sgd, weights

LOSSES = {
    "random": lambda: torch.randn(1000),
    "tied": lambda: torch.randint(0, 4, (64,)).float(),
    "NaN": lambda: torch.tensor([1.0, math.nan, 3.0, math.nan, -math.inf, math.inf, 0.0, 2.0]),
    "half": lambda: torch.randn(100).half(),
    "double": lambda: torch.randn(100).double(),
}


def check_selection_equals_that_of_the_cpu_and_reads_nothing() -> None:
    for name, make in LOSSES.items():
        losses = make()
        there = losses.to(NAME)
        for q in (1, 3, 0.25, 1.0):
            with watching() as waits:
                rows, mean = select_top_q(there, q), ordered_mean(there, q)
            assert waits.counts == (0, 0), (name, q, waits)
            assert rows.device.type == mean.device.type == NAME
            assert torch.equal(rows.cpu(), select_top_q(losses, q)), (name, q)
            torch.testing.assert_close(mean.cpu(), ordered_mean(losses, q), equal_nan=True)


def check_the_gradient_of_units_equals_that_of_the_cpu_and_reads_nothing() -> None:
    torch.manual_seed(0)
    losses, mask = torch.rand(6, 20), torch.rand(6, 20) < 0.7
    options = [
        {"unit": "token"},
        {"unit": "token", "mask": mask},
        {"unit": "pixel", "within": "sample", "mask": mask},
        {"unit": "sample", "mask": mask},
        {"unit": "token", "trim": 0.1, "mix": 0.2, "cap": 0.9},
        {"unit": "token", "mask": mask, "scores": torch.rand(6, 20), "always_keep": torch.rand(6, 20) < 0.1},
        {"unit": "token", "mask": mask, "q": Above(0.6, at_least=3)},
        {"unit": "token", "q": Above(0.999, at_least=0.3), "trim": 2},
        {"unit": "pixel", "within": "sample", "mask": mask, "q": torch.tensor([0, 3, 1, 20, 2, 0])},
        {"reduce": "mean"},
    ]
    for option in options:
        here, q = losses.clone().requires_grad_(), option.pop("q", 0.3)
        ordered_mean(here, q, **option).backward()  # type: ignore[arg-type]
        q = q.to(NAME) if isinstance(q, Tensor) else q
        there = losses.to(NAME).requires_grad_()
        moved = {name: value.to(NAME) if isinstance(value, Tensor) else value for name, value in option.items()}
        with watching() as waits:
            ordered_mean(there, q, **moved).backward()  # type: ignore[arg-type]
        assert waits.counts == (0, 0), (option, waits)
        assert there.grad is not None
        assert here.grad is not None
        close(there.grad, here.grad)


def check_the_head_of_a_language_model_waits_once_in_each_pass() -> None:
    torch.manual_seed(0)
    hidden, weight, target = torch.randn(2, 20, 8), torch.randn(50, 8), torch.randint(0, 50, (2, 20))
    target[0, :5] = -100
    there, here = ([t.to(name).requires_grad_() for t in (hidden, weight)] for name in (NAME, "cpu"))
    expected = ordered_linear_cross_entropy(*here, target, 0.25, softcap=5.0)
    expected.backward()
    moved = target.to(NAME)
    with watching() as waits:
        loss = ordered_linear_cross_entropy(*there, moved, 0.25, softcap=5.0)
        loss.backward()
    assert waits.counts == (2, 0), waits
    close(loss, expected)
    for mine, theirs in zip(there, here, strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        close(mine.grad, theirs.grad)
    assert ordered_linear_cross_entropy(*there, moved + 50, 0.25).isnan().cpu()  # outside the vocabulary


def check_groups_equal_those_of_the_cpu() -> None:
    torch.manual_seed(0)
    losses, ids = torch.rand(6, 20), torch.randint(0, 9, (6, 20))
    close(
        ordered_mean(losses.to(NAME), 3, unit="group", ids=ids.to(NAME)), ordered_mean(losses, 3, unit="group", ids=ids)
    )


def check_losses_with_an_ignored_target_weights_and_eval_equal_those_of_the_cpu_and_read_nothing() -> None:
    torch.manual_seed(0)
    outputs, y, weight = torch.randn(S, 5), torch.randint(0, 5, (S,)), torch.rand(S)
    y[::7] = -100
    for criterion in (CE, multiclass_hinge):
        ignored = y if criterion is CE else y.clamp(min=0)
        for training in (True, False):
            loss_fn = OrderedLoss(criterion, q=0.25).train(training)
            if criterion is multiclass_hinge:
                loss_fn = OrderedLoss(criterion, q=Above(1.0), score=lambda o, t: o[:, 0]).train(training)
            expected = loss_fn(outputs, ignored, sample_weight=weight)
            moved = [t.to(NAME) for t in (outputs, ignored, weight)]
            with watching() as waits:
                found = loss_fn(*moved[:2], sample_weight=moved[2])
            assert waits.counts == (0, 0), waits
            close(found, expected)


class Wrapped(torch.optim.Optimizer):
    """An optimizer that hands everything to another one, as Accelerate's does."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner

    def __getattribute__(self, name: str) -> object:
        if name in ("state", "param_groups", "defaults", "zero_grad", "step"):
            return getattr(object.__getattribute__(self, "inner"), name)
        return object.__getattribute__(self, name)


def check_a_loss_that_is_not_finite_does_not_reach_a_fused_optimizer_inside_a_wrapper() -> None:
    model = new_model(NAME)
    step = OrderedStep(model, CE, Wrapped(sgd(model, fused=True)), q=Q, engine="dense", nonfinite="skip")
    x, y, _ = batches()[0]
    bad = x.clone()
    bad[3] = math.nan
    for given in (x, x, bad):
        step(given.to(NAME), y.to(NAME))
    assert all(bool(w.isfinite().all()) for w in weights(model))


def check_a_record_as_plain_numbers_waits_once() -> None:
    model = new_model(NAME)
    step = OrderedStep(model, CE, sgd(model, fused=True), q=Q, engine="dense", nonfinite="skip")
    x, y, _ = batches()[0]
    bad = x.clone()
    bad[3] = math.nan
    found = []
    for given in (x, x, bad):
        record = step(given.to(NAME), y.to(NAME))
        with watching() as waits:
            found.append(record.to_dict())
        assert waits.counts == (1, 0), waits
    assert [one["q"] for one in found] == [Q, Q, 0]


def check_every_rule_moves_q_as_on_the_cpu() -> None:
    for rule in (AccuracyRule(), FixedQ(0.25), LinearDecay(epochs=4), CosineDecay(epochs=4), LossMassRule(0.9)):
        taken = []
        for device in ("cpu", NAME):
            model = new_model(device)
            step = OrderedStep(model, CE, sgd(model, fused=True), q=rule, engine="dense")
            moved = [(x.to(device), y.to(device)) for x, y, _ in batches()]
            qs = []
            for _ in range(4):
                for x, y in moved:
                    step(x, y)
                qs.append(step.end_epoch())
            taken.append(qs)
        assert taken[0] == taken[1], rule


def check_a_checkpoint_of_a_step_goes_on_alike() -> None:
    ends = []
    for saved in (False, True):
        model = new_model(NAME)
        optimizer = sgd(model, fused=True)
        step = OrderedStep(model, CE, optimizer, q=LossMassRule(), engine="dense")
        moved = [(x.to(NAME), y.to(NAME)) for x, y, _ in batches()]
        for number in range(6):
            step(*moved[number % BATCHES])
            if saved and number == 3:
                state = step.state_dict()
                step = OrderedStep(model, CE, optimizer, q=LossMassRule(), engine="dense")
                step.load_state_dict(state)
        ends.append((step.end_epoch(), [w.cpu() for w in weights(model)]))
    assert ends[0][0] == ends[1][0]
    for a, b in zip(ends[0][1], ends[1][1], strict=True):
        assert torch.equal(a, b)


def check_a_loss_that_is_not_finite_raises_late_with_a_fused_optimizer_and_at_once_with_another() -> None:
    for fused in (True, False):
        model = new_model(NAME)
        step = OrderedStep(model, CE, sgd(model, fused=fused), q=Q, engine="dense")
        x, y, _ = batches()[0]
        bad = x.clone()
        bad[9] = math.nan
        there, y, bad = x.to(NAME), y.to(NAME), bad.to(NAME)
        step(there, y)
        before = [w.cpu() for w in weights(model)]
        if fused:
            step(bad, y)
        with pytest.raises(NonFiniteLossError, match="got nan at position 9 of 32 in step 1"):
            step(there if fused else bad, y)
        assert all(torch.equal(a, b.cpu()) for a, b in zip(before, weights(model), strict=True))


def check_a_loss_that_is_not_finite_is_skipped_as_if_it_had_not_been() -> None:
    ends = []
    for with_bad in (True, False):
        for fused in (True, False):
            model = new_model(NAME, _normed)
            step = OrderedStep(model, CE, sgd(model, fused=fused), q=Q, engine="dense", nonfinite="skip")
            moved = [(x.to(NAME), y.to(NAME)) for x, y, _ in batches()]
            step(*moved[0])
            if with_bad:
                record = step(moved[1][0] * math.inf, moved[1][1])
                assert bool(record.ordered_loss.isnan())
            step(*moved[2])
            ends.append([t.cpu() for t in (*model.parameters(), *model.buffers())])
    for end in ends[1:]:
        for a, b in zip(ends[0], end, strict=True):
            close(a, b)


def _normed() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))


def _dropping() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, 4))


def _convolving() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 4, 2), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(8, 4)
    )


def check_ignored_targets_train_as_on_the_cpu_with_every_engine() -> None:
    for engine in ("dense", "rows", "twopass", "micro-batches"):
        ends = []
        for device in ("cpu", NAME):
            model = new_model(device)
            options = {"nonfinite": "skip"} if engine == "micro-batches" else {"engine": engine}
            step = OrderedStep(model, CE, sgd(model, fused=True), q=0.5, **options)  # type: ignore[arg-type]
            records = []
            for number, (x, y, _) in enumerate(2 * batches()):
                ignored = y.masked_fill(torch.arange(S) % 3 == 0, -100) if number != 4 else torch.full_like(y, -100)
                x, ignored = x.to(device), ignored.to(device)
                parts = [(x[:10], ignored[:10]), (x[10:], ignored[10:])]
                records.append(step(parts) if engine == "micro-batches" else step(x, ignored))
            found = [(r.q, r.count, r.rows.cpu().tolist(), r.mean_loss.nan_to_num(0).cpu()) for r in records]
            ends.append((found, [w.cpu() for w in weights(model)]))
        (here, w_here), (there, w_there) = ends
        assert [one[:3] for one in here] == [one[:3] for one in there], engine
        assert here[4][:2] == (0, 0)
        for a, b in zip([one[3] for one in here] + w_here, [one[3] for one in there] + w_there, strict=True):
            close(a, b)


def check_a_threshold_and_a_score_train_as_on_the_cpu_and_a_threshold_waits_once() -> None:
    for build, queue in (
        (step_of(engine="dense", score=lambda outputs, y: -outputs[:, 0]), 0),
        (step_of(Above(1.4, at_least=2), engine="dense"), 1),
    ):
        trains_as_on_the_cpu(Way("", queue, 2, "", build))()


def check_what_is_always_kept_costs_a_loss_of_large_outputs_no_read() -> None:
    outputs, keep = torch.randn(64, 5000).to(NAME).requires_grad_(), (torch.arange(64) < 3).to(NAME)
    target, loss_fn = torch.randn(64, 5000).softmax(1).to(NAME), OrderedLoss(CE, q=8)
    with watching() as waits:
        loss_fn(outputs, target, always_keep=keep).backward()
    assert waits.counts == (0, 0), waits


def check_buffers_of_batchnorm_cost_no_read() -> None:
    way = next(way for way in WAYS if way.name == FUSED)
    on_cpu, _, _ = train(way, "cpu", _normed)
    on_device, _, waits = train(way, NAME, _normed)
    for a, b in zip(on_device, on_cpu, strict=True):
        close(a, b)
    assert [seen.counts for seen in waits] == [(0, 2)] * STEADY


def check_every_engine_draws_the_same_dropout_on_the_device() -> None:
    """Against `dense` on the device: a GPU has a generator of its own."""
    names = {FUSED: "dense", "`twopass`": "twopass", "`rows`": "rows"}
    ends = {}
    for way in WAYS:
        if way.name in names:
            ends[names[way.name]], found, _ = train(way, NAME, _dropping)
            assert found[-1].engine == names[way.name]
    for name in ("twopass", "rows"):
        for a, b in zip(ends[name], ends["dense"], strict=True):
            close(a, b)


def check_twopass_notices_dropout_that_starts_later() -> None:
    ends = []
    for engine in ("dense", "twopass"):
        model = new_model(NAME, _dropping)
        model[1].eval()  # type: ignore[index]
        step = OrderedStep(model, CE, sgd(model, fused=True), q=Q, engine=engine)  # type: ignore[arg-type]
        for number, (x, y, _) in enumerate(batches()):
            if number == 1:
                model[1].train()  # type: ignore[index]
                torch.manual_seed(5)
            record = step(x.to(NAME), y.to(NAME))
        assert record.engine == engine
        ends.append([w.cpu() for w in weights(model)])
    for a, b in zip(*ends, strict=True):
        close(a, b)


def check_convolutions_train_as_on_the_cpu_with_every_engine() -> None:
    for way in WAYS:
        if way.name in (FUSED, "`twopass`", "`rows`"):
            on_cpu, _, _ = train(way, "cpu", _convolving)
            on_device, found, waits = train(way, NAME, _convolving)
            assert f"`{found[-1].engine}`" == way.name.partition(",")[0]
            for a, b in zip(on_device, on_cpu, strict=True):
                close(a, b)
            assert {seen.counts for seen in waits} == {(way.queue, way.event)}


def check_the_random_control_keeps_the_rows_of_the_cpu_and_reads_nothing() -> None:
    way = Way("", 0, 2, "", step_of(engine="dense", selection="random"))
    trains_as_on_the_cpu(way)()


def check_whole_batches_and_trimmed_or_capped_losses_train_as_on_the_cpu_and_read_nothing() -> None:
    for build in (
        step_of(q=1.0),
        step_of(q=1.0, parts=2),
        step_of(engine="dense", trim=2, trim_epochs=0),
        step_of(engine="dense", cap=1.0),
    ):
        trains_as_on_the_cpu(Way("", 0, 2, "", build))()


def check_the_tracker_reads_nothing_until_the_epoch_ends() -> None:
    trackers = {}
    for device in ("cpu", NAME):
        model = new_model(device)
        step = OrderedStep(model, CE, sgd(model, fused=True), q=Q, engine="dense", nonfinite="skip")
        tracker = trackers[device] = SelectionTracker(S * BATCHES)
        moved = [(x.to(device), y.to(device), index) for x, y, index in batches()]
        step(*moved[0][:2])  # a fused optimizer cannot mask its first step
        for _ in range(2):
            with watching() as waits:
                for x, y, index in moved:
                    tracker.update(index, step(x, y))
            assert waits.counts == (0, BATCHES if device == NAME else 0), waits  # which targets are ignored ones
            tracker.end_epoch()
    here, there = trackers["cpu"], trackers[NAME]
    assert here.chosen.tolist() == there.chosen.tolist()
    torch.testing.assert_close(torch.from_numpy(there.data_map().mean), torch.from_numpy(here.data_map().mean))


def check_the_batch_sampler_never_waits_for_the_queue_and_remembers_one_batch_later() -> None:
    here, there = (OrderedBatchSampler(320, 32, q=8) for _ in range(2))
    losses = torch.rand(320, generator=torch.Generator().manual_seed(0))
    for _ in range(2):
        for one, two in zip(here, there, strict=True):
            here.update(one, losses[one])
            index, found = torch.tensor(two).to(NAME), losses[two].to(NAME)
            with watching() as waits:
                there.update(index, found)
            queue, events = waits.counts
            assert (queue, events) <= (0, 2), waits  # of the batch before: its samples and its losses
    state = there.state_dict()
    assert len(state["pending"]) == 1  # updated, and not yet learnt from
    index, found, _ = state["late"]
    assert torch.equal(found, losses[index])
    resumed = OrderedBatchSampler(320, 32, q=8)
    resumed.load_state_dict(state)
    for one, two in zip(there, resumed, strict=True):  # the next epoch: that batch does not come again
        assert one == two
        there.update(torch.tensor(one).to(NAME), losses[one].to(NAME))
        resumed.update(torch.tensor(one).to(NAME), losses[one].to(NAME))
    assert resumed.epoch == 2


def check_a_batch_sampler_in_a_trainer_equals_that_of_the_cpu_and_never_waits_for_the_queue() -> None:
    x = torch.randn(320, 6, generator=torch.Generator().manual_seed(0))
    data = TensorDataset(x, (x[:, 0] > 0).long())
    for options in ({}, {"mix": 0.2, "trim": 1, "trim_epochs": 0}, {"q": LossMassRule(0.8)}, {"q": AccuracyRule()}):
        options = {"q": 8, **options}
        found = {}
        for device in ("cpu", NAME):
            sampler = OrderedBatchSampler(data, 32, q=options["q"])
            loader: DataLoader[Any] = DataLoader(with_index(data), batch_sampler=sampler)
            loss_fn = WatchedLoss(nn.CrossEntropyLoss(reduction="none"), **options)
            sampled = Sampled(sampler, loader, loss_fn, "test")
            torch.manual_seed(0)
            model = nn.Linear(6, 2).to(device)
            optimizer = sgd(model)
            numbers = []
            for _ in range(3):
                for given in loader:
                    inputs, target = (part.to(device) for part in sampled.arrive(given))
                    with watching() as waits:
                        optimizer.zero_grad()
                        loss_fn(model(inputs), target).backward()
                        optimizer.step()
                        sampled.leave()
                        numbers.append((loss_fn.mean_loss, loss_fn.ordered_loss, *sampled.numbers().values()))
                    assert waits.counts[0] == 0, (options, waits)
                loss_fn.end_epoch()
            sampler.end_epoch()
            kept = torch.tensor([[float(value) for value in line] for line in numbers])
            found[device] = (*(p.detach().cpu() for p in model.parameters()), kept, sampler.state_dict()["losses"])
        for here, there in zip(found["cpu"], found[NAME], strict=True):
            close(there, here)


def check_a_record_waits_for_nothing_until_it_is_read() -> None:
    model = new_model(NAME)
    step = OrderedStep(model, CE, sgd(model, fused=True), q=Q, engine="dense", nonfinite="skip")
    x, y, _ = batches()[0]
    record = step(x.to(NAME), y.to(NAME))
    with watching() as waits:
        values = [record.ordered_loss, record.mean_loss, record.correct, record.losses, record.rows]
    assert waits.counts == (0, 0), waits
    with watching() as waits:
        _ = [value.tolist() for value in values if value is not None]
    assert waits.counts == (5, 0)


def check_auto_runs_rows_on_the_device_where_that_pays() -> None:
    way = Way("", 1, 2, "", step_of(engine="auto"))
    with patch("ordered_sgd.engines.auto.ROWS_FROM", 1):
        _, found, _ = train(way, NAME)
        assert found[-1].engine == "rows"
        trains_as_on_the_cpu(way)()


def check_the_tests_that_need_an_accelerator_pass_on_it() -> None:
    test_step.test_a_step_on_an_accelerator_reads_nothing_back()
    test_selection.test_an_accelerator_selects_the_rows_of_the_cpu_on_the_device()


def check_every_optimizer_of_the_package_updates_as_on_the_cpu() -> None:
    for row in test_optimizers.ROWS:
        results = []
        for device in ("cpu", NAME):
            params = [nn.Parameter(p.detach().to(device)) for p in row.start()]
            results.append(test_optimizers.train(row.build(params), params))
        for a, b in zip(*results, strict=True):
            close(a, b)


def check_the_benchmark_of_steps_runs_on_the_device_with_exact_gradients() -> None:
    sizes = ["--models", "logistic", "--s", "32", "--q", "4", "--rounds", "2", "--no-probe"]
    with TemporaryDirectory() as folder:
        out = Path(folder) / "shared"
        done = CliRunner().invoke(command, ["step", "--device", NAME, *sizes, "--out", str(out)])
        assert done.exit_code == 0, (done.output, done.exception)
        record = json.loads(out.with_suffix(".json").read_text())
    assert (record["machine"]["device"], record["machine"]["device_type"]) == ("simulated accelerator", NAME)
    assert {row["threads"] for row in record["rows"]} == {torch.get_num_threads()}
    errors = {row["row"]: row["error"] for row in record["rows"] if row["error"] is not None}
    assert set(errors) == set(EXACT)
    assert max(errors.values()) < 1e-5, errors
    names = ("dense", "rows", "twopass", "memory")
    assert [row["ran"] for row in record["rows"] if row["row"] in names] == list(names)


def check_the_device_counts_what_it_should() -> None:
    """The instrument itself: each of these waits once, and the others not at all."""
    x = torch.arange(6.0).to(NAME)
    waiting: list[Callable[[], object]] = [
        lambda: x[0].item(),
        lambda: bool(x.sum() > 3),
        lambda: x.tolist(),
        lambda: x.cpu(),
        lambda: x.nonzero(),
        lambda: x[x > 2],
        lambda: torch.equal(x, x),
        lambda: torch.allclose(x, x),
        lambda: x.unique(),
        lambda: torch.tensor(3, device=NAME),
        lambda: torch.ones(3).to(NAME),
        lambda: torch.where(x > 2, x, torch.tensor(0.0)),
    ]
    free: list[Callable[[], object]] = [
        lambda: x.sort().values.cumsum(0),
        lambda: torch.full((), 3, device=NAME),
        lambda: torch.ones(3).to(NAME, non_blocking=True),
        lambda: torch.where(x > 2, x, 0.0),
        lambda: torch.empty(6).copy_(x, non_blocking=True),
        lambda: x[torch.arange(2, device=NAME)],
        lambda: x * torch.tensor(2.0),
    ]
    for number, call in enumerate([*waiting, *free]):
        with watching() as waits:
            call()
        assert waits.counts == (int(number < len(waiting)), 0), (number, waits)


def check_the_device_refuses_mixtures() -> None:
    x = torch.arange(6.0).to(NAME)
    mixed: list[Callable[[], object]] = [
        lambda: x + torch.ones(6),
        lambda: x[torch.tensor([1, 2])],
        lambda: x.index_select(0, torch.tensor([1, 2])),
        lambda: torch.rand(3, device=NAME, generator=torch.Generator()),
    ]
    for call in mixed:
        with pytest.raises(RuntimeError, match=r"mixes devices|same device|generator of the CPU"):
            call()


def check_a_copy_that_was_sent_holds_garbage_until_its_event() -> None:
    host = torch.zeros(2)
    event = torch.get_device_module(NAME).Event()
    host.copy_(torch.ones(2).to(NAME), non_blocking=True)
    event.record(None)
    assert bool(host.isnan().all())
    event.synchronize()
    assert host.tolist() == [1.0, 1.0]


CHECKS: dict[str, Callable[[], None]] = {
    name.removeprefix("check_"): value for name, value in list(globals().items()) if name.startswith("check_")
} | {f"steps of {way.name}": trains_as_on_the_cpu(way) for way in WAYS}
HEAVY = (  # many graphs each; "steps of ..." run every engine on the device, the bench has tests of its own
    "the_benchmark_of_steps_runs_on_the_device_with_exact_gradients",
    "convolutions_train_as_on_the_cpu_with_every_engine",
    "auto_runs_rows_on_the_device_where_that_pays",
)


def main() -> None:
    """Print what went wrong, by the name of the check; only those named on the command line, if any are."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", TrapWarning)
    register()
    found = {}
    for name, check in CHECKS.items():
        if len(sys.argv) > 1 and not any(part in name for part in sys.argv[1:]):
            continue
        torch.manual_seed(0)
        torch._dynamo.reset()
        try:
            check()
            found[name] = ""
        except Exception:
            found[name] = traceback.format_exc()
    sys.stdout.write("\n" + json.dumps(found))


if __name__ == "__main__":
    main()
