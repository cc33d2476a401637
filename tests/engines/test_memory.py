"""The engine with a memory: exact with all candidates, honest about what it misses, and the same after a restart."""

import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, DataLoader, TensorDataset

from ordered_sgd import AccuracyRule, LossMassRule, OrderedStep, StepRecord, select_top_q
from ordered_sgd.diagnostics.tracker import SelectionTracker
from ordered_sgd.engines import Auto, Memory, Strategy, apart, as_strategy
from ordered_sgd.engines.audits import Audits
from ordered_sgd.engines.memory_checks import LARGEST
from ordered_sgd.engines.recall import Candidates
from ordered_sgd.engines.remembered import PROBES, memory_bytes
from ordered_sgd.errors import ArgumentError, NonFiniteLossError, TrapWarning
from ordered_sgd.lab.models import build
from tests.step_parts import CE, same, sgd, weights

N, S, Q = 320, 32, 4
pytestmark = pytest.mark.filterwarnings("ignore::ordered_sgd.errors.TrapWarning")  # small q on purpose


def data(seed: int = 0) -> tuple[Tensor, Tensor]:
    """A problem that can be learnt, so that losses differ and keep their order from epoch to epoch."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(N, 6, generator=generator)
    return x, (x @ torch.randn(6, 4, generator=generator)).argmax(1)


def network(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(dropout), nn.Linear(16, 4))


def make(model: nn.Module, engine: Strategy, **options: Any) -> OrderedStep:
    given = {"q": Q, **options}
    return OrderedStep(model, CE, sgd(model), engine=engine, **given)


def order(epochs: int, seed: int = 0) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        yield from torch.randperm(N, generator=generator).split(S)


def train(step: OrderedStep, batches: Any, *, index: bool = True) -> list[StepRecord]:
    x, y = data()
    return [step(x[i], y[i], **({"index": i} if index else {})) for i in batches]


def without_audits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Score no batch whole to measure what is missed."""
    monkeypatch.setattr(Audits, "due", lambda audits: False)


@pytest.mark.parametrize("options", [{}, {"trim": 2, "trim_epochs": 0}, {"cap": 1.0}, {"q": "accuracy"}])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("everything", [Memory(candidates=1.0), Memory(recall=1.0)])
def test_with_all_samples_as_candidates_it_is_the_exact_engine_bit_for_bit(
    options: dict[str, Any], dropout: float, everything: Memory
) -> None:
    if options.get("q") == "accuracy":
        options = {"q": AccuracyRule()}
    found = {}
    engines: dict[str, Strategy] = {"memory": everything, "auto": Auto()}
    for engine, strategy in engines.items():
        model = network(dropout)
        step = make(model, strategy, **options)
        torch.manual_seed(3)
        records = []
        for _ in range(3):
            records += train(step, order(2), index=engine == "memory")
            step.end_epoch()
        found[engine] = (weights(model), records)
    assert same(found["memory"][0], found["auto"][0])
    for ours, theirs in zip(found["memory"][1], found["auto"][1], strict=True):
        assert (ours.q, ours.engine, ours.correct, ours.mean_loss) == (
            theirs.q, theirs.engine, theirs.correct, theirs.mean_loss
        )  # fmt: skip
        assert (ours.scored, ours.recall, ours.estimated) == (None, 1.0, False)
        assert (theirs.scored, theirs.recall) == (None, None)


def test_the_first_epoch_scores_everything_and_later_ones_the_largest_remembered_and_four_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without_audits(monkeypatch)
    step = make(network(), Memory(candidates=10))
    assert all(record.scored is None for record in train(step, order(1)))
    i = torch.arange(S)
    remembered = step.state_dict()["engine"]["losses"][i]
    (record,) = train(step, [i])
    likely = select_top_q(remembered, 10)
    assert record.engine == "memory"
    assert record.scored is not None
    assert record.scored.shape == (10 + PROBES,)
    assert torch.isin(likely, record.scored).all()
    assert torch.isin(record.rows, record.scored).all()
    best = record.scored[select_top_q(record.losses[record.scored], Q)]
    assert torch.equal(record.rows, best)


