"""The table of estimators, for the files that hold them to their promises."""

from dataclasses import dataclass
from typing import Any

import pytest
from sklearn.datasets import load_diabetes, load_wine
from sklearn.preprocessing import StandardScaler

from ordered_sgd.linear import OrderedLinearSVC, OrderedLogisticRegression, OrderedRegressor


@dataclass(frozen=True)
class Row:
    """An estimator, its options, the score it must reach on standardized real data, and what it supports."""

    kind: type[Any]
    score: float
    classifies: bool = True
    probabilities: bool = False
    options: tuple[tuple[str, Any], ...] = ()

    def build(self, **more: Any) -> Any:
        return self.kind(**{"random_state": 0, **dict(self.options), **more})

    def data(self) -> tuple[Any, Any]:
        X, y = load_wine(return_X_y=True) if self.classifies else load_diabetes(return_X_y=True)
        return StandardScaler().fit_transform(X), y if self.classifies else y / y.std()


ROWS = [
    Row(OrderedLogisticRegression, 0.99, probabilities=True),
    Row(OrderedLinearSVC, 0.99),
    Row(OrderedRegressor, 0.45, classifies=False),
    Row(OrderedRegressor, 0.45, classifies=False, options=(("loss", "huber"),)),
    Row(OrderedRegressor, 0.45, classifies=False, options=(("loss", "absolute_error"),)),
]


EVERY = pytest.mark.parametrize("row", ROWS, ids=lambda row: " ".join([row.kind.__name__, *map(str, row.options)]))
