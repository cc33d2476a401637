"""Exceptions, the one message shape, and `require` for extras.

Every message reads ``<where>: <name> must <rule>; got <value>. <remedy>``: one sentence for the fault, one for the
remedy.
"""

import difflib
import importlib
import sys
import warnings
from collections.abc import Mapping, Sequence
from types import ModuleType

from ordered_sgd.installed import how_to_install


class OrderedSGDError(Exception):
    """Base of every error that this package raises on purpose."""


class ArgumentError(OrderedSGDError, ValueError, TypeError):
    """An argument has a wrong value or type; caught by ``except ValueError`` and ``except TypeError`` alike."""


class NonFiniteLossError(OrderedSGDError, ArithmeticError):
    """A loss is NaN or infinite."""


class DataError(OrderedSGDError, ValueError):
    """A data file is missing, damaged or not what it claims to be; the message names the file and the reason."""


class RecordError(OrderedSGDError):
    """A record or a checkpoint cannot be read or written; what was recorded before is still there."""


class TrapWarning(UserWarning):
    """Something is allowed, and known to go wrong; silence it with ``warnings.simplefilter("ignore", TrapWarning)``."""


class MissingExtraError(OrderedSGDError, ImportError):
    """A package of an extra is not installed."""


def message(where: str, name: str, rule: str, got: object, remedy: str) -> str:
    """The message every error and warning of the package has.

    >>> message("ordered_mean", "q", "be at least 1", 0, "Use q=1 for the largest loss alone.")
    'ordered_mean: q must be at least 1; got 0. Use q=1 for the largest loss alone.'
    """
    return f"{where}: {name} must {rule}; got {got}. {remedy}"


def first_line(error: BaseException, longest: int = 160) -> str:
    """The first line of an error's text for use in a sentence, or the error's type if it has no text.

    >>> first_line(ValueError("No such file:\\nmore about it.")), first_line(KeyboardInterrupt())
    ('No such file', 'KeyboardInterrupt')
    """
    lines = str(error).strip().splitlines()
    return lines[0][:longest].rstrip(".:") if lines else type(error).__name__


def warn(text: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line of the user's that led here: the innermost one outside this package, torch and trainers."""
    frame, level = sys._getframe(1), 2
    ours = ("ordered_sgd", "torch", "lightning", "transformers", "accelerate", "skorch", "sklearn", "click", "None")
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in ours:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)


def warn_trap(where: str, name: str, rule: str, got: object, remedy: str) -> None:
    """Warn of something that is allowed and known to go wrong; the message says how to silence it."""
    silence = 'Silence: warnings.simplefilter("ignore", ordered_sgd.errors.TrapWarning).'
    warn(f"{message(where, name, rule, got, remedy)} {silence}", TrapWarning)


def require(module: str, *, extra: str, where: str) -> ModuleType:
    """The imported module, or an error that names the ``pip install`` which brings it.

    >>> require("math", extra="linear", where="doctest").floor(1.5)
    1
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        top = module.partition(".")[0]
        if error.name is None or error.name.partition(".")[0] != top:
            raise  # the module is there, but something that it imports is not: that is another fault
        raise MissingExtraError(
            message(where, top, "be installed", f"no module {top!r}", how_to_install(extra))
        ) from error


def check_state(where: str, name: str, state: object, keys: Sequence[str], remedy: str) -> None:
    """Raise unless a saved state is a dict that holds all of the keys.

    >>> check_state("doctest", "the state", {"steps": 3, "other": 0}, ("steps",), "Pass another.")
    """
    if isinstance(state, Mapping) and all(key in state for key in keys):
        return
    got = type(state).__name__
    if isinstance(state, Mapping):
        some = [str(key) for key in state][:4]
        got = f"a dict with {', '.join(some)}{', ...' if len(state) > len(some) else ''}" if some else "an empty dict"
    raise ArgumentError(message(where, name, f"hold {', '.join(keys)}", got, remedy))


def check_choice(where: str, name: str, value: object, choices: Sequence[object], remedy: str | None = None) -> None:
    """Raise unless the value is one of the choices; a near miss is named, else the remedy is given.

    >>> check_choice("doctest", "engine", "dense", ("dense",))
    """
    if value in choices:
        return
    names = [str(choice) for choice in choices]
    near = difflib.get_close_matches(str(value), names, n=1)
    if near:
        remedy = f"Did you mean {near[0]!r}?"
    remedy = remedy or f"Use {name}={choices[0]!r} when in doubt."
    raise ArgumentError(message(where, name, f"be one of {', '.join(names)}", repr(value), remedy))
