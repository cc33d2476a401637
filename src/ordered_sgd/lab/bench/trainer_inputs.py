"""What trainers train in `osgd bench trainers`: models, and batches that are drawn before the training."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from ordered_sgd.errors import require
from ordered_sgd.lab.bench.workloads import bert, images, padded_texts

_BATCHES = 8  # taken in turn
LAST = 10**6  # samples of an epoch: none ends while it is measured


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


class Endless(Dataset[int]):
    """The numbers of samples; the batches come from `Turns`."""

    def __len__(self) -> int:
        return LAST

    def __getitem__(self, index: int) -> int:
        return index


def pictures(channels: int, side: int, sizes: TrainerSizes) -> list[list[Tensor]]:
    """Batches of random images with ten classes."""
    make, generator = images(channels, side), torch.Generator().manual_seed(0)
    return [list(make(sizes.images, generator)) for _ in range(_BATCHES)]


def texts(s: int) -> list[dict[str, Tensor]]:
    """Batches of s random texts of 128 tokens with two classes, as a tokenizer pads them."""
    generator = torch.Generator().manual_seed(0)
    drawn = [padded_texts(s, generator) for _ in range(_BATCHES)]
    return [{**words, "labels": labels} for words, labels in drawn]


def token_sequences(sizes: TrainerSizes) -> list[dict[str, Tensor]]:
    """Batches of random texts whose labels are their own tokens."""
    shape, generator = (sizes.sequences, sizes.length), torch.Generator().manual_seed(0)
    drawn = [torch.randint(sizes.gpt_words, shape, generator=generator) for _ in range(_BATCHES)]
    return [{"input_ids": words, "attention_mask": torch.ones_like(words), "labels": words} for words in drawn]


def bert_of(sizes: TrainerSizes) -> nn.Module:
    """A BERT classifier, in training mode."""
    return bert(layers=sizes.bert_layers, width=sizes.bert_width)


def gpt2_of(sizes: TrainerSizes) -> Any:
    """A GPT-2 with the head of a language model."""
    transformers = require("transformers", extra="huggingface", where="osgd bench trainers")
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
