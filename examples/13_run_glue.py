"""Fine-tuning a text classifier as scripts for GLUE do it, with `OrderedTrainer` in the place of `Trainer`.

The steps are the usual ones: texts and labels, a tokenizer, a model, tokenized rows that a collator pads, a metric, a
trainer, training and evaluation. Nothing is downloaded. The texts are paragraphs of the docstrings of NumPy, SciPy and
scikit-learn, the label is the package, and the paragraphs for evaluation come from other files than those for training.
The model is a BERT made from a configuration. It is trained twice from the same weights on the same batches: by
`Trainer` on all samples, and by `OrderedTrainer` on the share q of each batch with the largest losses. For both the
script prints the accuracy and the mean loss on the other files, and the time of a step. The first ordered step also
compiles the model, which takes seconds: a training as short as this one may take longer as a whole.

Run: python examples/13_run_glue.py              (a minute on an idle core)
     python examples/13_run_glue.py --rows 200 --epochs 1 --q 0.25
"""

import argparse
import logging
import math
import statistics
import tempfile
import time
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DataCollatorWithPadding,
    PreTrainedTokenizerFast,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from ordered_sgd.integrations.huggingface import OrderedTrainer
from ordered_sgd.lab.data.prose import PACKAGES, prose

LENGTH, WORDS, S = 64, 4000, 32
SIZES = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4}
# a model this small learns from larger first weights than BERT's
SMALL = {"initializer_range": 0.05, "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}


@dataclass(frozen=True)
class Texts:
    """Paragraphs and the number of the package that each comes from."""

    texts: list[str]
    labels: list[int]


def paragraphs(docstrings: list[str], package: str) -> list[str]:
    """Paragraphs of at least ten words of prose, without the names that would give the package away."""
    names = {package, "sklearn", "np", "numpy", "scipy", "scikit"}
    found = [part for text in docstrings for part in text.split("\n\n") if ">>>" not in part and "----" not in part]
    kept = [" ".join(w for w in part.split() if not any(name in w.lower() for name in names)) for part in found]
    return [part for part in kept if len(part.split()) >= 10]


def load_texts(rows: int) -> tuple[Texts, Texts]:
    """The first `rows` paragraphs of each package for training, and a quarter as many of other files to evaluate."""
    parts: list[tuple[list[str], list[int]]] = [([], []), ([], [])]
    for label, package in enumerate(PACKAGES):
        found = prose((package,))
        for part, docstrings, count in zip(
            parts, (found.train, found.validation + found.test), (rows, rows // 4), strict=True
        ):
            chosen = paragraphs(docstrings, package)
            chosen = chosen[:: max(1, len(chosen) // count)][:count]  # from all files
            part[0].extend(chosen)
            part[1].extend([label] * len(chosen))
    return Texts(*parts[0]), Texts(*parts[1])


def train_tokenizer(texts: list[str]) -> Any:
    """A tokenizer of whole words, in the place of one that is downloaded."""
    words = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    words.normalizer, words.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    special = ["[PAD]", "[UNK]", "[CLS]"]
    words.train_from_iterator(texts, trainers.WordLevelTrainer(vocab_size=WORDS, special_tokens=special))
    words.post_processor = processors.TemplateProcessing(single="[CLS] $A", special_tokens=[("[CLS]", 2)])
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]")


def tokenized(texts: Texts, tokenizer: Any) -> list[dict[str, Any]]:
    """Rows as a `Trainer` wants them, not padded yet."""
    ids = tokenizer(texts.texts, truncation=True, max_length=LENGTH)
    return [
        {"input_ids": ids["input_ids"][i], "attention_mask": ids["attention_mask"][i], "labels": label}
        for i, label in enumerate(texts.labels)
    ]


def build(words: int, seed: int) -> Any:
    """A BERT with the same first weights for the same seed."""
    torch.manual_seed(seed)
    sizes: dict[str, Any] = SIZES | SMALL
    return BertForSequenceClassification(BertConfig(**sizes, vocab_size=words, num_labels=len(PACKAGES)))


def accuracy(prediction: Any) -> dict[str, float]:
    """Share of right answers."""
    return {"accuracy": float((prediction.predictions.argmax(axis=1) == prediction.label_ids).mean())}


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
    """Train and evaluate; the median of the steps leaves out that the first ones may have to compile something."""
    times = StepTimes()
    trainer.add_callback(times)
    trainer.remove_callback(PrinterCallback)
    began = time.process_time()
    trainer.train()
    seconds = time.process_time() - began
    found: dict[str, float] = trainer.evaluate()
    return found | {"seconds": seconds, "step": statistics.median(times.seconds)}


def show(plain: dict[str, float], ordered: dict[str, float], count: int, title: str) -> None:
    """Both trainings, and a sentence for what was saved and what it cost."""
    console, table = Console(), Table(title=title)
    for column in ("trainer", "accuracy %", "mean loss", "ms/step, median", "s, whole training"):
        table.add_column(column, justify="left" if column == "trainer" else "right")
    for name, found in (("Trainer", plain), ("OrderedTrainer", ordered)):
        numbers = f"{100 * found['eval_accuracy']:.1f}", f"{found['eval_loss']:.3f}"
        table.add_row(name, *numbers, f"{1000 * found['step']:.1f}", f"{found['seconds']:.1f}")
    console.print(table)
    saved = 100 * (1 - ordered["step"] / plain["step"])
    points = 100 * (ordered["eval_accuracy"] - plain["eval_accuracy"])
    time_words = f"{saved:.0f} % less time per step" if saved >= 3 else f"no time saved ({-saved:+.0f} % per step)"
    console.print(f"OrderedTrainer: {time_words}, {points:+.1f} points of accuracy", highlight=False, soft_wrap=True)
    share = plain["eval_accuracy"]
    chance = 100 * 2 * math.sqrt(2 * share * (1 - share) / count)  # two standard errors of a difference
    words = f"One seed and {count} paragraphs: differences below {chance:.1f} points may be chance."
    console.print(words, highlight=False, soft_wrap=True)


def main() -> None:
    """Train both, print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--q", type=float, default=0.5, help="share of each batch that is kept")
    parser.add_argument("--rows", type=int, default=400, help="paragraphs of each package")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--rate", type=float, default=5e-4)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    logging.basicConfig(format="%(message)s")
    logging.getLogger("ordered_sgd").setLevel(logging.INFO)  # says what ran
    train, other = load_texts(arguments.rows)
    tokenizer = train_tokenizer(train.texts)
    rows, other_rows = tokenized(train, tokenizer), tokenized(other, tokenizer)
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            folder,
            num_train_epochs=arguments.epochs,
            per_device_train_batch_size=S,
            per_device_eval_batch_size=S,
            learning_rate=arguments.rate,
            warmup_steps=20,
            weight_decay=0.01,
            seed=arguments.seed,
            use_cpu=True,
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            report_to=[],
        )
        options: dict[str, Any] = {
            "args": settings,
            "train_dataset": rows,
            "eval_dataset": other_rows,
            "data_collator": DataCollatorWithPadding(tokenizer),
            "compute_metrics": accuracy,
        }
        plain = finish(Trainer(build(len(tokenizer), arguments.seed), **options))
        ordered = finish(OrderedTrainer(build(len(tokenizer), arguments.seed), q=arguments.q, **options))
    title = f"{len(rows)} paragraphs of three packages, batches of {S}, {arguments.epochs} epochs, q = {arguments.q:g}"
    show(plain, ordered, len(other_rows), title)


if __name__ == "__main__":
    main()
