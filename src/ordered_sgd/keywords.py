"""Unknown keywords: one error that names the parameter that is probably meant."""

import difflib
import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from ordered_sgd.errors import ArgumentError, message

P = ParamSpec("P")
T = TypeVar("T")

# What parameters are called elsewhere.
_ELSEWHERE = {
    "grad_clip": "max_grad_norm",
    "clip_grad_norm": "max_grad_norm",
    "gradient_clip_val": "max_grad_norm",
    "max_norm": "max_grad_norm",
    "k": "q",
    "top_k": "q",
    "rule": "q",
    "loss": "criterion",
    "loss_fn": "criterion",
    "grad_scaler": "scaler",
    "process_group": "group",
    "seed": "generator",
    "verify_every": "engine",
    "batchnorm": "engine",
}


def names_unknown(init: Callable[P, T]) -> Callable[P, T]:
    """The same `__init__`, which says of an unknown keyword what is probably meant.

    >>> class Loop:
    ...     @names_unknown
    ...     def __init__(self, *, max_grad_norm=None): ...
    >>> Loop(grad_clip=1.0)
    Traceback (most recent call last):
    ordered_sgd.errors.ArgumentError: Loop: a keyword must be one of its parameters; got 'grad_clip'. Did you mean
    max_grad_norm=?
    """
    known = [*inspect.signature(init).parameters][1:]

    @functools.wraps(init)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        for name in kwargs:
            if name not in known:
                raise _unknown(name, known, init.__qualname__.partition(".")[0])
        return init(*args, **kwargs)

    return checked


def _unknown(name: str, known: list[str], where: str) -> ArgumentError:
    near = [_ELSEWHERE.get(name, ""), *difflib.get_close_matches(name, known, n=1)]
    meant = next((candidate for candidate in near if candidate in known), None)
    public = [one for one in known if not one.startswith("_")]
    remedy = f"They are {', '.join(public)}." if meant is None else f"Did you mean {meant}=?"
    return ArgumentError(message(where, "a keyword", "be one of its parameters", repr(name), remedy))
