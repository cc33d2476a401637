"""Models of timm, reduced in depth so that they are traced in seconds; the layers are the package's own."""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from tests.compat.common import CLASSES, Entry, frozen_norms
from tests.compat.stand_in import import_timm
from tests.contracts.engine_cases_common import Case, floats


def build(name: str, *, frozen: bool, **options: Any) -> nn.Module:
    model: nn.Module = import_timm().create_model(name, num_classes=CLASSES, **options).train()
    return frozen_norms(model) if frozen else model


def entry(
    name: str, size: int = 64, *, note: str = "", frozen: bool = False, coupled: bool = False, **options: Any
) -> Entry:
    """A model on images of this size; `frozen` puts BatchNorm in eval mode, `coupled` leaves it in training."""
    notes = ", ".join(part for part in (note, "BatchNorm in eval mode" if frozen else "") if part)
    make: Callable[[], nn.Module] = partial(build, name, frozen=frozen, **options)
    title = f"{name}, {notes}" if notes else name
    return Entry("timm", Case(title, make, floats(3, size, size), coupled=coupled))


def transformer(name: str, size: int = 64, **options: Any) -> Entry:
    """A model with a fixed image size."""
    return entry(name, size, img_size=size, **options)


TIMM = [
    transformer("vit_tiny_patch16_224", depth=1),
    transformer("vit_tiny_patch16_224", note="LayerScale 1e-5", depth=1, init_values=1e-5),
    transformer(
        "vit_tiny_patch16_224", note="dropout and stochastic depth", depth=1, drop_rate=0.1, drop_path_rate=0.2
    ),
    transformer("vit_relpos_small_patch16_224", depth=1),
    transformer("deit_tiny_distilled_patch16_224", depth=1),
    transformer("deit3_small_patch16_224", depth=1),
    transformer("beit_base_patch16_224", depth=1, embed_dim=192, num_heads=3),
    transformer("eva02_tiny_patch14_224", 56, depth=1),
    transformer("cait_xxs24_224", depth=1, depth_token_only=1),
    transformer("xcit_nano_12_p16_224", depth=1, frozen=True),
    transformer("convit_tiny", depth=2),
    transformer("volo_d1_224", frozen=True),
    transformer("swin_tiny_patch4_window7_224", 56, depths=(1, 1), num_heads=(3, 6), embed_dim=48),
    transformer("mvitv2_tiny"),
    transformer("mixer_s16_224"),
    transformer("resmlp_12_224"),
    entry("pvt_v2_b0", depths=(1, 1, 1, 1)),
    entry("convnext_atto", 64, depths=(1, 1, 1, 1)),
    entry("convnextv2_atto", 64, depths=(1, 1, 1, 1)),
    entry("poolformer_s12"),
    entry("sequencer2d_s", 64, layers=[1, 1, 1, 1]),
    transformer("levit_128s", 224, frozen=True),
    entry("efficientnet_b0", 64, frozen=True),
    entry("mobilenetv3_small_050", 64, frozen=True),
    entry("mobilenetv3_small_050", 64, coupled=True),
    entry("mobilevit_xxs", 64, frozen=True),
    entry("lcnet_050", 64, frozen=True),
    entry("regnetx_002", 64, frozen=True),
    entry("densenet121", 64, growth_rate=8, block_config=(2, 2, 2, 2), frozen=True),
    entry("resnet10t", 64, frozen=True),
    entry("resnet10t", 64, coupled=True),
    entry("resnet18", 64, note="GroupNorm", norm_layer="groupnorm"),
    entry("resnetv2_50x1_bit", 64, channels=(128, 256, 384, 512)),
    entry("nf_resnet26", 64),
    entry("vgg11", 64, mlp_ratio=0.05),
    entry("vgg11_bn", 64, mlp_ratio=0.05, coupled=True),
]
