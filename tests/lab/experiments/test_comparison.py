import numpy as np
import pytest
from scipy import stats

from ordered_sgd.lab.experiments.comparison import (
    FIRST,
    LADDER,
    Difference,
    best_rates,
    compare,
    paired,
    replay_of,
    runs_of,
)
from ordered_sgd.lab.experiments.spec import ExperimentSpec
from ordered_sgd.lab.experiments.store import Run
from tests.lab.experiments.runs import made_arm, made_run


class Fake:
    """Carries out runs without training: larger rates are better up to a point that depends on the method."""

    def __init__(self) -> None:
        self.asked: list[ExperimentSpec] = []

    def __call__(self, specs: list[ExperimentSpec]) -> list[Run]:
        self.asked += specs
        best = {"sgd": 0.1, "ordered": 0.03, "random": 0.03}
        return [
            made_run(spec, [10 + abs(np.log(spec.lr / best[spec.method]))] * spec.epochs, q=16 if spec.seed else 64)
            for spec in specs
        ]


def test_three_methods_then_the_same_at_their_best_rates() -> None:
    run_all = Fake()
    arms = compare(ExperimentSpec(epochs=2), run_all, trials=2, tune=True, extra=[ExperimentSpec(epochs=2, q=8)])
    assert [arm.name for arm in arms] == [
        *("sgd", "ordered", "random", "ordered q=8"),
        *("sgd at 0.1", "ordered at 0.03", "random at 0.03"),
    ]
    assert [arm.tuned for arm in arms] == [False] * 4 + [True] * 3
    searched = [spec for spec in run_all.asked if spec.validation > 0]
    assert {(spec.method, spec.lr) for spec in searched} == {
        *(("sgd", rate) for rate in (0.01, 0.03, 0.1, 0.3)),  # 0.1 is the best, and was the last at first
        *(("ordered", rate) for rate in FIRST),
    }
    assert len(run_all.asked) == runs_of([ExperimentSpec()], trials=2, tune=True) - 2  # only one rate beyond the first
    assert all(run.spec.validation == 0 for arm in arms for run in arm.runs)
    assert [[run.spec.seed for run in arm.runs] for arm in arms] == [[0, 1]] * 7


@pytest.mark.parametrize(("best", "found"), [(0.0003, 0.0003), (1e-9, 0.0001), (1e9, 10.0), (0.04, 0.03)])
def test_the_search_goes_on_until_the_best_rate_lies_between_two_others(best: float, found: float) -> None:
    asked: list[float] = []

    def run_all(specs: list[ExperimentSpec]) -> list[Run]:
        asked.extend(spec.lr for spec in specs)
        return [made_run(spec, [1 + abs(np.log(spec.lr / best))]) for spec in specs]

    assert best_rates([ExperimentSpec(epochs=1)], run_all, trials=1) == [found]
    at = LADDER.index(found)
    assert set(LADDER[max(0, at - 1) : at + 2]) <= set(asked)
    assert len(set(asked)) == len(asked)


def test_where_every_rate_diverges_the_search_ends() -> None:
    def run_all(specs: list[ExperimentSpec]) -> list[Run]:
        return [made_run(spec, [None]) for spec in specs]

    assert best_rates([ExperimentSpec(epochs=1)], run_all, trials=1) == [FIRST[0]]


def test_the_control_repeats_the_q_and_the_rate_of_the_run_with_its_seed() -> None:
    arms = compare(ExperimentSpec(epochs=3), Fake(), trials=2, tune=False)
    for ordered, random in zip(arms[1].runs, arms[2].runs, strict=True):
        assert random.spec.path == tuple((row.q, row.lr) for row in ordered.rows)
        assert random.spec == ordered.spec.but(method="random", path=random.spec.path)


def test_a_run_that_diverged_is_repeated_as_far_as_it_got() -> None:
    run = made_run(ExperimentSpec(epochs=5, drops=()), [3.0, None])
    assert replay_of(run).epochs == 2


def test_the_paired_interval_is_student_s() -> None:
    one, other = np.array([1.0, 2.5, 2.0, 4.0]), np.array([0.5, 1.0, 2.2, 3.0])
    expected = stats.ttest_rel(one, other).confidence_interval(0.95)
    found = paired(one, other)
    assert (found.mean - found.half, found.mean + found.half) == pytest.approx(tuple(expected))
    assert not found.clear
    assert Difference(-1.0, 0.5, 4).clear


def test_seeds_that_all_give_the_same_tell_nothing() -> None:
    assert not paired([2.78, 2.78, 2.78], [0.0, 0.0, 0.0]).clear
    assert not paired([0.1 + 0.2, 0.3], [0.0, 0.0]).clear  # the same to rounding


def test_pairs_without_a_number_are_left_out_and_one_seed_tells_nothing() -> None:
    assert paired([1.0, np.nan, 3.0], [0.0, 1.0, 1.0]).seeds == 2
    assert paired([1.0], [0.0]) == Difference(1.0, np.inf, 1)
    assert not paired([1.0], [0.0]).clear
    assert np.isnan(paired([np.nan], [0.0]).mean)


def test_an_arm_gives_last_best_and_sums_by_seed() -> None:
    arm = made_arm("ordered", [[5.0, 3.0, 4.0], [6.0, 7.0, None]], seconds=2.0)
    assert arm.last("test_error")[0] == 4.0
    assert np.isnan(arm.last("test_error")[1])
    assert arm.best("test_error").tolist() == [3.0, 6.0]
    assert arm.total("seconds").tolist() == [6.0, 4.0]
    assert arm.diverged == 1
