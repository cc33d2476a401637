"""An `OrderedBatchSampler` in Lightning: the loop of docs/samplers.md without its lines."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from ordered_sgd import AccuracyRule, LossMassRule, OrderedBatchSampler, OrderedLoss, with_index
from ordered_sgd.errors import ArgumentError
from ordered_sgd.rules import Observed
from tests.integrations.sampled_loop import CE, Given, N, S, by_hand, data, flat
from tests.integrations.trainers import Falling, network, sgd

pytestmark = [
    pytest.mark.xdist_group("trainers"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers.*"),
]
PARTNER = "lightning"


@pytest.mark.parametrize(("indexed", "workers"), [(False, 0), (True, 0), (False, 2), (True, 2)])
def test_the_weights_are_those_of_the_documented_loop(parts: Any, leaf: Any, indexed: bool, workers: int) -> None:
    sampler = OrderedBatchSampler(N, S, q=0.25)
    dataset: Any = with_index(data()) if indexed else data()
    loader = DataLoader(dataset, batch_sampler=sampler, num_workers=workers, persistent_workers=workers > 0)
    model = parts.Net(nn.CrossEntropyLoss())
    trainer = parts.fit(model, leaf.OrderedCallback(q=0.25, selective=False), train=loader, epochs=4)
    expected, recalls = by_hand(OrderedBatchSampler(N, S, q=0.25), 4)
    assert torch.equal(flat(model), expected)
    assert trainer.callback_metrics["ordered/recall"].item() == pytest.approx(recalls[-1])
    assert trainer.callback_metrics["ordered/loaded"].item() == pytest.approx(sampler.loaded)
    assert sampler.state_dict()["pending"] == []


@pytest.mark.parametrize("q", [5, AccuracyRule(thresholds=(0.4, 0.6), divisors=(2, 4)), LossMassRule(0.6)])
def test_with_all_candidates_it_is_the_plain_ordered_trainer_bit_for_bit(parts: Any, leaf: Any, q: Any) -> None:
    model, callback = parts.Net(nn.CrossEntropyLoss()), leaf.OrderedCallback(q=q, selective=False)
    loader = DataLoader(data(), batch_sampler=OrderedBatchSampler(N, S, q=q, candidates=1.0))
    trainer = parts.fit(model, callback, train=loader, epochs=3)
    expected, other = parts.Net(nn.CrossEntropyLoss()), leaf.OrderedCallback(q=q, selective=False)

    plain = parts.fit(expected, other, train=DataLoader(data(), batch_sampler=Given()), epochs=3)
    assert torch.equal(flat(model), flat(expected))
    assert callback.loss_fn.q == other.loss_fn.q
    for name in ("q", "loss", "mean_loss"):
        assert torch.equal(trainer.callback_metrics[f"ordered/{name}"], plain.callback_metrics[f"ordered/{name}"]), name


@dataclass(frozen=True)
class Quarter:
    """Keeps a quarter, and tells which accuracies it was asked with."""

    asked: list[float | None] = field(default_factory=list, compare=False)
    needs: Any = "accuracy"

    def first_q(self, s: int) -> int:
        return s // 4

    def next_q(self, q: int, s: int, observed: Observed) -> int:
        self.asked.append(observed.accuracy)
        return q


@pytest.mark.parametrize("masked", [False, True])
def test_the_rule_and_the_log_see_unbiased_estimates_of_the_whole_batch(parts: Any, leaf: Any, masked: bool) -> None:
    class Still(parts.Net):
        """Does not learn: the estimates have a known expectation."""

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.0)

    class Watch(parts.pl.Callback):
        def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
            logged.append({name: value.item() for name, value in trainer.callback_metrics.items()})

    rule, logged, model = Quarter(), [], Still(nn.CrossEntropyLoss())
    x, y = data().tensors
    y = y.masked_fill(torch.arange(N) % 5 == 0, -100) if masked else y
    logits = model.net(x)
    accuracy = (logits.argmax(1) == y)[y != -100].float().mean().item()
    loss = nn.functional.cross_entropy(logits, y).item()
    loader = DataLoader(TensorDataset(x, y), batch_sampler=OrderedBatchSampler(N, S, q=rule, others=2))
    parts.fit(model, leaf.OrderedCallback(q=rule, selective=False), Watch(), train=loader, epochs=40)
    answers = np.array([epoch["ordered/accuracy"] for epoch in logged[8:]])  # all samples were seen by then
    means = np.array([epoch["ordered/mean_loss"] for epoch in logged[8:]])
    for found, expected in ((answers, accuracy), (means, loss), (np.array(rule.asked[8:]), accuracy)):
        assert abs(found.mean() - expected) < 4 * found.std() / len(found) ** 0.5 + 1e-5
        assert found.std() < 0.3 * expected
    assert 0.3 < np.mean([epoch["ordered/loaded"] for epoch in logged]) < 0.7
    assert {epoch["ordered/q"] for epoch in logged} == {S // 4}


def run(parts: Any, leaf: Any, sampler: OrderedBatchSampler, folder: Path, workers: int, **options: Any) -> Tensor:
    """The weights after four epochs, with checkpoints on the way."""
    from lightning.pytorch.callbacks import ModelCheckpoint

    every = ModelCheckpoint(folder, "{step}", save_top_k=-1, every_n_train_steps=1)
    callback = leaf.OrderedCallback(q=Falling(), selective=False)
    loader = DataLoader(data(), batch_sampler=sampler, num_workers=workers)
    model = parts.Net(nn.CrossEntropyLoss())
    parts.fit(model, callback, every, train=loader, epochs=4, default_root_dir=folder, **options)
    return flat(model)


@pytest.mark.filterwarnings("ignore:The dirpath has changed")
@pytest.mark.parametrize(("workers", "limit"), [(0, 16), (2, 16), (2, 7)])
def test_a_run_resumed_after_any_step_goes_on_with_the_same_bits(
    parts: Any, leaf: Any, workers: int, limit: int, tmp_path: Path
) -> None:
    options = {"limit_train_batches": limit}
    whole = run(parts, leaf, OrderedBatchSampler(N, S, q=Falling()), tmp_path / "whole", workers, **options)
    for step in (5, limit - 1, limit, limit + 1, 2 * limit + 3):
        sampler = OrderedBatchSampler(N, S, q=Falling())
        start = tmp_path / "whole" / f"step={step}.ckpt"
        found = run(parts, leaf, sampler, tmp_path / f"from {step}", workers, ckpt_path=start, **options)
        assert torch.equal(found, whole), step
        assert sampler.epoch == 3


@pytest.mark.filterwarnings("ignore:It is recommended to use .*sync_dist=True")  # of a strategy for one process
def test_with_a_process_group_the_weights_are_those_of_the_documented_loop(
    parts: Any, leaf: Any, one_rank: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fast twin of sampled_ranks_job.py: a group of one rank."""
    monkeypatch.setattr(leaf, "_group", lambda trainer: one_rank)
    model, callback = parts.Net(nn.CrossEntropyLoss()), leaf.OrderedCallback(q=0.25, selective=False)
    parts.fit(model, callback, train=DataLoader(data(), batch_sampler=OrderedBatchSampler(N, S, q=0.25)), epochs=4)
    assert callback.loss_fn.group is not None
    expected, _ = by_hand(OrderedBatchSampler(N, S, q=0.25), 4)
    torch.testing.assert_close(flat(model), expected, rtol=0, atol=1e-6)


