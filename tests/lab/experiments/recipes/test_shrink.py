import inspect

import pytest

from ordered_sgd.errors import ArgumentError
from ordered_sgd.lab.experiments.recipes.shrink import WITH_WIDTH, shrink
from ordered_sgd.lab.experiments.spec import ExperimentSpec
from ordered_sgd.lab.models import MODELS

SPEC = ExperimentSpec(data="cifar10", model="preact-resnet18", epochs=200, drops=(10, 100))


def test_drops_move_in_proportion_but_not_into_the_first_epoch() -> None:
    assert shrink(SPEC, epochs=100)[0].drops == (5, 50)
    assert shrink(SPEC, epochs=4)[0].drops == (2, 2)
    assert shrink(SPEC.but(epochs=50, drops=(10, 50)), epochs=5)[0].drops == (2, 5)  # the last epoch stays the last


def test_everything_that_shrank_is_in_the_note() -> None:
    smaller, note = shrink(SPEC, epochs=5, train_size=2000, width=0.25)
    assert note == "5 of 200 epochs, 2,000 of 50,000 samples, width 0.25"
    assert (smaller.epochs, smaller.train_size, smaller.model_options) == (5, 2000, (("width", 0.25),))


def test_nothing_grows_and_then_nothing_is_said() -> None:
    assert shrink(SPEC) == (SPEC, "")
    assert shrink(SPEC, epochs=200, train_size=50_000, width=1.0) == (SPEC, "")
    assert shrink(SPEC, epochs=2000, train_size=10**6) == (SPEC, "")


def test_options_of_the_model_stay() -> None:
    smaller, _ = shrink(SPEC.but(model_options=(("norm", "group"),)), width=0.5)
    assert dict(smaller.model_options) == {"norm": "group", "width": 0.5}


def test_the_models_with_a_width_are_those_listed() -> None:
    found = tuple(name for name, (kind, _) in MODELS.items() if "width" in inspect.signature(kind).parameters)
    assert found == WITH_WIDTH


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"epochs": 0}, "shrink: epochs must be at least 1; got 0"),
        ({"train_size": 0}, "shrink: train_size must be at least 1; got 0"),
        ({"width": 1.5}, r"shrink: width must be a share in \(0, 1\]; got 1.5"),
    ],
)
def test_impossible_sizes_are_refused(change: dict[str, float], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        shrink(SPEC, **change)  # type: ignore[arg-type]


def test_a_model_without_a_width_is_refused() -> None:
    with pytest.raises(ArgumentError, match="must be one of preact-resnet18; got 'lenet'"):
        shrink(ExperimentSpec(data="mnist", model="lenet"), width=0.5)
