import pytest

from ordered_sgd.errors import ArgumentError
from ordered_sgd.lab.experiments.recipes.shrink import train_samples
from ordered_sgd.lab.experiments.recipes.work import forward_flops, judged_samples, work
from ordered_sgd.lab.experiments.spec import ExperimentSpec

MNIST = ExperimentSpec(data="mnist", model="lenet")


def test_operations_of_a_linear_model_are_two_for_each_weight() -> None:
    assert forward_flops("logistic", (), (1, 28, 28), 10) == 2 * 784 * 10


def test_operations_of_lenet_are_those_of_its_layers() -> None:
    convolutions = 2 * 25 * 64 * (24 * 24 + 64 * 8 * 8)
    assert forward_flops("lenet", (("hidden", 100),), (1, 28, 28), 10) == convolutions + 2 * (1024 * 100 + 100 * 10)


def test_samples_are_cut_as_the_run_cuts_them() -> None:
    spec = MNIST.but(train_size=1000, validation=0.2)
    assert (train_samples(spec), judged_samples(spec)) == (800, 200)
    assert (train_samples(MNIST), judged_samples(MNIST)) == (60_000, 10_000)


def test_less_is_less_work() -> None:
    full = work(MNIST)
    assert work(MNIST.but(epochs=25)) == full / 2
    path = ((64, 0.01),) * 25 + ((4, 0.01),) * 25
    for smaller in (
        MNIST.but(train_size=6000),
        MNIST.but(q=16),
        MNIST.but(method="random", path=path),
        MNIST.but(s=128),  # fewer batches
    ):
        assert work(smaller) < full
    assert work(MNIST.but(accuracy="pass")) > full
    assert work(MNIST.but(method="sgd")) == full  # the rule may keep all samples


def test_data_of_unknown_size_are_refused() -> None:
    with pytest.raises(ArgumentError, match="available_samples: data must be one of"):
        work(MNIST.but(data="mine.npz"))
