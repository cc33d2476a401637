"""Ordered SGD for linear models: scikit-learn's interface, compiled kernels, no torch. Needs the extra `linear`.

`OrderedLogisticRegression`, `OrderedLinearSVC` and `OrderedRegressor` work like any other estimator;
`reference.train_epoch` shows in NumPy what they do.
"""

import importlib
from typing import TYPE_CHECKING

from ordered_sgd.errors import require

# Resolved on first use: scikit-learn takes a second to import, and the kernels do not need it.
_DOOR = {
    "OrderedLogisticRegression": "classifiers",
    "OrderedLinearSVC": "classifiers",
    "OrderedRegressor": "regressor",
}

if TYPE_CHECKING:
    from ordered_sgd.linear.classifiers import OrderedLinearSVC as OrderedLinearSVC
    from ordered_sgd.linear.classifiers import OrderedLogisticRegression as OrderedLogisticRegression
    from ordered_sgd.linear.regressor import OrderedRegressor as OrderedRegressor

__all__ = ["OrderedLinearSVC", "OrderedLogisticRegression", "OrderedRegressor"]


def __getattr__(name: str) -> object:
    if name not in _DOOR:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    for module in ("sklearn", "numba"):
        require(module, extra="linear", where=name)
    value: object = getattr(importlib.import_module(f"{__name__}.{_DOOR[name]}"), name)
    globals()[name] = value  # the next use is an ordinary attribute
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
