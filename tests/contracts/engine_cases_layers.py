"""Convolutions, norms, recurrent layers and randomness. Of these only BatchNorm lets samples influence each other."""

from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tests.contracts.engine_cases_common import (
    Case,
    Model,
    around,
    around_layer,
    classes,
    coupled,
    floats,
    language,
    next_token,
    next_token_flat,
    param,
    stack,
    tokens,
)

IMAGE = floats(3, 8, 8)
SEQUENCE = floats(5, 8)  # 5 positions, 8 features


def pixels(x: Tensor) -> Tensor:
    return x.mean((2, 3))


def image(*layers: Any, channels: int = 8, bias: bool = True) -> Any:
    """A convolution to 8 channels, the layers, a mean over the pixels and a head."""
    return lambda: stack(
        nn.Conv2d(3, 8, 3, padding=1, bias=bias), *(layer() for layer in layers), pixels, nn.Linear(channels, 4)
    )


CONVOLUTIONS = [
    Case("Linear 2-D", lambda: stack(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4)), floats(6), slow=False),
    Case("Linear 3-D", lambda: stack(nn.Linear(8, 6), nn.GELU(), lambda h: h.mean(1), nn.Linear(6, 4)), SEQUENCE),
    Case(
        "Linear 3-D, T equal to s",
        lambda: stack(nn.Linear(8, 12), nn.GELU(), lambda h: h.mean(1), nn.Linear(12, 4)),
        floats(12, 8),
    ),
    Case(
        "Conv1d",
        lambda: stack(nn.Conv1d(8, 6, 3, padding=1), nn.ReLU(), lambda h: h.mean(2), nn.Linear(6, 4)),
        floats(8, 9),
    ),
    Case(
        "Conv2d",
        lambda: stack(nn.Conv2d(3, 6, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(96, 4)),
        IMAGE,
        slow=False,
    ),
    Case(
        "Conv2d channels_last",
        lambda: image(lambda: nn.Conv2d(8, 8, 3), nn.ReLU)().to(memory_format=torch.channels_last),
        lambda s, g: (IMAGE(s, g)[0].contiguous(memory_format=torch.channels_last), classes(s, g)),
    ),
    Case(
        "Conv3d",
        lambda: stack(nn.Conv3d(2, 4, 3, padding=1), nn.ReLU(), lambda h: h.mean((2, 3, 4)), nn.Linear(4, 4)),
        floats(2, 4, 5, 6),
    ),
    Case("ConvTranspose2d", image(nn.ReLU, lambda: nn.ConvTranspose2d(8, 8, 3, stride=2)), IMAGE),
    Case(
        "depthwise and grouped convolution",
        image(lambda: nn.Conv2d(8, 8, 3, groups=8), nn.SiLU, lambda: nn.Conv2d(8, 8, 1, groups=2)),
        IMAGE,
    ),
    Case("MaxPool", image(lambda: nn.MaxPool2d(2), nn.ReLU), IMAGE),
    Case("ReLU, then MaxPool", image(nn.ReLU, lambda: nn.MaxPool2d(2)), IMAGE, slow=False),
    Case("Tanh, then MaxPool", image(nn.Tanh, lambda: nn.MaxPool2d(2)), IMAGE),
    Case("AvgPool and LPPool", image(lambda: nn.AvgPool2d(2), nn.Softplus, lambda: nn.LPPool2d(2.0, 2)), IMAGE),
    Case(
        "AdaptiveMaxPool and AdaptiveAvgPool to 3x3",
        lambda: stack(
            nn.Conv2d(3, 8, 3), nn.AdaptiveMaxPool2d(5), nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(72, 4)
        ),
        IMAGE,
    ),
    Case(
        "upsampling, pixel shuffle and padding",
        lambda: stack(
            nn.Conv2d(3, 8, 3),
            nn.Upsample(scale_factor=2, mode="bilinear"),
            nn.PixelShuffle(2),
            nn.ReflectionPad2d(1),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(2, 8, 3, stride=2),
            pixels,
            nn.Linear(8, 4),
        ),
        IMAGE,
    ),
]

