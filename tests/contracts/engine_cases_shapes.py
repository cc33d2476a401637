"""Attention, and reshapes that put the batch dimension in every place."""

from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from tests.contracts.engine_cases_common import CLASSES, Case, Model, around, classes, floats, param, stack

IMAGE = floats(3, 8, 8)
SEQUENCE = floats(5, 8)  # 5 positions, 8 features


def pixels(x: Tensor) -> Tensor:
    return x.mean((2, 3))


def self_attention(m: Any, x: Tensor, **options: Any) -> Tensor:
    """Two heads of four features, then the mean over positions."""
    q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in m.qkv(x).chunk(3, -1))
    mixed = F.scaled_dot_product_attention(q, k, v, **options)
    return m.head(mixed.transpose(1, 2).flatten(2).mean(1))


def sdpa(**options: Any) -> Any:
    return lambda: Model(lambda m, x: self_attention(m, x, **options), qkv=nn.Linear(8, 24), head=nn.Linear(8, CLASSES))


def sdpa_masked(make_mask: Any) -> Any:
    def build() -> nn.Module:
        model = Model(lambda m, x: self_attention(m, x, attn_mask=m.mask), qkv=nn.Linear(8, 24), head=nn.Linear(8, 4))
        model.register_buffer("mask", make_mask())
        return model

    return build


def multihead(batch_first: bool, need_weights: bool) -> nn.Module:
    def run(m: Any, x: Tensor) -> Tensor:
        x = x if batch_first else x.transpose(0, 1)
        mixed, weights = m.attention(x, x, x, need_weights=need_weights)
        pooled = mixed.mean(1 if batch_first else 0)
        return m.head(pooled) + (weights.sum(1)[:, :4] if need_weights else 0)

    return Model(run, attention=nn.MultiheadAttention(8, 2, batch_first=batch_first), head=nn.Linear(8, 4))


def encoder_with_padding(m: Any, x: Tensor, padding: Tensor) -> Tensor:
    hidden = m.layer(x.transpose(0, 1), src_key_padding_mask=padding).transpose(0, 1)
    return m.head((hidden * ~padding[..., None]).sum(1))


def with_padding(s: int, g: Generator) -> tuple[Any, Tensor]:
    padding = torch.arange(5) >= torch.randint(2, 6, (s, 1), generator=g)
    return (torch.randn(s, 5, 8, generator=g), padding), classes(s, g)


def encoder(dropout: float, batch_first: bool) -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout, batch_first=batch_first)


ATTENTION = [
    Case("MultiheadAttention with weights", lambda: multihead(True, True), SEQUENCE),
    Case("MultiheadAttention sequence first", lambda: multihead(False, False), SEQUENCE),
    Case(
        "TransformerEncoderLayer with dropout",
        lambda: stack(encoder(0.2, True), lambda h: h[:, 0], nn.Linear(8, 4)),
        SEQUENCE,
        slow=False,
        twopass=None,
    ),
    Case(
        "TransformerEncoderLayer sequence first with a padding mask",
        lambda: Model(encoder_with_padding, layer=encoder(0.0, False), head=nn.Linear(8, 4)),
        with_padding,
    ),
    Case("sdpa", sdpa(), SEQUENCE),
    Case("sdpa causal", sdpa(is_causal=True), SEQUENCE, slow=False),
    Case("sdpa with a mask for all samples", sdpa_masked(lambda: torch.ones(5, 5).tril().bool()), SEQUENCE),
    Case("sdpa with a float mask (1, 1, T, T)", sdpa_masked(lambda: torch.randn(1, 1, 5, 5)), SEQUENCE),
    Case("sdpa with dropout", sdpa(dropout_p=0.3), SEQUENCE, twopass=None),
    Case(
        "patches, positions and a class token",
        lambda: Model(
            lambda m, x: m.head(
                m.layer(torch.cat([m.token.expand(x.shape[0], -1, -1), m.patch(x).flatten(2).mT], 1) + m.position)[:, 0]
            ),
            patch=nn.Conv2d(3, 8, 4, stride=4),
            token=param(1, 1, 8),
            position=param(1, 5, 8),
            layer=encoder(0.0, True),
            head=nn.Linear(8, 4),
        ),
        IMAGE,
        slow=False,
    ),
]


