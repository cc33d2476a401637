"""Hugging Face models from a small configuration, without any download."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.contracts.engine_cases_common import CE, Case, coupled, floats, language, next_token, tokens

SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
IMAGES = floats(3, 32, 32)


def build(model: str, config: str, **options: Any) -> Any:
    """A model of this class, in training mode, when transformers is there."""

    def make() -> nn.Module:
        transformers = pytest.importorskip("transformers", reason="transformers is not installed")
        built = getattr(transformers, model)(getattr(transformers, config)(**options))
        return built.train()

    return make


def of_logits(criterion: Any) -> Any:
    return lambda outputs, y: criterion(outputs.logits, y)


def grouped_norms() -> nn.Module:
    """A residual network whose BatchNorm layers are GroupNorm."""
    model = RESNET()
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.BatchNorm2d):
                setattr(module, name, nn.GroupNorm(2, child.num_features))
    return model


def attention(kind: str) -> dict[str, Any]:
    return {"attn_implementation": kind}


def encoder_decoder(s: int, g: torch.Generator) -> tuple[dict[str, Tensor], Tensor]:
    ids, _ = language(6, 31)(s, g)
    return {"input_ids": ids, "decoder_input_ids": ids.flip(1)}, ids


BERT = {**SMALL, "vocab_size": 31, "max_position_embeddings": 16, "num_labels": 4}
GPT2 = {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 31, "n_positions": 16, "use_cache": False}
VIT = {**SMALL, "image_size": 32, "patch_size": 16, "num_labels": 4}
LLAMA = {**SMALL, "num_key_value_heads": 2, "vocab_size": 31, "max_position_embeddings": 16, "use_cache": False}
T5 = {"d_model": 16, "d_ff": 32, "d_kv": 8, "num_layers": 2, "num_heads": 2, "vocab_size": 31, "use_cache": False}
CONVNEXT = {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2, "num_labels": 4}
RESNET = build(
    "ResNetForImageClassification",
    "ResNetConfig",
    embedding_size=8,
    hidden_sizes=[8, 16],
    depths=[1, 1],
    layer_type="basic",
    num_labels=4,
)

HUGGING_FACE = [
    *(
        Case(
            f"BERT, {kind}, dropout",
            build("BertForSequenceClassification", "BertConfig", **BERT, **attention(kind)),
            tokens(6, 31),
            of_logits(CE),
            twopass=None,
        )
        for kind in ("eager", "sdpa")
    ),
    *(
        Case(
            f"GPT-2, {kind}, dropout",
            build("GPT2LMHeadModel", "GPT2Config", **GPT2, **attention(kind)),
            language(6, 31),
            of_logits(next_token),
            twopass=None,
        )
        for kind in ("eager", "sdpa")
    ),
    *(
        Case(
            f"ViT, {kind}",
            build("ViTForImageClassification", "ViTConfig", **VIT, **attention(kind)),
            IMAGES,
            of_logits(CE),
        )
        for kind in ("eager", "sdpa")
    ),
    Case("Llama", build("LlamaForCausalLM", "LlamaConfig", **LLAMA), language(6, 31), of_logits(next_token)),
    Case(
        "T5",
        build("T5ForConditionalGeneration", "T5Config", **T5),
        encoder_decoder,
        of_logits(next_token),
        twopass=None,
    ),
    Case("ConvNext", build("ConvNextForImageClassification", "ConvNextConfig", **CONVNEXT), IMAGES, of_logits(CE)),
    Case("ResNet with GroupNorm", grouped_norms, IMAGES, of_logits(CE)),
    coupled("ResNet with BatchNorm", RESNET, IMAGES, criterion=of_logits(CE)),
]
