import pytest

from ordered_sgd.errors import ArgumentError
from ordered_sgd.lab.experiments.recipes.protocols import AUTHORS_CODE, PAPER, preset
from ordered_sgd.lab.experiments.recipes.tables import table1


def test_rows_are_picked_by_id_or_pattern_in_the_table_s_order() -> None:
    table = table1(PAPER)
    assert [row.id for row in table.pick(["mnist-svm", "semeion-logistic"])] == ["semeion-logistic", "mnist-svm"]
    assert [row.id for row in table.pick(["svhn-*"])] == ["svhn-preact-resnet18", "svhn-preact-resnet18-aug"]


def test_a_row_that_is_not_there_is_refused_with_the_nearest_ones() -> None:
    with pytest.raises(ArgumentError, match=r"table1: rows must be ids or .* Near names: semeion-logistic, semeion-"):
        table1(PAPER).pick(["semeion-logistics"])


def test_fields_of_all_arms_change_together() -> None:
    row = table1(PAPER).rows[0].but(threads=2)
    assert {spec.threads for spec in row.arms.values()} == {2}


def test_plain_sgd_does_not_depend_on_how_q_is_counted() -> None:
    counted, divided = (
        table1(protocol).rows[0].arms for protocol in (AUTHORS_CODE, preset("authors-code", counts=False))
    )
    assert counted["sgd"].run_id == divided["sgd"].run_id
    assert counted["ordered"].run_id != divided["ordered"].run_id
