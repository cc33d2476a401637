"""Models by name: how many parameters they have, and which data sets they take."""

import re
from typing import Any

import pytest
import torch
from torch import nn

from ordered_sgd.errors import ArgumentError
from ordered_sgd.lab.data.catalog import CATALOG
from ordered_sgd.lab.models import MODELS, Figure1Network, LeNet, LinearModel, build

GREY, SMALL, COLOUR = (1, 28, 28), (1, 16, 16), (3, 32, 32)
# Data set -> shape of a sample, number of classes.
IMAGES: dict[str, tuple[tuple[int, ...], int]] = {
    "semeion": (SMALL, 10),
    "mnist": (GREY, 10),
    "kmnist": (GREY, 10),
    "fashion-mnist": (GREY, 10),
    "cifar10": (COLOUR, 10),
    "cifar100": (COLOUR, 100),
    "svhn": (COLOUR, 10),
    "digits": ((1, 8, 8), 10),
}
TOO_SMALL = ("lenet", "digits")  # nothing is left of 8x8 pixels after two convolutions and poolings
SCRIPTS = {"hidden": 1024, "dropout": 0.5}  # LeNet of the authors' scripts; the default is that of the paper's text

PARAMETERS: list[tuple[str, str, dict[str, Any], int]] = [
    ("logistic", "mnist", {}, 7_850),
    ("svm", "mnist", {}, 7_850),
    ("logistic", "semeion", {}, 2_570),
    ("svm", "semeion", {}, 2_570),
    ("lenet", "mnist", {}, 1_153_628),
    ("lenet", "mnist", SCRIPTS, 1_163_978),
    ("lenet", "semeion", {}, 180_188),
    ("lenet", "semeion", SCRIPTS, 180_938),
    ("preact-resnet18", "cifar10", {}, 11_171_146),
    ("preact-resnet18", "svhn", {"norm": "group"}, 11_171_146),
    ("preact-resnet18", "cifar100", {}, 11_217_316),
    ("wrn-28-10", "cifar10", {}, 36_479_194),
    ("wrn-28-10", "cifar100", {}, 36_536_884),
]


def build_on_paper(name: str, shape: tuple[int, ...], classes: int, **options: Any) -> nn.Module:
    """A model of full size whose weights take no memory: shapes only."""
    with torch.device("meta"):
        return build(name, shape, classes, **options)


@pytest.mark.parametrize(("name", "data", "options", "parameters"), PARAMETERS)
def test_parameters_are_counted_exactly(name: str, data: str, options: dict[str, Any], parameters: int) -> None:
    model = build_on_paper(name, *IMAGES[data], **options)
    assert sum(p.numel() for p in model.parameters()) == parameters


@pytest.mark.parametrize(("panel", "parameters"), [("a", 3), ("b", 3), ("c", 921), ("d", 261)])
def test_networks_of_figure_1_are_counted_too(panel: str, parameters: int) -> None:
    model = build(f"figure1{panel}", (2,), 2)
    assert isinstance(model, Figure1Network)
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert model(torch.zeros(5, 2)).shape == (5,)


def test_the_shapes_are_those_of_the_catalog() -> None:
    assert {name: (CATALOG[name].shape, len(CATALOG[name].classes)) for name in IMAGES} == IMAGES


@pytest.mark.parametrize(
    ("name", "data"),
    [(name, data) for name in MODELS for data in IMAGES if "figure1" not in name and (name, data) != TOO_SMALL],
)
def test_every_model_scores_the_classes_of_every_data_set(name: str, data: str) -> None:
    shape, classes = IMAGES[data]
    model = build_on_paper(name, shape, classes)
    assert model(torch.zeros(3, *shape, device="meta")).shape == (3, classes)


def test_images_that_are_too_small_for_lenet_are_refused() -> None:
    name, data = TOO_SMALL
    with pytest.raises(ArgumentError, match=r"^LeNet: size must be at least 16; got 8\."):
        build(name, *IMAGES[data])


def test_a_table_of_numbers_is_scored_by_the_linear_model() -> None:
    model = build("svm", (13,), 3)
    assert isinstance(model, LinearModel)
    assert model(torch.zeros(4, 13)).shape == (4, 3)


def test_options_reach_the_model() -> None:
    model = build("lenet", SMALL, 10, **SCRIPTS)
    assert isinstance(model, LeNet)
    assert [m.p for m in model.modules() if isinstance(m, nn.Dropout)] == [0.5]
    for name in ("preact-resnet18", "wrn-28-10"):
        grouped = build_on_paper(name, COLOUR, 10, norm="group")
        assert not any(isinstance(m, nn.BatchNorm2d) for m in grouped.modules())


WRONG: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
    (("lenet5", GREY, 10), {}, "got 'lenet5'. Did you mean 'lenet'?"),
    (("transformer", GREY, 10), {}, "got 'transformer'. Pick the model by its name in the paper."),
    (
        ("lenet", (784,), 10),
        {},
        "shape for lenet must be (channels, height, width); got (784,). Use logistic, svm or mlp",
    ),
    (("wrn-28-10", (32, 32), 10), {}, "shape for wrn-28-10 must be (channels, height, width); got (32, 32)."),
    (("lenet", (1, 28, 20), 10), {}, "shape for lenet must have equal height and width; got (1, 28, 20). Crop"),
    (
        ("figure1a", (3,), 2),
        {},
        "data for figure1a must be points in the plane, of two classes; got samples of shape",
    ),
    (("figure1c", (2,), 4), {}, "got samples of shape (2,) in 4 classes. Use logistic"),
    (("lenet", GREY, 10), {"norm": "group"}, "norm must be an option of model 'lenet'; got 'group'. It takes hidden,"),
    (("svm", GREY, 10), {"features": 3}, "features must be an option of model 'svm'; got 3. It takes no options."),
]


@pytest.mark.parametrize(("arguments", "options", "text"), WRONG)
def test_what_does_not_fit_is_refused(arguments: tuple[Any, ...], options: dict[str, Any], text: str) -> None:
    with pytest.raises(ArgumentError, match=rf"^build: .*{re.escape(text)}"):
        build(*arguments, **options)
