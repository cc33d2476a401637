"""Partners are imported by the worker that runs their tests, not by all that collect them."""

import importlib
import os
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def _environment_as_before() -> Iterator[None]:
    """Lightning's DDP leaves its ranks in the environment, and Accelerate would start a process group from there."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


@pytest.fixture
def parts(request: pytest.FixtureRequest) -> Any:
    """What the tests of a file's `PARTNER` share."""
    return importlib.import_module(f"tests.integrations.{request.module.PARTNER}_parts")


@pytest.fixture
def leaf(request: pytest.FixtureRequest) -> Any:
    """The leaf of a file's `PARTNER`."""
    return importlib.import_module(f"ordered_sgd.integrations.{request.module.PARTNER}")
