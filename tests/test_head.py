"""`ordered_linear_cross_entropy` against the one-liner that stores all logits."""

import copy
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ordered_sgd import Above, head, ordered_linear_cross_entropy, ordered_mean
from ordered_sgd.errors import ArgumentError

D, V = 8, 50


@dataclass(frozen=True)
class Case:
    """Arguments of one call; `bias` and `mask` ask for random ones."""

    name: str
    q: float | Above = 0.25
    bias: bool = False
    mask: bool = False
    ignored: str = "some"
    shape: tuple[int, ...] = (3, 7)
    options: dict[str, Any] = field(default_factory=dict)


CASES = [
    Case("a quarter"),
    Case("a half", q=0.5),
    Case("all", q=1.0),
    Case("one", q=2),
    Case("more than are valid", q=1000),
    Case("above a value", q=Above(2.0, at_least=2)),
    Case("a bias", bias=True),
    Case("label smoothing", options={"label_smoothing": 0.1}),
    Case("label smoothing of one", options={"label_smoothing": 1.0}),
    Case("soft-capped logits", options={"softcap": 5.0}),
    Case("bias, smoothing and cap of logits", bias=True, options={"softcap": 3.0, "label_smoothing": 0.2}),
    Case("a mask", mask=True),
    Case("a ragged mask and no ignored target", mask=True, ignored="none"),
    Case("label smoothing and a mask", mask=True, options={"label_smoothing": 0.1}),
    Case("another ignored target", options={"ignore_index": 3}),
    Case("all ignored", ignored="all"),
    Case("all ignored and all kept", q=1.0, ignored="all"),
    Case("all but one ignored", ignored="all but one"),
    Case("blocks of one word", options={"chunk": 1}),
    Case("blocks that do not divide the vocabulary", options={"chunk": 7, "label_smoothing": 0.1}),
    Case("one block larger than the vocabulary", options={"chunk": 1000}),
    Case("the largest trimmed", options={"trim": 0.2}),
    Case("mixed with the plain mean", options={"mix": 0.3}),
    Case("capped losses", options={"cap": 5.0}),
    Case("tokens in one dimension", shape=(21,)),
    Case("tokens in three dimensions", shape=(2, 3, 4)),
]
NAMES = [case.name for case in CASES]


def one_liner(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    q: float,
    *,
    linear_bias: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    mask: Tensor | None = None,
    softcap: float | None = None,
    chunk: int | None = None,
    **mixture: Any,
) -> Tensor:
    """The specification: all logits, all losses, the mean of the largest."""
    logits = F.linear(input, linear_weight, linear_bias)
    logits = logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits
    logits = logits if softcap is None else softcap * torch.tanh(logits / softcap)
    losses = F.cross_entropy(
        logits.reshape(-1, V),
        target.reshape(-1),
        reduction="none",
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
    ).view_as(target)
    valid = target != ignore_index
    valid = valid if mask is None else valid & (mask != 0)
    return ordered_mean(losses, q, mask=valid, unit="token", **mixture)


def arguments(case: Case, dtype: torch.dtype = torch.float64) -> tuple[list[Tensor], dict[str, Any]]:
    """Input, weight, target and perhaps a bias, with gradients, and the options."""
    options = dict(case.options)
    given = torch.randn(*case.shape, D, dtype=dtype, requires_grad=True)
    weight = torch.randn(V, D, dtype=dtype, requires_grad=True)
    target = torch.randint(V, case.shape)
    ignored = {"none": slice(0, 0), "some": slice(2, 5), "all": slice(None), "all but one": slice(1, None)}
    target.view(-1)[ignored[case.ignored]] = options.get("ignore_index", -100)
    if case.mask:
        options["mask"] = torch.rand(case.shape) > 0.3
    if case.bias:
        options["linear_bias"] = torch.randn(V, dtype=dtype, requires_grad=True)
    return [given, weight, target], options


def value_and_gradients(function: Any, tensors: list[Tensor], q: float, options: dict[str, Any]) -> list[Tensor]:
    """The loss, and the gradients of what has one."""
    loss = function(*tensors, q, **options)
    leaves = [t for t in (*tensors, options.get("linear_bias")) if t is not None and t.requires_grad]
    return [loss.detach(), *torch.autograd.grad(loss, leaves)]


def largest_error(found: list[Tensor], expected: list[Tensor]) -> float:
    """Over all tensors, relative to the largest entry of each."""
    return max(
        float((a.double() - b.double()).abs().max() / b.double().abs().max().clamp(min=1e-30))
        for a, b in zip(found, expected, strict=True)
    )


