"""What every estimator guarantees: scikit-learn's own checks, and the usual ways to use an estimator."""

import inspect
import logging
import pickle
import re
import warnings
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from ordered_sgd import AccuracyRule, FixedQ, LinearDecay, LossMassRule
from ordered_sgd import linear as package
from ordered_sgd.errors import ArgumentError, TrapWarning
from ordered_sgd.linear import OrderedLinearSVC, OrderedLogisticRegression, OrderedRegressor
from tests.contracts.estimators import EVERY, ROWS, Row

# A few epochs on a few samples, or at a rate of their own, need not converge; what is warned of has its own tests.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


# What scikit-learn declares for its own SGDClassifier and SGDRegressor, and nothing more.
REASON = "sample_weight is not equivalent to removing/repeating samples: the order of samples differs."
EXPECTED = {f"check_sample_weight_equivalence_on_{kind}_data": REASON for kind in ("dense", "sparse")}


def test_the_table_holds_every_estimator() -> None:
    assert {row.kind.__name__ for row in ROWS} == set(package.__all__) == set(dir(package))


@parametrize_with_checks([row.build() for row in ROWS], expected_failed_checks=lambda estimator: EXPECTED)
def test_scikit_learn_s_own_checks_pass(estimator: Any, check: Any) -> None:
    check(estimator)


@EVERY
@pytest.mark.parametrize(
    "layout", [np.asarray, np.float32, sparse.csr_array, sparse.csc_array], ids=lambda f: f.__name__
)
def test_real_data_are_learnt_in_any_layout(row: Row, layout: Any) -> None:
    X, y = row.data()
    model = row.build().fit(layout(X), y)
    assert model.score(layout(X), y) >= row.score
    assert model.coef_.dtype == (np.float32 if layout is np.float32 else np.float64)


@EVERY
def test_a_seed_gives_the_same_bits_and_another_seed_others(row: Row) -> None:
    X, y = row.data()
    one, two, other = (row.build(random_state=seed).fit(X, y).coef_ for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, two)
    assert (one != other).any()
    state = np.random.RandomState(5)
    first, second = (row.build(random_state=state).fit(X, y).coef_ for _ in range(2))
    assert (first != second).any()


@EVERY
def test_curves_and_counts_say_what_happened(row: Row) -> None:
    X, y = row.data()
    model = row.build(max_iter=7, batch_size=50, q=0.2).fit(X, y)
    assert model.n_iter_ == 7 == len(model.loss_curve_) == len(model.ordered_loss_curve_)
    assert model.q_curve_ == [10] * 7
    assert model.loss_curve_[-1] < model.loss_curve_[0]
    assert all(kept >= mean for kept, mean in zip(model.ordered_loss_curve_, model.loss_curve_, strict=True))
    full, last = divmod(len(y), 50)
    assert model.selection_counts_.sum() == 7 * (10 * full + int(0.2 * last))
    assert model.selection_counts_.shape == y.shape
    assert model.selection_counts_.max() <= 7


@EVERY
def test_every_attribute_that_fit_learns_is_documented(row: Row) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    X, y = row.data()
    model = row.build(max_iter=1).fit(pandas.DataFrame(X, columns=[f"column {j}" for j in range(X.shape[1])]), y)
    learned = {name for name in vars(model) if name.endswith("_") and not name.startswith("_")}
    text = inspect.getdoc(row.kind) or ""
    attributes = text.partition("\nAttributes\n")[2].partition("\nExamples\n")[0]
    assert set(re.findall(r"^(\w+) : \S", attributes, re.MULTILINE)) == learned


def test_the_parameters_that_all_estimators_share_are_described_in_the_same_words() -> None:
    texts = {row.kind: (inspect.getdoc(row.kind) or "").partition("\nAttributes\n")[0] for row in ROWS}
    entries = [set(re.findall(r"^\w+ : .*(?:\n    .*)+", text, re.MULTILINE)) for text in texts.values()]
    assert [len(found) for found in entries] == [20, 20, 21]
    assert len(set.intersection(*entries)) == 19


@EVERY
def test_plain_sgd_keeps_every_sample_in_every_epoch(row: Row) -> None:
    X, y = row.data()
    model = row.build(max_iter=4, q=1.0).fit(X, y)
    assert (model.selection_counts_ == 4).all()
    assert model.loss_curve_ == pytest.approx(model.ordered_loss_curve_)


