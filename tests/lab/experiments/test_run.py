import multiprocessing
import random
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ordered_sgd.errors import ArgumentError, RecordError
from ordered_sgd.lab.data import Dataset
from ordered_sgd.lab.experiments import run as running
from ordered_sgd.lab.experiments.artifacts import SELECTION
from ordered_sgd.lab.experiments.checkpoint import load_checkpoint, save_checkpoint
from ordered_sgd.lab.experiments.comparison import replay_of
from ordered_sgd.lab.experiments.epoch import EpochRow
from ordered_sgd.lab.experiments.run import problem_for, run
from ordered_sgd.lab.experiments.spec import ExperimentSpec
from ordered_sgd.lab.experiments.store import Records
from ordered_sgd.lab.experiments.train import Training

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")


def images(n: int = 200, side: int = 16, seed: int = 0) -> Dataset:
    """Noise with a bright spot at a place that tells the class."""
    rng = np.random.default_rng(seed)
    x, y = rng.integers(0, 80, (n, 1, side, side), dtype=np.uint8), np.arange(n) % 4
    for image, label in zip(x, y, strict=True):
        image[0, 4 * (label // 2) : 4 * (label // 2) + 4, 4 * (label % 2) : 4 * (label % 2) + 4] += 120
    return Dataset(x, y.astype(np.int64), tuple("abcd"), "semeion")


DATA = (images(), images(80, seed=1))
SPECS = {
    "dropout and rows": ExperimentSpec(
        data="semeion", model="lenet", model_options=(("hidden", 64), ("dropout", 0.5)), q=0.25, epochs=3, s=32
    ),
    "augmentation and the rule": ExperimentSpec(data="semeion", augment="standard", epochs=3, s=32, lr=0.1),
    "the scripts' accuracy and rate": ExperimentSpec(
        data="semeion", epochs=3, s=32, lr=0.3, accuracy="pass", hidden_rule=True, loss="hinge-mean", counts=True
    ),
    "at random": ExperimentSpec(
        data="semeion", epochs=3, s=32, method="random", path=((32, 0.1), (8, 0.1), (4, 0.01)), engine="dense"
    ),
    "memory": ExperimentSpec(data="semeion", epochs=3, s=32, q=4, lr=0.1, engine="memory", candidates=10),
    "infobatch": ExperimentSpec(data="semeion", epochs=3, s=32, lr=0.1, method="infobatch"),
    "last losses": ExperimentSpec(
        data="semeion", epochs=3, s=32, method="last-losses", path=((32, 0.1), (8, 0.1), (4, 0.01))
    ),
    "sampler": ExperimentSpec(data="semeion", augment="standard", epochs=3, s=32, q=4, lr=0.1, method="sampler"),
    "sampler with InfoBatch's rule": ExperimentSpec(
        data="semeion", epochs=3, s=32, lr=0.1, method="infobatch-sampler", model="lenet"
    ),
    "adam": ExperimentSpec(data="semeion", epochs=3, s=32, optimizer="adam", engine="twopass", q=4),
}


def weights(training: Training) -> list[torch.Tensor]:
    return [p.detach().clone() for p in training.setting.model.parameters()]


def trained(spec: ExperimentSpec) -> tuple[list[torch.Tensor], list[Any]]:
    training = Training(spec, *DATA)
    rows = [row for row in training.epochs() if row is not None]
    return weights(training), rows


def timeless(row: Any) -> str:
    return repr({**vars(row), "seconds": 0, "cpu_seconds": 0})


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name == "dropout and rows")) for name in SPECS]
)
def test_stopped_anywhere_and_resumed_it_ends_in_the_same_bits(name: str, tmp_path: Path) -> None:
    spec = SPECS[name]
    expected, rows = trained(spec)
    for stop in (5, 7, 8, 16):  # in the middle of an epoch, after its last batch, after its row
        training = Training(spec, *DATA)
        events = training.epochs()
        seen = [event for _, event in zip(range(stop), events, strict=False) if event is not None]
        save_checkpoint(training.state_dict(), tmp_path / "c.pt")
        torch.manual_seed(123)
        resumed = Training(spec, *DATA)
        state = load_checkpoint(tmp_path / "c.pt")
        assert state is not None
        resumed.load_state_dict(state)
        seen += [row for row in resumed.epochs() if row is not None]
        assert all(torch.equal(a, b) for a, b in zip(weights(resumed), expected, strict=True)), stop
        assert [timeless(row) for row in seen] == [timeless(row) for row in rows], stop


