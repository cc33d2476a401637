"""Every task that `OrderedTrainer` knows: with q=1.0 the model's own loss, and with less the largest of its losses."""

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ordered_sgd.errors import ArgumentError
from ordered_sgd.integrations._tasks import TASKS
from tests.integrations.trainers import Falling

pytestmark = pytest.mark.xdist_group("trainers")
PARTNER = "huggingface"  # what the fixtures `parts` and `leaf` import
NAMES = [
    "Bert, a class",
    "Bert, several labels",
    "Bert, several labels, not said",
    "Bert, a number",
    "Bert, numbers",
    "Bert, a choice",
    "Bert, the next sentence",
    "ViT",
    "AST",
    "Bert, tokens",
    "Bert, masked",
    "Bart, causal",
    "GPT2",
    "T5",
    "Bart",
    "MBart, which wraps",
    "M2M100, which shifts inside",
    "Whisper, which shifts inside",
    "Bert, answers",
    "Bart, answers",
    "Segformer",
    "Segformer, class 0 ignored",
]
EVERY_MODEL = pytest.mark.parametrize("name", NAMES)


@pytest.fixture
def models() -> Any:
    return importlib.import_module("tests.integrations.task_models")


def trainer_of(leaf: Any, model: Any, folder: Path, **options: Any) -> Any:
    from transformers import TrainingArguments

    quiet: dict[str, Any] = {"report_to": [], "disable_tqdm": True, "log_level": "error", "use_cpu": True}
    return leaf.OrderedTrainer(model, TrainingArguments(str(folder), **quiet), **options)


def gradients(loss: Tensor, model: nn.Module) -> list[Tensor]:
    model.zero_grad()
    loss.backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def rows_alone(batch: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    return [{name: value[i : i + 1] for name, value in batch.items()} for i in range(len(next(iter(batch.values()))))]


def test_there_is_a_model_of_every_task(models: Any) -> None:
    assert list(models.TASK_MODELS) == NAMES
    assert {case.task for case in models.TASK_MODELS.values()} == set(TASKS)


@EVERY_MODEL
def test_the_task_is_known_from_the_model(name: str, leaf: Any, models: Any) -> None:
    assert leaf.task_of(models.model_of(name)).name == models.TASK_MODELS[name].task


@EVERY_MODEL
def test_all_kept_is_the_model_s_own_loss(name: str, leaf: Any, models: Any, tmp_path: Path) -> None:
    model, batch = models.model_of(name).double(), models.batch_of(name)
    batch = {key: value.double() if value.is_floating_point() else value for key, value in batch.items()}
    loss = trainer_of(leaf, model, tmp_path, q=1.0).compute_loss(model, dict(batch))
    own = model(**batch).loss
    # some models compute their loss in single precision
    torch.testing.assert_close(loss, own, rtol=1e-6, atol=1e-6, check_dtype=False)
    torch.testing.assert_close(gradients(loss, model), gradients(own, model), rtol=1e-5, atol=1e-6)


@EVERY_MODEL
def test_whole_samples_are_ordered_by_the_model_s_own_loss_of_each(
    name: str, leaf: Any, models: Any, tmp_path: Path
) -> None:
    model, batch = models.model_of(name), models.batch_of(name)
    loss = trainer_of(leaf, model, tmp_path, q=3, unit="sample").compute_loss(model, dict(batch))
    each = torch.stack([model(**row).loss for row in rows_alone(batch)])
    expected = each[each.isfinite()].topk(3).values.mean()  # no loss without a label
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradients(loss, model), gradients(expected, model), rtol=1e-4, atol=1e-5)


