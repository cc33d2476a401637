"""Ready-made scores: against formulas of their own, at the ends of the number range, in every place that takes one."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from ordered_sgd import OrderedLoss, OrderedStep, ordered_mean, scores, with_index
from ordered_sgd.errors import ArgumentError
from tests.contracts.engine_checks import network

CE = nn.CrossEntropyLoss(reduction="none")
INF = torch.inf
both = pytest.mark.parametrize("score", [scores.entropy, scores.negative_margin])
shapes = st.tuples(st.integers(1, 6), st.integers(2, 7), st.lists(st.integers(1, 4), max_size=2))


def drawn(shape: tuple[int, int, list[int]], seed: int, scale: float = 3.0) -> tuple[Tensor, Tensor]:
    s, classes, others = shape
    g = torch.Generator().manual_seed(seed)
    outputs = scale * torch.randn(s, classes, *others, generator=g, dtype=torch.float64)
    return outputs, torch.randint(0, classes, (s, *others), generator=g)


@given(shape=shapes, seed=st.integers(0, 1000))
def test_entropy_is_that_of_scipy_and_of_trl_s_formula(shape: Any, seed: int) -> None:
    outputs, targets = drawn(shape, seed)
    found = scores.entropy(outputs, targets)
    np.testing.assert_allclose(found, scipy.stats.entropy(scipy.special.softmax(outputs.numpy(), 1), axis=1), rtol=1e-9)
    last = outputs.movedim(1, -1).log_softmax(-1)  # TRL has the classes last
    torch.testing.assert_close(found, -(last.exp() * last).sum(-1))


@given(shape=shapes, seed=st.integers(0, 1000))
def test_the_margin_is_looked_up_class_by_class(shape: Any, seed: int) -> None:
    outputs, targets = drawn(shape, seed)
    found = scores.negative_margin(outputs, targets)
    for place in np.ndindex(*targets.shape):
        own, *others = place[0], *place[1:]
        row = outputs[(own, slice(None), *others)].tolist()
        right = row.pop(int(targets[place]))
        assert found[place].item() == max(row) - right
    assert torch.equal(found > 0, outputs.argmax(1) != targets)  # no two logits are equal


@given(shape=shapes, seed=st.integers(0, 100), kind=st.sampled_from([torch.float16, torch.bfloat16]))
def test_half_precision_is_scored_in_single(shape: Any, seed: int, kind: torch.dtype) -> None:
    outputs, targets = drawn(shape, seed)
    half = outputs.to(kind).requires_grad_()
    for score in (scores.entropy, scores.negative_margin):
        found = score(half, targets)
        assert found.dtype == torch.float32
        assert not found.requires_grad
        torch.testing.assert_close(found, score(half.detach().double(), targets).float(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("logits", "expected"),
    [
        ([0.0, 0.0, -INF], np.log(2)),  # a class that was masked
        ([-INF, 2.0, -INF], 0.0),
        ([INF, 0.0, 5.0], 0.0),
        ([6e4, 0.0, -6e4], 0.0),
        ([6e4, 6e4, -INF], np.log(2)),
        ([-6e4, -6e4, -6e4], np.log(3)),
    ],
)
def test_entropy_has_its_limit_at_the_ends(kind: torch.dtype, logits: list[float], expected: float) -> None:
    assert scores.entropy(torch.tensor([logits], dtype=kind)).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("logits", "expected"),
    [
        ([1.0, -INF, -INF], -torch.finfo(torch.float32).max),  # nothing else can be answered
        ([INF, 0.0, 1.0], -torch.finfo(torch.float32).max),
        ([-INF, 0.0, 1.0], torch.finfo(torch.float32).max),
        ([0.0, -INF, 3.0], 3.0),
        ([-3e38, 3e38, 0.0], torch.finfo(torch.float32).max),
    ],
)
def test_a_margin_is_finite_wherever_it_has_a_sign(logits: list[float], expected: float) -> None:
    assert scores.negative_margin(torch.tensor([logits]), torch.tensor([0])).item() == expected


@both
def test_a_logit_that_is_nan_shows(score: Callable[..., Tensor]) -> None:
    outputs = torch.zeros(3, 4)
    outputs[1, 2] = torch.nan
    for target in (0, 2):
        assert score(outputs, torch.full((3,), target)).isnan().tolist() == [False, True, False]


def test_probabilities_of_a_sample_without_a_possible_class_do_not_exist() -> None:
    assert scores.entropy(torch.full((1, 3), -INF)).isnan().all()


def test_an_ignored_target_has_a_margin_that_means_nothing_and_breaks_nothing() -> None:
    outputs, targets = torch.randn(2, 4, 5), torch.randint(0, 4, (2, 5))
    targets[0, :2], targets[1, 3] = -100, 255
    found = scores.negative_margin(outputs, targets)
    inside = (targets >= 0) & (targets < 4)
    assert (found[~inside] == 0).all()
    assert (found[inside] != 0).all()


@both
def test_large_outputs_are_scored_in_parts_with_the_same_result(
    score: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs, targets = drawn((7, 5, [3]), seed=1)
    whole = score(outputs, targets)
    for size in (1, 31, 100):
        monkeypatch.setattr(scores, "_AT_ONCE", size)
        assert torch.equal(score(outputs, targets), whole)


@both
def test_scores_compile_into_one_graph(score: Callable[..., Tensor]) -> None:
    outputs, targets = drawn((4, 5, [3]), seed=1)
    compiled = torch.compile(score, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(outputs, targets), score(outputs, targets))


@both
@pytest.mark.parametrize(
    ("outputs", "targets", "text"),
    [
        (torch.zeros(3, 6, 4), torch.zeros(3, 6).long(), "targets must be classes of shape (3, 4); got torch.int64 of"),
        (torch.zeros(3), torch.zeros(3).long(), "outputs must be logits of at least two classes, shape (s, C, ...); "),
        (torch.zeros(3, 1), torch.zeros(3).long(), "outputs must be logits of at least two classes"),
        (torch.zeros(3, 2).long(), torch.zeros(3).long(), "outputs must be logits of at least two classes"),
        ([[0.0, 1.0]], torch.zeros(1).long(), "outputs must be logits of at least two classes"),
    ],
)
def test_outputs_that_have_no_classes_second_are_refused(
    score: Callable[..., Tensor], outputs: Any, targets: Tensor, text: str
) -> None:
    with pytest.raises(ArgumentError) as error:
        score(outputs, targets)
    assert text in str(error.value)
    assert str(error.value).startswith("scores.")


def test_a_margin_needs_classes_and_entropy_does_not() -> None:
    outputs = torch.randn(3, 4)
    for targets in (outputs.softmax(1), None):
        assert torch.equal(scores.entropy(outputs, targets), scores.entropy(outputs))
        with pytest.raises(ArgumentError, match=r"targets must be classes of shape \(3,\); got .*Use entropy, which"):
            scores.negative_margin(outputs, targets)  # type: ignore[arg-type]


@both
@pytest.mark.parametrize("unit", ["sample", "token"])
def test_ordered_loss_takes_a_score_by_name(score: Callable[..., Tensor], unit: Any) -> None:
    outputs, targets = drawn((9, 4, [] if unit == "sample" else [5]), seed=2)
    outputs.requires_grad_()
    targets.view(-1)[::4] = -100
    found = OrderedLoss(CE, q=0.4, unit=unit, score=score)(outputs, targets)
    values = score(outputs, targets)
    kept = values.masked_fill(targets == -100, -INF).flatten().topk(int(0.4 * (targets != -100).sum())).indices
    assert found.item() == pytest.approx(CE(outputs, targets).flatten()[kept].mean().item())


@both
@pytest.mark.parametrize("engine", ["dense", "rows", "twopass", "auto"])
def test_a_step_takes_a_score_by_name(score: Callable[..., Tensor], engine: Any) -> None:
    torch.manual_seed(0)
    model, x, y = network(), torch.randn(16, 6), torch.randint(0, 4, (16,))
    step = OrderedStep(model, CE, torch.optim.SGD(model.parameters(), lr=0.1), q=5, score=score, engine=engine)
    with torch.no_grad():
        expected = score(model(x), y).topk(5).indices.sort().values
    assert step(x, y).rows.tolist() == expected.tolist()


# -- RHO-LOSS ---------------------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 1000), s=st.integers(2, 40), data=st.data())
def test_the_samples_with_the_largest_excess_are_kept_as_rho_loss_keeps_them(seed: int, s: int, data: Any) -> None:
    g = torch.Generator().manual_seed(seed)
    logits = torch.randn(s, 3, generator=g, requires_grad=True)
    targets, held_out = torch.randint(0, 3, (s,), generator=g), torch.randn(s, 3, generator=g)
    q = data.draw(st.integers(1, s))
    losses, irreducible = CE(logits, targets), CE(held_out, targets)
    rho = [float(a) - float(b) for a, b in zip(losses.detach(), irreducible, strict=True)]
    chosen = sorted(range(s), key=lambda i: -rho[i])[:q]
    found = ordered_mean(losses, q, scores=scores.excess(losses, irreducible))
    expected = losses[chosen].mean()
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)
    torch.testing.assert_close(
        torch.autograd.grad(found, logits, retain_graph=True)[0], torch.autograd.grad(expected, logits)[0]
    )


@pytest.mark.parametrize("engine", ["dense", "rows", "twopass", "micro-batches"])
def test_a_step_takes_the_reference_losses_beside_the_targets(engine: Any) -> None:
    """As docs/mining.md has it: y is a pair, of which the criterion looks at the first."""

    def losses(outputs: Tensor, y: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(outputs, y[0], reduction="none")

    def rho(outputs: Tensor, y: tuple[Tensor, Tensor]) -> Tensor:
        return scores.excess(losses(outputs, y), y[1])

    torch.manual_seed(0)
    model, x = network(), torch.randn(16, 6)
    y = torch.randint(0, 4, (16,)), 3 * torch.rand(16)
    kind = "dense" if engine == "micro-batches" else engine
    step = OrderedStep(model, losses, torch.optim.SGD(model.parameters(), lr=0.1), q=5, score=rho, engine=kind)
    with torch.no_grad():
        expected = rho(model(x), y).topk(5).indices.sort().values
    if engine == "micro-batches":
        record = step([(x[:7], (y[0][:7], y[1][:7])), (x[7:], (y[0][7:], y[1][7:]))])
    else:
        record = step(x, y)
    assert record.rows.tolist() == expected.tolist()


def test_reference_losses_are_those_of_the_whole_set_in_eval_mode() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 3))
    model[1].eval()  # as somebody may have left it
    x, y = torch.randn(11, 4), torch.randint(0, 3, (11,))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for data in (TensorDataset(x, y), with_index(TensorDataset(x, y))):
        found = scores.reference_losses(model, CE, DataLoader(data, batch_size=4))
        assert not found.requires_grad
        assert [part.training for part in model] == [True, False, True, True]
        assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
        expected = CE(model.eval()(x), y)
        model.train()
        model[1].eval()
        torch.testing.assert_close(found, expected)
    assert scores.reference_losses(model.bfloat16(), CE, [(x.bfloat16(), y)]).dtype == torch.float32


def test_modes_are_restored_where_the_reference_model_fails() -> None:
    model = nn.Sequential(nn.Linear(4, 3))
    with pytest.raises(RuntimeError):
        scores.reference_losses(model, CE, [(torch.zeros(2, 5), torch.zeros(2).long())])
    assert model.training


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"shuffle": True}, "go through the data once, in order; got a loader with a RandomSampler. Build the loader"),
        ({"drop_last": True}, "go through the data once, in order; got a loader that drops the last batch"),
        ({"sampler": [3, 1]}, "go through the data once, in order; got a loader with a list"),
        ({"batch_size": 1, "batch_sampler": [[3, 1]]}, "go through the data once, in order; got a loader with a list"),
    ],
)
def test_a_loader_that_would_mix_up_the_samples_is_refused(options: dict[str, Any], text: str) -> None:
    data = TensorDataset(torch.zeros(10, 4), torch.zeros(10).long())
    loader: DataLoader[Any] = DataLoader(data, **{"batch_size": 4, **options})
    with pytest.raises(ArgumentError) as error:
        scores.reference_losses(nn.Linear(4, 3), CE, loader)
    assert str(error.value).startswith(f"scores.reference_losses: batches must {text}")


def test_other_mistakes_with_a_reference_have_one_message_each() -> None:
    with pytest.raises(ArgumentError, match=r"must have the shape of the losses, \(4, 1\); got torch.float32"):
        scores.excess(torch.zeros(4, 1), torch.zeros(4))  # would be (4, 4)
    with pytest.raises(ArgumentError, match="batches must hold at least one batch; got none"):
        scores.reference_losses(nn.Linear(4, 3), CE, [])
    mean = functools.partial(F.cross_entropy, reduction="mean")
    with pytest.raises(ArgumentError, match="criterion must return one loss per sample"):
        scores.reference_losses(nn.Linear(4, 3), mean, [(torch.zeros(4, 4), torch.zeros(4).long())])
