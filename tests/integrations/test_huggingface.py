"""What Transformers adds to the contract of tests/contracts/test_trainers.py."""

import doctest
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ordered_sgd import Above, AccuracyRule, LinearDecay, OrderedLoss, scores
from ordered_sgd.errors import ArgumentError
from ordered_sgd.rules import Observed
from tests.integrations.trainers import Falling, sgd

pytestmark = pytest.mark.xdist_group("trainers")
EVERY_TASK = pytest.mark.parametrize("task", ["sequence", "token", "causal"])
PARTNER = "huggingface"  # what the fixtures `parts` and `leaf` import


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def close(model: nn.Module, expected: nn.Module) -> None:
    torch.testing.assert_close(weights(model), weights(expected), rtol=0, atol=2e-6)


def test_the_examples_in_the_docstrings_hold(leaf: Any) -> None:
    from ordered_sgd.integrations import _labels

    found = doctest.testmod(_labels)
    assert found.attempted
    assert not found.failed


@EVERY_TASK
def test_all_kept_is_the_plain_trainer_however_the_batch_is_padded_and_cut(
    task: str, parts: Any, leaf: Any, tmp_path: Path
) -> None:
    plain, ordered, rows = parts.model_for(task), parts.model_for(task), parts.rows_for(task, n=32)
    parts.fit(plain, rows, tmp_path)
    parts.fit(ordered, rows, tmp_path, kind=leaf.OrderedTrainer, q=1.0, batch=4, parts=2)
    close(ordered, plain)


def ordered_by_hand(
    model: Any, rows: list[dict[str, Tensor]], task: str, q: float, *, batch: int, parts: int, unit: str
) -> None:
    """Two epochs: the q largest of each micro-batch, weighted by its share of the labels of the update."""
    optimizer, size = sgd(model), batch * parts
    for start in [*range(0, len(rows), size)] * 2:
        update = rows[start : start + size]
        labels = torch.stack([row["labels"] for row in update])
        shifted = labels[:, 1:] if task == "causal" else labels
        in_all = (shifted != -100).sum()
        optimizer.zero_grad()
        for i in range(0, len(update), batch):
            part = update[i : i + batch]
            inputs = {name: torch.stack([row[name] for row in part]) for name in ("input_ids", "attention_mask")}
            logits, target = model(**inputs).logits, shifted[i : i + batch]
            if task == "causal":
                logits = logits[:, :-1]
            losses = F.cross_entropy(logits.flatten(0, -2), target.flatten(), reduction="none")
            valid = target.flatten() != -100
            units = losses[valid]
            if unit == "sequence":
                each = valid.view(target.shape).sum(1)
                units = (losses.view(target.shape).sum(1) / each)[each > 0]  # an ignored label has the loss 0
            kept = units.topk(max(1, int(q * len(units)))).values
            (kept.mean() * valid.sum() / in_all).backward()
        optimizer.step()


@pytest.mark.parametrize("task", ["token", "causal"])
def test_the_q_largest_tokens_of_each_micro_batch_are_weighted_by_its_share_of_the_labels(
    task: str, parts: Any, leaf: Any, tmp_path: Path
) -> None:
    found, expected, rows = parts.model_for(task), parts.model_for(task), parts.rows_for(task, n=28)
    ordered_by_hand(expected, rows, task, 0.5, batch=4, parts=2, unit="label")  # the last update has one part, not two
    trainer = parts.fit(found, rows, tmp_path, kind=leaf.OrderedTrainer, q=0.5, batch=4, parts=2)
    assert trainer.ordered_over == "micro-batches: tokens are ordered"
    close(found, expected)


@pytest.mark.parametrize(("task", "unit"), [("sequence", "label"), ("causal", "sequence")])
def test_a_trainer_of_ones_own_orders_samples_in_each_micro_batch(
    task: str, unit: str, parts: Any, leaf: Any, tmp_path: Path
) -> None:
    found, expected, rows = parts.model_for(task), parts.model_for(task), parts.rows_for(task, n=28)
    ordered_by_hand(expected, rows, task, 0.5, batch=4, parts=2, unit=unit)
    loss_func = leaf.OrderedLossFunc(task, q=0.5, unit="sample")
    parts.fit(found, rows, tmp_path, compute_loss_func=loss_func, batch=4, parts=2)
    close(found, expected)


