"""The expected time of a training, from times and accuracies that are given by hand."""

import numpy as np
import pytest

from ordered_sgd.lab.advise.forecast import PAPER, accuracy_of, expected_qs, forecast, power_law
from ordered_sgd.lab.advise.steps import StepCosts, StepTime, levels
from ordered_sgd.lab.advise.warmup import WarmUp
from ordered_sgd.rules import AccuracyRule, FixedQ, Observed

QS = levels(64)


def costs(selective: tuple[float, ...] = (1.1, 0.7, 0.5, 0.4, 0.35), compiling: float = 3.0) -> StepCosts:
    steps = []
    for name, ratios in (("sgd", (1.0,) * 5), ("dense", (1.25,) * 5), ("selective", selective)):
        for q, ratio in zip(QS, ratios, strict=True):
            steps.append(StepTime(name, q, name, "", 0.01 * ratio, None, None, ratio, 0.0, exact=True))
    return StepCosts(tuple(steps), compiling, {}, None)


def warm(accuracies: tuple[float, ...] = (0.7, 0.85, 0.92), loading: float = 0.0) -> WarmUp:
    curve = tuple((100 * epoch + 50.5, accuracy) for epoch, accuracy in enumerate(accuracies))
    return WarmUp(
        steps=100 * len(accuracies),
        per_epoch=100,
        seconds=0.025,  # of a dense step, 1.25 times a plain one
        loading=loading,
        curve=curve,
        carried={},
        remembered={},
        apart=100,
        suspects=0,
        looked_at=1,
    )


def test_q_follows_the_measured_accuracies_and_then_the_power_law() -> None:
    curve = tuple((step + 0.5, 1 - 5 * (step + 0.5) ** -0.6) for step in range(20, 300, 5))
    steady = WarmUp(300, 100, 0.02, 0.0, curve, {}, {}, 1, 0, 1)
    truth = [np.mean([1 - 5 * at**-0.6 for at in np.arange(k * 100, k * 100 + 100) + 0.5]) for k in range(1, 12)]
    expected, q = [64], 64
    first = accuracy_of(curve, 0, 100)
    for epoch, accuracy in enumerate([first, *truth[:-1]]):
        q = AccuracyRule().next_q(q, 64, Observed(epoch + 1, float(accuracy)))
        expected.append(q)
    assert list(expected_qs(steady, AccuracyRule(), s=64, epochs=12)) == expected
    assert set(expected) == {64, 32, 16}


def test_a_fixed_q_needs_no_accuracy() -> None:
    assert set(expected_qs(warm(()), FixedQ(0.5), s=64, epochs=3)) == {32}


def test_the_power_law_is_found_again_and_bounded() -> None:
    steps = np.arange(1.0, 200.0)
    level, slope = power_law(steps, 0.8 * steps**-0.4)
    assert slope == pytest.approx(0.4)
    assert level == pytest.approx(0.8 * 199.0**-0.4)
    assert power_law(steps, np.full(199, 0.3)) == pytest.approx((0.3, 0.0))
    assert power_law(steps, np.linspace(0.1, 0.3, 199))[1] == 0.0  # an error that rises is not continued
    assert power_law(np.array([50.0]), np.array([0.2])) == (0.2, 0.0)
    assert np.isfinite(power_law(steps, np.zeros(199))).all()


def test_the_time_of_a_training_is_the_sum_over_its_epochs() -> None:
    plain, rule, half, quarter = forecast(
        costs(compiling=30.0), warm(), s=64, epochs=4, workers=False, engines=("dense", "selective")
    )
    step = 0.025 / 1.25  # a plain step in a training
    assert plain.seconds == pytest.approx(4 * 100 * step)
    assert (rule.way, rule.engine, rule.qs[:3]) == (PAPER, "dense", (64, 64, 32))  # compiling takes too long here
    assert half.seconds == pytest.approx(min(400 * 1.25 * step, 30.0 + 400 * 0.7 * step))
    assert quarter.ratio == quarter.seconds / plain.seconds
    longer = forecast(costs(), warm(), s=64, epochs=40, workers=False, engines=("dense", "selective"))[1]
    spent = sum(100 * step * dict(zip(QS, (1.1, 0.7, 0.5, 0.4, 0.35), strict=True))[q] for q in longer.qs)
    assert (longer.engine, longer.seconds) == ("selective", pytest.approx(3.0 + spent))


def test_loading_is_added_or_hides_the_step_behind_workers() -> None:
    slow = warm(loading=0.5)
    alone = forecast(costs(), slow, s=64, epochs=1, workers=False, engines=("dense",))
    hidden = forecast(costs(), slow, s=64, epochs=1, workers=True, engines=("dense",))
    assert alone[0].seconds == pytest.approx(100 * (0.5 + 0.02))
    assert [way.seconds for way in hidden] == pytest.approx([50.0] * 4)


def test_without_an_accuracy_there_is_no_rule() -> None:
    ways = forecast(costs(), warm(()), s=64, epochs=4, workers=False, engines=("dense",))
    assert [way.way for way in ways] == ["plain SGD", "q = s/2", "q = s/4"]
