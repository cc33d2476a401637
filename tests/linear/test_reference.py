"""The readable twin agrees with numerical derivatives and with sums written out."""

import numpy as np
import pytest

from ordered_sgd.linear.objective import Batches, Epoch, Loss, Objective, State
from ordered_sgd.linear.reference import PER_SAMPLE, largest, train_epoch

KINDS = [(loss, 1) for loss in PER_SAMPLE] + [("log_loss", 4), ("hinge", 4)]


@pytest.mark.parametrize(("loss", "columns"), KINDS)
def test_slopes_are_the_derivatives_of_the_losses(loss: Loss, columns: int) -> None:
    rng = np.random.default_rng(0)
    scores = 2 * rng.normal(size=(50, columns))
    y = rng.integers(0, max(2, columns), 50).astype(float)
    _, slopes = PER_SAMPLE[loss](scores, y, 0.7)
    step = 1e-6
    for column in range(columns):
        moved = np.eye(columns)[column] * step
        up, down = (PER_SAMPLE[loss](scores + sign * moved, y, 0.7)[0] for sign in (1, -1))
        np.testing.assert_allclose(slopes[:, column], (up - down) / (2 * step), atol=1e-6)


def test_log_losses_of_large_scores_neither_overflow_nor_vanish() -> None:
    for columns in (1, 3):
        scores = np.zeros((2, columns))
        scores[:, 0] = 1e4, -1e4
        y = np.array([1.0, 1.0]) if columns == 1 else np.array([0.0, 0.0])
        losses, slopes = PER_SAMPLE["log_loss"](scores, y, 1.0)
        np.testing.assert_allclose(losses[0], 0, atol=1e-300)
        assert losses[1] >= 1e4
        assert np.isfinite(slopes).all()


def test_the_multiclass_losses_with_two_columns_are_those_of_one() -> None:
    rng = np.random.default_rng(1)
    scores, y = rng.normal(size=(20, 2)), rng.integers(0, 2, 20).astype(float)
    for loss in ("log_loss", "hinge"):
        two, _ = PER_SAMPLE[loss](scores, y, 1.0)
        one, _ = PER_SAMPLE[loss](scores[:, 1:] - scores[:, :1], y, 1.0)
        np.testing.assert_allclose(one, two)


def test_only_the_kept_samples_move_the_weights() -> None:
    """One step written out: samples 1 and 3 have the two largest of four residuals."""
    X, y = np.array([[1.0], [2.0], [-1.0], [3.0]]), np.array([0.0, 5.0, 1.0, -4.0])
    weight = np.array([1.0, 1.0, 1.0, 0.5])
    state = State.start(np.zeros((1, 1)), np.zeros(1))
    spec = Objective("squared_error", momentum=0.9, l2=0.3)
    epoch = train_epoch(X, y, weight, state, spec, Batches(np.arange(4), 4, 2, 2), lr=0.1)
    np.testing.assert_allclose(epoch.losses, [0, 12.5, 0.5, 4.0])
    np.testing.assert_array_equal(epoch.kept, [False, True, False, True])
    gradient, slope = (-5 * 2 + 0.5 * 4 * 3) / 2, (-5 + 0.5 * 4) / 2
    np.testing.assert_allclose(state.coef, -0.1 * gradient)
    np.testing.assert_allclose(state.intercept, -0.1 * slope)
    assert (epoch.mean_loss, epoch.ordered_loss) == (pytest.approx(17 / 4), pytest.approx(16.5 / 2))


def test_a_proximal_step_leaves_exact_zeros_and_remembers_the_step_it_took() -> None:
    X, y = np.array([[1.0, 0.01]]), np.array([1.0])
    state = State.start(np.zeros((1, 2)), np.zeros(1))
    spec = Objective("squared_error", momentum=0.5, l1=0.1, fit_intercept=False)
    train_epoch(X, y, np.ones(1), state, spec, Batches(np.arange(1), 1, 1, 1), lr=0.5)
    np.testing.assert_allclose(state.coef, [[0.45, 0.0]])
    assert state.coef[0, 1] == 0
    np.testing.assert_allclose(state.velocity, [[-0.9, 0.0]], atol=1e-15)


def test_ties_go_to_the_lower_position() -> None:
    np.testing.assert_array_equal(largest(np.array([1.0, 2.0, 1.0, 2.0, 1.0]), 4), [0, 1, 2, 3])


def test_the_last_piece_has_its_own_size() -> None:
    assert [Batches(np.arange(n), 4, 1, 1).last for n in (4, 5, 7, 8)] == [4, 1, 3, 4]


def test_means_of_an_epoch_are_taken_in_double_precision() -> None:
    losses = np.full(1000, 0.1, np.float32)
    epoch = Epoch(losses, np.ones(1000, bool), 0)
    assert epoch.mean_loss == epoch.ordered_loss == pytest.approx(float(np.float32(0.1)), rel=1e-12)