@EVERY
def test_a_batch_larger_than_the_data_is_clipped(row: Row) -> None:
    X, y = row.data()
    many, all_ = (row.build(batch_size=size, max_iter=3).fit(X, y) for size in (10_000, len(y)))
    np.testing.assert_array_equal(many.coef_, all_.coef_)
    assert many.q_curve_ == [len(y) // 2] * 3


@EVERY
@pytest.mark.parametrize("rule", [FixedQ(8), LinearDecay(epochs=4, end=0.25), LossMassRule(0.9)], ids=str)
def test_q_may_be_a_rule(row: Row, rule: Any) -> None:
    X, y = row.data()
    model = row.build(q=rule, max_iter=4, batch_size=32).fit(X, y)
    assert model.q_curve_[0] == rule.first_q(32)
    if isinstance(rule, LinearDecay):
        assert model.q_curve_ == [32, 24, 16, 8]
    later = row.build(max_iter=4, batch_size=32).set_params(q=rule).fit(X, y)
    np.testing.assert_array_equal(later.coef_, model.coef_)


@EVERY
def test_a_rule_of_a_fixed_count_trains_like_the_count(row: Row) -> None:
    X, y = row.data()
    rule, count = (row.build(q=q, max_iter=4, batch_size=32).fit(X, y) for q in (FixedQ(8), 8))
    np.testing.assert_array_equal(rule.coef_, count.coef_)
    np.testing.assert_array_equal(rule.selection_counts_, count.selection_counts_)


@EVERY
def test_the_integer_1_is_warned_of_and_1_0_is_not(row: Row) -> None:
    X, y = row.data()
    with pytest.warns(TrapWarning, match="got the integer 1: one of 64 is kept") as caught:
        row.build(q=1, max_iter=1, tol=None).fit(X, y)
    assert [warning.filename for warning in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error", TrapWarning)
        row.build(q=1.0, max_iter=1, tol=None).fit(X, y)


@EVERY
def test_there_is_no_parameter_rule_beside_q(row: Row) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'rule'"):
        row.build(q=0.5, rule=FixedQ(8))
    with pytest.raises(ValueError, match="Invalid parameter 'rule'"):
        row.build().set_params(rule=FixedQ(8))


@EVERY
def test_partial_fits_take_up_a_new_q_and_check_it(row: Row) -> None:
    X, y = row.data()
    first = {"classes": np.unique(y)} if row.classifies else {}
    model = row.build(q=16, batch_size=32).partial_fit(X, y, **first).set_params(q=LinearDecay(epochs=2, end=0.25))
    assert model.partial_fit(X, y).set_params(q=4).partial_fit(X, y).q_curve_ == [16, 32, 4]
    with pytest.raises(ArgumentError, match=f"^{row.kind.__name__}: q must be"):
        model.set_params(q="half").partial_fit(X, y)


def test_the_paper_s_rule_needs_answers_to_count() -> None:
    X, y = ROWS[0].data()
    qs = OrderedLogisticRegression(q=AccuracyRule(), random_state=0).fit(X, y).q_curve_
    assert (qs[0], qs[-1]) == (64, 4)
    with pytest.raises(ValueError, match="AccuracyRule: accuracy must be observed"):
        OrderedRegressor(q=AccuracyRule()).fit(X, y)


@EVERY
def test_it_works_in_a_pipeline_a_grid_search_and_cross_validation(row: Row) -> None:
    X, y = row.data()
    pipeline = make_pipeline(StandardScaler(), row.build(max_iter=20))
    assert cross_val_score(pipeline, X, y, cv=3).mean() > 0.8 * row.score
    name = pipeline.steps[-1][0]
    values = [8, 0.5, 1.0, LossMassRule(), FixedQ(4)]
    search = GridSearchCV(pipeline, {f"{name}__q": values}, cv=2).fit(X, y)
    assert search.best_score_ > 0.8 * row.score
    assert search.cv_results_[f"param_{name}__q"].tolist() == values
    assert search.best_estimator_[-1].q == search.best_params_[f"{name}__q"]


@EVERY
def test_clones_are_unfitted_equals_and_pickles_predict_and_train_on(row: Row) -> None:
    X, y = row.data()
    model = row.build(q=LinearDecay(epochs=60)).fit(X, y)
    copy = clone(model)
    assert copy.get_params() == model.get_params()
    assert "q=LinearDecay(epochs=60" in repr(copy)
    with pytest.raises(NotFittedError):
        copy.predict(X)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    np.testing.assert_array_equal(again.partial_fit(X, y).coef_, model.partial_fit(X, y).coef_)


@EVERY
def test_pandas_columns_are_remembered_and_checked(row: Row) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    X, y = row.data()
    frame = pandas.DataFrame(X, columns=[f"column {j}" for j in range(X.shape[1])])
    pipeline = make_pipeline(StandardScaler().set_output(transform="pandas"), row.build(early_stopping=True))
    model = pipeline.fit(frame, pandas.Series(y))[-1]
    assert list(model.feature_names_in_) == list(frame.columns)
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame.rename(columns={"column 0": "another"}))


@EVERY
def test_a_warm_start_goes_on_from_the_weights(row: Row) -> None:
    X, y = row.data()
    cold, warm = (row.build(max_iter=3, eta0=0.001, warm_start=warm).fit(X, y) for warm in (False, True))
    np.testing.assert_array_equal(cold.coef_, warm.coef_)
    before = cold.coef_
    np.testing.assert_array_equal(cold.fit(X, y).coef_, before)
    assert warm.fit(X, y).loss_curve_[0] < cold.loss_curve_[0]
    with pytest.raises(ValueError, match="warm_start needs weights of shape"):
        warm.fit(X[:, :-1], y)


@EVERY
@pytest.mark.parametrize(
    "layouts", [(np.asarray,) * 3, (np.asarray, sparse.csr_array, np.asarray)], ids=["same", "mixed"]
)
def test_partial_fits_are_the_epochs_of_a_fit_with_a_constant_rate(row: Row, layouts: Any) -> None:
    X, y = row.data()
    options = {"eta0": 0.005, "learning_rate": {2: 0.5}, "q": LinearDecay(epochs=3)}
    whole, parts = row.build(max_iter=3, **options).fit(X, y), row.build(**options)
    first = {"classes": np.unique(y)} if row.classifies else {}
    for layout in layouts:
        parts.partial_fit(layout(X), y, **first)
    np.testing.assert_allclose(parts.coef_, whole.coef_, rtol=1e-9)
    assert (parts.n_iter_, parts.q_curve_) == (3, whole.q_curve_)
    assert parts.loss_curve_ == pytest.approx(whole.loss_curve_)


@EVERY
def test_early_stopping_holds_samples_out_and_keeps_the_best_weights(row: Row) -> None:
    X, y = row.data()
    stopped = row.build(early_stopping=True, n_iter_no_change=2, max_iter=500, validation_fraction=0.3).fit(X, y)
    assert stopped.n_iter_ < 500
    held_out = int(np.ceil(0.3 * len(y)))
    assert np.count_nonzero(stopped.selection_counts_ == 0) >= held_out
    assert row.build(max_iter=stopped.n_iter_).fit(X, y).n_iter_ == stopped.n_iter_


@EVERY
def test_a_tolerance_stops_or_warns_and_without_one_nothing_stops(row: Row) -> None:
    X, y = row.data()
    assert row.build(tol=1e-3, max_iter=500, learning_rate="constant").fit(X, y).n_iter_ < 500
    assert row.build(max_iter=100).fit(X, y).n_iter_ == 100
    with pytest.warns(ConvergenceWarning, match="2 epochs were not enough for tol=0.001. Raise max_iter"):
        row.build(tol=1e-3, max_iter=2).fit(X, y)


@EVERY
def test_verbose_prints_and_logs_every_epoch(
    row: Row, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    X, y = row.data()
    row.build(max_iter=2).fit(X, y)
    assert capsys.readouterr().out == ""
    row.build(max_iter=2, verbose=1).fit(X, y)  # without any logging being configured
    printed = [line for line in capsys.readouterr().out.splitlines() if "epoch" in line]
    assert [line.split(",")[0] for line in printed] == [f"{row.kind.__name__}: epoch {n}" for n in (1, 2)]
    caplog.clear()
    with caplog.at_level(logging.INFO, "ordered_sgd.linear"):
        row.build(max_iter=2).fit(X, y)
        assert not [record for record in caplog.records if "epoch" in record.message]
        row.build(max_iter=2, verbose=1).fit(X, y)
    lines = [record.message for record in caplog.records if "epoch" in record.message]
    assert len(lines) == 2
    assert lines[1].startswith(f"{row.kind.__name__}: epoch 2, loss ")


@EVERY
@pytest.mark.filterwarnings("error::sklearn.exceptions.ConvergenceWarning")
def test_a_fit_that_ends_too_early_says_so_and_one_that_has_converged_does_not(row: Row) -> None:
    X, y = row.data()
    row.build(max_iter=200).fit(X, y)
    for scale in (1e3, 1e6):
        wide = X.copy()
        wide[:, 2] *= scale  # nothing but this column is learned
        with pytest.warns(ConvergenceWarning, match="could still fall, by at least .* scale the columns"):
            row.build().fit(wide, y)
        with pytest.warns(ConvergenceWarning, match="could still fall"):
            row.build().fit(sparse.csr_array(wide), y)
    row.build(max_iter=9).fit(wide, y)  # so few epochs are a choice


@EVERY
def test_a_rate_that_is_far_too_large_is_an_error_and_not_weights(row: Row) -> None:
    X, y = row.data()
    loss = dict(row.options).get("loss")
    if not row.classifies and loss is None:
        with pytest.raises(ValueError, match=r"(The loss grew to|Floating-point overflow).* in epoch .* lower eta0"):
            row.build(eta0=10.0, learning_rate="constant").fit(X, y)
    with pytest.raises(ValueError, match=r"(The loss grew to|Floating-point overflow).* in epoch .* lower eta0"):
        row.build(eta0=0.5, alpha=1e3, learning_rate="constant").fit(X, y)


def test_rare_samples_far_out_do_not_make_the_default_fit_diverge() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20_000, 6))
    X[::4000, 2] = 60.0  # five typing errors
    y = X @ np.array([1.0, -1.0, 0.1, 0.5, 0.0, 2.0]) + rng.normal(size=len(X))
    y[::4000] = y[1::4000]
    for q in (1.0, 0.5, 0.125):
        assert OrderedRegressor(q=q, random_state=0).fit(X, y).score(X[1::4000], y[1::4000]) > 0.5, q


