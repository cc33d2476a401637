"""What the three estimators share: their parameters, and training from start to end."""

import logging
import math
import warnings
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ClassVar, Literal, Self

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted, validate_data

from ordered_sgd.errors import NonFiniteLossError
from ordered_sgd.linear.converged import FALLS, JUDGED_FROM, could_fall
from ordered_sgd.linear.objective import Array, Loss, Objective, State
from ordered_sgd.linear.stream import Chunk, Stream, advance, before_the_first_batch, observed
from ordered_sgd.linear.training import (
    ExplodedError,
    History,
    Patience,
    RatePlan,
    Samples,
    Schedule,
    rate_of,
    safe_rate,
    spoken,
    train,
)
from ordered_sgd.rules import Rule, as_rule, check_level, resolve_q, warn_of_one

Start = tuple[Any, Any]  # weights and intercept to start with, each or None
# Bytes are read as they are; anything else but float32 becomes float64, as elsewhere in scikit-learn.
READ = {"accept_sparse": "csr", "dtype": [np.float64, np.float32, np.uint8], "order": "C"}


# A dataclass, so that the parameters are written once: its __init__ has them all, and a subclass adds its own.
@dataclass(kw_only=True, eq=False, repr=False)
class OrderedLinearModel(BaseEstimator):  # type: ignore[misc]
    """Base of the estimators: the parameters that all of them have, and training."""

    q: float | Rule = 0.5
    batch_size: int = 64
    max_iter: int = 50
    learning_rate: RatePlan = "cosine"
    eta0: float | Literal["auto"] = "auto"
    momentum: float = 0.9
    penalty: Literal["l2", "l1", "elasticnet"] | None = "l2"
    alpha: float = 1e-4
    l1_ratio: float | None = 0.15
    fit_intercept: bool = True
    shuffle: bool = True
    input_scale: float = 1.0
    early_stopping: bool = False
    validation_fraction: float = 0.1
    n_iter_no_change: int = 5
    tol: float | None = None
    random_state: Any = None
    warm_start: bool = False
    verbose: int = 0

    _judged: ClassVar[bool] = True  # whether a fit that ended too early says so; a benchmark of epochs does without

    # scikit-learn's checks; `check_level` checks q, also in later calls of partial_fit.
    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "batch_size": [Interval(Integral, 1, None, closed="left")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "learning_rate": [StrOptions({"constant", "cosine"}), dict],
        "eta0": [StrOptions({"auto"}), Interval(Real, 0, None, closed="neither")],
        "momentum": [Interval(Real, 0, 1, closed="left")],
        "penalty": [StrOptions({"l2", "l1", "elasticnet"}), None],
        "alpha": [Interval(Real, 0, None, closed="left")],
        "l1_ratio": [Interval(Real, 0, 1, closed="both"), None],
        "fit_intercept": ["boolean"],
        "shuffle": ["boolean"],
        "input_scale": [Interval(Real, 0, None, closed="neither")],
        "early_stopping": ["boolean"],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
        "n_iter_no_change": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left"), None],
        "random_state": ["random_state"],
        "warm_start": ["boolean"],
        "verbose": ["verbose"],
    }

    def _loss(self) -> Loss:
        raise NotImplementedError  # pragma: no cover

    def _judge(self, y: Array, scores: Array, weight: Array) -> float:
        """Quality of the scores of held-out samples; higher is better."""
        raise NotImplementedError  # pragma: no cover

    def _train(
        self,
        X: Array,
        y: Array,
        weight: Array,
        columns: int,
        *,
        partial: bool = False,
        stratify: bool = False,
        start: Start = (None, None),
    ) -> Self:
        """Train on validated samples for `max_iter` epochs, or one more epoch if `partial`."""
        if partial and self.early_stopping:
            raise ValueError("early_stopping should be False with partial_fit")
        if partial and self.eta0 == "auto":
            return self._advance(X, y, weight, columns)
        self._stream: Stream | None = None
        state, objective = self._first_state(X, columns, partial=partial, start=start), self._objective()
        if not (partial and hasattr(self, "_history")):
            self._history, self._rng = History(), _generator(self.random_state)
        samples = Samples(*_arrays(X, y, weight, state.memory.dtype))
        patience = None if partial or self.tol is None else Patience(self.n_iter_no_change, self.tol)
        if self.early_stopping:
            samples, patience = self._hold_out(samples, stratify=stratify)
        schedule = self._schedule(samples, objective, columns, partial=partial)
        self.selection_counts_ = np.zeros(len(y), np.int64)
        try:
            with spoken(aloud=bool(self.verbose)):
                train(samples, state, objective, schedule, self._rng, self._history, self.selection_counts_, patience)
        except NonFiniteLossError as error:
            raise ValueError(_overflow(len(self._history.losses) + 1)) from error
        except ExplodedError as error:
            grown = self._history.losses[-1]
            raise ValueError(_overflow(len(self._history.losses), f"The loss grew to {grown:.2g}")) from error
        if not np.isfinite(state.coef).all():  # from the very last step, after which no losses are computed
            raise ValueError(_overflow(len(self._history.losses)))
        self._finish(state, patience)
        if self._judged and not partial and patience is None and self.max_iter >= JUDGED_FROM:
            self._warn_of_an_early_end(samples, objective, min(self.batch_size, samples.size))
        return self

    def _advance(self, X: Array, y: Array, weight: Array, columns: int) -> Self:
        """Train on a chunk of a stream; see `ordered_sgd.linear.stream`."""
        name, objective = type(self).__name__, self._objective()
        if getattr(self, "_stream", None) is None:
            self._stream = Stream.start(self._first_state(X, columns, partial=True))
        if not hasattr(self, "_history"):
            self._history, self._rng = History(), _generator(self.random_state)
        stream, history, s = self._stream, self._history, self.batch_size
        assert stream is not None
        stream.lay_out(by_column=sparse.issparse(X), dtype=np.float64 if X.dtype == np.float64 else np.float32)
        order = self._rng.permutation(len(y)) if self.shuffle else np.arange(len(y))
        rows = Chunk(*_arrays(X[order], y[order], weight[order], stream.state.memory.dtype))
        level = check_level(self.q, name)
        rule = None if isinstance(level, int | float) else level
        q = level if isinstance(level, int | float) else history.next_q or level.first_q(s)
        warn_of_one(self.q, s, name)
        before = stream.saved()
        try:
            with spoken(aloud=bool(self.verbose)):
                trained = advance(stream, rows, objective, q, s, self._rng)
                early = before_the_first_batch(stream, objective, q) if stream.steps == 0 else None
        except NonFiniteLossError as error:
            self._stream = before
            raise ValueError(_overflow(len(history.losses) + 1)) from error
        own = trained.positions >= 0
        self.selection_counts_ = np.zeros(len(y), np.int64)
        self.selection_counts_[order[trained.positions[own]]] = trained.kept[own]
        if len(trained.losses):
            history.add(trained.losses, trained.kept, resolve_q(q, s))
        if len(trained.losses) and rule is not None:
            seen = observed(stream, trained, s, rule, objective)
            history.next_q = int(q) if seen is None else rule.next_q(int(q), s, seen)
        if stream.held_up and not stream.told:
            stream.told = True
            text = "One sample is a hundred times as long as the others, which makes the learning rate small for good. "
            warnings.warn(text + "Scale or clip the columns, as with RobustScaler.", ConvergenceWarning, stacklevel=5)
        rate = stream.rate if stream.seen else getattr(self, "eta0_", math.inf)
        coef, intercept, self.eta0_ = early or (stream.coef.copy(), stream.intercept.copy(), rate)
        self._learned(coef, intercept, stream.state)
        return self

    def _objective(self) -> Objective:
        if self.penalty == "elasticnet" and self.l1_ratio is None:
            raise ValueError("l1_ratio must be a number with penalty='elasticnet', got None.")
        share = {"l1": 1.0, "elasticnet": self.l1_ratio or 0.0}.get(self.penalty or "", 0.0)
        alpha = self.alpha if self.penalty else 0.0
        return Objective(
            self._loss(),
            l2=alpha * (1 - share),
            l1=alpha * share,
            momentum=self.momentum,
            fit_intercept=self.fit_intercept,
            epsilon=getattr(self, "epsilon", 1.0),
            input_scale=self.input_scale,
        )

    def _first_state(self, X: Array, columns: int, *, partial: bool, start: Start = (None, None)) -> State:
        """What is given, or zeros; with a warm start the current weights; in a partial fit their momentum as well."""
        dtype = np.float64 if X.dtype == np.float64 else np.float32
        shape, by_column = (columns, X.shape[1]), sparse.issparse(X)
        if any(part is not None for part in start):
            coef, intercept = (
                np.zeros(size, dtype) if part is None else _given(name, part, size, dtype)
                for name, part, size in zip(("coef_init", "intercept_init"), start, (shape, (columns,)), strict=True)
            )
            return State.start(coef, intercept, by_column=by_column)
        if not ((partial or self.warm_start) and hasattr(self, "coef_")):
            return State.start(np.zeros(shape, dtype), np.zeros(columns, dtype), by_column=by_column)
        coef = np.atleast_2d(self.coef_).astype(dtype)
        if coef.shape != shape:
            raise ValueError(f"warm_start needs weights of shape {shape}, but the last fit left {coef.shape}.")
        velocity = self._velocity if partial else None
        return State.start(coef, np.ravel(self.intercept_), by_column=by_column, velocity=velocity)

    def _hold_out(self, samples: Samples, *, stratify: bool) -> tuple[Samples, Patience]:
        """The samples to train on, and the stopping rule based on the held-out ones."""
        X, y, weight, _ = samples
        seed = int(self._rng.integers(np.iinfo(np.int32).max))
        kept, held_out = train_test_split(
            np.arange(len(y)),
            test_size=self.validation_fraction,
            random_state=seed,
            stratify=y if stratify else None,
        )
        if not weight[held_out].any():
            raise ValueError("The sample weights of the validation set are all zero; try another random_state.")

        def judge(state: State) -> float:
            scores = scores_of(X[held_out], state.coef, state.intercept, self.input_scale)
            return self._judge(y[held_out], scores, weight[held_out])

        return Samples(X, y, weight, kept), Patience(self.n_iter_no_change, self.tol or 0.0, judge)

    def _schedule(self, samples: Samples, objective: Objective, columns: int, *, partial: bool) -> Schedule:
        name = type(self).__name__
        q = check_level(self.q, name)
        s = self.batch_size if partial else min(self.batch_size, samples.size)
        warn_of_one(q, min(s, samples.size), name)
        if self.eta0 != "auto":
            self.eta0_ = float(self.eta0)
        elif not (partial and hasattr(self, "eta0_")):
            self.eta0_ = safe_rate(samples, objective, columns, as_rule(q, name).first_q(s))
        # A partial fit does not know how many epochs will follow, so its cosine stays at the first rate.
        plan = "constant" if partial and self.learning_rate == "cosine" else self.learning_rate
        rate = rate_of(plan, self.eta0_, self.max_iter, name)
        level = logging.INFO if self.verbose else logging.DEBUG
        return Schedule(s, q, rate, 1 if partial else self.max_iter, level, name, self.shuffle)

    def _finish(self, state: State, patience: Patience | None) -> None:
        coef, intercept = state.coef, state.intercept
        if patience is not None and patience.judge is not None and patience.weights is not None:
            coef, intercept = patience.weights
        if patience is not None and self.tol is not None and patience.waited < patience.epochs:
            text = f"{self.max_iter} epochs were not enough for tol={self.tol}. Raise max_iter, or use tol=None."
            warnings.warn(text, ConvergenceWarning, stacklevel=5)
        self._learned(coef, intercept, state)

    def _warn_of_an_early_end(self, samples: Samples, objective: Objective, s: int) -> None:
        share = could_fall(
            samples, np.atleast_2d(self.coef_), np.ravel(self.intercept_), objective, self.q_curve_[-1], s
        )
        if share > FALLS:
            text = (
                f"After {self.max_iter} epochs the loss that is minimised could still fall, by at least {share:.0%} of "
            )
            text += "what it is without any weights. Raise max_iter, or scale the columns, as with StandardScaler."
            warnings.warn(text, ConvergenceWarning, stacklevel=6)

    def _learned(self, coef: Array, intercept: Array, state: State) -> None:
        """Set what `fit` and `partial_fit` learn."""
        self.coef_, self.intercept_ = np.ascontiguousarray(coef), intercept
        self._velocity = np.ascontiguousarray(state.velocity), state.intercept_velocity
        history = self._history
        self.n_iter_, self.q_curve_ = len(history.qs), list(history.qs)
        self.loss_curve_, self.ordered_loss_curve_ = list(history.losses), list(history.ordered_losses)

    def _scores(self, X: Any) -> Array:
        """Scores (n, K) of samples, which are validated first."""
        check_is_fitted(self, "coef_")  # a failed fit leaves other attributes behind
        X = validate_data(self, X, reset=False, **READ)
        return scores_of(X, np.atleast_2d(self.coef_), np.ravel(self.intercept_), self.input_scale)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