def test_a_loader_made_anew_takes_over_what_was_remembered(parts: Any, leaf: Any) -> None:
    class Reloading(parts.Net):
        def train_dataloader(self) -> Any:
            samplers.append(OrderedBatchSampler(N, S, q=0.25))
            return DataLoader(data(), batch_sampler=samplers[-1])

    samplers: list[OrderedBatchSampler] = []
    model = Reloading(nn.CrossEntropyLoss())
    trainer = parts.pl.Trainer(
        accelerator="cpu",
        max_epochs=4,
        reload_dataloaders_every_n_epochs=1,
        logger=False,
        enable_checkpointing=False,
        callbacks=[leaf.OrderedCallback(q=0.25, selective=False)],
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model)
    assert len(samplers) == 4
    assert torch.equal(flat(model), by_hand(OrderedBatchSampler(N, S, q=0.25), 4)[0])


@pytest.mark.filterwarnings("ignore:`training_step` returned `None`")
def test_a_batch_that_training_step_skips_is_not_remembered(parts: Any, leaf: Any) -> None:
    class Skipping(parts.Net):
        def training_step(self, batch: Any, index: int) -> Any:
            return None if index == 2 else super().training_step(batch, index)

    sampler = OrderedBatchSampler(N, S, q=1.0)
    model = Skipping(nn.CrossEntropyLoss())
    parts.fit(
        model, leaf.OrderedCallback(q=1.0, selective=False), train=DataLoader(data(), batch_sampler=sampler), epochs=1
    )
    assert int(sampler.state_dict()["losses"].isinf().sum()) == S


