"""What a model is given of a table, and that nothing of the test part goes into it."""

import datetime
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from ordered_sgd.errors import DataError
from ordered_sgd.lab.data.columns import MOST_WORDS
from ordered_sgd.lab.data.custom import held_out
from ordered_sgd.lab.data.load import load
from ordered_sgd.lab.data.tabular import read_sheet
from ordered_sgd.lab.experiments.run import problem_for
from ordered_sgd.lab.experiments.spec import ExperimentSpec

Write = Callable[..., Path]
N = 100
Y = np.arange(N) % 2


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(columns: dict[str, list[object]], name: str = "own.csv") -> Path:
        rows = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
        (tmp_path / name).write_text("\n".join(rows))
        return tmp_path / name

    return write


def columns() -> dict[str, list[object]]:
    return {
        "age": [at * 37 % N / 3 if at % 10 else "NA" for at in range(N)],
        "town": [f"town{at * at % 7}" for at in range(N)],
        "y": Y.tolist(),
    }


def test_numbers_are_standardised_and_words_are_ones_and_zeros(write: Write) -> None:
    train = load(write(columns()))
    age, gap, towns = train.x[:, 0], train.x[:, 1], train.x[:, 2:]
    assert_allclose([age.mean(), age.std()], [0, 1], atol=1e-6)
    assert set(np.unique(gap)) == {0.0, 1.0}
    assert_array_equal(towns.sum(axis=1), 1)
    assert set(np.unique(towns)) == {0.0, 1.0}


def test_a_statistic_of_the_test_part_does_not_change_the_training_part(write: Write) -> None:
    """Other ages, other towns and other gaps in the test rows: the training part stays bit by bit."""
    own = columns()
    before = load(write(own))
    tested = np.flatnonzero(held_out(Y, stratify=True))
    for place, at in enumerate(tested):
        own["age"][at] = 1e6 if place % 2 else "NA"
        own["town"][at] = f"elsewhere{place % 3}"
    after, test = load(write(own)), load(write(own), "test")
    assert_array_equal(before.x, after.x)
    assert not np.isclose(test.x[:, 0].std(), 1)  # they are scaled by the training part
    assert_array_equal(test.x[:, 2:], 0)  # towns that training never saw


def test_a_statistic_of_the_nested_validation_part_does_not_change_what_is_trained_on(write: Write) -> None:
    own = columns()
    spec = ExperimentSpec(data=str(write(own)), validation=0.25, seed=3)
    before = problem_for(spec)
    rows = np.flatnonzero(~held_out(Y, stratify=True, seed=3))
    shuffled = np.random.default_rng(3).permutation(len(rows))
    validated = rows[shuffled[len(rows) - round(0.25 * len(rows)) :]]
    assert len(before.test) == len(validated)
    for at in validated:
        own["age"][at], own["town"][at] = 1e6, "elsewhere"
    write(own)
    after = problem_for(spec)
    assert_array_equal(before.train.x, after.train.x)
    assert not np.array_equal(before.test.x, after.test.x)


def test_the_targets_of_a_regression_are_standardised_by_the_training_part(write: Write) -> None:
    own = columns() | {"y": [at * 1.5 for at in range(N)]}
    problem = problem_for(ExperimentSpec(data=str(write(own))))
    assert_allclose([problem.train.y.mean(), problem.train.y.std()], [0, 1], atol=1e-5)
    mean, std = problem.train.scale
    raw = load(write(own), "test")
    assert_allclose(problem.test.y * std + mean, raw.y, rtol=1e-5, atol=1e-4)


def test_identifiers_are_left_out_and_said(write: Write) -> None:
    own = columns()
    own = {
        "": list(range(N)),
        "shuffled": [at * 37 % N + 1 for at in range(N)],
        "customer_id": [1000 + at * 7 for at in range(N)],
        "name": [f"person {at}" for at in range(N)],
        "year": [1900 + at for at in range(N)],
        "same": ["x"] * N,
        **own,
    }
    table = read_sheet(write(own)).table
    assert table.numbers == ("year", "age")
    assert table.words == ("town",)
    left = next(note for note in table.notes if note.startswith("left out"))
    for name in (
        "0 (it numbers the rows)",
        "shuffled (it",
        "customer_id (",
        "name (text that is diff",
        "same (constant)",
    ):
        assert name in left