@EVERY_MODEL
def test_a_whole_training_and_its_evaluation_are_those_of_the_plain_trainer(
    name: str, parts: Any, leaf: Any, models: Any, tmp_path: Path
) -> None:
    """The batch of the plain `Trainer` is cut into two micro-batches, with labels of their own number."""
    plain, ordered, rows = models.model_of(name), models.model_of(name), models.rows_of(name, 16)
    options = {"eval_dataset": rows, "settings": {"per_device_eval_batch_size": 16}}
    expected = parts.fit(plain, rows, tmp_path, batch=8, epochs=1, **options)
    found = parts.fit(ordered, rows, tmp_path, kind=leaf.OrderedTrainer, q=1.0, batch=4, parts=2, epochs=1, **options)
    torch.testing.assert_close(
        nn.utils.parameters_to_vector(ordered.parameters()),
        nn.utils.parameters_to_vector(plain.parameters()),
        rtol=0,
        atol=5e-6,
    )
    assert found.evaluate()["eval_loss"] == pytest.approx(expected.evaluate()["eval_loss"], rel=1e-5)


# of GPT2's class Trainer counts one label too many in each sequence, and divides by their number where nothing waits
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name != "GPT2"])
def test_samples_of_a_whole_update_end_at_the_weights_of_one_batch(
    name: str, parts: Any, leaf: Any, models: Any, tmp_path: Path
) -> None:
    one, cut, rows = models.model_of(name), models.model_of(name), models.rows_of(name, 16)
    options = {"kind": leaf.OrderedTrainer, "q": 0.5, "unit": "sample", "epochs": 1}
    parts.fit(one, rows, tmp_path, batch=8, selective=False, **options)
    trainer = parts.fit(cut, rows, tmp_path, batch=4, parts=2, **options)
    assert trainer.ordered_over == "whole updates"
    for found, expected in zip(cut.parameters(), one.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=5e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["Bert, a class", "Bert, several labels", "Bert, a number", "Bert, masked", "GPT2", "T5", "Bert, answers"],
)
def test_samples_that_are_not_kept_have_no_backward_pass(
    name: str, parts: Any, leaf: Any, models: Any, tmp_path: Path
) -> None:
    trained = []
    for selective in (True, False):
        model, rows = models.model_of(name), models.rows_of(name, 16)
        options = {"kind": leaf.OrderedTrainer, "q": 0.25, "unit": "sample", "epochs": 1}
        trainer = parts.fit(model, rows, tmp_path, batch=8, selective=selective, **options)
        assert (trainer.backward_ran == "only kept samples") == selective
        trained.append(model)
    for found, expected in zip(trained[0].parameters(), trained[1].parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=5e-6)


def test_the_largest_pixels_are_those_of_the_upsampled_logits(leaf: Any, models: Any, tmp_path: Path) -> None:
    model, batch = models.model_of("Segformer"), models.batch_of("Segformer")
    loss = trainer_of(leaf, model, tmp_path, q=0.1).compute_loss(model, dict(batch))
    labels = batch.pop("labels")
    logits = F.interpolate(model(**batch).logits, size=labels.shape[1:], mode="bilinear")
    losses = F.cross_entropy(logits, labels, ignore_index=255, reduction="none")[labels != 255]
    torch.testing.assert_close(loss, losses.topk(int(0.1 * len(losses))).values.mean())


def test_an_end_that_was_cut_off_is_ignored_as_the_model_does(leaf: Any, models: Any, tmp_path: Path) -> None:
    model, batch = models.model_of("Bert, answers"), models.batch_of("Bert, answers", 4)
    batch["start_positions"] = torch.tensor([1, -3, 2, 99])
    batch["end_positions"] = torch.tensor([2, 4, 3, 99])
    loss = trainer_of(leaf, model, tmp_path, q=1.0).compute_loss(model, dict(batch))
    torch.testing.assert_close(loss, model(**batch).loss)


def test_an_answer_with_one_end_that_was_cut_off_has_half_a_loss(leaf: Any, models: Any, tmp_path: Path) -> None:
    """The model itself averages starts and ends over different numbers of samples, which couples the samples."""
    model, batch = models.model_of("Bert, answers"), models.batch_of("Bert, answers", 2)
    batch["start_positions"], batch["end_positions"] = torch.tensor([1, 99]), torch.tensor([99, 4])
    loss = trainer_of(leaf, model, tmp_path, q=1.0).compute_loss(model, dict(batch))
    torch.testing.assert_close(loss, model(**batch).loss / 2)


