"""What models of other packages brought up: parts of them, as small as they can be, stay selective and exact."""

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ordered_sgd import explain_backward, ordered_mean, selective_backward
from ordered_sgd.selective import BackwardReport
from tests.contracts.engine_cases_common import CLASSES, Batch, Case, Model, classes, floats, param, stack, tokens
from tests.contracts.engine_checks import compare, gradient_error, gradients, one_liner

CE = nn.CrossEntropyLoss(reduction="none")
TOLERANCE = 5e-6  # relative: the sums over samples have fewer terms


@pytest.fixture(autouse=True)
def _nothing_compiled_before() -> None:
    torch._dynamo.reset()


def compared(build: Callable[[], nn.Module], batch: Batch, sizes: tuple[int, ...] = (8, 6, 9)) -> BackwardReport:
    """The report of a few backward passes, whose gradients are those of a plain twin; a warning is an error."""
    torch.manual_seed(1)
    model = selective_backward(build())
    torch.manual_seed(1)
    twin = build()
    for number, s in enumerate(sizes):
        x, y = batch(s, torch.Generator().manual_seed(number))
        torch.manual_seed(number)
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")  # torch's own
            found = one_liner(model, CE, x, y, 2)
        after = torch.get_rng_state()  # the backward draws nothing
        torch.manual_seed(number)
        one_liner(twin, CE, x, y, 2, found.rows)
        assert torch.equal(after, torch.get_rng_state())
        assert gradient_error(gradients(model), gradients(twin)) <= TOLERANCE
        for ours, theirs in zip(model.buffers(), twin.buffers(), strict=True):
            torch.testing.assert_close(ours, theirs)
    return explain_backward(model)


def one_key_for_all_heads() -> nn.Module:
    """Attention whose heads share a key and a value, as in multi-query attention."""

    def run(model: Any, x: Tensor) -> Tensor:
        s, length, _ = x.shape
        query = model.query(x).view(s, length, 4, 8).transpose(1, 2)
        key, value = (part(x).view(s, length, 1, 8).transpose(1, 2) for part in (model.key, model.value))
        h = F.scaled_dot_product_attention(query, key.expand(s, 4, length, 8), value.expand(s, 4, length, 8))
        logits: Tensor = model.head(h.transpose(1, 2).flatten(2).mean(1))
        return logits

    parts = {"query": nn.Linear(16, 32), "key": nn.Linear(16, 8), "value": nn.Linear(16, 8)}
    return Model(run, **parts, head=nn.Linear(32, CLASSES))


def test_heads_that_share_a_key_are_selective() -> None:
    report = compared(one_key_for_all_heads, floats(6, 16))
    assert report.skipping == report.passes, report


def checkpointed() -> nn.Module:
    """Dropout inside a checkpoint."""
    inner = stack(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(0.3), nn.Linear(16, 16), nn.Dropout(0.3), nn.Tanh())
    run = lambda model, x: model.head(checkpoint(model.inner, x, use_reentrant=False))  # noqa: E731
    return Model(run, inner=inner, head=nn.Linear(16, CLASSES))


def checkpointed_attention() -> nn.Module:
    """Attention, whose dropout has two results, inside a checkpoint."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3, batch_first=True)
    run = lambda model, x: model.head(checkpoint(model.layer, x, use_reentrant=False).mean(1))  # noqa: E731
    return Model(run, layer=layer, head=nn.Linear(8, CLASSES))


@pytest.mark.parametrize(("build", "batch"), [(checkpointed, floats(6)), (checkpointed_attention, floats(5, 8))])
def test_dropout_in_a_checkpoint_is_drawn_once_and_selective(build: Callable[[], nn.Module], batch: Batch) -> None:
    report = compared(build, batch)
    assert report.skipping == report.passes, report


@pytest.mark.parametrize("options", [{}, {"affine": True}, {"affine": True, "track_running_stats": True}], ids=str)
def test_instance_norm_takes_statistics_of_each_sample(options: dict[str, bool]) -> None:
    def build() -> nn.Module:
        norm = nn.InstanceNorm2d(4, **options)
        return stack(nn.Conv2d(3, 4, 3, bias=False), norm, nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, CLASSES))

    report = compared(build, floats(3, 8, 8))
    assert report.skipping == report.passes, report


def standardized() -> nn.Module:
    """A convolution whose weights are standardized by batch_norm, as in timm's norm-free networks."""

    def run(model: Any, x: Tensor) -> Tensor:
        weight = F.batch_norm(model.weight.view(1, 4, -1), None, None, training=True).view_as(model.weight)
        logits: Tensor = model.head(F.conv2d(x, weight).relu().flatten(1))
        return logits

    return Model(run, weight=param(4, 3, 3, 3), head=nn.Linear(4 * 36, CLASSES))


