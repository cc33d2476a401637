"""Sentences, tables and figures of exhibits, from runs that were made up."""

from collections.abc import Sequence

import pytest

from ordered_sgd.lab.experiments.recipes.exhibit import Reproduced
from ordered_sgd.lab.experiments.requests import Request, reproduce
from ordered_sgd.lab.experiments.spec import ExperimentSpec
from ordered_sgd.lab.experiments.store import Run
from ordered_sgd.lab.report.curves import draw_along, draw_panels, draw_times
from ordered_sgd.lab.report.overview import overview
from ordered_sgd.lab.report.reruns import q_by_epoch, reruns
from ordered_sgd.lab.report.sections import filled, markdown, sections
from ordered_sgd.lab.report.sentences import spoken
from ordered_sgd.lab.report.tried import as_table, in_sentences, tried
from ordered_sgd.lab.report.verdicts import found, table
from tests.lab.experiments.runs import made_run

SEED = {"sgd": 0.1, "ordered": 0.1001}  # what a seed adds: differences that are all the same would tell nothing
ERRORS = {"sgd": 10.0, "ordered": 9.0, "random": 11.0, "infobatch": 10.0, "last-losses": 12.0}


def made(specs: Sequence[ExperimentSpec]) -> list[Run]:
    """Runs of the full length; the error depends on the method, a little on the seed, and on the rate."""
    return [
        made_run(
            spec,
            [20.0] * (spec.epochs - 1)
            + [ERRORS[spec.method] + SEED.get(spec.method, 0.0999) * spec.seed + 10 * abs(spec.lr - 0.03)],
            **({"seconds": 4.0} if spec.method == "sgd" else {"seconds": 2.0, "q": 32}),
        )
        for spec in specs
    ]


def shown(request: Request) -> tuple[list[str], list[dict[str, str]], list[Reproduced]]:
    results = reproduce(request.shown().rows, made, trials=request.trials)
    return found(results, request.shown()), table(results, request.shown()), results


def test_a_row_of_the_paper_has_its_numbers_beside_ours() -> None:
    sentences, lines, _ = shown(Request("table1", ("semeion-logistic",), trials=3))
    assert sentences == [
        "semeion-logistic: ordered SGD (9.30 %) has a lower test error than SGD (10.30 %): -1.00 ± 0.00 points over 3 "
        "seeds. The paper's difference has the same sign; both means lie within two of its standard deviations."
    ]
    assert lines[0] == {
        "row": "semeion-logistic",
        "method": "sgd",
        "paper": "10.76 (0.35)",
        "last epoch": "10.30 (0.08)",
        "best epoch": "10.30 (0.08)",
    }
    assert [line["method"] for line in lines] == ["sgd", "ordered", "random"]


def test_what_is_smaller_says_so_in_every_cell() -> None:
    sentences, lines, _ = shown(Request("table1", ("semeion-logistic",), trials=2, epochs=3))
    assert sentences[0].startswith("semeion-logistic: ordered SGD")
    assert sentences[0].endswith(" Not judged against the paper: 3 of 50 epochs.")
    assert "paper's difference" not in sentences[0]
    assert all(line["last epoch"].endswith("[3 of 50 epochs]") for line in lines)


def test_a_run_that_was_cut_is_judged_nowhere_in_a_report() -> None:
    row, how = ("semeion-logistic",), {"trials": 2, "protocol": "authors-code"}
    asked = [Request("table1", row, epochs=epochs, **how) for epochs in (5, None)]  # type: ignore[arg-type]
    cut, whole = (markdown(sections([{"command": "reproduce", **one.to_dict()}], made), "Results") for one in asked)
    assert "Not judged against the paper: 5 of 50 epochs" in cut
    for words in ("The paper's difference", "comes out", "independent reruns"):
        assert words not in cut
    assert "The paper's difference has the same sign" in whole
    assert "independent reruns" in whole


def test_figure_1_counts_the_seeds_with_more_points_right() -> None:
    sentences, _, results = shown(Request("figure1", ("figure1a",), trials=2, epochs=2))
    assert sentences[0].startswith("figure1a: ordered SGD and SGD have the same training accuracy in")
    assert sentences[0].endswith("More points are classified correctly in 0 of 2 seeds. [2 of 400 epochs]")
    assert len(draw_panels(results, "train_accuracy").axes) == 3


