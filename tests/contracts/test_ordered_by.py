"""A step ordered by a score, or with a threshold for q, is the one-liner's update with every engine."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ordered_sgd import Above, LossMassRule, OrderedLoss, OrderedStep, ordered_mean
from ordered_sgd.engines import Memory, TwoPass
from ordered_sgd.errors import ArgumentError, NonFiniteLossError
from tests.contracts.engine_checks import network

CE = nn.CrossEntropyLoss(reduction="none")
S = 16


def entropy(outputs: Tensor, y: Tensor) -> Tensor:
    """Grows where the model is unsure, and has another order than the losses."""
    logs = outputs.log_softmax(1)
    return -(logs.exp() * logs).sum(1)


def named(option: tuple[str, Any]) -> str:
    """The same on every worker, where a function's own text has its address."""
    name, value = option
    return f"{name}={getattr(value, '__name__', value)}"


def batch(number: int, s: int = S) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(number)
    return torch.randn(s, 6, generator=g), torch.randint(0, 4, (s,), generator=g)


def twins(engine: Any, **options: Any) -> tuple[OrderedStep, nn.Module, torch.optim.Optimizer]:
    models = []
    for _ in range(2):
        torch.manual_seed(1)
        models.append(network())
    step = OrderedStep(models[0], CE, torch.optim.SGD(models[0].parameters(), lr=0.5), engine=engine, **options)
    return step, models[1], torch.optim.SGD(models[1].parameters(), lr=0.5)


def parts(x: Tensor, y: Tensor) -> list[tuple[Tensor, Tensor]]:
    return [(x[:6], y[:6]), (x[6:], y[6:])]


@pytest.mark.parametrize("engine", ["dense", "rows", "twopass", "auto", "micro-batches"])
@pytest.mark.parametrize(
    "options",
    [
        {"q": 5, "score": entropy},
        {"q": 0.3, "score": entropy, "trim": 2, "trim_epochs": 0, "cap": 1.4},
        {"q": Above(1.2, at_least=3)},
        {"q": Above(9.0, at_least=0.25)},
        {"q": Above(-1.0)},  # all of them
        {"q": Above(1.36, at_least=2), "score": entropy},
        {"q": Above(1.2), "trim": 3, "trim_epochs": 0},
    ],
    ids=lambda options: "-".join(map(named, options.items())),
)
def test_a_step_is_the_one_liner(engine: Any, options: dict[str, Any]) -> None:
    step, model, optimizer = twins("dense" if engine == "micro-batches" else engine, **options)
    kept = {name: options[name] for name in ("trim", "cap") if name in options}
    seen = set()
    for number in range(5):
        x, y = batch(number, 9 if number == 3 else S)
        record = step(parts(x, y)) if engine == "micro-batches" else step(x, y)
        outputs = model(x)
        losses = CE(outputs, y)
        scores = entropy(outputs, y) if "score" in options else None
        expected = ordered_mean(losses, options["q"], scores=scores, **kept)
        (found,) = torch.autograd.grad(expected, losses, retain_graph=True)
        optimizer.zero_grad()
        expected.backward()
        optimizer.step()
        seen.add(record.engine)
        assert record.ordered_loss.item() == pytest.approx(expected.item(), rel=1e-5)
        assert set(found.nonzero().flatten().tolist()) <= set(record.rows.tolist())
        assert record.q == len(record.rows)
    for one, two in zip(step.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-6)
    names = {"auto": {"dense"}, "micro-batches": {"micro-batches", "micro-batches, regrouped"}}
    assert seen <= names.get(engine, {engine, "dense"})
    if options["q"] != Above(-1.0):
        assert engine in seen or engine in names


def test_the_score_of_the_scoring_pass_counts_and_not_that_of_the_second() -> None:
    calls = []

    def counting(outputs: Tensor, y: Tensor) -> Tensor:
        calls.append(outputs.shape[0])
        return -outputs[:, 0] if outputs.shape[0] == S else torch.zeros(outputs.shape[0])

    step, model, _ = twins(TwoPass(), q=4, score=counting)
    x, y = batch(0)
    expected = model(x)[:, 0].argsort()[:4].sort().values
    assert step(x, y).rows.tolist() == expected.tolist()
    assert not torch.is_grad_enabled() or calls  # the score runs without a graph, in every pass


