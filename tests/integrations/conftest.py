"""Partners are imported by the worker that runs their tests, not by all that collect them."""

import importlib
from typing import Any

import pytest


@pytest.fixture
def parts(request: pytest.FixtureRequest) -> Any:
    """What the tests of a file's `PARTNER` share."""
    return importlib.import_module(f"tests.integrations.{request.module.PARTNER}_parts")


@pytest.fixture
def leaf(request: pytest.FixtureRequest) -> Any:
    """The leaf of a file's `PARTNER`."""
    return importlib.import_module(f"ordered_sgd.integrations.{request.module.PARTNER}")