@pytest.mark.parametrize(("task", "unit"), [("sequence", "label"), ("causal", "sequence")])
def test_the_q_largest_samples_are_those_of_the_whole_update(
    task: str, unit: str, parts: Any, leaf: Any, tmp_path: Path
) -> None:
    found, expected, rows = parts.model_for(task), parts.model_for(task), parts.rows_for(task, n=36)
    ordered_by_hand(expected, rows, task, 0.25, batch=16, parts=1, unit=unit)  # the last update has one part, not four
    options = {"unit": "sample", "batch": 4, "parts": 4, "settings": {"logging_strategy": "steps", "logging_steps": 1}}
    trainer = parts.fit(found, rows, tmp_path, kind=leaf.OrderedTrainer, q=0.25, **options)
    assert trainer.ordered_over == "whole updates"
    assert trainer.backward_ran == "only kept samples"
    assert trainer.state.log_history[0]["ordered/computed"] < 1
    close(found, expected)


HOWS = [{"q": 4, "score": scores.entropy}, {"q": Above(1.1, at_least=2)}, {"q": Above(1.0), "score": scores.entropy}]


@pytest.mark.parametrize("how", HOWS, ids=["score", "Above", "score and Above"])
def test_a_score_and_a_threshold_choose_among_the_samples_of_a_whole_update(
    how: dict[str, Any], parts: Any, leaf: Any, tmp_path: Path
) -> None:
    models, rows = [parts.model_for("sequence") for _ in range(2)], parts.rows_for("sequence", n=32)
    for model, batch, cut in zip(models, (16, 4), (1, 4), strict=True):
        loss_func = leaf.OrderedLossFunc("sequence", **how)
        options = {"kind": leaf.OrderedTrainer, "compute_loss_func": loss_func, "batch": batch, "parts": cut}
        trainer = parts.fit(model, rows, tmp_path, **options)
    assert trainer.ordered_over == "whole updates"
    close(*models)


@pytest.mark.parametrize("task", ["token", "causal"])
@pytest.mark.parametrize("how", HOWS, ids=["score", "Above", "score and Above"])
def test_a_score_and_a_threshold_choose_tokens(
    task: str, how: dict[str, Any], parts: Any, leaf: Any, tmp_path: Path
) -> None:
    """By hand: logits with the classes second, as the score wants them."""
    found, expected, rows = parts.model_for(task), parts.model_for(task), parts.rows_for(task, n=16)
    loss_func = leaf.OrderedLossFunc(task, **how)
    options = {"kind": leaf.OrderedTrainer, "compute_loss_func": loss_func, "batch": 8, "epochs": 1}
    trainer = parts.fit(found, rows, tmp_path, **options)
    optimizer, loss_fn = sgd(expected), OrderedLoss(nn.CrossEntropyLoss(reduction="none"), unit="token", **how)
    for start in range(0, 16, 8):
        inputs = {name: torch.stack([row[name] for row in rows[start : start + 8]]) for name in rows[0]}
        labels = inputs.pop("labels")
        logits = expected(**inputs).logits
        if task == "causal":
            logits, labels = logits[:, :-1], labels[:, 1:]
        optimizer.zero_grad()
        loss_fn(logits.transpose(1, 2), labels).backward()
        optimizer.step()
    close(found, expected)
    assert ("the score looks at them" in trainer.loss_from) == ("score" in how)


def test_a_micro_batch_without_a_label_adds_nothing(parts: Any, leaf: Any, tmp_path: Path) -> None:
    rows = parts.rows_for("token", n=8)
    for row in rows[4:]:
        row["labels"] = torch.full_like(row["labels"], -100)
    with_it, without = parts.model_for("token"), parts.model_for("token")
    parts.fit(with_it, rows, tmp_path, kind=leaf.OrderedTrainer, q=0.5, batch=4, parts=2)
    parts.fit(without, rows[:4], tmp_path, kind=leaf.OrderedTrainer, q=0.5, batch=4)
    close(with_it, without)


