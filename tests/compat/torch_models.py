"""Small models made of torch's own layers, as tutorials and examples write them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.compat.common import CLASSES, Entry
from tests.contracts.engine_cases_common import Batch, Case, Model, classes, floats, next_token, stack, tokens

WORDS, LENGTH, WIDTH = 200, 24, 64


def entry(name: str, build: Callable[[], nn.Module], batch: Batch, **more: Any) -> Entry:
    return Entry("torch", Case(name, build, batch, **more))


def recurrent(kind: type[nn.RNNBase], **options: Any) -> Callable[[], nn.Module]:
    """A classifier of texts by the last state of a recurrent network."""

    def run(model: Any, ids: Tensor) -> Tensor:
        states, _ = model.rnn(model.embed(ids))
        logits: Tensor = model.head(model.drop(states[:, -1]))
        return logits

    width = WIDTH * (2 if options.get("bidirectional") else 1)

    def build() -> nn.Module:
        rnn = kind(WIDTH, WIDTH, num_layers=2, batch_first=True, dropout=0.1, **options)
        parts = {"embed": nn.Embedding(WORDS, WIDTH), "drop": nn.Dropout(0.1), "head": nn.Linear(width, CLASSES)}
        return Model(run, rnn=rnn, **parts)

    return build


def encoder_layer(norm_first: bool) -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.1, batch_first=True, norm_first=norm_first)


def encoder(norm_first: bool) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        layers = nn.TransformerEncoder(encoder_layer(norm_first), 2, enable_nested_tensor=False)
        return stack(nn.Embedding(WORDS, WIDTH), layers, lambda h: h.mean(1), nn.Linear(WIDTH, CLASSES))

    return build


def checkpointed() -> nn.Module:
    def run(model: Any, ids: Tensor) -> Tensor:
        h = model.embed(ids)
        for layer in model.layers:
            h = checkpoint(layer, h, use_reentrant=False)
        logits: Tensor = model.head(h.mean(1))
        return logits

    layers = nn.ModuleList([encoder_layer(True) for _ in range(2)])
    return Model(run, embed=nn.Embedding(WORDS, WIDTH), layers=layers, head=nn.Linear(WIDTH, CLASSES))


def translator() -> nn.Module:
    def run(model: Any, source: Tensor, target: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        h = model.body(model.embed(source), model.embed(target), tgt_mask=mask)
        logits: Tensor = model.head(h)
        return logits

    body = nn.Transformer(WIDTH, 4, 2, 2, 2 * WIDTH, dropout=0.1, batch_first=True)
    return Model(run, embed=nn.Embedding(WORDS, WIDTH), body=body, head=nn.Linear(WIDTH, WORDS))


def pairs_of_texts(s: int, g: Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
    ids = classes(s, g, LENGTH, count=WORDS)
    return (ids.flip(1), ids), ids


def siamese() -> nn.Module:
    """Both images of a pair through the network as one batch."""

    def run(model: Any, first: Tensor, second: Tensor) -> Tensor:
        a, b = model.body(torch.cat([first, second])).chunk(2)
        return torch.cat([a, b, a - b], 1)

    body = stack(
        nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 12**2, 8)
    )
    return stack_pair(Model(run, body=body), nn.Linear(24, CLASSES))


def stack_pair(first: nn.Module, head: nn.Module) -> nn.Module:
    return Model(lambda model, *inputs: model.head(model.first(*inputs)), first=first, head=head)


def pairs_of_images(s: int, g: Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
    return (torch.randn(s, 1, 28, 28, generator=g), torch.randn(s, 1, 28, 28, generator=g)), classes(s, g)


def lenet() -> nn.Module:
    return stack(
        nn.Conv2d(1, 6, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(120, CLASSES),
    )


def convolutions(norm: Callable[[int], nn.Module]) -> Callable[[], nn.Module]:
    def block(a: int, b: int) -> list[nn.Module]:
        return [nn.Conv2d(a, b, 3, padding=1, bias=False), norm(b), nn.ReLU(), nn.MaxPool2d(2)]

    def build() -> nn.Module:
        head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(32, CLASSES)]
        return stack(*block(3, 16), *block(16, 32), *block(32, 32), *head)

    return build


def autoencoder() -> nn.Module:
    return stack(
        nn.Conv2d(1, 16, 3, 2, 1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, 2, 1),
        nn.ReLU(),
        nn.ConvTranspose2d(32, 16, 2, 2),
        nn.ReLU(),
        nn.ConvTranspose2d(16, 1, 2, 2),
    )


def images_of_themselves(s: int, g: Generator) -> tuple[Tensor, Tensor]:
    x = torch.randn(s, 1, 28, 28, generator=g)
    return x, x


def squared(outputs: Tensor, x: Tensor) -> Tensor:
    return (outputs - x).square().flatten(1).mean(1)


def head() -> list[nn.Module]:
    return [nn.Linear(WIDTH, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, CLASSES)]


def words(**options: Any) -> Callable[[], nn.Module]:
    """A classifier of the mean embedding."""

    def build() -> nn.Module:
        embed = nn.Embedding(2000, WIDTH, **options)
        return stack(embed, lambda h: h.mean(1), *head())

    return build


def bag() -> nn.Module:
    return stack(nn.EmbeddingBag(2000, WIDTH, mode="mean"), *head())


def temporal() -> nn.Module:
    def block(dilation: int) -> nn.Module:
        return stack(
            lambda x: F.pad(x, (2 * dilation, 0)),
            nn.Conv1d(WIDTH, WIDTH, 3, dilation=dilation),
            nn.ReLU(),
            nn.Dropout(0.1),
        )

    return stack(nn.Conv1d(4, WIDTH, 1), block(1), block(2), block(4), lambda h: h.mean(2), nn.Linear(WIDTH, CLASSES))


def mlp() -> nn.Module:
    return stack(
        nn.Linear(784, 512), nn.ReLU(), nn.Dropout(0.2), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, CLASSES)
    )


TORCH = [
    entry("MLP with dropout", mlp, floats(784)),
    entry("LeNet with dropout", lenet, floats(1, 28, 28)),
    entry("convolutions with GroupNorm", convolutions(lambda n: nn.GroupNorm(4, n)), floats(3, 32, 32)),
    entry("convolutions with BatchNorm", convolutions(nn.BatchNorm2d), floats(3, 32, 32), coupled=True),
    entry("convolutions with InstanceNorm", convolutions(nn.InstanceNorm2d), floats(3, 32, 32)),
    entry(
        "convolutions with InstanceNorm and running statistics",
        convolutions(lambda n: nn.InstanceNorm2d(n, track_running_stats=True)),
        floats(3, 32, 32),
    ),
    entry("convolutional autoencoder", autoencoder, images_of_themselves, criterion=squared),
    entry("dilated convolutions over time", temporal, floats(4, 64)),
    entry("LSTM", recurrent(nn.LSTM), tokens(LENGTH, WORDS)),
    entry("LSTM, bidirectional", recurrent(nn.LSTM, bidirectional=True), tokens(LENGTH, WORDS)),
    entry("GRU", recurrent(nn.GRU), tokens(LENGTH, WORDS)),
    entry("RNN", recurrent(nn.RNN), tokens(LENGTH, WORDS)),
    entry("TransformerEncoder", encoder(False), tokens(LENGTH, WORDS)),
    entry("TransformerEncoder, norm first", encoder(True), tokens(LENGTH, WORDS)),
    entry("TransformerEncoder, checkpointed", checkpointed, tokens(LENGTH, WORDS)),
    entry("Transformer", translator, pairs_of_texts, criterion=next_token),
    entry("siamese convolutions", siamese, pairs_of_images),
    entry("mean of embeddings", words(), tokens(LENGTH, 2000)),
    entry("mean of embeddings, sparse gradient", words(sparse=True), tokens(LENGTH, 2000)),
    entry("mean of embeddings, max_norm", words(max_norm=1.0), tokens(LENGTH, 2000)),
    entry("EmbeddingBag", bag, tokens(LENGTH, 2000)),
]
