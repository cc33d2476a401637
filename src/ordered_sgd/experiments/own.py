"""A user's own data set and model, from a function of theirs named ``package.module:function``."""

import importlib
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from torch import nn

from ordered_sgd.data.dataset import Dataset
from ordered_sgd.data.tables import held_out
from ordered_sgd.errors import ArgumentError, message


class Problem(NamedTuple):
    """Training set, test set, and the model where it is the user's own."""

    train: Dataset
    test: Dataset
    model: nn.Module | None = None


def is_function(name: str) -> bool:
    """Whether a name of data is ``package.module:function``.

    >>> is_function("my.project:make"), is_function("digits")
    (True, False)
    """
    module, colon, function = name.partition(":")
    return bool(colon) and function.isidentifier() and all(part.isidentifier() for part in module.split("."))


def own_problem(name: str, *, seed: int) -> Problem:
    """What the function returns: a data set, or a pair of training and test set, and a new model.

    It is called once for every run, after torch's generator was seeded, so that each seed starts from weights of its
    own. Of a single data set a fifth is held out for the test, by the seed.
    """
    returned = _function(name)()
    rule, remedy = "return (data, model)", "data: a Dataset or a pair (train, test); model: a torch module."
    if not (isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], nn.Module)):
        raise ArgumentError(message("own_problem", name, rule, type(returned).__name__, remedy))
    data, model = returned
    if isinstance(data, Dataset):
        tested = held_out(data.y, stratify=bool(data.classes), seed=seed)
        data = data.take((~tested).nonzero()[0]), replace(data.take(tested.nonzero()[0]), split="test")
    if not (isinstance(data, tuple) and len(data) == 2 and all(isinstance(part, Dataset) for part in data)):
        raise ArgumentError(message("own_problem", name, rule, f"({type(data).__name__}, model)", remedy))
    return Problem(*data, model)


def _function(name: str) -> Callable[[], Any]:
    module, _, function = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` does: the user's file lies where they work
    try:
        found: Callable[[], Any] = getattr(importlib.import_module(module), function)
    except (ModuleNotFoundError, AttributeError) as error:
        remedy = "Run it from the folder that holds the module, or install it."
        raise ArgumentError(
            message("own_problem", "--data", "name a function that can be imported", error, remedy)
        ) from error
    return found
