"""What skorch adds to the contract of tests/contracts/test_trainers.py."""

import doctest
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from torch import nn
from torch.nn import functional as F

from ordered_sgd import Above, AccuracyRule, explain_backward, scores
from ordered_sgd.errors import ArgumentError
from tests.integrations.trainers import Falling, S, network, samples

pytestmark = pytest.mark.xdist_group("trainers")
PARTNER = "skorch"  # what the fixture `leaf` imports


def net_of(leaf: Any, **options: Any) -> Any:
    usual: dict[str, Any] = {
        "module": network,
        "criterion": nn.CrossEntropyLoss,
        "train_split": None,
        "max_epochs": 2,
        "lr": 0.1,
    }
    return leaf.OrderedNeuralNetClassifier(**{**usual, "batch_size": S, "verbose": 0, "selective": False, **options})


def arrays() -> tuple[np.ndarray, np.ndarray]:
    x, y = samples()
    return x.numpy(), y.numpy()


def test_the_examples_in_the_docstrings_hold(leaf: Any) -> None:
    found = doctest.testmod(leaf)
    assert found.attempted
    assert not found.failed


def test_a_grid_search_over_q_and_rules_finds_what_fits_by_hand_find(leaf: Any) -> None:
    x, y = arrays()
    halves = [(np.arange(40), np.arange(40, 80)), (np.arange(40, 80), np.arange(40))]
    grid = [{"q": [2, 0.5, 1.0]}, {"q": [AccuracyRule(thresholds=(0.3,), divisors=(4,))]}]
    search = GridSearchCV(net_of(leaf, q=1.0), grid, cv=halves, error_score="raise").fit(x, y)
    for number, params in enumerate(search.cv_results_["params"]):
        for split, (train, test) in enumerate(halves):
            alone = net_of(leaf, q=1.0).set_params(**params).fit(x[train], y[train])
            assert alone.score(x[test], y[test]) == search.cv_results_[f"split{split}_test_score"][number]
    assert search.best_estimator_.ordered_.epoch == 2


def test_the_history_has_q_and_both_losses_and_the_plain_loss_of_validation(leaf: Any) -> None:
    from skorch.helper import predefined_split

    x, y = arrays()
    data = torch.utils.data.TensorDataset(*samples())
    net = net_of(leaf, q=0.25, max_epochs=1, lr=0.0, train_split=predefined_split(data)).fit(x, y)
    losses = F.cross_entropy(network()(torch.from_numpy(x)), torch.from_numpy(y), reduction="none").detach()
    row = net.history[-1]
    assert row["q"] == 2
    assert row["train_loss"] == pytest.approx(losses.view(-1, S).topk(2).values.mean().item(), rel=1e-5)
    assert row["train_mean_loss"] == pytest.approx(losses.mean().item(), rel=1e-5)
    assert row["valid_loss"] == pytest.approx(losses.mean().item(), rel=1e-5)


def test_partial_fit_goes_on_where_q_was_and_fit_starts_anew(leaf: Any) -> None:
    rule = Falling()
    net = net_of(leaf, q=rule).fit(*arrays())
    assert net.history[:, "q"] == [8, 4]
    assert net.partial_fit(*arrays()).history[:, "q"] == [8, 4, 2, 1]
    assert net.fit(*arrays()).history[:, "q"] == [8, 4]
    assert net.set_params(q=3).partial_fit(*arrays()).history[:, "q"] == [8, 4, 3, 3]


def test_a_clone_has_the_parameters_and_a_pickle_the_state_as_well(leaf: Any) -> None:
    silent = {"callbacks__print_log": None}  # it holds `print`, which Ray replaces: then it cannot be pickled
    net = net_of(leaf, q=AccuracyRule(thresholds=(0.3,), divisors=(4,)), **silent).fit(*arrays())
    assert clone(net).get_params()["q"] == net.q
    assert not hasattr(clone(net), "ordered_")
    loaded = pickle.loads(pickle.dumps(net))
    assert (loaded.ordered_.q, loaded.ordered_.epoch) == (2, 2)
    assert np.array_equal(loaded.predict_proba(arrays()[0]), net.predict_proba(arrays()[0]))
    for one in (net, loaded):
        one.partial_fit(*arrays())
    assert loaded.history[:, "q"] == net.history[:, "q"] == [8, 2, 2, 2]
    assert np.array_equal(loaded.predict_proba(arrays()[0]), net.predict_proba(arrays()[0]))