def test_a_grid_stands_side_by_side_and_its_best_rates_are_compared() -> None:
    sentences, lines, _ = shown(Request("ablation", ("semeion-logistic-hidden-off-*",), trials=2, epochs=2))
    assert sentences == [
        "semeion-logistic-hidden-off [2 of 50 epochs]: at their best learning rates, picked on the test set, ordered "
        "SGD at 0.03 (9.05 %) has a lower test error than SGD at 0.03 (10.05 %): -1.00 ± 0.00 points over 2 seeds."
    ]
    assert len(lines) == 6
    assert lines[2] == {
        "row": "semeion-logistic-hidden-off-lr-0.03 [2 of 50 epochs]",
        "sgd": "10.05 (0.05)",
        "ordered": "9.05 (0.05)",
        "random": "11.05 (0.05)",
        "ordered - sgd": "-1.00 ± 0.00",
        "ordered - random": "-2.00 ± 0.00",
    }


def test_engines_are_set_against_sgd_in_error_and_time() -> None:
    sentences, lines, results = shown(Request("whole-training", ("mnist-lenet",), trials=2))
    assert sentences[1] == (
        "mnist-lenet [12 of 50 epochs]: ordered SGD by rows (9.25 %) has a lower test error than SGD (10.25 %): -1.00 "
        "± 0.00 points over 2 seeds; it takes 0.50 of SGD's training time, and reaches SGD's last error after 0.50 of "
        "it in 2 of 2 seeds."
    )
    assert (
        "a random choice of as many samples (11.25 %) has a higher test error than SGD (10.25 %): +1.00" in sentences[3]
    )
    assert sentences[3].endswith("reaches SGD's last error in 0 of 2 seeds.")
    assert [line["method"] for line in lines] == ["sgd", "ordered dense", "ordered rows", "ordered twopass", "random"]
    assert len(draw_times(results[0].arms).axes) == 2


def test_ordered_arms_are_set_against_the_best_rate_of_sgd_where_there_are_several() -> None:
    sentences, lines, _ = shown(Request("memory", ("mnist-lenet",), trials=2))
    best = [sentence for sentence in sentences if "than SGD at 0.03" in sentence]
    names = ["ordered rows", "ordered memory", "ordered memory recall=0.8", "ordered memory c=16"]
    assert best == [
        f"mnist-lenet [12 of 50 epochs]: {spoken(name)} (9.25 %) has a lower test error than SGD at 0.03 (10.05 %): "
        "-0.80 ± 0.00 points over 2 seeds; it takes 0.50 of the training time of SGD at 0.03, and reaches the last "
        "error of SGD at 0.03 after 0.50 of it in 2 of 2 seeds."
        for name in names
    ]
    others = ["infobatch", "sgd at 0.03", "sgd at 0.1", "random", "last-losses"]
    assert [line["method"] for line in lines] == ["sgd", *names, *others]


def test_times_of_different_processors_are_not_compared() -> None:
    request = Request("whole-training", ("mnist-lenet",), trials=2)

    def elsewhere(specs: Sequence[ExperimentSpec]) -> list[Run]:
        runs = made(specs)
        return [run._replace(versions={"processor": "B"}) if run.spec.engine == "rows" else run for run in runs]

    sentences = found(reproduce(request.shown().rows, elsewhere, trials=2), request.shown())
    assert sentences[0].endswith(
        "it takes 0.50 of SGD's training time, and reaches SGD's last error after 0.50 of it in 2 of 2 seeds."
    )
    assert sentences[1].endswith("it reaches SGD's last error in 2 of 2 seeds, but ran on another processor: no times.")


def test_a_rule_that_never_moved_q_is_said_beside_the_row() -> None:
    request = Request("table1", ("semeion-logistic",), trials=2, epochs=1)

    def idle(specs: Sequence[ExperimentSpec]) -> list[Run]:
        return [made_run(spec, [10.0]) for spec in specs]

    (sentence,) = found(reproduce(request.shown().rows, idle, trials=2), request.shown())
    assert sentence == (
        "semeion-logistic: q never moved, so ordered SGD was SGD. Not judged against the paper: 1 of 50 epochs."
    )