def test_only_what_was_scored_is_remembered_anew_and_a_new_sample_is_always_scored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without_audits(monkeypatch)
    x, y = data()
    step = make(network(), Memory(candidates=8))
    train(step, order(1))
    before = step.state_dict()["engine"]["losses"]
    index = torch.arange(S)
    index[5], index[7] = N + 100, N  # never seen
    record = step(x[:S], y[:S], index=index)
    after = step.state_dict()["engine"]["losses"]
    assert after.shape == (N + 101,)
    assert torch.isinf(after[N + 1 : N + 100]).all()
    assert record.scored is not None
    assert {5, 7} <= set(record.scored.tolist())
    known = record.scored[torch.isin(record.scored, torch.tensor([5, 7]), invert=True)]
    expected = 0.3 * before[index[known]] + 0.7 * record.losses[known]
    torch.testing.assert_close(after[index[known]], expected, rtol=1e-6, atol=0)
    assert after[N] == record.losses[7]
    rest = torch.isin(torch.arange(S), record.scored, invert=True)
    assert torch.equal(after[index[rest]], before[index[rest]])
    assert torch.equal(record.losses[rest], before[index[rest]])


def test_the_gradient_is_that_of_the_chosen_samples() -> None:
    x, y = data()
    model, twin = network(), network()
    step = OrderedStep(model, CE, torch.optim.SGD(model.parameters(), lr=0.0), q=Q, engine=Memory(candidates=8))
    for i in order(3):
        record = step(x[i], y[i], index=i)
        twin.zero_grad()
        CE(twin(x[i]), y[i])[record.rows].mean().backward()
        for p, expected in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(p.grad, expected.grad, rtol=1e-5, atol=1e-7)
    assert record.ordered_loss == record.losses[record.rows].mean()


def test_mean_loss_and_right_answers_are_estimated_without_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    without_audits(monkeypatch)
    x, y = data()
    model = network()
    step = OrderedStep(model, CE, torch.optim.SGD(model.parameters(), lr=0.0), q=Q, engine=Memory(candidates=6))
    i = torch.arange(S)
    step(x[i], y[i], index=i)
    for p in model.parameters():  # what is remembered is now wrong
        p.data += 0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(5))
    stale = step.state_dict()
    losses, right = CE(model(x[i]), y[i]).detach(), (model(x[i]).argmax(1) == y[i]).sum()
    means, counts = [], []
    for seed in range(300):
        stale["policy"]["generator"] = torch.Generator().manual_seed(seed).get_state()
        step.load_state_dict(stale)
        record = step(x[i], y[i], index=i)
        assert record.estimated
        means.append(float(record.mean_loss))
        counts.append(float(record.correct if record.correct is not None else np.nan))
    for values, true in ((means, float(losses.mean())), (counts, float(right))):
        error = np.std(values) / np.sqrt(len(values))
        assert error > 0
        assert abs(np.mean(values) - true) < 4 * error  # by chance once in 16,000 draws, and the draws are fixed


