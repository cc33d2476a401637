"""What every test shares."""

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
