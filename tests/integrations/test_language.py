"""Language models in `OrderedTrainer`: without the output layer's logits, the same losses, gradients and weights."""

import importlib
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ordered_sgd import AccuracyRule, LossMassRule
from ordered_sgd.errors import ArgumentError

pytestmark = pytest.mark.xdist_group("trainers")
PARTNER = "huggingface"  # what the fixtures `parts` and `leaf` import
HEAD = "head: only kept tokens"
MODELS = [
    "GPT2, tied, with dropout",
    "Llama",
    "Llama, tied",
    "Gemma2, capped",
    "Cohere, scaled",
    "Granite, divided",
    "Mixtral, with a router",
    "Bert, masked, with a bias",
    "Roberta, masked, with a bias",
    "Llama with LoRA",
]
EVERY_MODEL = pytest.mark.parametrize("name", MODELS)


@pytest.fixture
def language(request: pytest.FixtureRequest) -> Any:
    callspec = getattr(request.node, "callspec", None)
    if callspec is not None and "LoRA" in str(callspec.params.get("name", "")):
        pytest.importorskip("peft", reason='peft is in the extra "compat"')
    return importlib.import_module("tests.integrations.language_parts")


def trainer_of(leaf: Any, model: Any, folder: Path, **options: Any) -> Any:
    from transformers import TrainingArguments

    quiet: dict[str, Any] = {"report_to": [], "disable_tqdm": True, "log_level": "error", "use_cpu": True}
    return leaf.OrderedTrainer(model, TrainingArguments(str(folder), **quiet), **options)


def step(trainer: Any, model: Any, batch: dict[str, Tensor], *, seed: int = 3) -> list[Tensor]:
    """The loss of a batch that has half of the update's labels, and all gradients."""
    torch.manual_seed(seed)
    model.train()
    model.zero_grad()
    in_all = 2 * (batch["labels"] != -100).sum()
    loss = trainer.compute_loss(model, dict(batch), num_items_in_batch=in_all)
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def close(model: nn.Module, expected: nn.Module, atol: float = 2e-6) -> None:
    torch.testing.assert_close(weights(model), weights(expected), rtol=0, atol=atol)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-6)])
