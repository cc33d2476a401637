"""An `OrderedBatchSampler` in `OrderedTrainer`: the loop of docs/samplers.md without its lines."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset

from ordered_sgd import AccuracyRule, LossMassRule, OrderedBatchSampler, with_index
from ordered_sgd.errors import ArgumentError
from tests.integrations.sampled_loop import CE, Given, N, S, by_hand, by_update, data, flat
from tests.integrations.trainers import Falling, network, sgd

pytestmark = [
    pytest.mark.xdist_group("trainers"),
    pytest.mark.filterwarnings("ignore:.*q must be a quarter of the batch or more"),
]
PARTNER = "huggingface"


def rows() -> list[dict[str, Tensor]]:
    return [{"x": x, "labels": y} for x, y in zip(*data().tensors, strict=True)]


def run(
    parts: Any, leaf: Any, sampler: Any, q: Any, folder: Path, *, net: Any = None, train: Any = None, **options: Any
) -> Any:
    """The trainer, trained."""
    ordered = leaf.OrderedLossFunc("sequence", q=q, group=options.pop("group", None))
    settings = {"train_sampling_strategy": "random"} | options.pop("settings", {})
    usual: dict[str, Any] = {
        "kind": leaf.OrderedTrainer,
        "batch": S,
        "epochs": 4,
        "parts": options.pop("accumulated", 1),
    }
    usual |= options
    if sampler is not None:
        usual["batch_sampler"] = sampler
    model = parts.Logits(network() if net is None else net)
    return parts.fit(
        model, rows() if train is None else train, folder, compute_loss_func=ordered, settings=settings, **usual
    )


@pytest.mark.parametrize(("indexed", "workers"), [(False, 0), (True, 0), (False, 2), (True, 2)])
def test_the_weights_are_those_of_the_documented_loop(
    parts: Any, leaf: Any, indexed: bool, workers: int, tmp_path: Path
) -> None:
    sampler = OrderedBatchSampler(N, S, q=0.25)
    settings = {"dataloader_num_workers": workers, "logging_strategy": "epoch", "remove_unused_columns": False}
    train: Any = with_index(rows()) if indexed else rows()
    trainer = run(parts, leaf, sampler, 0.25, tmp_path, train=train, settings=settings)
    expected, recalls = by_hand(OrderedBatchSampler(N, S, q=0.25), 4)
    assert torch.equal(flat(trainer.model), expected)
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert [entry["ordered/recall"] for entry in logged] == pytest.approx(recalls)
    assert logged[-1]["ordered/loaded"] == pytest.approx(sampler.loaded)
    assert sampler.state_dict()["pending"] == []


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("q", "accumulated"), [(0.25, 2), (0.25, 3), (12, 3), (LossMassRule(0.6), 2)])
def test_accumulated_batches_are_ordered_together(
    parts: Any, leaf: Any, q: Any, accumulated: int, workers: int, tmp_path: Path
) -> None:
    settings = {"dataloader_num_workers": workers, "logging_strategy": "epoch"}
    sampler = OrderedBatchSampler(N, S, q=q)
    trainer = run(parts, leaf, sampler, q, tmp_path, accumulated=accumulated, settings=settings)
    expected, recalls = by_update(OrderedBatchSampler(N, S, q=q), 4, accumulated, q)
    # kept samples are run again in other batches
    torch.testing.assert_close(flat(trainer.model), expected, rtol=0, atol=1e-6)
    assert trainer.ordered_over == "whole updates"
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert [entry.get("ordered/recall", math.nan) for entry in logged] == pytest.approx(recalls, nan_ok=True)
    assert logged[-1]["ordered/loaded"] == pytest.approx(sampler.loaded)


@pytest.mark.parametrize("accumulated", [2, 3])
def test_the_rule_is_asked_with_estimates_for_whole_updates(
    parts: Any, leaf: Any, accumulated: int, tmp_path: Path
) -> None:
    rule, expected = Falling(), Falling()
    run(parts, leaf, OrderedBatchSampler(N, S, q=rule), rule, tmp_path, accumulated=accumulated)
    by_update(OrderedBatchSampler(N, S, q=expected), 4, accumulated, expected)
    assert len(rule.asked) == 4
    for (epoch, accuracy), asked in zip(rule.asked, expected.asked, strict=True):
        assert (epoch, accuracy) == (asked[0], pytest.approx(asked[1], abs=1e-6))


@pytest.mark.parametrize("accumulated", [1, 3])
@pytest.mark.parametrize("q", [12, 1.0, AccuracyRule(thresholds=(0.4, 0.6), divisors=(2, 4)), LossMassRule(0.6)])
def test_with_all_candidates_it_is_the_plain_ordered_trainer_bit_for_bit(
    parts: Any, leaf: Any, q: Any, accumulated: int, tmp_path: Path
) -> None:
    class Plain(leaf.OrderedTrainer):  # type: ignore[misc]  # known at run time
        def get_train_dataloader(self) -> Any:
            loader = super().get_train_dataloader()
            return DataLoader(loader.dataset, batch_sampler=Given(), collate_fn=loader.collate_fn)

    options: dict[str, Any] = {"accumulated": accumulated, "settings": {"logging_strategy": "epoch"}}
    sampler = OrderedBatchSampler(N, S, q=q, candidates=1.0)
    found = run(parts, leaf, sampler, q, tmp_path, **options)
    plain = run(parts, leaf, None, q, tmp_path, kind=Plain, **options)
    assert torch.equal(flat(found.model), flat(plain.model))
    assert found.ordered.loss_fn.q == plain.ordered.loss_fn.q
    for entry, other in zip(found.state.log_history[:-1], plain.state.log_history[:-1], strict=True):
        assert entry["ordered/loaded"] == 1
        assert entry["ordered/mean_loss"] == pytest.approx(other["ordered/mean_loss"], rel=1e-6)  # a mean over ranks
        for name in ("loss", "ordered/q"):
            assert entry[name] == other[name], name


@pytest.mark.parametrize(("workers", "accumulated"), [(0, 1), (2, 1), (2, 3)])
def test_a_run_resumed_after_any_step_goes_on_with_the_same_bits(
    parts: Any, leaf: Any, workers: int, accumulated: int, tmp_path: Path
) -> None:
    def train(folder: str, **settings: Any) -> tuple[Tensor, OrderedBatchSampler]:
        sampler = OrderedBatchSampler(N, S, q=Falling())
        resume = settings.pop("resume", False)
        net = nn.Sequential(nn.Dropout(0.1), network())
        settings |= {"dataloader_num_workers": workers}
        options = {"net": net, "accumulated": accumulated, "resume": resume, "settings": settings}
        torch.manual_seed(0)
        trainer = run(parts, leaf, sampler, Falling(), tmp_path / folder, **options)
        return flat(trainer.model), sampler

    steps = -(-len(Given()) // accumulated)
    whole, _ = train("whole", save_strategy="steps", save_steps=1)
    for step in (2, steps - 1, steps, steps + 1, 3 * steps - 1):
        found, sampler = train("again", resume=str(tmp_path / "whole" / f"checkpoint-{step}"))
        assert torch.equal(found, whole), step
        assert sampler.epoch == 3


def test_with_a_process_group_the_weights_are_those_of_the_documented_loop(
    parts: Any, leaf: Any, one_rank: Any, tmp_path: Path
) -> None:
    """The fast twin of sampled_ranks_job.py: a group of one rank."""
    trainer = run(parts, leaf, OrderedBatchSampler(N, S, q=0.25), 0.25, tmp_path, group=one_rank)
    expected, _ = by_hand(OrderedBatchSampler(N, S, q=0.25), 4)
    torch.testing.assert_close(flat(trainer.model), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("head", [True, False])
def test_whole_sequences_of_a_language_model_are_loaded_by_their_mean_loss(
    parts: Any, leaf: Any, head: bool, tmp_path: Path
) -> None:
    n, s, sequences = 48, 8, parts.rows_for("causal")
    settings = {"train_sampling_strategy": "random"}
    sampler = OrderedBatchSampler(n, s, q=0.25)
    options: dict[str, Any] = {"kind": leaf.OrderedTrainer, "batch": s, "q": 0.25, "unit": "sample", "head": head}
    model = parts.model_for("causal")
    trainer = parts.fit(model, sequences, tmp_path, epochs=4, batch_sampler=sampler, settings=settings, **options)
    assert trainer.loss_from == ("head: only kept tokens" if head else "logits: head=False")
    expected, other = parts.model_for("causal"), OrderedBatchSampler(n, s, q=0.25)
    optimizer = sgd(expected)
    for _ in range(4):
        for index in other:
            batch = {name: torch.stack([sequences[i][name] for i in index]) for name in sequences[0]}
            labels = batch.pop("labels")[:, 1:]
            losses = F.cross_entropy(expected(**batch).logits[:, :-1].transpose(1, 2), labels, reduction="none")
            means = losses.sum(1) / (labels != -100).sum(1)
            optimizer.zero_grad()
            means.topk(other.drawn(index).kept.q).values.mean().backward()
            optimizer.step()
            other.update(index, means)
    torch.testing.assert_close(flat(trainer.model), flat(expected), rtol=0, atol=2e-6)  # logits in blocks
    assert sampler.loaded < 1


def test_evaluation_has_all_samples_and_their_plain_mean(parts: Any, leaf: Any, tmp_path: Path) -> None:
    sampler, settings = OrderedBatchSampler(N, S, q=0.25), {"eval_strategy": "epoch"}
    trainer = run(parts, leaf, sampler, 0.25, tmp_path, eval_dataset=rows(), settings=settings)
    evaluated = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    x, y = data().tensors
    assert len(evaluated) == 4
    assert evaluated[-1] == pytest.approx(CE(trainer.model.net(x), y).mean().item(), rel=1e-5)
    assert torch.equal(flat(trainer.model), by_hand(OrderedBatchSampler(N, S, q=0.25), 4)[0])


def test_an_error_in_a_step_does_not_reach_evaluation(parts: Any, leaf: Any, tmp_path: Path) -> None:
    def interrupt(*_: Any) -> None:
        raise InterruptedError

    sampler = OrderedBatchSampler(N, S, q=0.25)
    trainer = run(parts, leaf, sampler, 0.25, tmp_path, eval_dataset=rows(), settings={"max_steps": 3})
    with trainer.model.register_forward_pre_hook(interrupt), pytest.raises(InterruptedError):
        trainer.train()
    assert trainer.evaluate()["eval_loss"] > 0


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        yield from rows()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"batch": 8}, "per_device_train_batch_size must be 16, that of the batch sampler; got 8"),
        ({"settings": {"dataloader_drop_last": True}}, "dataloader_drop_last must be that of the batch sampler"),
        ({"settings": {"train_sampling_strategy": "sequential"}}, "train_sampling_strategy must be 'random'"),
        ({"settings": {"ignore_data_skip": True}}, "ignore_data_skip must be false with a batch sampler"),
        ({"settings": {"auto_find_batch_size": True}}, "auto_find_batch_size must be false with a batch sampler"),
        ({"train": Stream(), "settings": {"max_steps": 4}}, "train_dataset must be map-style"),
        ({"train": rows()[:-1]}, "samples of the batch sampler must be 249, those of the training set; got 250"),
        ({"q": 0.5}, "q and selection must be those of OrderedLossFunc, 0.5"),
        ({"net": nn.Sequential(nn.BatchNorm1d(6), network()), "accumulated": 2}, "updates must be ordered as a whole"),
    ],
)
def test_what_a_batch_sampler_cannot_do_is_refused(
    parts: Any, leaf: Any, options: dict[str, Any], text: str, tmp_path: Path
) -> None:
    with pytest.raises(ArgumentError, match=text):
        run(parts, leaf, OrderedBatchSampler(N, S, q=0.25), **{"q": 0.25, "folder": tmp_path} | options)


def test_tokens_are_refused_when_the_trainer_is_made(parts: Any, leaf: Any, tmp_path: Path) -> None:
    model, sampler = parts.model_for("causal"), OrderedBatchSampler(48, 8, q=0.25)
    options = {"kind": leaf.OrderedTrainer, "batch_sampler": sampler, "q": 0.25}
    with pytest.raises(ArgumentError, match="unit must be 'sample' with a batch sampler; got 'token'"):
        parts.fit(model, parts.rows_for("causal"), tmp_path, **options)


def test_a_sampler_in_a_loader_of_ones_own_is_refused(parts: Any, leaf: Any, tmp_path: Path) -> None:
    class Own(leaf.OrderedTrainer):  # type: ignore[misc]  # known at run time
        def get_train_dataloader(self) -> Any:
            loader = DataLoader(rows(), batch_sampler=OrderedBatchSampler(N, S, q=0.25))  # type: ignore[arg-type]
            return self.accelerator.prepare(loader)

    with pytest.raises(ArgumentError, match="an OrderedBatchSampler must be an argument of the trainer"):
        run(parts, leaf, None, 0.25, tmp_path, kind=Own)


def test_a_checkpoint_of_another_training_is_refused(parts: Any, leaf: Any, tmp_path: Path) -> None:
    settings = {"save_strategy": "steps", "save_steps": 3, "max_steps": 3}
    run(parts, leaf, None, 0.25, tmp_path / "plain", settings=settings)
    run(parts, leaf, OrderedBatchSampler(N, S, q=0.25), 0.25, tmp_path / "sampled", settings=settings)
    for folder, accumulated, text in (
        ("plain", 1, "the checkpoint must hold ordered_sampler_0.pt"),
        ("sampled", 2, "the state of the batch sampler must be that after 6 batches of the epoch; got that after 3"),
    ):
        sampler, resume = OrderedBatchSampler(N, S, q=0.25), str(tmp_path / folder / "checkpoint-3")
        with pytest.raises(ArgumentError, match=text):
            run(parts, leaf, sampler, 0.25, tmp_path / "again", resume=resume, accumulated=accumulated)


def test_a_new_model_needs_a_new_sampler(parts: Any, leaf: Any, tmp_path: Path) -> None:
    trainer = run(parts, leaf, OrderedBatchSampler(N, S, q=0.25), 0.25, tmp_path, epochs=1)
    trainer.model = trainer.model_wrapped = parts.Logits(network())
    with pytest.raises(ArgumentError, match="the model must be the same in every training with a batch sampler"):
        trainer.train()
