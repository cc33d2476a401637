"""A Transformers classifier trained with the q largest losses: `OrderedTrainer` in the place of `Trainer`.

The sequences are scikit-learn's handwritten digits in words: four pixels in a row, ink or none, are one of 16 words,
and an image is a text of 16 of them. The model is a small BERT made from a configuration: nothing is downloaded. The
three trainings of a seed share first weights and order of samples: the plain `Trainer`; `OrderedTrainer`, whose q
follows the paper's rule; and the control that keeps as many samples at random, with the same q in every epoch. All have
one learning rate, which was picked with plain training.

Run: python examples/06_huggingface.py            (three minutes on an idle core)
     python examples/06_huggingface.py --seeds 2 --epochs 2
"""

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from transformers import BertConfig, BertForSequenceClassification, PrinterCallback, Trainer, TrainingArguments

from ordered_sgd import AccuracyRule
from ordered_sgd.integrations.huggingface import OrderedLossFunc, OrderedTrainer
from ordered_sgd.lab.data import load
from ordered_sgd.lab.data.dataset import Split
from ordered_sgd.lab.experiments.comparison import paired
from ordered_sgd.lab.experiments.plan import Replay
from ordered_sgd.lab.report.findings import in_words
from ordered_sgd.lab.report.summary import interval

S, RATE = 32, 3e-3
WORDS = 16
SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
# a model this small learns from larger first weights than BERT's, and needs no dropout
SMALL = {"initializer_range": 0.1, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


@dataclass(frozen=True)
class Result:
    """What one training gave: test error in percent, mean cross-entropy on the test set, and the q of each epoch."""

    error: float
    cross_entropy: float
    path: tuple[int, ...] = ()


def sequences(split: Split, seed: int) -> list[dict[str, Any]]:
    """Digits as a `Trainer` wants its rows: a text and its label; the seed decides which fifth is the test."""
    part = load("digits", split, seed=seed)
    ink = part.x.reshape(len(part), -1, 4) > 127
    texts = ink @ np.array([8, 4, 2, 1])
    return [{"input_ids": text, "labels": label} for text, label in zip(texts, part.y, strict=True)]


def build(seed: int) -> Any:
    """A BERT of 19,626 parameters."""
    torch.manual_seed(seed)
    config = BertConfig(**SIZES, **SMALL, vocab_size=WORDS, max_position_embeddings=16, num_labels=10)
    return BertForSequenceClassification(config)


def finish(trainer: Trainer, test: list[dict[str, Any]]) -> Result:
    """Train, and judge: in evaluation the ordered loss is the plain mean, so that cross-entropies can be compared."""
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    path = [int(entry["ordered/q"]) for entry in trainer.state.log_history if "ordered/q" in entry]
    judged = trainer.predict(test)
    wrong = judged.predictions.argmax(axis=1) != judged.label_ids
    return Result(100 * float(wrong.mean()), judged.metrics["test_loss"], tuple(path))


def compare(seed: int, epochs: int, folder: str) -> dict[str, Result]:
    """The three trainings of one seed."""
    train, test = sequences("train", seed), sequences("test", seed)
    arguments = TrainingArguments(
        folder,
        num_train_epochs=epochs,
        per_device_train_batch_size=S,
        learning_rate=RATE,
        lr_scheduler_type="cosine",
        seed=seed,
        use_cpu=True,
        save_strategy="no",
        logging_strategy="epoch",
        disable_tqdm=True,
        report_to=[],
    )
    plain = finish(Trainer(build(seed), arguments, train_dataset=train), test)
    ordered = finish(OrderedTrainer(build(seed), arguments, train_dataset=train, q=AccuracyRule()), test)
    # all that OrderedTrainer does not take itself goes to its loss function
    draws = torch.Generator().manual_seed(seed)
    control = OrderedLossFunc("sequence", q=Replay(ordered.path), selection="random", generator=draws)
    random = finish(OrderedTrainer(build(seed), arguments, train_dataset=train, compute_loss_func=control), test)
    return {"plain": plain, "ordered": ordered, "random q": random}


def show(runs: Sequence[dict[str, Result]], title: str) -> None:
    """Means over seeds, what each differs from plain seed by seed, and a sentence for both comparisons."""
    console, table = Console(), Table(title=title)
    errors = {name: [run[name].error for run in runs] for name in runs[0]}
    for column in ("method", "test error %", "against plain", "cross-entropy", "q of seed 0"):
        table.add_column(column, justify="left" if column == "method" else "right")
    for name in errors:
        against = "" if name == "plain" else interval(*paired(errors[name], errors["plain"])[:2])
        entropy = np.mean([run[name].cross_entropy for run in runs])
        moves = " ".join(str(q) for q in dict.fromkeys(runs[0][name].path or (S,)))
        table.add_row(name, f"{np.mean(errors[name]):.2f}", against, f"{entropy:.3f}", moves)
    console.print(table)
    for other in ("plain", "random q"):
        difference = paired(errors["ordered"], errors[other])
        numbers = f"{interval(difference.mean, difference.half)} points of test error, {difference.seeds} seeds"
        console.print(f"ordered is {in_words(difference)} {other}: {numbers}", highlight=False, soft_wrap=True)


def main() -> None:
    """Train every seed, print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5, help="at least 2: the interval is over seeds")
    parser.add_argument("--epochs", type=int, default=12)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        seeds = track(range(arguments.seeds), description="seeds", transient=True)
        runs = [compare(seed, arguments.epochs, folder) for seed in seeds]
    show(runs, f"digits in words, a small BERT, AdamW, {arguments.epochs} epochs, means of {arguments.seeds} seeds")


if __name__ == "__main__":
    main()
