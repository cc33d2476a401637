"""`selective_backward(model, compile=True)`: graphs that inductor compiled give the same outputs and gradients."""

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ordered_sgd import explain_backward, restore_backward, selective_backward
from ordered_sgd.errors import ArgumentError
from ordered_sgd.selective import BackwardReport
from tests.contracts.engine_cases_common import CLASSES, Model, floats, stack, tokens

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, as it loads inductor
TOLERANCE = 1e-6  # relative to the largest gradient: kernels add up in another order
SIZES = ((8, 2), (6, 3), (9, 9), (8, 1))  # batch size, samples with a gradient: all of them and one alone, too


@pytest.fixture(autouse=True)
def _nothing_compiled_before() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compared(
    build: Callable[[], nn.Module],
    batches: Callable[[int, torch.Generator], tuple[Any, Tensor]],
    *,
    sizes: tuple[tuple[int, int], ...] = SIZES,
    around: Callable[[], Any] = contextlib.nullcontext,
    tolerance: float = TOLERANCE,
) -> BackwardReport:
    """The report of a few steps, whose outputs, gradients, buffers and random numbers are those of a plain twin."""
    torch.manual_seed(1)
    twin = build()
    model = selective_backward(copy.deepcopy(twin), compile=True)
    for number, (s, q) in enumerate(sizes):
        x, y = batches(s, torch.Generator().manual_seed(number))
        found: list[Any] = []
        for one in (twin, model):
            one.zero_grad()
            torch.manual_seed(number)
            with around():
                outputs = one(x)
            losses = F.cross_entropy(outputs.float(), y, reduction="none")
            rows = losses.detach().topk(q).indices if not found else found[0][1]
            losses[rows].mean().backward()
            found.append((outputs.detach(), rows, torch.get_rng_state(), [p.grad for p in one.parameters()]))
        (plain, _, state, expected), (ours, _, same, gradients) = found
        torch.testing.assert_close(ours, plain, rtol=10 * tolerance, atol=10 * tolerance)
        assert torch.equal(state, same)
        largest = max(float(grad.abs().max()) for grad in expected)
        assert max(float((a - b).abs().max()) for a, b in zip(gradients, expected, strict=True)) <= tolerance * largest
        for own, other in zip(model.buffers(), twin.buffers(), strict=True):
            torch.testing.assert_close(own, other)
    return explain_backward(model)


def compiled(report: BackwardReport) -> bool:
    """Whether every graph ran as inductor compiled it, for those samples only that have a gradient."""
    return report.lowered > 0 and not report.unlowered and report.skipping == report.passes - 1


def mlp() -> nn.Module:
    return stack(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, CLASSES))


def test_gradients_are_those_of_the_plain_model_which_draws_the_same_dropout() -> None:
    report = compared(mlp, floats(6))
    assert compiled(report), report
    assert "Graphs are compiled with inductor." in str(report)


