import json
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ordered_sgd.lab.experiments.comparison import LADDER, Arm
from ordered_sgd.lab.experiments.spec import ExperimentSpec
from ordered_sgd.lab.report.curves import draw_curves, draw_times
from ordered_sgd.lab.report.findings import beside_printed, verdicts
from ordered_sgd.lab.report.sentences import compared
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


def at(rate: float, arm: Arm) -> Arm:
    return replace(arm, runs=tuple(run._replace(spec=run.spec.but(lr=rate)) for run in arm.runs))


def test_the_sentences_name_the_methods_and_claim_a_difference_only_where_the_interval_leaves_out_zero() -> None:
    assert verdicts([SGD, BETTER, RANDOM, at(0.1, TUNED[0]), at(0.03, TUNED[1]), TUNED[2]]) == [
        "At the paper's learning rate, 0.01, ordered SGD (7.10 %) has a lower test error than SGD (8.10 %): "
        "-1.00 ± 0.25 points over 3 seeds.",
        "Ordered SGD (7.10 %) has a lower test error than a random choice of as many samples (8.13 %): -1.03 ± 0.29 "
        "points over 3 seeds.",
        "At their best learning rates (0.03 and 0.1), ordered SGD (4.20 %) and SGD (4.17 %) do not differ clearly: "
        "+0.03 ± 0.72 points over 3 seeds.",
        "Ordered SGD (4.20 %) has a lower test error than a random choice of as many samples (5.20 %): -1.00 ± 0.01 "
        "points over 3 seeds.",
    ]
    assert "rate, the same for both (0.01)" in verdicts([SGD, BETTER, RANDOM, *TUNED])[2]
    assert verdicts([at(0.2, arm) for arm in (SGD, BETTER, RANDOM)])[0].startswith("At a learning rate of 0.2, ordered")


def test_extra_arms_are_set_against_what_they_differ_from() -> None:
    extra = [
        replace(arm, name=name) for name, arm in (("ordered q=16", BETTER), ("adam", RANDOM), ("ordered adam", BETTER))
    ]
    _, _, fixed, adam = verdicts([SGD, BETTER, RANDOM, *extra])
    assert fixed.startswith("Ordered SGD with q = 16 (7.10 %) has a lower test error than SGD (8.10 %): -1.00")
    assert adam.startswith("Ordered Adam (7.10 %) has a lower test error than Adam (8.13 %): -1.03")


def test_worse_and_one_seed_are_said_as_well() -> None:
    assert (
        " ordered SGD (8.10 %) has a higher test error than SGD (7.10 %)"
        in verdicts([replace(BETTER, name="sgd"), made_arm("ordered", [[8.0], [8.2], [8.1]], q=32), RANDOM])[0]
    )
    arms = [
        made_arm("sgd", [[9.0, 8.0]]),
        made_arm("ordered", [[9.0, 7.0]], q=32),
        made_arm("random", [[9.0, 9.0]], q=32),
    ]
    assert verdicts(arms)[0].endswith(
        "ordered SGD (7.00 %) and SGD (8.00 %) differ by -1.00 points in one seed, which tells nothing."
    )


def test_a_difference_that_is_the_same_in_all_seeds_gets_no_interval() -> None:
    plain, other = made_arm("sgd", [[8.0], [8.0], [8.0]]), made_arm("ordered", [[8.04], [8.04], [8.04]], q=32)
    first, second = verdicts([plain, other, other])
    assert first.endswith(
        "ordered SGD (8.04 %) and SGD (8.00 %) differ by +0.04 points in all 3 seeds; without a spread over seeds "
        "there is no interval."
    )
    assert (
        second == "Ordered SGD and a random choice of as many samples have the same test error in all 3 seeds: 8.04 %."
    )
    row = summary([plain, other])[1]
    assert (row["difference"], row["half_width"]) == (pytest.approx(0.04), None)


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), min_size=1, max_size=6),
)
def test_no_sentence_contradicts_its_numbers(counts: list[tuple[int, int]]) -> None:
    arms = [
        made_arm(name, [[count / 10] for count in column])
        for name, column in zip(("sgd", "ordered"), zip(*counts, strict=True), strict=True)
    ]
    text = compared(arms[1], arms[0])
    shown = re.search(r": ([+-][\d.]+) ± ([\d.]+) points", text)
    if shown is None:
        assert "do not differ clearly" not in text
        return
    mean, half = float(shown[1]), float(shown[2])
    assert ("do not differ clearly" in text) == (abs(mean) <= half)
    assert ("lower" in text) <= (mean < 0)
    assert ("higher" in text) <= (mean > 0)


