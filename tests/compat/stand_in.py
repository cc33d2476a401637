"""timm without torchvision: its data pipeline imports torchvision, its models do not need it."""

import importlib
import sys
from enum import Enum
from types import ModuleType
from typing import Any

from torch import nn

MODULES = (
    "torchvision",
    "torchvision.datasets",
    "torchvision.models",
    "torchvision.models.feature_extraction",
    "torchvision.ops",
    "torchvision.ops.misc",
    "torchvision.transforms",
    "torchvision.transforms.functional",
    "torchvision.utils",
)


InterpolationMode = Enum("InterpolationMode", ["NEAREST", "BILINEAR", "BICUBIC", "BOX", "HAMMING", "LANCZOS"])


class _StandIn(ModuleType):
    """A module in which every public name is a class that does nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == InterpolationMode.__name__:  # timm makes tables of its members
            return InterpolationMode
        value = sys.modules.get(f"{self.__name__}.{name}") or type(name, (nn.Module,), {})
        setattr(self, name, value)
        return value


def import_timm() -> Any:
    """timm, imported with a stand-in for torchvision where torchvision is missing or does not fit this torch."""
    if "timm" in sys.modules:
        return sys.modules["timm"]
    try:
        importlib.import_module("torchvision")
    except (ImportError, RuntimeError):
        return _import_without_torchvision()
    return importlib.import_module("timm")


def _import_without_torchvision() -> Any:
    for name in MODULES:
        stand = sys.modules[name] = _StandIn(name)
        stand.__path__ = []  # a package, so that what is below it can be imported
    try:
        return importlib.import_module("timm")
    finally:
        for name in MODULES:  # other packages must not take it for the real one
            del sys.modules[name]