def test_reruns_stand_beside_the_scripts_protocol_alone() -> None:
    for protocol, methods in (("authors-code", ["sgd", "ordered"]), ("paper", [])):
        request = Request("table1", ("semeion-logistic",), trials=2, protocol=protocol)
        lines = reruns([(request, one) for one in shown(request)[2]])
        assert [line["method"] for line in lines] == methods
        assert all(line["reruns"] in ("10.42", "9.60") for line in lines)


@pytest.mark.parametrize(
    ("path", "words"),
    [([64], "64 (1-)"), ([64, 8, 8, 4], "64 (1), 8 (2-3), 4 (4-)"), ([64, 64, 32], "64 (1-2), 32 (3-)")],
)
def test_q_by_epoch_in_words(path: Sequence[int], words: str) -> None:
    rows = [made_run(ExperimentSpec(epochs=1), [1.0], q=q).rows[0] for q in path]
    rows = [type(row)(**{**vars(row), "epoch": epoch}) for epoch, row in enumerate(rows, 1)]
    assert q_by_epoch(Run(ExperimentSpec(), {}, rows, finished=True)) == words


def test_a_report_has_a_section_for_each_request_figure_2_and_the_reruns() -> None:
    asked = [Request("table1", ("semeion-logistic",), trials=2, protocol="authors-code"), Request("figure1", trials=2)]
    parts = sections([{"command": "reproduce", **one.to_dict()} for one in asked], made)
    assert [part.title.partition(":")[0] for part in parts] == [
        "In short",
        "Table 1",
        "Figure 1",
        "Figure 2",
        "Beside independent reruns of the authors' scripts",
    ]
    text = markdown(parts, "Results")
    assert "| semeion-logistic | ordered | 9.31 (0.42) |" in text
    assert "None" not in text


def test_the_overview_counts_problems_by_what_was_found() -> None:
    asked = [
        Request("table1", ("semeion-logistic", "semeion-svm"), trials=3),
        Request("ablation", ("semeion-logistic-hidden-on-*",), trials=3),
        Request("whole-training", ("mnist-lenet",), trials=3),
        Request("figure1", ("figure1a",), trials=3, epochs=2),
        Request("label-noise", trials=3),
    ]
    lines = overview([(one, shown(one)[2]) for one in asked])
    counts = {(line["exhibit, protocol"], line["ordered against"]): list(line.values())[2:] for line in lines}
    assert counts == {
        ("Table 1, paper", "plain"): ["2", "0", "0"],
        ("Table 1, paper", "random, at the same rates"): ["2", "0", "0"],
        ("Ablation, paper", "plain, each at its best rate"): ["1", "0", "0"],
        ("Ablation, paper", "random, at the same rates"): ["6", "0", "0"],
        ("Whole training, paper", "plain, by dense"): ["1", "0", "0"],
        ("Whole training, paper", "plain, by rows"): ["1", "0", "0"],
        ("Whole training, paper", "plain, by twopass"): ["1", "0", "0"],
        ("Whole training, paper", "random, at the same rates"): ["1", "0", "0"],
        ("Figure 1, paper, smaller", "plain"): ["0", "1", "0"],
        ("Figure 1, paper, smaller", "random, at the same rates"): ["0", "1", "0"],
    }


def test_engines_are_held_against_plain_sgd_and_against_the_dense_gradient() -> None:
    sentences, lines, _ = shown(Request("batchnorm", (), trials=2))
    of = [sentence.partition(": ")[2] for sentence in sentences]
    assert [(text.split(" (")[0].split(" and ")[0], " ordered SGD by dense" in text) for text in of] == [
        ("ordered SGD by dense", False),
        ("ordered SGD by rows", False),
        ("ordered SGD by twopass", False),
        ("ordered SGD by rows", True),
        ("ordered SGD by twopass", True),
    ]
    assert [line["method"] for line in lines] == ["sgd", "ordered dense", "ordered rows", "ordered twopass"]


def test_rows_along_a_field_are_a_sentence_for_each_arm_a_line_each_and_one_figure() -> None:
    request = Request("label-noise", trials=3)
    sentences, lines, results = shown(request)
    assert sentences[0] == (
        "ordered - sgd, in points of error by flipped: -1.00 ± 0.00 (clear) at 0, -1.00 ± 0.00 (clear) at 0.1, "
        "-1.00 ± 0.00 (clear) at 0.2, -1.00 ± 0.00 (clear) at 0.4."
    )
    assert list(lines[0]) == ["method", "flipped 0", "flipped 0.1", "flipped 0.2", "flipped 0.4"]
    assert [line["method"] for line in lines] == [arm.name for arm in results[0].arms]
    assert lines[1]["flipped 0.4"] == "9.30 (0.08)"
    (axis,) = draw_along(results, "flipped", "test_error").axes
    assert len(axis.lines) == len(results[0].arms)
    assert list(axis.lines[0].get_xdata()) == [0.0, 0.1, 0.2, 0.4]