def test_batch_norm_of_weights_does_not_couple_samples() -> None:
    report = compared(standardized, floats(3, 8, 8))
    assert report.skipping == report.passes, report


def pairs(s: int, g: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
    return (torch.randn(s, 6, generator=g), torch.randn(s, 6, generator=g)), classes(s, g)


def siamese() -> nn.Module:
    """Both inputs through one network as one batch."""

    def run(model: Any, first: Tensor, second: Tensor) -> Tensor:
        a, b = model.body(torch.cat([first, second])).chunk(2)
        logits: Tensor = model.head((a - b).abs())
        return logits

    return Model(run, body=stack(nn.Linear(6, 16), nn.Tanh()), head=nn.Linear(16, CLASSES))


def two_branches() -> nn.Module:
    """Two inputs that meet late."""

    def run(model: Any, first: Tensor, second: Tensor) -> Tensor:
        logits: Tensor = model.head(torch.cat([model.one(first).tanh(), model.two(second).tanh()], 1))
        return logits

    return Model(run, one=nn.Linear(6, 8), two=nn.Linear(6, 8), head=nn.Linear(16, CLASSES))


@pytest.mark.parametrize("build", [siamese, two_branches])
def test_several_inputs_have_one_batch(build: Callable[[], nn.Module]) -> None:
    report = compared(build, pairs)
    assert report.skipping == report.passes, report


def test_siamese_inputs_are_selective_with_their_targets_too() -> None:
    outcomes = list(compare(Case("siamese", siamese, pairs), "rows", ((8, 2), (6, 2), (9, 3))))
    assert [outcome.record.engine for outcome in outcomes] == ["rows"] * 3, outcomes[-1].why
    assert max(outcome.error for outcome in outcomes) <= TOLERANCE


def broken_around_a_table() -> nn.Module:
    """Two graphs; the first hands the second a value that has nothing to do with the samples."""

    def run(model: Any, x: Tensor) -> Tensor:
        table, h = model.table.tanh(), model.inner(x).tanh()
        torch._dynamo.graph_break()
        logits: Tensor = model.head(h + (h @ table).softmax(1))
        return logits

    return Model(run, table=param(16, 16), inner=nn.Linear(6, 16), head=nn.Linear(16, CLASSES))


def test_an_output_that_no_sample_has_a_part_in_may_have_a_gradient() -> None:
    report = compared(broken_around_a_table, floats(6))
    assert report.passes == 6, report
    assert report.skipping == report.passes, report


def test_an_output_that_depends_on_all_samples_may_not() -> None:
    def build() -> nn.Module:
        def run(model: Any, x: Tensor) -> Tensor:
            h = model.inner(x).tanh()
            mean = h.mean(0)
            torch._dynamo.graph_break()
            logits: Tensor = model.head(h - mean)
            return logits

        return Model(run, inner=nn.Linear(6, 16), head=nn.Linear(16, CLASSES))

    report = compared(build, floats(6))
    assert report.skipping < report.passes, report


def last_word(positions: Callable[[Tensor], Tensor]) -> Callable[[], nn.Module]:
    """A classifier of the state at each text's end, as of causal language models."""

    def run(model: Any, ids: Tensor) -> Tensor:
        h = model.inner(model.embed(ids)).tanh()
        logits: Tensor = model.head(h[positions(ids), ids.argmax(1)])
        return logits

    return lambda: Model(run, embed=nn.Embedding(11, 8), inner=nn.Linear(8, 16), head=nn.Linear(16, CLASSES))


def test_the_number_of_a_sample_in_its_batch_is_not_kept() -> None:
    report = compared(last_word(lambda ids: torch.arange(ids.shape[0])), tokens(5))
    assert report.skipping == report.passes, report


def test_another_sample_s_number_is_a_coupling_even_if_the_first_samples_are_kept() -> None:
    model = selective_backward(last_word(lambda ids: torch.arange(ids.shape[0]) // 2)())
    ids, y = tokens(5)(8, torch.Generator().manual_seed(0))
    CE(model(ids), y)[:2].mean().backward()
    report = explain_backward(model)
    assert report.skipping == 0, report


def test_embeddings_with_a_largest_norm_run_at_several_batch_sizes() -> None:
    def build() -> nn.Module:
        return stack(nn.Embedding(11, 8, max_norm=1.0), lambda h: h.mean(1), nn.Linear(8, CLASSES))

    compared(build, tokens(5), (8, 6, 9, 7))


def flat_heads() -> nn.Module:
    """Samples and heads in one dimension, with positions expanded along it, as in DeBERTa-v2."""

    def run(model: Any, x: Tensor) -> Tensor:
        s = x.shape[0]
        h = model.inner(x).view(s, 5, 2, 8).transpose(1, 2).reshape(s * 2, 5, 8)
        scores = h @ model.table.repeat(h.shape[0] // 2, 1, 1)
        index = (torch.arange(5)[:, None] - torch.arange(5)[None, :] + 4).expand(h.shape[0], 5, 5)
        h = scores.gather(2, index).softmax(2) @ h
        logits: Tensor = model.head(h.view(s, 2, 5, 8).mean(2).flatten(1))
        return logits

    return Model(run, inner=nn.Linear(6, 16), table=param(2, 8, 9), head=nn.Linear(16, CLASSES))


def test_a_sparse_gradient_runs_in_full_and_says_why() -> None:
    model = nn.Sequential(nn.Embedding(11, 8, sparse=True), nn.Flatten(), nn.Linear(40, CLASSES))
    twin = copy.deepcopy(model)
    ids, y = tokens(5)(8, torch.Generator().manual_seed(0))
    for one in (selective_backward(model), twin):
        ordered_mean(CE(one(ids), y), q=2).backward()
    assert torch.equal(model[0].weight.grad.to_dense(), twin[0].weight.grad.to_dense())
    assert "sparse" in str(explain_backward(model))


def test_positions_expanded_over_samples_and_heads_have_a_place() -> None:
    report = compared(flat_heads, floats(5, 6))
    assert report.skipping == report.passes, report


def test_a_parameter_repeated_for_each_sample_has_a_place() -> None:
    def build() -> nn.Module:
        run = lambda model, x: model.head((x.flatten() * model.scale.repeat(x.shape[0])).view_as(x))  # noqa: E731
        return Model(run, scale=param(6), head=nn.Linear(6, CLASSES))

    report = compared(build, floats(6))
    assert report.skipping == report.passes, report


@pytest.mark.slow
def test_whisper_with_dropout_has_gradients_laid_out_otherwise_than_traced() -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    layers = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 32}
    sizes = {"d_model": 16, "num_mel_bins": 4, "max_source_positions": 8, "vocab_size": 11, "num_labels": CLASSES}
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}

    def build() -> nn.Module:
        config = transformers.WhisperConfig(**layers, **sizes, **special, dropout=0.1)
        made: nn.Module = transformers.WhisperForAudioClassification(config).train()
        return made

    case = Case("Whisper", build, floats(4, 16), lambda outputs, y: CE(outputs.logits, y))
    for outcome in compare(case, "rows", ((8, 2), (6, 2))):
        assert outcome.error <= TOLERANCE
