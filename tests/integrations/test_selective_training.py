"""Trainers of Transformers whose backward passes skip the samples that are not kept."""

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ordered_sgd import explain_backward, selective_backward
from tests.integrations.trainers import Task, network, plain_loop, samples

pytestmark = pytest.mark.xdist_group("trainers")
PARTNER = "huggingface"  # what the fixtures `parts` and `leaf` import
KEPT = "only kept samples"
LOGS = {"logging_strategy": "steps", "logging_steps": 5}


@pytest.fixture
def language() -> Any:
    from tests.integrations import language_parts

    return language_parts


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def labelled() -> list[dict[str, Tensor]]:
    return [{"x": x, "labels": y} for x, y in zip(*samples(), strict=True)]


def test_the_log_says_what_was_computed(
    parts: Any, leaf: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected, model = plain_loop(Task({"q": 2}, tmp_path)), parts.Logits(network())
    loss_func = leaf.OrderedLossFunc("sequence", q=2)
    options = {"kind": leaf.OrderedTrainer, "compute_loss_func": loss_func, "settings": LOGS, "selective": True}
    with caplog.at_level(logging.INFO, logger="ordered_sgd"):
        trainer = parts.fit(model, labelled(), tmp_path, **options)
    torch.testing.assert_close(weights(model), expected.weights, rtol=0, atol=1e-6)
    assert trainer.backward_ran == KEPT
    assert [r.getMessage() for r in caplog.records].count(f"backward passes compute {KEPT}") == 1
    assert [log["ordered/computed"] for log in trainer.state.log_history if "loss" in log] == [0.25] * 4
    assert all(module._compiled_call_impl is None for module in model.modules())  # as it was


def test_a_model_is_given_back_as_it_was_after_an_error(parts: Any, leaf: Any, tmp_path: Path) -> None:
    class Faulty(parts.Logits):  # type: ignore[name-defined,misc]
        calls = 0

        def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
            self.calls += 1
            if self.calls > 3:
                raise ZeroDivisionError
            return super().forward(x, labels)  # type: ignore[no-any-return]

    model, loss_func = Faulty(network()), leaf.OrderedLossFunc("sequence", q=2)
    options = {"kind": leaf.OrderedTrainer, "compute_loss_func": loss_func, "selective": True}
    with pytest.raises(ZeroDivisionError):
        parts.fit(model, labelled(), tmp_path, **options)
    assert model._compiled_call_impl is None


def test_a_model_that_was_selective_before_stays_so(parts: Any, leaf: Any, tmp_path: Path) -> None:
    model, loss_func = selective_backward(parts.Logits(network())), leaf.OrderedLossFunc("sequence", q=2)
    options = {"kind": leaf.OrderedTrainer, "compute_loss_func": loss_func, "selective": True, "epochs": 1}
    assert parts.fit(model, labelled(), tmp_path, **options).backward_ran == KEPT
    assert explain_backward(model).skipping == 10


def compare(parts: Any, leaf: Any, folder: Path, make: Any, rows: Any, **options: Any) -> Any:
    """A trainer that skips samples, after its weights were compared with one that does not."""
    found = []
    for selective in (True, False):
        model = make()
        trainer = parts.fit(model, rows, folder, kind=leaf.OrderedTrainer, selective=selective, q=2, **options)
        assert trainer.backward_ran == (KEPT if selective else "whole batches: selective=False")
        found.append((weights(model), trainer))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=0, atol=1e-6)
    return found[0][1]


SLOW = pytest.mark.slow  # one of each kind is enough for every day
CHECKPOINTS = {"gradient_checkpointing": True}
REENTRANT = CHECKPOINTS | {"gradient_checkpointing_kwargs": {"use_reentrant": True}}


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("Llama", {}),
        pytest.param("Llama", CHECKPOINTS, marks=SLOW),
        pytest.param("Llama", {"bf16": True}, marks=SLOW),
        pytest.param("GPT2, tied, with dropout", {}, marks=SLOW),
        pytest.param("Gemma2, capped", {}, marks=SLOW),
        pytest.param("Bert, masked, with a bias", {}, marks=SLOW),
        pytest.param("Llama with LoRA", {}, marks=SLOW),
        pytest.param("Llama with LoRA", CHECKPOINTS, marks=SLOW),
    ],
)
def test_a_language_model_skips_sequences_in_its_body_and_in_its_head(
    name: str, settings: dict[str, Any], parts: Any, leaf: Any, language: Any, tmp_path: Path
) -> None:
    if "LoRA" in name:
        pytest.importorskip("peft", reason='peft is in the extra "compat"')
    options = {"unit": "sample", "settings": settings | LOGS | {"logging_steps": 2}}
    trainer = compare(parts, leaf, tmp_path, lambda: language.model_of(name), language.rows_of(name), **options)
    assert trainer.loss_from == "head: only kept tokens"
    assert trainer.state.log_history[0]["ordered/computed"] == 0.25


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"bf16": True}, CHECKPOINTS, REENTRANT, {"neftune_noise_alpha": 5.0}])
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # a checkpoint in a pass without a graph
def test_a_classifier_skips_samples_however_it_is_trained(
    settings: dict[str, Any], parts: Any, leaf: Any, tmp_path: Path
) -> None:
    rows = parts.rows_for("sequence", n=32)
    compare(parts, leaf, tmp_path, lambda: parts.model_for("sequence"), rows, settings=settings)


