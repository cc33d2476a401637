"""`selective_backward`: the same outputs and gradients as without it, for fewer samples, in whatever way it is used."""

import copy
import gc
import io
import pickle
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ordered_sgd import explain_backward, ordered_mean, restore_backward, selective_backward
from ordered_sgd.errors import ArgumentError

S, IN, CLASSES = 24, 12, 5
G = torch.Generator().manual_seed(0)
X, Y = torch.randn(S, IN, generator=G), torch.randint(0, CLASSES, (S,), generator=G)


def losses(outputs: Tensor, y: Tensor = Y) -> Tensor:
    return F.cross_entropy(outputs, y, reduction="none")


def mlp(width: int = 16) -> nn.Module:
    return nn.Sequential(nn.Linear(IN, width), nn.ReLU(), nn.Dropout(0.3), nn.Linear(width, CLASSES))


class Dictionary(nn.Module):
    """Keyword inputs, and outputs of which one is a loss over the batch, as of a Transformers model."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp()

    def forward(self, *, x: Tensor, labels: Tensor) -> dict[str, Any]:
        logits = self.inner(x)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits, "more": (logits.detach(), None)}


@dataclass
class Answer:
    logits: Tensor
    norm: Tensor


class Structured(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp()

    def forward(self, x: Tensor) -> Answer:
        logits = self.inner(x)
        return Answer(logits, logits.pow(2).sum(1))


class Flattened(nn.Module):
    """Outputs of shape (s * T, V)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(20, 8), nn.Linear(8, 20)

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.head(self.embed(ids)).view(-1, 20)
        return logits


class Gated(nn.Module):
    """A scale that starts at zero before a coupling."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.scale = mlp(), nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        h = self.inner(x)
        out: Tensor = h + self.scale * h.softmax(0)
        return out


def step(model: nn.Module, number: int = 0, q: float = 0.25) -> None:
    """A plain loop's backward; every step has another batch size."""
    n = S - 2 * number
    ordered_mean(losses(model(X[:n]), Y[:n]), q=q).backward()


def with_kept_graph(model: nn.Module, number: int) -> None:
    loss = ordered_mean(losses(model(X)), q=0.25)
    loss.backward(retain_graph=True)
    loss.backward()


def several_calls(model: nn.Module, number: int) -> None:
    first, second = model(X[:10]), model(X[10:])
    with torch.no_grad():
        model(X[:5])
    ordered_mean(torch.cat([losses(first, Y[:10]), losses(second, Y[10:])]), q=5).backward()


def hook_added_later(model: Any, number: int) -> None:
    if number == 1:
        model[0].register_forward_hook(lambda module, inputs, outputs: 2 * outputs)
    step(model)


def frozen_later(model: Any, number: int) -> None:
    if number == 1:
        model[0].weight.requires_grad_(False)
    step(model)


def in_a_checkpoint(model: nn.Module, number: int) -> None:
    ordered_mean(losses(checkpoint(model, X, use_reentrant=False)), q=0.25).backward()


def keywords(model: nn.Module, number: int) -> None:
    ordered_mean(losses(model(x=X, labels=Y)["logits"]), q=0.25).backward()


def with_the_models_own_loss(model: nn.Module, number: int) -> None:
    outputs = model(x=X, labels=Y)
    (ordered_mean(losses(outputs["logits"]), q=0.25) + outputs["loss"]).backward()


def structured(model: nn.Module, number: int) -> None:
    answer = model(X)
    kept = (ordered_mean(losses(answer.logits), q=0.25), ordered_mean(answer.norm, q=2))
    sum(kept).backward()  # type: ignore[union-attr]


def flattened(model: nn.Module, number: int) -> None:
    ids = torch.arange(6 * (S - 2 * number)).view(-1, 6) % 20
    each = losses(model(ids), ids.flatten()).view(ids.shape).mean(1)
    ordered_mean(each, q=0.25).backward()


def evaluated(model: nn.Module, number: int) -> None:
    step(model.eval())
    step(model.train())


def functional(model: nn.Module, number: int) -> None:
    outputs = torch.func.functional_call(model, dict(model.named_parameters()), (X,))
    ordered_mean(losses(outputs), q=0.25).backward()


def transformed(model: nn.Module, number: int) -> None:
    def loss(weights: dict[str, Tensor]) -> Tensor:
        return ordered_mean(losses(torch.func.functional_call(model.eval(), weights, (X,))), q=0.25)

    found = torch.func.grad(loss)({name: p.detach() for name, p in model.named_parameters()})
    for name, parameter in model.named_parameters():
        parameter.grad = found[name]


def gradient_of_inputs(model: nn.Module, number: int) -> None:
    x = X.clone().requires_grad_()
    ordered_mean(losses(model(x)), q=0.25).backward()
    assert x.grad is not None
    torch.stack([p.grad.sum() for p in model.parameters() if p.grad is not None])
    next(model.parameters()).grad.add_(x.grad.sum())  # type: ignore[union-attr]


