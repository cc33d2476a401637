"""Ordered linear models against scikit-learn's SGD and solvers, a PyTorch loop, and one read of the data; one thread.

Seconds of an epoch are a slope: those of a longer training minus those of a shorter one, over the epochs between, so
that what is done once per training drops out. All subjects of a comparison are measured in turn in one run.
"""

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse

from ordered_sgd.batches import epoch_batches
from ordered_sgd.lab.bench.timing import Timing, measurements, summary, threads_of_torch
from ordered_sgd.lab.data import load
from ordered_sgd.linear import OrderedLinearSVC, OrderedLogisticRegression, OrderedRegressor
from ordered_sgd.linear.intrinsics import compiled

Array = NDArray[Any]
STREAM = "stream"  # one pass that only reads the float32 array
S = 64
QS = {"q = s": S, "q = s/16": S // 16}


@dataclass(frozen=True)
class Subject:
    """Something that trains: `run(epochs)`, and the two numbers of epochs whose difference is measured."""

    run: Callable[[int], object]
    short: int = 1
    long: int = 2


def epoch_seconds(subjects: Mapping[str, Subject], *, rounds: int = 7) -> dict[str, Timing]:
    """Seconds of an epoch of every subject, measured in turn, after a round that does not count.

    >>> sorted(epoch_seconds({"a": Subject(lambda epochs: sum(range(1000 * epochs)))}, rounds=2))
    ['a']
    """
    ends = [(name, epochs) for name, subject in subjects.items() for epochs in (subject.short, subject.long)]
    calls = {f"{name} {epochs}": lambda name=name, epochs=epochs: subjects[name].run(epochs) for name, epochs in ends}
    seconds = measurements(calls, rounds=rounds)
    found = {}
    for name, subject in subjects.items():
        pairs = zip(seconds[f"{name} {subject.short}"], seconds[f"{name} {subject.long}"], strict=True)
        found[name] = summary([(long - short) / (subject.long - subject.short) for short, long in pairs])
    return found


def dense_subjects(X: NDArray[np.uint8], y: Array) -> dict[str, Subject]:
    """Everything that the comparison on images holds, of rows of bytes (n, d) and class numbers.

    >>> rng = np.random.default_rng(0)
    >>> X, y = rng.integers(0, 256, (200, 8), dtype=np.uint8), rng.integers(0, 3, 200)
    >>> seconds = epoch_seconds(dense_subjects(X, y), rounds=2)
    >>> [name for name in seconds if "uint8" in name]
    ['uint8, q = s', 'uint8, q = s/16']
    """
    from sklearn.linear_model import SGDClassifier

    floats = X.astype(np.float32) / np.float32(255)
    subjects = {STREAM: Subject(lambda passes: [_read(floats.ravel()) for _ in range(passes)], 1, 5)}
    for kind, rows, scale in (("uint8", X, 1 / 255), ("float32", floats, 1.0)):
        for name, q in QS.items():
            options = {"q": q, "eta0": 0.01, "learning_rate": "constant", "input_scale": scale, "random_state": 0}
            subjects[f"{kind}, {name}"] = Subject(_ours(OrderedLogisticRegression, rows, y, **options), 1, 6)
    for loss in ("log_loss", "hinge"):
        subjects[f"SGDClassifier, {loss}"] = Subject(_theirs(SGDClassifier, floats, y, loss=loss))
    for name, q in QS.items():
        subjects[f"torch, {name}"] = Subject(_torch_loop(floats, y, q))
    return subjects


def sparse_subjects(classes: int, n: int = 20_000, d: int = 50_000, density: float = 1e-3) -> dict[str, Subject]:
    """The comparison on sparse rows, with momentum and L2: both losses, ours and scikit-learn's.

    >>> seconds = epoch_seconds(sparse_subjects(3, n=200, d=50, density=0.1), rounds=2)
    >>> sorted(seconds)[:2]
    ['SGDClassifier, hinge', 'SGDClassifier, log_loss']
    """
    from sklearn.linear_model import SGDClassifier

    X, y = sparse_data(classes, n, d, density)
    subjects, long = {}, 2 + 40 // classes
    for loss, kind in (("log_loss", OrderedLogisticRegression), ("hinge", OrderedLinearSVC)):
        for name, q in QS.items():
            options = {"q": q, "eta0": 0.1, "learning_rate": "constant", "alpha": 1e-4, "random_state": 0}
            subjects[f"{loss}, {name}"] = Subject(_ours(kind, X, y, **options), 1, long)
        subjects[f"SGDClassifier, {loss}"] = Subject(_theirs(SGDClassifier, X, y, loss=loss), 1, long)
    return subjects


def sparse_data(classes: int, n: int, d: int, density: float) -> tuple[Any, Array]:
    """Random sparse rows in float32, and the classes that a random linear model gives them."""
    rng = np.random.default_rng(0)
    per_row = max(1, round(density * d))
    columns = rng.integers(0, d, n * per_row).astype(np.int32)
    ends = np.arange(0, n * per_row + 1, per_row, dtype=np.int32)
    X = sparse.csr_array((rng.normal(size=n * per_row).astype(np.float32), columns, ends), (n, d))
    X.sum_duplicates()
    return X, np.asarray(X @ rng.normal(size=(d, classes)).astype(np.float32)).argmax(axis=1)


def growth_subjects(rows: Iterable[int], layout: str = "dense") -> dict[str, Subject]:
    """The same regression on ever more rows of 20 features, or of 20 non-zeros in 2,000.

    >>> [name for layout in ("dense", "sparse") for name in epoch_seconds(growth_subjects([99], layout), rounds=2)]
    ['99', '99']
    """
    subjects = {}
    for n in rows:
        rng = np.random.default_rng(0)
        y = rng.normal(size=n).astype(np.float32)
        X: Any = (
            sparse_data(2, n, 2_000, 0.01)[0] if layout == "sparse" else rng.normal(size=(n, 20)).astype(np.float32)
        )
        subjects[str(n)] = Subject(
            _ours(OrderedRegressor, X, y, eta0=1e-3, learning_rate="constant"), 1, 1 + max(2, 200_000 // n)
        )
    return subjects


PARTS: dict[str, Callable[[], dict[str, Subject]]] = {
    "images": lambda: dense_subjects(*_mnist("train")),
    "sparse, 2 classes": lambda: sparse_subjects(2),
    "sparse, 20 classes": lambda: sparse_subjects(20),
    "growth, dense": lambda: growth_subjects([10**4, 10**5, 10**6]),
    "growth, sparse": lambda: growth_subjects([10**4, 10**5, 10**6], "sparse"),
}


@dataclass(frozen=True)
class EpochCost:
    """Seconds of an epoch of one subject: median and quartiles."""

    part: str
    subject: str
    seconds: float
    low: float
    high: float


def measure_epochs(part: str, rounds: int = 7) -> list[EpochCost]:
    """What an epoch costs each subject of a part of `PARTS`, on one thread."""
    with _one_thread():
        found = epoch_seconds(PARTS[part](), rounds=rounds)
    return [EpochCost(part, subject, it.median, it.low, it.high) for subject, it in found.items()]


@dataclass(frozen=True)
class Reached:
    """The first setting of a method with which the test error, in percent, was as low as asked; else its best."""

    method: str
    setting: str
    seconds: float
    error: float
    reached: bool


def measure_errors(target: float) -> list[Reached]:
    """Seconds to a test error on MNIST, on one thread."""
    with _one_thread():
        return time_to_error(_mnist("train"), _mnist("test"), target)


def time_to_error(train: tuple[Array, Array], test: tuple[Array, Array], target: float) -> list[Reached]:
    """Seconds to a test error, won or lost: every method is given ever larger budgets until it gets there.

    Rows are bytes; ours reads them as they are, the others get float32 in [0, 1]. A method is compiled beforehand.

    >>> rng = np.random.default_rng(0)
    >>> X, y = rng.integers(0, 256, (90, 4), dtype=np.uint8), rng.integers(0, 3, 90)
    >>> {row.reached for row in time_to_error((X, y), (X, y), target=100.0)}
    {True}
    """
    (X8, y), (T8, t) = train, test
    X, T = (rows.astype(np.float32) / np.float32(255) for rows in (X8, T8))
    table = []
    OrderedLogisticRegression(max_iter=1, input_scale=1 / 255).fit(X8[:S], y[:S])
    for method, budgets in _contestants().items():
        found = []
        for setting, model in budgets.items():
            rows, others = (X8, T8) if method.startswith("ordered") else (X, T)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that a small budget does not converge is the point
                start = time.perf_counter()
                model.fit(rows, y)
                seconds = time.perf_counter() - start
            error = 100 * float(np.mean(model.predict(others) != t))
            found.append(Reached(method, setting, seconds, error, error <= target))
            if error <= target:
                break
        table.append(found[-1] if found[-1].reached else min(found, key=lambda row: row.error))
    return table


def _contestants() -> dict[str, dict[str, Any]]:
    """Method to settings to estimators, cheap settings first."""
    from sklearn.linear_model import LogisticRegression, SGDClassifier
    from sklearn.svm import LinearSVC

    def ours(q: float) -> dict[str, Any]:
        options: dict[str, Any] = {"q": q, "input_scale": 1 / 255, "random_state": 0}
        return {f"{k} epochs": OrderedLogisticRegression(max_iter=k, **options) for k in (1, 2, 5, 10, 20, 50, 100)}

    def solver(name: str, budgets: tuple[int, ...]) -> dict[str, Any]:
        return {f"{k} iterations": LogisticRegression(solver=name, max_iter=k, random_state=0) for k in budgets}

    return {
        "ordered, q = s/2": ours(0.5),
        "ordered, q = s": ours(1.0),
        "SGDClassifier, log_loss": {
            f"{k} epochs": SGDClassifier(loss="log_loss", max_iter=k, tol=None, random_state=0) for k in (1, 5, 20)
        },
        "LogisticRegression, lbfgs": solver("lbfgs", (10, 20, 50, 100, 200)),
        "LogisticRegression, saga": solver("saga", (1, 2, 5, 10, 20)),
        "LIBLINEAR, LinearSVC": {f"{k} iterations": LinearSVC(max_iter=k, random_state=0) for k in (10, 100)},
    }


def _mnist(split: Literal["train", "test"]) -> tuple[NDArray[np.uint8], Array]:
    images = load("mnist", split)
    return images.x.reshape(len(images), -1), images.y


@contextmanager
def _one_thread() -> Iterator[None]:
    from threadpoolctl import threadpool_limits

    with threads_of_torch(1), threadpool_limits(1):
        yield


def _ours(kind: Any, X: Any, y: Array, **options: Any) -> Callable[[int], object]:
    def fit(epochs: int) -> object:
        model = kind(max_iter=epochs, batch_size=S, **options)
        model._judged = False
        return model.fit(X, y)

    return fit


def _theirs(kind: Any, X: Any, y: Array, **options: Any) -> Callable[[int], object]:
    return lambda epochs: kind(max_iter=epochs, tol=None, random_state=0, **options).fit(X, y)


def _torch_loop(X: Array, y: Array, q: int) -> Callable[[int], object]:
    """The loop that people write: five lines on tensors in memory, one more to keep the q largest."""
    x, target = torch.from_numpy(X), torch.from_numpy(np.asarray(y, np.int64))

    def run(epochs: int) -> None:
        model = torch.nn.Linear(X.shape[1], int(target.max()) + 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
        rng = np.random.default_rng(0)
        for _ in range(epochs):
            for rows in map(torch.from_numpy, epoch_batches(len(X), S, rng)):
                losses = torch.nn.functional.cross_entropy(model(x[rows]), target[rows], reduction="none")
                optimizer.zero_grad()
                (losses if q >= S else losses.topk(min(q, len(rows))).values).mean().backward()
                optimizer.step()

    return run


@compiled
def _read(x: Array) -> float:  # pragma: no cover
    total = x.dtype.type(0)
    for i in range(x.size):
        total += x[i]
    return float(total)