def test_a_page_asks_for_a_section_by_the_name_of_its_exhibit() -> None:
    request = {"command": "reproduce", **Request("label-noise", trials=2).to_dict()}
    parts = sections([request], made)
    page, figures = filled("# Page\n\n<!-- label-noise -->\nold\n<!-- /label-noise -->\n\nafter\n", parts)
    assert page.startswith("# Page\n\n<!-- label-noise -->\n\n- ordered - sgd")
    assert page.endswith(
        "![Label noise: Wrong labels; protocol paper](label-noise.svg)\n\n<!-- /label-noise -->\n\nafter\n"
    )
    assert list(figures) == ["label-noise"]
    assert filled("nothing asked for", parts) == ("nothing asked for", {})


def test_a_row_that_does_not_come_out_is_shown_with_all_that_was_tried() -> None:
    def as_printed_without_the_hidden_rule(specs: Sequence[ExperimentSpec]) -> list[Run]:
        errors = {"sgd": 8.0, "ordered": 6.0, "random": 8.0}
        return [run if run.spec.hidden_rule else made_run(run.spec, [errors[run.spec.method]]) for run in made(specs)]

    scripts = "authors-code"
    requests = [
        Request("table1", ("semeion-logistic", "semeion-lenet"), trials=2, protocol=scripts),
        Request("ablation", ("semeion-lenet-hidden-*",), trials=2, protocol=scripts),
        Request("table1", ("semeion-lenet",), trials=2, epochs=3),  # smaller: not the printed row
    ]
    results = [reproduce(one.shown().rows, as_printed_without_the_hidden_rule, trials=2) for one in requests]
    rows = tried(list(zip(requests, results, strict=True)))
    off = f"{scripts}, hidden off, lr 0.01"  # with the rule the cell is the row of the table once more
    assert {name: list(settings) for name, settings in rows.items()} == {"semeion-lenet": [scripts, off]}
    assert in_sentences(rows) == [f"semeion-lenet: comes out in {off}."]
    cells = [(line["setting"], line["plain"], line["ordered"], line["direction"]) for line in as_table(rows)]
    assert cells == [
        ("as printed", "8.06 (0.61)", "6.09 (0.55)", ""),
        (scripts, "10.25 (0.05) ✗", "9.25 (0.05) ✗", "same"),
        (off, "8.00 (0.00)", "6.00 (0.00)", "same"),
    ]
    assert tried([(requests[0], results[0][:1])]) == {}


def test_a_row_in_which_all_runs_diverge_is_shown_as_that() -> None:
    request = Request("figure5", ("*lr-0.5",), trials=2)

    def diverged(specs: Sequence[ExperimentSpec]) -> list[Run]:
        return [made_run(spec, [None]) for spec in specs]

    results = reproduce(request.shown().rows, diverged, trials=2)
    sentences, lines = found(results, request.shown()), table(results, request.shown())
    assert (
        "ordered SGD cannot be compared with SGD: ordered SGD diverged in 2 of 2 seeds and SGD diverged" in sentences[0]
    )
    assert lines[0]["last epoch"] == "diverged"
    counts, part, *_ = sections([{"command": "reproduce", **request.to_dict()}], diverged)
    assert {line["not to be compared"] for line in counts.rows} == {"1"}
    assert part.figures  # though there is nothing to draw in them


def test_the_end_of_a_grid_is_said_where_a_best_rate_lies_there() -> None:
    request = Request("ablation", ("semeion-logistic-hidden-off-*",), trials=2)

    def lower_is_better(specs: Sequence[ExperimentSpec]) -> list[Run]:
        return [made_run(spec, [10 * spec.lr], q=32) for spec in specs]

    (sentence,) = found(reproduce(request.shown().rows, lower_is_better, trials=2), request.shown())
    assert sentence.endswith("No learning rate beyond that of ordered SGD at 0.003 and SGD at 0.003 was tried.")
