import pytest

from ordered_sgd.lab.experiments.recipes.published import APPENDIX, TABLE1, TABLE2, TABLE3, TABLE4, TABLE5, PrintedRow

HALF = 0.005 + 1e-9  # printed to two digits
IMPROVED = [(row.place, row) for table in (TABLE1, TABLE3, TABLE5) for row in table.values()]


@pytest.mark.parametrize(("place", "row"), IMPROVED, ids=[place for place, _ in IMPROVED])
def test_the_improvement_printed_is_that_of_the_means_before_rounding(place: str, row: PrintedRow) -> None:
    def improvement(plain: float, ordered: float) -> float:
        return 100 * (plain - ordered) / plain

    plain, ordered = row.plain.mean, row.ordered.mean
    lowest, highest = improvement(plain - HALF, ordered + HALF), improvement(plain + HALF, ordered - HALF)
    assert row.last is not None
    assert lowest - HALF <= row.last <= highest + HALF


@pytest.mark.parametrize("row", TABLE4.values(), ids=TABLE4)
def test_the_difference_of_seconds_is_that_of_the_means_before_rounding(row: PrintedRow) -> None:
    assert row.last == pytest.approx(row.plain.mean - row.ordered.mean, abs=3 * HALF)


def test_table_2_is_a_part_of_table_4() -> None:
    assert {name: (row.plain, row.ordered) for name, row in TABLE2.items()} == {
        name: (TABLE4[name].plain, TABLE4[name].ordered) for name in TABLE2
    }


def test_tables_1_4_and_5_have_the_same_18_rows() -> None:
    assert len(TABLE1) == 18
    assert list(TABLE1) == list(TABLE4) == list(TABLE5)


def test_only_table_3_prints_no_spread() -> None:
    spread = {
        number: {cell.std is not None for row in table.values() for cell in (row.plain, row.ordered)}
        for number, table in enumerate((TABLE1, TABLE2, TABLE3, TABLE4, TABLE5), 1)
    }
    assert spread == {1: {True}, 2: {True}, 3: {False}, 4: {True}, 5: {True}}


def test_appendix_c_has_one_more_row() -> None:
    (row,) = APPENDIX.values()
    assert [*row.plain, *row.ordered] == [19.11, 1.48, 16.54, 1.24]


def test_adam_loses_one_row_of_table_5() -> None:
    worse = [name for name, row in TABLE5.items() if row.ordered.mean > row.plain.mean]
    assert worse == ["cifar10-preact-resnet18-aug"]  # so the text says
