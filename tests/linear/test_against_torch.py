"""The same spec gives the same weights as `OrderedStep` on the corresponding torch model."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse
from torch import Tensor, nn

from ordered_sgd import AccuracyRule, LossMassRule, OrderedStep, multiclass_hinge
from ordered_sgd.batches import epoch_batches
from ordered_sgd.linear import OrderedLinearSVC, OrderedLogisticRegression, OrderedRegressor
from ordered_sgd.linear.kernels import train_epoch
from ordered_sgd.linear.objective import Batches, Objective, State
from ordered_sgd.optim import ProximalSGD

# A few epochs on a few samples, or at a rate of their own, need not converge; what is warned of has its own tests.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


PENALTIES = [None, "l2", "l1", "elasticnet"]
ALPHA, L1_RATIO, EPSILON, RATE, MOMENTUM, S, SEED = 0.02, 0.3, 0.4, 0.05, 0.9, 16, 3
DOUBLE, SINGLE = np.float64, np.float32


def criterion(kind: str) -> Any:
    def two_logs(a: Tensor, y: Tensor) -> Tensor:
        return nn.functional.binary_cross_entropy_with_logits(a[:, 0], y.to(a.dtype), reduction="none")

    def two_hinges(a: Tensor, y: Tensor) -> Tensor:
        return (1 - (2 * y - 1) * a[:, 0]).clamp(min=0)

    def regression(loss: nn.Module) -> Any:
        return lambda a, y: loss(a[:, 0], y)

    half = nn.MSELoss(reduction="none")
    return {
        "log_loss 2": two_logs,
        "log_loss 4": nn.CrossEntropyLoss(reduction="none"),
        "hinge 2": two_hinges,
        "hinge 4": multiclass_hinge,
        "squared_error": lambda a, y: half(a[:, 0], y) / 2,
        "huber": regression(nn.HuberLoss(reduction="none", delta=EPSILON)),
        "absolute_error": regression(nn.L1Loss(reduction="none")),
    }[kind]


KINDS = ["log_loss 2", "log_loss 4", "hinge 2", "hinge 4", "squared_error", "huber", "absolute_error"]


def data(kind: str, dtype: Any, n: int = 150, d: int = 12) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d)).astype(dtype)
    if " " not in kind:
        return X, (X @ rng.normal(size=d) + rng.normal(size=n)).astype(dtype)
    classes = int(kind[-1])
    return X, (X @ rng.normal(size=(d, classes)) + rng.normal(size=(n, classes))).argmax(axis=1)


def estimator(kind: str, **options: Any) -> Any:
    common = {"batch_size": S, "eta0": RATE, "learning_rate": "constant", "momentum": MOMENTUM, "random_state": SEED}
    options = {**common, "alpha": ALPHA, "l1_ratio": L1_RATIO, **options}
    if kind.startswith("log_loss"):
        return OrderedLogisticRegression(**options)
    if kind.startswith("hinge"):
        return OrderedLinearSVC(**options)
    return OrderedRegressor(loss=kind, epsilon=EPSILON, **options)


def optimizer(model: nn.Linear, penalty: str | None) -> torch.optim.Optimizer:
    share = {"l1": 1.0, "elasticnet": L1_RATIO}.get(penalty or "", 0.0)
    l2 = 0.0 if penalty is None else ALPHA * (1 - share)
    if share == 0:
        groups: list[dict[str, Any]] = [{"params": [model.weight], "weight_decay": l2}, {"params": [model.bias]}]
        return torch.optim.SGD(groups, lr=RATE, momentum=MOMENTUM)
    model.weight.register_hook(lambda gradient: gradient + l2 * model.weight.detach())
    groups = [
        {"params": [model.weight], "penalty": "l1", "strength": ALPHA * share},
        {"params": [model.bias], "penalty": None},
    ]
    return ProximalSGD(groups, lr=RATE, momentum=MOMENTUM)


def train_torch(
    kind: str, X: Any, y: Any, *, penalty: str | None, epochs: int, weight: Any = None, **how: Any
) -> tuple[nn.Linear, list[int]]:
    x, target = torch.from_numpy(X), torch.from_numpy(y)
    columns = int(kind[-1]) if kind[-1] in "4" else 1
    model = nn.Linear(X.shape[1], columns, dtype=x.dtype)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    step = OrderedStep(model, criterion(kind), optimizer(model, penalty), engine="dense", **how)
    rng, qs = np.random.default_rng(SEED), []
    for _ in range(epochs):
        for rows in epoch_batches(len(X), S, rng):
            some = None if weight is None else torch.from_numpy(weight[rows])
            step(x[rows], target[rows], sample_weight=some)
        qs.append(step.q)
        step.end_epoch()
    return model, qs


def assert_same(model: nn.Linear, fitted: Any, tolerance: float) -> None:
    weights, bias = (parameter.detach().numpy() for parameter in (model.weight, model.bias))
    np.testing.assert_allclose(np.atleast_2d(fitted.coef_), weights, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(fitted.intercept_, bias, rtol=tolerance, atol=tolerance)
    assert np.abs(weights).max() > 0.1  # something was learnt


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", [np.asarray, sparse.csr_array])
def test_full_trainings_in_float64_are_the_same(kind: str, penalty: str | None, layout: Any) -> None:
    X, y = data(kind, DOUBLE)
    model, _ = train_torch(kind, X, y, penalty=penalty, epochs=20, q=0.5)
    fitted = estimator(kind, penalty=penalty, max_iter=20, q=0.5).fit(layout(X), y)
    assert_same(model, fitted, 1e-9)
    if penalty in ("l1", "elasticnet"):
        np.testing.assert_array_equal(np.atleast_2d(fitted.coef_) == 0, model.weight.detach().numpy() == 0)


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", [np.asarray, sparse.csr_array])
def test_an_epoch_in_float32_is_the_same(kind: str, penalty: str | None, layout: Any) -> None:
    X, y = data(kind, SINGLE)
    model, _ = train_torch(kind, X, y, penalty=penalty, epochs=1, q=5)
    fitted = estimator(kind, penalty=penalty, max_iter=1, q=5).fit(layout(X), y)
    assert fitted.coef_.dtype == SINGLE
    assert_same(model, fitted, 1e-5)


@pytest.mark.parametrize("q", [1, 3, 0.3, 1.0, 100])
def test_counts_and_shares_keep_as_many_of_every_batch_the_smaller_last_included(q: float) -> None:
    X, y = data("log_loss 4", DOUBLE)
    model, _ = train_torch("log_loss 4", X, y, penalty="l2", epochs=10, q=q)
    assert_same(model, estimator("log_loss 4", max_iter=10, q=q).fit(X, y), 1e-9)


@pytest.mark.parametrize("rule", [AccuracyRule((0.5, 0.7, 0.8, 0.85)), LossMassRule(0.7)], ids=str)
def test_rules_see_the_same_and_answer_the_same(rule: Any) -> None:
    X, y = data("log_loss 4", DOUBLE)
    model, qs = train_torch("log_loss 4", X, y, penalty="l2", epochs=15, q=rule)
    fitted = estimator("log_loss 4", max_iter=15, q=rule).fit(X, y)
    assert len(set(qs)) > 1
    assert fitted.q_curve_ == qs
    assert_same(model, fitted, 1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_sample_weights_multiply_the_losses_before_they_are_ordered(kind: str) -> None:
    X, y = data(kind, DOUBLE)
    weight = np.random.default_rng(9).exponential(size=len(y))
    model, _ = train_torch(kind, X, y, penalty="l2", epochs=10, q=0.25, weight=weight)
    assert_same(model, estimator(kind, max_iter=10, q=0.25).fit(X, y, sample_weight=weight), 1e-9)


def test_bytes_are_their_scaled_floats() -> None:
    rng = np.random.default_rng(0)
    X8 = rng.integers(0, 256, (150, 12), dtype=np.uint8)
    y = rng.integers(0, 4, 150)
    model, _ = train_torch("log_loss 4", X8.astype(SINGLE) / 255, y, penalty="l2", epochs=1, q=5)
    fitted = estimator("log_loss 4", max_iter=1, q=5, input_scale=1 / 255)
    weights = model.weight.detach().numpy()
    np.testing.assert_allclose(fitted.fit(X8, y).coef_, weights, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(fitted.fit(sparse.csr_array(X8), y).coef_, weights, rtol=1e-5, atol=1e-6)


def test_the_mean_hinge_and_decay_of_all_parameters_are_weights_and_an_option_of_the_kernels() -> None:
    """What the paper's experiments need beyond the estimators: the authors' scripts have both."""
    X, y = data("hinge 4", DOUBLE)
    model = nn.Linear(X.shape[1], 4, dtype=torch.float64)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    sgd = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM, weight_decay=ALPHA)
    step = OrderedStep(model, nn.MultiMarginLoss(reduction="none"), sgd, q=5, engine="dense")
    state = State.start(np.zeros((4, X.shape[1])), np.zeros(4))
    spec = Objective("hinge", l2=ALPHA, l2_intercept=ALPHA, momentum=MOMENTUM)
    rng, other = np.random.default_rng(SEED), np.random.default_rng(SEED)
    for _ in range(10):
        losses = [step(torch.from_numpy(X[r]), torch.from_numpy(y[r])).losses for r in epoch_batches(len(X), S, rng)]
        (order,) = epoch_batches(len(X), len(X), other)
        epoch = train_epoch(X, y.astype(DOUBLE), np.full(len(y), 1 / 4), state, spec, Batches(order, S, 5, 5), lr=RATE)
        np.testing.assert_allclose(epoch.losses, torch.cat(losses), atol=1e-9)
    np.testing.assert_allclose(state.coef, model.weight.detach(), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(state.intercept, model.bias.detach(), rtol=1e-9, atol=1e-9)
