"""Losses of all kinds, and what surrounds a model in practice: inputs, hooks, checkpoints, autocast, own gradients."""

from functools import partial
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from ordered_sgd.hinge import multiclass_hinge
from tests.contracts.engine_cases_common import (
    CE,
    Case,
    Model,
    around,
    classes,
    floats,
    param,
    regression,
    stack,
)

VECTOR = floats(6)


def small(outputs: int = 4) -> Any:
    return lambda: stack(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, outputs))


def segmentation(s: int, g: Generator) -> tuple[Tensor, Tensor]:
    target = classes(s, g, 6, 6)
    target[:, 0] = -100  # a border without a label
    return torch.randn(s, 3, 6, 6, generator=g), target


def several_terms(outputs: Tensor, target: Tensor) -> Tensor:
    squared = F.mse_loss(outputs, target, reduction="none").sum(1)
    return squared + F.smooth_l1_loss(outputs, target, reduction="none").mean(1) + huber(outputs, target)


def huber(outputs: Tensor, target: Tensor) -> Tensor:
    return F.huber_loss(outputs, target, reduction="none", delta=0.5).mean(1)


def divergences(outputs: Tensor, target: Tensor) -> Tensor:
    margin = F.multilabel_margin_loss(outputs, target.argsort(1), reduction="none")
    divergence = F.kl_div(outputs.log_softmax(1), target.softmax(1), reduction="none").sum(1)
    return margin + divergence + F.poisson_nll_loss(outputs, target.abs(), reduction="none").sum(1)


def two_labels(outputs: Tensor, target: Tensor) -> Tensor:
    labels = target.argsort(1)[:, :2]
    ended = torch.cat([labels, torch.full_like(labels, -1)], 1)  # -1 ends the list of labels
    return F.multilabel_margin_loss(outputs, ended, reduction="none")


def hinge_by_one_hot(outputs: Tensor, target: Tensor) -> Tensor:
    right = outputs.gather(1, target[:, None])
    return ((1 + outputs - right).relu() * (1 - F.one_hot(target, 4))).sum(1)


def three_vectors(s: int, g: Generator) -> tuple[Any, Tensor]:
    return tuple(torch.randn(s, 6, generator=g) for _ in range(3)), classes(s, g)


def triplet(outputs: Any, _: Tensor) -> Tensor:
    return F.triplet_margin_loss(*outputs, reduction="none")


def frames(s: int, g: Generator) -> tuple[Tensor, Tensor]:
    return torch.randn(s, 8, 6, generator=g), torch.randint(1, 5, (s, 3), generator=g)


def ctc(outputs: Tensor, target: Tensor) -> Tensor:
    s, length = outputs.shape[:2]
    lengths = torch.full((s,), length), torch.full((s,), target.shape[1])
    return F.ctc_loss(outputs.transpose(0, 1).log_softmax(2), target, *lengths, reduction="none")


def input_gradient_penalty(model: nn.Module) -> Any:
    """Outputs and the squared gradient of each sample's first output in its input, by torch.func."""

    def penalty(x: Tensor) -> Tensor:
        return torch.func.grad(lambda one: model.inner(one)[0])(x).square().sum()

    return torch.func.vmap(penalty)