NORMS = [
    coupled("BatchNorm2d in training", image(lambda: nn.BatchNorm2d(8), nn.ReLU, bias=False), IMAGE, slow=False),
    coupled("BatchNorm1d in training", around_layer(lambda: nn.BatchNorm1d(16)), floats(6)),
    Case("BatchNorm2d in eval mode", lambda: image(lambda: nn.BatchNorm2d(8), nn.ReLU)().eval(), IMAGE),
    Case("LayerNorm", around_layer(lambda: nn.LayerNorm(16)), floats(6)),
    Case("GroupNorm", image(lambda: nn.GroupNorm(4, 8), nn.ReLU), IMAGE),
    Case("InstanceNorm2d affine", image(lambda: nn.InstanceNorm2d(8, affine=True), nn.ReLU), IMAGE, expects="either"),
    Case(
        "InstanceNorm2d with running statistics",
        image(lambda: nn.InstanceNorm2d(8, track_running_stats=True), nn.ReLU),
        IMAGE,
        expects="either",
        twopass=None,
    ),
    Case("RMSNorm", lambda: stack(nn.Linear(8, 8), nn.RMSNorm(8), lambda h: h.mean(1), nn.Linear(8, 4)), SEQUENCE),
    Case(
        "local response and weight standardisation",
        lambda: Model(
            lambda m, x: m.head(
                pixels(m.norm(F.conv2d(x, m.kernel - m.kernel.mean((1, 2, 3), keepdim=True), padding=1)).relu())
            ),
            kernel=param(8, 3, 3, 3),
            norm=nn.LocalResponseNorm(3),
            head=nn.Linear(8, 4),
        ),
        IMAGE,
    ),
    Case(
        "Embedding with padding",
        lambda: stack(nn.Embedding(11, 8, padding_idx=0), lambda h: h.mean(1), nn.Linear(8, 4)),
        tokens(5),
    ),
    Case("EmbeddingBag", lambda: stack(nn.EmbeddingBag(11, 8), nn.Linear(8, 4)), tokens(5), expects="either"),
]

LANGUAGE = [
    Case(
        "tied embeddings, a loss per sequence",
        lambda: Model(
            lambda m, ids: m.mix(m.words(ids)).tanh() @ m.words.weight.T, words=nn.Embedding(11, 8), mix=nn.Linear(8, 8)
        ),
        language(6),
        next_token,
    ),
    Case(
        "language model, loss through view(-1, V) and view(s, T)",
        lambda: stack(nn.Embedding(11, 8), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 11)),
        language(6),
        next_token_flat,
    ),
]


def recurrent(kind: type[nn.Module], batch_first: bool = True, **options: Any) -> nn.Module:
    """The last state of a recurrent layer over (s, T, 8)."""
    width = 8 * (2 if options.get("bidirectional") else 1)
    return Model(
        lambda m, x: m.head(m.cell(x)[0][:, -1] if batch_first else m.cell(x.transpose(0, 1))[0][-1]),
        cell=kind(8, 8, batch_first=batch_first, **options),
        head=nn.Linear(width, 4),
    )


def cell_loop(m: Any, x: Tensor) -> Tensor:
    h = c = x.new_zeros(x.shape[0], 8)
    for t in range(x.shape[1]):
        h, c = m.cell(x[:, t], (h, c))
    return m.head(h)


def packed(m: Any, x: Tensor, lengths: Tensor) -> Tensor:
    outputs, _ = m.cell(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
    return m.head(pad_packed_sequence(outputs, batch_first=True)[0].sum(1))


def with_lengths(s: int, g: Generator) -> tuple[Any, Tensor]:
    lengths = torch.randint(1, 6, (s,), generator=g)
    lengths[0] = 5
    return (torch.randn(s, 5, 8, generator=g), lengths), classes(s, g)


RECURRENT = [
    Case("LSTM batch first", lambda: recurrent(nn.LSTM, num_layers=2, bidirectional=True), SEQUENCE, expects="either"),
    Case("LSTM sequence first", lambda: recurrent(nn.LSTM, False), SEQUENCE, expects="either"),
    Case("GRU batch first", lambda: recurrent(nn.GRU, num_layers=2), SEQUENCE),
    Case("GRU sequence first", lambda: recurrent(nn.GRU, False), SEQUENCE),
    Case("RNN with tanh", lambda: recurrent(nn.RNN, bidirectional=True), SEQUENCE),
    Case("LSTMCell in a loop", lambda: Model(cell_loop, cell=nn.LSTMCell(8, 8), head=nn.Linear(8, 4)), SEQUENCE),
    Case(
        "packed sequence",
        lambda: Model(packed, cell=nn.GRU(8, 8, batch_first=True), head=nn.Linear(8, 4)),
        with_lengths,
        expects="either",
        twopass=None,
    ),
]


RANDOM = [
    Case("dropout", around_layer(lambda: nn.Dropout(0.5)), floats(6), slow=False),
    Case("dropout2d and alpha dropout", image(lambda: nn.Dropout2d(0.3), nn.SELU, lambda: nn.AlphaDropout(0.2)), IMAGE),
    Case("noise in the forward", around(lambda h: h + 0.1 * torch.randn_like(h)), floats(6), twopass=None),
    Case(
        "stochastic depth per sample",
        around(lambda h: h + (torch.rand(h.shape[0], 1) < 0.5).float() * h.sin()),
        floats(6),
        twopass=None,
    ),
    Case(
        "rrelu and gumbel softmax",
        around(lambda h: F.gumbel_softmax(F.rrelu(h, training=True))),
        floats(6),
        twopass=None,
    ),
]

LAYERS = [*CONVOLUTIONS, *NORMS, *LANGUAGE, *RECURRENT, *RANDOM]