def test_where_q_never_moved_that_is_the_first_and_only_verdict() -> None:
    idle = made_arm("ordered", [[9.0, 8.0], [9.5, 8.2], [9.2, 8.1]])
    low = replace(
        idle, runs=tuple(r._replace(rows=[replace(row, train_accuracy=0.4) for row in r.rows]) for r in idle.runs)
    )
    assert verdicts([SGD, low, RANDOM]) == [
        "q never moved: training accuracy stayed below 80 %, so ordered SGD was plain SGD. Try --q 0.25 for a fixed q, "
        "or more --epochs."
    ]
    assert "passed 80 % in the last epoch only" in verdicts([SGD, idle, RANDOM])[0]
    fixed = replace(BETTER, name="ordered q=32")
    assert len(verdicts([SGD, low, RANDOM, fixed])) == 2
    first, second, *_ = verdicts([SGD, low, RANDOM, *TUNED])
    assert first == (
        "At the paper's learning rate, 0.01, q never moved: training accuracy stayed below 80 %, so ordered SGD was "
        "plain SGD."
    )
    assert second.startswith("At their best learning rate")


def test_a_best_rate_at_the_end_of_what_may_be_tried_is_said_to_be_there() -> None:
    sgd, ordered, random = TUNED
    *_, last = verdicts([SGD, BETTER, RANDOM, at(LADDER[-1], sgd), at(0.1, ordered), random])
    assert last == "No learning rate beyond 10 was tried, and the best of SGD may lie there."
    assert len(verdicts([SGD, BETTER, RANDOM, at(1.0, sgd), at(0.1, ordered), random])) == 4


def test_the_printed_numbers_are_a_remark_with_the_paper_s_epochs() -> None:
    spec = ExperimentSpec(data="semeion", model="lenet", epochs=25)
    assert beside_printed(spec) == (
        "The paper printed 8.06 % for SGD and 6.09 % for ordered SGD, after 50 epochs over 10 seeds; here it is 25 "
        "epochs."
    )
    assert beside_printed(spec.but(epochs=50)).endswith("after 50 epochs over 10 seeds.")
    for other in ({"lr": 0.1}, {"s": 32}, {"model": "logistic", "loss": "hinge-sum"}, {"data": "digits"}):
        assert beside_printed(spec.but(**other)) is None
    own = [
        replace(
            arm,
            runs=tuple(
                run._replace(spec=spec.but(method=run.spec.method, path=run.spec.path, seed=run.spec.seed, epochs=2))
                for run in arm.runs
            ),
        )
        for arm in (SGD, BETTER, RANDOM)
    ]
    assert verdicts(own)[2].endswith("here it is 2 epochs.")


def test_tuned_methods_are_compared_with_tuned_sgd_in_the_table() -> None:
    rows = summary([SGD, BETTER, RANDOM, *TUNED])
    assert [row["difference"] is None for row in rows] == [True, False, False, True, False, False]
    assert rows[4]["difference"] == pytest.approx(4.2 - 12.5 / 3)


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
    assert short[0]["against sgd"] == short[0]["improvement"] == long[0]["against SGD"] == ""
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
        "At the paper's learning rate, 0.01, ordered SGD cannot be compared with SGD: ordered SGD diverged in 2 of 3 "
        "seeds."
    )
    row = summary([SGD, some])[1]
    assert (row["difference"], row["improvement"], row["diverged"]) == (None, None, 2)
    assert comparison_table([SGD, some])[1]["last epoch"] == "7.00 (0.00), 2 of 3 diverged"


def test_where_everything_diverged_there_is_no_number_and_no_error() -> None:
    gone, plain = made_arm("ordered", [[None], [None]]), made_arm("sgd", [[None], [None]])
    row = summary([plain, gone])[1]
    assert row["error"] is None
    assert row["diverged"] == 2
    assert verdicts([plain, gone, gone])[0].endswith(
        "ordered SGD diverged in 2 of 2 seeds and SGD diverged in 2 of 2 seeds."
    )
    for draw in (draw_curves, draw_times):
        assert draw([plain, gone]).axes
