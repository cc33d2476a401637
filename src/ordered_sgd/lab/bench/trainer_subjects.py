"""The trainings that `osgd bench trainers` compares: a partner's trainer as it is, and the same with an ordered loss.

Each function makes one: plain for ``q=None``, else with what the package offers for that trainer. Model, batches,
optimizer and options of the trainer are the same for both.
"""

import logging
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from ordered_sgd.errors import require
from ordered_sgd.lab.bench.opponents import new_optimizer
from ordered_sgd.lab.bench.turns import Turns
from ordered_sgd.lab.bench.workloads import ViT, bert, fused_adamw, images, padded_texts
from ordered_sgd.lab.models import LeNet, channels_last
from ordered_sgd.loss import OrderedLoss
from ordered_sgd.selective import BackwardReport, explain_backward, selective_backward

_BATCHES = 8  # drawn before the training, and taken in turn
_LAST = 10**6  # samples of an epoch: none ends while it is measured
_WHERE = "osgd bench trainers"


@dataclass(frozen=True)
class TrainerSizes:
    """Samples in a batch and sizes of the models; `parts` are the micro-batches of an update."""

    images: int = 64
    vit_layers: int = 6
    vit_width: int = 192
    texts: int = 32
    parts: int = 8
    bert_layers: int = 4
    bert_width: int = 256
    sequences: int = 4
    length: int = 128
    gpt_layers: int = 6
    gpt_width: int = 256
    gpt_words: int = 50_304


FULL = TrainerSizes()


@dataclass(frozen=True)
class TrainerRun:
    """A training that waits for its first batch.

    Parameters
    ----------
    turns
        Its batches; also what ends it.
    ran
        What the updates computed, once the training is closed; empty for a plain trainer.
    """

    turns: Turns
    ran: Callable[[], str]


@dataclass(frozen=True)
class TrainerSubject:
    """What is trained by what, a function that makes its trainings, and the shares that it keeps by default."""

    title: str
    build: Callable[..., TrainerRun]
    qs: tuple[float, ...]


class _Endless(Dataset[int]):
    """The numbers of samples; the batches come from `Turns`."""

    def __len__(self) -> int:
        return _LAST

    def __getitem__(self, index: int) -> int:
        return index


def lightning_lenet(sizes: TrainerSizes, q: float | None, **options: Any) -> TrainerRun:
    """LeNet in Lightning."""
    return _by_lightning(channels_last(LeNet()), _pictures(1, 28, sizes), sizes.images, q, **options)


def lightning_vit(sizes: TrainerSizes, q: float | None, **options: Any) -> TrainerRun:
    """A vision transformer in Lightning."""
    net = channels_last(ViT(layers=sizes.vit_layers, width=sizes.vit_width))
    return _by_lightning(net, _pictures(3, 32, sizes), sizes.images, q, **options)


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
    turns = Turns(batches).start(lambda turns: trainer.fit(Module(), DataLoader(_Endless(), s, collate_fn=turns)))
    return TrainerRun(turns, lambda: "" if callback is None else _words(callback.backward_ran))


def skorch_lenet(sizes: TrainerSizes, q: float | None, **options: Any) -> TrainerRun:
    """LeNet in skorch."""
    from ordered_sgd.integrations.skorch import OrderedNeuralNetClassifier

    skorch = require("skorch", extra="skorch", where=_WHERE)
    kind, given = (skorch.NeuralNetClassifier, {}) if q is None else (OrderedNeuralNetClassifier, {"q": q, **options})
    turns = Turns(_pictures(1, 28, sizes))
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
    turns.start(lambda _: net.fit(_Endless(), None))
    return TrainerRun(turns, lambda: "" if q is None else _of_report(explain_backward(net.module_)))


def accelerate_bert(sizes: TrainerSizes, q: float | None, *, selective: bool = True) -> TrainerRun:
    """A BERT classifier in a loop with Accelerate."""
    accelerator = require("accelerate", extra="accelerate", where=_WHERE).Accelerator(cpu=True)
    model = bert(layers=sizes.bert_layers, width=sizes.bert_width)
    if q is not None and selective:
        selective_backward(model)
    ordered = None if q is None else OrderedLoss(nn.CrossEntropyLoss(reduction="none"), q=q)

    def train(turns: Turns) -> None:
        loader = DataLoader(_Endless(), sizes.texts, collate_fn=turns)
        prepared, optimizer, batches = accelerator.prepare(model, fused_adamw(model), loader)
        for batch in batches:
            optimizer.zero_grad()
            labels = batch.pop("labels")
            outputs = prepared(**batch, labels=labels if ordered is None else None)
            accelerator.backward(outputs.loss if ordered is None else ordered(outputs.logits, labels))
            accelerator.clip_grad_norm_(prepared.parameters(), 1.0)
            optimizer.step()

    turns = Turns(_texts(sizes.texts)).start(train)
    return TrainerRun(turns, lambda: "" if q is None else _of_report(explain_backward(model)))


def transformers_bert(sizes: TrainerSizes, q: float | None, **options: Any) -> TrainerRun:
    """A BERT classifier in Transformers."""
    return _by_transformers(_bert(sizes), Turns(_texts(sizes.texts)), sizes.texts, q, **options)


def transformers_parts(sizes: TrainerSizes, q: float | None, **options: Any) -> TrainerRun:
    """A BERT classifier in Transformers, with gradient accumulation."""
    s = sizes.texts // sizes.parts
    return _by_transformers(_bert(sizes), Turns(_texts(s), sizes.parts), s, q, parts=sizes.parts, **options)