LOSSES = [
    Case(
        "label smoothing and class weights",
        small(),
        VECTOR,
        nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5, 1.5]), label_smoothing=0.1, reduction="none"),
        slow=False,
    ),
    Case(
        "a classifier that is certain",  # its logarithms of probabilities are exactly 0, and saved twice
        lambda: Model(lambda m, x: 1e3 * m.inner(x), inner=small()()),
        VECTOR,
        slow=False,
    ),
    Case(
        "segmentation with ignored pixels",
        lambda: nn.Conv2d(3, 4, 3, padding=1),
        segmentation,
        lambda outputs, y: CE(outputs, y).mean((1, 2)),
    ),
    Case(
        "binary cross entropy with pos_weight",
        small(3),
        lambda s, g: (torch.randn(s, 6, generator=g), torch.randint(0, 2, (s, 3), generator=g).float()),
        lambda outputs, y: F.binary_cross_entropy_with_logits(
            outputs, y, pos_weight=torch.tensor([1.0, 3.0, 0.5]), reduction="none"
        ).sum(1),
    ),
    Case("mean squares, smooth L1 and huber", small(3), regression(6, 3), several_terms),
    Case("one output, squares of shape (s, 1)", small(1), regression(6, 1), nn.MSELoss(reduction="none")),
    Case("multi-margin", small(), VECTOR, nn.MultiMarginLoss(reduction="none")),
    Case("multilabel margin, KL and Poisson", small(), regression(6, 4), divergences),
    # torch 2.13 compiles this loss to other values: an engine that compiles has to notice
    Case("multilabel margin with two labels each", small(), regression(6, 4), two_labels, expects="either"),
    Case("hinge by gather and one_hot", small(), VECTOR, hinge_by_one_hot),
    Case("the package's hinge", small(), VECTOR, multiclass_hinge),
    Case(
        "triplet with given negatives",
        lambda: Model(lambda m, *parts: tuple(m.body(part) for part in parts), body=small()()),
        three_vectors,
        triplet,
        tolerance=5e-4,
    ),
    Case("CTC", lambda: nn.Linear(6, 5), frames, ctc, expects="either"),
    Case(
        "soft targets",
        small(),
        lambda s, g: (torch.randn(s, 6, generator=g), torch.randn(s, 4, generator=g).softmax(1)),
        CE,
    ),
    Case(
        "gaussian likelihood with a learnt variance",
        small(6),
        regression(6, 3),
        lambda outputs, y: F.gaussian_nll_loss(outputs[:, :3], y, outputs[:, 3:].exp(), reduction="none").sum(1),
        expects="either",  # it looks at the values of the variance
    ),
    Case(
        "equal losses: every sample twice",
        small(),
        lambda s, g: tuple(part.repeat_interleave(2, 0)[:s] for part in VECTOR(s, g)),
        slow=False,
    ),
    Case(
        "equal losses: all the same",
        small(),
        lambda s, g: tuple(part[:1].repeat_interleave(s, 0) for part in VECTOR(s, g)),
    ),
    Case(
        "many samples without any loss",
        small(),
        VECTOR,
        lambda outputs, y: (outputs.gather(1, y[:, None]).squeeze(1) - 0.3).relu(),
    ),
    Case(
        "weight penalty added to every loss",
        lambda: Model(lambda m, x: (m.body(x), m.body[0].weight.square().sum()), body=small()()),
        VECTOR,
        lambda outputs, y: CE(outputs[0], y) + 0.1 * outputs[1],
    ),
]


def named_inputs(s: int, g: Generator) -> tuple[dict[str, Any], Tensor]:
    return {"left": torch.randn(s, 6, generator=g), "right": torch.randn(s, 5, generator=g), "scale": 0.5}, classes(
        s, g
    )


def two_views(m: Any, a: Tensor, b: Tensor) -> Tensor:
    left, right = m.body(torch.cat([a, b])).chunk(2)
    return m.head(left * right)


def differentiable_input(s: int, g: Generator) -> tuple[Tensor, Tensor]:
    x, y = VECTOR(s, g)
    return x.requires_grad_(), y


class Swish(torch.autograd.Function):
    """x * sigmoid(x), remembering the shape of x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        ctx.shape = x.shape
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        gate = x.sigmoid()
        return (grad * (gate + x * gate * (1 - gate))).reshape(ctx.shape)


class Reverse(torch.autograd.Function):
    """The same value with the opposite gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return -0.5 * grad


def branching(h: Tensor) -> Tensor:
    return h.sin() if h.sum().item() > 0 else h.cos()


def breaking(h: Tensor) -> Tensor:
    torch._dynamo.graph_break()
    return h.sin()


def hooked(h: Tensor) -> Tensor:
    if h.requires_grad:
        h.register_hook(lambda grad: grad * 2)
    return h * 1.0


def module_hook() -> nn.Module:
    model = small()()
    model[1].register_full_backward_hook(lambda module, grads, _: (grads[0] * 3,))
    return model


def parameter_hook() -> nn.Module:
    model = small()()
    model[0].weight.register_hook(lambda grad: grad * 2)
    return model


def frozen() -> nn.Module:
    model = stack(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))
    model[0].requires_grad_(False)
    model[2].bias.requires_grad_(False)
    return model