@pytest.mark.parametrize("case", CASES, ids=NAMES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-6)], ids=["f64", "f32"])
def test_loss_and_gradients_are_the_one_liners(case: Case, dtype: torch.dtype, tolerance: float) -> None:
    tensors, options = arguments(case, dtype)
    expected = value_and_gradients(one_liner, tensors, case.q, options)
    found = value_and_gradients(ordered_linear_cross_entropy, tensors, case.q, options)
    assert all(torch.isfinite(t).all() for t in expected)
    assert [t.dtype for t in found] == [t.dtype for t in expected]
    assert largest_error(found, expected) < tolerance


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_the_same_with_many_parts_of_tokens(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "_TOKENS", 4)
    tensors, options = arguments(case)
    expected = value_and_gradients(one_liner, tensors, case.q, options)
    assert largest_error(value_and_gradients(ordered_linear_cross_entropy, tensors, case.q, options), expected) < 1e-12


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_the_same_tokens_are_kept(case: Case) -> None:
    (given, weight, target), options = arguments(case)
    mine = torch.autograd.grad(ordered_linear_cross_entropy(given, weight, target, case.q, **options), given)[0]
    theirs = torch.autograd.grad(one_liner(given, weight, target, case.q, **options), given)[0]
    assert torch.equal(mine.abs().sum(-1) > 0, theirs.abs().sum(-1) > 0)


