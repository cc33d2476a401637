"""Functions compiled by numba. Needs numba: imported only by what does."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])

# x * y + z may round once instead of twice, which is faster and spoils no error term.
CONTRACT = frozenset({"contract"})


def compiled(function: Function, flags: frozenset[str] = CONTRACT) -> Function:
    """The function compiled on its first call, cached on disk where a directory can be written.

    `flags` are LLVM's: what of the order and rounding of operations it may change. Compiled functions that are given
    arrays have no place in an innermost loop: each call counts references.
    """
    jit = functools.partial(numba.njit, error_model="numpy", fastmath=set(flags), nogil=True)
    try:
        return cast(Function, jit(cache=True)(function))
    except RuntimeError:  # a read-only install without a writable home: numba finds no place for its cache
        return cast(Function, jit()(function))
