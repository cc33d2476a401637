"""The trainings that `osgd bench trainers` compares: a partner's trainer as it is, and the same with an ordered loss.

Each function makes one: plain for ``q=None``, else with what the package offers for that trainer. Model, batches,
optimizer and options of the trainer are the same for both.
"""

import logging
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from ordered_sgd.errors import require
from ordered_sgd.lab.bench.opponents import new_optimizer
from ordered_sgd.lab.bench.trainer_inputs import (
    LAST,
    Endless,
    TrainerSizes,
    bert_of,
    gpt2_of,
    pictures,
    texts,
    token_sequences,
)
from ordered_sgd.lab.bench.turns import Turns
from ordered_sgd.lab.bench.workloads import ViT, fused_adamw, per_logits
from ordered_sgd.lab.models import LeNet, channels_last
from ordered_sgd.loss import OrderedLoss
from ordered_sgd.mean import ordered_mean
from ordered_sgd.selective import BackwardReport, explain_backward, selective_backward

_WHERE = "osgd bench trainers"


@dataclass(frozen=True)
class TrainerRun:
    """A training that waits for its first batch.

    Parameters
    ----------
    turns
        Its batches; also what ends it.
    model
        What is trained.
    ran
        What the updates computed, once the training is closed; empty for a plain trainer.
    """

    turns: Turns
    model: nn.Module
    ran: Callable[[], str]


@dataclass(frozen=True)
class TrainerSubject:
    """What is trained by what, a function that makes its trainings, and the shares that it keeps by default.

    `reference` makes a training that must have the same gradients; None for `build` with ``selective=False``.
    """

    title: str
    build: Callable[..., TrainerRun]
    qs: tuple[float, ...]
    reference: Callable[..., TrainerRun] | None = None


def lightning_lenet(sizes: TrainerSizes, q: float | None, **options: Any) -> TrainerRun:
    """LeNet in Lightning."""
    return _by_lightning(channels_last(LeNet()), pictures(1, 28, sizes), sizes.images, q, **options)


def lightning_vit(sizes: TrainerSizes, q: float | None, **options: Any) -> TrainerRun:
    """A vision transformer in Lightning."""
    net = channels_last(ViT(layers=sizes.vit_layers, width=sizes.vit_width))
    return _by_lightning(net, pictures(3, 32, sizes), sizes.images, q, **options)


