import subprocess
import sys

import pytest

from ordered_sgd.errors import ArgumentError
from ordered_sgd.lab.data.protocol import RECIPES, Recipe, recipe


@pytest.mark.parametrize("name", ["semeion", "mnist", "kmnist", "fashion-mnist", "cifar10", "cifar100", "svhn"])
def test_without_augmentation_every_set_is_scaled_to_one_and_nothing_else(name: str) -> None:
    assert recipe(name) == recipe(name, "none") == Recipe()
    assert recipe(name, "standard").padding > 0


def test_only_cifar10_with_augmentation_is_scaled_by_mean_and_deviation() -> None:
    assert {name for (name, _), one in RECIPES.items() if one.scaling is not None} == {"cifar10"}
    mean, std = recipe("cifar10", "standard").scaling
    assert (mean, std) == ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))


def test_only_semeion_s_test_images_are_augmented() -> None:
    assert [key for key, one in RECIPES.items() if one.test_too] == [("semeion", "standard")]


@pytest.mark.parametrize(
    ("name", "padding", "flip", "degrees", "zoom"),
    [
        ("semeion", 1, False, 4, (1.05, 1.05)),
        ("mnist", 2, False, 15, (0.85, 1.15)),
        ("kmnist", 2, False, 0, (1, 1)),
        ("fashion-mnist", 2, True, 0, (1, 1)),
        ("cifar10", 4, True, 0, (1, 1)),
        ("cifar100", 4, True, 0, (1, 1)),
        ("svhn", 4, True, 0, (1, 1)),
    ],
)
def test_the_standard_augmentation_is_that_of_the_scripts(name, padding, flip, degrees, zoom) -> None:
    one = recipe(name, "standard")
    assert (one.padding, one.flip, one.degrees, one.zoom) == (padding, flip, degrees, zoom)
    assert (one.erasing, one.mixup) == (None, None)


def test_erasing_and_mixup_are_for_cifar10() -> None:
    assert recipe("cifar10", "random-erasing").erasing == (0.5, (0.02, 0.4), 0.3, (0.4914, 0.4822, 0.4465))
    assert recipe("cifar10", "mixup").mixup == 1
    with pytest.raises(
        ArgumentError, match=r"recipe: name must have the augmentation 'mixup'; got 'mnist'. It is known"
    ):
        recipe("mnist", "mixup")


def test_a_set_that_the_paper_does_not_use_has_no_augmentation() -> None:
    assert recipe("digits") == Recipe()
    with pytest.raises(ArgumentError, match=r"got 'digits'. It is known for semeion, .* pass augment= to BatchSource"):
        recipe("digits", "standard")


def test_a_misspelt_kind_is_named() -> None:
    with pytest.raises(
        ArgumentError, match=r"recipe: kind must be one of none, .*; got 'standart'. Did you mean 'standard'"
    ):
        recipe("mnist", "standart")  # type: ignore[arg-type]


def test_recipes_need_no_torch() -> None:
    code = "import sys, ordered_sgd.lab.data.protocol; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
