import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ordered_sgd.errors import ArgumentError
from ordered_sgd.lab.models import PreActResNet18


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(("classes", "parameters"), [(10, 11_171_146), (100, 11_217_316)])
@pytest.mark.parametrize("norm", ["batch", "group"])
def test_parameters_are_counted_exactly(classes: int, parameters: int, norm: str) -> None:
    assert count(PreActResNet18(classes, norm=norm)) == parameters


def test_a_block_activates_first_and_the_bare_shortcut_takes_the_activated_input() -> None:
    model = PreActResNet18(width=0.125).double()
    block = model.stages[1][0]
    x = torch.randn(4, 8, 16, 16, dtype=torch.float64)
    activated = F.relu(F.batch_norm(x, None, None, block.norm1.weight, block.norm1.bias, training=True))
    inner = F.conv2d(activated, block.conv1.weight, stride=2, padding=1)
    inner = F.relu(F.batch_norm(inner, None, None, block.norm2.weight, block.norm2.bias, training=True))
    expected = F.conv2d(inner, block.conv2.weight, padding=1) + F.conv2d(activated, block.shortcut.weight, stride=2)
    torch.testing.assert_close(block(x), expected)


def test_only_blocks_that_change_the_shape_have_a_shortcut_and_nothing_is_normalised_at_the_end() -> None:
    model = PreActResNet18()
    blocks = [block for stage in model.stages for block in stage]
    assert [block.shortcut is not None for block in blocks] == [False, False, True, False, True, False, True, False]
    assert len([m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]) == 2 * len(blocks)
    assert sum(isinstance(m, nn.Conv2d | nn.Linear) for m in model.modules()) == 18 + 3  # the shortcuts do not count


def test_with_group_norm_samples_do_not_influence_each_other() -> None:
    x = torch.randn(4, 3, 32, 32)
    apart = PreActResNet18(norm="group", width=0.125)
    torch.testing.assert_close(apart(x)[:2], apart(x[:2]))
    coupled = PreActResNet18(norm="batch", width=0.125)
    assert not torch.allclose(coupled(x)[:2], coupled(x[:2]))


def test_width_scales_every_stage() -> None:
    model = PreActResNet18(width=0.5, channels=1)
    assert model.classifier.in_features == 256
    assert model(torch.zeros(2, 1, 24, 24)).shape == (2, 10)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"PreActResNet18: norm must be one of batch, group; got 'layer'"):
        PreActResNet18(norm="layer")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"PreActResNet18: width must leave at least one channel; got 0\. Use"):
        PreActResNet18(width=0)
