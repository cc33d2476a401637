"""What every estimator guarantees on a stream: `partial_fit` with the automatic rate."""

import warnings
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import SGDClassifier, SGDRegressor

from ordered_sgd import LinearDecay
from ordered_sgd.linear import OrderedLogisticRegression
from tests.contracts.estimators import EVERY, Row


@EVERY
def test_the_automatic_rate_of_a_stream_never_rises_and_falls_for_larger_inputs(row: Row) -> None:
    X, y = row.data()
    first = {"classes": np.unique(y)} if row.classifies else {}
    model = row.build().partial_fit(X, y, **first)
    rate = model.eta0_
    assert model.partial_fit(0.1 * X, y).eta0_ == rate
    assert model.partial_fit(10 * X, y).eta0_ < rate / 10
    with pytest.raises(ValueError, match="early_stopping should be False with partial_fit"):
        model.set_params(early_stopping=True).partial_fit(X, y)


@EVERY
@pytest.mark.parametrize("layout", [np.asarray, sparse.csr_array], ids=["dense", "sparse"])
def test_chunks_of_any_size_give_the_same_stream(row: Row, layout: Any) -> None:
    X, y = row.data()
    first = {"classes": np.unique(y)} if row.classifies else {}
    found = []
    for chunk in (1, 7, 64, 100, len(y)):
        model = row.build(shuffle=False, batch_size=16)
        for start in range(0, len(y), chunk):
            model.partial_fit(layout(X[start : start + chunk]), y[start : start + chunk], **first)
        found.append(model.coef_)
    for other in found[1:]:  # sparse weights are stored along other axes between calls
        np.testing.assert_allclose(other, found[0], rtol=0 if layout is np.asarray else 1e-9)


@EVERY
@pytest.mark.parametrize("order", ["shuffled", "sorted by target"])
def test_two_passes_in_small_chunks_are_as_good_as_those_of_scikit_learn(row: Row, order: str) -> None:
    X, y = row.data()
    at = np.argsort(y, kind="stable") if "sorted" in order else np.random.default_rng(0).permutation(len(y))
    X, y = X[at], y[at]
    first = {"classes": np.unique(y)} if row.classifies else {}
    loss = {"loss": "log_loss"} if row.classifies else {"loss": row.build().loss}
    loss = {"loss": "epsilon_insensitive"} if loss["loss"] == "absolute_error" else loss
    other = (SGDClassifier if row.classifies else SGDRegressor)(random_state=0, **loss)
    for chunk in (1, 8, 32, 128):
        model, theirs = row.build(), clone(other)
        for start in [*range(0, len(y), chunk)] * 2:
            part = slice(start, start + chunk)
            model.partial_fit(X[part], y[part], **first)
            theirs.partial_fit(X[part], y[part], **first)
        assert model.score(X, y) >= theirs.score(X, y) - (0.01 if row.classifies else 0.02), chunk


@EVERY
def test_a_first_chunk_that_is_not_typical_does_no_harm(row: Row) -> None:
    X, y = row.data()
    first = {"classes": np.unique(y)} if row.classifies else {}
    model = row.build().partial_fit(
        1e-3 * X[:8], y[:8], **first
    )  # a rate from these alone would be a million times too large
    for _ in range(4):
        model.partial_fit(X, y)
    assert np.isfinite(model.coef_).all()
    assert model.score(X, y) > 0.9 * row.score


LAYOUTS = {
    "float64": np.asarray,
    "float32": np.float32,
    "bytes": lambda X: (10 * abs(X)).astype(np.uint8),
    "sparse float64": sparse.csr_array,
    "sparse float32": lambda X: sparse.csr_array(X.astype(np.float32)),
}


@EVERY
@pytest.mark.parametrize("before", LAYOUTS)
@pytest.mark.parametrize("after", LAYOUTS)
def test_chunks_of_a_stream_may_be_laid_out_and_typed_differently(row: Row, before: str, after: str) -> None:
    X, y = row.data()
    first = {"classes": np.unique(y)} if row.classifies else {}
    model = row.build().partial_fit(LAYOUTS[before](X[:30]), y[:30], **first)
    model.partial_fit(LAYOUTS[after](X), y).partial_fit(LAYOUTS[before](X), y)
    assert np.isfinite(model.coef_).all()


@EVERY
def test_a_few_samples_after_a_fit_do_not_undo_it(row: Row) -> None:
    X, y = row.data()
    fitted = row.build().fit(X, y)
    for count in (1, 10, 30, 63, 64, 130):
        model = clone(fitted).fit(X, y).partial_fit(X[:count], y[:count])
        assert model.score(X, y) > fitted.score(X, y) - 0.02, count
        if count < 64:
            np.testing.assert_array_equal(model.coef_, fitted.coef_)


@EVERY
def test_a_chunk_that_overflows_is_refused_and_leaves_the_stream_as_it_was(row: Row) -> None:
    X, y = row.data()
    first = {"classes": np.unique(y)} if row.classifies else {}
    model, other = (row.build().partial_fit(X, y, **first) for _ in range(2))
    bad = X[:5].copy()
    bad[2, 1] = 1e170
    with pytest.raises(ValueError, match=r"Floating-point overflow .* Scale the data"):
        model.partial_fit(bad, y[:5])
    for one in (model, other):
        one._rng = np.random.default_rng(0)  # the refused chunk was shuffled
        one.partial_fit(X, y)
    np.testing.assert_array_equal(model.coef_, other.coef_)


@EVERY
def test_one_sample_that_holds_a_stream_up_is_named(row: Row) -> None:
    X, y = row.data()
    first = {"classes": np.unique(y)} if row.classifies else {}
    model = row.build().partial_fit(X, y, **first)
    far = X.copy()
    far[7] *= 1e4
    with pytest.warns(ConvergenceWarning, match="One sample is a hundred times as long as the others"):
        model.partial_fit(far, y).partial_fit(X, y)  # it may have waited for a full batch
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.partial_fit(X, y)  # said once


def test_rules_of_epochs_count_thousands_of_a_stream_whatever_the_chunks() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(6400, 5))
    y = (X[:, 0] > 0).astype(int)
    found = []
    for chunk in (64, 640, 1280):
        model = OrderedLogisticRegression(q=LinearDecay(epochs=5), random_state=0)
        for start in range(0, len(y), chunk):
            model.partial_fit(X[start : start + chunk], y[start : start + chunk], classes=[0, 1])
        found.append(model._history.next_q)
    assert max(found) - min(found) <= 12  # asked after 1,024, 1,280 and 1,280 samples
