"""A user's own data set and model, from a function of theirs named ``package.module:function``."""

import hashlib
import importlib
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ordered_sgd.errors import ArgumentError, OrderedSGDError, first_line, message
from ordered_sgd.lab.data.custom import held_out
from ordered_sgd.lab.data.dataset import Dataset

_TRACEBACK = "Correct it; the traceback is shown by: osgd --debug compare ..."
_LONGEST = 300  # characters of what an error of the user's says: one line, not a page


class Problem(NamedTuple):
    """Training set, test set, and the model where it is the user's own."""

    train: Dataset
    test: Dataset
    model: nn.Module | None = None

    @property
    def fingerprint(self) -> str:
        """Twelve hexadecimal digits that change with either set."""
        return hashlib.sha256((self.train.fingerprint + self.test.fingerprint).encode()).hexdigest()[:12]


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
    function = imported_function(name)
    try:
        returned = function()
    except OrderedSGDError:
        raise  # from_arrays, say, tells better what is wrong
    except Exception as error:
        raise ArgumentError(message("own_problem", name, "run without an error", told(error), _TRACEBACK)) from error
    rule, remedy = "return (data, model)", "data: a Dataset or a pair (train, test); model: a torch module."
    if not (isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], nn.Module)):
        raise ArgumentError(message("own_problem", name, rule, type(returned).__name__, remedy))
    data, model = returned
    if isinstance(data, Dataset):
        data = _parts(name, data, seed)
    if not (isinstance(data, tuple) and len(data) == 2 and all(isinstance(part, Dataset) for part in data)):
        raise ArgumentError(message("own_problem", name, rule, f"({type(data).__name__}, model)", remedy))
    problem = Problem(*data, model)
    _check_alike(name, problem.train, problem.test)
    return problem


def _parts(name: str, data: Dataset, seed: int) -> tuple[Dataset, Dataset]:
    tested = held_out(data.y, stratify=bool(data.classes), seed=seed)
    if not tested.any() or tested.all():
        rule, remedy = "return samples for a training and a test part", "Return more of them, or a pair (train, test)."
        got = f"{len(tested)} of {len(data.classes) or 'no'} classes"
        raise ArgumentError(message("own_problem", name, rule, got, remedy))
    return data.take((~tested).nonzero()[0]), replace(data.take(tested.nonzero()[0]), split="test")


def _check_alike(name: str, train: Dataset, test: Dataset) -> None:
    """Refuse a pair in which a label, or a column, is not the same in both."""
    if train.classes != test.classes:
        rule = "return two sets whose classes are numbered alike"
        got = f"{_some(train.classes)} to train on and {_some(test.classes)} to test on"
        remedy = "Pass class numbers and classes= to from_arrays, the same for both."
        raise ArgumentError(message("own_problem", name, rule, got, remedy))
    if train.x.shape[1:] != test.x.shape[1:]:
        got, remedy = f"shapes {train.x.shape[1:]} and {test.x.shape[1:]}", "Prepare both in the same way."
        raise ArgumentError(message("own_problem", name, "return two sets of samples alike", got, remedy))


def _some(classes: tuple[str, ...]) -> str:
    return f"{len(classes)} classes ({', '.join(classes[:3])}{', ...' if len(classes) > 3 else ''})"


def check_model(name: str, model: nn.Module, x: Tensor, classes: int) -> None:
    """Refuse a model that does not give each sample of a batch x a score for every class."""
    rule, was_training = "return a model that fits its data", model.training
    try:
        with torch.no_grad():
            scores = model.eval()(x)
    except Exception as error:
        got = f"{told(error)}, for an input of shape {tuple(x.shape)}"
        raise ArgumentError(message("own_problem", name, rule, got, _TRACEBACK)) from error
    finally:
        model.train(was_training)
    shape = tuple(scores.shape) if isinstance(scores, Tensor) else ()
    if classes == 1 and shape == (len(x),):
        return  # a regression
    if len(shape) != 2 or shape[0] != len(x) or shape[1] < classes:
        got = f"shape {shape}" if isinstance(scores, Tensor) else f"type {type(scores).__name__}"
        remedy = f"Let it return a tensor of shape {(len(x), classes)} for {len(x)} samples: a score for each class."
        raise ArgumentError(message("own_problem", name, rule, f"an output of {got}", remedy))


def told(error: Exception) -> str:
    """Type and text of an error in one line."""
    name, text = type(error).__name__, first_line(error, _LONGEST)
    return name if text == name else f"{name}: {text}"


def imported_function(name: str, option: str = "--data") -> Callable[[], Any]:
    """The function that ``package.module:function`` names, found from the present folder too."""
    module, _, function = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` does: the user's file lies where they work
    try:
        found: Callable[[], Any] = getattr(importlib.import_module(module), function)
    except (ModuleNotFoundError, AttributeError) as error:
        remedy = "Run it from the folder that holds the module, or install it."
        raise ArgumentError(
            message("own_problem", option, "name a function that can be imported", error, remedy)
        ) from error
    except Exception as error:
        rule = "name a module that can be imported"
        raise ArgumentError(message("own_problem", option, rule, told(error), _TRACEBACK)) from error
    return found