def test_options_of_the_ordered_loss_carry_its_prefix(leaf: Any) -> None:
    silent = {"callbacks__print_log": None}
    given = {"q": Above(1.2, at_least=2), "ordered__score": scores.entropy, "ordered__cap": 5.0}
    net = net_of(leaf, **given, **silent).fit(*arrays())
    assert {name: net.get_params()[name] for name in given} == given
    assert {name: clone(net).get_params()[name] for name in given} == given
    assert (net.ordered_.score, net.ordered_.cap) == (scores.entropy, 5.0)
    ordered = net.ordered_
    assert net.partial_fit(*arrays()).ordered_ is ordered
    assert pickle.loads(pickle.dumps(net)).partial_fit(*arrays()).ordered_.score is scores.entropy
    again = net.set_params(ordered__score=None).partial_fit(*arrays()).ordered_
    assert (again.score, again.cap) == (None, 5.0)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"score": scores.entropy}, "score must carry the prefix ordered__; got score=. Write ordered__score="),
        ({"trim": 0.1}, "trim must carry the prefix ordered__; got trim=. Write ordered__trim="),
    ],
)
def test_an_option_without_its_prefix_is_refused(options: dict[str, Any], text: str, leaf: Any) -> None:
    with pytest.raises(ArgumentError) as error:
        net_of(leaf, q=3, **options)
    assert str(error.value).startswith(f"OrderedNeuralNetClassifier: {text}")


def test_probabilities_come_out_of_logits_and_of_modules_that_return_them(leaf: Any) -> None:
    def with_softmax() -> nn.Module:
        return nn.Sequential(network(), nn.Softmax(1))

    x, y = arrays()
    logits = net_of(leaf, q=3).fit(x, y)
    probabilities = net_of(leaf, q=3, module=with_softmax, criterion=nn.NLLLoss).fit(x, y)
    assert np.allclose(logits.predict_proba(x).sum(1), 1)
    # NeuralNetClassifier adds an epsilon before it takes the logarithm
    assert np.allclose(logits.predict_proba(x), probabilities.predict_proba(x), atol=1e-4)


def test_a_sum_and_a_rule_without_answers_are_refused_at_once(leaf: Any) -> None:
    with pytest.raises(ArgumentError, match="OrderedNeuralNetClassifier: criterion must be a mean over the batch"):
        net_of(leaf, q=3, criterion__reduction="sum").fit(*arrays())
    x, y = arrays()
    mixed = np.eye(4, dtype=np.float32)[y]
    rule = Falling()
    with pytest.raises(ArgumentError, match="OrderedNeuralNetClassifier: the rule must find right answers to count"):
        net_of(leaf, q=rule).fit(x, mixed)
    assert rule.asked == []


def test_a_criterion_that_returns_a_loss_per_sample_is_averaged_in_validation(leaf: Any) -> None:
    from skorch.helper import predefined_split

    x, y = arrays()
    data = torch.utils.data.TensorDataset(*samples())
    options = {"q": 3, "lr": 0.0, "max_epochs": 1, "train_split": predefined_split(data)}
    rows = [net_of(leaf, criterion__reduction=name, **options).fit(x, y).history[-1] for name in ("none", "mean")]
    assert rows[0]["valid_loss"] == pytest.approx(rows[1]["valid_loss"], rel=1e-6)
    assert rows[0]["train_loss"] == rows[1]["train_loss"]


def test_only_kept_samples_are_computed_and_the_module_is_compiled_once(leaf: Any) -> None:
    silent = {"callbacks__print_log": None}
    plain, net = net_of(leaf, q=3).fit(*arrays()), net_of(leaf, q=3, selective=True, **silent)
    assert net.backward_ran_ is None
    net.fit(*arrays())
    assert np.allclose(net.predict_proba(arrays()[0]), plain.predict_proba(arrays()[0]), rtol=0, atol=1e-6)
    report = explain_backward(net.module_)
    assert net.partial_fit(*arrays()).history[:, "computed"] == [0.375] * 4
    assert explain_backward(net.module_) is report
    assert report.skipping == report.passes == 40
    assert net.backward_ran_ == "only kept samples"
    loaded = pickle.loads(pickle.dumps(net))
    assert loaded.backward_ran_ is None
    assert loaded.module_._compiled_call_impl is None
    for one in (net, loaded.set_params(selective=False)):
        one.partial_fit(*arrays())
    assert loaded.history[-1, "computed"] == 1
    assert loaded.backward_ran_ == "whole batches: selective=False"
    assert np.allclose(loaded.predict_proba(arrays()[0]), net.predict_proba(arrays()[0]), rtol=0, atol=1e-6)


def test_selective_is_a_parameter_that_takes_effect_in_the_next_training(leaf: Any) -> None:
    net = net_of(leaf, q=3, selective=True, max_epochs=1).fit(*arrays())
    assert clone(net).get_params()["selective"] is True
    assert clone(net).backward_ran_ is None
    net.set_params(selective=False).partial_fit(*arrays())
    assert net.module_._compiled_call_impl is None
    assert net.history[:, "computed"] == [0.375, 1.0]
    net.set_params(selective=True, compile=True, compile__backend="eager").fit(*arrays())
    assert net.backward_ran_ == "whole batches: the model is compiled without selective_backward"