def transformers_tokens(sizes: TrainerSizes, q: float | None, **options: Any) -> TrainerRun:
    """GPT-2 in Transformers, ordered by tokens."""
    turns = Turns(_sequences(sizes))
    return _by_transformers(_gpt2(sizes), turns, sizes.sequences, q, unit="token", **options)


def transformers_sequences(sizes: TrainerSizes, q: float | None, **options: Any) -> TrainerRun:
    """GPT-2 in Transformers, ordered by sequences."""
    turns = Turns(_sequences(sizes))
    return _by_transformers(_gpt2(sizes), turns, sizes.sequences, q, unit="sample", **options)


def _by_transformers(
    model: Any, turns: Turns, s: int, q: float | None, *, parts: int = 1, unit: str | None = None, **options: Any
) -> TrainerRun:
    from ordered_sgd.integrations.huggingface import OrderedTrainer

    transformers = require("transformers", extra="huggingface", where=_WHERE)
    arguments = _arguments(transformers.TrainingArguments, s, parts)
    how: dict[str, Any] = {"train_dataset": _Endless(), "data_collator": turns}
    if q is None:
        trainer = transformers.Trainer(model, arguments, **how)
    else:
        trainer = OrderedTrainer(model, arguments, q=q, unit=unit, **how, **options)
    turns.start(lambda _: trainer.train())
    return TrainerRun(turns, lambda: "" if q is None else _words(trainer.backward_ran, trainer.loss_from))


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
    turns = Turns(_sequences(sizes))
    given = {
        "args": _arguments(trl.SFTConfig, sizes.sequences, 1, **more),
        "train_dataset": datasets.Dataset.from_dict({"input_ids": [[0]]}).select([0] * _LAST),
        "data_collator": turns,
        "processing_class": tokenizer,
    }
    if q is None:
        trainer = trl.SFTTrainer(_gpt2(sizes), **given)
    else:
        trainer = OrderedSFTTrainer(_gpt2(sizes), q=q, unit="token", **given, **options)
    turns.start(lambda _: trainer.train())
    return TrainerRun(turns, lambda: "" if q is None else _words(trainer.backward_ran, trainer.loss_from))


def _arguments(kind: Any, s: int, parts: int, **more: Any) -> Any:
    """Quiet, without end, and with a rate so small that random labels are never learnt; the rest is the default."""
    return kind(
        tempfile.gettempdir(),  # nothing is written
        max_steps=_LAST,
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


def _pictures(channels: int, side: int, sizes: TrainerSizes) -> list[list[Tensor]]:
    make, generator = images(channels, side), torch.Generator().manual_seed(0)
    return [list(make(sizes.images, generator)) for _ in range(_BATCHES)]


def _texts(s: int) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    drawn = [padded_texts(s, generator) for _ in range(_BATCHES)]
    return [{**words, "labels": labels} for words, labels in drawn]


def _sequences(sizes: TrainerSizes) -> list[dict[str, Tensor]]:
    shape, generator = (sizes.sequences, sizes.length), torch.Generator().manual_seed(0)
    drawn = [torch.randint(sizes.gpt_words, shape, generator=generator) for _ in range(_BATCHES)]
    return [{"input_ids": words, "attention_mask": torch.ones_like(words), "labels": words} for words in drawn]


def _bert(sizes: TrainerSizes) -> nn.Module:
    return bert(layers=sizes.bert_layers, width=sizes.bert_width)


def _gpt2(sizes: TrainerSizes) -> Any:
    transformers = require("transformers", extra="huggingface", where=_WHERE)
    config = transformers.GPT2Config(
        vocab_size=sizes.gpt_words,
        n_positions=sizes.length,
        n_embd=sizes.gpt_width,
        n_layer=sizes.gpt_layers,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )
    return transformers.GPT2LMHeadModel(config)


def _of_report(report: BackwardReport) -> str:
    """What trainers say, of a model in a loop of one's own."""
    return "only kept samples" if report.skipping else str(report)


def _words(*ran: str | None) -> str:
    return "; ".join(part for part in ran if part)


_HALF_TO_EIGHTH, _QUARTER_TO_SIXTEENTH = (0.5, 0.25, 0.125), (0.25, 0.125, 0.0625)
SUBJECTS = {
    "lightning-lenet": TrainerSubject("Lightning, LeNet", lightning_lenet, _QUARTER_TO_SIXTEENTH),
    "lightning-vit": TrainerSubject("Lightning, ViT", lightning_vit, _QUARTER_TO_SIXTEENTH),
    "transformers-bert": TrainerSubject("Transformers, BERT", transformers_bert, _QUARTER_TO_SIXTEENTH),
    "transformers-parts": TrainerSubject("Transformers, BERT, accumulation", transformers_parts, _HALF_TO_EIGHTH),
    "transformers-tokens": TrainerSubject("Transformers, GPT-2, tokens", transformers_tokens, (0.25,)),
    "transformers-sequences": TrainerSubject("Transformers, GPT-2, sequences", transformers_sequences, (0.25,)),
    "trl-tokens": TrainerSubject("TRL, GPT-2, tokens", trl_tokens, (0.25,)),
    "skorch-lenet": TrainerSubject("skorch, LeNet", skorch_lenet, _QUARTER_TO_SIXTEENTH),
    "accelerate-bert": TrainerSubject("Accelerate, BERT", accelerate_bert, _QUARTER_TO_SIXTEENTH),
}
