"""What every test shares."""

import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings

settings.register_profile("default", deadline=None)  # a busy machine is no failure
settings.load_profile("default")


@pytest.fixture(autouse=True)
def _one_thread_and_a_seed() -> None:
    """Two pytest workers on two cores: more threads only fight."""
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture
def real_root() -> Path:
    """The folder of real data files; a test that needs one which is not there skips."""
    given = os.environ.get("ORDERED_SGD_DATA")
    if not given:
        pytest.skip("ORDERED_SGD_DATA is not set: no real data files")
    return Path(given).absolute()
