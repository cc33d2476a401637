"""Engines: ways to compute the gradient of the kept losses, as values for ``OrderedStep(engine=...)``.

A new engine is a file with its value, and a line in the table below.
"""

from ordered_sgd.engines.auto import Auto
from ordered_sgd.engines.dense import Dense
from ordered_sgd.engines.memory import Memory
from ordered_sgd.engines.phases import Strategy
from ordered_sgd.engines.rows import Rows
from ordered_sgd.engines.twopass import TwoPass
from ordered_sgd.errors import ArgumentError, check_choice, message

__all__ = ["ENGINES", "Auto", "Dense", "Memory", "Rows", "Strategy", "TwoPass", "as_strategy"]

ENGINES: dict[str, Strategy] = {
    "auto": Auto(),
    "dense": Dense(),
    "rows": Rows(),
    "twopass": TwoPass(),
    "memory": Memory(),
}


def as_strategy(engine: str | Strategy, where: str) -> Strategy:
    """The strategy itself, or the one that a short name stands for.

    >>> as_strategy("rows", "doctest")
    Rows(batchnorm=None, verify_every=0)
    """
    if isinstance(engine, str):
        check_choice(where, "engine", engine, tuple(ENGINES))
        return ENGINES[engine]
    if isinstance(engine, type) or not hasattr(engine, "build"):
        rule, remedy = "be a name or an engine's value", 'Use engine="rows", or engine=Rows(verify_every=50).'
        raise ArgumentError(message(where, "engine", rule, repr(engine), remedy))
    return engine
