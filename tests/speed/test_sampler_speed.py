"""What the batch sampler costs beside a step of LeNet, and what an epoch takes where loading is what takes the time."""

import pytest

from ordered_sgd.lab.bench.sampler_cost import measure_cost, measure_epochs
from ordered_sgd.lab.data import load

pytestmark = pytest.mark.bench


def test_drawing_and_remembering_cost_less_than_a_hundredth_of_a_lenet_step() -> None:
    for cost in measure_cost():
        print(f"recall={cost.recall}: {1e6 * cost.seconds:.0f} us, {cost.seconds / cost.step:.2%} of a step")
        assert cost.seconds <= 0.01 * cost.step


def test_an_epoch_over_png_files_at_a_quarter_takes_less_than_half_the_time() -> None:
    _, epoch = measure_epochs(load("fashion-mnist"), side=192)
    print(f"{epoch.ratio:.2f} of the plain epoch, {epoch.loaded:.1%} loaded")
    assert epoch.ratio <= 0.45
