"""Supervised fine-tuning with LoRA: `OrderedSFTTrainer` in the place of TRL's `SFTTrainer`, with the same arguments.

The steps are the usual ones: a pretrained model, prompts and completions, a LoRA configuration, a trainer, training,
and the loss on other completions. Nothing is downloaded. In place of a pretrained model, a small Llama is first trained
on the docstrings of NumPy. A prompt is the first line of a docstring, the completion is its next paragraph, and the
pairs for evaluation come from other files. Two adapters are trained from the same weights on the same batches: by
`SFTTrainer` on all tokens of the completions, and by `OrderedSFTTrainer` on the share q of each batch's tokens with the
largest losses. TRL itself evaluates both. The script prints the mean loss and the time of a step. Part of the time that
is saved is that of two metrics, `entropy` and `mean_token_accuracy`, which `SFTTrainer` computes from all logits and
`OrderedSFTTrainer` leaves out in training. Ordered training lowers the largest losses, not the mean: expect the mean
loss to fall less, or to rise.

Run: python examples/15_sft_lora.py              (a minute on an idle core; needs trl and peft)
     python examples/15_sft_lora.py --pairs 64 --steps 10
"""

import argparse
import itertools
import logging
import statistics
import tempfile
import time
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from ordered_sgd.installed import how_to_install
from ordered_sgd.lab.data.prose import prose

try:
    import datasets
    from peft import LoraConfig
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import (
        LlamaConfig,
        LlamaForCausalLM,
        PreTrainedTokenizerFast,
        PrinterCallback,
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )
    from trl import SFTConfig, SFTTrainer

    from ordered_sgd.integrations.trl import OrderedSFTTrainer
except ModuleNotFoundError as error:
    raise SystemExit(f"15_sft_lora.py needs {error.name}. {how_to_install('trl')} peft") from error

LENGTH, WORDS, S = 64, 8000, 16
SIZES = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
ADAPTED = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def train_tokenizer(texts: list[str]) -> Any:
    """A byte-level BPE tokenizer, in the place of one that is downloaded."""
    pieces = Tokenizer(models.BPE())
    pieces.pre_tokenizer, pieces.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    how = trainers.BpeTrainer(
        vocab_size=WORDS,
        special_tokens=["<end>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    pieces.train_from_iterator(texts, how)
    return PreTrainedTokenizerFast(tokenizer_object=pieces, eos_token="<end>", pad_token="<pad>")


def pretrained(texts: list[str], tokenizer: Any, steps: int, settings: dict[str, Any]) -> Any:
    """A Llama that has seen some of the texts, in the place of one that is downloaded."""
    torch.manual_seed(0)
    config = LlamaConfig(**SIZES, vocab_size=len(tokenizer), max_position_embeddings=2 * LENGTH, pad_token_id=1)
    model = LlamaForCausalLM(config)
    ids = tokenizer([text + tokenizer.eos_token for text in texts])["input_ids"]
    row = list(itertools.islice(itertools.chain.from_iterable(ids), steps * S * LENGTH))
    rows = [row[start : start + LENGTH] for start in range(0, len(row) - LENGTH + 1, LENGTH)]
    data = [{"input_ids": words, "labels": words} for words in rows]
    trainer = Trainer(model, TrainingArguments(**settings, max_steps=steps, learning_rate=2e-3), train_dataset=data)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return model


def pairs(texts: list[str], most: int) -> Any:
    """First lines of docstrings as prompts, and the paragraphs after them as completions."""
    found = []
    for text in texts:
        first, _, rest = text.partition("\n\n")
        paragraph = rest.partition("\n\n")[0]
        if "\n" not in first and len(paragraph.split()) >= 8 and "---" not in paragraph:
            found.append({"prompt": first + "\n", "completion": " ".join(paragraph.split())})
    return datasets.Dataset.from_list(found[:: max(1, len(found) // most)][:most])


class StepTimes(TrainerCallback):  # type: ignore[misc]
    """Processor seconds of each step."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._began = 0.0

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        """Look at the clock."""
        self._began = time.process_time()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        """Keep what has passed."""
        self.seconds.append(time.process_time() - self._began)


def finish(trainer: Any) -> dict[str, float]:
    """The loss before and after training; the median of the steps leaves out what only the first ones have to do."""
    times = StepTimes()
    trainer.add_callback(times)
    trainer.remove_callback(PrinterCallback)
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    return {"before": before, "after": trainer.evaluate()["eval_loss"], "step": statistics.median(times.seconds)}


def show(results: dict[str, dict[str, float]], title: str) -> None:
    """Both trainings, and a sentence for what was saved and what it cost."""
    console, table = Console(), Table(title=title)
    for column in ("trainer", "mean loss before", "after", "ms/step, median"):
        table.add_column(column, justify="left" if column == "trainer" else "right")
    for name, found in results.items():
        table.add_row(name, f"{found['before']:.3f}", f"{found['after']:.3f}", f"{1000 * found['step']:.1f}")
    console.print(table)
    plain, ordered = results.values()
    saved = 100 * (1 - ordered["step"] / plain["step"])
    time_words = f"{saved:.0f} % less time per step" if saved >= 3 else f"no time saved ({-saved:+.0f} % per step)"
    words = f"OrderedSFTTrainer: {time_words}, mean loss on other files {ordered['after'] - plain['after']:+.3f}"
    console.print(words, highlight=False, soft_wrap=True)


def main() -> None:
    """Pretrain, train both adapters, print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--q", type=float, default=0.5, help="share of each batch's tokens that is kept")
    parser.add_argument("--pairs", type=int, default=480, help="at most so many prompts and completions to train on")
    parser.add_argument("--steps", type=int, default=100, help="steps of the training before")
    parser.add_argument("--epochs", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    logging.basicConfig(format="%(message)s")
    logging.getLogger("ordered_sgd").setLevel(logging.INFO)  # says what ran
    datasets.disable_progress_bars()
    texts = prose(("numpy",))
    tokenizer = train_tokenizer(texts.train)
    quiet = {"use_cpu": True, "save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True, "report_to": []}
    with tempfile.TemporaryDirectory() as folder:
        shared = {"output_dir": folder, "per_device_train_batch_size": S, "per_device_eval_batch_size": S, **quiet}
        model = pretrained(texts.train, tokenizer, arguments.steps, shared)
        weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        results = {}
        for kind, options in ((SFTTrainer, {}), (OrderedSFTTrainer, {"q": arguments.q})):
            fresh = LlamaForCausalLM(model.config)
            fresh.load_state_dict(weights)
            settings = SFTConfig(
                **shared,
                num_train_epochs=arguments.epochs,
                learning_rate=2e-3,
                max_length=LENGTH,
                completion_only_loss=True,
                bf16=False,
                gradient_checkpointing=False,
            )
            trainer = kind(
                fresh,
                settings,
                train_dataset=pairs(texts.train, arguments.pairs),
                eval_dataset=pairs(texts.validation + texts.test, max(16, arguments.pairs // 8)),
                processing_class=tokenizer,
                peft_config=LoraConfig(r=8, lora_alpha=16, lora_dropout=0.0, target_modules=ADAPTED),
                **options,
            )
            results[kind.__name__] = finish(trainer)
    title = f"{arguments.pairs} pairs, batches of {S}, {arguments.epochs} epochs, LoRA of rank 8, q = {arguments.q:g}"
    show(results, title)


if __name__ == "__main__":
    main()