def test_pixels_and_tokens_count_right_answers_for_a_rule(leaf: Any, models: Any, tmp_path: Path) -> None:
    for name in ("Segformer", "T5"):
        model, batch = models.model_of(name), models.batch_of(name)
        rule = Falling()
        trainer = trainer_of(leaf, model, tmp_path, q=rule)
        trainer.compute_loss(model, dict(batch))
        trainer.ordered.loss_fn.end_epoch()
        with torch.no_grad():
            logits = model(**batch).logits
        labels = batch["labels"]
        if name == "Segformer":
            logits = F.interpolate(logits, size=labels.shape[1:], mode="bilinear").movedim(1, -1)
        valid = (labels != -100) & (labels != 255)
        share = (logits.argmax(-1) == labels)[valid].double().mean().item()
        assert rule.asked == [(1, pytest.approx(share))]


def test_decoder_inputs_that_a_collator_brings_are_used(leaf: Any, models: Any, tmp_path: Path) -> None:
    model, batch = models.model_of("T5"), models.batch_of("T5")
    given = model.prepare_decoder_input_ids_from_labels(labels=batch["labels"]).flip(0)
    loss = trainer_of(leaf, model, tmp_path, q=1.0).compute_loss(model, {**batch, "decoder_input_ids": given})
    torch.testing.assert_close(loss, model(**batch, decoder_input_ids=given).loss)


def test_a_trainer_of_one_s_own_orders_translations_with_the_collator_of_transformers(
    parts: Any, leaf: Any, models: Any, tmp_path: Path
) -> None:
    plain, ordered, rows = models.model_of("T5"), models.model_of("T5"), models.rows_of("T5")
    for row in rows:
        labels = row["labels"][None]
        row["decoder_input_ids"] = plain.prepare_decoder_input_ids_from_labels(labels=labels)[0]
    parts.fit(plain, rows, tmp_path)
    parts.fit(ordered, rows, tmp_path, compute_loss_func=leaf.OrderedLossFunc("seq2seq", q=1.0))
    for one, other in zip(ordered.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=5e-6)


def test_an_adapter_has_the_task_of_its_base_model(leaf: Any, models: Any, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason='peft is in the extra "compat"')
    for name, target in (("T5", "q"), ("Bart, causal", "q_proj"), ("Bert, answers", "query")):
        base, batch = models.model_of(name), models.batch_of(name)
        model = peft.get_peft_model(base, peft.LoraConfig(target_modules=[target], init_lora_weights=False))
        trainer = trainer_of(leaf, model, tmp_path, q=1.0)
        assert trainer.ordered.task.name == models.TASK_MODELS[name].task
        torch.testing.assert_close(trainer.compute_loss(model, dict(batch)), model(**batch).loss)


@pytest.mark.parametrize("name", ["Bert, a class", "Bert, masked", "T5", "Segformer"])
def test_a_model_with_another_loss_is_refused_on_the_first_batch(
    name: str, parts: Any, leaf: Any, models: Any, tmp_path: Path
) -> None:
    type_of, rows = type(models.model_of(name)), models.rows_of(name)
    model = models.model_of(name)
    before = [weight.clone() for weight in model.parameters()]

    class Other(type_of):  # type: ignore[misc, valid-type]
        def forward(self, labels: Tensor | None = None, **inputs: Any) -> Any:
            outputs = super().forward(labels=labels, **inputs)
            if labels is not None:
                outputs["loss"] = 1.001 * outputs["loss"]
            return outputs

    model.__class__ = type(f"Other{type_of.__name__}", (Other,), {})
    match = f"the loss of Other{type_of.__name__} must be the mean loss of the task .*; got .* pass compute_loss_func"
    with pytest.raises(ArgumentError, match=match):
        parts.fit(model, rows, tmp_path, kind=leaf.OrderedTrainer, q=3, settings={"remove_unused_columns": False})
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), before, strict=True))


