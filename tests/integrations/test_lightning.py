"""What Lightning adds to the contract of tests/contracts/test_trainers.py."""

import doctest
import functools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from ordered_sgd import AccuracyRule, FixedQ, OrderedLoss
from ordered_sgd.errors import ArgumentError
from tests.integrations.trainers import Falling, S, Task, batches, network, outcome, plain_loop, sgd

pytestmark = [
    pytest.mark.xdist_group("trainers"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers.*"),
]
CE = nn.CrossEntropyLoss(reduction="none")
PARTNER = "lightning"  # what the fixtures `parts` and `leaf` import


def close(model: nn.Module, expected: torch.Tensor) -> None:
    found = torch.cat([p.detach().flatten() for p in model.parameters()])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_the_examples_in_the_docstrings_hold(leaf: Any) -> None:
    found = doctest.testmod(leaf)
    assert found.attempted
    assert not found.failed


def test_the_criterion_is_back_after_the_fit_and_the_names_in_the_checkpoint_are_the_module_s(
    parts: Any, leaf: Any, tmp_path: Path
) -> None:
    criterion = nn.CrossEntropyLoss(weight=torch.ones(4))
    model = parts.Net(criterion)
    names = list(model.state_dict())
    trainer = parts.fit(model, leaf.OrderedCallback(q=4, selective=False), default_root_dir=tmp_path)
    assert model.criterion is criterion
    assert criterion.reduction == "mean"
    stored = torch.load(trainer.checkpoint_callback.best_model_path, weights_only=False)
    assert list(stored["state_dict"]) == names
    assert stored["callbacks"]["OrderedCallback{'criterion': 'criterion'}"]["epoch"] == 2


def test_validation_has_the_plain_loss_and_does_not_touch_the_rule(parts: Any, leaf: Any, tmp_path: Path) -> None:
    class Larger(parts.Validated):
        def on_validation_epoch_end(self) -> None:
            plain.append(float(nn.CrossEntropyLoss()(self.net(x), y)))

    (x, y), plain = batches().dataset.tensors, []
    rule, reference = Falling(), Falling()
    model, callback = Larger(nn.CrossEntropyLoss()), leaf.OrderedCallback(q=rule, selective=False)
    valid = DataLoader(TensorDataset(x, y), len(x))  # all samples at once: a larger batch than in training
    trainer = parts.fit(model, callback, valid=valid)
    expected = plain_loop(Task({"q": reference}, tmp_path))
    close(model, expected.weights)
    assert rule.asked == reference.asked
    assert len(plain) == 3  # the check before the fit is one of them
    assert trainer.callback_metrics["valid"].item() == pytest.approx(plain[-1], rel=1e-6)


def test_functions_dotted_names_and_what_a_class_holds_are_swapped_too(parts: Any, leaf: Any, tmp_path: Path) -> None:
    class Held(parts.Function):
        loss_fn = staticmethod(F.cross_entropy)

        def __init__(self) -> None:
            super().__init__(None)
            del self.loss_fn

    expected = plain_loop(Task({"q": 3}, tmp_path)).weights
    smooth = functools.partial(F.cross_entropy, label_smoothing=0.0)
    for model, name in [
        (parts.Function(F.cross_entropy), "loss_fn"),
        (parts.Function(smooth), "loss_fn"),
        (parts.Nested(), "losses.main"),
        (Held(), "loss_fn"),
    ]:
        before = parts.attribute(model, name)
        parts.fit(model, leaf.OrderedCallback(q=3, criterion=name, selective=False))
        close(model, expected)
        assert parts.attribute(model, name) is before


def test_accumulated_batches_are_ordered_one_by_one(parts: Any, leaf: Any) -> None:
    model = parts.Net(nn.CrossEntropyLoss())
    parts.fit(model, leaf.OrderedCallback(q=3, selective=False), accumulate_grad_batches=2)
    other, loss_fn = network(), OrderedLoss(CE, q=3)
    optimizer = sgd(other)
    for _ in range(2):
        for number, (x, y) in enumerate(batches()):
            (loss_fn(other(x), y) / 2).backward()
            if number % 2:
                optimizer.step()
                optimizer.zero_grad()
    close(model, outcome(other, loss_fn).weights)


def test_q_and_both_losses_are_logged_as_means_over_the_epoch(parts: Any, leaf: Any) -> None:
    trainer = parts.fit(parts.Net(nn.CrossEntropyLoss()), leaf.OrderedCallback(q=0.25, selective=False), epochs=1)
    model, ordered, plain = network(), [], []
    optimizer = sgd(model)
    for x, y in batches():
        losses = CE(model(x), y)
        ordered.append(losses.topk(2).values.mean())
        plain.append(losses.mean().item())
        optimizer.zero_grad()
        ordered[-1].backward()
        optimizer.step()
    logged = {name: value.item() for name, value in trainer.callback_metrics.items()}
    assert logged == {
        "ordered/q": 2,
        "ordered/computed": 1,  # nothing is skipped
        "ordered/loss": pytest.approx(torch.stack(ordered).mean().item(), rel=1e-5),
        "ordered/mean_loss": pytest.approx(sum(plain) / len(plain), rel=1e-5),
    }


def test_a_logged_metric_can_be_the_accuracy_of_the_rule(parts: Any, leaf: Any) -> None:
    class Measured(parts.Net):
        def training_step(self, batch: Any, index: int) -> Any:
            self.log("clean", 0.91, on_step=False, on_epoch=True, batch_size=S)
            return super().training_step(batch, index)

    callback = leaf.OrderedCallback(q=AccuracyRule(), accuracy="clean", selective=False)
    parts.fit(Measured(nn.CrossEntropyLoss()), callback, epochs=1)
    assert callback.loss_fn.q == S // 4
    other = leaf.OrderedCallback(q=AccuracyRule(), accuracy="other", selective=False)
    with pytest.raises(
        ArgumentError, match=r"accuracy must name a metric of the epoch; got 'other' and \['clean', 'ord"
    ):
        parts.fit(Measured(nn.CrossEntropyLoss()), other, epochs=1)


@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
def test_a_checkpoint_from_before_the_end_of_an_epoch_goes_on_to_the_same_weights(
    parts: Any, leaf: Any, tmp_path: Path
) -> None:
    """Lightning writes it after validation, when the rule has not been asked yet."""
    from lightning.pytorch.callbacks import ModelCheckpoint

    expected = plain_loop(Task({"q": Falling()}, tmp_path, epochs=3))
    valid = batches()

    def run(epochs: int, **options: Any) -> tuple[Any, Any]:
        early = ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1, save_on_train_epoch_end=False)
        model, callback = parts.Validated(nn.CrossEntropyLoss()), leaf.OrderedCallback(q=Falling(), selective=False)
        parts.fit(model, callback, early, epochs=epochs, valid=valid, default_root_dir=tmp_path, **options)
        return model, callback

    _, callback = run(2)
    written = torch.load(tmp_path / "epoch=1.ckpt", weights_only=False)["callbacks"][callback.state_key]
    assert (written["epoch"], written["q"], written["began"]) == (1, 4, True)
    model, callback = run(3, ckpt_path=tmp_path / "epoch=1.ckpt")
    close(model, expected.weights)
    assert (callback.loss_fn.q, callback.loss_fn.epoch) == (1, 3)


