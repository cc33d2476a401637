"""CSV and Parquet files as features and labels."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from ordered_sgd.errors import ArgumentError, DataError, MissingExtraError
from ordered_sgd.lab.data import columns
from ordered_sgd.lab.data.columns import read_csv, read_parquet


@pytest.fixture
def write(tmp_path):
    def write(data: str | bytes):
        path = tmp_path / "own.csv"
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        return path

    return write


@pytest.mark.parametrize(
    ("text", "target", "x", "y"),
    [
        ("a,b,kind\n1,2,cat\n3,4,dog\n", -1, [[1, 2], [3, 4]], ["cat", "dog"]),
        ("kind,a,b\ncat,1,2\ndog,3,4\n", "kind", [[1, 2], [3, 4]], ["cat", "dog"]),
        ("a,kind,b\n1,cat,2\n3,dog,4\n", 1, [[1, 2], [3, 4]], ["cat", "dog"]),
        ("1,2,0\n3,4,1\n", -1, [[1, 2], [3, 4]], [0, 1]),
        ("cat,1\ndog,3\n", 0, [[1], [3]], ["cat", "dog"]),
        ("\ufeffa,b\r\n 1 , 2.5\r\n\r\n-3e2,4\r\n", -1, [[1], [-300]], [2.5, 4]),
        ('a,"b, c"\n1,"x ""y"" z"\n2,w\n', "b, c", [[1], [2]], ['x "y" z', "w"]),
        ("a,b\n1,-7\n2,+8\n", -1, [[1], [2]], [-7, 8]),
        ("a,b\n1,5\n2,1e3", -1, [[1], [2]], [5.0, 1000.0]),
    ],
)
def test_features_and_labels_come_back(write, text, target, x, y):
    found, labels = read_csv(write(text), target)
    assert_array_equal(found, np.array(x, np.float32))
    assert found.dtype == np.float32
    assert labels.tolist() == y
    assert type(labels.tolist()[0]) is type(y[0])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "hold a column of labels, one of features at least, and rows; got 0 columns and 1 rows"),
        ("a\n1\n", "got 1 columns and 1 rows"),
        ("a,b\n", "got 2 columns and 0 rows"),
        ("a,b,c\n1,2,3\n1,2\n", "hold 3 values in row 3; got 2"),
        ("a,b,c\n1,,3\n", "have no gaps in column 'b'; got '' in row 2"),
        ("a,b,c\n1,NA,3\n", "have no gaps in column 'b'; got 'NA' in row 2"),
        ("a,b,c\n1,2,\n", "have no gaps in column 'c'; got '' in row 2"),
        ("1,2,3\n1,?,3\n", "have no gaps in column '1'; got '\\?' in row 2"),
        (
            "a,b,c\n1,red,3\n",
            "hold numbers in column 'b'; got 'red' in row 2. Encode it as numbers, or name the column",
        ),
        (b"a,b\n1,\xff\n", "be a CSV file in UTF-8; got 'utf-8' codec can't decode"),
        ('a,b\n1,"' + "x" * 200_000 + '"\n', "be a CSV file in UTF-8; got field larger than field limit"),
    ],
)
def test_files_that_are_no_tables_of_numbers_are_refused(write, text, reason):
    with pytest.raises(DataError, match=f"own.csv must .*{reason}"):
        read_csv(write(text), -1)


def test_a_target_is_found_in_a_wide_table(write):
    names = [f"pixel{i}" for i in range(784)]
    x, y = read_csv(write(",".join([*names, "label"]) + "\n" + ",".join(["1"] * 784 + ["cat"]) + "\n"), "label")
    assert x.shape == (1, 784)
    assert list(y) == ["cat"]


def test_a_target_that_is_no_column_is_refused_with_the_nearest_name(write):
    path = write("width,kind\n1,a\n2,b\n")
    with pytest.raises(
        ArgumentError, match=r"own.csv: target must be one of width, kind; got 'knd'. Did you mean 'kind'\?"
    ):
        read_csv(path, "knd")
    with pytest.raises(ArgumentError, match=r"one of width, kind; got 'nope'. Name the column of the classes."):
        read_csv(path, "nope")
    for number in (2, -3):
        with pytest.raises(
            ArgumentError, match=f"target must be the name or the number of a column; got {number} of 2"
        ):
            read_csv(path, number)


def test_an_endless_line_is_refused(write, monkeypatch):
    monkeypatch.setattr(columns, "_LONGEST", 1000)
    with pytest.raises(DataError, match=r"own.csv must have lines of less than 1,000 characters; got a longer one"):
        read_csv(write("1," * 5000), -1)


def test_numbers_past_single_precision_come_back_infinite_and_without_a_warning(write):
    found, _ = read_csv(write("1e300,0\n1,1\n"), -1)
    assert np.isinf(found[0, 0])  # `tables` refuses them


class Column:
    """As much of a pandas Series as is used."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    def to_numpy(self) -> np.ndarray:
        return self.values

    def isna(self) -> np.ndarray:
        return np.array([value is None or value != value for value in self.values])


class Frame:
    """As much of a pandas DataFrame as is used."""

    def __init__(self, **parts: list) -> None:
        self.columns = list(parts)
        self.parts = [
            Column(np.array(values, object if str in map(type, values) else None)) for values in parts.values()
        ]

    def __len__(self) -> int:
        return len(self.parts[0].values) if self.parts else 0

    @property
    def iloc(self) -> "Frame":
        return self

    def __getitem__(self, at: tuple[slice, int]) -> Column:
        return self.parts[at[1]]


@pytest.fixture
def frame(monkeypatch, tmp_path):
    def give(result):
        def read(path):
            if isinstance(result, Exception):
                raise result
            return result

        monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(read_parquet=read))
        return tmp_path / "own.parquet"

    return give


def test_parquet_is_read_through_pandas(frame):
    x, y = read_parquet(frame(Frame(a=[1, 2], kind=["cat", "dog"], b=[True, False])), "kind")
    assert_array_equal(x, [[1, 1], [2, 0]])
    assert x.dtype == np.float32
    assert y.tolist() == ["cat", "dog"]


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (Frame(a=[1, 2]), "got 1 columns and 2 rows"),
        (Frame(a=[], b=[]), "got 2 columns and 0 rows"),
        (Frame(a=[1.0, float("nan")], b=[1, 2]), "have no gaps in column 'a'; got missing values"),
        (Frame(a=["x", "y"], b=[1, 2]), "hold numbers in column 'a'; got dtype object"),
        (OSError("Invalid magic bytes"), "be a Parquet file that pandas reads; got Invalid magic bytes"),
    ],
)
def test_parquet_files_that_are_no_tables_of_numbers_are_refused(frame, result, reason):
    with pytest.raises(DataError, match=f"own.parquet must .*{reason}"):
        read_parquet(frame(result), -1)


def test_without_pandas_the_message_names_the_remedy(monkeypatch, tmp_path, frame):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(
        MissingExtraError,
        match=r"load: pandas must be installed to read Parquet; got .*Run: pip install pandas pyarrow",
    ):
        read_parquet(tmp_path / "own.parquet", -1)
    with pytest.raises(MissingExtraError, match="got Unable to find a usable engine"):
        read_parquet(frame(ImportError("Unable to find a usable engine.")), -1)
