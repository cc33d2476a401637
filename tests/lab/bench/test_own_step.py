"""The time of an ordered step beside a plain one: what is measured, and how it is told. No time is asserted."""

import pytest

from ordered_sgd.lab.bench.own_step import StepShare, lenet_step, own_step
from ordered_sgd.lab.experiments.spec import ExperimentSpec


def test_the_step_of_an_experiment_has_the_gradient_of_the_one_line() -> None:
    found = own_step(ExperimentSpec(data="semeion", model="lenet"), 8, "LeNet on Semeion", rounds=2)
    assert (found.s, found.q, found.ran, found.same) == (64, 8, "rows", True)
    assert found.share > 0
    assert found.compile_seconds > 0
    assert found.told().startswith("A step of LeNet on Semeion at q = s/8 takes ")
    assert ", with the same gradient." in found.told()


def test_a_step_that_is_too_small_to_skip_anything_says_so() -> None:
    found = own_step(ExperimentSpec(), 8, "the linear model on digits", rounds=2)
    assert found.ran == "dense"
    assert "it back-propagates through whole batches, because a step of" in found.told()


@pytest.mark.parametrize("spec", [ExperimentSpec(engine="kernels"), ExperimentSpec(engine="memory", recall=0.8)])
def test_engines_without_an_exact_step_in_torch_are_measured_by_auto(spec: ExperimentSpec) -> None:
    assert own_step(spec, 16, "it", rounds=2).ran == "dense"


def test_a_batch_larger_than_the_training_set_is_all_of_it() -> None:
    assert own_step(ExperimentSpec(train_size=40), 10, "it", rounds=2).s == 40


def test_lenet_on_larger_images_is_measured_by_itself() -> None:
    assert lenet_step(rounds=2).told().startswith("A step of LeNet on 28x28 images at q = s/8 takes ")


def test_an_approximate_gradient_is_not_called_the_same() -> None:
    told = StepShare("it", 64, 10, 0.5, same=False, ran="rows", why="", compile_seconds=0.0).told()
    assert told == "A step of it at q = 10 of 64 takes 0.50 of SGD's time."