def test_momentum_in_another_layout_than_the_weights_goes_on_in_the_same_bits() -> None:
    spec = SPECS["dropout and rows"].but(engine="dense", epochs=2)
    expected, _ = trained(spec)
    training, resumed = Training(spec, *DATA), Training(spec, *DATA)
    for _ in zip(range(5), training.epochs(), strict=False):
        pass
    state = training.state_dict()
    kept = state["runner"]["optimizer"]["state"]
    assert any(not one["momentum_buffer"].is_contiguous() for one in kept.values())
    for one in kept.values():
        one["momentum_buffer"] = one["momentum_buffer"].contiguous()
    resumed.load_state_dict(state)
    assert len(list(resumed.epochs())) > 0
    assert all(torch.equal(a, b) for a, b in zip(weights(resumed), expected, strict=True))


def test_a_run_is_recorded_and_not_run_twice(tmp_path: Path) -> None:
    records, spec = Records(tmp_path), SPECS["augmentation and the rule"]
    seen: list[int] = []
    first = run(spec, records, data=DATA, on_row=lambda row: seen.append(row.epoch))
    assert [row.epoch for row in first.rows] == seen == [1, 2, 3]
    assert first.finished
    assert run(spec, records, data=DATA, on_row=lambda row: seen.append(row.epoch)).rows == first.rows
    assert seen == [1, 2, 3]
    again = run(spec, records, data=DATA, again=True)
    assert [timeless(row) for row in again.rows] == [timeless(row) for row in first.rows]
    assert [row.seconds for row in again.rows] != [row.seconds for row in first.rows]
    assert not list(tmp_path.glob("checkpoints/*"))


def test_run_again_and_stopped_the_earlier_record_is_still_there(tmp_path: Path) -> None:
    records, spec = Records(tmp_path), SPECS["augmentation and the rule"]
    first, kept = run(spec, records, data=DATA), records.artifact(spec, SELECTION)

    def stop(row: Any) -> None:
        assert records.runs() == [first]  # what others read meanwhile
        if row.epoch == 2:
            raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            run(spec, records, data=DATA, again=True, every=0.0, on_row=stop)
    assert records.recorded([spec]) == [first]
    assert records.artifact(spec, SELECTION) == kept is not None
    seen: list[int] = []
    again = run(spec, records, data=DATA, on_row=lambda row: seen.append(row.epoch))  # goes on with the new one
    assert seen[-1] == 3
    assert 1 not in seen
    assert records.runs() == [again] != [first]
    assert again.finished
    assert [timeless(row) for row in again.rows] == [timeless(row) for row in first.rows]
    assert not list(tmp_path.glob("checkpoints/*"))


def test_a_run_whose_hidden_rule_never_fires_is_trained_once_for_both_settings(tmp_path: Path) -> None:
    records, spec = Records(tmp_path), SPECS["augmentation and the rule"].but(lr=1e-4)  # far from 99.5 %
    first = run(spec, records, data=DATA)
    seen: list[int] = []
    copied = run(spec.but(hidden_rule=True), records, data=DATA, on_row=lambda row: seen.append(row.epoch))
    assert copied.rows == first.rows  # times included: nothing was trained
    assert seen == [1, 2, 3]
    assert records.get(copied.spec) == copied
    assert records.artifact(copied.spec, SELECTION) == records.artifact(spec, SELECTION) is not None
    timed = [run(spec.but(hidden_rule=hidden, timed=True), records, data=DATA) for hidden in (False, True)]
    assert timed[0].rows[0].seconds != timed[1].rows[0].seconds  # measured, each
    anew = run(copied.spec, Records(tmp_path / "other"), data=DATA)
    assert [timeless(row) for row in anew.rows] == [timeless(row) for row in copied.rows]


