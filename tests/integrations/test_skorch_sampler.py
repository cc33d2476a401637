"""An `OrderedBatchSampler` in skorch: the loop of docs/samplers.md without its lines."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from torch import nn
from torch.utils.data import DataLoader

from ordered_sgd import AccuracyRule, LossMassRule, OrderedBatchSampler
from ordered_sgd.errors import ArgumentError
from tests.integrations.sampled_loop import Given, N, S, by_hand, data, flat
from tests.integrations.trainers import Falling, network

pytestmark = pytest.mark.xdist_group("trainers")
PARTNER = "skorch"
FILES = ("params", "optimizer", "ordered", "sampler")


def arrays() -> tuple[np.ndarray, np.ndarray]:
    x, y = data().tensors
    return x.numpy(), y.numpy()


def net_of(leaf: Any, sampler: OrderedBatchSampler, q: Any = 0.25, **options: Any) -> Any:
    usual: dict[str, Any] = {"criterion": nn.CrossEntropyLoss, "train_split": None, "max_epochs": 4, "lr": 0.1}
    usual |= {"optimizer__momentum": 0.9, "verbose": 0, "selective": False, "callbacks__print_log": None}
    usual["iterator_train__batch_sampler"] = sampler
    return leaf.OrderedNeuralNetClassifier(network, q=q, **{**usual, **options})


@pytest.mark.parametrize("workers", [0, 2])
def test_the_weights_are_those_of_the_documented_loop(leaf: Any, workers: int) -> None:
    net = net_of(leaf, OrderedBatchSampler(N, S, q=0.25), iterator_train__num_workers=workers).fit(*arrays())
    sampler = OrderedBatchSampler(N, S, q=0.25)
    expected, recalls = by_hand(sampler, 4)
    assert torch.equal(flat(net.module_), expected)
    assert net.history[:, "recall"] == pytest.approx(recalls)
    assert net.history[-1, "loaded"] == pytest.approx(sampler.loaded)
    assert net.history[-1, "batches", :, "train_batch_size"] == [S] * 15 + [N - 15 * S]
    assert torch.equal(flat(net.fit(*arrays()).module_), expected), "fit starts anew"


@pytest.mark.parametrize("q", [5, AccuracyRule(thresholds=(0.4, 0.6), divisors=(2, 4)), LossMassRule(0.6)])
def test_with_all_candidates_it_is_the_plain_net_bit_for_bit(
    leaf: Any, q: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = net_of(leaf, OrderedBatchSampler(N, S, q=q, candidates=1.0), q).fit(*arrays())
    plain = net_of(leaf, OrderedBatchSampler(N, S, q=q), q)
    given = DataLoader(data(), batch_sampler=Given())
    monkeypatch.setattr(plain, "get_iterator", lambda dataset, training: given)
    plain.fit(*arrays())
    assert torch.equal(flat(net.module_), flat(plain.module_))
    names = ("q", "train_loss", "train_mean_loss")
    assert net.history[:, names] == plain.history[:, names]
    assert net.history[:, "loaded"] == [1] * 4
    assert np.isnan(net.history[:, "recall"]).all()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_resumed_after_any_step_goes_on_with_the_same_bits(leaf: Any, workers: int, tmp_path: Path) -> None:
    """A `partial_fit` after a checkpoint in the middle of an epoch begins with the rest of it."""
    from skorch.callbacks import Callback

    class EveryStep(Callback):  # type: ignore[misc]  # known at run time
        def on_batch_end(self, net: Any, **kwargs: Any) -> None:
            step = sum(len(epoch["batches"]) for epoch in net.history)
            (tmp_path / f"{step}").mkdir()
            net.save_params(**{f"f_{name}": tmp_path / f"{step}" / name for name in FILES})

    options: dict[str, Any] = {"q": Falling(), "iterator_train__num_workers": workers}
    whole = net_of(leaf, OrderedBatchSampler(N, S, q=Falling()), callbacks=[EveryStep()], **options).fit(*arrays())
    for step in (1, 5, 17, 40):
        net = net_of(leaf, OrderedBatchSampler(N, S, q=Falling()), **options).initialize()
        net.load_params(**{f"f_{name}": tmp_path / f"{step}" / name for name in FILES})
        net.partial_fit(*arrays(), epochs=4 - step // 16)
        assert torch.equal(flat(net.module_), flat(whole.module_)), step
        assert net.history[0, "train_batch_count"] == 16 - step % 16


def test_partial_fit_goes_on_and_a_pickle_has_the_state_without_the_data(leaf: Any) -> None:
    expected, _ = by_hand(OrderedBatchSampler(N, S, q=0.25), 4)
    net = net_of(leaf, OrderedBatchSampler(N, S, q=0.25)).fit(*arrays(), epochs=2)
    stored = pickle.dumps(net)
    assert data().tensors[0].numpy().tobytes()[:64] not in stored
    for one in (net, pickle.loads(stored)):
        assert torch.equal(flat(one.partial_fit(*arrays(), epochs=2).module_), expected)
    copied = clone(net)
    assert not hasattr(copied, "sampler_")
    assert torch.equal(flat(copied.fit(*arrays()).module_), expected)


def test_it_draws_from_what_the_split_leaves_and_validation_has_the_rest(leaf: Any) -> None:
    from skorch.dataset import ValidSplit

    net = net_of(leaf, OrderedBatchSampler(N, S, q=0.25), train_split=ValidSplit(5)).fit(*arrays())
    assert net.sampler_.samples == N * 4 // 5
    batches = net.history[-1]["batches"]
    assert sum(batch["train_batch_size"] for batch in batches if "train_batch_size" in batch) == N * 4 // 5
    assert sum(batch["valid_batch_size"] for batch in batches if "valid_batch_size" in batch) == N // 5
    assert net.get_params()["iterator_train__batch_sampler"].samples == N


def test_the_net_and_its_sampler_have_the_same_q(leaf: Any) -> None:
    net = net_of(leaf, OrderedBatchSampler(N, S, q=0.25)).set_params(q=0.5)
    with pytest.raises(ArgumentError, match=r"q and selection must be those of OrderedNeuralNetClassifier, 0\.5"):
        net.fit(*arrays())
    sampler = OrderedBatchSampler(N, S, q=0.5)
    assert clone(net).set_params(iterator_train__batch_sampler=sampler).fit(*arrays()).history[-1, "q"] == S // 2


def test_a_loader_out_of_order_is_refused(leaf: Any) -> None:
    options = {"iterator_train__in_order": False, "iterator_train__num_workers": 1}
    with pytest.raises(ArgumentError, match="OrderedNeuralNetClassifier: in_order must be true with a batch sampler"):
        net_of(leaf, OrderedBatchSampler(N, S, q=0.25), **options).fit(*arrays())