def test_evaluation_is_the_plain_mean_and_is_not_seen_by_the_rule(parts: Any, leaf: Any, tmp_path: Path) -> None:
    rows, rule = parts.rows_for("token"), Falling()
    settings = {"eval_strategy": "epoch", "per_device_eval_batch_size": 48}
    model = parts.model_for("token")
    trainer = parts.fit(model, rows, tmp_path, kind=leaf.OrderedTrainer, q=rule, settings=settings, eval_dataset=rows)
    inputs = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    plain = model.eval()(**inputs).loss.item()
    assert trainer.evaluate()["eval_loss"] == pytest.approx(plain, rel=1e-5)
    assert [epoch for epoch, _ in rule.asked] == [1, 2]
    assert trainer.ordered.loss_fn.q == -(-trainer.ordered.loss_fn.policy.adaptive.s // 4)


@pytest.mark.parametrize("own", [True, False])
def test_q_and_both_losses_are_logged_on_one_scale(own: bool, parts: Any, leaf: Any, tmp_path: Path) -> None:
    """`own`: in an `OrderedTrainer`, which orders whole updates; else micro-batches of four."""
    settings = {"logging_strategy": "steps", "logging_steps": 6}
    model, other = parts.model_for("sequence"), parts.model_for("sequence")
    rows, loss_func = parts.rows_for("sequence"), leaf.OrderedLossFunc("sequence", q=3)
    options = {"kind": leaf.OrderedTrainer} if own else {}
    options |= {"settings": settings, "compute_loss_func": loss_func, "batch": 4, "parts": 2, "epochs": 1}
    trainer = parts.fit(model, rows, tmp_path, **options)
    logged, size = trainer.state.log_history[0], 8 if own else 4
    if not own:
        logged = {**logged, **loss_func.numbers()}
    loss_fn, optimizer, plain, ordered = OrderedLoss(nn.CrossEntropyLoss(reduction="none"), q=3), sgd(other), [], []
    for start in range(0, 48, 8):
        optimizer.zero_grad()
        for part in (rows[i : i + size] for i in range(start, start + 8, size)):
            inputs = {name: torch.stack([row[name] for row in part]) for name in part[0]}
            labels = inputs.pop("labels")
            logits = other(**inputs).logits
            plain.append(F.cross_entropy(logits, labels).item())
            ordered.append(loss_fn(logits, labels))
            (ordered[-1] * size / 8).backward()
        optimizer.step()
    assert logged["ordered/q"] == 3
    assert logged["ordered/mean_loss"] == pytest.approx(sum(plain) / len(plain), rel=1e-5)
    assert logged["loss"] == pytest.approx(torch.stack(ordered).mean().item(), rel=1e-5)


def test_the_q_that_is_logged_at_the_end_of_an_epoch_is_that_of_the_epoch(
    parts: Any, leaf: Any, tmp_path: Path
) -> None:
    model, rows = parts.model_for("sequence"), parts.rows_for("sequence")
    options = {"kind": leaf.OrderedTrainer, "compute_loss_func": leaf.OrderedLossFunc("sequence", q=LinearDecay(4))}
    settings = {"logging_strategy": "epoch"}
    trainer = parts.fit(model, rows, tmp_path, settings=settings, batch=8, epochs=3, **options)
    rule, q = LinearDecay(4), [8]
    for epoch in (1, 2):
        q.append(rule.next_q(q[-1], 8, Observed(epoch)))
    assert len(set(q)) == 3
    assert [entry["ordered/q"] for entry in trainer.state.log_history if "ordered/q" in entry] == q


@pytest.mark.slow
def test_a_checkpoint_from_any_step_goes_on_to_the_same_weights(parts: Any, leaf: Any, tmp_path: Path) -> None:
    def run(folder: str, rule: Falling, **options: Any) -> Any:
        model, rows = parts.model_for("token"), parts.rows_for("token", n=32)
        return parts.fit(model, rows, tmp_path / folder, kind=leaf.OrderedTrainer, q=rule, **options)

    whole_rule = Falling()
    whole = run("whole", whole_rule, settings={"save_strategy": "steps", "save_steps": 1})
    for step in (3, 4, 6):  # inside the first epoch of four steps, at its end, inside the second
        rule, settings = Falling(), {"restore_callback_states_from_checkpoint": step == 6}
        resumed = run("resumed", rule, settings=settings, resume=str(tmp_path / "whole" / f"checkpoint-{step}"))
        close(resumed.model, whole.model)
        assert resumed.ordered.loss_fn.q == whole.ordered.loss_fn.q
        assert rule.asked == whole_rule.asked[1 if step == 6 else 0 :]


def test_with_a_process_group_the_loss_is_that_of_the_one_rank_in_it(leaf: Any, one_rank: Any) -> None:
    """The fast twin of tests/integrations/test_ranks.py."""
    labels, found = torch.tensor([[0, 1, -100], [2, -100, -100]]), []
    for group in (None, one_rank):
        logits = torch.randn(2, 3, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
        loss = leaf.OrderedLossFunc("token", q=2, group=group)({"logits": logits}, labels, num_items_in_batch=5)
        loss.backward()
        found += [loss.detach(), logits.grad]
    torch.testing.assert_close(found[:2], found[2:])


def test_what_would_be_passed_over_is_refused_when_the_trainer_is_made(parts: Any, leaf: Any, tmp_path: Path) -> None:
    rows, model = parts.rows_for("sequence"), parts.model_for("sequence")
    with pytest.raises(ArgumentError, match=r"OrderedRule: label_smoothing_factor must be 0; got 0.1. Pass criterion="):
        parts.fit(model, rows, tmp_path, kind=leaf.OrderedTrainer, q=3, settings={"label_smoothing_factor": 0.1})
    with pytest.raises(
        ArgumentError, match=r"the model's name must end in ForSeq.*; got Logits. Pass compute_loss_fun"
    ):
        parts.fit(parts.Logits(model), rows, tmp_path, kind=leaf.OrderedTrainer, q=3)
    with pytest.raises(ArgumentError, match=r"task must be one of sequence, .*, causal, .*; got 'tokens'"):
        leaf.OrderedLossFunc("tokens", q=3)
    with pytest.raises(ArgumentError, match=r"OrderedLossFunc: labels must be in every batch; got none\. Trainer"):
        leaf.OrderedLossFunc("sequence", q=3)({"logits": torch.zeros(2, 3)}, None)
    with pytest.raises(ArgumentError, match=r"OrderedLossFunc: labels must be classes \(s,\), or 0 and 1 for every"):
        leaf.OrderedLossFunc("sequence", q=3)({"logits": torch.zeros(2, 3)}, torch.zeros(2))
    loss_func = leaf.OrderedLossFunc("sequence", q=3)
    with pytest.raises(ArgumentError, match="OrderedTrainer: q and unit must be left out; got some"):
        leaf.OrderedTrainer(model, compute_loss_func=loss_func, q=3)


def test_devices_that_would_be_weighted_wrongly_are_refused(leaf: Any) -> None:
    rule = leaf.OrderedRule(leaf.OrderedLossFunc("sequence", q=3))
    arguments = SimpleNamespace(label_smoothing_factor=0.0, average_tokens_across_devices=False, n_gpu=2)
    with pytest.raises(ArgumentError, match=r"OrderedRule: devices of a process must be one; got 2\. Start"):
        rule.on_init_end(arguments, None, None)
    rule.loss_fn.group = object()
    with pytest.raises(ArgumentError, match="OrderedRule: average_tokens_across_devices must be true for a group"):
        rule.on_init_end(arguments, None, None)


def test_a_rule_without_answers_to_count_is_refused_on_the_first_batch(parts: Any, leaf: Any, tmp_path: Path) -> None:
    loss_func = leaf.OrderedLossFunc("sequence", q=AccuracyRule(), criterion=nn.MSELoss(reduction="none"))
    rows = [{"x": torch.randn(6), "labels": torch.randn(())} for _ in range(8)]
    model = parts.Logits(nn.Sequential(nn.Linear(6, 1), nn.Flatten(0)))
    with pytest.raises(ArgumentError, match="OrderedLossFunc: the rule must find right answers to count in the first"):
        parts.fit(model, rows, tmp_path, compute_loss_func=loss_func)


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "GPT2LMHeadModel", "PeftModelForCausalLM"])
def test_language_models_of_any_name_predict_the_next_token(name: str, leaf: Any) -> None:
    assert leaf.task_of(type(name, (), {})()).name == "causal"


def test_tuples_are_outputs_too(leaf: Any) -> None:
    loss_func, logits = leaf.OrderedLossFunc("sequence", q=1), torch.randn(4, 3, requires_grad=True)
    labels = torch.tensor([0, 1, 2, 0])
    assert torch.equal(loss_func((logits,), labels), F.cross_entropy(logits, labels, reduction="none").max())


def test_another_model_starts_from_the_first_q(parts: Any, leaf: Any, tmp_path: Path) -> None:
    rows = parts.rows_for("sequence", n=32)
    loss = leaf.OrderedLossFunc("sequence", q=Falling())
    trainer = parts.fit(parts.model_for("sequence"), rows, tmp_path, compute_loss_func=loss, epochs=2)
    ended, epoch = loss.loss_fn.q, loss.loss_fn.epoch
    trainer.model_init = lambda: parts.model_for("sequence")  # as a search for hyperparameters does
    trainer.train()
    assert (loss.loss_fn.q, loss.loss_fn.epoch) == (ended, epoch)
