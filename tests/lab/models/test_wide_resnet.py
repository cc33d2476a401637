import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ordered_sgd.errors import ArgumentError
from ordered_sgd.lab.models import WideResNet

# Depth, widening and millions of parameters, as the paper on wide residual networks states them (Zagoruyko &
# Komodakis, 2016), to a tenth.
PUBLISHED = [
    (40, 1, 0.6), (40, 2, 2.2), (40, 4, 8.9), (40, 8, 35.7), (28, 10, 36.5), (28, 12, 52.5),
    (22, 8, 17.2), (22, 10, 26.8), (16, 8, 11.0), (16, 10, 17.1),
]  # fmt: skip


def on_paper(classes: int = 10, **options: object) -> WideResNet:
    """A network of full size whose weights take no memory: shapes only."""
    with torch.device("meta"):
        return WideResNet(classes, **options)


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(("classes", "parameters"), [(10, 36_479_194), (100, 36_536_884)])
@pytest.mark.parametrize("norm", ["batch", "group"])
def test_parameters_are_counted_exactly(classes: int, parameters: int, norm: str) -> None:
    assert count(on_paper(classes, norm=norm)) == parameters


@pytest.mark.parametrize(("depth", "widen", "millions"), PUBLISHED)
def test_other_depths_and_widths_have_the_published_number_of_parameters(
    depth: int, widen: int, millions: float
) -> None:
    assert count(on_paper(depth=depth, widen=widen)) / 1e6 == pytest.approx(millions, abs=0.05)


def test_every_parameter_of_wrn_28_10_has_the_shape_of_its_stage() -> None:
    model = on_paper()
    assert model.stem.weight.shape == (16, 3, 3, 3)
    for stage, before, width in zip(model.stages, (16, 160, 320), (160, 320, 640), strict=True):
        assert len(stage) == 4
        for number, block in enumerate(stage):
            inner = before if number == 0 else width
            expected = {
                "norm1.weight": (inner,),
                "norm1.bias": (inner,),
                "conv1.weight": (width, inner, 3, 3),
                "norm2.weight": (width,),
                "norm2.bias": (width,),
                "conv2.weight": (width, width, 3, 3),
            }
            if number == 0:
                expected["shortcut.weight"] = (width, before, 1, 1)
            assert {name: tuple(p.shape) for name, p in block.named_parameters()} == expected
    assert [tuple(p.shape) for p in model.norm.parameters()] == [(640,), (640,)]
    assert [tuple(p.shape) for p in model.classifier.parameters()] == [(10, 640), (10,)]
    in_stages = [name for name, _ in model.named_parameters() if name.startswith("stages.")]
    assert len(in_stages) == 3 * (4 * 6 + 1)
    assert len(list(model.parameters())) == 1 + len(in_stages) + 2 + 2


def reference(model: WideResNet, x: Tensor) -> Tensor:
    """The whole network of depth 16 once more, in plain functions of its weights."""
    weights = dict(model.named_parameters())

    def activated(name: str, maps: Tensor) -> Tensor:
        return F.relu(F.batch_norm(maps, None, None, weights[f"{name}.weight"], weights[f"{name}.bias"], training=True))

    maps = F.conv2d(x, weights["stem.weight"], padding=1)
    for stage in range(3):
        for block in range(2):
            at, stride = f"stages.{stage}.{block}", 2 if stage > 0 and block == 0 else 1
            first = activated(f"{at}.norm1", maps)
            out = F.conv2d(first, weights[f"{at}.conv1.weight"], stride=stride, padding=1)
            out = F.conv2d(activated(f"{at}.norm2", out), weights[f"{at}.conv2.weight"], padding=1)
            shortcut = weights.get(f"{at}.shortcut.weight")
            maps = out + (maps if shortcut is None else F.conv2d(first, shortcut, stride=stride))
    pooled = F.adaptive_avg_pool2d(activated("norm", maps), 1).flatten(1)
    return pooled @ weights["classifier.weight"].T + weights["classifier.bias"]


