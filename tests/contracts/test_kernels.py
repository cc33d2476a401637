"""The linear kernels, crossed with every loss, penalty, dtype, layout and shape: they agree with the reference."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import sparse

from ordered_sgd.errors import ArgumentError, NonFiniteLossError
from ordered_sgd.linear import kernels, loops, reference
from ordered_sgd.linear.objective import LOSSES, Array, Batches, Epoch, Loss, Objective, State


@dataclass(frozen=True)
class Layout:
    """Dtype and storage of the rows, and the rounding error allowed in the weights after an epoch."""

    name: str
    dtype: Any
    sparse: bool
    tolerance: float

    @property
    def weights(self) -> Any:
        return np.float64 if self.dtype == np.float64 else np.float32


LAYOUTS = [
    Layout("float64", np.float64, False, 1e-12),
    Layout("float32", np.float32, False, 2e-5),
    Layout("uint8", np.uint8, False, 2e-5),
    Layout("csr float64", np.float64, True, 1e-12),
    Layout("csr float32", np.float32, True, 2e-5),
    Layout("csr uint8", np.uint8, True, 2e-5),
]
PENALTIES = {"none": (0.0, 0.0), "l2": (0.05, 0.0), "l1": (0.0, 0.02), "elastic net": (0.05, 0.02)}
CLASSIFIES = ("log_loss", "hinge")
KINDS: list[tuple[Loss, int]] = [(loss, 1) for loss in LOSSES] + [("log_loss", 7), ("hinge", 7)]

EVERY_LAYOUT = pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
EVERY_KIND = pytest.mark.parametrize(("loss", "columns"), KINDS, ids=lambda value: str(value))
EVERY_PENALTY = pytest.mark.parametrize("penalty", PENALTIES)


@dataclass(frozen=True)
class Problem:
    X: Any
    y: Array
    weight: Array
    coef: Array
    intercept: Array
    layout: Layout

    def train(self, module: Any, objective: Objective, *epochs: Batches, lr: float = 0.05) -> tuple[State, list[Epoch]]:
        state = State.start(self.coef, self.intercept, by_column=self.layout.sparse)
        return state, [
            module.train_epoch(self.X, self.y, self.weight, state, objective, batches, lr=lr) for batches in epochs
        ]


def problem(layout: Layout, loss: Loss, columns: int, n: int = 41, d: int = 19, seed: int = 0) -> Problem:
    rng = np.random.default_rng(seed)
    if layout.dtype == np.uint8:
        X = rng.integers(0, 256, (n, d), dtype=np.uint8)
    else:
        X = rng.normal(size=(n, d)).astype(layout.dtype)
    X[rng.random((n, d)) < 0.6] = 0
    y = rng.integers(0, max(columns, 2), n) if loss in CLASSIFIES else rng.normal(size=n)
    return Problem(
        sparse.csr_array(X) if layout.sparse else X,
        y.astype(layout.weights),
        rng.exponential(size=n).astype(layout.weights),
        (0.3 * rng.normal(size=(columns, d))).astype(layout.weights),
        rng.normal(size=columns).astype(layout.weights),
        layout,
    )


def batches(n: int, s: int, q: int, q_last: int, seed: int = 1, **more: Any) -> Batches:
    return Batches(np.random.default_rng(seed).permutation(n), s, q, q_last, **more)


def objective(layout: Layout, loss: Loss, penalty: str = "l2", **more: Any) -> Objective:
    l2, l1 = PENALTIES[penalty]
    scale = 1 / 255 if layout.dtype == np.uint8 else 0.7
    return Objective(loss, l2=l2, l1=l1, **{"momentum": 0.9, "input_scale": scale, "epsilon": 0.4, **more})


def assert_same(given: Problem, spec: Objective, *epochs: Batches, lr: float = 0.05) -> None:
    (fast, seen), (slow, expected) = (given.train(module, spec, *epochs, lr=lr) for module in (kernels, reference))
    close = {"rtol": given.layout.tolerance, "atol": 10 * given.layout.tolerance}
    for a, b in zip(seen, expected, strict=True):
        np.testing.assert_array_equal(a.kept, b.kept)
        np.testing.assert_allclose(a.losses, b.losses, **close)
        assert a.correct == b.correct
        assert a.losses.dtype == b.losses.dtype == given.layout.weights
    for name in ("coef", "intercept", *(("velocity", "intercept_velocity") if spec.momentum else ())):
        np.testing.assert_allclose(getattr(fast, name), getattr(slow, name), **close, err_msg=name)


@EVERY_LAYOUT
@EVERY_KIND
@EVERY_PENALTY
def test_the_kernels_agree_with_the_reference(layout: Layout, loss: Loss, columns: int, penalty: str) -> None:
    given = problem(layout, loss, columns)
    epochs = [batches(41, 8, 3, 1, seed) for seed in range(1 if layout.weights == np.float32 else 5)]
    assert_same(given, objective(layout, loss, penalty), *epochs)


@EVERY_LAYOUT
@pytest.mark.parametrize("penalty", ["none", "elastic net"])
@pytest.mark.parametrize("options", [{"momentum": 0.0}, {"fit_intercept": False}, {"l2_intercept": 0.1}], ids=str)
def test_they_agree_without_momentum_or_intercept_and_with_a_decayed_intercept(
    layout: Layout, penalty: str, options: dict[str, Any]
) -> None:
    given = problem(layout, "log_loss", 3)
    assert_same(given, objective(layout, "log_loss", penalty, **options), batches(41, 8, 3, 1))


@EVERY_LAYOUT
@pytest.mark.parametrize("columns", [1, 3])
@pytest.mark.parametrize("momentum", [0.0, 0.05, 0.5, 0.9, 0.99])
@pytest.mark.parametrize(
    "l2", [0.0, 1e-6, 0.05, 0.055, 0.2, 3.0, 20.0, 30.0]
)  # with 0.9 the eigenvalues meet near 0.0527
def test_weights_without_a_gradient_follow_momentum_and_l2(
    layout: Layout, columns: int, momentum: float, l2: float
) -> None:
    given = problem(layout, "log_loss", columns)
    assert_same(given, replace(objective(layout, "log_loss"), momentum=momentum, l2=l2), batches(41, 1, 1, 1))


@EVERY_LAYOUT
@pytest.mark.parametrize("columns", [2, 3, 4, 5, 6, 9, 10, 11])
@pytest.mark.parametrize(("s", "q", "q_last"), [(1, 1, 1), (2, 1, 1), (5, 5, 1), (13, 7, 2), (41, 41, 41), (41, 1, 1)])
def test_they_agree_for_any_number_of_classes_and_any_batch(
    layout: Layout, columns: int, s: int, q: int, q_last: int
) -> None:
    given = problem(layout, "log_loss", columns)
    assert_same(given, objective(layout, "log_loss"), batches(41, s, q, q_last))


@EVERY_LAYOUT
@pytest.mark.parametrize("d", [1, 2, 7, 8, 16, 31, 33, 257])
@pytest.mark.parametrize("n", [1, 2, 3, 12])
def test_they_agree_for_tiny_and_odd_shapes(layout: Layout, n: int, d: int) -> None:
    given = problem(layout, "hinge", 6, n=n, d=d)
    s = min(n, 5)
    last = n - (n - 1) // s * s
    assert_same(given, objective(layout, "hinge"), batches(n, s, max(1, s // 2), max(1, last // 2)))


@EVERY_LAYOUT
@EVERY_KIND
def test_from_zero_weights_all_losses_tie_and_the_first_in_the_order_are_kept(
    layout: Layout, loss: Loss, columns: int
) -> None:
    given = problem(layout, loss, columns)
    flat = replace(
        given,
        coef=np.zeros_like(given.coef),
        intercept=np.zeros_like(given.intercept),
        weight=np.ones_like(given.weight),
        y=given.y if loss in CLASSIFIES else np.ones_like(given.y),
    )
    spec, epoch = objective(layout, loss), batches(41, 41, 10, 10)
    assert_same(flat, spec, epoch)
    _, (seen,) = flat.train(kernels, spec, epoch)
    np.testing.assert_array_equal(np.flatnonzero(seen.kept), np.arange(10))


@EVERY_LAYOUT
@pytest.mark.parametrize("s", [9, 10])
def test_equal_rows_have_equal_losses_wherever_they_stand_in_a_batch(layout: Layout, s: int) -> None:
    given = problem(layout, "log_loss", 7, n=60, d=301)
    X = given.X.toarray() if layout.sparse else given.X
    X[:] = X[0]
    same = replace(
        given,
        X=sparse.csr_array(X) if layout.sparse else X,
        y=np.ones_like(given.y),
        weight=np.ones_like(given.weight),
    )
    _, (seen,) = same.train(kernels, objective(layout, "log_loss"), batches(60, s, 4, 4))
    for start in range(0, 60, s):
        assert len(set(seen.losses[start : start + s])) == 1
        np.testing.assert_array_equal(np.flatnonzero(seen.kept[start : start + s])[:3], [0, 1, 2])


@EVERY_LAYOUT
def test_keys_are_ordered_instead_of_the_losses(layout: Layout) -> None:
    given = problem(layout, "log_loss", 3)
    keys = np.random.default_rng(5).random(41)
    keys[:8] = 1.0  # a tie
    epoch = batches(41, 8, 3, 1, keys=keys)
    assert_same(given, objective(layout, "log_loss"), epoch)
    _, (seen,) = given.train(kernels, objective(layout, "log_loss"), epoch)
    np.testing.assert_array_equal(np.flatnonzero(seen.kept[:8]), [0, 1, 2])


@EVERY_LAYOUT
def test_samples_of_weight_zero_are_kept_last_and_move_nothing(layout: Layout) -> None:
    given = problem(layout, "squared_error", 1)
    given.weight[::2] = 0
    assert_same(given, objective(layout, "squared_error"), batches(41, 8, 6, 1))


@EVERY_LAYOUT
@pytest.mark.parametrize("module", [kernels, reference])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_loss_that_is_not_finite_stops_the_epoch_and_is_named(layout: Layout, module: Any, bad: float) -> None:
    given = problem(layout, "squared_error", 1)
    given.y[11] = bad
    epoch = Batches(np.arange(41), 8, 3, 1)
    text = f"losses must be finite; got {bad} at position 11 of the epoch. Scale the inputs"
    with pytest.raises(NonFiniteLossError, match=text):
        given.train(module, objective(layout, "squared_error"), epoch)


@EVERY_LAYOUT
@EVERY_KIND
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_seen_in_the_losses(
    layout: Layout, loss: Loss, columns: int, bad: float
) -> None:
    given = problem(layout, loss, columns)
    given.coef[-1, 0] = bad
    with pytest.raises(NonFiniteLossError, match=r"losses must be finite; got (nan|inf)"):
        given.train(kernels, objective(layout, loss), batches(41, 41, 8, 8))


@pytest.mark.parametrize("module", [kernels, reference])
@pytest.mark.parametrize(
    ("epoch", "fault"),
    [
        (Batches(np.arange(41), 42, 3, 1), "s must be between 1 and n = 41; got 42"),
        (Batches(np.arange(41), 8, 9, 1), "q and q_last must be between 1 and the size of their batches; got q=9"),
        (Batches(np.arange(41), 8, 8, 2), "q and q_last must be between 1 and the size of their batches; got q=8, q_l"),
        (Batches(np.arange(41), 8, 3, 1, -np.ones(41)), "keys must be one number of at least 0 for each sample"),
    ],
    ids=["s", "q", "q_last", "keys"],
)
def test_impossible_batches_are_rejected(module: Any, epoch: Batches, fault: str) -> None:
    with pytest.raises(ArgumentError, match=fault):
        problem(LAYOUTS[0], "log_loss", 3).train(module, objective(LAYOUTS[0], "log_loss"), epoch)


def test_an_unknown_loss_is_rejected() -> None:
    with pytest.raises(ArgumentError, match=r"Objective: loss must be one of log_loss, hinge, .* Did you mean 'hinge'"):
        Objective("hing")  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@given(data=st.data())
def test_the_largest_values_are_kept_and_the_first_of_equal_ones(dtype: Any, data: Any) -> None:
    width = 32 if dtype == np.float32 else 64
    numbers = st.floats(0, 2.0**100, width=width) | st.sampled_from([0.0, 0.5, 1.0])
    values = data.draw(arrays(dtype, st.integers(1, 80), elements=numbers)) + dtype(0)  # no negative zero
    q = data.draw(st.integers(1, len(values)))
    chosen, kept = np.empty(len(values), np.int64), np.zeros(len(values), bool)
    loops.largest(values.view(f"i{values.itemsize}"), q, chosen, kept)
    expected = reference.largest(values, q)
    np.testing.assert_array_equal(chosen[:q], expected)
    np.testing.assert_array_equal(np.flatnonzero(kept), expected)


def test_a_state_keeps_its_values_in_either_layout() -> None:
    rng = np.random.default_rng(0)
    coef, velocity = rng.normal(size=(2, 3, 5))
    for by_column in (False, True):
        state = State.start(coef, np.ones(3), by_column=by_column, velocity=(velocity, np.full(3, 2.0)))
        np.testing.assert_array_equal(state.coef, coef)
        np.testing.assert_array_equal(state.velocity, velocity)
        np.testing.assert_array_equal(state.intercept_velocity, np.full(3, 2.0))
        state.coef[1, 2] = 77
        assert 77 in state.memory
        assert 77 not in coef