def add_in_place(h: Tensor) -> Tensor:
    h = torch.relu_(h * 1.5) * 2
    return h.add_(0.5).mul_(0.5)


def write_a_slice(h: Tensor) -> Tensor:
    out = h * 1.0
    out[:, 2:5] = h[:, 5:8].sin()
    return out


def repeat_positions(m: Any, x: Tensor) -> Tensor:
    where = torch.arange(x.shape[1]).repeat(x.shape[0], 1)
    return m.head((x + m.position(where) + m.shift.repeat(x.shape[0], 1, 1)).tanh().mean(1))


def shuffle_views(h: Tensor) -> Tensor:
    a, b = h.view(-1, 4, 4).permute(2, 0, 1).chunk(2)
    return torch.stack([*a.unbind(0), *b.unbind(0)], 2).flatten(1)


def gather_within(h: Tensor) -> Tensor:
    order = h.detach().argsort(1)
    out = torch.zeros_like(h).scatter(1, order.flip(1), h.sin())
    return out.gather(1, order) + h[torch.arange(h.shape[0]), order[:, 0]][:, None]


def batch_in_the_middle(h: Tensor, layer: nn.Module) -> Tensor:
    """(s, 4, 4) as rows of (4, s, 2): the batch is neither the outermost nor the innermost part."""
    rows = h.view(-1, 4, 2, 2).permute(1, 0, 2, 3)  # (4, s, 2, 2)
    flat = layer(rows.reshape(4 * h.shape[0] * 2, 2))
    return flat.view(4, h.shape[0], 2, 2).permute(1, 0, 2, 3).flatten(1)


def warp(m: Any, x: Tensor) -> Tensor:
    grid = m.where(pixels(x)).tanh().view(-1, 4, 4, 2)
    return m.head(pixels(F.grid_sample(m.first(x).roll((1, 2), (2, 3)).flip(3), grid, align_corners=False)))


def warp_affine(m: Any, x: Tensor) -> Tensor:
    grid = F.affine_grid(m.where(pixels(x)).view(-1, 2, 3), x.shape, align_corners=False)
    return m.head(pixels(F.grid_sample(m.first(x), grid, align_corners=False)))


def flattening(run: Any, width: int) -> Any:
    return lambda: Model(
        lambda m, x: m.head(run(m.first(x), m.inner)),
        first=nn.Linear(6, 16),
        inner=nn.Linear(width, width),
        head=nn.Linear(16, 4),
    )