def test_a_run_whose_hidden_rule_fires_is_trained_with_it_and_without(tmp_path: Path) -> None:
    records, spec = Records(tmp_path), SPECS["the scripts' accuracy and rate"].but(epochs=6)
    on, off = (run(spec.but(hidden_rule=hidden), records, data=DATA) for hidden in (True, False))
    assert max(row.train_accuracy or 0.0 for row in off.rows) >= 0.995
    assert [row.lr for row in on.rows] != [row.lr for row in off.rows]
    path = tuple((row.q, row.lr) for row in on.rows)
    controls = [
        run(spec.but(hidden_rule=hidden, method="random", path=path), records, data=DATA) for hidden in (True, False)
    ]
    assert controls[0].rows == controls[1].rows  # the rates are those of the path, whatever the accuracy


def test_a_timed_run_takes_the_loss_of_the_training_set_after_its_last_epoch_alone() -> None:
    spec = SPECS["augmentation and the rule"]
    for one in (spec, SPECS["infobatch"], SPECS["last losses"], spec.but(accuracy="clean", epochs=6)):
        rows, timed = trained(one)[1], trained(one.but(timed=True))[1]
        known = [row.train_loss is not None for row in timed]
        assert known == ([False] * 2 + [True] if one.accuracy != "clean" else [True] * 6)  # where the rule asks for it
        assert timed[-1].train_loss == rows[-1].train_loss
        assert [(row.q, row.test_error) for row in timed] == [(row.q, row.test_error) for row in rows]


def test_what_is_learnt_and_recorded_makes_sense() -> None:
    _, rows = trained(SPECS["augmentation and the rule"].but(epochs=12, drops=(10,), augment="none"))
    last = rows[-1]
    assert last.test_error < 30
    assert last.train_loss < rows[0].train_loss
    assert last.ordered_risk >= last.train_loss
    assert last.running_ordered_loss >= last.running_loss - 1e-6
    assert last.samples == 200
    assert last.backpropagated == sum(min(last.q, size) for size in (32,) * 6 + (8,))
    assert [row.lr for row in rows] == [0.1] * 9 + [0.01] * 3
    assert last.test_cross_entropy_scaled <= last.test_cross_entropy + 0.1


def test_the_same_weights_and_order_for_every_method_of_a_seed() -> None:
    sgd = trained(SPECS["augmentation and the rule"].but(method="sgd", epochs=1))[0]
    ordered = trained(SPECS["augmentation and the rule"].but(epochs=1))[0]  # keeps all in its first epoch
    assert all(torch.equal(a, b) for a, b in zip(sgd, ordered, strict=True))


def test_a_run_with_a_memory_records_what_it_scored_and_found() -> None:
    _, rows = trained(SPECS["memory"])
    assert (rows[0].scored, rows[0].recall) == (200, 1.0)  # everything is new
    # six batches of 32, of which 14 are scored but in one audit in four, and a small one that is scored whole
    assert rows[1].scored + rows[2].scored == 2 * (6 * 14 + 8) + 3 * (32 - 14)
    _, exact = trained(SPECS["memory"].but(engine="dense", candidates=None))
    assert (exact[1].scored, exact[1].recall) == (None, None)
    _, random = trained(SPECS["at random"].but(engine="memory"))  # which has nothing to remember
    assert random[1].scored is None


def test_baselines_back_propagate_what_they_chose() -> None:
    _, rows = trained(SPECS["last losses"])
    assert [row.backpropagated for row in rows] == [200, 6 * 8 + 8, 6 * 4 + 4]
    assert [row.q for row in rows] == [32, 8, 4]
    _, rows = trained(SPECS["infobatch"].but(epochs=8, drops=()))
    assert rows[0].backpropagated == rows[-1].backpropagated == 200  # all new, and the last eighth
    assert all(100 < row.backpropagated < 180 for row in rows[2:-1])
    assert rows[-1].test_error < 30