def test_ties_go_to_the_lower_index() -> None:
    given = torch.ones(6, D, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(V, D, dtype=torch.float64)
    ordered_linear_cross_entropy(given, weight, torch.full((6,), 4), q=2).backward()
    assert given.grad is not None
    assert (given.grad.abs().sum(-1) > 0).tolist() == [True, True, False, False, False, False]


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_gradients_agree_with_finite_differences(case: Case) -> None:
    tensors, options = arguments(case)
    bias = options.pop("linear_bias", None)
    leaves = [tensors[0], tensors[1], *([] if bias is None else [bias])]

    def loss(given: Tensor, weight: Tensor, *bias: Tensor) -> Tensor:
        named = {"linear_bias": bias[0]} if bias else {}
        return ordered_linear_cross_entropy(given, weight, tensors[2], case.q, **named, **options)

    assert torch.autograd.gradcheck(loss, leaves, fast_mode=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_has_losses_in_float32(dtype: torch.dtype) -> None:
    (given, weight, target), _ = arguments(Case("half"), torch.float32)
    given, weight = given.detach().to(dtype).requires_grad_(), weight.detach().to(dtype).requires_grad_()
    found = value_and_gradients(ordered_linear_cross_entropy, [given, weight, target], 0.5, {})
    expected = value_and_gradients(one_liner, [given, weight, target], 0.5, {})
    assert found[0].dtype == torch.float32
    assert [t.dtype for t in found[1:]] == [dtype, dtype]
    assert largest_error(found, expected) < 2 * torch.finfo(dtype).eps


def test_autocast_computes_as_the_one_liner_does() -> None:
    tensors, options = arguments(Case("autocast", bias=True), torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = value_and_gradients(ordered_linear_cross_entropy, tensors, 0.5, options)
        expected = value_and_gradients(one_liner, tensors, 0.5, options)
    assert [t.dtype for t in found] == [torch.float32] * 4
    assert largest_error(found, expected) < 2 * torch.finfo(torch.bfloat16).eps


@pytest.mark.parametrize("case", [CASES[0], CASES[5], CASES[10]], ids=lambda case: case.name)
def test_it_compiles_as_one_graph(case: Case) -> None:
    tensors, options = arguments(case)
    torch.compiler.reset()
    compiled = torch.compile(ordered_linear_cross_entropy, fullgraph=True, backend="aot_eager")
    found = value_and_gradients(compiled, tensors, case.q, options)
    assert largest_error(found, value_and_gradients(one_liner, tensors, case.q, options)) < 1e-12


def test_a_tied_embedding_has_the_gradient_of_both_uses() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(V, D)
            self.layer = nn.Linear(D, D)

        def forward(self, words: Tensor) -> Tensor:
            return torch.tanh(self.layer(self.words(words)))

    model, words = Tied().double(), torch.randint(V, (4, 6))
    twin = copy.deepcopy(model)
    for one, loss in ((model, ordered_linear_cross_entropy), (twin, one_liner)):
        loss(one(words[:, :-1]), one.words.weight, words[:, 1:], 0.25).backward()
    grads = [[p.grad for p in one.parameters() if p.grad is not None] for one in (model, twin)]
    assert len(grads[0]) == 3
    assert largest_error(*grads) < 1e-12


def test_what_needs_no_gradient_gets_none() -> None:
    (given, weight, target), _ = arguments(Case("frozen"))
    expected = value_and_gradients(one_liner, [given, weight, target], 0.5, {})
    for frozen in (0, 1):
        leaves = [given, weight]
        leaves[frozen] = leaves[frozen].detach()
        loss = ordered_linear_cross_entropy(*leaves, target, 0.5)
        (found,) = torch.autograd.grad(loss, [leaves[1 - frozen]])
        assert largest_error([found], [expected[2 - frozen]]) < 1e-12
    assert not ordered_linear_cross_entropy(given.detach(), weight.detach(), target, 0.5).requires_grad


@pytest.mark.parametrize("chunk", [None, 10], ids=["one block", "whole blocks of them"])
def test_words_forbidden_by_a_bias_of_minus_infinity_do_no_harm(chunk: int | None) -> None:
    (given, weight, target), _ = arguments(Case("padded", ignored="none"))
    bias = torch.zeros(V, dtype=torch.float64)
    bias[20:] = -torch.inf
    options = {"linear_bias": bias, "chunk": chunk}
    expected = value_and_gradients(one_liner, [given, weight, target % 20], 0.5, options)
    found = value_and_gradients(ordered_linear_cross_entropy, [given, weight, target % 20], 0.5, options)
    assert all(torch.isfinite(t).all() for t in expected)
    assert largest_error(found, expected) < 1e-12


def test_a_nan_is_kept_and_makes_the_loss_nan() -> None:
    (given, weight, target), _ = arguments(Case("nan", ignored="none"))
    broken = given.detach().clone()
    broken[1, 2, 3] = torch.nan
    assert ordered_linear_cross_entropy(broken, weight, target, 0.1).isnan()


def test_a_nan_that_is_masked_does_no_harm() -> None:
    (given, weight, target), _ = arguments(Case("nan", ignored="none"))
    broken = given.detach().clone()
    broken[1, 2] = torch.nan
    target[1, 2] = -100
    broken.requires_grad_()
    loss = ordered_linear_cross_entropy(broken, weight, target, 0.5)
    loss.backward()
    assert loss.isfinite()
    assert broken.grad is not None
    assert broken.grad.isfinite().all()
    assert weight.grad is not None
    assert weight.grad.isfinite().all()


def test_unequal_gradients_of_losses_stay_unequal() -> None:
    """A known fault of fused heads: every token scaled by the gradient of the first."""
    (given, weight, target), _ = arguments(Case("weights", ignored="none"))
    weights = torch.rand(target.shape, dtype=torch.float64)
    logits = F.linear(given, weight).reshape(-1, V)
    dense = (F.cross_entropy(logits, target.flatten(), reduction="none").view_as(target) * weights).sum()
    mine = (head.token_losses(given, weight, target) * weights).sum()
    expected = torch.autograd.grad(dense, [given, weight])
    found = torch.autograd.grad(mine, [given, weight])
    assert largest_error(list(found), list(expected)) < 1e-12


def test_tokens_that_are_not_kept_are_left_out_of_the_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    (given, weight, target), _ = arguments(Case("counted", ignored="none", shape=(40,)))
    seen: list[int] = []
    plain = head._logits

    def counted(rows: Tensor, *args: Any) -> Tensor:
        seen.append(rows.shape[0])
        return plain(rows, *args)

    monkeypatch.setattr(head, "_logits", counted)
    loss = ordered_linear_cross_entropy(given, weight, target, 0.25)
    assert set(seen) == {40}
    seen.clear()
    loss.backward()
    assert set(seen) == {10}


def test_logits_of_all_tokens_are_never_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "_LOGITS", 100)
    (given, weight, target), _ = arguments(Case("blocks", ignored="none", shape=(40,)))
    sizes: list[int] = []
    plain = head._logits

    def measured(*args: Any) -> Tensor:
        logits = plain(*args)
        sizes.append(logits.numel())
        return logits

    monkeypatch.setattr(head, "_logits", measured)
    ordered_linear_cross_entropy(given, weight, target, 0.25).backward()
    assert max(sizes) <= 100
    assert sum(sizes) == 40 * V + 10 * V


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("a weight of another width", {"linear_weight": torch.zeros(V, D + 1)}, "linear_weight must"),
    ("a bias of another length", {"linear_bias": torch.zeros(V + 1)}, "linear_bias must"),
    ("a target of another shape", {"target": torch.zeros(3, dtype=torch.int64)}, "target must"),
    ("a target of floats", {"target": torch.zeros(2, 3)}, "target must"),
    ("a target outside the vocabulary", {"target": torch.full((2, 3), V)}, "target must be words from 0 to 49"),
    ("a negative target", {"target": torch.full((2, 3), -1)}, "target must be words from 0 to 49"),
    ("a mask of another shape", {"mask": torch.ones(2)}, "mask must"),
    ("a mask to be added to scores", {"mask": torch.full((2, 3), -torch.inf)}, "mask must be 1 where"),
    ("too much smoothing", {"label_smoothing": 1.5}, "label_smoothing must"),
    ("a cap of zero", {"softcap": 0.0}, "softcap must"),
    ("blocks of nothing", {"chunk": 0}, "chunk must"),
    ("a q of zero", {"q": 0}, "q must"),
]


@pytest.mark.parametrize(("changed", "text"), [bad[1:] for bad in BAD], ids=[bad[0] for bad in BAD])
def test_bad_arguments_get_one_clear_error(changed: dict[str, Any], text: str) -> None:
    good = {"input": torch.zeros(2, 3, D), "linear_weight": torch.zeros(V, D), "q": 0.5}
    good["target"] = torch.zeros(2, 3, dtype=torch.int64)
    with pytest.raises(ArgumentError, match=text):
        ordered_linear_cross_entropy(**(good | changed))