def test_accumulated_batches_are_kept_one_by_one_and_the_criterion_may_be_called_twice(parts: Any, leaf: Any) -> None:
    class Twice(parts.Net):
        def training_step(self, batch: Any, index: int) -> Any:
            return (super().training_step(batch, index) + super().training_step(batch, index)) / 2

    found = []
    for kind in (parts.Net, Twice):
        loader = DataLoader(data(), batch_sampler=OrderedBatchSampler(N, S, q=0.25))
        model = kind(nn.CrossEntropyLoss())
        callback = leaf.OrderedCallback(q=0.25, selective=False)
        parts.fit(model, callback, train=loader, accumulate_grad_batches=2)
        found.append(flat(model))
    torch.testing.assert_close(*found, rtol=0, atol=1e-6)


def test_mix_takes_the_estimate_of_the_plain_mean(parts: Any, leaf: Any) -> None:
    sampler = OrderedBatchSampler(N, S, q=0.25)
    model = parts.Net(nn.CrossEntropyLoss())
    loader = DataLoader(data(), batch_sampler=sampler)
    parts.fit(model, leaf.OrderedCallback(q=0.25, mix=0.3, trim=1, trim_epochs=1, selective=False), train=loader)
    other, expected = OrderedBatchSampler(N, S, q=0.25), network()
    policy = OrderedLoss(CE, q=0.25, trim=1, trim_epochs=1)._policy
    other.follow(policy)
    optimizer = sgd(expected)
    for _ in range(2):
        for x, y, index in DataLoader(with_index(data()), batch_sampler=other):
            losses, drawn = CE(expected(x), y), other.drawn(index)
            policy.see(drawn.s)
            kept = losses.sort(descending=True).values[drawn.kept.trim : drawn.kept.last].mean()
            optimizer.zero_grad()
            (0.7 * kept + 0.3 * drawn.mean(losses)).backward()
            optimizer.step()
            other.update(index, losses)
        policy.end_epoch()
    torch.testing.assert_close(flat(model), flat(expected), rtol=0, atol=1e-6)


@pytest.mark.filterwarnings("ignore:.*`dataloader_iter`")
def test_what_cannot_work_is_refused(parts: Any, leaf: Any) -> None:
    class Halves(parts.Net):
        def training_step(self, batch: Any, index: int) -> Any:
            return super().training_step([part[:4] for part in batch], index)

    class Iterates(parts.Net):
        def training_step(self, dataloader_iter: Any) -> Any:
            return super().training_step(next(dataloader_iter)[0], 0)

    def loader(**options: Any) -> Any:
        return DataLoader(data(), batch_sampler=OrderedBatchSampler(N, S, q=0.25), **options)

    plain, q = parts.Net(nn.CrossEntropyLoss()), {"q": 0.25, "selective": False}
    cases: list[tuple[Any, list[dict[str, Any]], Any, str]] = [
        (
            plain,
            [{**q, "q": 0.5}],
            loader(),
            "q and selection must be those of OrderedCallback, 0.5",
        ),
        (plain, [{**q, "unit": "token"}], loader(), "unit must be 'sample' with a batch sampler; got 'token'"),
        (plain, [q], [loader()], "the loader with a batch sampler must be the only one"),
        (plain, [q], {"a": loader(), "b": loader()}, "the loader with a batch sampler must be the only one"),
        (plain, [q], loader(in_order=False, num_workers=1), "in_order must be true"),
        (plain, [q, {**q, "criterion": "net"}], loader(), "OrderedCallback must be the only one with a batch sampler"),
        (
            Halves(nn.CrossEntropyLoss()),
            [q],
            loader(),
            "criterion must be called with all samples",
        ),
        (Iterates(nn.CrossEntropyLoss()), [q], loader(), "training_step must take a batch"),
    ]
    for model, callbacks, train, text in cases:
        with pytest.raises(ArgumentError, match=text):
            parts.fit(model, *[leaf.OrderedCallback(**options) for options in callbacks], train=train)
    with pytest.raises(ArgumentError, match="the state must be that of as many ranks; got that of 2 ranks on 1"):
        leaf.Sampled(OrderedBatchSampler(N, S, q=0.25), loader(), watched(), "x").load_state_dict({"ranks": [{}, {}]})


def watched() -> Any:
    from ordered_sgd.integrations._watched import WatchedLoss

    return WatchedLoss(CE, q=0.25)
