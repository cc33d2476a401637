"""What tests of the playground share."""

import threading
from collections.abc import Iterator

import pytest

from ordered_sgd.lab.playground.server import Playground


@pytest.fixture(scope="module")
def server() -> Iterator[Playground]:
    """A playground on a free port."""
    with Playground(0) as one:
        threading.Thread(target=one.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        yield one
        one.shutdown()
