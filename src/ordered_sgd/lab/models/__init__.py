"""The paper's networks, one per file, to be read along with the paper; `build` makes one by name."""

import inspect
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from ordered_sgd.errors import ArgumentError, check_choice, message
from ordered_sgd.lab.models.lenet import LeNet
from ordered_sgd.lab.models.linear import LinearModel
from ordered_sgd.lab.models.mlp import MLP
from ordered_sgd.lab.models.plane import Figure1Network, Panel
from ordered_sgd.lab.models.preact_resnet import PreActResNet18
from ordered_sgd.lab.models.wide_resnet import WideResNet

__all__ = [
    "MLP",
    "MODELS",
    "Figure1Network",
    "LeNet",
    "LinearModel",
    "PreActResNet18",
    "WideResNet",
    "build",
    "channels_last",
]

Shape = tuple[int, ...]  # of one sample
Arguments = dict[str, Any]


def build(name: str, shape: Shape, classes: int, **options: Any) -> nn.Module:
    """A new model of that name for a data set, its weights drawn from torch's global generator.

    Parameters
    ----------
    name : str
        A key of `MODELS`. ``"logistic"``, ``"svm"`` and ``"linear"`` (of a regression) are the
        same model with different losses.
    shape : tuple of int
        Shape of one sample: (channels, height, width), or (features,).
    classes : int
        Number of classes; 1 for a regression.
    **options
        Options of the model: ``hidden=1024, dropout=0.5`` for the LeNet of the authors' scripts, ``norm="group"``, ...

    Examples
    --------
    >>> build("lenet", (1, 16, 16), 10, hidden=1024, dropout=0.5).classifier[1]
    Linear(in_features=64, out_features=1024, bias=True)
    """
    check_choice("build", "name", name, tuple(MODELS), "Pick the model by its name in the paper.")
    kind, arguments_for = MODELS[name]
    arguments = arguments_for(name, shape, classes)
    known = [option for option in inspect.signature(kind).parameters if option not in arguments]
    for option in options:
        if option not in known:
            remedy = f"It takes {', '.join(known)}." if known else "It takes no options."
            got = repr(options[option])
            raise ArgumentError(message("build", option, f"be an option of model {name!r}", got, remedy))
    return kind(**arguments, **options)


def channels_last(model: nn.Module) -> nn.Module:
    """The model, with its convolutions' weights laid out for channels-last images.

    Otherwise every convolution copies its weights and their gradient in every step, a noticeable cost on a CPU when few
    samples are kept. The results are the same.

    >>> channels_last(LeNet()).features[3].weight.stride()
    (1600, 1, 320, 64)
    """
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def _of_vectors(name: str, shape: Shape, classes: int) -> Arguments:
    return {"features": math.prod(shape), "classes": classes}


def _of_images(name: str, shape: Shape, classes: int) -> Arguments:
    if len(shape) != 3:
        remedy = "Use logistic, svm or mlp for tables."
        raise ArgumentError(message("build", f"shape for {name}", "be (channels, height, width)", shape, remedy))
    return {"channels": shape[0], "classes": classes}


def _of_square_images(name: str, shape: Shape, classes: int) -> Arguments:
    arguments = _of_images(name, shape, classes)
    if shape[1] != shape[2]:
        remedy = "Crop or pad the images."
        raise ArgumentError(message("build", f"shape for {name}", "have equal height and width", shape, remedy))
    return {**arguments, "size": shape[1]}


def _of_points(panel: Panel, name: str, shape: Shape, classes: int) -> Arguments:
    if tuple(shape) != (2,) or classes != 2:
        got = f"samples of shape {shape} in {classes} classes"
        remedy = "Use logistic for other tables."
        raise ArgumentError(message("build", f"data for {name}", "be points in the plane, of two classes", got, remedy))
    return {"panel": panel}


# Name -> class, and the arguments that the data decide.
MODELS: dict[str, tuple[type[nn.Module], Callable[[str, Shape, int], Arguments]]] = {
    "logistic": (LinearModel, _of_vectors),
    "svm": (LinearModel, _of_vectors),
    "linear": (LinearModel, _of_vectors),
    "mlp": (MLP, _of_vectors),
    "lenet": (LeNet, _of_square_images),
    "preact-resnet18": (PreActResNet18, _of_images),
    "wrn-28-10": (WideResNet, _of_images),
    "figure1a": (Figure1Network, partial(_of_points, "a")),
    "figure1b": (Figure1Network, partial(_of_points, "b")),
    "figure1c": (Figure1Network, partial(_of_points, "c")),
    "figure1d": (Figure1Network, partial(_of_points, "d")),
}