def audits_and_truth(step: OrderedStep, batches: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[list[float], ...]:
    """The recall that each audit of a training found, and that of every other step that left samples out."""
    x, y = data()
    audits: list[float] = []
    take_note = Candidates.audit

    def audit(candidates: Candidates, found: int, q: int) -> None:
        audits.append(found / q)
        take_note(candidates, found, q)

    monkeypatch.setattr(Candidates, "audit", audit)
    truth = []
    for i in batches:
        state = torch.get_rng_state()
        with torch.no_grad():
            losses = CE(step.model(x[i]), y[i])
        torch.set_rng_state(state)
        record = step(x[i], y[i], index=i)
        if record.scored is not None:
            # dropout masks of a part are others, so that found means: among the scored
            truth.append(float(torch.isin(select_top_q(losses, Q), record.scored).float().mean()))
    return audits, truth


@pytest.mark.parametrize("options", [{"candidates": 6}, {"recall": 0.8}, {"recall": 0.8, "batchnorm": "scored"}])
def test_the_recall_that_is_reported_is_that_of_scoring_everything(options: dict[str, Any]) -> None:
    """Audits at random moments against the truth at every other step, over seeds."""
    differences = []
    for seed in range(12):
        torch.manual_seed(seed)
        model = normalised() if "batchnorm" in options else network(0.3)
        step = make(model, Memory(**options), generator=torch.Generator().manual_seed(seed))
        with pytest.MonkeyPatch.context() as patched:
            audits, truth = audits_and_truth(step, order(10, seed), patched)
        assert step.recall is not None
        assert step.recall.mean == pytest.approx(np.mean(audits[-8:]))
        differences.append(np.mean(audits) - np.mean(truth))
    error = np.std(differences, ddof=1) / np.sqrt(len(differences))
    assert error < 0.03
    assert abs(np.mean(differences)) < 3 * error


def test_a_short_epoch_has_an_audit_every_few_steps_and_the_interval_rests_on_the_last_two(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step = make(network(), Memory(candidates=6))
    audits, truth = audits_and_truth(step, order(9), monkeypatch)
    assert len(audits) == 20  # one in four of the steps after the first epoch
    assert len(truth) == 60
    assert step.recall is not None
    assert step.recall.audits == 8


def test_audits_get_rarer_as_the_data_set_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing tells the engine how long an epoch is: it counts the samples that it has seen."""
    step = make(network(), Memory(candidates=6))
    x, y = data()
    lengths = []
    begin = Audits.begin

    def noted(audits: Audits, stretch: int, generator: torch.Generator) -> None:
        lengths.append(stretch)
        begin(audits, stretch, generator)

    monkeypatch.setattr(Audits, "begin", noted)
    for n in (N, 10 * N, N):  # grows, and shrinks again
        for _ in range(2):
            for index in torch.randperm(n, generator=torch.Generator().manual_seed(0)).split(S):
                record = step(x[index % N], y[index % N], index=index)
                assert record.count == S
    assert lengths[0] == 4
    assert lengths[-1] == 10  # of the hundred steps of an epoch
    assert sorted(lengths) == lengths


def test_the_number_of_candidates_adapts_and_the_recall_is_in_every_record() -> None:
    step = make(network(), Memory(recall=0.8))
    records = train(step, order(24))
    part = [record for record in records if record.scored is not None]
    assert len(part) > 0.6 * len(records)  # in a short epoch one step in four is audited
    assert step.recall is not None
    assert step.recall.low <= step.recall.mean <= step.recall.high
    assert part[-1].recall == step.recall.mean > 0.75
    assert step.why is None
    assert np.mean([record.scored.shape[0] for record in part if record.scored is not None]) < 0.75 * S


def test_a_recall_that_cannot_be_held_scores_everything_and_says_so() -> None:
    _, y = data()
    step = make(network(), Memory(recall=0.95))
    generator = torch.Generator().manual_seed(9)
    for i in order(6):  # every view of a sample is another sample
        record = step(torch.randn(S, 6, generator=generator), y[i], index=i)
    assert record.scored is None
    assert step.why is not None
    assert step.why.startswith("a recall of 0.95 needs ")
    assert step.why.endswith(f" of {S} samples as candidates")
    records = train(step, order(20))  # the same views again: it finds out by itself
    assert any(record.scored is not None for record in records)


@pytest.mark.parametrize("rule", [AccuracyRule((0.5, 0.7), (2, 4)), LossMassRule(0.8)])
def test_a_rule_moves_q_by_the_estimates(rule: Any) -> None:
    paths = {}
    for engine in ("memory", "auto"):
        torch.manual_seed(1)
        model = network()
        step = make(model, as_strategy(engine, "test"), q=rule)
        paths[engine] = []
        for epoch in range(12):
            train(step, order(1, epoch))
            paths[engine].append(step.end_epoch())
    assert paths["memory"][-1] < S
    assert np.abs(np.subtract(paths["memory"], paths["auto"])).max() <= S // 8


@pytest.mark.parametrize("at", [5, 37, 61])
def test_a_restart_goes_on_bit_for_bit_in_the_middle_of_an_epoch(at: int, tmp_path: Any) -> None:
    batches = list(order(9))
    torch.manual_seed(4)
    whole = network(0.2)
    step = make(whole, Memory())
    train(step, batches[:at])
    state = {"model": whole.state_dict(), "optimizer": step.optimizer.state_dict(), "step": step.state_dict()}
    torch.save({**state, "random": torch.get_rng_state()}, tmp_path / "run.pt")
    expected = train(step, batches[at:])
    state = torch.load(tmp_path / "run.pt", weights_only=True)
    again = network(0.2)
    step_again = make(again, Memory(), generator=torch.Generator().manual_seed(77))
    again.load_state_dict(state["model"])
    step_again.optimizer.load_state_dict(state["optimizer"])
    step_again.load_state_dict(state["step"])
    torch.set_rng_state(state["random"])
    found = train(step_again, batches[at:])
    assert same(weights(again), weights(whole))
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a.rows, b.rows)
        assert (a.recall, a.engine, float(a.mean_loss)) == (b.recall, b.engine, float(b.mean_loss))
    ours, theirs = step_again.state_dict()["engine"], step.state_dict()["engine"]
    assert torch.equal(ours["losses"], theirs["losses"])
    assert ours["candidates"]["found"] == theirs["candidates"]["found"]


def run_remembering(checkpoint: Path, until: str | None = None) -> str:
    """The last line of a training in a process of its own, which is killed at this line."""
    command = [sys.executable, "-m", "tests.engines.remembering", str(checkpoint)]
    line = ""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip() == until:
                process.kill()
                process.wait()
    assert process.returncode == (0 if until is None else -signal.SIGKILL)
    return line.strip()


def test_a_killed_training_that_is_resumed_is_the_same_bit_for_bit(tmp_path: Path) -> None:
    expected = run_remembering(tmp_path / "whole.pt")
    run_remembering(tmp_path / "killed.pt", until="73")  # inside an epoch of eleven steps, three after a checkpoint
    assert run_remembering(tmp_path / "killed.pt") == expected
    assert len(expected) == 64


def test_the_indices_of_two_data_sets_that_are_counted_separately_are_noticed() -> None:
    x, y = data()
    part = TensorDataset(x, y, torch.arange(N))
    loader = DataLoader(ConcatDataset([part, part]), S, shuffle=True, generator=torch.Generator().manual_seed(0))
    step = make(network(), Memory())
    text = r"twice\. Draw a batch without replacement; number several data sets consecutively, as ConcatDataset does"
    with pytest.raises(ArgumentError, match=text):
        [step(inputs, targets, index=index) for inputs, targets, index in loader]


def test_a_batch_from_a_data_loader_with_its_indices_works() -> None:
    x, y = data()
    loader = DataLoader(TensorDataset(x, y, torch.arange(N)), batch_size=50, shuffle=True)
    step = make(network(), Memory(candidates=8))
    for _ in range(3):
        for inputs, targets, index in loader:
            record = step(inputs, targets, index=index)
    assert record.count == N % 50
    assert step.state_dict()["engine"]["losses"].isfinite().all()


@pytest.mark.parametrize("kind", [np.asarray, list, lambda i: i.to(torch.int32), lambda i: i.to(torch.uint8)])
def test_indices_may_be_arrays_lists_and_any_integers(kind: Any) -> None:
    x, y = data()
    assert make(network(), Memory())(x[:S], y[:S], index=kind(torch.arange(S))).count == S


WRONG = [
    (None, "index must be given for engine 'memory'; got none. Call step(x, y, index=...)"),
    (torch.arange(S - 1), f"index must have shape ({S},), one number per sample; got shape ({S - 1},)"),
    (torch.arange(S)[:, None], f"index must have shape ({S},)"),
    (torch.arange(S).float(), "index must be integers, shape (s,); got torch.float32"),
    (torch.ones(S, dtype=torch.bool), "index must be integers, shape (s,); got torch.bool"),
    ("names", "index must be integers, shape (s,); got str"),
    (torch.arange(S) - 1, f"index must be at least 0 and below {LARGEST}; got -1 to {S - 2}"),
    (torch.arange(S) + LARGEST, f"index must be at least 0 and below {LARGEST}"),
    (torch.arange(S) // 2 + 3, "index must hold every sample once; got 3 twice. Draw a batch without replacement;"),
]


@pytest.mark.parametrize(("index", "text"), WRONG)
def test_wrong_indices_get_one_clear_error_before_anything_moves(index: Any, text: str) -> None:
    x, y = data()
    model = network()
    step = make(model, Memory())
    before = weights(model)
    with pytest.raises(ArgumentError) as raised:
        step(x[:S], y[:S], index=index)
    assert str(raised.value).startswith(f"OrderedStep: {text}")
    assert same(before, weights(model))


OPTIONS = [
    ({"recall": 0.0}, "recall must be a share in (0, 1]; got 0.0"),
    ({"recall": 95}, "recall must be a share in (0, 1]; got 95"),
    ({"recall": True}, "recall must be a share in (0, 1]; got True"),
    ({"recall": "high"}, "recall must be a share in (0, 1]; got 'high'"),
    ({"candidates": 0}, "candidates must be an int of at least 1 or a fraction in (0, 1]; got 0"),
    ({"candidates": 1.5}, "candidates must be an int of at least 1 or a fraction in (0, 1]; got 1.5"),
    ({"candidates": True}, "candidates must be an int of at least 1"),
    ({"batchnorm": "subset"}, "batchnorm must be one of None, scored; got 'subset'. Pass batchnorm=\"scored\"."),
]


@pytest.mark.parametrize(("options", "text"), OPTIONS)
def test_what_it_cannot_do_is_refused_when_it_is_built(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ArgumentError) as raised:
        Memory(**options)
    assert str(raised.value).startswith(f"Memory: {text}")


def test_a_random_choice_is_refused() -> None:
    with pytest.raises(ArgumentError, match="OrderedStep: selection must be 'top' for engine 'memory'; got 'random'"):
        make(network(), Memory(), selection="random")


def test_micro_batches_are_refused() -> None:
    x, y = data()
    with pytest.raises(ArgumentError, match="the batch must be one batch for engine 'memory'; got a list of micro"):
        make(network(), Memory())([(x[:4], y[:4]), (x[4:8], y[4:8])])


def test_batchnorm_scores_everything_and_says_so() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))
    step = make(model, Memory(candidates=8))
    with pytest.warns(UserWarning, match="samples must not influence each other for engine memory"):
        records = train(step, order(2))
    assert all(record.scored is None for record in records)
    assert step.why == "samples influence each other in BatchNorm1d in training"


def normalised(**options: Any) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8, **options), nn.ReLU(), nn.Linear(8, 4))


@pytest.mark.parametrize("options", [{}, {"affine": False}, {"track_running_stats": False}, {"momentum": None}])
def test_scored_batchnorm_is_a_step_on_the_smaller_batch_bit_for_bit(options: dict[str, Any]) -> None:
    """Beside a twin that runs what was scored in training mode, and nothing else; audits run the whole batch."""
    x, y = data()
    model, twin = normalised(**options), normalised(**options)
    step, optimizer = make(model, Memory(candidates=8, batchnorm="scored")), sgd(twin)
    part = 0
    for i in order(8):
        record = step(x[i], y[i], index=i)
        scored = torch.arange(S) if record.scored is None else record.scored
        losses = CE(twin(x[i][scored]), y[i][scored])
        rows = select_top_q(losses, Q)
        optimizer.zero_grad()
        losses[rows].mean().backward()
        optimizer.step()
        assert torch.equal(record.rows, scored[rows])
        assert torch.equal(record.losses[scored], losses.detach())
        for (name, ours), theirs in zip(model.state_dict().items(), twin.state_dict().values(), strict=True):
            assert torch.equal(ours, theirs), name
        part += record.scored is not None
    assert part > 50
    assert step.why is None
    assert step.recall is not None


def test_scored_batchnorm_warns_of_nothing_and_large_models_run_densely_on_what_is_scored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without_audits(monkeypatch)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.Flatten(), nn.LazyLinear(4)
    )
    step = make(model, Memory(candidates=4, batchnorm="scored"))
    x, y = torch.randn(16, 3, 16, 16), torch.randint(0, 4, (16,))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", TrapWarning)
        records = [step(x, y, index=range(16)) for _ in range(3)]
    assert [record.engine for record in records] == ["dense", "memory", "memory"]
    assert isinstance(model[1], nn.BatchNorm2d)
    assert model[1].num_batches_tracked == 3


class Centred(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


@pytest.mark.parametrize(
    ("layer", "why"), [(Centred, "Centred '3'"), (lambda: nn.SyncBatchNorm(8), "SyncBatchNorm in training")]
)
def test_scored_batchnorm_lets_no_other_coupling_through(
    layer: Callable[[], nn.Module], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apart, "takes_statistics_over_processes", lambda norm: isinstance(norm, nn.SyncBatchNorm))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), layer(), nn.Linear(8, 4))
    step = make(model, Memory(candidates=8, batchnorm="scored"))
    with pytest.warns(UserWarning, match="samples must not influence each other for engine memory"):
        records = train(step, order(2))
    assert all(record.scored is None for record in records)
    assert step.why == f"samples influence each other in {why}"
    assert all(module.training for module in model)


def test_scored_batchnorm_holds_the_recall_that_is_asked_for() -> None:
    step = make(normalised(), Memory(recall=0.8, batchnorm="scored"))
    records = train(step, order(30))
    assert step.recall is not None
    assert step.recall.mean > 0.75
    assert sum(record.scored is not None for record in records) > 0.5 * len(records)


def test_a_sample_that_is_not_finite_is_named_by_its_place_in_the_batch() -> None:
    x, y = data()
    i = torch.arange(S)
    for nonfinite in ("raise", "skip"):
        model = network()
        step = make(model, Memory(candidates=8), nonfinite=nonfinite)
        train(step, order(1))
        place = int(step.state_dict()["engine"]["losses"][i].argmax())  # surely scored
        broken = x[:S].clone()
        broken[place] = torch.nan
        before, remembered = weights(model), step.state_dict()["engine"]["losses"]
        if nonfinite == "raise":
            with pytest.raises(NonFiniteLossError, match=f"nan at position {place} of {S} in step 10"):
                step(broken, y[:S], index=i)
        else:
            assert step(broken, y[:S], index=i).q == 0
        assert same(before, weights(model))
        assert torch.equal(step.state_dict()["engine"]["losses"], remembered)


def test_indices_that_now_mean_other_samples_break_nothing() -> None:
    x, y = data(seed=8)
    step = make(network(), Memory())
    train(step, order(10))
    for i in order(10, seed=3):
        record = step(x[i], y[i], index=i)
    assert record.q == Q
    assert step.recall is not None


def test_the_tracker_takes_no_remembered_loss_for_a_computed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    without_audits(monkeypatch)
    step, tracker = make(network(), Memory(candidates=6)), SelectionTracker(N)
    train(step, order(1))
    i = torch.arange(S)
    (record,) = train(step, [i])
    tracker.update(i, record)
    tracker.end_epoch()
    assert record.scored is not None
    assert np.flatnonzero(np.isfinite(tracker.data_map().mean)).tolist() == record.scored.tolist()
    assert tracker.seen.sum() == S
    assert tracker.chosen.sum() == Q


def test_other_engines_do_not_look_at_the_index() -> None:
    x, y = data()
    model = network()
    assert OrderedStep(model, CE, sgd(model), q=Q, engine="dense")(x[:S], y[:S], index="anything").count == S


def test_the_state_takes_four_bytes_a_sample_and_the_memory_an_eighth_more() -> None:
    x, y = data()
    step = make(network(), Memory())
    for start in range(0, 3000, S):  # in their order: the worst case of growing
        step(x[:S], y[:S], index=torch.arange(start, start + S))
    engine = step.engine
    assert engine is not None
    losses = step.state_dict()["engine"]["losses"]
    assert losses.nbytes == 4 * losses.shape[0]
    assert losses.nbytes <= engine.remembered.nbytes <= memory_bytes(losses.shape[0])


@pytest.mark.parametrize("dropout", [pytest.param(0.0, marks=pytest.mark.slow), 0.5])
def test_a_large_model_runs_rows_on_the_candidates(dropout: float, monkeypatch: pytest.MonkeyPatch) -> None:
    without_audits(monkeypatch)
    torch._dynamo.reset()
    found = {}
    engines = {"auto": Auto(), "memory": Memory(candidates=1.0), "few": Memory(candidates=4)}
    for engine, strategy in engines.items():
        torch.manual_seed(0)
        model = build("lenet", (1, 28, 28), 10, dropout=dropout)
        step = OrderedStep(model, CE, sgd(model), q=3, engine=strategy)  # type: ignore[arg-type]
        generator = torch.Generator().manual_seed(1)
        x, y = torch.randn(16, 1, 28, 28, generator=generator), torch.randint(0, 10, (16,), generator=generator)
        records = [step(x, y, index=range(16)) for _ in range(3)]
        found[engine] = (weights(model), [record.engine for record in records])
        torch._dynamo.reset()
    assert found["memory"][1] == found["auto"][1] == ["dense", "rows", "rows"]
    assert same(found["memory"][0], found["auto"][0])
    assert found["few"][1] == ["dense", "memory", "memory"]