@EVERY_MODEL
def test_the_loss_and_the_gradients_are_those_of_the_logits(
    name: str, dtype: torch.dtype, tolerance: float, leaf: Any, language: Any, tmp_path: Path
) -> None:
    batch, found = language.batch_of(name), []
    for head in (True, False):
        model = language.model_of(name, dtype)
        trainer = trainer_of(leaf, model, tmp_path, q=0.3, head=head)
        found.append([step(trainer, model, batch, seed=seed) for seed in (3, 4)])
        assert trainer.loss_from == (HEAD if head else "logits: head=False")
    assert len(found[0][0]) > 1
    torch.testing.assert_close(found[0], found[1], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("options", [{"unit": "sample"}, {"mix": 0.2}, {"cap": 2.0}, {"trim": 2, "trim_epochs": 0}])
def test_every_way_of_keeping_works_without_logits(
    options: dict[str, Any], leaf: Any, language: Any, tmp_path: Path
) -> None:
    batch, found = language.batch_of("Llama"), []
    for head in (True, False):
        model = language.model_of("Llama", torch.float64)
        loss = leaf.OrderedLossFunc("causal", q=0.3, **options)
        trainer = trainer_of(leaf, model, tmp_path, compute_loss_func=loss, head=head)
        found.append(step(trainer, model, batch))
        assert (trainer.loss_from == HEAD) == head
    torch.testing.assert_close(found[0], found[1], rtol=1e-10, atol=1e-10)


@EVERY_MODEL
def test_the_output_layer_sees_a_gradient_from_the_kept_tokens_only(
    name: str, leaf: Any, language: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ordered_sgd.integrations import _head

    rows: list[Tensor] = []

    def watched(hidden: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        hidden.register_hook(lambda gradient: rows.append((gradient.abs().sum(-1) > 0).sum()))
        return losses(hidden, *args, **kwargs)

    losses = _head.token_losses
    monkeypatch.setattr(_head, "token_losses", watched)
    batch, model = language.batch_of(name), language.model_of(name)
    step(trainer_of(leaf, model, tmp_path, q=0.3), model, batch)
    labels = batch["labels"] if "masked" in name else batch["labels"][:, 1:]
    assert [int(n) for n in rows] == [int(0.3 * int((labels != -100).sum()))]


@EVERY_MODEL
def test_some_epochs_end_at_the_weights_of_the_logits(
    name: str, parts: Any, leaf: Any, language: Any, tmp_path: Path
) -> None:
    trained = []
    for head in (True, False):
        model = language.model_of(name)
        options = {"kind": leaf.OrderedTrainer, "q": LossMassRule(), "head": head, "batch": 4, "parts": 2}
        trainer = parts.fit(model, language.rows_of(name), tmp_path, **options)
        assert trainer.loss_from == (HEAD if head else "logits: head=False")
        trained.append(model)
    assert not torch.equal(weights(trained[0]), weights(language.model_of(name)))
    close(*trained)


@EVERY_MODEL
def test_all_kept_is_the_plain_trainer(name: str, parts: Any, leaf: Any, language: Any, tmp_path: Path) -> None:
    cut = {"batch": 4, "parts": 1 if "masked" in name else 2}  # masked models do not divide by num_items_in_batch
    plain, ordered, rows = language.model_of(name), language.model_of(name), language.rows_of(name)
    parts.fit(plain, rows, tmp_path, **cut)
    trainer = parts.fit(ordered, rows, tmp_path, kind=leaf.OrderedTrainer, q=1.0, **cut)
    assert trainer.loss_from == HEAD
    close(ordered, plain)


UNSHIFTED: dict[str, dict[str, Any]] = {
    "BartForCausalLM": {"d_model": 16, "decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 32},
    "XLMWithLMHeadModel": {"emb_dim": 16, "n_layers": 1, "n_heads": 2},
}


@pytest.mark.parametrize("name", UNSHIFTED)
def test_labels_are_shifted_only_where_the_model_itself_does_it(
    name: str, leaf: Any, language: Any, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    kind = getattr(transformers, name)
    sizes = {"vocab_size": language.WORDS, "n_words": language.WORDS, "pad_token_id": 0}
    model = kind(kind.config_class(**sizes, **UNSHIFTED[name])).eval()  # no dropout
    batch = language.batch_of("masked")
    trainer = trainer_of(leaf, model, tmp_path, q=1.0)
    assert torch.allclose(trainer.compute_loss(model, dict(batch)), model(**batch).loss, atol=1e-6)


def test_under_autocast_the_head_runs_in_the_dtype_of_the_layer(leaf: Any, language: Any, tmp_path: Path) -> None:
    from transformers import TrainingArguments

    quiet: dict[str, Any] = {"report_to": [], "disable_tqdm": True, "log_level": "error", "use_cpu": True}
    found = []
    for head in (True, False):
        model = language.model_of("Llama")
        arguments = TrainingArguments(str(tmp_path), bf16=True, **quiet)
        trainer = leaf.OrderedTrainer(model, arguments, q=0.5, head=head)
        wrapped = trainer.accelerator.prepare_model(model)
        found.append(step(trainer, wrapped, language.batch_of("Llama")))
        assert (trainer.loss_from == HEAD) == head
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-6, atol=0)  # of the same logits, in bfloat16
    for one, other in zip(found[0][1:], found[1][1:], strict=True):
        assert (one - other).norm() < 2e-2 * other.norm()  # products are rounded to bfloat16


def test_layers_that_are_computed_again_in_the_backward_pass_work_too(
    parts: Any, leaf: Any, language: Any, tmp_path: Path
) -> None:
    trained = []
    for again in (True, False):
        model, settings = language.model_of("GPT2, tied, with dropout"), {"gradient_checkpointing": again}
        rows = language.rows_of("GPT2")
        trainer = parts.fit(model, rows, tmp_path, kind=leaf.OrderedTrainer, q=0.3, settings=settings)
        assert trainer.loss_from == HEAD
        trained.append(model)
    close(*trained)


def test_evaluation_and_generation_see_logits_and_so_does_who_asks_for_outputs(
    parts: Any, leaf: Any, language: Any, tmp_path: Path
) -> None:
    model, rows = language.model_of("Mixtral, with a router"), language.rows_of("Mixtral")
    settings = {"eval_strategy": "epoch", "per_device_eval_batch_size": 16}
    seen: list[Any] = []

    def metrics(prediction: Any) -> dict[str, float]:
        seen.append(prediction.predictions)
        return {}

    options = {"kind": leaf.OrderedTrainer, "q": 0.3, "eval_dataset": rows, "compute_metrics": metrics}
    trainer = parts.fit(model, rows, tmp_path, settings=settings, **options)
    assert trainer.loss_from == HEAD
    batch = language.batch_of("Mixtral", n=16)
    with torch.no_grad():
        outputs = model.eval()(**batch)
    logits = next(found for found in seen[-1] if getattr(found, "ndim", 0) == 3)  # beside the router's
    torch.testing.assert_close(torch.from_numpy(logits), outputs.logits, rtol=1e-5, atol=1e-5)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(outputs.loss.item(), rel=1e-5)
    made = model.generate(batch["input_ids"][:2, :3], attention_mask=torch.ones(2, 3).long(), max_new_tokens=2)
    assert made.shape[1] <= 5
    _, outputs = trainer.compute_loss(model.train(), dict(batch), return_outputs=True)
    assert outputs.logits.shape == (16, language.LENGTH, language.WORDS)
    trainer = trainer_of(leaf, model, tmp_path, q=0.3)
    with torch.no_grad():
        trainer.compute_loss(model, dict(batch))
    assert trainer.loss_from is None


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("bias", "the model changes its logits after the output layer"),
        ("in place", "the model changes its logits after the output layer"),
        ("masked word", "the model changes its logits after the output layer"),
        ("clamped", "the model changes its logits after the output layer"),
        ("square", "the model changes its logits after the output layer"),
        ("twice", "the output layer runs 2 times in a forward pass, not once"),
        ("never", "the output layer runs 0 times in a forward pass, not once"),
        ("by position", "without its output layer the model raises RuntimeError: The size of tensor a"),
        ("shape", "without its output layer the model raises RuntimeError: shape"),
    ],
)
def test_a_model_that_changes_its_logits_is_run_in_full_with_its_dropout(
    how: str, reason: str, parts: Any, leaf: Any, language: Any, tmp_path: Path
) -> None:
    trained = []
    for head in (True, False):
        model = language.strange_of(how)
        options = {"kind": leaf.OrderedTrainer, "q": 0.3, "head": head, "batch": 4, "parts": 2}
        trainer = parts.fit(model, language.rows_of("Llama"), tmp_path, **options)
        trained.append(model)
        if head:
            assert trainer.loss_from.startswith(f"logits: {reason}")
    assert trained[0].passes == trained[1].passes == 8  # a pass that was given up does not count
    assert torch.equal(weights(trained[0]), weights(trained[1]))


@pytest.mark.parametrize("how", ["bias", "in place", "clamped", "square", "twice", "never", "by position", "shape"])
def test_a_model_that_changes_its_logits_later_is_run_in_full_from_then_on(
    how: str, leaf: Any, language: Any, tmp_path: Path
) -> None:
    found = []
    for head in (True, False):
        model = language.strange_of("not at all")
        trainer = trainer_of(leaf, model, tmp_path, q=0.3, head=head)
        first = step(trainer, model, language.batch_of("Llama"))
        assert (trainer.loss_from == HEAD) == head
        type(model).how = how
        found.append([first, step(trainer, model, language.batch_of("Llama"))])
        assert trainer.loss_from.startswith("logits: ")
        assert model.passes == 2
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-6, atol=1e-6)
    assert all(torch.equal(one, other) for one, other in zip(found[0][1], found[1][1], strict=True))


def test_a_cap_that_changes_is_noticed(leaf: Any, language: Any, tmp_path: Path) -> None:
    found = []
    for head in (True, False):
        model = language.model_of("Gemma2, capped")
        trainer = trainer_of(leaf, model, tmp_path, q=0.3, head=head)
        first = step(trainer, model, language.batch_of("Llama"))
        model.config.final_logit_softcapping = 0.2
        found.append([first, step(trainer, model, language.batch_of("Llama"))])
    assert torch.equal(found[0][1][0], found[1][1][0])
    torch.testing.assert_close(found[0], found[1], rtol=1e-6, atol=1e-6)


def compiled(model: Any) -> None:
    model.lm_head.compile()


def hooked(model: Any) -> None:
    model.register_forward_hook(lambda *_: None)


def replaced(model: Any) -> None:
    model.lm_head.forward = lambda x: F.linear(x, model.lm_head.weight)


def other_layer(model: Any) -> None:
    class Doubled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    model.lm_head = Doubled(16, 17, bias=False)


def sharded(model: Any) -> None:
    class Sharded(nn.Parameter):
        pass

    model.lm_head.weight = Sharded(model.lm_head.weight.detach())


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        (compiled, "Linear is compiled"),
        (hooked, "LlamaForCausalLM has a forward hook, which would see no logits"),
        (replaced, "the forward of the output layer has been replaced"),
        (other_layer, "the output layer is a Doubled, not a linear layer"),
        (sharded, "the weight of the output layer is sharded or quantized"),
    ],
)
def test_an_output_layer_that_cannot_be_left_out_is_named(
    prepare: Any, reason: str, leaf: Any, language: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nn.Module, "compile", lambda self: setattr(self, "_compiled_call_impl", self._call_impl))
    model = language.model_of("Llama")
    prepare(model)
    trainer = trainer_of(leaf, model, tmp_path, q=0.3)
    step(trainer, model, language.batch_of("Llama"))
    assert trainer.loss_from == f"logits: {reason}"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"q": AccuracyRule()}, "AccuracyRule counts right answers"),
        ({"q": 0.5, "criterion": nn.CrossEntropyLoss(label_smoothing=0.1, reduction="none")}, "a criterion was given"),
    ],
)
def test_what_needs_logits_gets_them(
    options: dict[str, Any], reason: str, leaf: Any, language: Any, tmp_path: Path
) -> None:
    model = language.model_of("Llama")
    trainer = trainer_of(leaf, model, tmp_path, compute_loss_func=leaf.OrderedLossFunc("causal", **options))
    step(trainer, model, language.batch_of("Llama"))
    assert trainer.loss_from == f"logits: {reason}"


