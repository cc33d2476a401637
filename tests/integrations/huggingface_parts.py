"""Tiny models and data with ragged padding, and a quiet Trainer with plain SGD."""

from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
    LlamaConfig,
    LlamaForCausalLM,
    TrainingArguments,
)

from ordered_sgd.integrations.huggingface import OrderedRule, OrderedTrainer
from tests.integrations.trainers import S, sgd

transformers.logging.set_verbosity_error()
LENGTH, WORDS = 10, 17


class Logits(nn.Module):
    """A network in the shape that Trainer expects."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        return {"logits": self.net(x)}


def model_for(task: str) -> Any:
    torch.manual_seed(0)
    sizes = {"vocab_size": WORDS, "hidden_size": 16, "intermediate_size": 32, "max_position_embeddings": LENGTH}
    sizes |= {"num_hidden_layers": 1, "num_attention_heads": 2}
    if task == "causal":
        return LlamaForCausalLM(LlamaConfig(**sizes, bos_token_id=0, eos_token_id=0))
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = BertConfig(**sizes, **still, num_labels=3)
    return (BertForSequenceClassification if task == "sequence" else BertForTokenClassification)(config)


def rows_for(task: str, n: int = 48) -> list[dict[str, Tensor]]:
    """Sequences of 2 to 10 tokens; what is padding has the label -100."""
    g = torch.Generator().manual_seed(1)
    rows = []
    for _ in range(n):
        mask = (torch.arange(LENGTH) < torch.randint(2, LENGTH + 1, (1,), generator=g)).long()
        words = torch.randint(1, WORDS, (LENGTH,), generator=g) * mask
        labels = {"sequence": words[0] % 3, "token": words % 3, "causal": words}[task]
        if task != "sequence":
            labels = labels.masked_fill(mask == 0, -100)
        rows.append({"input_ids": words, "attention_mask": mask, "labels": labels})
    return rows


def fit(
    model: Any,
    rows: Any,
    folder: Path,
    *,
    kind: Any = transformers.Trainer,
    epochs: int = 2,
    batch: int = S,
    parts: int = 1,
    saves: bool = False,
    resume: Any = False,
    compute_loss_func: Any = None,
    settings: dict[str, Any] | None = None,
    selective: bool = False,  # which takes seconds to compile
    **options: Any,
) -> Any:
    """The trainer, trained; batches come in the order of the rows."""
    optimizer = sgd(model)
    constant = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    quiet: dict[str, Any] = {"report_to": [], "disable_tqdm": True, "log_level": "error", "use_cpu": True}
    quiet |= {"save_strategy": "epoch" if saves else "no", "logging_strategy": "no", "max_grad_norm": 0.0}
    quiet["train_sampling_strategy"] = "sequential"
    arguments = TrainingArguments(
        str(folder),
        num_train_epochs=epochs,
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=parts,
        **(quiet | (settings or {})),
    )
    if compute_loss_func is not None:
        options |= {"compute_loss_func": compute_loss_func}
        if not issubclass(kind, OrderedTrainer):
            options |= {"callbacks": [OrderedRule(compute_loss_func, selective)]}
    if issubclass(kind, OrderedTrainer):
        options |= {"selective": selective}
    trainer = kind(model, arguments, train_dataset=rows, optimizers=(optimizer, constant), **options)
    trainer.train(resume_from_checkpoint=resume or None)
    return trainer
