import pytest

from ordered_sgd.lab.experiments.plan import CountsRule, Replay, learning_rate, rule_for
from ordered_sgd.lab.experiments.spec import ExperimentSpec
from ordered_sgd.rules import AccuracyRule, FixedQ, LinearDecay, Observed


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ({"method": "sgd"}, FixedQ(1.0)),
        ({"method": "sgd", "q": 4}, FixedQ(1.0)),
        ({}, AccuracyRule()),
        ({"q": 16}, FixedQ(16)),
        ({"counts": True}, CountsRule()),
        ({"q": LinearDecay(9)}, LinearDecay(9)),
        ({"method": "random", "epochs": 2, "path": ((64, 0.1), (32, 0.1))}, Replay((64, 32))),
    ],
)
def test_the_spec_names_the_rule(given: dict[str, object], rule: object) -> None:
    assert rule_for(ExperimentSpec(**given)) == rule  # type: ignore[arg-type]


@pytest.mark.parametrize(("accuracy", "q"), [(0.5, 100), (0.8, 32), (0.93, 16), (0.95, 8), (1.0, 4)])
def test_the_scripts_keep_32_16_8_and_4_of_a_batch_of_any_size(accuracy: float, q: int) -> None:
    rule = CountsRule()
    assert rule.first_q(100) == 100
    assert rule.next_q(100, 100, Observed(1, accuracy)) == q
    assert rule.next_q(2, 100, Observed(1, accuracy)) == 2  # and never grows back


def test_the_control_repeats_q_and_rate_of_every_epoch() -> None:
    path = ((64, 0.1), (64, 0.1), (8, 0.01))
    spec = ExperimentSpec(method="random", epochs=3, path=path, lr=9.0, drops=(1,), hidden_rule=True)
    rule = rule_for(spec)
    qs = [rule.first_q(64)]
    for epoch in (1, 2):
        qs.append(rule.next_q(qs[-1], 64, Observed(epoch)))
    assert qs == [64, 64, 8]
    assert [learning_rate(spec, epoch, decayed=True) for epoch in (1, 2, 3)] == [0.1, 0.1, 0.01]


def test_the_rate_falls_at_the_start_of_the_named_epochs_and_once_by_the_hidden_rule() -> None:
    spec = ExperimentSpec(lr=0.01, drops=(10, 100))
    rates = {epoch: learning_rate(spec, epoch, decayed=False) for epoch in (1, 9, 10, 99, 100)}
    assert rates == {1: 0.01, 9: 0.01, 10: 0.001, 99: 0.001, 100: 0.0001}
    assert learning_rate(spec, 10, decayed=True) == 0.0001
