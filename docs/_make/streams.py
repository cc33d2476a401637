"""`partial_fit` against scikit-learn's, on streams in chunks of several sizes: ``python docs/_make/streams.py``.

Two passes over a training set of 70 %, in random order or sorted by the target, with the defaults of all estimators.
Writes the table into docs/linear.md. It needs MNIST and Fashion-MNIST (`osgd data fetch`), and takes some minutes.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris, load_wine
from sklearn.linear_model import SGDClassifier, SGDRegressor
from sklearn.preprocessing import StandardScaler

from ordered_sgd.lab.data import load
from ordered_sgd.lab.report.marked import fill, markdown_table
from ordered_sgd.linear import OrderedLogisticRegression, OrderedRegressor

PAGE = Path(__file__).parents[1] / "linear.md"
RECORD = Path(__file__).parents[1] / "records" / "streams.json"
CHUNKS, ORDERS = (1, 8, 32, 128, 500), ("random", "sorted")


def images(name: str) -> Callable[[], tuple[Any, Any]]:
    """The first 5,000 images of a set as vectors."""

    def loaded() -> tuple[Any, Any]:
        data = load(name)
        return data.x[:5000].reshape(len(data.x[:5000]), -1).astype(float), data.y[:5000]

    return loaded


def toy(loader: Callable[..., Any]) -> Callable[[], tuple[Any, Any]]:
    """A table of scikit-learn's."""
    return lambda: loader(return_X_y=True)


DATA = {
    "diabetes (R²)": toy(load_diabetes),
    "iris": toy(load_iris),
    "wine": toy(load_wine),
    "breast cancer": toy(load_breast_cancer),
    "digits": toy(load_digits),
    "Semeion": images("semeion"),
    "MNIST, 5,000": images("mnist"),
    "Fashion-MNIST, 5,000": images("fashion-mnist"),
}


def score(make: Callable[[], Any], name: str, order: str, chunk: int) -> float:
    """R², or the error in percent, on the rest of the data."""
    X, y = DATA[name]()
    regression = "R²" in name
    rows = np.random.default_rng(0).permutation(len(y))
    cut = round(0.7 * len(y))
    train, test = rows[:cut], rows[cut:]
    if order == "sorted":
        train = train[np.argsort(y[train], kind="stable")]
    scaler = StandardScaler().fit(X[train])
    target = (y - y[train].mean()) / y[train].std() if regression else y
    model, classes = make(), {} if regression else {"classes": np.unique(y)}
    X = scaler.transform(X)
    for start in [*range(0, cut, chunk)] * 2:
        part = train[start : start + chunk]
        model.partial_fit(X[part], target[part], **classes)
    value = float(model.score(X[test], target[test]))
    return value if regression else 100 * (1 - value)


def main() -> None:
    """Measure, record, and write the table."""
    found = []
    for name in DATA:
        regression = "R²" in name
        ours = (lambda: OrderedRegressor(random_state=0)) if regression else _classifier
        theirs = (lambda: SGDRegressor(random_state=0)) if regression else _sgd
        for order in ORDERS:
            row = {"data": name, "order": order}
            for chunk in CHUNKS:
                row[str(chunk)] = [score(make, name, order, chunk) for make in (ours, theirs)]  # type: ignore[assignment]
            found.append(row)
            print(row, flush=True)
    RECORD.write_text(json.dumps(found, indent=1) + "\n")
    PAGE.write_text(fill(PAGE.read_text(), "streams", [markdown_table([_shown(row) for row in found])]))


def _classifier() -> Any:
    return OrderedLogisticRegression(random_state=0)


def _sgd() -> Any:
    return SGDClassifier(loss="log_loss", random_state=0)


def _shown(row: dict[str, Any]) -> dict[str, str]:
    form = ".3f" if "R²" in row["data"] else ".1f"
    cells = {f"chunks of {c}": " / ".join(format(value, form) for value in row[str(c)]) for c in CHUNKS}
    return {"data": row["data"], "order": row["order"], **cells}


if __name__ == "__main__":
    main()
