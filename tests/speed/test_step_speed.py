"""Speed bars of the engines on one thread, as ratios in interleaved runs; `make bench` prints them."""

import functools

import pytest
import torch

from ordered_sgd.lab.bench.probe import saved_bytes
from ordered_sgd.lab.bench.step_cost import BenchPlan, StepRow, default_qs, measure
from ordered_sgd.lab.bench.subjects import SGD, Subjects
from ordered_sgd.lab.bench.workloads import WORKLOADS

pytestmark = pytest.mark.bench

S = 64
MODELS = [name for name in WORKLOADS if name != "bert"]  # which has a bar of its own: selective_backward
BARS = {32: 1.3, 16: 1.8, 8: 2.05, 4: 2.2}  # speed-up over SGD of the better of rows and twopass
LARGE = ["lenet", "preact-resnet18-bn", "preact-resnet18-gn", "vit", "causal"]
OWN_LIMIT = {"rows": "of_limit_b", "twopass": "of_limit_a"}
ROUNDS = {"preact-resnet18-bn": 3, "preact-resnet18-gn": 3, "causal": 3, "vit": 5}  # steps of seconds; 11 for others
NEAR = 0.85  # of the limit's speed
SAME = 0.95  # of the speed of the same step: what quartiles of a quiet machine leave open


@functools.cache
def columns(model: str) -> dict[int, dict[str, StepRow]]:
    """The rows of a model by q and name, measured once for all tests."""
    torch.set_num_threads(1)
    plan = BenchPlan([model], s=S, qs=default_qs(S), rounds=ROUNDS.get(model, 11), probe=False)
    found = {column[0].q: {row.row: row for row in column} for column in measure(plan)}
    for q, rows in found.items():
        print(f"{model}, q = {q}: " + ", ".join(f"{name} {row.speedup:.2f}" for name, row in rows.items()))
    return found


@pytest.mark.parametrize("model", [name for name in MODELS if name != "logistic"])
@pytest.mark.parametrize("engine", OWN_LIMIT)
def test_an_engine_comes_within_15_percent_of_its_limit(model: str, engine: str) -> None:
    shares = {q: getattr(rows[engine], OWN_LIMIT[engine]) for q, rows in columns(model).items()}
    assert min(shares.values()) >= NEAR, shares
    assert {rows[engine].ran for q, rows in columns(model).items() if q < S} == {engine}


@pytest.mark.parametrize("model", LARGE)
@pytest.mark.parametrize("q", BARS)
def test_the_better_engine_is_so_much_faster_than_sgd(model: str, q: int) -> None:
    rows = columns(model)[q]
    best = max(rows["rows"].speedup, rows["twopass"].speedup)
    assert best >= BARS[q]


@pytest.mark.parametrize("model", ["lenet", "vit"])
@pytest.mark.parametrize(("q", "bar"), [(8, 2.5), (4, 3.5)])
def test_the_engine_with_a_memory_is_past_the_limits(model: str, q: int, bar: float) -> None:
    assert columns(model)[q]["memory"].speedup >= bar


@pytest.mark.parametrize("model", [name for name in MODELS if name != "logistic"])
def test_auto_costs_nothing_when_everything_is_kept(model: str) -> None:
    assert columns(model)[S]["auto"].speedup >= 0.97


def test_auto_loses_at_most_a_fifth_where_the_step_is_all_overhead() -> None:
    speeds = {q: rows["auto"].speedup for q, rows in columns("logistic").items()}
    assert min(speeds.values()) >= 0.8, speeds


def test_auto_makes_a_multilayer_perceptron_a_fifth_faster_at_a_quarter() -> None:
    assert columns("mlp")[S // 4]["auto"].speedup >= 1.2


@pytest.mark.parametrize("model", MODELS)
def test_auto_has_settled_on_an_engine_and_is_as_fast(model: str) -> None:
    for q, rows in columns(model).items():
        auto = rows["auto"]
        ratio = rows[auto.ran].seconds / auto.seconds
        assert ratio >= SAME, f"q = {q}: {ratio:.2f} of the speed of {auto.ran}"


@pytest.mark.parametrize("model", MODELS)
def test_two_passes_save_a_twelfth_of_the_bytes_at_a_sixteenth(model: str) -> None:
    subjects = Subjects(WORKLOADS[model], s=S, names=(SGD, "twopass"))
    subjects.set_q(S // 16)
    saved = {}
    for name, call in subjects.calls.items():
        call()
        saved[name] = saved_bytes(call, subjects.models[name])
    print(f"{model}: {saved}")
    assert 12 * saved["twopass"] <= saved[SGD]
