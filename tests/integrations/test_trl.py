"""`OrderedSFTTrainer`: the trainer of TRL with an ordered loss."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ordered_sgd import AccuracyRule, LossMassRule, OrderedBatchSampler
from ordered_sgd.errors import ArgumentError

pytest.importorskip("trl", reason='trl is in the extra "compat", which "dev" does not hold')
pytest.importorskip("peft", reason='peft is in the extra "compat", which "dev" does not hold')
pytestmark = pytest.mark.xdist_group("trainers")
PARTNER = "trl"  # what the fixtures `parts` and `leaf` import
HEAD = "head: only kept tokens"
EVERY_MODEL = pytest.mark.parametrize(
    "name", ["GPT2, tied, with dropout", "Gemma2, capped", "Mixtral, with a router", "Llama with LoRA"]
)


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def close(trainer: Any, expected: Any) -> None:
    torch.testing.assert_close(weights(trainer.model), weights(expected.model), rtol=0, atol=2e-6)


@EVERY_MODEL
def test_all_kept_is_the_sft_trainer_itself(name: str, parts: Any, leaf: Any, tmp_path: Path) -> None:
    from trl import SFTTrainer

    plain = parts.fit(SFTTrainer, name, tmp_path)
    ordered = parts.fit(leaf.OrderedSFTTrainer, name, tmp_path, q=1.0)
    assert ordered.loss_from == HEAD
    close(ordered, plain)
    for found, expected in zip(ordered.state.log_history, plain.state.log_history, strict=True):
        for key in {"loss", "aux_loss", "num_tokens"} & set(expected):
            assert found[key] == pytest.approx(expected[key], rel=1e-5), key


@EVERY_MODEL
def test_the_weights_are_those_of_the_logits(name: str, parts: Any, leaf: Any, tmp_path: Path) -> None:
    found = parts.fit(leaf.OrderedSFTTrainer, name, tmp_path, q=LossMassRule())
    expected = parts.fit(leaf.OrderedSFTTrainer, name, tmp_path, q=LossMassRule(), head=False)
    assert (found.loss_from, expected.loss_from) == (HEAD, "logits: head=False")
    close(found, expected)
    assert not torch.equal(weights(found.model), weights(parts.model_of(name)))


def test_sequences_without_padding_end_at_the_same_weights(parts: Any, leaf: Any, tmp_path: Path) -> None:
    padded = parts.fit(leaf.OrderedSFTTrainer, "Llama", tmp_path, q=0.3)
    joined = parts.fit(leaf.OrderedSFTTrainer, "Llama", tmp_path, q=0.3, settings={"padding_free": True})
    assert joined.loss_from == HEAD
    close(joined, padded)


@pytest.mark.parametrize("name", ["Llama", "Llama with LoRA"])
def test_the_largest_sequences_are_those_of_a_whole_update(name: str, parts: Any, leaf: Any, tmp_path: Path) -> None:
    from trl import SFTTrainer

    one_batch = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1}
    options = {"q": 0.25, "unit": "sample"}
    found = parts.fit(leaf.OrderedSFTTrainer, name, tmp_path, **options)
    expected = parts.fit(leaf.OrderedSFTTrainer, name, tmp_path, **options, settings=one_batch)
    assert (found.loss_from, found.ordered_over, expected.ordered_over) == (HEAD, "whole updates", None)
    assert found.backward_ran == "only kept samples"
    close(found, expected)
    plain = parts.fit(SFTTrainer, name, tmp_path)
    for key in ("loss", "ordered/mean_loss", "num_tokens"):
        other = plain if key == "num_tokens" else expected
        values = [[log[key] for log in trainer.state.log_history if "loss" in log] for trainer in (found, other)]
        assert values[0] == pytest.approx(values[1], rel=1e-5), key


@pytest.mark.slow
@pytest.mark.parametrize("name", ["GPT2, tied, with dropout", "Llama with LoRA"])
def test_the_backward_pass_skips_sequences(name: str, parts: Any, leaf: Any, tmp_path: Path) -> None:
    options: dict[str, Any] = {"q": 0.25, "unit": "sample", "settings": {"gradient_accumulation_steps": 1}}
    found = parts.fit(leaf.OrderedSFTTrainer, name, tmp_path, **options, selective=True)
    expected = parts.fit(leaf.OrderedSFTTrainer, name, tmp_path, **options)
    assert (found.loss_from, found.backward_ran) == (HEAD, "only kept samples")
    assert found.state.log_history[0]["ordered/computed"] == 0.25
    close(found, expected)


def test_a_router_s_loss_needs_all_samples(parts: Any, leaf: Any, tmp_path: Path) -> None:
    trainer = parts.fit(leaf.OrderedSFTTrainer, "Mixtral, with a router", tmp_path, q=0.5, unit="sample")
    assert trainer.ordered_over == "micro-batches: the router's loss needs all samples"


def test_metrics_of_all_logits_are_logged_in_evaluation_only(parts: Any, leaf: Any, tmp_path: Path) -> None:
    trainer = parts.fit(leaf.OrderedSFTTrainer, "Llama", tmp_path, q=0.3)
    assert {"loss", "ordered/q", "ordered/mean_loss", "num_tokens"} <= set(trainer.state.log_history[0])
    assert not {"entropy", "mean_token_accuracy"} & set(trainer.state.log_history[0])
    found, right, labels_of = trainer.evaluate(), [], []
    model = trainer.model.eval()
    for batch in trainer.get_eval_dataloader():
        labels = batch["labels"][:, 1:]
        with torch.no_grad():
            logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, :-1]
        right.append((logits.argmax(-1) == labels)[labels != -100].float())
        labels_of.append(nn.functional.cross_entropy(logits[labels != -100], labels[labels != -100]))
    assert found["eval_loss"] == pytest.approx(torch.stack(labels_of).mean().item(), rel=1e-4)
    assert found["eval_mean_token_accuracy"] == pytest.approx(
        torch.stack([r.mean() for r in right]).mean().item(), rel=1e-4
    )


def test_a_rule_that_counts_answers_gets_logits(parts: Any, leaf: Any, tmp_path: Path) -> None:
    trainer = parts.fit(leaf.OrderedSFTTrainer, "Llama", tmp_path, q=AccuracyRule())
    assert trainer.loss_from == "logits: AccuracyRule counts right answers"


def test_who_asks_for_outputs_gets_logits_and_the_ordered_loss(parts: Any, leaf: Any, tmp_path: Path) -> None:
    trainer = parts.fit(leaf.OrderedSFTTrainer, "Llama", tmp_path, q=0.3)
    batch = next(iter(trainer.get_train_dataloader()))
    loss, outputs = trainer.compute_loss(trainer.model, dict(batch), return_outputs=True)
    assert outputs.logits.shape == (*batch["input_ids"].shape, 17)
    torch.testing.assert_close(trainer.compute_loss(trainer.model, dict(batch)), loss)


def test_what_would_be_passed_over_is_refused(parts: Any, leaf: Any, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="OrderedSFTTrainer: loss_type must be 'nll'; got dft"):
        parts.fit(leaf.OrderedSFTTrainer, "Llama", tmp_path, q=0.3, settings={"loss_type": "dft"})
    loss = leaf.OrderedLossFunc("causal", q=3)
    with pytest.raises(ArgumentError, match="OrderedSFTTrainer: q and unit must be left out; got some"):
        parts.fit(leaf.OrderedSFTTrainer, "Llama", tmp_path, q=0.3, compute_loss_func=loss)


@pytest.mark.parametrize("parts_of_update", [1, 2])
def test_a_batch_sampler_loads_sequences_and_a_resumed_run_has_the_same_bits(
    parts_of_update: int, parts: Any, leaf: Any, tmp_path: Path
) -> None:
    def train(folder: str, **options: Any) -> Any:
        settings = {"train_sampling_strategy": "random", "save_strategy": "steps", "save_steps": 1}
        settings |= {"gradient_accumulation_steps": parts_of_update}
        options |= {"q": 0.5, "unit": "sample", "batch_sampler": OrderedBatchSampler(16, 4, q=0.5, others=1)}
        return parts.fit(leaf.OrderedSFTTrainer, "Llama", tmp_path / folder, settings=settings, **options)

    found = train("whole")
    close(found, train("logits", head=False))
    assert found.loss_from == HEAD
    logged = found.state.log_history[-2]
    assert logged["ordered/loaded"] < 1
    assert 0 <= logged["ordered/recall"] <= 1
    for step in (1, 4 // parts_of_update, 3):
        again = train("again", resume=str(tmp_path / "whole" / f"checkpoint-{step}"))
        assert torch.equal(weights(again.model), weights(found.model)), step


@pytest.mark.parametrize(
    ("options", "settings", "text"),
    [
        ({}, {}, "unit must be 'sample' with a batch sampler; got 'token'"),
        ({"unit": "sample"}, {"padding_free": True}, "criterion must be called with all samples of the batch at once"),
        ({"unit": "sample"}, {"packing": True, "max_length": 16}, "samples of the batch sampler must be 8"),
    ],
)
def test_a_batch_sampler_for_anything_but_single_sequences_is_refused(
    options: dict[str, Any], settings: dict[str, Any], text: str, parts: Any, leaf: Any, tmp_path: Path
) -> None:
    options |= {"q": 0.5, "batch_sampler": OrderedBatchSampler(16, 4, q=0.5)}
    settings |= {"train_sampling_strategy": "random"}
    with pytest.raises(ArgumentError, match=text):
        parts.fit(leaf.OrderedSFTTrainer, "Llama", tmp_path, settings=settings, **options)
