import json
from dataclasses import replace

import pytest

from ordered_sgd.lab.experiments.comparison import Arm
from ordered_sgd.lab.report.curves import draw_curves, draw_times
from ordered_sgd.lab.report.findings import verdicts
from ordered_sgd.lab.report.summary import (
    COSTS,
    ERRORS,
    MEMORY,
    comparison_table,
    remembered,
    seconds_to,
    shown,
    summary,
)
from tests.lab.experiments.runs import made_arm

SGD = made_arm("sgd", [[9.0, 8.0], [9.5, 8.2], [9.2, 8.1]], seconds=3.0)
BETTER = made_arm("ordered", [[8.0, 7.0], [8.0, 7.1], [8.3, 7.2]], seconds=2.0, q=32)
RANDOM = made_arm("random", [[9.0, 8.1], [9.0, 8.0], [9.0, 8.3]])
TUNED = [
    made_arm("sgd at 0.1", [[5.0, 4.0], [5.0, 4.4], [5.0, 4.1]], tuned=True),
    made_arm("ordered at 0.1", [[5.0, 4.2], [5.0, 4.1], [5.0, 4.3]], tuned=True, q=32),
    made_arm("random at 0.1", [[5.0, 5.2], [5.0, 5.1], [5.0, 5.31]], tuned=True),
]


def test_the_sentences_say_better_only_when_the_interval_leaves_out_zero() -> None:
    first, second, third, fourth = verdicts([SGD, BETTER, RANDOM, *TUNED])
    assert first == (
        "ordered is better than sgd at the same learning rate: -1.00 ± 0.25 points of test error over 3 seeds."
    )
    assert second.startswith("ordered is better than random with the same q")
    assert third.startswith("ordered at 0.1 is not clearly different from sgd at 0.1 each at its best rate: +0.03 ±")
    assert fourth.startswith("ordered at 0.1 is better than random at 0.1 with the same q")


def test_extra_arms_are_set_against_what_they_differ_from() -> None:
    extra = [
        replace(arm, name=name) for name, arm in (("ordered q=16", BETTER), ("adam", RANDOM), ("ordered adam", BETTER))
    ]
    _, _, fixed, adam = verdicts([SGD, BETTER, RANDOM, *extra])
    assert fixed.startswith("ordered q=16 is better than sgd at the same learning rate")
    assert adam.startswith("ordered adam is better than adam at the same learning rate: -1.03")


def test_worse_and_one_seed_are_said_as_well() -> None:
    assert verdicts([BETTER, SGD, RANDOM])[0].startswith("sgd is worse than ordered")
    arms = [made_arm(name, [[9.0, error]]) for name, error in (("sgd", 8.0), ("ordered", 7.0), ("random", 9.0))]
    assert verdicts(arms)[0].endswith("-1.00 points of test error in one seed, which tells nothing.")


def test_a_rule_that_never_moved_q_is_said() -> None:
    idle = made_arm("ordered", [[9.0, 8.0], [9.5, 8.2], [9.2, 8.1]])
    *_, last = verdicts([SGD, idle, RANDOM])
    assert last.startswith("ordered kept every batch whole: training never became accurate enough")
    assert not any("kept every batch" in sentence for sentence in verdicts([SGD, BETTER, RANDOM]))


def test_a_rate_at_the_end_of_the_grid_is_said_to_be_there() -> None:
    def at(rate: float, arm: Arm) -> Arm:
        return replace(arm, runs=tuple(run._replace(spec=run.spec.but(lr=rate)) for run in arm.runs))

    sgd, ordered, random = TUNED
    *_, last = verdicts([SGD, BETTER, RANDOM, at(1.0, sgd), at(0.1, ordered), random])
    assert last == "sgd at 0.1: no rate beyond 1 was tried, and its best may lie there."
    assert len(verdicts([SGD, BETTER, RANDOM, at(0.3, sgd), at(0.1, ordered), random])) == 4


