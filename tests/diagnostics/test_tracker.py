import csv
import io
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ordered_sgd.diagnostics import tracker as module
from ordered_sgd.diagnostics.tracker import LEVELS, SelectionTracker
from ordered_sgd.errors import ArgumentError, MissingExtraError
from ordered_sgd.step import OrderedStep

N = 7
BATCH = st.lists(
    st.tuples(st.integers(0, N - 1), st.floats(0, 50, width=32) | st.just(float("nan")), st.booleans()), max_size=5
)


def fed(*epochs: list[list[tuple[int, float, bool]]], **options: Any) -> SelectionTracker:
    """A tracker that was given batches of (sample, loss, whether it was kept)."""
    tracker = SelectionTracker(N, **options)
    for batches in epochs:
        for batch in batches:
            indices, losses, kept = zip(*batch, strict=True) if batch else ((), (), ())
            tracker.update(list(indices), list(losses), rows=np.flatnonzero(kept))
        tracker.end_epoch()
    return tracker


@given(st.lists(st.lists(BATCH, max_size=4), max_size=4))
@settings(max_examples=60)
def test_everything_is_what_dictionaries_count(epochs: list[list[list[tuple[int, float, bool]]]]) -> None:
    seen, chosen = Counter[int](), Counter[int]()
    means: dict[int, list[float]] = defaultdict(list)
    by_epoch = []
    for batches in epochs:
        losses: dict[int, list[float]] = defaultdict(list)
        for index, loss, kept in (sample for batch in batches for sample in batch):
            seen[index] += 1
            chosen[index] += kept
            if loss == loss:
                losses[index].append(loss)
        for index, own in losses.items():
            means[index].append(float(np.mean(own)))
        by_epoch.append([float(np.mean(own)) for own in losses.values()])
    tracker = fed(*epochs)
    mean, spread = tracker.data_map()
    assert tracker.seen.tolist() == [seen[i] for i in range(N)]
    assert tracker.chosen.tolist() == [chosen[i] for i in range(N)]
    assert tracker.nonfinite == sum(sample[1] != sample[1] for part in epochs for batch in part for sample in batch)
    np.testing.assert_allclose(mean, [np.mean(means[i]) if means[i] else np.nan for i in range(N)], atol=1e-9)
    np.testing.assert_allclose(spread, [np.std(means[i]) if means[i] else np.nan for i in range(N)], atol=1e-6)
    assert tracker.loss_quantiles.shape == (len(epochs), len(LEVELS))
    for row, own in zip(tracker.loss_quantiles, by_epoch, strict=True):
        np.testing.assert_allclose(row, np.quantile(own, LEVELS) if own else [np.nan] * len(LEVELS), atol=1e-9)
    if seen:
        assert tracker.saved == pytest.approx(1 - chosen.total() / seen.total())
    else:
        assert np.isnan(tracker.saved)


def test_a_step_s_record_is_taken_as_it_is() -> None:
    model = nn.Linear(3, 2)
    step = OrderedStep(
        model, nn.CrossEntropyLoss(reduction="none"), torch.optim.SGD(model.parameters(), lr=0.1), q=2, engine="dense"
    )
    tracker = SelectionTracker(10)
    indices = torch.tensor([9, 4, 0, 7])
    record = step(torch.randn(4, 3), torch.tensor([0, 1, 0, 1]))
    tracker.update(indices, record)
    tracker.end_epoch()
    assert sorted(np.flatnonzero(tracker.chosen)) == sorted(indices[record.rows].tolist())
    np.testing.assert_allclose(tracker.data_map().mean[indices], record.losses.numpy(), rtol=1e-6)
    assert tracker.hardest(2).tolist() == indices[record.losses.argsort(descending=True)[:2]].tolist()
    assert tracker.hardest().tolist()[:2] == tracker.hardest(2).tolist()
    assert len(tracker.hardest()) == 4  # no more were seen


def test_a_skipped_batch_is_seen_and_chooses_nobody() -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = OrderedStep(model, nn.CrossEntropyLoss(reduction="none"), optimizer, q=1, nonfinite="skip", engine="dense")
    tracker = SelectionTracker(2)
    tracker.update(torch.arange(2), step(torch.tensor([[1.0, 2, 3], [torch.nan, 0, 0]]), torch.tensor([0, 1])))
    assert tracker.seen.tolist() == [1, 1]
    assert tracker.chosen.sum() == 0
    assert tracker.nonfinite == 1


def test_shares_of_classes() -> None:
    tracker = fed([[(0, 1.0, True), (1, 0.5, False), (2, 2.0, True), (3, 0.1, False)]], y=[0, 0, 0, 1, 2, 2, 2])
    a, b, c = tracker.class_shares()
    assert (a.name, a.seen, a.chosen, a.ratio) == ("0", 0.75, 1.0, pytest.approx(4 / 3))
    assert (b.seen, b.chosen, b.ratio) == (0.25, 0.0, 0.0)
    assert (c.seen, c.chosen) == (0.0, 0.0)
    assert np.isnan(c.ratio)
    with pytest.raises(ArgumentError, match=r"SelectionTracker.class_shares: y must be given; got no labels. Build"):
        SelectionTracker(3).class_shares()


