"""Speed bars of the linear models, as ratios in one interleaved run, one thread; `make bench` prints them."""

import functools
import itertools
from pathlib import Path

import numpy as np
import pytest

from ordered_sgd.lab import data
from ordered_sgd.lab.bench.linear_epoch import STREAM, measure_epochs, measure_errors
from ordered_sgd.linear import OrderedLogisticRegression

pytestmark = pytest.mark.bench


@functools.cache
def seconds(part: str) -> dict[str, float]:
    """Seconds of an epoch of every subject of a part, measured once for all tests."""
    found = {row.subject: row.seconds for row in measure_epochs(part)}
    for name, value in found.items():
        print(f"{part}, {name}: {1000 * value:.1f} ms an epoch")
    return found


def mnist(split: str) -> tuple[np.ndarray, np.ndarray]:
    images = data.load("mnist", split)
    return images.x.reshape(len(images), -1), images.y


@pytest.mark.parametrize(
    ("row", "bar"),
    [("uint8, q = s/16", 3), ("uint8, q = s", 5), ("float32, q = s/16", 5), ("float32, q = s", 8)],
)
def test_an_epoch_costs_a_few_reads_of_the_data(real_root: Path, row: str, bar: float) -> None:
    assert seconds("images")[row] / seconds("images")[STREAM] <= bar


@pytest.mark.parametrize(("row", "bar"), [("uint8, q = s", 25), ("float32, q = s", 18)])
def test_an_epoch_is_an_order_of_magnitude_faster_than_sgd_classifier(real_root: Path, row: str, bar: float) -> None:
    assert seconds("images")["SGDClassifier, log_loss"] / seconds("images")[row] >= bar


@pytest.mark.parametrize(("q", "bar"), [("q = s", 12), ("q = s/16", 20)])
def test_an_epoch_is_an_order_of_magnitude_faster_than_a_torch_loop(real_root: Path, q: str, bar: float) -> None:
    assert seconds("images")[f"torch, {q}"] / seconds("images")[f"uint8, {q}"] >= bar


@pytest.mark.parametrize("epochs", [1, 5, 20])
def test_at_equal_epochs_the_test_error_is_lower_than_that_of_sgd_classifier(real_root: Path, epochs: int) -> None:
    from sklearn.linear_model import SGDClassifier

    (X, y), (T, t) = mnist("train"), mnist("test")
    ours = OrderedLogisticRegression(max_iter=epochs, input_scale=1 / 255, random_state=0).fit(X, y)
    theirs = SGDClassifier(loss="log_loss", max_iter=epochs, tol=None, random_state=0).fit(X / np.float32(255), y)
    errors = 1 - ours.score(T, t), 1 - theirs.score(T / np.float32(255), t)
    print(f"{epochs} epochs: test error {errors[0]:.4f}, SGDClassifier {errors[1]:.4f}")
    assert errors[0] < errors[1]


@pytest.mark.parametrize("q", ["q = s", "q = s/16"])
@pytest.mark.parametrize("loss", ["log_loss", "hinge"])
@pytest.mark.parametrize(("classes", "bar"), [(2, 1), (20, 2)])
def test_sparse_epochs_with_momentum_are_faster_than_sgd_classifier(
    classes: int, bar: float, loss: str, q: str
) -> None:
    found = seconds(f"sparse, {classes} classes")
    assert found[f"SGDClassifier, {loss}"] / found[f"{loss}, {q}"] > bar


@pytest.mark.parametrize("layout", ["dense", "sparse"])
def test_the_cost_grows_linearly_from_ten_thousand_rows_to_a_million(layout: str) -> None:
    per_row = {name: value / int(name) for name, value in seconds(f"growth, {layout}").items()}
    print({name: f"{1e9 * value:.0f} ns a row" for name, value in per_row.items()})
    # Ten times the rows leave the processor's caches: a row may cost more, but nothing like ten times as much.
    for few, many in itertools.pairwise(per_row.values()):
        assert many / few <= 4


def test_time_to_a_test_error_is_printed_won_or_lost(real_root: Path) -> None:
    rows = measure_errors(target=8.0)
    for row in rows:
        print(
            f"{row.method}, {row.setting}: {row.seconds:.2f} s, {row.error:.2f} %{'' if row.reached else ', not 8 %'}"
        )
    assert any(row.reached for row in rows)