def _by_lightning(net: nn.Module, batches: list[Any], s: int, q: float | None, **options: Any) -> TrainerRun:
    from ordered_sgd.integrations.lightning import OrderedCallback  # raises the error that names the extra

    pl = require("lightning.pytorch", extra="lightning", where=_WHERE)
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)  # no tips

    class Module(pl.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net, self.criterion = net, nn.CrossEntropyLoss()

        def training_step(self, batch: list[Tensor], index: int) -> Tensor:
            loss: Tensor = self.criterion(self.net(batch[0]), batch[1])
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return new_optimizer(self)

    callback = None if q is None else OrderedCallback(q=q, **options)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = pl.Trainer(accelerator="cpu", max_epochs=1, callbacks=callback, enable_model_summary=False, **quiet)
    turns = Turns(batches).start(lambda turns: trainer.fit(Module(), DataLoader(Endless(), s, collate_fn=turns)))
    return TrainerRun(turns, net, lambda: "" if callback is None else _said(callback.backward_ran))


def skorch_lenet(sizes: TrainerSizes, q: float | None, **options: Any) -> TrainerRun:
    """LeNet in skorch."""
    from ordered_sgd.integrations.skorch import OrderedNeuralNetClassifier

    skorch = require("skorch", extra="skorch", where=_WHERE)
    kind, given = (skorch.NeuralNetClassifier, {}) if q is None else (OrderedNeuralNetClassifier, {"q": q, **options})
    turns = Turns(pictures(1, 28, sizes))
    net = kind(
        channels_last(LeNet()),
        criterion=nn.CrossEntropyLoss,
        optimizer=torch.optim.SGD,
        optimizer__momentum=0.9,
        optimizer__fused=True,
        lr=1e-4,
        batch_size=sizes.images,
        iterator_train__collate_fn=turns,
        train_split=None,
        max_epochs=1,
        verbose=0,
        **given,
    )
    turns.start(lambda _: net.fit(Endless(), None))
    return TrainerRun(turns, net.module_, lambda: "" if q is None else _of_report(explain_backward(net.module_)))


def accelerate_bert(sizes: TrainerSizes, q: float | None, *, selective: bool = True) -> TrainerRun:
    """A BERT classifier in a loop with Accelerate."""
    accelerator = require("accelerate", extra="accelerate", where=_WHERE).Accelerator(cpu=True)
    model = bert_of(sizes)
    if q is not None and selective:
        selective_backward(model)
    ordered = None if q is None else OrderedLoss(nn.CrossEntropyLoss(reduction="none"), q=q)

    def train(turns: Turns) -> None:
        loader = DataLoader(Endless(), sizes.texts, collate_fn=turns)
        prepared, optimizer, batches = accelerator.prepare(model, fused_adamw(model), loader)
        for batch in batches:
            optimizer.zero_grad()
            outputs = prepared(**(batch if ordered is None else _without_labels(batch)))
            accelerator.backward(outputs.loss if ordered is None else ordered(outputs.logits, batch["labels"]))
            accelerator.clip_grad_norm_(prepared.parameters(), 1.0)
            optimizer.step()

    turns = Turns(texts(sizes.texts)).start(train)
    return TrainerRun(turns, model, lambda: "" if q is None else _of_report(explain_backward(model)))


def transformers_bert(sizes: TrainerSizes, q: float | None, **options: Any) -> TrainerRun:
    """A BERT classifier in Transformers."""
    return _by_transformers(bert_of(sizes), Turns(texts(sizes.texts)), sizes.texts, q, **options)


def transformers_parts(sizes: TrainerSizes, q: float | None, **options: Any) -> TrainerRun:
    """A BERT classifier in Transformers, with gradient accumulation."""
    s = sizes.texts // sizes.parts
    return _by_transformers(bert_of(sizes), Turns(texts(s), sizes.parts), s, q, parts=sizes.parts, **options)


def _parts_by_hand(sizes: TrainerSizes, q: float) -> TrainerRun:
    """As `transformers_parts`, with one graph of all micro-batches of an update."""
    accelerator = require("accelerate", extra="accelerate", where=_WHERE).Accelerator(cpu=True)
    model, s = bert_of(sizes), sizes.texts // sizes.parts

    def train(turns: Turns) -> None:
        batches = iter(accelerator.prepare(DataLoader(Endless(), s, collate_fn=turns)))
        optimizer = fused_adamw(model)
        for update in zip(*[batches] * sizes.parts, strict=True):
            optimizer.zero_grad()
            losses = [per_logits(model(**_without_labels(part)), part["labels"]) for part in update]
            ordered_mean(torch.cat(losses), q).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

    turns = Turns(texts(s), sizes.parts).start(train)
    return TrainerRun(turns, model, lambda: "")


def transformers_tokens(sizes: TrainerSizes, q: float | None, **options: Any) -> TrainerRun:
    """GPT-2 in Transformers, ordered by tokens."""
    turns = Turns(token_sequences(sizes))
    return _by_transformers(gpt2_of(sizes), turns, sizes.sequences, q, unit="token", **options)


def transformers_sequences(sizes: TrainerSizes, q: float | None, **options: Any) -> TrainerRun:
    """GPT-2 in Transformers, ordered by sequences."""
    turns = Turns(token_sequences(sizes))
    return _by_transformers(gpt2_of(sizes), turns, sizes.sequences, q, unit="sample", **options)


def _by_transformers(
    model: Any, turns: Turns, s: int, q: float | None, *, parts: int = 1, unit: str | None = None, **options: Any
) -> TrainerRun:
    from ordered_sgd.integrations.huggingface import OrderedTrainer

    transformers = require("transformers", extra="huggingface", where=_WHERE)
    arguments = _arguments(transformers.TrainingArguments, s, parts)
    how: dict[str, Any] = {"train_dataset": Endless(), "data_collator": turns}
    if q is None:
        trainer = transformers.Trainer(model, arguments, **how)
    else:
        trainer = OrderedTrainer(model, arguments, q=q, unit=unit, **how, **options)
    turns.start(lambda _: trainer.train())
    return TrainerRun(turns, trainer.model, lambda: "" if q is None else _said(trainer.backward_ran, trainer.loss_from))


def trl_tokens(sizes: TrainerSizes, q: float | None, **options: Any) -> TrainerRun:
    """GPT-2 in TRL's SFTTrainer, ordered by tokens."""
    from ordered_sgd.integrations.trl import OrderedSFTTrainer

    trl = require("trl", extra="trl", where=_WHERE)
    datasets, tokenizers = (require(name, extra="trl", where=_WHERE) for name in ("datasets", "tokenizers"))
    transformers = require("transformers", extra="huggingface", where=_WHERE)
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"0": 0}, unk_token="0"))  # asked for, and never used
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="0", eos_token="0")
    # prepared by hand: the batches come from `turns`
    more = {"dataset_kwargs": {"skip_prepare_dataset": True}, "gradient_checkpointing": False, "bf16": False}
    turns = Turns(token_sequences(sizes))
    given = {
        "args": _arguments(trl.SFTConfig, sizes.sequences, 1, **more),
        "train_dataset": datasets.Dataset.from_dict({"input_ids": [[0]]}).select([0] * LAST),
        "data_collator": turns,
        "processing_class": tokenizer,
    }
    if q is None:
        trainer = trl.SFTTrainer(gpt2_of(sizes), **given)
    else:
        trainer = OrderedSFTTrainer(gpt2_of(sizes), q=q, unit="token", **given, **options)
    turns.start(lambda _: trainer.train())
    return TrainerRun(turns, trainer.model, lambda: "" if q is None else _said(trainer.backward_ran, trainer.loss_from))