def scores_of(X: Array, coef: Array, intercept: Array, input_scale: float) -> Array:
    """Scores (n, K) of rows, dense or sparse."""
    scores: Array = (X @ coef.T) * coef.dtype.type(input_scale) + intercept
    return scores


def _given(name: str, values: Any, shape: tuple[int, ...], dtype: Any) -> Array:
    """Weights to start with, as an array of this shape; one row may be a vector, and one number a scalar."""
    array = np.asarray(values, dtype)
    if array.size != math.prod(shape) or (array.ndim > 1 and array.shape != shape) or not np.isfinite(array).all():
        raise ValueError(f"{name} should be finite and of shape {shape}, got shape {array.shape}.")
    return array.reshape(shape)


def _arrays(X: Any, y: Array, weight: Array, dtype: Any) -> tuple[Any, Array, Array]:
    """Inputs, targets and weights as the kernels read them."""
    if weight.min() < 0:
        raise ValueError(f"Sample weights times class weights must not be negative, got {weight.min():g}.")
    # -0.0 becomes 0.0: kernels order losses by their bits
    return _plain(X), np.ascontiguousarray(y, dtype), np.ascontiguousarray(weight + 0.0, dtype)


def _plain(X: Any) -> Any:
    """The rows as the kernels read them, copied only if they are not contiguous and aligned."""
    if not sparse.issparse(X):
        return np.require(X, requirements=["C", "A"])
    X.check_format()  # a wrong column number would write to foreign memory
    if not X.has_canonical_format:  # entries of one place add up, also where squares of rows are taken
        X = X.copy()
        X.sum_duplicates()
    return X


def _overflow(epoch: int, what: str = "Floating-point overflow") -> str:
    return f"{what} in epoch {epoch}. Scale the data, for example with StandardScaler, or lower eta0."


def _generator(random_state: Any) -> np.random.Generator:
    """A generator for scikit-learn's random_state; an int seeds it directly, as in NumPy."""
    if isinstance(random_state, Integral):
        return np.random.default_rng(int(random_state))
    return np.random.default_rng(check_random_state(random_state).randint(np.iinfo(np.int32).max))
