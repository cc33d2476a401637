"""What is trained in benchmarks: the paper's networks and the models only benchmarks need, with synthetic batches."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from ordered_sgd.engines import Rows, Strategy, TwoPass
from ordered_sgd.errors import require
from ordered_sgd.lab.bench.opponents import new_optimizer
from ordered_sgd.lab.models import LeNet, PreActResNet18, channels_last

Batch = tuple[Any, Tensor]  # x is a tensor, or a dict of tensors for model(**x)

BYTES = 256  # a vocabulary
LENGTH = 128  # tokens of a sequence
BERT_VOCABULARY = 30_522  # of bert-base-uncased


@dataclass(frozen=True)
class Workload:
    """A training step to measure: a model, its loss, and batches of the right shape.

    Parameters
    ----------
    build
        A new model in training mode, from torch's global generator.
    make_batch
        ``make_batch(s, generator)`` draws a batch (x, y) of s samples. Images are channels-last, the faster layout for
        convolutions on a CPU, so that plain SGD has it too.
    criterion
        One loss per sample.
    mean_loss
        The mean of these losses in as few operations as torch has: what a plain SGD loop calls.
    engines
        What an engine's name stands for with this model, where it needs options.
    optimizer
        ``optimizer(model)`` returns the optimizer of every step, plain SGD's too.
    max_grad_norm
        Every step clips the gradient's norm to this; None for no clipping.
    needs
        A package of the extra ``huggingface`` that `build` imports; empty if torch is enough.
    notes
        What a reader of the figures must know.
    """

    build: Callable[[], nn.Module]
    make_batch: Callable[[int, torch.Generator], Batch]
    criterion: Callable[[Any, Tensor], Tensor]
    mean_loss: Callable[[Any, Tensor], Tensor]
    engines: Mapping[str, Strategy] = field(default_factory=dict)
    optimizer: Callable[[nn.Module], Optimizer] = new_optimizer
    max_grad_norm: float | None = None
    needs: str = ""
    notes: str = ""


class Block(nn.Module):
    """A transformer layer: attention, then two linear layers, each added to its normalised input."""

    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """New tokens of the same shape, (s, tokens, width)."""
        s, tokens, width = x.shape
        split = self.qkv(self.norm1(x)).view(s, tokens, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4).unbind(0)  # (s, heads, tokens, width / heads) each
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        x = x + self.out(seen.transpose(1, 2).reshape(s, tokens, width))
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class ViT(nn.Module):
    """A vision transformer on 32x32 images: patches of 4x4, tokens averaged before the linear layer.

    >>> ViT(layers=1)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    def __init__(self, *, layers: int = 6, width: int = 192, heads: int = 3) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, kernel_size=4, stride=4)
        self.position = nn.Parameter(0.02 * torch.randn(64, width))
        self.blocks = nn.Sequential(*(Block(width, heads, causal=False) for _ in range(layers)))
        self.norm, self.classifier = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Scores (s, 10) of images (s, 3, 32, 32)."""
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.position
        scores: Tensor = self.classifier(self.norm(self.blocks(tokens)).mean(1))
        return scores


class CausalTransformer(nn.Module):
    """A small language model: every token is scored from those before it.

    >>> CausalTransformer(layers=1)(torch.zeros(2, 128, dtype=torch.int64)).shape
    torch.Size([2, 128, 256])
    """

    def __init__(
        self, *, layers: int = 4, width: int = 256, heads: int = 4, vocabulary: int = BYTES, length: int = LENGTH
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(0.02 * torch.randn(length, width))
        self.blocks = nn.Sequential(*(Block(width, heads, causal=True) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def hidden(self, x: Tensor) -> Tensor:
        """What the output layer is given, (s, length, width), for tokens (s, length)."""
        states: Tensor = self.norm(self.blocks(self.embedding(x) + self.position))
        return states

    def forward(self, x: Tensor) -> Tensor:
        """Scores (s, length, vocabulary) of the next token, for tokens (s, length)."""
        scores: Tensor = self.head(self.hidden(x))
        return scores


def per_sample(outputs: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of each sample, shape (s,)."""
    return F.cross_entropy(outputs, y, reduction="none")


def per_sequence(outputs: Tensor, y: Tensor) -> Tensor:
    """Mean cross-entropy over the tokens of each sequence, shape (s,)."""
    return F.cross_entropy(outputs.flatten(0, 1), y.flatten(), reduction="none").view(y.shape).mean(1)


def mean_over_tokens(outputs: Tensor, y: Tensor) -> Tensor:
    """Mean cross-entropy over all tokens of all sequences."""
    return F.cross_entropy(outputs.flatten(0, 1), y.flatten())