@EVERY
def test_an_l1_penalty_leaves_zeros_and_l2_does_not(row: Row) -> None:
    X, y = row.data()
    lasso, net, ridge, none = (
        row.build(penalty=penalty, alpha=0.2, l1_ratio=0.5).fit(X, y).coef_
        for penalty in ("l1", "elasticnet", "l2", None)
    )
    assert (lasso == 0).any()
    assert (ridge != 0).all()
    assert np.abs(lasso).sum() < np.abs(net).sum() < np.abs(ridge).sum() < np.abs(none).sum()


@EVERY
def test_without_intercept_it_stays_zero(row: Row) -> None:
    X, y = row.data()
    assert (row.build(fit_intercept=False).fit(X, y).intercept_ == 0).all()


@EVERY
def test_bytes_are_scaled_on_the_fly_in_training_and_prediction(row: Row) -> None:
    X, y = row.data()
    X8 = np.clip(128 + 40 * X, 0, 255).astype(np.uint8)
    options = {"max_iter": 1, "q": 1.0}
    bytes_ = row.build(input_scale=1 / 255, **options).fit(X8, y)
    floats = row.build(**options).fit(X8.astype(np.float32) / 255, y)
    assert bytes_.coef_.dtype == np.float32
    np.testing.assert_allclose(bytes_.coef_, floats.coef_, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(bytes_._scores(X8), floats._scores(X8.astype(np.float32) / 255), rtol=1e-3, atol=1e-4)


@EVERY
@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"q": 0}, "{name}: q must be an int of at least 1 .*; got 0. Use q=1 for the largest loss alone."),
        ({"q": 1.5}, "{name}: q must be an int of at least 1 or a fraction"),
        ({"q": True}, "{name}: q must be an int of at least 1 or a fraction"),
        ({"q": None}, "{name}: q must be a count, a share in .* or a rule; got None. Use q=0.5 to keep half"),
        ({"q": AccuracyRule}, r"{name}: q must be .* a rule; got .* Pass an instance: q=AccuracyRule\(\)."),
        ({"learning_rate": "optimal"}, "The 'learning_rate' parameter of {name} must be"),
        ({"learning_rate": {0: 1.0}}, "{name}: learning_rate must map epochs"),
        ({"eta0": 0.0}, "The 'eta0' parameter of {name} must be"),
        ({"momentum": 1.0}, "The 'momentum' parameter of {name} must be a float in the range"),
        ({"penalty": "l3"}, "The 'penalty' parameter of {name} must be a str among"),
        ({"max_iter": 0}, "The 'max_iter' parameter of {name} must be an int in the range"),
    ],
    ids=str,
)
def test_wrong_parameters_are_refused_in_one_sentence(row: Row, options: dict[str, Any], fault: str) -> None:
    X, y = row.data()
    with pytest.raises(ValueError, match=fault.format(name=row.kind.__name__)):
        row.build(**options).fit(X, y)