def test_a_classifier_runs_as_it_is(parts: Any, leaf: Any, tmp_path: Path) -> None:
    trainer = parts.fit(parts.model_for("token"), parts.rows_for("token"), tmp_path, kind=leaf.OrderedTrainer, q=0.3)
    assert trainer.loss_from == "logits: the model has no output embeddings"


@pytest.mark.parametrize("target", ["lm_head", "saved lm_head"])
def test_an_adapter_of_the_output_layer_is_trained(target: str, leaf: Any, language: Any, tmp_path: Path) -> None:
    pytest.importorskip("peft", reason='peft is in the extra "compat"')
    found = []
    for head in (True, False):
        torch.manual_seed(0)
        how = {"modules_to_save": ["lm_head"]} if target == "saved lm_head" else {"target": "lm_head"}
        model = language.lora(**how)
        trainer = trainer_of(leaf, model, tmp_path, q=0.3, head=head)
        found.append(step(trainer, model, language.batch_of("Llama")))
    assert trainer.loss_from is not None
    torch.testing.assert_close(found[0], found[1], rtol=1e-6, atol=1e-6)


def test_nothing_stays_replaced_after_an_error(leaf: Any, language: Any, tmp_path: Path) -> None:
    class Interrupt(BaseException):
        pass

    model = language.model_of("Llama")
    trainer = trainer_of(leaf, model, tmp_path, q=0.3)
    step(trainer, model, language.batch_of("Llama"))
    for error in (ValueError, Interrupt):
        fault = model.model.register_forward_hook(lambda *_, error=error: (_ for _ in ()).throw(error("out of it")))
        with pytest.raises(error, match="out of it"):
            step(trainer, model, language.batch_of("Llama"))
        fault.remove()
        assert "forward" not in vars(model.lm_head)
        assert model(**language.batch_of("Llama")).logits.shape[-1] == language.WORDS
    step(trainer, model, language.batch_of("Llama"))
    assert trainer.loss_from == HEAD  # errors of other layers say nothing about the output layer