def per_logits(outputs: Any, y: Tensor) -> Tensor:
    """Cross-entropy of each sample, shape (s,), for the outputs of a Transformers model."""
    return F.cross_entropy(outputs.logits, y, reduction="none")


def mean_of_logits(outputs: Any, y: Tensor) -> Tensor:
    """Mean cross-entropy for the outputs of a Transformers model."""
    return F.cross_entropy(outputs.logits, y)


def images(channels: int, side: int) -> Callable[[int, torch.Generator], Batch]:
    """A maker of random channels-last images with ten classes."""

    def make_batch(s: int, generator: torch.Generator) -> Batch:
        x = torch.randn(s, channels, side, side, generator=generator)
        # .to sets the strides also for one channel, where .contiguous finds nothing to do
        return x.to(memory_format=torch.channels_last), torch.randint(10, (s,), generator=generator)

    return make_batch


def vectors(s: int, generator: torch.Generator) -> Batch:
    """Random vectors of 784 numbers with ten classes."""
    return torch.randn(s, 784, generator=generator), torch.randint(10, (s,), generator=generator)


def sequences(vocabulary: int, length: int) -> Callable[[int, torch.Generator], Batch]:
    """A maker of random sequences of tokens, and of the token that follows each."""

    def make_batch(s: int, generator: torch.Generator) -> Batch:
        text = torch.randint(vocabulary, (s, length + 1), generator=generator)
        return text[:, :-1].contiguous(), text[:, 1:].contiguous()

    return make_batch


def _language_model(vocabulary: int, length: int, notes: str) -> Workload:
    build = partial(CausalTransformer, vocabulary=vocabulary, length=length)
    return Workload(build, sequences(vocabulary, length), per_sequence, mean_over_tokens, notes=notes)


def padded_texts(s: int, generator: torch.Generator) -> Batch:
    """Random token ids with two classes, of 64 to 128 tokens and padded to 128, as a tokenizer returns them."""
    ids = torch.randint(BERT_VOCABULARY, (s, LENGTH), generator=generator)
    lengths = torch.randint(LENGTH // 2, LENGTH + 1, (s, 1), generator=generator)
    mask = (torch.arange(LENGTH) < lengths).to(torch.int64)
    return {"input_ids": ids * mask, "attention_mask": mask}, torch.randint(2, (s,), generator=generator)


def bert(*, layers: int = 4, width: int = 256) -> nn.Module:
    """A small BERT classifier of the Transformers library, as it is, with random weights."""
    transformers = require("transformers", extra="huggingface", where="osgd bench")
    config = transformers.BertConfig(
        vocab_size=BERT_VOCABULARY,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=4 * width,
        max_position_embeddings=LENGTH,
        hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1,
        num_labels=2,
    )
    model: nn.Module = transformers.BertForSequenceClassification(config)
    return model.train()


def fused_adamw(model: nn.Module) -> Optimizer:
    """Fused AdamW, with a rate so small that random labels are never learnt."""
    return torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))


def _classifier(
    build: Callable[[], nn.Module], make_batch: Callable[[int, torch.Generator], Batch], **more: Any
) -> Workload:
    return Workload(lambda: channels_last(build()), make_batch, per_sample, F.cross_entropy, **more)


WORKLOADS: dict[str, Workload] = {
    "lenet": _classifier(LeNet, images(1, 28)),
    "preact-resnet18-bn": _classifier(
        PreActResNet18,
        images(3, 32),
        engines={"rows": Rows(batchnorm="full-batch"), "twopass": TwoPass(batchnorm="subset")},
        notes="with BatchNorm, rows and twopass approximate the one-liner's gradient; auto runs it in full",
    ),
    "preact-resnet18-gn": _classifier(lambda: PreActResNet18(norm="group"), images(3, 32)),
    "vit": _classifier(ViT, images(3, 32)),
    "causal": _language_model(BYTES, LENGTH, "one loss per sequence of 128 bytes"),
    "causal-32k": _language_model(32_000, 32, "one loss per sequence of 32 tokens, of a vocabulary of 32,000"),
    "mlp": _classifier(_mlp, vectors),
    "logistic": _classifier(lambda: nn.Linear(784, 10), vectors),
    "bert": Workload(
        bert,
        padded_texts,
        per_logits,
        mean_of_logits,
        optimizer=fused_adamw,
        max_grad_norm=1.0,
        needs="transformers",
        notes="AdamW instead of SGD and gradients clipped to norm 1, in every row",
    ),
}


def installed() -> list[str]:
    """The workloads whose packages are installed.

    >>> "lenet" in installed()
    True
    """
    return [name for name, workload in WORKLOADS.items() if not workload.needs or find_spec(workload.needs)]