def test_rare_words_share_a_column_and_that_is_said(write: Write) -> None:
    own = columns() | {"town": [f"town{at // 2}" if at % 4 else "capital" for at in range(N)], "y": Y.tolist()}
    data = load(write(own))
    assert data.x.shape[1] == 2 + MOST_WORDS
    assert any("rarest share a column: town" in note for note in data.table.notes)


@pytest.mark.parametrize(
    ("values", "classes"),
    [
        ([at % 3 for at in range(N)], ("0", "1", "2")),
        ([float(at % 3) for at in range(N)], ("0", "1", "2")),
        ([at % 3 + 8 for at in range(N)], ("8", "9", "10")),
        ([f"{at % 2}.5" for at in range(N)], ("0.5", "1.5")),
        (["yes" if at % 3 else "no" for at in range(N)], ("no", "yes")),
        (["TRUE" if at % 3 else "FALSE" for at in range(N)], ("FALSE", "TRUE")),
        (list(range(N)), ()),
        ([at % 60 for at in range(N)], ()),
        ([at / 7 for at in range(N)], ()),
        ([f"2020-01-{at % 28 + 1:02d}" for at in range(N)], ()),
    ],
)
def test_classes_and_continuous_targets_are_told_apart(write: Write, values: list[object], classes: tuple[str]) -> None:
    sheet = read_sheet(write({"a": [at * at % 17 for at in range(N)], "y": values}))
    assert sheet.classes == classes
    said = next(note for note in sheet.table.notes if note.startswith("target y"))
    assert ("classes, " in said) if classes else ("a number to be predicted" in said)


def test_the_task_can_be_chosen(write: Write) -> None:
    path = write(columns() | {"y": [at % 4 for at in range(N)]})
    assert read_sheet(path, task="regression").classes == ()
    assert read_sheet(path, task="classification").classes == ("0", "1", "2", "3")
    words = write(columns() | {"y": ["ab"[at % 2] for at in range(N)]})
    with pytest.raises(DataError, match="hold numbers in the target 'y' for a regression; got words such as a, b"):
        read_sheet(words, task="regression")


def test_a_file_that_changed_is_read_again(write: Write) -> None:
    path = write(columns())
    assert read_sheet(path) is read_sheet(path)
    before = read_sheet(path)
    write(columns() | {"y": Y[::-1].tolist(), "more": [at % 7 for at in range(N)]})
    assert read_sheet(path) is not before


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ("{y}-{m:02d}-{d:02d}", "(dates, as days)"),
        ("{y}/{m}/{d}", "(dates, as days)"),
        ("{y}-{m:02d}-{d:02d}T00:00:00.000Z", "(dates, as days)"),
        ("{d}.{m}.{y}", "(dates with the day first, as days)"),
        ("{m}/{d}/{y} 0:00", "(dates with the month first, as days)"),
    ],
)
def test_dates_are_days(write: Write, form: str, said: str) -> None:
    days = [datetime.date(2020, 1, 1) + datetime.timedelta(days=at * 37 % N) for at in range(N)]
    table = read_sheet(
        write({"when": [form.format(y=d.year, m=d.month, d=d.day) for d in days], "y": Y.tolist()})
    ).table
    assert_allclose(table.frame["when"], [(day - datetime.date(1970, 1, 1)).days for day in days])
    assert f"standardised: when {said}" in table.notes


def test_a_date_that_does_not_exist_makes_words(write: Write) -> None:
    table = read_sheet(write({"when": [f"2021-02-{at % 31 + 1:02d}" for at in range(N)], "y": Y.tolist()})).table
    assert table.words == ("when",)