def test_the_comparison_with_the_model_s_own_loss_leaves_no_trace(leaf: Any, models: Any, tmp_path: Path) -> None:
    found = []
    for checked in (True, False):
        model = models.model_of("GPT2")
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.2
        how = {"q": 0.5} if checked else {"compute_loss_func": leaf.OrderedLossFunc("causal", q=0.5)}
        trainer, batch = trainer_of(leaf, model.train(), tmp_path, **how), models.batch_of("GPT2")
        torch.manual_seed(5)
        losses = [trainer.compute_loss(model, dict(batch)).item() for _ in range(2)]
        found.append((losses, torch.rand(3).tolist()))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("DetrForObjectDetection", "must have one loss per sample, token or pixel; got DetrFor.*matches boxes"),
        ("Wav2Vec2ForCTC", r"got Wav2Vec2ForCTC, whose loss sums over alignments\. Train this kind of model with"),
        ("BertForPreTraining", "got BertForPreTraining, whose loss adds the losses of several outputs"),
        ("BertModel", "the model's name must end in ForSequenceClassification, .*; got BertModel. Pass compute_loss"),
    ],
)
def test_models_of_other_kinds_are_named(name: str, match: str, leaf: Any) -> None:
    with pytest.raises(ArgumentError, match=match):
        leaf.task_of(type(name, (), {})())


def test_a_model_that_is_made_later_needs_its_task(leaf: Any, models: Any) -> None:
    with pytest.raises(ArgumentError, match="model must be given to know its task; got None"):
        leaf.OrderedTrainer(model_init=lambda: models.model_of("T5"), q=0.5)


@pytest.mark.parametrize(
    ("task", "labels", "match"),
    [
        ("multi_label", torch.zeros(4, 3).long(), "labels must be floats for several labels at once; got torch.int64"),
        ("multi_label", torch.zeros(4, 2), r"labels must be 0 or 1 for every class.*got shape \(4, 2\) for logits"),
        ("regression", torch.zeros(4), r"labels must be numbers of the shape of the logits; got shape \(4,\)"),
        ("sequence", torch.zeros(4), r"labels must be classes \(s,\), or 0 and 1 .*; got torch.float32 \(4,\)"),
        ("question_answering", torch.zeros(4, 2).long(), "outputs must have start_logits and end_logits; got logits"),
    ],
)
def test_labels_that_do_not_fit_are_named(task: str, labels: Tensor, match: str, leaf: Any) -> None:
    with pytest.raises(ArgumentError, match=f"OrderedLossFunc: {match}"):
        leaf.OrderedLossFunc(task, q=2)({"logits": torch.zeros(4, 3)}, labels)


def test_a_column_of_classes_or_of_numbers_is_taken_for_a_row_of_them(leaf: Any) -> None:
    logits, classes, numbers = torch.randn(4, 3), torch.tensor([[0], [1], [2], [0]]), torch.randn(4, 1)
    found = leaf.OrderedLossFunc("sequence", q=1.0)({"logits": logits}, classes)
    torch.testing.assert_close(found, F.cross_entropy(logits, classes.squeeze(1)))
    found = leaf.OrderedLossFunc("regression", q=1.0)({"logits": logits[:, :1]}, numbers.squeeze(1))
    torch.testing.assert_close(found, F.mse_loss(logits[:, :1], numbers))


def test_the_documentation_has_the_table_of_tasks() -> None:
    rows = ["| the class of the model ends in | task | what is ordered | labels |", "| --- | --- | --- | --- |"]
    for task in TASKS.values():
        endings = ", ".join(f"`{ending}`" for ending in task.endings)
        condition = f" ({task.when})" if task.when else ""
        rows.append(f'| {endings}{condition} | `"{task.name}"` | {task.unit}s | {task.labels} |')
    page = Path(__file__).parents[2] / "docs" / "trainers.md"
    assert "\n".join(rows) in page.read_text(), "\n".join(rows)
