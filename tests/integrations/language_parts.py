"""Tiny language models made from configurations, one for each way of making logits, and batches for them."""

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from tests.integrations.huggingface_parts import LENGTH, WORDS, rows_for

SIZES: dict[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": LENGTH,
    "pad_token_id": 0,
}
KEYS: dict[str, Any] = {"num_key_value_heads": 2, "head_dim": 8, "bos_token_id": 0, "eos_token_id": 0}


def _made(model: str, config: str, **settings: Any) -> Any:
    return getattr(transformers, model)(getattr(transformers, config)(**settings))


def lora(target: str = "q_proj", **settings: Any) -> Any:
    import peft

    config = peft.LoraConfig(r=2, target_modules=[target], init_lora_weights=False, task_type="CAUSAL_LM", **settings)
    return peft.get_peft_model(MODELS["Llama"](), config)


MODELS: dict[str, Callable[[], Any]] = {
    "GPT2, tied, with dropout": lambda: _made(
        "GPT2LMHeadModel",
        "GPT2Config",
        vocab_size=WORDS,
        n_embd=16,
        n_layer=1,
        n_head=2,
        n_positions=LENGTH,
        bos_token_id=0,
        eos_token_id=0,
    ),
    "Llama": lambda: _made("LlamaForCausalLM", "LlamaConfig", **SIZES, **KEYS, tie_word_embeddings=False),
    "Llama, tied": lambda: _made("LlamaForCausalLM", "LlamaConfig", **SIZES, **KEYS, tie_word_embeddings=True),
    "Gemma2, capped": lambda: _made(
        "Gemma2ForCausalLM", "Gemma2Config", **SIZES, **KEYS, final_logit_softcapping=0.3, query_pre_attn_scalar=8
    ),
    "Cohere, scaled": lambda: _made("CohereForCausalLM", "CohereConfig", **SIZES, **KEYS, logit_scale=0.3),
    "Granite, divided": lambda: _made("GraniteForCausalLM", "GraniteConfig", **SIZES, **KEYS, logits_scaling=0.7),
    "Mixtral, with a router": lambda: _made(
        "MixtralForCausalLM",
        "MixtralConfig",
        **SIZES,
        **KEYS,
        num_local_experts=4,
        experts_implementation="eager",  # the others know no float64
        output_router_logits=True,
        router_aux_loss_coef=0.5,
    ),
    "Bert, masked, with a bias": lambda: _made("BertForMaskedLM", "BertConfig", **SIZES),
    "Roberta, masked, with a bias": lambda: _made(
        "RobertaForMaskedLM", "RobertaConfig", **(SIZES | {"max_position_embeddings": LENGTH + 2})
    ),
    "Llama with LoRA": lora,
}
CAUSAL = [name for name in MODELS if "masked" not in name]


def model_of(name: str, dtype: torch.dtype = torch.float32) -> Any:
    """The model with weights that tell words apart, the same at every call."""
    torch.manual_seed(0)
    model = MODELS[name]()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn(weight.shape) * 0.2)
    return model.to(dtype)


def rows_of(name: str, n: int = 16) -> list[dict[str, Tensor]]:
    """Ragged rows; a masked model predicts every third word, and the first sequence has no label that counts."""
    rows = rows_for("causal", n)
    for i, row in enumerate(rows):
        if "masked" in name:
            row["labels"] = row["labels"].masked_fill((torch.arange(LENGTH) + i) % 3 != 0, -100)
    rows[0]["labels"] = torch.full_like(rows[0]["labels"], -100)
    return rows


def batch_of(name: str, n: int = 8) -> dict[str, Tensor]:
    rows = rows_of(name, n)
    return {key: torch.stack([row[key] for row in rows]) for key in rows[0]}


class Strange(LlamaForCausalLM):
    """A model that does something to its logits; `how` says what."""

    how = "bias"

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        self.dropout = nn.Dropout(0.3)
        self.register_buffer("passes", torch.zeros(()))

    def forward(  # type: ignore[override]
        self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None, **kwargs: Any
    ) -> Any:
        self.passes += 1
        hidden = self.dropout(self.model(input_ids, attention_mask=attention_mask).last_hidden_state)
        logits = STRANGE[self.how](self, hidden)
        return transformers.modeling_outputs.CausalLMOutput(logits=logits)


def _in_place(model: Any, hidden: Tensor) -> Tensor:
    logits: Tensor = model.lm_head(hidden)
    logits[..., 0] -= 1
    return logits


def _masked(model: Any, hidden: Tensor) -> Tensor:
    """The last word is forbidden by a slice that an input of the output layer is too short for."""
    logits = model.lm_head(hidden).clone()
    logits[..., WORDS - 1 :] = -30.0
    return logits


STRANGE: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "not at all": lambda model, hidden: model.lm_head(hidden),
    "bias": lambda model, hidden: model.lm_head(hidden) + torch.linspace(0, 1, WORDS),
    "in place": _in_place,
    "masked word": _masked,
    "clamped": lambda model, hidden: model.lm_head(hidden).clamp(-0.5, 0.5),
    "square": lambda model, hidden: model.lm_head(hidden) ** 2,
    "twice": lambda model, hidden: model.lm_head(hidden) + 0 * model.lm_head(hidden),
    "never": lambda model, hidden: nn.functional.linear(hidden, model.lm_head.weight),
    "by position": lambda model, hidden: model.lm_head(hidden) * (torch.arange(hidden.shape[1])[:, None] < 4),
    "shape": lambda model, hidden: model.lm_head(hidden).view(-1, WORDS).view(*hidden.shape[:2], WORDS),
}


def strange_of(how: str) -> Any:
    torch.manual_seed(0)
    kind = type("StrangeForCausalLM", (Strange,), {"how": how})
    model = kind(LlamaConfig(**SIZES, **KEYS))
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn(weight.shape) * 0.2)
    return model