@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
def test_a_checkpoint_of_the_last_batch_of_an_epoch_goes_on_to_the_same_weights(
    parts: Any, leaf: Any, tmp_path: Path
) -> None:
    """Lightning never ends the epoch of such a checkpoint."""
    from lightning.pytorch.callbacks import ModelCheckpoint

    def run(**options: Any) -> tuple[Any, Any]:
        every = ModelCheckpoint(tmp_path, "{step}", save_top_k=-1, every_n_train_steps=10)
        model, callback = parts.Net(nn.CrossEntropyLoss()), leaf.OrderedCallback(q=Falling(), selective=False)
        parts.fit(model, callback, every, epochs=3, default_root_dir=tmp_path, **options)
        return model, callback

    whole, _ = run()
    model, callback = run(ckpt_path=tmp_path / "step=20.ckpt")
    close(model, outcome(whole, callback.loss_fn).weights)
    assert (callback.loss_fn.q, callback.loss_fn.epoch) == (1, 3)


def test_what_cannot_be_ordered_is_refused_at_once_and_the_module_is_left_as_it_was(parts: Any, leaf: Any) -> None:
    class Regression(parts.Net):
        def training_step(self, batch: Any, index: int) -> Any:
            return self.criterion(self.net(batch[0])[:, 0], batch[1].float())

    class Elsewhere(parts.Net):
        def training_step(self, batch: Any, index: int) -> Any:
            return F.cross_entropy(self.net(batch[0]), batch[1])

    cases: list[tuple[Any, dict[str, Any], str]] = [
        (parts.Net(nn.CrossEntropyLoss()), {"criterion": "loss_fn"}, "criterion must name an attribute; got 'loss_fn'"),
        (parts.Net(nn.CrossEntropyLoss()), {"criterion": "a.b"}, "criterion must name an attribute; got 'a.b'"),
        (
            parts.Net(nn.CrossEntropyLoss()),
            {"criterion": "loss"},
            r".* write self\.criterion = nn\.CrossEntropyLoss\(\)",
        ),
        (Elsewhere(nn.CrossEntropyLoss()), {}, r".* ordered_mean\(F\.cross_entropy\(\.\.\., reduction=.none.\), q\)"),
        (parts.Net(nn.CrossEntropyLoss(reduction="sum")), {}, "criterion must be a mean over the batch; got reduction"),
        (Elsewhere(nn.CrossEntropyLoss()), {}, "criterion must be called in training_step; got no call of 'criterion'"),
        (Regression(nn.MSELoss()), {"q": AccuracyRule()}, "the rule must find right answers to count"),
    ]
    for model, options, text in cases:
        before, rule = model.criterion, Falling()
        with pytest.raises(ArgumentError, match=f"^OrderedCallback: {text}"):
            parts.fit(model, leaf.OrderedCallback(**{"q": rule, "selective": False, **options}))
        assert model.criterion is before
        assert rule.asked == []


def test_several_ranks_need_a_strategy_that_averages_gradients(leaf: Any) -> None:
    from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy

    group = leaf._group
    assert group(SimpleNamespace(world_size=1, strategy=None)) is None
    assert group(SimpleNamespace(world_size=2, strategy=DDPStrategy())) is dist.group.WORLD
    with pytest.raises(ArgumentError, match="the strategy must be DDP or FSDP on several ranks; got ModelParallelStra"):
        group(SimpleNamespace(world_size=2, strategy=ModelParallelStrategy()))


@pytest.mark.filterwarnings("ignore:It is recommended to use .*sync_dist=True")  # of a strategy for one process
def test_with_a_process_group_the_weights_are_those_of_the_plain_loop(
    parts: Any, leaf: Any, one_rank: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fast twin of tests/integrations/test_ranks.py: a group of one rank."""
    expected = plain_loop(Task({"q": FixedQ(0.5)}, tmp_path))
    monkeypatch.setattr(leaf, "_group", lambda trainer: one_rank)
    model, callback = parts.Net(nn.CrossEntropyLoss()), leaf.OrderedCallback(q=FixedQ(0.5), selective=False)
    parts.fit(model, callback)
    assert callback.loss_fn.group is not None
    close(model, expected.weights)
