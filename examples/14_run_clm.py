"""Training a causal language model as scripts for `Trainer` do it, with `OrderedTrainer` in the place of `Trainer`.

The steps are the usual ones: texts, a tokenizer, all tokens in one row cut into blocks of one length, a model, a
trainer, training, and the perplexity on other texts. Nothing is downloaded. The texts are the docstrings of NumPy, and
those for evaluation come from other files. The model is a Llama made from a configuration. It is trained twice from the
same weights on the same batches: by `Trainer` on all tokens, and by `OrderedTrainer` on the share q of each batch's
tokens with the largest losses, whose logits are never stored. Ordered training lowers the largest losses, not the mean
loss: its perplexity is usually higher after the same number of steps. The script prints both, and the time of a step.

Run: python examples/14_run_clm.py               (half a minute on an idle core)
     python examples/14_run_clm.py --blocks 64 --epochs 1 --q 0.25
"""

import argparse
import itertools
import logging
import math
import statistics
import tempfile
import time
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    default_data_collator,
)

from ordered_sgd.integrations.huggingface import OrderedTrainer
from ordered_sgd.lab.data.prose import prose

BLOCK, WORDS, S = 64, 8000, 16
SIZES = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}


def train_tokenizer(texts: list[str]) -> Any:
    """A byte-level BPE tokenizer, in the place of one that is downloaded."""
    pieces = Tokenizer(models.BPE())
    pieces.pre_tokenizer, pieces.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    how = trainers.BpeTrainer(
        vocab_size=WORDS, special_tokens=["<end>"], initial_alphabet=alphabet, show_progress=False
    )
    pieces.train_from_iterator(texts, how)
    return PreTrainedTokenizerFast(tokenizer_object=pieces, eos_token="<end>", pad_token="<end>")


def blocks(texts: list[str], tokenizer: Any, most: int) -> list[dict[str, Any]]:
    """All tokens in one row, an end after each text, cut into blocks; what is left over is dropped."""
    ids = tokenizer([text + tokenizer.eos_token for text in texts])["input_ids"]
    row = list(itertools.islice(itertools.chain.from_iterable(ids), most * BLOCK))
    whole = len(row) // BLOCK * BLOCK
    cut = [row[start : start + BLOCK] for start in range(0, whole, BLOCK)]
    return [{"input_ids": words, "labels": words} for words in cut]  # the loss function shifts the labels


def build(words: int, seed: int) -> Any:
    """A Llama with the same first weights for the same seed."""
    torch.manual_seed(seed)
    config = LlamaConfig(**SIZES, vocab_size=words, max_position_embeddings=BLOCK, bos_token_id=0, eos_token_id=0)
    return LlamaForCausalLM(config)


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


def finish(trainer: Trainer) -> dict[str, float]:
    """Train and evaluate; the median of the steps leaves out what only the first ones have to do."""
    times = StepTimes()
    trainer.add_callback(times)
    trainer.remove_callback(PrinterCallback)
    began = time.process_time()
    trainer.train()
    seconds = time.process_time() - began
    found: dict[str, float] = trainer.evaluate()
    found["perplexity"] = math.exp(found["eval_loss"])
    return found | {"seconds": seconds, "step": statistics.median(times.seconds)}


def show(plain: dict[str, float], ordered: dict[str, float], title: str) -> None:
    """Both trainings, and a sentence for what was saved and what it cost."""
    console, table = Console(), Table(title=title)
    for column in ("trainer", "mean loss", "perplexity", "ms/step, median", "s, whole training"):
        table.add_column(column, justify="left" if column == "trainer" else "right")
    for name, found in (("Trainer", plain), ("OrderedTrainer", ordered)):
        numbers = f"{found['eval_loss']:.3f}", f"{found['perplexity']:.0f}"
        table.add_row(name, *numbers, f"{1000 * found['step']:.1f}", f"{found['seconds']:.1f}")
    console.print(table)
    saved = 100 * (1 - ordered["step"] / plain["step"])
    time_words = f"{saved:.0f} % less time per step" if saved >= 3 else f"no time saved ({-saved:+.0f} % per step)"
    higher = ordered["eval_loss"] - plain["eval_loss"]
    words = f"OrderedTrainer: {time_words}, mean loss on other texts {higher:+.3f}"
    console.print(words, highlight=False, soft_wrap=True)


def main() -> None:
    """Train both, print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--q", type=float, default=0.5, help="share of each batch's tokens that is kept")
    parser.add_argument("--blocks", type=int, default=800, help=f"at most so many blocks of {BLOCK} tokens to train on")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    logging.basicConfig(format="%(message)s")
    logging.getLogger("ordered_sgd").setLevel(logging.INFO)  # says what ran
    texts = prose(("numpy",))
    tokenizer = train_tokenizer(texts.train)
    train = blocks(texts.train, tokenizer, arguments.blocks)
    other = blocks(texts.validation + texts.test, tokenizer, max(16, arguments.blocks // 8))
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            folder,
            num_train_epochs=arguments.epochs,
            per_device_train_batch_size=S,
            per_device_eval_batch_size=S,
            learning_rate=arguments.rate,
            lr_scheduler_type="cosine",
            seed=arguments.seed,
            use_cpu=True,
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            report_to=[],
        )
        options: dict[str, Any] = {"args": settings, "train_dataset": train, "eval_dataset": other}
        options["data_collator"] = default_data_collator  # all rows have one length
        plain = finish(Trainer(build(len(tokenizer), arguments.seed), **options))
        ordered = finish(OrderedTrainer(build(len(tokenizer), arguments.seed), q=arguments.q, **options))
    title = f"{len(train)} blocks of {BLOCK} tokens, batches of {S}, {arguments.epochs} epochs, q = {arguments.q:g}"
    show(plain, ordered, title)


if __name__ == "__main__":
    main()