@pytest.mark.slow
def test_torch_compile_compiles_the_selective_graphs(parts: Any, leaf: Any, tmp_path: Path) -> None:
    rows, found = parts.rows_for("sequence", n=32), []
    for settings, selective in (({}, False), ({"torch_compile": True}, True)):
        model = parts.model_for("sequence")
        trainer = parts.fit(
            model, rows, tmp_path, kind=leaf.OrderedTrainer, q=2, selective=selective, settings=settings
        )
        found.append(weights(model))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-6)
    assert trainer.backward_ran == KEPT
    assert not isinstance(trainer.model_wrapped, torch._dynamo.OptimizedModule)


@pytest.mark.slow
def test_a_checkpoint_goes_on_bit_by_bit(parts: Any, leaf: Any, language: Any, tmp_path: Path) -> None:
    def run(folder: str, **options: Any) -> Any:
        model, rows = language.model_of("GPT2, tied, with dropout"), language.rows_of("GPT2", n=32)
        options |= {"kind": leaf.OrderedTrainer, "q": 2, "unit": "sample", "selective": True}
        return parts.fit(model, rows, tmp_path / folder, **options)

    whole = run("whole", settings={"save_strategy": "steps", "save_steps": 3})
    resumed = run("resumed", resume=str(tmp_path / "whole" / "checkpoint-3"))
    assert (whole.backward_ran, resumed.backward_ran) == (KEPT, KEPT)
    assert torch.equal(weights(resumed.model), weights(whole.model))


def compiled(model: nn.Module) -> None:
    model.compile(backend="eager")


def sharded(model: nn.Module) -> None:
    model.weight.device_mesh = object()  # as that of a DTensor


@pytest.mark.parametrize(
    ("options", "prepare", "arguments", "reason"),
    [
        ({"q": 2, "unit": "token"}, None, {}, "kept tokens lie in nearly every sample"),
        ({"q": 0.5, "unit": "sample", "mix": 0.1}, None, {}, "mix gives every sample a gradient"),
        ({"q": 1.0, "unit": "sample"}, None, {}, "q keeps every sample"),
        ({"q": 2, "unit": "sample"}, compiled, {}, "the model is compiled without selective_backward"),
        ({"q": 2, "unit": "sample"}, None, {"torch_compile": True}, "the model is compiled without selective_backward"),
        ({"q": 2, "unit": "sample"}, sharded, {}, "the parameters are sharded"),
        ({"q": 2, "unit": "sample"}, None, {"kind": "DEEPSPEED"}, "DEEPSPEED runs the model"),
    ],
)
def test_whole_batches_run_for_a_reason(
    options: dict[str, Any],
    prepare: Any,
    arguments: dict[str, Any],
    reason: str,
    leaf: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from ordered_sgd.integrations import _ordered_rule

    kind = SimpleNamespace(distributed_type=SimpleNamespace(value=arguments.get("kind", "NO")))
    monkeypatch.setattr(_ordered_rule, "AcceleratorState", lambda: kind)
    model, rule = nn.Linear(2, 2), leaf.OrderedRule(leaf.OrderedLossFunc("token", **options))
    if prepare is not None:
        prepare(model)
    before = model._compiled_call_impl
    args = SimpleNamespace(torch_compile=arguments.get("torch_compile", False))
    rule.on_train_begin(args, SimpleNamespace(stateful_callbacks={}), None, model=model)
    assert rule.backward_ran == f"whole batches: {reason}"
    assert model._compiled_call_impl is before
    assert rule.selective.share() == 1.0


def test_batchnorm_couples_samples_and_is_named_without_a_warning(parts: Any, leaf: Any, tmp_path: Path) -> None:
    model = parts.Logits(nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4)))
    loss_func = leaf.OrderedLossFunc("sequence", q=3)
    options = {"kind": leaf.OrderedTrainer, "compute_loss_func": loss_func, "selective": True, "epochs": 1}
    trainer = parts.fit(model, labelled(), tmp_path, settings=LOGS, **options)
    assert trainer.backward_ran.startswith("whole batches: ")
    assert "takes statistics over the batch" in trainer.backward_ran
    assert trainer.state.log_history[0]["ordered/computed"] == 1.0


def test_as_long_as_a_rule_keeps_everything_every_sample_has_a_gradient(parts: Any, leaf: Any, tmp_path: Path) -> None:
    from tests.integrations.trainers import Falling

    loss_func = leaf.OrderedLossFunc("sequence", q=Falling())
    options = {"kind": leaf.OrderedTrainer, "compute_loss_func": loss_func, "selective": True, "epochs": 2}
    trainer = parts.fit(parts.Logits(network()), labelled(), tmp_path, settings=LOGS, **options)
    found = [log["ordered/computed"] for log in trainer.state.log_history if "loss" in log]
    assert found == [1.0, 1.0, 0.5, 0.5]
    assert trainer.backward_ran == KEPT