def margin(model: nn.Module, number: int) -> None:
    F.multi_margin_loss(model(X), Y, margin=0.02).backward()


def zero_weights(model: nn.Module, number: int) -> None:
    (losses(model(X)) * (torch.arange(S) % 3 == 0)).sum().backward()


def pairs(model: nn.Module, number: int) -> None:
    """In-batch negatives: the coupling is behind the model, and every sample has a gradient."""
    h = F.normalize(model(X), dim=1)
    F.cross_entropy(h @ h.t(), torch.arange(S)).backward()


def one_sample(model: nn.Module, number: int) -> None:
    step(model, number, q=1)


def nothing_has_a_gradient(model: nn.Module, number: int) -> None:
    (0 * losses(model(X)).sum()).backward()


@dataclass(frozen=True)
class Use:
    """A model, what is done with it, and what share of the samples the backward computes (None: it is not run)."""

    model: Callable[[], nn.Module]
    run: Callable[[Any, int], None]
    share: float | None = 0.25
    tolerance: float = 2e-6
    why: str = field(default="")


USES = {
    "a loop": Use(mlp, step),
    "the batch size equals a width": Use(lambda: mlp(S), step),
    "one sample": Use(mlp, one_sample, 0.05),
    "no sample": Use(mlp, nothing_has_a_gradient, 0.05),
    "all samples": Use(mlp, lambda model, number: step(model, number, q=1.0), 1.0),
    "retain_graph": Use(mlp, with_kept_graph),
    "several calls before a backward": Use(mlp, several_calls),
    "a hook added later": Use(mlp, hook_added_later),
    "a layer frozen later": Use(mlp, frozen_later),
    "checkpointing around the model": Use(mlp, in_a_checkpoint),
    "keyword inputs, a dict of outputs": Use(Dictionary, keywords),
    "the model's own loss as well": Use(Dictionary, with_the_models_own_loss, 1.0, why="without the batch dimension"),
    "a dataclass of outputs": Use(Structured, structured, 0.4),
    "outputs of shape (s * T, V)": Use(Flattened, flattened),
    "eval mode": Use(mlp, evaluated),
    "functional_call": Use(mlp, functional),
    "torch.func.grad": Use(mlp, transformed, None),
    "gradients of the inputs": Use(mlp, gradient_of_inputs),
    "a margin loss": Use(mlp, margin, 0.9),
    "weights that are zero": Use(mlp, zero_weights, 0.34),
    "a loss over pairs": Use(mlp, pairs, 1.0),
    "BatchNorm": Use(
        lambda: nn.Sequential(nn.Linear(IN, 8), nn.BatchNorm1d(8), nn.Linear(8, CLASSES)),
        step,
        None,
        why="takes statistics over the batch",
    ),
    "BatchNorm in eval mode": Use(
        lambda: nn.Sequential(nn.Linear(IN, 8), nn.BatchNorm1d(8).eval(), nn.Linear(8, CLASSES)), step
    ),
    "a coupling behind a zero": Use(Gated, step, None, why="samples influence each other"),
    "a transformer layer": Use(
        lambda: nn.Sequential(
            nn.Unflatten(1, (3, 4)), nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), nn.Flatten(),
            nn.Linear(12, CLASSES),
        ),
        step,
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*samples must not influence each other.*")
@pytest.mark.parametrize("name", USES)
def test_gradients_are_those_of_the_plain_model_and_samples_are_skipped(name: str) -> None:
    use = USES[name]
    torch.manual_seed(0)
    plain = use.model()
    model = copy.deepcopy(plain)
    assert selective_backward(model) is model
    for number in range(3):
        states = []
        for one in (plain, model):
            one.zero_grad()
            torch.manual_seed(number)
            use.run(one, number)
            states.append(torch.get_rng_state())
        assert torch.equal(*states)
        for own, other in zip(model.parameters(), plain.parameters(), strict=True):
            assert (own.grad is None) == (other.grad is None)
            if own.grad is not None and other.grad is not None:
                assert (own.grad - other.grad).abs().max() <= use.tolerance * (1 + other.grad.abs().max())
    report = explain_backward(model)
    if use.share is None:
        assert report.skipping == 0
    else:
        assert report.rows / report.samples <= use.share
    assert use.why in str(report)
    assert bool(use.why) == bool(report.reasons)


def test_outputs_random_numbers_and_buffers_are_those_of_the_plain_model() -> None:
    plain = nn.Sequential(mlp(), nn.BatchNorm1d(CLASSES))
    model = selective_backward(copy.deepcopy(plain))
    for _ in range(3):
        found = []
        for one in (plain, model):
            torch.manual_seed(1)
            found.append((one(X), torch.rand(1)))
        assert torch.allclose(found[0][0], found[1][0], atol=1e-6)
        assert torch.equal(found[0][1], found[1][1])
    for name, buffer in plain.named_buffers():
        assert torch.allclose(buffer.float(), dict(model.named_buffers())[name].float()), name


def test_the_model_keeps_its_type_its_names_and_its_checkpoint() -> None:
    plain = mlp()
    model = selective_backward(copy.deepcopy(plain))
    step(model)
    assert type(model) is nn.Sequential
    assert list(model.state_dict()) == list(plain.state_dict())
    plain.load_state_dict(model.state_dict())


@pytest.mark.parametrize("how", ["deepcopy", "pickle", "save"])
def test_a_copy_is_plain_says_so_and_can_be_made_selective(how: str) -> None:
    model = selective_backward(mlp())
    step(model)
    if how == "deepcopy":
        other = copy.deepcopy(model)
    elif how == "pickle":
        other = pickle.loads(pickle.dumps(model))
    else:
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        other = torch.load(file, weights_only=False)
    assert "it is not selective" in str(explain_backward(other))
    step(selective_backward(other))
    assert explain_backward(other).skipping == 1
    assert explain_backward(model).skipping == 1


def test_restoring_gives_the_plain_model_and_twice_is_once() -> None:
    model = selective_backward(selective_backward(mlp()))
    step(model)
    assert restore_backward(model) is model
    assert model._compiled_call_impl is None
    step(model)
    assert restore_backward(restore_backward(model)) is model


def test_a_model_that_is_restored_before_its_first_call_warns_of_nothing() -> None:
    step(restore_backward(selective_backward(mlp())))


def test_a_model_that_is_compiled_already_is_not_overwritten() -> None:
    model = mlp()
    model.compile(backend="eager")
    with pytest.raises(ArgumentError, match=r"the model must not be compiled; got model\.compile"):
        selective_backward(model)


def test_second_derivatives_are_refused_with_the_call_that_allows_them() -> None:
    model = selective_backward(mlp())
    loss = ordered_mean(losses(model(X)), q=0.25)
    with pytest.raises(ArgumentError, match=r"create_graph must be False .* Call restore_backward\(model\)"):
        torch.autograd.grad(loss, list(model.parameters()), create_graph=True)


@pytest.mark.parametrize("how", ["forward", "outer compile", "compiled later"])
def test_a_model_whose_selective_path_is_not_entered_says_so_once(how: str) -> None:
    model = selective_backward(mlp())
    called: Any = {"forward": model.forward, "outer compile": torch.compile(model, backend="eager")}.get(how, model)
    if how == "compiled later":
        model.compile(backend="eager")
    with pytest.warns(UserWarning, match="the model must be called for its backward to be selective") as caught:
        _ = [ordered_mean(losses(called(X)), q=0.25).backward() for _ in range(2)]
    assert len([one for one in caught if "selective_backward" in str(one.message)]) == 1


def test_many_models_of_one_class_do_not_share_a_limit_of_recompiles() -> None:
    models = [selective_backward(mlp()) for _ in range(10)]
    for model in models:
        step(model)
    assert [explain_backward(model).skipping for model in models] == [1] * 10


def test_a_model_that_cannot_be_compiled_runs_as_it_is_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    from ordered_sgd.selective import compiler

    def fails(*_: Any, **__: Any) -> Any:
        raise torch._dynamo.exc.BackendCompilerFailed(None, RuntimeError("no"), None)  # type: ignore[attr-defined, arg-type]

    monkeypatch.setattr(compiler, "default_partition", fails)
    plain, model = mlp(), mlp()
    model.load_state_dict(plain.state_dict())
    torch.manual_seed(0)
    step(plain)
    torch.manual_seed(0)
    with pytest.warns(UserWarning, match="the model must run selectively; got the model could not be compiled"):
        step(selective_backward(model))
    for own, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(own.grad, other.grad)  # type: ignore[arg-type]


def test_dtype_and_autocast_may_change() -> None:
    plain, model = mlp(), mlp()
    model.load_state_dict(plain.state_dict())
    selective_backward(model)
    step(model)
    for one in (plain, model):
        one.double().zero_grad()
        torch.manual_seed(0)
        ordered_mean(losses(one(X.double())), q=0.25).backward()
    for own, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(own.grad, other.grad, rtol=1e-12)  # type: ignore[arg-type]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ordered_mean(losses(model.float()(X).float()), q=0.25).backward()
    assert explain_backward(model).skipping == 3


def test_a_model_that_nobody_holds_is_freed() -> None:
    model = selective_backward(mlp())
    step(model)
    gone = weakref.ref(model)
    del model
    torch._dynamo.reset()
    gc.collect()
    assert gone() is None


def test_something_that_is_no_module_is_refused() -> None:
    with pytest.raises(ArgumentError, match="model must be a module; got function"):
        selective_backward(step)  # type: ignore[type-var]