def transformer() -> nn.Module:
    """Time first inside, so that the strides of what is saved depend on the batch size."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2)
    run = lambda model, x: model.head(model.layer(x.transpose(0, 1).contiguous()).mean(0))  # noqa: E731
    return Model(run, layer=layer, head=nn.Linear(8, CLASSES))


def convolutional() -> nn.Module:
    return stack(
        nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3), nn.SiLU(),
        nn.AvgPool2d(2), nn.Flatten(), nn.Linear(8, CLASSES),
    )  # fmt: skip


def normalized() -> nn.Module:
    """BatchNorm in eval mode, and in training on what no sample's gradient goes through."""

    def run(model: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = model.first(x)
        logits: Tensor = model.head(model.second(x).tanh())
        return logits

    return Model(
        run, first=nn.BatchNorm1d(6, affine=False), second=nn.BatchNorm1d(6).eval(), head=nn.Linear(6, CLASSES)
    )


def embedding() -> nn.Module:
    return stack(nn.Embedding(11, 8), lambda h: h.mean(1).tanh(), nn.Linear(8, CLASSES))


def tied() -> nn.Module:
    """Input and output embeddings share their weights."""
    run = lambda model, ids: (model.embed(ids).cumsum(1).tanh() @ model.embed.weight.T)[:, -1]  # noqa: E731
    return Model(run, embed=nn.Embedding(CLASSES, 8))


def chunked() -> nn.Module:
    """Causal attention whose query, key and value are views of one tensor."""

    def run(model: Any, x: Tensor) -> Tensor:
        parts = (part.unflatten(2, (2, 4)).transpose(1, 2) for part in model.all(x).chunk(3, 2))
        h = F.scaled_dot_product_attention(*parts, is_causal=True)
        logits: Tensor = model.head(h.transpose(1, 2).flatten(2).mean(1))
        return logits

    return Model(run, all=nn.Linear(8, 24), head=nn.Linear(8, CLASSES))


def checkpointed() -> nn.Module:
    inner = stack(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(0.3), nn.Linear(16, 16), nn.Tanh())
    run = lambda model, x: model.head(checkpoint(model.inner, x, use_reentrant=False))  # noqa: E731
    return Model(run, inner=inner, head=nn.Linear(16, CLASSES))


def recurrent() -> nn.Module:
    run = lambda model, x: model.head(model.inner(x)[0][:, -1])  # noqa: E731
    return Model(run, inner=nn.GRU(6, 8, batch_first=True), head=nn.Linear(8, CLASSES))


def last_word() -> nn.Module:
    """The state at each text's end, found by the number of the sample in its batch, and a mean without a gradient."""

    def run(model: Any, ids: Tensor) -> Tensor:
        h = model.embed(ids).tanh()
        h = h[torch.arange(ids.shape[0]), ids.argmax(1)]
        logits: Tensor = model.head(h - h.detach().mean(0))
        return logits

    return Model(run, embed=nn.Embedding(11, 8), head=nn.Linear(8, CLASSES))


def channels_last(s: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    x, y = floats(3, 8, 8)(s, g)
    return x.to(memory_format=torch.channels_last), y


def lengths(s: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    """Texts of another length for every batch size."""
    return tokens(s // 2)(s, g)


MODELS: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "a convolutional network": (convolutional, floats(3, 8, 8)),
    "channels last": (lambda: convolutional().to(memory_format=torch.channels_last), channels_last),
    "a transformer layer": (transformer, floats(5, 8)),
    "buffers that change": (normalized, floats(6)),
    "embeddings": (embedding, tokens(5)),
    "several lengths": (embedding, lengths),
    "numbers of samples": (last_word, tokens(5)),
    "tied weights": (tied, lambda s, g: (tokens(5)(s, g)[0] % CLASSES, tokens(5)(s, g)[1])),
    "attention to views": (chunked, floats(5, 8)),
    "a checkpoint": (checkpointed, floats(6)),
    "a loop": (recurrent, floats(4, 6)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_gradients_of_compiled_models_are_those_of_plain_ones(name: str) -> None:
    report = compared(*MODELS[name])
    assert compiled(report), report


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["BERT", "GPT-2"])
def test_gradients_of_transformers_with_dropout_are_those_of_plain_ones(kind: str) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    ids, names = tokens(7), ("hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings")

    def build() -> nn.Module:
        sizes = dict(zip(names, (16, 2, 2, 16), strict=True)) | {"vocab_size": 11}
        if kind == "BERT":
            config = transformers.BertConfig(**sizes, intermediate_size=32, num_labels=CLASSES)
            inner = transformers.BertForSequenceClassification(config).train()
            return Model(lambda model, ids: model.inner(ids).logits, inner=inner)
        inner = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)).train()
        return Model(lambda model, ids: model.inner(ids, use_cache=False).logits[:, -1, :CLASSES], inner=inner)

    report = compared(build, ids)
    assert compiled(report), report


@pytest.mark.slow
def test_autocast_stays_within_its_own_rounding() -> None:
    def build() -> nn.Module:
        return stack(nn.Linear(6, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, CLASSES))

    report = compared(build, floats(6), around=lambda: torch.autocast("cpu", torch.bfloat16), tolerance=2e-2)
    assert compiled(report), report


@pytest.mark.slow
def test_a_coupling_is_found_in_a_compiled_model_too() -> None:
    def build() -> nn.Module:
        def run(model: Any, x: Tensor) -> Tensor:
            h = model.inner(x).tanh()
            logits: Tensor = model.head(h + model.scale * h.roll(1, 0))
            return logits

        scale = nn.Parameter(torch.full((1,), 1e-4))
        return Model(run, inner=nn.Linear(6, 16), scale=scale, head=nn.Linear(16, CLASSES))

    with pytest.warns(UserWarning, match="samples must not influence each other"):
        report = compared(build, floats(6))
    assert report.lowered > 0
    assert report.skipping == 0, report


@pytest.mark.slow
def test_a_graph_may_be_kept_and_other_outputs_may_be_views_of_the_first() -> None:
    def run(model: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = model.inner(x)
        return h, h.view(-1, 2, 8), x

    torch.manual_seed(0)
    plain = Model(run, inner=nn.Linear(6, 16))
    model = selective_backward(copy.deepcopy(plain), compile=True)
    x = torch.randn(8, 6)
    for one in (plain, model):
        first, second, same = one(x)
        assert same is x
        assert second.data_ptr() == first.data_ptr()
        (first[:2].square().sum() + second[3].sum()).backward(retain_graph=True)
        first[5].sum().backward()
    torch.testing.assert_close(model.inner.weight.grad, plain.inner.weight.grad, rtol=TOLERANCE, atol=TOLERANCE)
    report = explain_backward(model)
    assert (report.passes, report.skipping) == (2, 2), report
    assert not report.unlowered


@pytest.mark.slow
def test_a_backward_is_compiled_again_for_rows_that_its_code_does_not_suit() -> None:
    def build() -> nn.Module:
        def run(model: Any, x: Tensor) -> Tensor:
            h = model.inner(x).tanh()
            logits: Tensor = model.head(h if x.shape[0] > 5 else 2 * h)
            return logits

        return Model(run, inner=nn.Linear(6, 16), head=nn.Linear(16, CLASSES))

    report = compared(build, floats(6), sizes=((8, 2), (9, 7), (9, 4)))
    assert report.skipping == 3, report
    assert report.lowered == 2, report  # once for more than 5 rows, once for fewer
    assert not report.unlowered


def test_what_inductor_cannot_compile_runs_node_by_node_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import compile_fx

    def fails(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no kernel")

    monkeypatch.setattr(compile_fx, "compile_fx_inner", fails)
    report = compared(mlp, floats(6))
    assert report.lowered == 0
    assert report.skipping == 3, report
    assert "Not compiled, 1 times: inductor cannot compile the forward (no kernel)" in str(report)


def test_a_model_that_is_compiled_already_is_told_what_to_call() -> None:
    model = mlp()
    outer = torch.compile(model)
    model.compile()
    for one, how in ((outer, r"torch.compile\(model\)"), (model, r"model.compile\(\)")):
        with pytest.raises(ArgumentError, match=rf"Call selective_backward\(model, compile=True\) instead of {how}"):
            selective_backward(one)


def test_the_last_call_decides_whether_graphs_are_compiled() -> None:
    model = selective_backward(mlp())
    first = model._compiled_call_impl
    assert selective_backward(model)._compiled_call_impl is first
    second = selective_backward(model, compile=True)._compiled_call_impl
    assert second is not first
    assert second.lower
    assert restore_backward(model)._compiled_call_impl is None