RESHAPES = [
    Case("in-place ReLU and add_", around(add_in_place), floats(6)),
    Case("in-place slice assignment", around(write_a_slice), floats(6)),
    Case("residual, relu6 and hardswish", around(lambda h: h + F.hardswish(F.relu6(3 * h))), floats(6)),
    Case(
        "concatenated channels",
        lambda: Model(
            lambda m, x: m.head(pixels(torch.cat([h := m.a(x).relu(), m.b(h).relu()], 1))),
            a=nn.Conv2d(3, 6, 3, padding=1),
            b=nn.Conv2d(6, 6, 3, padding=1),
            head=nn.Linear(12, 4),
        ),
        IMAGE,
    ),
    Case(
        "repeated parameter and arange positions",
        lambda: Model(repeat_positions, position=nn.Embedding(5, 8), shift=param(1, 5, 8), head=nn.Linear(8, 4)),
        SEQUENCE,
    ),
    Case(
        "einsum",
        lambda: Model(
            lambda m, x: torch.einsum("btd,dec,tc->be", x, m.core, m.side).tanh() @ m.out,
            core=param(8, 6, 3),
            side=param(5, 3),
            out=param(6, 4),
        ),
        SEQUENCE,
    ),
    Case(
        "einsum with the batch in the middle",
        lambda: Model(
            lambda m, x: torch.einsum("tbh,bth->bh", torch.einsum("btd,dh->tbh", x, m.core).sin(), x[..., :6]) @ m.out,
            core=param(8, 6),
            out=param(6, 4),
        ),
        SEQUENCE,
        expects="either",
    ),
    Case(
        "bilinear and outer product",
        lambda: Model(
            lambda m, x: m.head((m.first(x, x).unsqueeze(2) * x.unsqueeze(1)).flatten(1)),
            first=nn.Bilinear(6, 6, 5),
            head=nn.Linear(30, 4),
        ),
        floats(6),
    ),
    Case("stack, unbind, chunk and permute", around(shuffle_views), floats(6)),
    Case(
        "flattened, batch outermost",
        flattening(lambda h, layer: layer(h.view(-1, 4)).view(h.shape[0], -1), 4),
        floats(6),
    ),
    Case(
        "flattened, batch innermost",
        flattening(
            lambda h, layer: (
                layer(h.view(-1, 4, 4).permute(1, 0, 2).reshape(-1, 4)).view(4, -1, 4).transpose(0, 1).flatten(1)
            ),
            4,
        ),
        floats(6),
        slow=False,
    ),
    Case("flattened, batch in the middle", flattening(batch_in_the_middle, 2), floats(6), slow=False),
    Case(
        "softmax, log, clamp and where",
        around(lambda h: torch.where(h > 0, h.softmax(1).log(), h.clamp(-0.5, 0.5))),
        floats(6),
    ),
    Case(
        "topk, sort and max within a sample",
        around(lambda h: torch.cat([h.topk(3).values, h.sort(1).values[:, :12], h.max(1, keepdim=True).values], 1)),
        floats(6),
    ),
    Case("gather, scatter and index within a sample", around(gather_within), floats(6), expects="either", slow=False),
    Case("cumsum, flip and roll within a sample", around(lambda h: h.cumsum(1).flip(1).roll(2, 1)), floats(6)),
    Case(
        "repeat_interleave and folding back",
        around(lambda h: h.repeat_interleave(3, 0).sin().view(-1, 3, 16).mul(torch.arange(3.0)[:, None]).sum(1)),
        floats(6),
    ),
    Case(
        "two copies of the batch one after the other",
        around(lambda h: torch.cat([h, 2 * h]).sin().view(2, -1, 16).sum(0)),
        floats(6),
        expects="either",
    ),
    Case(
        "unfold and fold",
        lambda: Model(
            lambda m, x: m.head(pixels(F.fold(m.mix(F.unfold(x, 3, padding=1).mT).mT, 8, 2, stride=2))),
            mix=nn.Linear(27, 32),
            head=nn.Linear(8, 4),
        ),
        floats(3, 4, 4),
    ),
    Case(
        "grid_sample, roll and flip",
        lambda: Model(warp, first=nn.Conv2d(3, 3, 3, padding=1), where=nn.Linear(3, 32), head=nn.Linear(3, 4)),
        IMAGE,
    ),
    Case(
        "affine grid",
        lambda: Model(warp_affine, first=nn.Conv2d(3, 3, 3), where=nn.Linear(3, 6), head=nn.Linear(3, 4)),
        IMAGE,
        expects="either",
    ),
    Case(
        "sets of points through BatchNorm in eval mode",
        lambda: Model(
            lambda m, x: m.head(m.norm(m.first(x).flatten(0, 1)).relu().view(*x.shape[:2], 8).amax(1)),
            first=nn.Linear(8, 8),
            norm=nn.BatchNorm1d(8),
            head=nn.Linear(8, 4),
        ).eval(),
        SEQUENCE,
    ),
    Case(
        "FFT and complex numbers",
        lambda: Model(
            lambda m, x: m.head((torch.fft.rfft(x, dim=1) * torch.view_as_complex(m.filter)).abs().flatten(1)),
            filter=param(3, 8, 2),
            head=nn.Linear(24, 4),
        ),
        SEQUENCE,
    ),
]

SHAPES = [*ATTENTION, *RESHAPES]