@EVERY
def test_wrong_data_are_refused_in_scikit_learn_s_words(row: Row) -> None:
    X, y = row.data()
    bad = X.copy()
    for value, fault in ((np.nan, "Input X contains NaN"), (np.inf, "Input X contains infinity")):
        bad[3, 1] = value
        with pytest.raises(ValueError, match=fault):
            row.build().fit(bad, y)
    with pytest.raises(ValueError, match=r"Found array with 0 sample\(s\)"):
        row.build().fit(X[:0], y[:0])
    with pytest.raises(ValueError, match="Negative values in data passed to `sample_weight`"):
        row.build().fit(X, y, sample_weight=-np.ones(len(y)))
    model = row.build().fit(X, y)
    with pytest.raises(ValueError, match=f"X has 2 features, but {row.kind.__name__} is expecting"):
        model.predict(X[:, :2])


CLASSIFIERS = pytest.mark.parametrize("row", [row for row in ROWS if row.classifies], ids=lambda row: row.kind.__name__)


@CLASSIFIERS
def test_labels_may_be_words_and_classes_are_sorted(row: Row) -> None:
    X, y = row.data()
    words = np.array(["pear", "apple", "fig"])[y]
    model = row.build().fit(X, words)
    assert list(model.classes_) == ["apple", "fig", "pear"]
    assert model.coef_.shape == (3, X.shape[1])
    assert (model.predict(X) == words).mean() >= row.score
    assert model.decision_function(X).shape == (len(y), 3)