def test_the_log_says_once_what_ran(
    parts: Any, leaf: Any, language: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="ordered_sgd"):
        parts.fit(language.model_of("Llama"), language.rows_of("Llama"), tmp_path, kind=leaf.OrderedTrainer, q=0.3)
    assert [r.getMessage() for r in caplog.records] == [f"the ordered loss is computed from the {HEAD}"]


def test_a_checkpoint_goes_on_to_the_same_weights(parts: Any, leaf: Any, language: Any, tmp_path: Path) -> None:
    def run(folder: str, **options: Any) -> Any:
        model, rows = language.model_of("GPT2, tied, with dropout"), language.rows_of("GPT2")
        options |= {"kind": leaf.OrderedTrainer, "q": LossMassRule(), "batch": 4}
        return parts.fit(model, rows, tmp_path / folder, **options)

    whole = run("whole", settings={"save_strategy": "steps", "save_steps": 3})
    resumed = run("resumed", resume=str(tmp_path / "whole" / "checkpoint-3"))
    assert resumed.loss_from == HEAD
    assert resumed.state.global_step == whole.state.global_step == 8
    close(resumed.model, whole.model)


def test_all_kept_is_the_plain_trainer_with_the_router_s_loss(
    parts: Any, leaf: Any, language: Any, tmp_path: Path
) -> None:
    name, losses = "Mixtral, with a router", []
    plain, ordered, rows = language.model_of(name), language.model_of(name), language.rows_of("Mixtral")
    options = {"batch": 4, "parts": 2, "settings": {"logging_strategy": "steps", "logging_steps": 1}}
    for model, kind in ((plain, {}), (ordered, {"kind": leaf.OrderedTrainer, "q": 1.0})):
        trainer = parts.fit(model, rows, tmp_path, **kind, **options)
        losses.append([log["loss"] for log in trainer.state.log_history if "loss" in log])
    close(ordered, plain)
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_a_router_loss_without_its_coefficient_is_refused(leaf: Any, language: Any, tmp_path: Path) -> None:
    model, batch = language.model_of("Mixtral, with a router"), language.batch_of("Llama")
    labels = batch.pop("labels")
    outputs = model(**batch)
    with pytest.raises(ArgumentError, match="OrderedLossFunc: router_aux_loss_coef must be given for a model that"):
        leaf.OrderedLossFunc("causal", q=1.0)(outputs, labels)
    loss = leaf.OrderedLossFunc("causal", q=1.0, router_aux_loss_coef=0.5)(outputs, labels)
    torch.testing.assert_close(loss, model(**batch, labels=labels).loss)
