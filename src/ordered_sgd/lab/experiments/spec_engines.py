"""What the name of an engine in a spec stands for: how it runs, its options, and its name in tables."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class SpecEngine:
    """An engine that a spec can name.

    Parameters
    ----------
    other
        The engine for methods that do not order samples; empty means the same engine.
    options
        The fields of a spec that the engine takes, each with its short name in tables.
    named
        Whether the name of an ordered run includes the engine: its results differ from those of the exact engines.
    compiled
        Whether epochs run in the compiled kernels of `ordered_sgd.linear` instead of torch.
    """

    other: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    named: bool = False
    compiled: bool = False


_BATCHNORM = {"batchnorm": "batchnorm"}
ENGINES = {
    "auto": SpecEngine(),
    "dense": SpecEngine(),
    "rows": SpecEngine(options=_BATCHNORM),
    "twopass": SpecEngine(options=_BATCHNORM),
    "memory": SpecEngine(other="auto", options={"candidates": "c", "recall": "recall"} | _BATCHNORM, named=True),
    "kernels": SpecEngine(compiled=True),
}
OPTIONS = tuple(dict.fromkeys(name for engine in ENGINES.values() for name in engine.options))