def test_numbers_of_an_accelerator_wait_and_come_out_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    steps = [(rng.permutation(50)[:8], rng.exponential(size=8), rng.permutation(8)[:3]) for _ in range(30)]
    at_once, late = SelectionTracker(50), SelectionTracker(50)
    for step in steps:
        at_once.update(*map(torch.from_numpy, step))
    monkeypatch.setattr(module, "_reads_are_free", lambda losses: False)
    monkeypatch.setattr(module, "_MOST", 20)
    for step in steps:
        late.update(*map(torch.from_numpy, step))
    assert late._seen.sum() == 20 * 8  # read once, the rest still waits
    assert (late.seen == at_once.seen).all()
    for one in (at_once, late):
        one.end_epoch()
    assert (late.chosen == at_once.chosen).all()
    np.testing.assert_array_equal(late.data_map().mean, at_once.data_map().mean)


def test_a_saved_tracker_goes_on_as_if_nothing_had_happened() -> None:
    whole, first = SelectionTracker(20), SelectionTracker(20)
    rng = np.random.default_rng(0)
    steps = [(rng.permutation(20)[:8], rng.exponential(size=8).astype(np.float32), [0, 3]) for _ in range(12)]
    loaded = SelectionTracker(20)
    for number, step in enumerate(steps):
        one = first if number < 5 else loaded
        if number == 5:  # in the middle of an epoch
            file = io.BytesIO()
            torch.save(first.state_dict(), file)
            file.seek(0)
            loaded.load_state_dict(torch.load(file, weights_only=True))
        for tracker in (whole, one):
            tracker.update(*step)
            if number % 3 == 2:
                tracker.end_epoch()
    for name, column in whole.columns().items():
        np.testing.assert_array_equal(column, loaded.columns()[name])
    np.testing.assert_array_equal(whole.loss_quantiles, loaded.loss_quantiles)
    assert whole.epoch == loaded.epoch == 4
    with pytest.raises(ArgumentError, match=r"SelectionTracker: n must be 20 as in the saved state; got 3. Build"):
        SelectionTracker(3).load_state_dict(whole.state_dict())


def test_a_frame_and_a_file_hold_the_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tracker = fed([[(0, 1.0, True), (1, 1 / 3, False), (3, 9.0, True)]], y=[0, 0, 0, 1, 1, 1, 1], classes=["a,b", "c"])
    frame = tracker.to_frame()
    assert list(frame) == ["class", "seen", "chosen", "mean_loss", "spread", "suspicion", "suspect"]
    assert frame.index.name == "index"
    tracker.to_csv(tmp_path / "out.csv")
    tracker.to_csv(tmp_path / "out.csv")  # in place of the old one
    assert [path.name for path in tmp_path.iterdir()] == ["out.csv"]
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "out.csv", index_col="index"), frame)
    rows = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    assert (rows[0]["class"], rows[1]["mean_loss"], rows[2]["mean_loss"]) == ("a,b", str(1 / 3), "")
    with pytest.raises(IsADirectoryError):  # what is there and is no file is not put out of its place
        tracker.to_csv(tmp_path)
    with pytest.raises(OSError, match="nowhere"):
        tracker.to_csv(tmp_path / "nowhere" / "out.csv")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match=r"SelectionTracker.to_frame: pandas must be installed"):
        tracker.to_frame()


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (([0, 7], [1.0, 2.0]), "indices must be at least 0 and below 7; got 0 to 7. Pass positions"),
        (([-1], [1.0]), "indices must be at least 0 and below 7; got -1 to -1. Pass positions"),
        (([0, 1], [1.0]), r"indices and losses must both have shape \(s,\); got shapes \(2,\) and \(1,\). Pass"),
        (([[0], [1]], [[1.0], [2.0]]), r"indices and losses must both have shape \(s,\)"),
        (([0], 1.0), r"indices and losses must both have shape \(s,\); got shapes \(1,\) and \(\)."),
        (([0.5], [1.0]), r"indices must be integers in one dimension; got float64 of shape \(1,\). Pass"),
        (([0, 1], [1.0, 2.0], [2]), "rows must be at least 0 and below 2; got 2 to 2. Pass the positions in the batch"),
        (([0, 1], [1.0, 2.0], [True, False]), "rows must be integers in one dimension; got bool"),
    ],
)
def test_a_step_that_does_not_fit_is_refused_and_counts_nothing(step: tuple[Any, ...], text: str) -> None:
    tracker = SelectionTracker(N)
    with pytest.raises(ArgumentError, match=f"SelectionTracker: {text}"):
        tracker.update(*step)
    assert tracker.seen.sum() == tracker.chosen.sum() == 0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"n": 0}, "n must be at least 1; got 0."),
        ({"n": 3, "y": [0, 1]}, r"y must be 3 class numbers of at least 0; got int64 of shape \(2,\)"),
        ({"n": 2, "y": [0.5, 1]}, "y must be 2 class numbers of at least 0; got float64"),
        ({"n": 2, "y": [0, -1]}, "y must be 2 class numbers of at least 0"),
        ({"n": 2, "y": [0, 1], "classes": ["a"]}, "classes must be at least 2 names; got 1."),
    ],
)
def test_a_tracker_that_does_not_fit_its_data_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ArgumentError, match=f"SelectionTracker: {text}"):
        SelectionTracker(**options)
