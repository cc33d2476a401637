"""A tokenizer of numbers and a quiet `SFTTrainer` with plain SGD, for the models of language_parts."""

from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast
from trl import SFTConfig

from ordered_sgd.integrations.trl import OrderedSFTTrainer
from tests.integrations.huggingface_parts import WORDS
from tests.integrations.language_parts import model_of, rows_of


def tokenizer() -> Any:
    words = Tokenizer(WordLevel({str(i): i for i in range(WORDS)}, unk_token="0"))
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="0", eos_token="0", unk_token="0")


def data(n: int = 16, prompt: int = 2) -> Any:
    """Sequences without their padding; the first words of each are a prompt, which has no labels."""
    rows = []
    for row in rows_of("Llama", n):
        words = row["input_ids"][row["attention_mask"] > 0].tolist()
        rows.append({"input_ids": words, "completion_mask": [int(i >= prompt) for i in range(len(words))]})
    return Dataset.from_list(rows)


def fit(
    kind: Any,
    name: str,
    folder: Path,
    *,
    settings: dict[str, Any] | None = None,
    resume: str | None = None,
    **options: Any,
) -> Any:
    """The trainer, trained for two epochs of two updates; batches come in the order of the rows."""
    model = model_of(name)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    constant = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    quiet: dict[str, Any] = {"report_to": [], "disable_tqdm": True, "log_level": "error", "use_cpu": True}
    quiet |= {"save_strategy": "no", "logging_steps": 1, "max_grad_norm": 0.0, "bf16": False, "max_length": None}
    quiet |= {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
    quiet["train_sampling_strategy"] = "sequential"
    arguments = SFTConfig(
        str(folder),
        num_train_epochs=2,
        gradient_checkpointing=False,
        completion_only_loss=True,
        **(quiet | (settings or {})),
    )
    if kind is OrderedSFTTrainer:
        options = {"selective": False} | options  # which takes seconds to compile
    given: dict[str, Any] = {"train_dataset": data(), "eval_dataset": data(), "processing_class": tokenizer()}
    trainer = kind(model, arguments, **given, optimizers=(optimizer, constant), **options)
    trainer.train(resume_from_checkpoint=resume)
    return trainer