def _arguments(kind: Any, s: int, parts: int, **more: Any) -> Any:
    """Quiet, without end, and with a rate so small that random labels are never learnt; the rest is the default."""
    return kind(
        tempfile.gettempdir(),  # nothing is written
        max_steps=LAST,
        per_device_train_batch_size=s,
        gradient_accumulation_steps=parts,
        learning_rate=1e-6,
        lr_scheduler_type="constant",
        train_sampling_strategy="sequential",
        remove_unused_columns=False,
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        log_level="error",
        use_cpu=True,
        **more,
    )


def _in_full(build: Callable[..., TrainerRun]) -> Callable[..., TrainerRun]:
    """The same training with whole backward passes, also of the output layer."""
    return partial(build, selective=False, head=False)


def _of_report(report: BackwardReport) -> str:
    """What trainers say, of a model in a loop of one's own."""
    return "only kept samples" if report.skipping else str(report)


def _without_labels(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: part for name, part in batch.items() if name != "labels"}


def _said(*ran: str | None) -> str:
    return "; ".join(part for part in ran if part)


_HALF_TO_EIGHTH, _QUARTER_TO_SIXTEENTH = (0.5, 0.25, 0.125), (0.25, 0.125, 0.0625)
SUBJECTS = {
    "lightning-lenet": TrainerSubject("Lightning, LeNet", lightning_lenet, _QUARTER_TO_SIXTEENTH),
    "lightning-vit": TrainerSubject("Lightning, ViT", lightning_vit, _QUARTER_TO_SIXTEENTH),
    "transformers-bert": TrainerSubject("Transformers, BERT", transformers_bert, _QUARTER_TO_SIXTEENTH),
    "transformers-parts": TrainerSubject(
        "Transformers, BERT, accumulation", transformers_parts, _HALF_TO_EIGHTH, _parts_by_hand
    ),
    "transformers-tokens": TrainerSubject(
        "Transformers, GPT-2, tokens", transformers_tokens, (0.25,), _in_full(transformers_tokens)
    ),
    "transformers-sequences": TrainerSubject(
        "Transformers, GPT-2, sequences", transformers_sequences, (0.25,), _in_full(transformers_sequences)
    ),
    "trl-tokens": TrainerSubject("TRL, GPT-2, tokens", trl_tokens, (0.25,), _in_full(trl_tokens)),
    "skorch-lenet": TrainerSubject("skorch, LeNet", skorch_lenet, _QUARTER_TO_SIXTEENTH),
    "accelerate-bert": TrainerSubject("Accelerate, BERT", accelerate_bert, _QUARTER_TO_SIXTEENTH),
}