def test_a_sampler_loads_what_it_picks_and_a_rule_moves_its_q() -> None:
    _, rows = trained(SPECS["sampler"].but(epochs=12, augment="none"))
    assert all(7 * 8 <= row.scored < 200 for row in rows)
    assert all(row.backpropagated == 7 * 4 for row in rows)
    assert [row.samples for row in rows] == [200] * 12
    assert 0 < rows[-1].recall < 1
    assert rows[-1].test_error < 40
    _, rows = trained(SPECS["sampler"].but(epochs=12, q=ExperimentSpec().q, augment="none"))
    assert rows[0].q == rows[0].scored // 6 - 1 or rows[0].scored == 200  # the rule begins with all
    assert rows[-1].q < 32
    assert rows[-1].test_error < 30


def test_infobatch_s_rule_in_a_sampler_drops_a_quarter_and_ends_whole() -> None:
    _, rows = trained(SPECS["sampler with InfoBatch's rule"].but(epochs=8, drops=(), model="logistic"))
    assert rows[0].backpropagated == rows[-1].backpropagated == 200  # all new, and the last eighth
    assert all(100 < row.backpropagated < 180 for row in rows[2:-1])
    assert rows[-1].test_error < 30


def test_a_run_that_diverges_is_recorded_as_such(tmp_path: Path) -> None:
    spec = SPECS["dropout and rows"].but(lr=1e12, epochs=3)
    found = run(spec, Records(tmp_path), data=DATA)
    assert found.finished
    assert found.rows[-1].diverged
    assert len(found.rows) < 4


def test_weights_that_overflow_in_the_last_step_of_an_epoch_are_a_divergence(tmp_path: Path) -> None:
    # one batch an epoch, and a weight decay that multiplies the weights by about -9 in every step
    spec = SPECS["adam"].but(optimizer="sgd", engine="dense", s=200, lr=1e5, epochs=60, drops=())
    found = run(spec, Records(tmp_path), data=DATA)
    assert found.finished
    assert found.rows[-1].diverged
    assert 1 < len(found.rows) < 60


def test_a_loss_that_is_not_finite_in_the_first_batch_can_be_repeated_by_a_control(tmp_path: Path) -> None:
    train, test = DATA
    infinite = replace(train, x=np.full(train.x.shape, np.nan, np.float32))
    ordered = run(SPECS["adam"], Records(tmp_path), data=(infinite, test))
    assert [(row.q, row.diverged) for row in ordered.rows] == [(32, True)]
    control = run(replay_of(ordered), Records(tmp_path), data=(infinite, test))
    assert [row.diverged for row in control.rows] == [True]


def test_a_run_that_starts_anew_forgets_the_epochs_of_other_versions(tmp_path: Path) -> None:
    records, spec = Records(tmp_path), SPECS["adam"].but(epochs=2)
    records.begin(spec, on={"torch": "1.0"})
    records.add(spec, EpochRow(1, 4, 0.5, test_error=99.0))
    found = run(spec, records, data=DATA)
    assert found.rows[0].lr == spec.lr
    assert found.versions["torch"] == torch.__version__


def test_a_set_of_one_class_is_refused() -> None:
    train, test = DATA
    alone = [replace(part, y=np.zeros(len(part), np.int64), classes=("0",)) for part in (train, test)]
    with pytest.raises(ArgumentError, match="must hold two classes or more; got '0' alone"):
        problem_for(SPECS["adam"], (alone[0], alone[1]))


def test_sizes_and_held_out_shares() -> None:
    train, test, _ = problem_for(ExperimentSpec(data="digits", train_size=100, validation=0.2))
    assert (len(train), len(test), test.split) == (80, 20, "test")
    again, _, _ = problem_for(ExperimentSpec(data="digits", train_size=100, validation=0.2))
    assert np.array_equal(train.x, again.x)
    other, _, _ = problem_for(ExperimentSpec(data="digits", train_size=100, validation=0.2, seed=1))
    assert not np.array_equal(train.x, other.x)
    whole, test, _ = problem_for(ExperimentSpec(data="digits"))
    assert (len(whole), len(test)) == (1438, 359)


