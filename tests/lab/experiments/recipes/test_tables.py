import pytest

from ordered_sgd.lab.experiments.comparison import HELD_OUT
from ordered_sgd.lab.experiments.plan import learning_rate, rule_for
from ordered_sgd.lab.experiments.recipes.protocols import AUTHORS_CODE, PAPER, Protocol, preset
from ordered_sgd.lab.experiments.recipes.published import TABLE1
from ordered_sgd.lab.experiments.recipes.tables import PROBLEMS, RATES, table1, table2, table3, table4, table5
from ordered_sgd.rules import Observed


def test_table_1_has_18_rows_and_that_of_appendix_c() -> None:
    rows = table1(PAPER).rows
    assert [row.id for row in rows] == [*TABLE1, "semeion-logistic-aug"] == list(PROBLEMS)
    assert all(set(row.printed) == {"sgd", "ordered"} for row in rows)
    assert rows[-1].printed["ordered"] == (16.54, 1.24)


def test_an_id_says_what_is_trained() -> None:
    for row in table1(AUTHORS_CODE).rows:
        spec = row.arms["ordered"]
        assert row.id == f"{spec.data}-{spec.model}" + ("-aug" if spec.augment == "standard" else "")


def test_tables_of_times_have_the_paper_s_one_line_too_and_run_alone() -> None:
    for table, rows in ((table2(PAPER), 5), (table4(PAPER), 18)):
        assert table.serial
        assert (table.number, len(table.rows)) == ("seconds", rows)
        for row in table.rows:
            saving = ("rows", "full-batch") if "resnet" in row.id else ("auto", None)
            assert {name: (spec.engine, spec.batchnorm) for name, spec in row.arms.items()} == {
                "sgd": saving,
                "ordered": saving,
                "ordered dense": ("dense", None),
            }


def test_the_rate_of_table_3_is_picked_on_the_test_error_of_plain_sgd() -> None:
    row = table3(PAPER).rows[0]
    tried = row.first_stage()
    assert tuple(tried) == RATES
    assert {(spec.method, spec.validation) for spec in tried.values()} == {("sgd", 0.0)}
    second = row.at_rate(0.1)
    assert second.arms["sgd"] == tried[0.1]  # not run again
    assert second.arms["ordered"].lr == 0.1
    assert second.first_stage() == {}
    assert second.printed["sgd"].mean == 6.94


def test_beside_it_the_rate_is_picked_on_a_held_out_share_and_nothing_is_printed() -> None:
    row = table3(PAPER).rows[1]
    assert {spec.validation for spec in row.first_stage().values()} == {HELD_OUT}
    assert {spec.validation for spec in row.at_rate(0.1).arms.values()} == {0.0}
    assert not row.printed


def test_random_erasing_halves_the_rate_in_the_scripts_alone() -> None:
    paper, scripts = (table3(protocol).rows[2].arms["ordered"] for protocol in (PAPER, AUTHORS_CODE))
    assert scripts == paper.but(hidden_rule=True, hidden_factor=0.5)
    rates = [learning_rate(scripts, epoch, decayed=epoch > 250) for epoch in (100, 101, 201, 251)]
    assert rates == [0.1, 0.01, 0.001, 0.0005]
    assert rule_for(scripts).next_q(128, 128, Observed(1, accuracy=0.995)) == 8


def test_mixup_takes_accuracy_from_clean_images_and_is_the_same_in_both_protocols() -> None:
    row = table3(PAPER).rows[3]
    assert row == table3(preset("authors-code", accuracy="epoch")).rows[3]
    spec = row.arms["ordered"]
    assert (spec.accuracy, spec.nesterov, spec.hidden_rule) == ("clean", True, False)
    assert [learning_rate(spec, epoch, decayed=False) for epoch in (500, 501, 2000)] == [0.1, 0.01, 0.0001]


@pytest.mark.parametrize("protocol", [PAPER, AUTHORS_CODE], ids=lambda protocol: protocol.name)
def test_adam_has_torch_s_defaults_and_sgd_s_plan(protocol: Protocol) -> None:
    sgd = {row.id: row.arms["ordered"] for row in table1(protocol).rows}
    for row in table5(protocol).rows:
        assert list(row.arms) == ["adam", "ordered adam"]
        spec = row.arms["ordered adam"]
        assert spec == sgd[row.id].but(optimizer="adam", lr=0.001, weight_decay=0.0, engine=spec.engine)
        assert spec.engine == ("dense" if "resnet" in row.id else "auto")


def test_where_batchnorm_couples_samples_the_paper_s_own_gradient_is_taken() -> None:
    rows = (*table1(PAPER).rows, *table3(PAPER).rows, *table5(PAPER).rows)
    coupled = [spec for row in rows for spec in row.arms.values() if spec.model in ("preact-resnet18", "wrn-28-10")]
    assert {spec.engine for spec in coupled} == {"dense"}