def test_the_numbers_of_an_arm() -> None:
    sgd, ordered, _ = summary([SGD, BETTER, RANDOM])
    assert sgd["difference"] is None
    assert sgd["error"] == pytest.approx(8.1)
    assert ordered["difference"] == pytest.approx(-1.0)
    assert ordered["improvement"] == pytest.approx(100 / 8.1)
    assert ordered["best_error"] == pytest.approx(7.1)
    assert ordered["seconds_per_epoch"] == 2.0
    assert ordered["backpropagated"] == 0.5
    json.dumps([sgd, ordered], allow_nan=False)


def test_what_a_memory_scored_and_found_stands_in_the_table_where_there_is_one() -> None:
    runs = [
        run._replace(rows=[replace(row, scored=160, recall=0.9 + row.epoch / 100) for row in run.rows])
        for run in BETTER.runs
    ]
    memory = replace(BETTER, name="ordered memory", runs=tuple(runs))
    rows = summary([SGD, BETTER, memory])
    assert [row["scored"] for row in rows] == [None, None, 0.25]
    assert rows[2]["recall"] == pytest.approx(0.92)  # of the last epoch
    lines = comparison_table([SGD, BETTER, memory])
    assert [(line["scored"], line["recall"]) for line in lines] == [("–", "–"), ("–", "–"), ("0.25", "0.92")]
    assert "recall" not in comparison_table([SGD, BETTER])[0]


def test_terminal_and_page_show_the_same_cells_under_short_and_long_headings() -> None:
    rows = summary([SGD, BETTER, RANDOM])
    short, long = shown(rows, (*ERRORS, *COSTS)), shown(rows, (*ERRORS, *COSTS), long=True)
    assert [list(line.values()) for line in short] == [list(line.values()) for line in long]
    assert short[0]["against sgd"] == short[0]["improvement"] == long[0]["against the first"] == ""
    assert (long[1]["last epoch"], long[1]["improvement"]) == ("7.10 (0.08)", "12.3 %")
    assert (short[1]["s to sgd"], short[1]["backprop."]) == ("2.67 (3/3)", "50 %")
    assert not remembered(rows)


def test_missing_numbers_and_negative_zeros_are_not_shown_as_numbers() -> None:
    row = {**summary([SGD, BETTER])[1], "improvement": -0.04, "recall": None, "scored": 0.256}
    assert shown([row], ERRORS[-1:])[0]["improvement"] == "0.0 %"
    assert shown([row], MEMORY[1:]) == [{"scored": "26 %", "recall": "–"}]


def test_time_to_the_error_of_plain_sgd_counts_epochs_until_it_is_reached() -> None:
    slow = made_arm("ordered", [[9.0, 8.0, 7.0], [9.0, 9.0, 9.0], [8.0, 8.0, 8.0]], seconds=2.0)
    found = seconds_to(slow, SGD)
    assert found[0] == 4.0
    assert found[1] != found[1]  # never
    assert found[2] == 2.0
    assert summary([SGD, slow])[1]["reached"] == 2


def test_an_arm_that_diverged_in_some_seeds_is_not_judged_by_the_others() -> None:
    some = made_arm("ordered", [[8.0, 7.0], [None], [None]], q=32)
    assert verdicts([SGD, some, RANDOM])[0] == (
        "ordered is not to be compared with sgd at the same learning rate: ordered diverged in 2 of 3 seeds."
    )
    row = summary([SGD, some])[1]
    assert (row["difference"], row["improvement"], row["diverged"]) == (None, None, 2)
    assert comparison_table([SGD, some])[1]["last epoch"] == "7.00 (0.00), 2 of 3 diverged"


def test_where_everything_diverged_there_is_no_number_and_no_error() -> None:
    gone, plain = made_arm("ordered", [[None], [None]]), made_arm("sgd", [[None], [None]])
    row = summary([plain, gone])[1]
    assert row["error"] is None
    assert row["diverged"] == 2
    assert verdicts([plain, gone, gone])[0].endswith("ordered diverged in 2 of 2 seeds, sgd diverged in 2 of 2 seeds.")
    for draw in (draw_curves, draw_times):
        assert draw([plain, gone]).axes
