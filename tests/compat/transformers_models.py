"""Models of Transformers from small configurations, and LoRA adapters of peft in them; nothing is downloaded."""

import copy
from functools import partial
from typing import Any

import torch
from torch import Generator, Tensor, nn

from tests.compat.common import CLASSES, Entry, frozen_norms, next_token_of, of_logits, of_states, per_pixel
from tests.contracts.engine_cases_common import Batch, Case, classes, floats, language, tokens

LENGTH, WORDS = 32, 99
SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
TEXT = {**SMALL, "vocab_size": WORDS, "max_position_embeddings": 64, "num_labels": CLASSES}
SHORT = {"vocab_size": WORDS, "num_labels": CLASSES}
CAUSAL = {**TEXT, "num_hidden_layers": 1, "use_cache": False, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GPT = {"n_embd": 64, "n_layer": 1, "n_head": 4, "vocab_size": WORDS, "n_positions": 64, "use_cache": False}
SEQ2SEQ = {
    "d_model": 64,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "vocab_size": WORDS,
    "max_position_embeddings": 64,
    "use_cache": False,
}
T5 = {"d_model": 64, "d_ff": 128, "d_kv": 16, "num_layers": 1, "num_heads": 4, "vocab_size": WORDS, "use_cache": False}
IMAGE = {**SMALL, "num_hidden_layers": 1, "image_size": 64, "patch_size": 16, "num_labels": CLASSES}
SPEECH = {
    **SMALL,
    "num_hidden_layers": 1,
    "vocab_size": WORDS,
    "num_labels": CLASSES,
    "classifier_proj_size": 32,
    "conv_dim": (32, 32, 32),
    "conv_stride": (5, 2, 2),
    "conv_kernel": (10, 3, 3),
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "mask_time_prob": 0.0,  # its masks are drawn by NumPy
    "layerdrop": 0.0,
}
IMAGES = floats(3, 64, 64)
SOUND = floats(2400)


def build(model: str, config: str, options: dict[str, Any]) -> nn.Module:
    import transformers  # takes seconds

    made: nn.Module = getattr(transformers, model)(getattr(transformers, config)(**copy.deepcopy(options))).train()
    return made


def entry(
    model: str,
    config: str,
    options: dict[str, Any],
    batch: Batch,
    criterion: Any = of_logits,
    *,
    note: str = "",
    coupled: bool = False,
    frozen: bool = False,
) -> Entry:
    """A model by the names of its classes; `frozen` puts BatchNorm in eval mode."""
    note = note or ("BatchNorm in eval mode" if frozen else "")
    make = partial(build, model, config, options)
    made = (lambda: frozen_norms(make())) if frozen else make
    title = f"{model}, {note}" if note else model
    return Entry("transformers", Case(title, made, batch, criterion, coupled=coupled))


def encoder(name: str, *, base: dict[str, Any] = TEXT, note: str = "", **options: Any) -> Entry:
    """A classifier of texts."""
    names = (f"{name}ForSequenceClassification", f"{name}Config")
    return entry(*names, {**base, **options}, tokens(LENGTH, WORDS), note=note)


def causal(name: str, *, base: dict[str, Any] = CAUSAL, note: str = "", **options: Any) -> Entry:
    """A causal language model."""
    names = (f"{name}ForCausalLM", f"{name}Config")
    return entry(*names, {**base, **options}, language(LENGTH, WORDS), next_token_of, note=note)


def image(
    name: str, base: dict[str, Any] = IMAGE, *, frozen: bool = False, coupled: bool = False, **options: Any
) -> Entry:
    """A classifier of images."""
    names = (f"{name}ForImageClassification", f"{name}Config")
    return entry(*names, {**base, **options}, IMAGES, frozen=frozen, coupled=coupled)


def both_ends(s: int, g: Generator) -> tuple[dict[str, Tensor], Tensor]:
    """Ids for an encoder and a decoder."""
    ids = classes(s, g, LENGTH, count=WORDS)
    return {"input_ids": ids, "decoder_input_ids": ids.flip(1)}, ids


def translator(name: str, base: dict[str, Any] = SEQ2SEQ, **options: Any) -> Entry:
    """A model with an encoder and a decoder."""
    names = (f"{name}ForConditionalGeneration", f"{name}Config")
    return entry(*names, {**base, **options}, both_ends, next_token_of)


def spectrogram(s: int, g: Generator) -> tuple[Tensor, Tensor]:
    return torch.randn(s, 16, 64, generator=g), classes(s, g)


def spoken(s: int, g: Generator) -> tuple[dict[str, Tensor], Tensor]:
    """A spectrogram for an encoder and ids for a decoder."""
    ids = classes(s, g, 12, count=WORDS)
    return {"input_features": torch.randn(s, 16, 64, generator=g), "decoder_input_ids": ids}, ids


def padded(s: int, g: Generator) -> tuple[dict[str, Tensor], Tensor]:
    """Texts of different lengths with their mask."""
    ids, y = classes(s, g, LENGTH, count=WORDS), classes(s, g)
    lengths = torch.randint(LENGTH // 2, LENGTH + 1, (s, 1), generator=g)
    return {"input_ids": ids, "attention_mask": (torch.arange(LENGTH) < lengths).long()}, y


WHISPER = {**SEQ2SEQ, "num_mel_bins": 16, "max_source_positions": 32, "max_target_positions": 16, "dropout": 0.1}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
CLIP = {**SMALL, "num_hidden_layers": 1, "image_size": 64, "patch_size": 16, "attention_dropout": 0.1}
SWIN = {
    "image_size": 64,
    "patch_size": 4,
    "embed_dim": 24,
    "depths": [1, 1],
    "num_heads": [2, 4],
    "window_size": 4,
    "num_labels": CLASSES,
}
STAGES = {"depths": [1, 1, 1, 1], "hidden_sizes": [16, 32, 48, 64], "num_labels": CLASSES}


def adapted(inner: Entry, targets: list[str], kind: str | None) -> Entry:
    """The same model with LoRA adapters, the rest frozen."""

    def make() -> nn.Module:
        import peft

        config = peft.LoraConfig(r=4, lora_dropout=0.1, target_modules=targets, task_type=kind)
        made: nn.Module = peft.get_peft_model(inner.case.build(), config).train()
        return made

    return Entry("peft", Case(f"LoRA in {inner.case.name}", make, inner.case.batch, inner.case.criterion))


BERT = encoder("Bert")
GPT2 = entry("GPT2LMHeadModel", "GPT2Config", GPT, language(LENGTH, WORDS), next_token_of)
LLAMA_MQA = causal("Llama", note="one key-value head", num_key_value_heads=1)
QWEN2 = causal("Qwen2", num_key_value_heads=2)
VIT = image("ViT")

TRANSFORMERS = [
    BERT,
    entry("BertForSequenceClassification", "BertConfig", TEXT, padded, note="padded texts"),
    encoder("Bert", note="eager attention", attn_implementation="eager"),
    encoder("Bert", note="30,000 words", vocab_size=30_000),
    encoder("XLMRoberta"),
    encoder("DistilBert", dim=64, n_layers=2, n_heads=4, hidden_dim=128),
    encoder("Albert", embedding_size=32),
    encoder("Electra", embedding_size=32),
    encoder("Deberta", relative_attention=True, pos_att_type=["c2p", "p2c"]),
    encoder("DebertaV2", relative_attention=True, pos_att_type=["c2p", "p2c"], position_buckets=8, share_att_key=True),
    encoder("MPNet"),
    encoder("FNet"),
    encoder("ConvBert", embedding_size=32),
    encoder("XLNet", base=SHORT, d_model=64, n_layer=2, n_head=4, d_inner=128),
    encoder(
        "ModernBert", global_attn_every_n_layers=2, local_attention=8, pad_token_id=0, cls_token_id=1, sep_token_id=2
    ),
    GPT2,
    causal(
        "GPTNeo",
        num_hidden_layers=2,
        num_layers=2,
        num_heads=4,
        attention_types=[[["global", "local"], 1]],
        window_size=8,
    ),
    causal("GPTNeoX"),
    causal("OPT", ffn_dim=128, word_embed_proj_dim=64),
    causal("Llama", note="grouped-query attention", num_key_value_heads=2),
    LLAMA_MQA,
    QWEN2,
    causal("Qwen2", note="one key-value head", num_key_value_heads=1),
    causal("Mistral", num_key_value_heads=2, sliding_window=8),
    causal("Mixtral", num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2),
    causal("Gemma", num_key_value_heads=1, head_dim=16),
    causal("Phi"),
    causal("Falcon"),
    causal("Olmoe", num_key_value_heads=2, num_experts=4, num_experts_per_tok=2),
    causal("Mamba", state_size=8),
    translator("T5", T5),
    translator("Bart", **SPECIAL),
    entry("WhisperForAudioClassification", "WhisperConfig", {**WHISPER, "num_labels": CLASSES, **SPECIAL}, spectrogram),
    entry("WhisperForConditionalGeneration", "WhisperConfig", {**WHISPER, **SPECIAL}, spoken, next_token_of),
    entry("Wav2Vec2ForSequenceClassification", "Wav2Vec2Config", SPEECH, SOUND),
    entry(
        "ASTForAudioClassification",
        "ASTConfig",
        {**SMALL, "patch_size": 8, "frequency_stride": 8, "time_stride": 8, "num_mel_bins": 16, "max_length": 64},
        lambda s, g: (torch.randn(s, 64, 16, generator=g), classes(s, g, count=2)),
    ),
    VIT,
    image("Dinov2"),
    image("Swin", SWIN),
    image("ResNet", {**STAGES, "embedding_size": 16, "layer_type": "basic"}, coupled=True),
    entry(
        "SegformerForSemanticSegmentation",
        "SegformerConfig",
        {**STAGES, "decoder_hidden_size": 32},
        IMAGES,
        per_pixel,
        frozen=True,
    ),
    entry("CLIPVisionModel", "CLIPVisionConfig", CLIP, IMAGES, of_states),
    entry("CLIPTextModel", "CLIPTextConfig", {**TEXT, "eos_token_id": 2}, tokens(LENGTH, WORDS), of_states),
    adapted(BERT, ["query", "value"], "SEQ_CLS"),
    adapted(GPT2, ["c_attn"], "CAUSAL_LM"),
    adapted(LLAMA_MQA, ["q_proj", "v_proj"], "CAUSAL_LM"),
    adapted(QWEN2, ["q_proj", "k_proj", "v_proj", "o_proj"], "CAUSAL_LM"),
    adapted(VIT, ["query", "value", "q_proj", "v_proj"], None),
]
