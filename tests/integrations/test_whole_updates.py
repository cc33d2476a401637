"""`OrderedTrainer` with gradient accumulation: the q largest samples are those of the whole update."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ordered_sgd import AccuracyRule, LossMassRule, OrderedLoss
from tests.integrations.trainers import network, outcome, samples, sgd

pytestmark = pytest.mark.xdist_group("trainers")
PARTNER = "huggingface"  # what the fixtures `parts` and `leaf` import
LOGS = {"logging_strategy": "steps", "logging_steps": 1}
WHOLE = "whole updates"


@pytest.fixture
def language() -> Any:
    from tests.integrations import language_parts

    return language_parts


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def close(trainer: Any, expected: Any) -> None:
    torch.testing.assert_close(weights(trainer.model), weights(expected.model), rtol=0, atol=2e-6)


def logged(trainer: Any) -> Tensor:
    names = ("loss", "grad_norm", "ordered/q", "ordered/mean_loss")
    return torch.tensor([[log[name] for name in names] for log in trainer.state.log_history if "loss" in log])


@pytest.mark.parametrize("settings", [{}, {"max_grad_norm": 0.3}, {"bf16": True}])
@pytest.mark.parametrize("q", [0.25, LossMassRule(), 1.0])
def test_an_update_in_pieces_is_the_update_in_one_batch(
    settings: dict[str, Any], q: Any, parts: Any, leaf: Any, tmp_path: Path
) -> None:
    """28 rows: the last update of an epoch has three pieces, not four. Padding differs between rows."""
    rows, found = parts.rows_for("sequence", n=28), []
    for row in rows[::5]:
        row["labels"] = torch.tensor(-100)  # a sample without a label is never kept and never counted
    for batch, pieces in ((4, 4), (16, 1)):
        options = {"kind": leaf.OrderedTrainer, "batch": batch, "parts": pieces, "settings": LOGS | settings, "q": q}
        found.append(parts.fit(parts.model_for("sequence"), rows, tmp_path, **options))
    assert [trainer.ordered_over for trainer in found] == [WHOLE, None]
    tolerance = 2e-3 if "bf16" in settings else 1e-5  # sums of bfloat16 products, over four samples and over sixteen
    torch.testing.assert_close(logged(found[0]), logged(found[1]), rtol=tolerance, atol=tolerance)
    if "bf16" not in settings:
        close(*found)


def test_a_rule_counts_the_answers_of_whole_updates(parts: Any, leaf: Any, tmp_path: Path) -> None:
    rule = AccuracyRule(thresholds=(0.4, 0.6), divisors=(2, 4))
    loss_fn, alone = OrderedLoss(nn.CrossEntropyLoss(reduction="none"), q=rule), network()
    optimizer, (x, y) = sgd(alone), samples()
    for _ in range(3):
        for some in torch.arange(len(x)).split(16):
            optimizer.zero_grad()
            loss_fn(alone(x[some]), y[some]).backward()
            optimizer.step()
        loss_fn.end_epoch()
    expected = outcome(alone, loss_fn)
    model, loss_func = parts.Logits(network()), leaf.OrderedLossFunc("sequence", q=rule)
    rows = [{"x": a, "labels": b} for a, b in zip(x, y, strict=True)]
    options = {"kind": leaf.OrderedTrainer, "compute_loss_func": loss_func, "batch": 4, "parts": 4, "epochs": 3}
    trainer = parts.fit(model, rows, tmp_path, **options)
    torch.testing.assert_close(weights(model), expected.weights, rtol=0, atol=1e-6)
    assert trainer.ordered.loss_fn.q == expected.q < 16


@pytest.mark.parametrize("name", ["GPT2, tied, with dropout", "Llama with LoRA"])
def test_sequences_of_an_update_are_scored_by_the_head_and_a_checkpoint_goes_on_bit_by_bit(
    name: str, parts: Any, leaf: Any, language: Any, tmp_path: Path
) -> None:
    if "LoRA" in name:
        pytest.importorskip("peft", reason='peft is in the extra "compat"')

    def run(folder: str, **options: Any) -> Any:
        model, rows = language.model_of(name), language.rows_of(name)
        options |= {"kind": leaf.OrderedTrainer, "q": 0.25, "unit": "sample", "batch": 4, "parts": 2}
        return parts.fit(model, rows, tmp_path / folder, **options)

    whole = run("whole", settings={"save_strategy": "steps", "save_steps": 1})
    assert (whole.loss_from, whole.ordered_over) == ("head: only kept tokens", WHOLE)
    resumed = run("resumed", resume=str(tmp_path / "whole" / "checkpoint-3"))
    assert torch.equal(weights(resumed.model), weights(whole.model))


def test_a_router_s_loss_is_that_of_micro_batches(parts: Any, leaf: Any, language: Any, tmp_path: Path) -> None:
    name, rows = "Mixtral, with a router", language.rows_of("Mixtral")
    options = {"batch": 4, "parts": 2, "settings": LOGS}
    loss_func = leaf.OrderedLossFunc("causal", q=0.5, unit="sample", router_aux_loss_coef=0.5)
    expected = parts.fit(language.model_of(name), rows, tmp_path, compute_loss_func=loss_func, **options)
    options |= {"kind": leaf.OrderedTrainer, "unit": "sample", "q": 0.5, "selective": True}
    found = parts.fit(language.model_of(name), rows, tmp_path, **options)
    reason = "the loss has a part that is not that of single samples, as of a router"
    assert found.ordered_over == f"micro-batches: {reason}"
    assert found.backward_ran == f"whole batches: {reason}"
    close(found, expected)
    losses = [[log["loss"] for log in trainer.state.log_history if "loss" in log] for trainer in (found, expected)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_micro_batches_that_an_error_left_behind_are_forgotten(parts: Any, leaf: Any, tmp_path: Path) -> None:
    from transformers import TrainerCallback

    class Interrupt(TrainerCallback):
        def on_substep_end(self, *args: Any, **kwargs: Any) -> None:
            raise ZeroDivisionError

    rows, options = parts.rows_for("sequence", n=16), {"kind": leaf.OrderedTrainer, "q": 0.5, "batch": 4, "parts": 2}
    expected = parts.fit(parts.model_for("sequence"), rows, tmp_path, **options)
    found = parts.fit(parts.model_for("sequence"), rows, tmp_path, **options, epochs=0)
    found.args.num_train_epochs = 2
    found.add_callback(Interrupt)
    with pytest.raises(ZeroDivisionError):
        found.train()
    found.remove_callback(Interrupt)
    found.train()
    close(found, expected)


def test_a_trainer_that_does_more_in_a_backward_pass_orders_micro_batches(
    parts: Any, leaf: Any, tmp_path: Path
) -> None:
    options = {"kind": leaf.OrderedTrainer, "q": 0.5, "epochs": 0}
    trainer = parts.fit(parts.model_for("sequence"), parts.rows_for("sequence", n=8), tmp_path, **options)
    assert trainer._why_micro_batches() is None
    trainer.args.activation_offloading = True  # of TRL
    assert trainer._why_micro_batches() == "activations are offloaded"
    trainer.args.optim = "adalomo"
    assert trainer._why_micro_batches() == "LOMO updates parameters during the backward pass"


@pytest.mark.parametrize(
    ("options", "prepare", "reason"),
    [
        ({"unit": "token"}, None, "tokens are ordered"),
        ({"unit": "sample", "mix": 0.1}, None, "mix gives every sample a gradient"),
        ({"unit": "sample"}, lambda _: nn.BatchNorm1d(2), "BatchNorm takes statistics over each of them"),
        ({"unit": "sample"}, torch.compile, "the model is compiled"),
    ],
)
def test_micro_batches_are_ordered_one_by_one_for_a_reason(options: Any, prepare: Any, reason: str, leaf: Any) -> None:
    from ordered_sgd.integrations._whole_updates import WholeUpdates

    updates = WholeUpdates(leaf.OrderedLossFunc("token", q=0.5, **options), lambda *_: torch.zeros(()), lambda: None)
    model = nn.Linear(2, 2) if prepare is None else prepare(nn.Linear(2, 2))
    assert not updates.usable(model, None)
    assert updates.ran == f"micro-batches: {reason}"


@pytest.mark.usefixtures("one_rank")
def test_processes_that_each_order_their_own_samples_do_so_in_micro_batches(leaf: Any) -> None:
    from ordered_sgd.integrations._whole_updates import WholeUpdates

    updates = WholeUpdates(leaf.OrderedLossFunc("sequence", q=0.5), lambda *_: torch.zeros(()), lambda: None)
    model = nn.parallel.DistributedDataParallel(nn.Linear(2, 2))
    assert updates.usable(model, None)  # it is the only process
    model.process_group = SimpleNamespace(size=lambda: 2)
    assert not updates.usable(model, None)
    assert updates.ran == "micro-batches: each process orders its own samples"
