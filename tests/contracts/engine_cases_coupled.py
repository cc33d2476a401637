"""Models whose samples influence each other, some of them well hidden, and models that only look so."""

from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from tests.contracts.engine_cases_common import (
    CE,
    Case,
    Model,
    around,
    around_layer,
    classes,
    coupled,
    floats,
    param,
    stack,
)

VECTOR = floats(6)


def body() -> nn.Module:
    return stack(nn.Linear(6, 16), nn.Tanh())


def zero_scale() -> nn.Module:
    norm = nn.BatchNorm1d(16)
    nn.init.zeros_(norm.weight)
    return Model(
        lambda m, x: m.head((h := m.body(x)) + m.norm(m.inner(h))),
        body=body(),
        inner=nn.Linear(16, 16),
        norm=norm,
        head=nn.Linear(16, 4),
    )


def frozen_before_batchnorm() -> nn.Module:
    model = stack(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 4))
    model[0].requires_grad_(False)
    return model


def across_samples(h: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(h[None, None], h[None, None], h[None, None])[0, 0]


def looking_around(h: Tensor) -> Tensor:
    """Each sample is a query of its own; all of them are its keys."""
    keys = h.expand(h.shape[0], 1, -1, -1)
    return F.scaled_dot_product_attention(h[:, None, None], keys, keys)[:, 0, 0]


def ghost_norm(h: Tensor) -> Tensor:
    return torch.cat([(part - part.mean(0)) / (part.std(0) + 0.1) for part in h.chunk(2)])


def mixed_with_another(h: Tensor) -> Tensor:
    other = torch.arange(1, h.shape[0] + 1) % h.shape[0]
    return 0.7 * h + 0.3 * h[other]


def info_nce(outputs: Any, _: Tensor) -> Tensor:
    anchors, candidates = outputs
    return F.cross_entropy(anchors @ candidates.T, torch.arange(anchors.shape[0]), reduction="none")


def pairs(s: int, g: Generator) -> tuple[Any, Tensor]:
    return (torch.randn(s, 6, generator=g), torch.randn(s, 6, generator=g)), classes(s, g)


def switched(m: Any, x: Tensor, mix: bool) -> Tensor:
    h = m.body(x)
    return m.head(h - h.mean(0) if mix else h)


def mixed_when_smaller(s: int, g: Generator) -> tuple[Any, Tensor]:
    x, y = VECTOR(s, g)
    return {"x": x, "mix": s < 12}, y


def zero_gate() -> nn.Module:
    return Model(
        lambda m, x: m.head((h := m.body(x)) + m.gate * h.mean(0)),
        body=body(),
        gate=nn.Parameter(torch.zeros(())),
        head=nn.Linear(16, 4),
    )


def zero_vector_gate() -> nn.Module:
    """The gate that lets other samples in is zero, and so is what it lets in."""
    model = Model(
        lambda m, x: m.head((h := m.body(x)) + m.gate * m.inner(h).cumsum(0)),
        body=body(),
        inner=nn.Linear(16, 16),
        gate=nn.Parameter(torch.zeros(16)),
        head=nn.Linear(16, 4),
    )
    nn.init.zeros_(model.inner.weight)
    nn.init.zeros_(model.inner.bias)
    return model


def with_neighbours(h: Tensor) -> Tensor:
    """A convolution whose length is the batch."""
    return F.conv1d(h.T[:, None], torch.tensor([[[0.25, 0.5, 0.25]]]), padding=1).squeeze(1).T


def nearest_distance(h: Tensor) -> Tensor:
    return h * torch.cdist(h, h).sort(1).values[:, 1:2]


def scrambled(h: Tensor) -> Tensor:
    """The right shape, with values that belong to other samples."""
    return h.reshape(16, h.shape[0]).T.sin()


def running_total(h: Tensor) -> Tensor:
    total = torch.zeros(16)
    out = []
    for one in h.unbind(0):
        total = 0.5 * total + one
        out.append(total)
    return torch.stack(out)


def grouped(h: Tensor) -> Tensor:
    """Samples of even and of odd position share their mean."""
    group = torch.arange(h.shape[0]) % 2
    sums = torch.zeros(2, 16).index_add(0, group, h)
    return h - sums[group] / h.shape[0]


def after_a_break(m: Any, x: Tensor) -> Tensor:
    h = m.inner(m.body(x))
    torch._dynamo.graph_break()
    return m.head((h - h.mean(0)).tanh())


@torch._dynamo.disable
def cumsum_out_of_sight(h: Tensor) -> Tensor:
    return h.cumsum(0)


def out_of_sight(m: Any, x: Tensor) -> Tensor:
    h = m.inner(m.body(x))
    return m.head(cumsum_out_of_sight(h).tanh())


def in_pieces(run: Any) -> Any:
    return lambda: Model(run, body=body(), inner=nn.Linear(16, 16), head=nn.Linear(16, 4))


class BatchMean(torch.autograd.Function):
    """Nothing happens on the way forward; the gradient is centred over the batch."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad - grad.mean(0)


def centred_gradient(h: Tensor) -> Tensor:
    if h.requires_grad:
        h.register_hook(lambda grad: grad - grad.mean(0))
    return h * 1.0


def hooked_module() -> nn.Module:
    model = in_pieces(lambda m, x: m.head(m.inner(m.body(x)).tanh()))()
    model.inner.register_full_backward_hook(lambda module, grads, _: (grads[0] - grads[0].mean(0),))
    return model


def compare_with_queue(m: Any, x: Tensor) -> Tensor:
    """Against samples of earlier batches, as in momentum contrast; then this batch joins the queue."""
    h = m.body(x)
    logits = m.head(h) + h @ m.queue.clone().T
    m.queue.copy_(torch.cat([m.queue, h.detach()])[-4:])
    return logits


def with_queue() -> nn.Module:
    model = Model(compare_with_queue, body=body(), head=nn.Linear(16, 4))
    model.register_buffer("queue", torch.randn(4, 16))
    return model


def sequence_first(length: int) -> Any:
    return lambda s, g: (torch.randn(length, s, 8, generator=g), classes(s, g))


def over_positions() -> nn.Module:
    return stack(nn.Linear(8, 16), nn.Tanh(), lambda h: h.cumsum(0).mean(0), nn.Linear(16, 4))


def mask_for_all(s: int, g: Generator) -> tuple[Any, Tensor]:
    return (torch.randn(s, 12, 8, generator=g), torch.rand(12, 12, generator=g) < 0.7, torch.eye(12).bool()), classes(
        s, g
    )


def attend_under(m: Any, x: Tensor, mask: Tensor, diagonal: Tensor) -> Tensor:
    """One mask (T, T) for all samples; T is 12, as many as there are samples in most batches."""
    q, k, v = m.qkv(x).chunk(3, -1)
    return m.head(F.scaled_dot_product_attention(q, k, v, attn_mask=mask | diagonal).mean(1))


COUPLED = [
    coupled("BatchNorm with a scale of zero", zero_scale, VECTOR, slow=False),
    coupled("hidden minus its mean over the batch", around(lambda h: h - h.mean(0)), VECTOR, slow=False),
    coupled("softmax over the batch", around(lambda h: h.softmax(0) * 5), VECTOR),
    coupled("sort over the batch", around(lambda h: h.sort(0).values), VECTOR),
    coupled("cumsum over the batch", around(lambda h: h.cumsum(0)), VECTOR, slow=False),
    coupled("flip and roll over the batch", around(lambda h: h.flip(0) + h.roll(1, 0)), VECTOR),
    coupled("attention across samples", around(across_samples), VECTOR, slow=False),
    coupled("every sample a query to all samples", around(looking_around), VECTOR),
    coupled("minibatch standard deviation", around(lambda h: h * (1 + h.std(0).mean())), VECTOR),
    coupled("ghost norm", around(ghost_norm), VECTOR),
    coupled("mixup of the hidden layer", around(mixed_with_another), VECTOR),
    coupled(
        "batch regulariser in every loss",
        lambda: Model(lambda m, x: (m.head(h := m.body(x)), h), body=body(), head=nn.Linear(16, 4)),
        VECTOR,
        criterion=lambda out, y: CE(out[0], y) + out[1].mean().square(),
    ),
    coupled(
        "coupling that starts later",
        lambda: Model(switched, body=body(), head=nn.Linear(16, 4)),
        mixed_when_smaller,
        expects="either",
        twopass=None,
    ),
    coupled("coupling behind a zero parameter", zero_gate, VECTOR),
    coupled("coupling behind two zero parameters", zero_vector_gate, VECTOR, twopass=None),
    coupled("convolution over the batch", around(with_neighbours), VECTOR),
    coupled("distance to the nearest sample", around(nearest_distance), VECTOR),
    coupled("values of other samples in the right shape", around(scrambled), VECTOR),
    coupled("running total over the samples", around(running_total), VECTOR, expects="either"),
    coupled("mean over groups of samples", around(grouped), VECTOR),
    coupled("covariance of the batch", around(lambda h: h @ (h.T @ h) / 16), VECTOR),
    coupled("norm of the batch", around(lambda h: h / h.norm()), VECTOR),
    coupled("largest value of the batch", around(lambda h: h / h.abs().max()), VECTOR),
    coupled("logsumexp over the batch", around(lambda h: h - h.logsumexp(0)), VECTOR),
    coupled("first sample added to all", around(lambda h: h + h[:1]), VECTOR),
    coupled("sliding windows over the batch", around(lambda h: torch.cat([h, h[:2]]).unfold(0, 3, 1).mean(-1)), VECTOR),
    coupled(
        "losses centred over the batch",
        lambda: stack(body(), nn.Linear(16, 4)),
        VECTOR,
        criterion=lambda out, y: (CE(out, y) - CE(out, y).mean()).square(),
    ),
    coupled(
        "losses weighted by their softmax",
        lambda: stack(body(), nn.Linear(16, 4)),
        VECTOR,
        criterion=lambda out, y: CE(out, y) * CE(out, y).softmax(0),
    ),
    coupled("mean over the batch after a graph break", in_pieces(after_a_break), VECTOR, expects="either", slow=False),
    coupled("cumsum over the batch in a part that is not traced", in_pieces(out_of_sight), VECTOR, expects="either"),
    coupled("coupling in the gradient of a custom Function", around(BatchMean.apply), VECTOR, expects="either"),
    coupled("coupling in a tensor hook", around(centred_gradient), VECTOR, expects="either"),
    coupled("coupling in a module hook", hooked_module, VECTOR, expects="either"),
    coupled("BatchNorm without affine parameters", around_layer(lambda: nn.BatchNorm1d(16, affine=False)), VECTOR),
    coupled(
        "BatchNorm without running statistics",
        around_layer(lambda: nn.BatchNorm1d(16, track_running_stats=False).eval()),
        VECTOR,
    ),
]

LOOKS_COUPLED = [
    Case(
        "in-batch contrastive loss",
        lambda: Model(lambda m, a, b: (m.body(a), m.other(b)), body=body(), other=body()),
        pairs,
        info_nce,
        coupled=True,
        expects="either",
        twopass=False,
    ),
    Case(
        "input minus its mean over the batch",
        lambda: stack(lambda x: x - x.mean(0), body(), nn.Linear(16, 4)),
        VECTOR,
        twopass=False,
    ),
    Case(
        "hidden minus its detached mean",
        around(lambda h: h - h.mean(0).detach()),
        VECTOR,
        expects="either",
        twopass=False,
    ),
    Case(
        "loss divided by the batch size",
        lambda: stack(body(), nn.Linear(16, 4)),
        VECTOR,
        lambda out, y: CE(out, y) / out.shape[0],
        expects="either",
        twopass=False,
    ),
    Case("BatchNorm after a frozen layer", frozen_before_batchnorm, VECTOR, expects="either", twopass=False),
    Case(
        "a parameter as long as the batch",
        lambda: Model(
            lambda m, x: m.head(m.first(x) @ m.core @ m.core.T),
            first=nn.Linear(6, 12),
            core=param(12, 12),
            head=nn.Linear(12, 4),
        ),
        VECTOR,
    ),
    Case(
        "one mask for all samples, as large as the batch",
        lambda: Model(attend_under, qkv=nn.Linear(8, 24), head=nn.Linear(8, 4)),
        mask_for_all,
        expects="either",
        twopass=None,
        slow=False,
    ),
    Case("queue of earlier samples", with_queue, VECTOR, expects="either", twopass=None),
    Case("input with the batch second", over_positions, sequence_first(5), expects="either", twopass=None),
    Case("square input with the batch second", over_positions, sequence_first(12), expects="either", twopass=None),
]