def test_a_rule_sees_the_losses_in_the_order_of_the_scores() -> None:
    """The first two by score carry nothing: four of eight carry nine tenths, where two of the largest losses would."""
    losses, scores = torch.tensor([0.0, 0.0, 9.0, 9.0, 1.0, 1.0, 0.0, 0.0]), torch.arange(8.0).flip(0)
    ends = []
    for score in (None, lambda o, y: scores):
        loss_fn = OrderedLoss(lambda o, y: losses + 0 * o, q=LossMassRule(0.9), score=score)
        loss_fn(torch.zeros(8, requires_grad=True), losses)
        model = nn.Linear(1, 1)
        step = OrderedStep(
            model, lambda o, y: y + 0 * o[:, 0], torch.optim.SGD(model.parameters()), q=LossMassRule(0.9), score=score
        )
        step(torch.ones(8, 1), losses)
        ends.append((loss_fn.end_epoch(), step.end_epoch()))
    assert ends == [(2, 2), (4, 4)]


def test_a_loss_takes_its_score_from_a_function_or_from_the_call() -> None:
    x, y = batch(0)
    outputs = x[:, :4].clone().requires_grad_()
    expected = ordered_mean(CE(outputs, y), 5, scores=entropy(outputs, y))
    for found in (
        OrderedLoss(CE, q=5, score=entropy)(outputs, y),
        OrderedLoss(CE, q=5)(outputs, y, scores=entropy(outputs, y)),
        OrderedLoss(CE, q=5, score=lambda o, t: -entropy(o, t))(outputs, y, scores=entropy(outputs, y)),
    ):
        assert found.item() == expected.item()
        assert torch.equal(
            torch.autograd.grad(found, outputs)[0], torch.autograd.grad(expected, outputs, retain_graph=True)[0]
        )


def test_a_score_of_tokens_and_of_a_large_vocabulary() -> None:
    logits, words = torch.randn(4, 7, 6, requires_grad=True), torch.randint(0, 7, (4, 6))
    words[0, 3:] = -100
    found = OrderedLoss(CE, q=0.4, unit="token", score=entropy)(logits, words)
    expected = ordered_mean(CE(logits, words), 0.4, unit="token", mask=words != -100, scores=entropy(logits, words))
    assert found.item() == expected.item()
    wide, y = torch.randn(64, 5000, requires_grad=True), torch.randint(0, 5000, (64,))  # scored first, then run again
    y[::5] = -100
    for q in (8, Above(9.5, at_least=2)):
        found = OrderedLoss(CE, q=q, score=entropy)(wide, y)
        expected = ordered_mean(CE(wide, y), q, mask=y != -100, scores=entropy(wide, y))
        torch.testing.assert_close(found, expected)
        (one,), (two,) = (torch.autograd.grad(value, wide) for value in (found, expected))
        torch.testing.assert_close(one, two)


def test_losses_of_several_targets_are_averaged_on_request() -> None:
    bce = nn.BCEWithLogitsLoss(reduction="none")
    x, y = torch.randn(12, 6), torch.randint(0, 2, (12, 3)).float()
    model = nn.Linear(6, 3)
    step = OrderedStep(model, bce, torch.optim.SGD(model.parameters(), lr=0.0), q=4, reduce="mean")
    expected = bce(model(x), y).mean(1).topk(4).values.mean()
    assert step(x, y).ordered_loss.item() == pytest.approx(expected.item())
    assert OrderedLoss(bce, q=4, reduce="mean")(model(x), y).item() == pytest.approx(expected.item())
    plain = OrderedLoss(bce, q=4, reduce="mean").eval()(model(x), y)
    assert plain.item() == pytest.approx(bce(model(x), y).mean().item())
    with pytest.raises(
        ArgumentError, match=r'got shape \(12, 3\). Reduce the other dimensions.* or let a loss do it by reduce="mean"'
    ):
        OrderedLoss(bce, q=4)(model(x), y)


@pytest.mark.parametrize("engine", ["dense", "rows", "twopass", "micro-batches"])
def test_a_score_that_is_nan_is_refused_as_a_loss_is(engine: Any) -> None:
    def broken(outputs: Tensor, y: Tensor) -> Tensor:
        scores = outputs[:, 0].detach().clone()
        scores[3 if outputs.shape[0] == S else 0 : 4] = math.nan
        return scores

    step, _, _ = twins("dense" if engine == "micro-batches" else engine, q=5, score=broken)
    x, y = batch(0)
    with pytest.raises(NonFiniteLossError, match="losses and scores must be finite; got nan at position"):
        step(parts(x, y)) if engine == "micro-batches" else step(x, y)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"score": entropy, "q": 4}, "score must be None for engine 'memory'; got a function. Use engine=\"auto\""),
        ({"q": Above(1.0)}, "q must be known before the losses for engine 'memory'; got a threshold. Use engine="),
    ],
)
def test_the_engine_with_a_memory_says_what_it_cannot_do(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ArgumentError) as error:
        twins(Memory(), **options)
    assert str(error.value).startswith(f"OrderedStep: {text}")


