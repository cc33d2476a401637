"""What every test shares."""

import gc
import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("default", deadline=None)  # a busy machine is no failure
settings.load_profile("default")

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = ("--no-sandbox", "--disable-background-networking", "--disable-component-update", "--no-first-run")


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Files as parameters are named by a number: those that hold the time would differ between two workers."""
    return argname if isinstance(val, bytes) else None


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Modules that tests share hold no doctests, and importing some takes seconds."""
    shared = collection_path.suffix == ".py" and not collection_path.name.startswith("test_")
    return True if shared else None


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # modules and thousands of tests stay: every full collection would walk over them


@pytest.fixture(autouse=True)
def _one_thread_and_a_seed() -> None:
    """Two pytest workers on two cores: more threads only fight."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture
def real_root() -> Path:
    """The folder of real data files; a test that needs one which is not there skips."""
    given = os.environ.get("ORDERED_SGD_DATA")
    if not given:
        pytest.skip("ORDERED_SGD_DATA is not set: no real data files")
    return Path(given).absolute()


_last_group: deque[Any] = deque(maxlen=1)


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[Any]:
    """A process group of this process alone.

    It is kept until the next one: a model in DistributedDataParallel that is the last to hold its group waits for a
    thread of gloo while it has the interpreter's lock, and this thread needs the lock to drop its last message.
    """
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    _last_group.append(dist.group.WORLD)
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Debian's chromium, without a network of its own; a test that needs it skips where it is missing."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not CHROMIUM.exists():
        pytest.skip(f"no {CHROMIUM}")
    with playwright.sync_playwright() as started:
        one = started.chromium.launch(executable_path=str(CHROMIUM), args=ARGUMENTS)
        yield one
        one.close()