def test_a_damaged_checkpoint_is_named_and_the_records_stay(tmp_path: Path) -> None:
    records, spec = Records(tmp_path), SPECS["augmentation and the rule"]
    records.begin(spec)
    path = records.checkpoint(spec)
    save_checkpoint(Training(spec, *DATA).state_dict(), path)
    whole = path.read_bytes()
    for damaged in (b"", whole[: len(whole) // 2], b"x" + whole[1:]):
        path.write_bytes(damaged)
        with pytest.raises(RecordError, match=r"must be a whole checkpoint; got .* Remove it"):
            run(spec, records, data=DATA)
    save_checkpoint(Training(spec.but(seed=9), *DATA).state_dict(), path)
    with pytest.raises(RecordError, match="must belong to this run; got another spec"):
        run(spec, records, data=DATA)


def test_a_checkpoint_that_cannot_be_written_is_said_and_leaves_the_old_one(tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "c.pt"
    save_checkpoint({"epoch": 1}, path)

    def full(state: Any, file: Any) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(RecordError, match=r"must be writable; got No space left on device. Free some space"):
        save_checkpoint({"epoch": 2}, path)
    monkeypatch.undo()
    assert load_checkpoint(path) == {"epoch": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["c.pt"]


MOST = 2  # new epochs of a process that is to be killed: however late the kill comes, the run is not over before it


def _until_killed(spec: ExperimentSpec, folder: Path) -> None:
    """In a process of its own: a run with a checkpoint after every batch, which waits where it must not go on."""
    new: list[int] = []

    def note(row: Any) -> None:
        new.append(row.epoch)
        while len(new) == MOST:
            time.sleep(60)

    run(spec, Records(folder), data=DATA, every=0.0, on_row=note)


def finished(spec: ExperimentSpec, records: Records) -> tuple[list[torch.Tensor], list[str], Any]:
    """A run to its end in this process: its last weights, its rows but for the times, and what it kept."""
    made: list[Training] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "Training", lambda *given: made.append(Training(*given)) or made[-1])
        rows = run(spec, records, data=DATA, every=0.0).rows
    return weights(made[0]), [timeless(row) for row in rows], records.artifact(spec, SELECTION)


@pytest.mark.skipif(sys.platform == "win32", reason="nothing there is like kill -9")
@pytest.mark.parametrize("times", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_killed_at_random_moments_it_ends_in_the_same_weights_and_record(times: int, tmp_path: Path) -> None:
    spec = SPECS["augmentation and the rule"].but(epochs=MOST * times + 2)
    began = time.monotonic()
    expected = finished(spec, Records(tmp_path / "whole"))
    epoch = (time.monotonic() - began) / spec.epochs  # in seconds, on this machine
    records, rng, before = Records(tmp_path / "killed"), random.Random(0), list[Any]()
    checkpoint, kills = records.checkpoint(spec), 0
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([running.__name__])  # torch is imported once, not for every process
    for _ in range(times):
        written = checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0
        process = context.Process(target=_until_killed, args=(spec, records.folder))
        process.start()
        while process.is_alive() and not (checkpoint.exists() and checkpoint.stat().st_mtime_ns > written):
            time.sleep(0.001)  # it is training when it has written a checkpoint of its own
        process.join(rng.random() * MOST * epoch)
        process.kill()
        process.join()
        kills += process.exitcode == -signal.SIGKILL
        now = records.get(spec).rows  # type: ignore[union-attr]
        assert now[: len(before)] == before  # to the second: what was recorded stays as it was
        before = now
    assert kills == times
    assert 0 < len(before) < spec.epochs
    found = finished(spec, records)
    assert all(torch.equal(a, b) for a, b in zip(found[0], expected[0], strict=True))
    assert found[1:] == expected[1:]
    assert [row.epoch for row in records.get(spec).rows] == list(range(1, spec.epochs + 1))  # type: ignore[union-attr]