def cast(m: Any, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return m.body(x)


def experts(m: Any, x: Tensor) -> Tensor:
    gates = m.router(x).softmax(1)
    return (torch.stack([expert(x) for expert in m.experts], 2) * gates[:, None]).sum(2)


def top_one_expert(m: Any, x: Tensor) -> Tensor:
    gates = m.router(x).softmax(1)
    best = gates.max(1)
    kernels = m.kernels[best.indices]  # (s, 6, 4): one expert for each sample
    return torch.bmm(x[:, None], kernels).squeeze(1) * best.values[:, None]


SURROUNDINGS = [
    Case(
        "several inputs by name and a number",
        lambda: Model(
            lambda m, left, right, scale: m.head(m.left(left).tanh() + scale * m.right(right)),
            left=nn.Linear(6, 8),
            right=nn.Linear(5, 8),
            head=nn.Linear(8, 4),
        ),
        named_inputs,
        slow=False,
    ),
    Case(
        "several outputs",
        lambda: Model(
            lambda m, x: {"logits": m.head(h := m.body(x).tanh()), "size": h.square().sum(1)},
            body=nn.Linear(6, 8),
            head=nn.Linear(8, 4),
        ),
        VECTOR,
        lambda outputs, y: CE(outputs["logits"], y) + 0.1 * outputs["size"],
    ),
    Case(
        "siamese: two views in one batch",
        lambda: Model(two_views, body=nn.Linear(6, 8), head=nn.Linear(8, 4)),
        lambda s, g: ((torch.randn(s, 6, generator=g), torch.randn(s, 6, generator=g)), classes(s, g)),
        expects="either",
        slow=False,
    ),
    Case("input that requires a gradient", small(), differentiable_input),
    Case(
        "checkpointed block",
        lambda: Model(
            lambda m, x: m.head(checkpoint(lambda h: m.body(h).sin(), x, use_reentrant=False)),
            body=small(8)(),
            head=nn.Linear(8, 4),
        ),
        VECTOR,
        slow=False,
    ),
    Case(
        "checkpointed block with dropout",
        lambda: Model(
            lambda m, x: m.head(checkpoint(m.body, x, use_reentrant=False)),
            body=stack(nn.Linear(6, 8), nn.Dropout(0.4), nn.Tanh()),
            head=nn.Linear(8, 4),
        ),
        VECTOR,
        expects="either",
        twopass=None,
    ),
    Case(
        "autocast to bfloat16 inside the model",
        lambda: Model(cast, body=small()()),
        VECTOR,
        tolerance=2e-2,
    ),
    Case(
        "autocast to bfloat16 around the step",
        lambda: stack(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4)),
        floats(3, 8, 8),
        tolerance=2e-2,
        context=partial(torch.autocast, "cpu", torch.bfloat16),
        slow=False,
    ),
    Case(
        "float64",
        lambda: small()().double(),
        lambda s, g: (torch.randn(s, 6, generator=g, dtype=torch.float64), classes(s, g)),
    ),
    Case(
        "a layer used three times",
        lambda: Model(
            lambda m, x: m.head(m.inner(m.inner(m.inner(m.first(x)).tanh()).tanh()).tanh()),
            first=nn.Linear(6, 8),
            inner=nn.Linear(8, 8),
            head=nn.Linear(8, 4),
        ),
        VECTOR,
    ),
    Case("frozen parameters", frozen, VECTOR, slow=False),
    Case(
        "spectral norm",
        lambda: stack(parametrizations.spectral_norm(nn.Linear(6, 16)), nn.Tanh(), nn.Linear(16, 4)),
        VECTOR,
        twopass=None,
    ),
    Case(
        "weight norm and orthogonal",
        lambda: stack(
            parametrizations.weight_norm(nn.Linear(6, 16)), nn.Tanh(), parametrizations.orthogonal(nn.Linear(16, 4))
        ),
        VECTOR,
    ),
    Case("custom Function that stores the shape", around(Swish.apply), VECTOR),
    Case("gradient reversal", around(Reverse.apply), VECTOR),
    Case("branch on the data", around(branching), VECTOR, expects="either", twopass=None),
    Case("graph break in the middle", around(breaking), VECTOR, expects="either"),
    Case("model that is already compiled", lambda: torch.compile(small()(), backend="aot_eager"), VECTOR),
    Case("tensor hook in the model", around(hooked), VECTOR),
    Case("module hook that changes the gradient", module_hook, VECTOR, expects="either", slow=False),
    Case("parameter hook", parameter_hook, VECTOR),
    Case(
        "gradient penalty by torch.func",
        lambda: Model(lambda m, x: (m.inner(x), input_gradient_penalty(m)(x)), inner=small()()),
        VECTOR,
        lambda outputs, y: CE(outputs[0], y) + 0.1 * outputs[1],
    ),
    Case(
        "mixture of experts, all run",
        lambda: Model(experts, router=nn.Linear(6, 3), experts=nn.ModuleList(nn.Linear(6, 4) for _ in range(3))),
        VECTOR,
    ),
    Case(
        "mixture of experts, one per sample",
        lambda: Model(top_one_expert, router=nn.Linear(6, 3), kernels=param(3, 6, 4)),
        VECTOR,
    ),
    Case(
        "batch as the last dimension",
        lambda: Model(lambda m, x: m.head((m.core @ x.T).tanh().T), core=param(8, 6), head=nn.Linear(8, 4)),
        VECTOR,
    ),
]