@CLASSIFIERS
def test_two_classes_share_one_column(row: Row) -> None:
    X, y = row.data()
    model = row.build().fit(X, y > 0)
    assert model.coef_.shape == (1, X.shape[1])
    np.testing.assert_array_equal(model.decision_function(X) > 0, model.predict(X))
    if row.probabilities:
        both = model.predict_proba(X)
        np.testing.assert_allclose(both.sum(axis=1), 1)
        np.testing.assert_allclose(np.log(both), model.predict_log_proba(X), atol=1e-9)


@CLASSIFIERS
def test_one_class_an_unseen_class_and_other_misuse_are_refused(row: Row) -> None:
    X, y = row.data()
    with pytest.raises(ValueError, match="The number of classes has to be greater than one; got 1 class"):
        row.build().fit(X, np.zeros(len(y)))
    with pytest.raises(ValueError, match="classes must be passed on the first call to partial_fit"):
        row.build().partial_fit(X, y)
    with pytest.raises(ValueError, match=r"The labels \[2\] in y are not among the classes \[0 1\]"):
        row.build().partial_fit(X, y, classes=[0, 1])
    with pytest.raises(ValueError, match="class_weight='balanced' is not supported for partial_fit"):
        row.build(class_weight="balanced").partial_fit(X, y, classes=[0, 1, 2])
    with pytest.raises(ValueError, match="warm_start needs the classes of the last fit"):
        row.build(warm_start=True).fit(X, y).fit(X, y + 1)


@CLASSIFIERS
def test_class_weights_multiply_the_losses_like_sample_weights(row: Row) -> None:
    X, y = row.data()
    factors = {0: 0.5, 1: 2.0, 2: 3.0}
    by_class = row.build(class_weight=factors).fit(X, y)
    by_sample = row.build().fit(X, y, sample_weight=np.array([factors[label] for label in y]))
    np.testing.assert_allclose(by_class.coef_, by_sample.coef_)
    balanced = row.build(class_weight="balanced").fit(X, y)
    counts = np.bincount(y)
    by_hand = row.build(class_weight={k: len(y) / (3 * count) for k, count in enumerate(counts)}).fit(X, y)
    np.testing.assert_allclose(balanced.coef_, by_hand.coef_)