@pytest.mark.parametrize("widen", [1, 2])  # with 1 the first stage keeps the stem's width and needs no shortcut
def test_the_network_is_what_its_description_says(widen: int) -> None:
    model = WideResNet(depth=16, widen=widen).double()
    for p in model.parameters():
        nn.init.normal_(p, std=0.3)  # norms that do something
    x = torch.randn(4, 3, 16, 16, dtype=torch.float64)
    torch.testing.assert_close(model(x), reference(model, x))
    assert (model.stages[0][0].shortcut is None) == (widen == 1)


def test_convolutions_start_from_a_normal_distribution_of_variance_two_over_the_fan_out() -> None:
    model = WideResNet(depth=10, widen=8)
    for name, module in model.named_modules():
        if not isinstance(module, nn.Conv2d):
            continue
        weight = module.weight.detach().double()
        std, n = math.sqrt(2 / (module.out_channels * module.kernel_size[0] ** 2)), weight.numel()
        # five standard errors of the mean, of the standard deviation and of a share
        assert abs(weight.mean()) < 5 * std / math.sqrt(n), name
        assert abs(weight.std() / std - 1) < 5 / math.sqrt(2 * n), name
        outside = (weight.abs() > 2 * std).double().mean()
        assert abs(outside - 0.0455) < 5 * math.sqrt(0.0455 / n), name
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.weight.eq(1).all()
            assert module.bias.eq(0).all()
    assert model.classifier.bias.eq(0).all()
    assert model.classifier.weight.ne(0).all()


def test_dropout_is_off_by_default_and_falls_between_the_convolutions_of_a_block() -> None:
    x = torch.randn(8, 3, 16, 16)
    plain, dropping = WideResNet(depth=10, widen=1), WideResNet(depth=10, widen=1, dropout=0.3)
    assert torch.equal(plain(x), plain(x))
    assert not torch.equal(dropping(x), dropping(x))
    block, seen = dropping.stages[0][0], {}
    maps = torch.randn(8, 16, 16, 16)
    block.conv1.register_forward_pre_hook(lambda module, inputs: seen.update(conv1=inputs[0]))
    block.conv2.register_forward_pre_hook(lambda module, inputs: seen.update(conv2=inputs[0]))
    block(maps)
    torch.testing.assert_close(seen["conv1"], F.relu(block.norm1(maps)))
    kept = F.relu(block.norm2(block.conv1(seen["conv1"])))  # the batch's statistics: the same in every training pass
    dropped = (seen["conv2"] == 0) & (kept > 0)
    assert dropped.sum() / (kept > 0).sum() == pytest.approx(0.3, abs=0.02)  # five standard errors of 16,000 values
    torch.testing.assert_close(seen["conv2"][~dropped], kept[~dropped] / 0.7)
    dropping.eval()
    assert torch.equal(dropping(x), dropping(x))


def test_with_group_norm_samples_do_not_influence_each_other() -> None:
    x = torch.randn(4, 3, 16, 16)
    apart = WideResNet(depth=10, widen=2, norm="group")
    torch.testing.assert_close(apart(x)[:2], apart(x[:2]))
    coupled = WideResNet(depth=10, widen=2, norm="batch")
    assert not torch.allclose(coupled(x)[:2], coupled(x[:2]))


@pytest.mark.parametrize("depth", [4, 9, 27, 30])
def test_a_depth_that_does_not_make_equal_stages_is_refused(depth: int) -> None:
    with pytest.raises(ArgumentError, match=rf"WideResNet: depth must be 6 n \+ 4 with n of at least 1; got {depth}\."):
        WideResNet(depth=depth)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"WideResNet: norm must be one of batch, group; got 'layer'"):
        WideResNet(norm="layer")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"WideResNet: widen must be at least 1; got 0\. Use widen=10"):
        WideResNet(widen=0)
