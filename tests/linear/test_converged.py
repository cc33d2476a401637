"""The step behind the warning of an early end, against scikit-learn's exact solutions."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.preprocessing import StandardScaler

from ordered_sgd.linear.converged import _Portion, could_fall
from ordered_sgd.linear.objective import Objective
from ordered_sgd.linear.training import Samples
from ordered_sgd.theory import gamma_weights


def samples(X: np.ndarray, y: np.ndarray) -> Samples:
    return Samples(X, y.astype(float), np.ones(len(y)))


@pytest.mark.parametrize("load", [load_wine, load_breast_cancer])
def test_at_the_exact_solution_of_a_logistic_regression_nothing_falls(load: object) -> None:
    X, y = load(return_X_y=True)  # type: ignore[operator]
    X, alpha = StandardScaler().fit_transform(X), 1e-2
    exact = LogisticRegression(C=1 / (alpha * len(y)), tol=1e-10, max_iter=10_000).fit(X, y)
    objective = Objective("log_loss", l2=alpha)
    assert could_fall(samples(X, y), exact.coef_, exact.intercept_, objective, 64, 64) < 1e-8
    zeros = np.zeros_like(exact.coef_), np.zeros_like(exact.intercept_)
    part = _Portion(samples(X, y), np.arange(len(y)), objective, 64, 64)
    possible = (part.loss(*zeros) - part.loss(exact.coef_, exact.intercept_)) / part.loss(*zeros)
    assert 0.3 * possible < could_fall(samples(X, y), *zeros, objective, 64, 64) <= possible


@pytest.mark.parametrize("scale", [1.0, 1e6])
def test_one_step_solves_a_ridge_regression_whatever_the_scale_of_a_column(scale: float) -> None:
    X, y = load_diabetes(return_X_y=True)
    X = StandardScaler().fit_transform(X)
    X[:, 3] *= scale
    exact = Ridge(alpha=1e-3 * len(y)).fit(X, y)
    part = _Portion(samples(X, y), np.arange(len(y)), Objective("squared_error", l2=1e-3), 64, 64)
    start = np.ones((1, X.shape[1])) / X.std(axis=0), np.zeros(1)
    coef, intercept = (w - d for w, d in zip(start, part.step(*start), strict=True))
    assert part.loss(coef, intercept) == pytest.approx(
        part.loss(exact.coef_[None], np.array([exact.intercept_])), rel=1e-6
    )


def test_the_loss_is_the_ordered_risk() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(4000, 3)), rng.normal(size=4000)
    part = _Portion(samples(X, y), np.arange(4000), Objective("squared_error"), 8, 32)
    losses = np.sort((X @ np.ones(3) - y) ** 2 / 2)[::-1]
    assert part.loss(np.ones((1, 3)), np.zeros(1)) == pytest.approx(losses @ gamma_weights(4000, 32, 8) / 8, rel=1e-3)


def test_sparse_and_wide_rows_take_a_step_too() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 400)) * (rng.random((300, 400)) < 0.1)
    y = (X[:, 0] + X[:, 1] > 0).astype(int)
    zeros, objective = (np.zeros((1, 400)), np.zeros(1)), Objective("log_loss", l2=1e-2)
    dense = could_fall(samples(X, y), *zeros, objective, 64, 64)
    assert dense > 0.05
    assert could_fall(samples(sparse.csr_array(X), y), *zeros, objective, 64, 64) == pytest.approx(dense)


def test_many_samples_are_judged_on_others_than_the_step_is_from() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20_000, 200))
    y = rng.integers(0, 2, 20_000)  # nothing can be learned: a step that fits its own samples must not count
    zeros, objective = (np.zeros((1, 200)), np.zeros(1)), Objective("log_loss")
    assert could_fall(samples(X, y), *zeros, objective, 64, 64) < 0.01
