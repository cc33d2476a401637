import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ordered_sgd.errors import ArgumentError
from ordered_sgd.lab.models import LeNet


@pytest.mark.parametrize(
    ("size", "hidden", "parameters"),
    [(28, 1024, 1_163_978), (28, 1014, 1_153_628), (16, 1024, 180_938), (16, 1014, 180_188)],
)
def test_parameters_are_counted_exactly(size: int, hidden: int, parameters: int) -> None:
    assert sum(p.numel() for p in LeNet(size=size, hidden=hidden).parameters()) == parameters


def test_layers_come_in_the_order_of_the_text() -> None:
    model = LeNet().double()
    x = torch.randn(3, 1, 28, 28, dtype=torch.float64)
    conv1, conv2 = (m for m in model.features if isinstance(m, nn.Conv2d))
    fc1, fc2 = (m for m in model.classifier if isinstance(m, nn.Linear))
    maps = F.relu(F.max_pool2d(F.conv2d(x, conv1.weight, conv1.bias), 2))
    maps = F.relu(F.max_pool2d(F.conv2d(maps, conv2.weight, conv2.bias), 2))
    scores = F.relu(maps.reshape(3, -1) @ fc1.weight.T + fc1.bias) @ fc2.weight.T + fc2.bias
    torch.testing.assert_close(model(x), scores)


def test_dropout_is_off_by_default_and_falls_on_the_first_fully_connected_layer() -> None:
    x = torch.randn(8, 1, 28, 28)
    text, scripts = LeNet(), LeNet(hidden=1024, dropout=0.5)
    assert torch.equal(text(x), text(x))
    assert not torch.equal(scripts(x), scripts(x))
    hidden: list[torch.Tensor] = []
    scripts.classifier[-1].register_forward_pre_hook(lambda module, inputs: hidden.append(inputs[0]))
    scripts(x)
    assert hidden[0].shape == (8, 1024)
    scripts.eval()
    assert torch.equal(scripts(x), scripts(x))


def test_colour_images_and_other_numbers_of_classes_work() -> None:
    assert LeNet(7, channels=3, size=32)(torch.zeros(2, 3, 32, 32)).shape == (2, 7)


def test_an_image_that_is_too_small_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"LeNet: size must be at least 16; got 15\. Pad"):
        LeNet(size=15)