def test_the_random_control_keeps_as_many_as_are_above() -> None:
    x, y = batch(0)
    step, model, _ = twins("dense", q=Above(1.3), selection="random")
    losses = CE(model(x), y)
    count = int((losses > 1.3).sum())
    record = step(x, y)
    assert 1 < record.q == count < S
    assert set(record.rows.tolist()) != set((losses > 1.3).nonzero().flatten().tolist())
    tokens = OrderedLoss(CE, q=Above(1.3), selection="random")
    loss = tokens(outputs := model(x), y)
    (gradient,) = torch.autograd.grad(loss, outputs)
    assert int(gradient.abs().sum(1).count_nonzero()) == count


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"score": "entropy"}, "score must be callable; got 'entropy'. Pass a function of outputs and targets"),
        ({"reduce": "sum"}, "reduce must be one of None, mean; got 'sum'. Use reduce=\"mean\""),
        ({"q": torch.tensor([1, 2])}, "q must be a count, a share in (0, 1] or a rule; got tensor([1, 2])"),
        ({"q": Above}, "q must be a count, a share in (0, 1] or a rule; got <class"),
    ],
)
def test_wrong_knobs_get_rule_value_and_remedy(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ArgumentError) as error:
        twins("dense", **{"q": 4, **options})
    assert str(error.value).startswith(f"OrderedStep: {text}")
    with pytest.raises(ArgumentError) as error:
        OrderedLoss(F.cross_entropy, **{"q": 4, **options})  # type: ignore[arg-type]
    assert "OrderedLoss: " in str(error.value)


class Alternating:
    """A score that looks at the other samples, draws, and changes with each call: nothing for torch.compile."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        self.sizes.append(len(y))
        values = torch.from_numpy(outputs.detach().numpy().sum(1)) + torch.rand(len(y))
        return (values - values.mean()) * (-1) ** len(self.sizes)


@pytest.mark.parametrize("engine", ["dense", "rows", "twopass", "auto", "micro-batches"])
@pytest.mark.parametrize("q", [4, 1.0])
def test_a_score_is_computed_once_for_every_batch_and_never_for_the_kept_samples_alone(engine: Any, q: float) -> None:
    score, twin = Alternating(), Alternating()
    step, model, _ = twins("dense" if engine == "micro-batches" else engine, q=q, score=score)
    for number in range(4):
        x, y = batch(number, 9 if number == 2 else S)
        pieces = parts(x, y) if engine == "micro-batches" else [(x, y)]
        model.load_state_dict(step.model.state_dict())
        torch.manual_seed(number)
        with torch.no_grad():
            scores = torch.cat([twin(model(a), b) for a, b in pieces])
        torch.manual_seed(number)
        record = step(pieces) if engine == "micro-batches" else step(x, y)
        assert score.sizes == twin.sizes
        assert record.rows.tolist() == scores.topk(q).indices.sort().values.tolist() if q == 4 else record.q == len(y)


@pytest.mark.parametrize("engine", ["dense", "rows", "twopass", "auto", "micro-batches"])
def test_ignored_elements_of_averaged_samples_neither_count_nor_are_kept(engine: Any) -> None:
    ignoring = nn.CrossEntropyLoss(reduction="none", ignore_index=0)
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 12), nn.Unflatten(1, (4, 3))))
    name, frozen = "dense" if engine == "micro-batches" else engine, torch.optim.SGD(models[0].parameters(), lr=0.0)
    step = OrderedStep(models[0], ignoring, frozen, q=0.5, reduce="mean", engine=name)
    for number in range(3):
        g = torch.Generator().manual_seed(number)
        x, y = torch.randn(S, 6, generator=g), torch.randint(0, 4, (S, 3), generator=g)
        y[::4] = 0  # samples of nothing but ignored elements
        y[1] = torch.tensor([0, 0, 2])
        record = step(parts(x, y)) if engine == "micro-batches" else step(x, y)
        losses, there = ignoring(models[1](x), y), (y != 0).sum(1)
        means = (losses.sum(1) / there)[there > 0]
        expected = means.topk(len(means) // 2).values.mean()
        models[1].zero_grad()
        expected.backward()
        assert (record.count, record.q) == (len(means), len(means) // 2)
        assert record.ordered_loss.item() == pytest.approx(expected.item(), rel=1e-5)
        assert record.mean_loss.item() == pytest.approx(means.mean().item(), rel=1e-5)
        for one, two in zip(models[0].parameters(), models[1].parameters(), strict=True):
            torch.testing.assert_close(one.grad, two.grad, rtol=1e-4, atol=1e-6)
