"""The harness of `osgd bench step` at a tiny size: what it reports is right, whatever the speed."""

import gc
from dataclasses import replace

import pytest
import torch
from torch import nn

from ordered_sgd.engines import ENGINES
from ordered_sgd.errors import OrderedSGDError
from ordered_sgd.lab.bench import probe as probes
from ordered_sgd.lab.bench.opponents import call, draw_by_rank, new_optimizer, selective_backprop_step, sgd_step
from ordered_sgd.lab.bench.probe import Probe, peak_bytes, peak_bytes_of_device, probe_apart, saved_bytes
from ordered_sgd.lab.bench.step_cost import LIMIT_A, LIMIT_B, BenchPlan, StepRow, default_qs, machine, measure, rows_at
from ordered_sgd.lab.bench.subjects import BACKPROP, EXACT, ROWS, SELECTIVE, SGD, Subjects
from ordered_sgd.lab.bench.timing import measurements
from ordered_sgd.lab.bench.workloads import WORKLOADS, installed
from ordered_sgd.selective import explain_backward

pytestmark = pytest.mark.xdist_group("bench step")  # measured once

PLAN = BenchPlan(["logistic"], s=8, qs=(8, 4), rounds=2, warmup=1)


@pytest.fixture(scope="module")
def measured() -> tuple[list[list[StepRow]], int, list[tuple[str, str, int]]]:
    """Columns, how often it ticked, and which probes were asked for."""
    ticked, asked = [0], []

    def tick() -> None:
        ticked[0] += 1

    def fake(model: str, row: str, *, s: int, q: int, threads: int, device: str) -> Probe:
        asked.append((model, row, q))
        return Probe(saved_bytes=q, peak_bytes=None, compile_seconds=0.0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ordered_sgd.lab.bench.step_cost.probe_apart", fake)
        columns = list(measure(PLAN, tick))
    return columns, ticked[0], asked


def test_every_engine_has_a_row_beside_the_baselines_and_the_limits(measured) -> None:
    whole, half = measured[0]
    assert set(ENGINES) | {SGD, SELECTIVE, BACKPROP} == set(ROWS)
    assert [row.row for row in half] == [*ROWS, LIMIT_A, LIMIT_B]
    assert [row.row for row in whole] == [name for name in ROWS if name != BACKPROP] + [LIMIT_A, LIMIT_B]
    assert {(row.model, row.threads, row.s, row.q) for row in half} == {("logistic", 1, 8, 4)}


def test_ratios_are_of_the_same_run(measured) -> None:
    for column in measured[0]:
        by_name = {row.row: row for row in column}
        for row in column:
            assert row.speedup == pytest.approx(by_name[SGD].seconds / row.seconds)
            assert row.of_limit_a == pytest.approx(by_name[LIMIT_A].seconds / row.seconds)
            assert row.of_limit_b == pytest.approx(by_name[LIMIT_B].seconds / row.seconds)
            if row.row in ROWS:
                assert row.low <= row.seconds <= row.high
                assert row.speedup_low <= row.speedup <= row.speedup_high
            else:
                assert row.low is row.high is row.speedup_low is row.speedup_high is None


def test_a_row_names_the_engine_that_ran(measured) -> None:
    whole, half = ({row.row: row for row in column} for column in measured[0])
    assert {whole[name].ran for name in ENGINES} == {"dense"}  # q = s is the plain step for every engine
    assert half["rows"].ran == "rows"
    assert half["twopass"].ran == "twopass"
    assert half["auto"].ran == "dense"
    assert "too small" in half["auto"].why
    assert (whole[SELECTIVE].ran, whole[SELECTIVE].why) == ("whole", "every sample has a gradient")
    assert (half[SELECTIVE].ran, half[SELECTIVE].why) == (SELECTIVE, "")


def test_the_engine_with_a_memory_scores_three_q_candidates_whatever_q_is() -> None:
    subjects = Subjects(WORKLOADS["logistic"], s=64, names=("memory",))
    for q in (8, 4):
        subjects.set_q(q)
        subjects.warm()
        scored = {None if (found := subjects.calls["memory"]().scored) is None else len(found) for _ in range(4)}
        assert 3 * q + 4 in scored
        assert subjects.ran("memory") == ("memory", "")


def test_it_ticks_as_often_as_planned_and_probes_each_step_once(measured) -> None:
    _, ticked, asked = measured
    assert ticked == PLAN.ticks
    assert len(asked) == len(set(asked)) == 1 + 2 * (len(ENGINES) + 1) + 1
    assert asked.count(("logistic", SGD, 8)) == 1


@pytest.mark.slow
def test_threads_are_as_before_even_when_it_is_left_early() -> None:
    torch.set_num_threads(1)
    columns = measure(BenchPlan(["logistic"], s=8, qs=(8,), threads=(2,), rounds=2, warmup=0, probe=False))
    assert next(columns)[0].threads == 2
    columns.close()
    assert torch.get_num_threads() == 1


def test_selective_backprop_stands_at_half_only() -> None:
    assert [q for q in default_qs(64) if BACKPROP in rows_at(64, q)] == [32]
    assert rows_at(64, 32, (SGD, "rows")) == [SGD, "rows"]
    assert default_qs(8) == (8, 4, 2, 1)


def test_an_exact_step_has_the_gradient_of_autograd_and_a_wrong_one_is_noticed(measured) -> None:
    for column in measured[0]:
        assert {row.row for row in column if row.error is not None} == set(EXACT) & set(ROWS)
        assert max(row.error for row in column if row.error is not None) < 1e-5
    subjects = Subjects(WORKLOADS["logistic"], s=8, names=("dense",))
    subjects.set_q(4)
    subjects._dial.q = 3  # the step keeps one sample less than the reference
    assert subjects.error("dense") > 0.01


def test_the_clock_is_read_when_the_device_has_finished() -> None:
    queued, now = [0], [0.0]

    def finish() -> None:
        now[0] += queued[0]
        queued[0] = 0

    def work() -> None:
        queued[0] += 1

    found = measurements({"a": work}, rounds=2, inner=3, settle=1, clock=lambda: now[0], finish=finish)
    assert found == {"a": [1.0, 1.0]}


def test_the_peak_on_a_device_is_what_its_allocator_counted_above_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    class Allocator:
        now = highest = 100

        def memory_allocated(self, device: str) -> int:
            return self.now

        def reset_peak_memory_stats(self, device: str) -> None:
            self.highest = self.now

        def max_memory_allocated(self, device: str) -> int:
            return self.highest

    allocator = Allocator()
    allocator.highest = 1000  # of an earlier step

    def call() -> None:
        allocator.highest = 160

    monkeypatch.setattr(torch, "get_device_module", lambda device: allocator)
    assert peak_bytes_of_device("cuda", call) == 60
    monkeypatch.setattr(torch, "get_device_module", lambda device: object())
    assert peak_bytes_of_device("other", call) is None


def test_the_machine_is_named() -> None:
    assert {"processor", "cores", "torch"} <= set(machine())


@pytest.mark.parametrize("name", [name for name in installed() if not name.startswith("preact")])
def test_a_workload_has_one_loss_per_sample_whose_mean_sgd_minimises(name: str) -> None:
    workload = WORKLOADS[name]
    x, y = workload.make_batch(3, torch.Generator().manual_seed(0))
    model = workload.build()
    outputs = call(model, x)  # once: dropout draws again
    losses = workload.criterion(outputs, y)
    assert losses.shape == (3,)
    assert model.training
    torch.testing.assert_close(workload.mean_loss(outputs, y), losses.mean())


@pytest.mark.parametrize("name", ["lenet", "preact-resnet18-bn", "preact-resnet18-gn", "vit"])
def test_images_are_channels_last_whatever_their_channels(name: str) -> None:
    x, _ = WORKLOADS[name].make_batch(4, torch.Generator())
    assert x.stride()[1] == 1
    assert x[:2].is_contiguous(memory_format=torch.channels_last)


def test_sizes_are_those_of_the_comparison() -> None:
    def layers(count: int, width: int) -> int:
        return count * (12 * width**2 + 13 * width)  # attention 4, the two linear layers 8; biases and two norms

    expected = {
        "vit": layers(6, 192) + (3 * 16 + 1) * 192 + 64 * 192 + 2 * 192 + 193 * 10,
        "causal": layers(4, 256) + (256 + 128 + 2) * 256 + 257 * 256,
        "causal-32k": layers(4, 256) + (32_000 + 32 + 2) * 256 + 257 * 32_000,
        "mlp": 785 * 1024 + 1025 * 1024 + 1025 * 10,
        "logistic": 7850,
    }
    if "bert" in installed():
        embeddings = (30_522 + 128 + 2) * 256 + 2 * 256
        expected["bert"] = embeddings + layers(4, 256) + 257 * 256 + 257 * 2  # and the pooler, and two classes
    assert {name: sum(p.numel() for p in WORKLOADS[name].build().parameters()) for name in expected} == expected


def test_turning_the_dial_changes_what_every_engine_keeps() -> None:
    subjects = Subjects(WORKLOADS["logistic"], s=8, names=("dense", "twopass"))
    for q in (8, 2, 4):
        subjects.set_q(q)
        assert [subjects.calls[name]().q for name in ("dense", "twopass")] == [q, q]


def test_turning_the_dial_changes_what_a_selective_loop_computes() -> None:
    subjects = Subjects(WORKLOADS["logistic"], s=8, names=(SELECTIVE,))
    report = explain_backward(subjects.models[SELECTIVE])
    for q in (8, 2, 4):
        subjects.set_q(q)
        before = report.rows
        subjects.calls[SELECTIVE]()
        assert report.rows - before == q


def test_a_selective_loop_takes_the_same_steps_as_the_dense_engine() -> None:
    subjects = Subjects(WORKLOADS["mlp"], s=8, names=("dense", SELECTIVE))
    subjects.set_q(2)
    for _ in range(3):
        subjects.calls["dense"]()
        subjects.calls[SELECTIVE]()
    for own, other in zip(*(subjects.models[name].parameters() for name in (SELECTIVE, "dense")), strict=True):
        torch.testing.assert_close(own, other)


def test_a_selective_loop_says_why_it_computes_every_sample() -> None:
    build = lambda: nn.Sequential(nn.Linear(784, 16), nn.BatchNorm1d(16), nn.Linear(16, 10))  # noqa: E731
    subjects = Subjects(replace(WORKLOADS["logistic"], build=build), s=8, names=(SELECTIVE,))
    subjects.set_q(2)
    ran, why = subjects.ran(SELECTIVE)
    assert ran == "whole"
    assert "takes statistics over the batch" in why


@pytest.mark.slow
@pytest.mark.skipif("bert" not in installed(), reason="Transformers is not installed")
def test_every_step_runs_an_unmodified_bert() -> None:
    subjects = Subjects(WORKLOADS["bert"], s=16)
    subjects.set_q(2)
    subjects.warm()
    for step in (*subjects.calls.values(), *subjects.pieces().values()):
        step(), step()
    engines = [name for name in ROWS if name not in (SGD, BACKPROP)]
    assert {name: subjects.ran(name)[0] for name in engines} == {name: name for name in engines} | {"auto": "rows"}


def test_every_step_clips_the_gradient_where_the_workload_does() -> None:
    def unit_rate(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=1.0)

    workload = replace(WORKLOADS["logistic"], optimizer=unit_rate, max_grad_norm=1e-3)
    subjects = Subjects(workload, s=8)
    subjects.set_q(4)
    for name, step in subjects.calls.items():
        step()
        pairs = zip(subjects.models[name].parameters(), subjects.model.parameters(), strict=True)
        moved = torch.cat([(own - other).flatten() for own, other in pairs])
        assert moved.norm().item() == pytest.approx(1e-3, rel=1e-2), name


def test_steps_train_copies_of_one_model() -> None:
    subjects = Subjects(WORKLOADS["logistic"], s=8, names=(SGD, "dense", SELECTIVE))
    for _ in range(3):
        for step in subjects.calls.values():  # q = s: the same update
            step()
    weights = [subjects.models[name].weight for name in (SGD, "dense", SELECTIVE)]
    torch.testing.assert_close(*weights[:2])
    torch.testing.assert_close(*weights[1:])
    assert not torch.equal(weights[0], subjects.model.weight)
    assert set(subjects.pieces()) == {"score s", "forward s", "forward q", "sgd q"}


def test_selective_backprop_draws_without_replacement_and_large_losses_more_often() -> None:
    generator = torch.Generator().manual_seed(0)
    losses = torch.randn(16, generator=generator)
    counts = torch.zeros(16)
    for _ in range(2000):
        rows = draw_by_rank(losses, keep=0.25, generator=generator)
        assert len(set(rows.tolist())) == 4
        counts[rows] += 1
    by_loss = counts[losses.argsort()]
    assert by_loss[:4].sum() < by_loss[4:8].sum() < by_loss[8:12].sum() < by_loss[12:].sum()


def test_selective_backprop_steps_on_the_mean_of_the_rows_it_drew() -> None:
    workload = WORKLOADS["logistic"]
    x, y = workload.make_batch(8, torch.Generator().manual_seed(0))
    model, twin = nn.Linear(784, 10), nn.Linear(784, 10)
    twin.load_state_dict(model.state_dict())
    rows = selective_backprop_step(model, workload.criterion, new_optimizer(model), x, y)
    sgd_step(twin, workload.mean_loss, new_optimizer(twin), x[rows], y[rows])
    torch.testing.assert_close(model.weight, twin.weight)


def test_saved_bytes_count_a_storage_once_and_parameters_never() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    x = torch.randn(5, 8)
    hidden = 5 * 16 * 4  # saved by tanh and by the second layer
    assert saved_bytes(lambda: model(x).sum().backward(), model) == 5 * 8 * 4 + hidden
    with torch.no_grad():
        assert saved_bytes(lambda: model(x), model) == 0


def test_two_passes_save_what_their_q_samples_need() -> None:
    subjects = Subjects(WORKLOADS["mlp"], s=32, names=(SGD, "twopass", "rows"))
    subjects.set_q(2)
    saved = {}
    for name, step in subjects.calls.items():
        step(), step()
        saved[name] = saved_bytes(step, subjects.models[name])
    assert saved["twopass"] <= saved[SGD] / 12
    assert saved["rows"] == pytest.approx(saved[SGD], rel=0.05)


def test_peak_memory_is_that_of_the_call_and_not_of_before() -> None:
    block = torch.ones(2**25)  # 128 MiB
    del block
    gc.collect()
    peak = peak_bytes(lambda: torch.ones(2**23).sum())  # 32 MiB
    assert peak is None or 0.9 * 2**25 <= peak < 2**26  # the system counts in batches of pages


def test_without_proc_the_peak_is_unknown(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setattr(probes, "_STATUS", tmp_path / "missing")
    assert peak_bytes(lambda: None) is None


@pytest.mark.slow
def test_a_probe_runs_in_a_process_of_its_own() -> None:
    probe = probe_apart("logistic", "twopass", s=8, q=2, threads=1)
    assert 2 * 784 * 4 <= probe.saved_bytes < 3 * 784 * 4
    assert probe.compile_seconds >= 0


@pytest.mark.slow
def test_a_probe_that_fails_says_why() -> None:
    with pytest.raises(OrderedSGDError, match=r"the probe of logistic, nothing, q = 2 must finish; got .*nothing"):
        probe_apart("logistic", "nothing", s=8, q=2, threads=1)
