"""What is trained in benchmarks: the paper's networks and the models only benchmarks need, with synthetic batches."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ordered_sgd.lab.models import LeNet, PreActResNet18, channels_last

Batch = tuple[Tensor, Tensor]

VOCABULARY = 256  # bytes
LENGTH = 128  # tokens of a sequence


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
    options
        Engine name to the arguments of `OrderedStep` that this model needs with it.
    notes
        What a reader of the figures must know.
    """

    build: Callable[[], nn.Module]
    make_batch: Callable[[int, torch.Generator], Batch]
    criterion: Callable[[Tensor, Tensor], Tensor]
    mean_loss: Callable[[Tensor, Tensor], Tensor]
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
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
    """A small language model over bytes: every token is scored from those before it.

    >>> CausalTransformer(layers=1)(torch.zeros(2, 128, dtype=torch.int64)).shape
    torch.Size([2, 128, 256])
    """

    def __init__(self, *, layers: int = 4, width: int = 256, heads: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.position = nn.Parameter(0.02 * torch.randn(LENGTH, width))
        self.blocks = nn.Sequential(*(Block(width, heads, causal=True) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY)

    def forward(self, x: Tensor) -> Tensor:
        """Scores (s, tokens, VOCABULARY) of the next token, for tokens (s, LENGTH)."""
        scores: Tensor = self.head(self.norm(self.blocks(self.embedding(x) + self.position)))
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


def sequences(s: int, generator: torch.Generator) -> Batch:
    """Random sequences of bytes, and what follows each of them."""
    text = torch.randint(VOCABULARY, (s, LENGTH + 1), generator=generator)
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


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
        options={"rows": {"batchnorm": "full-batch"}, "twopass": {"batchnorm": "subset"}},
        notes="with BatchNorm rows, which auto runs, and twopass are not exactly the one-liner's gradient",
    ),
    "preact-resnet18-gn": _classifier(lambda: PreActResNet18(norm="group"), images(3, 32)),
    "vit": _classifier(ViT, images(3, 32)),
    "causal": Workload(CausalTransformer, sequences, per_sequence, mean_over_tokens, notes="one loss per sequence"),
    "mlp": _classifier(_mlp, vectors),
    "logistic": _classifier(lambda: nn.Linear(784, 10), vectors),
}