def test_diverging_is_an_error_that_names_the_remedy() -> None:
    X, y = ROWS[2].data()
    with pytest.raises(
        ValueError, match=r"The loss grew to .* in epoch .* Scale the data, for example with StandardScaler"
    ):
        (model := OrderedRegressor(eta0=1e6, max_iter=100)).fit(X, y)
    with pytest.raises(NotFittedError):
        model.predict(X)


def test_overflow_in_the_very_last_step_is_seen_too() -> None:
    with pytest.raises(ValueError, match="Floating-point overflow in epoch 1"):
        OrderedRegressor(eta0=1e300, max_iter=1).fit([[1e10], [2e10]], [1.0, 2.0])


def test_column_numbers_that_do_not_exist_are_refused() -> None:
    X = sparse.csr_array(np.eye(3))
    X.indices[1] = 7
    with pytest.raises(ValueError, match="indices"):
        OrderedLinearSVC().fit(X, [0, 1, 2])


def test_validation_weights_that_are_all_zero_are_refused() -> None:
    X, y = ROWS[2].data()
    weight = np.zeros(len(y))
    weight[0] = 1
    with pytest.raises(ValueError, match="The sample weights of the validation set are all zero"):
        OrderedRegressor(early_stopping=True, random_state=0).fit(X, y, sample_weight=weight)


def test_the_most_selected_samples_are_the_hardest() -> None:
    """Samples with flipped labels are the hardest and have the largest counts."""
    X, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    flipped = rng.choice(len(y), 40, replace=False)
    y[flipped] = (y[flipped] + rng.integers(1, 10, 40)) % 10
    model = OrderedLogisticRegression(q=0.1, input_scale=1 / 16, random_state=0).fit(X.astype(np.uint8), y)
    suspects = np.argsort(-model.selection_counts_)[:60]
    assert np.isin(flipped, suspects).mean() > 0.8


def test_a_missing_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'ordered_sgd.linear' has no attribute 'nothing'"):
        package.nothing  # noqa: B018


@EVERY
def test_sparse_entries_that_are_written_twice_are_their_sum(row: Row) -> None:
    X, y = row.data()
    once = sparse.coo_array(X)
    twice = sparse.csr_array(once)
    parts = [np.repeat(twice.indptr, 1) * 2, np.repeat(twice.indices, 2), np.repeat(twice.data / 2, 2)]
    double = sparse.csr_array((parts[2], parts[1], parts[0]), shape=X.shape)
    assert not double.has_canonical_format
    one, two = (row.build(max_iter=3).fit(rows, y) for rows in (twice, double))
    np.testing.assert_allclose(two.coef_, one.coef_, rtol=1e-9)
    assert two.eta0_ == pytest.approx(one.eta0_)
    assert double.nnz == 2 * twice.nnz  # the user's matrix stays as it is


@EVERY
def test_samples_without_weight_do_not_stop_a_fit(row: Row) -> None:
    X, y = row.data()
    weight = np.ones(len(y))
    weight[20:] = 0
    if row.classifies:
        weight[[60, 80, 130, 150]] = 1
    row.build(max_iter=12).fit(np.tile(X, (30, 1)), np.tile(y, 30), np.concatenate([weight, np.zeros(29 * len(y))]))


@EVERY
def test_a_fit_may_start_from_weights_that_are_given(row: Row) -> None:
    X, y = row.data()
    found = row.build().fit(X, y)
    start = {"coef_init": found.coef_, "intercept_init": found.intercept_}
    again = row.build(max_iter=1, eta0=1e-12, learning_rate="constant").fit(X, y, **start)
    np.testing.assert_allclose(again.coef_, found.coef_, atol=1e-6)
    np.testing.assert_allclose(again.intercept_, found.intercept_, atol=1e-6)
    for bad in (found.coef_[..., :-1], found.coef_ * np.nan):
        with pytest.raises(ValueError, match=r"coef_init should be finite and of shape \(\d, 1[03]\), got shape"):
            row.build().fit(X, y, coef_init=bad)


@EVERY
def test_l1_ratio_is_needed_by_the_elastic_net_alone(row: Row) -> None:
    X, y = row.data()
    one, two = (row.build(max_iter=2, l1_ratio=ratio).fit(X, y) for ratio in (None, 0.15))
    np.testing.assert_array_equal(one.coef_, two.coef_)
    with pytest.raises(ValueError, match="l1_ratio must be a number with penalty='elasticnet', got None"):
        row.build(l1_ratio=None, penalty="elasticnet").fit(X, y)
