import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordered_sgd.errors import ArgumentError
from ordered_sgd.rules import AccuracyRule, CosineDecay, FixedQ, LinearDecay, LossMassRule, Observed, resolve_q


@pytest.mark.parametrize(
    ("accuracy", "q"),
    [(0.0, 64), (0.799, 64), (0.8, 32), (0.899, 32), (0.9, 16), (0.95, 8), (0.9949, 8), (0.995, 4), (1.0, 4)],
)
def test_the_paper_s_rule_has_the_paper_s_levels(accuracy: float, q: int) -> None:
    assert AccuracyRule().next_q(64, 64, Observed(1, accuracy)) == q


def test_the_paper_s_rule_rounds_down_and_never_reaches_zero() -> None:
    assert AccuracyRule().next_q(63, 63, Observed(1, 0.8)) == 31
    assert AccuracyRule().next_q(15, 15, Observed(1, 1.0)) == 1


@given(st.floats(0.001, 1.0), st.integers(1, 10**7))
def test_a_share_keeps_at_least_one_and_at_most_all(q: float, s: int) -> None:
    assert 1 <= resolve_q(q, s) <= s


@pytest.mark.parametrize("percent", range(1, 101))
@pytest.mark.parametrize("s", [100, 1000, 10**7])
def test_a_share_in_percent_keeps_what_was_meant_whatever_floating_point_says(percent: int, s: int) -> None:
    assert resolve_q(percent / 100, s) == percent * s // 100


def test_decay_reaches_its_end_in_the_last_epoch_and_stays() -> None:
    for rule in (LinearDecay(epochs=10), CosineDecay(epochs=10)):
        path = [rule.next_q(64, 64, Observed(epoch)) for epoch in range(1, 15)]
        assert rule.first_q(64) == 64
        assert path[8] == 4
        assert path[7] > 4
        assert set(path[8:]) == {4}
    assert LinearDecay(epochs=1).first_q(64) == 64


def test_cosine_is_slower_than_linear_at_first_and_faster_later() -> None:
    linear, cosine = LinearDecay(epochs=21), CosineDecay(epochs=21)
    assert cosine.next_q(640, 640, Observed(4)) > linear.next_q(640, 640, Observed(4))
    assert cosine.next_q(640, 640, Observed(16)) < linear.next_q(640, 640, Observed(16))


def test_loss_mass_needs_the_fewest_samples_and_carries_over_to_another_batch_size() -> None:
    curve = [0.5, 0.8, 0.9, 1.0]
    assert LossMassRule(0.9).next_q(4, 4, Observed(1, None, curve)) == 3
    assert LossMassRule(0.5).next_q(4, 4, Observed(1, None, curve)) == 1
    assert LossMassRule(0.9).next_q(4, 64, Observed(1, None, curve)) == 48
    assert LossMassRule(1.0).next_q(4, 4, Observed(1, None, [0.4, 0.9999999, 0.9999999, 0.9999999])) == 2
    assert LossMassRule(1.0).next_q(4, 4, Observed(1, None, [0.1, 0.2, 0.3, 0.4])) == 4


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: FixedQ(0), "FixedQ: q must be an int of at least 1 or a fraction in (0, 1]; got 0. Use q=1"),
        (lambda: FixedQ(2, q_min=0), "FixedQ: q_min must be an int of at least 1; got 0. Use q_min=1 for no floor."),
        (lambda: AccuracyRule(q_min=1.5), "AccuracyRule: q_min must be an int of at least 1; got 1.5. Use q_min=1"),
        (
            lambda: AccuracyRule(thresholds=(80, 90), divisors=(2, 4)),
            "AccuracyRule: thresholds must be accuracies in [0, 1] in ascending order; got (80, 90). Give shares",
        ),
        (
            lambda: AccuracyRule(thresholds=(0.9, 0.8), divisors=(2, 4)),
            "AccuracyRule: thresholds must be accuracies in [0, 1] in ascending order; got (0.9, 0.8). Give shares",
        ),
        (
            lambda: AccuracyRule(divisors=(2, 4)),
            "AccuracyRule: divisors must be 4 ints of at least 1, one for each threshold; got (2, 4). Use 2 for half",
        ),
        (lambda: LinearDecay(epochs=0), "LinearDecay: epochs must be an int of at least 1; got 0. Give the number"),
        (
            lambda: CosineDecay(epochs=3, start=0.2, end=0.5),
            "CosineDecay: start and end must satisfy 0 < end <= start <= 1; got start=0.2, end=0.5. Use start=1.0",
        ),
        (lambda: LossMassRule(90), "LossMassRule: mass must be a share in (0, 1]; got 90. Use mass=0.9"),
        (
            lambda: AccuracyRule().next_q(4, 4, Observed(1)),
            "AccuracyRule: accuracy must be observed; got None. Pass accuracy=, or use LossMassRule",
        ),
        (
            lambda: LossMassRule().next_q(4, 4, Observed(1)),
            "LossMassRule: loss_share must be observed; got None. Train at least one batch",
        ),
    ],
)
def test_bad_input_gets_rule_value_and_remedy(build: object, text: str) -> None:
    with pytest.raises(ArgumentError) as error:
        build()  # type: ignore[operator]
    assert str(error.value).startswith(text)


def test_lists_make_the_same_hashable_rule_as_tuples() -> None:
    assert AccuracyRule(thresholds=[0.8], divisors=[2]) == AccuracyRule((0.8,), (2,))  # type: ignore[arg-type]
    assert hash(AccuracyRule()) == hash(AccuracyRule())
    with pytest.raises(dataclasses.FrozenInstanceError):
        AccuracyRule().q_min = 3  # type: ignore[misc]
