"""Tables in text and Parquet files: what is found in them, what is refused, and that both stay within bounds."""

import gzip
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.testing import assert_array_equal

from ordered_sgd.errors import ArgumentError, DataError
from ordered_sgd.lab.data import delimited, parquet
from ordered_sgd.lab.data.columns import numbers_in_words, plain_numbers
from ordered_sgd.lab.data.load import load
from ordered_sgd.lab.data.tabular import read_sheet, whole_table

Write = Callable[..., Path]
ROWS = [(at, at * 37 % 60 / 7, ("red", "blue", "")[at % 3], ("yes", "no")[at * 11 % 60 % 2]) for at in range(60)]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(data: str | bytes, name: str = "own.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        return path

    return write


def lines(form: str, head: str = "") -> str:
    """The rows in a form with x, c and y in it, below a header."""
    return head + "".join(form.format(i=i, x=x, c=c, y=y) for i, x, c, y in ROWS)


WAYS = {
    "commas": ("own.csv", lines("{x},{c},{y}\n", "x,c,y\n"), ""),
    "semicolons and decimal commas": (
        "own.csv",
        "x;c;y\n" + "".join(f"{x:.15g};{c};{y}\n".replace(".", ",") for _, x, c, y in ROWS),
        "semicolons",
    ),
    "tabs": ("own.tsv", lines("{x}\t{c}\t{y}\n", "x\tc\ty\n"), "tabs"),
    "vertical bars": ("own.data", lines("{x}|{c}|{y}\n"), "vertical bars, without a header"),
    "blanks and quotes": ("own.tra", lines('  {x}   "{c}" {y}\n'), "blanks, without a header"),
    "columns set out with blanks": ("own.dat", "x   c    y\n" + lines("{x:<12.9f}   old {c:<6}  {y}\n"), "two blanks"),
    "row names of R": ("own.txt", lines('"{i}" {x} "{c}" "{y}"\n', '"x" "c" "y"\n'), "blanks"),
    "an index of pandas": ("own.csv", lines("{i},{x},{c},{y}\n", ",x,c,y\n"), ""),
    "CRLF": ("own.csv", lines("{x},{c},{y}\r\n", "x,c,y\r\n"), ""),
    "old Macintosh lines": ("own.csv", lines("{x},{c},{y}\r", "x,c,y\r"), ""),
    "a byte order mark": ("own.csv", lines("{x},{c},{y}\n", "\ufeffx,c,y\n"), ""),
    "UTF-16": ("own.csv", lines("{x},{c},{y}\n", "x,c,y\n").encode("utf-16"), "UTF-16"),
    "gzip": ("own.csv.gz", gzip.compress(lines("{x},{c},{y}\n", "x,c,y\n").encode()), ""),
    "blank lines and blanks around cells": ("own.csv", lines("\n {x} , {c} ,{y} \n\n", "\nx , c,y\n"), ""),
    "a line above the header": ("own.csv", lines("{x},{c},{y}\n", "made in 1999\nx,c,y\n"), "first line left out"),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_same_table_comes_back_however_it_is_written(write: Write, way: str) -> None:
    name, text, remark = WAYS[way]
    sheet = read_sheet(write(text, name))
    numbers, words = sheet.table.numbers, sheet.table.words
    assert (len(numbers), len(words)) == (1, 1), sheet.table.notes
    np.testing.assert_allclose(sheet.table.frame[numbers[0]], [x for _, x, _, _ in ROWS], atol=1e-8)
    found = [word.removeprefix("old").strip() or "(missing)" for word in sheet.table.frame[words[0]]]
    assert found == [c or "(missing)" for _, _, c, _ in ROWS]
    assert [sheet.classes[at] for at in sheet.y] == [y for _, _, _, y in ROWS]
    assert remark in sheet.table.notes[0]


@pytest.mark.parametrize("target", ["y", "2", "-1", 2, -1])
def test_a_target_is_given_by_name_or_number(write: Write, target: str | int) -> None:
    assert read_sheet(write(WAYS["commas"][1]), target).classes == ("no", "yes")


def test_a_name_that_is_a_number_comes_before_the_number(write: Write) -> None:
    sheet = read_sheet(write("1,2,0\n" + "".join(f"{i % 3},{i % 5}.5,w{i % 2}\n" for i in range(40))), "0")
    assert sheet.classes == ("w0", "w1")


@pytest.mark.parametrize(
    ("head", "found"),
    [("0,1,2,3,4\n", True), ("1990,1991,1992,1993,1994\n", True), (",0,1,2,3\n", True), ("5,3,4,4,0\n", False)],
)
def test_headers_that_are_numbers_count_up(write: Write, head: str, found: bool) -> None:
    body = "".join(f"{i},{i * 7 % 11},{i % 3},{i * i % 13},{i % 2}\n" for i in range(40))
    sheet = read_sheet(write(head + body))
    assert len(sheet.y) == 40 + (not found)
    assert ("without a header" in sheet.table.notes[0]) is not found


def test_words_that_come_again_below_are_no_header(write: Write) -> None:
    rng = random.Random(0)
    body = "".join(f"{rng.choice('px')},{rng.choice('abc')},{rng.choice('ed')}\n" for _ in range(60))
    assert "60 rows" in read_sheet(write(body, "agaricus.data")).table.notes[0]


def test_latin_1_is_read_and_said(write: Write) -> None:
    text = "x,straße,y\n" + "".join(f"{i * 7 % 13},{'Köln' if i % 2 else 'Bonn'},{i % 3}\n" for i in range(30))
    sheet = read_sheet(write(text.encode("latin-1")))
    assert sheet.table.words == ("straße",)
    assert "Latin-1" in sheet.table.notes[0]


def test_quoted_cells_hold_separators_quotes_and_line_breaks(write: Write) -> None:
    sheet = read_sheet(write('text,x,y\n"a, ""b""\nc",1,0\n"d",2.5,1\n"d",1,1\n'))
    assert sheet.table.frame["text"].tolist() == ['a, "b"\nc', "d", "d"]


def test_gaps_are_missing_values_and_rows_without_a_target_are_left_out(write: Write) -> None:
    text = "a,b,y\n" + "".join(
        f"{['NA', i][i % 5 > 0]},{['?', 'u', 'v', ''][i % 4]},{['', 'no', 'yes'][min(i % 7, 2)]}\n" for i in range(70)
    )
    sheet = read_sheet(write(text))
    assert len(sheet.y) == 60
    assert np.isnan(sheet.table.frame["a"]).sum() == 12
    assert set(sheet.table.frame["b"]) == {"(missing)", "u", "v"}
    assert "10 rows without a target are left out" in sheet.table.notes


HOSTILE = {
    "NUL bytes": (b"a,b\n1,2\n\x00,3\n", "must hold text; got a NUL byte in line 3"),
    "nothing": (b"", "must hold a table; got an empty file"),
    "blank lines": (b"\n\n \n", "must hold a table; got an empty file"),
    "one column": (b"a\n1\n2\n", "must hold a target, a column .* got 1 columns and 2 rows"),
    "zero rows": (b"a,b\n", "got 2 columns and 0 rows"),
    "a short row": (b"a,b,c\n1,2,3\n1,2\n1,2,3\n", "must hold 3 cells in row 3; got 2"),
    "a long row": (b"a,b,c\n1,2,3\n1,2,3,4\n1,2,3\n", "must hold 3 cells in row 3; got 4"),
    "only gaps": (b"a,b,y\n,NA,0\n,?,1\n,,0\n", r"learn from; got none: a \(empty\), b \(empty\)"),
    "only constants": (b"a,y\n1,0\n1,1\n1,0\n", r"learn from; got none: a \(constant\)"),
    "one class": (b"a,y\n1,x\n2,x\n1,x\n", "two classes or more in the target 'y'; got 'x' alone"),
    "no target": (b"a,y\n1,\n2,NA\n1,?\n", "hold labels in the target 'y'; got none"),
    "a huge field": (b"a,b\n1,2\n" + b"x" * (1 << 25) + b",3\n", "lines of at most 16,777,216 characters"),
    "an open quote": (b'a,b\n1,"2\n' + b"x\n" * 1000, "load: "),
    "200,001 columns": (b"1," * 200_000 + b"1\n", "must have at most 100,000 columns; got 200,001"),
    "an Excel file": (b"PK\x03\x04" + b"a" * 99, "must hold text; got an archive"),
    "names instead of classes": (
        ("a,y\n" + "".join(f"{i % 7},name{i}\n" for i in range(60))).encode(),
        "hold classes that come again in the target 'y', at most 1,000; got 60 in 60 rows",
    ),
    "numbers past all bounds": (
        ("a,y\n" + "".join(f"{i % 7}e307,{i % 2}\n" for i in range(60))).encode(),
        "hold numbers that can be standardised in 'a'",
    ),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_what_is_no_table_is_refused_in_one_line(write: Write, what: str) -> None:
    data, reason = HOSTILE[what]
    with pytest.raises(DataError, match=reason) as caught:
        load(write(data))
    assert len(str(caught.value)) < 600
    assert "\n" not in str(caught.value)


def test_repeated_names_are_told_apart(write: Write) -> None:
    sheet = read_sheet(write("x,x,x,y\n" + "".join(f"{i % 5},{i % 3},{i % 4},{i % 2}\n" for i in range(40))))
    assert sheet.table.numbers == ("x", "x.2", "x.3")
    assert any("came before" in note for note in sheet.table.notes)


def test_a_target_that_is_not_there_is_answered_with_a_few_columns(write: Write) -> None:
    wide = write(",".join(f"pixel{i}" for i in range(20_000)) + ",label\n" + "1," * 20_000 + "cat\n")
    with pytest.raises(ArgumentError, match=r"got 'labl'; it has 20,001 columns: pixel0, .* and 19,993 more") as caught:
        read_sheet(wide, "labl")
    assert str(caught.value).endswith("Name one, or give its number; -1 is the last.") or "Did you" in str(caught.value)
    assert len(str(caught.value)) < 600
    small = write("width,kind\n1.5,a\n2,b\n")
    with pytest.raises(ArgumentError, match=r"Did you mean 'kind'\?"):
        read_sheet(small, "kimd")
    with pytest.raises(ArgumentError, match=r"got 'quality'; it has 2 columns: width, kind. Name one"):
        read_sheet(small, "quality")
    with pytest.raises(ArgumentError, match=r"got '7'; it has 2 columns"):
        read_sheet(small, 7)


def test_a_path_that_is_not_there_is_answered_with_the_files_beside_it(write: Write) -> None:
    path = write("a,b\n1,2\n", "wine.csv")
    with pytest.raises(DataError, match=r"no such file; beside it: wine.csv. Did you mean 'wine.csv'\?"):
        load(path.with_name("wime.csv"))
    with pytest.raises(DataError, match=r"no such file; beside it: wine.csv. Check the path."):
        load(path.with_name("adult.data"))
    with pytest.raises(DataError, match=r"Did you mean 'wine.csv'\?"):
        load(str(path.with_name("wine.cvs")))
    with pytest.raises(DataError, match=r"got no folder .*nowhere"):
        load(path.parent / "nowhere" / "wine.csv")


def test_a_bomb_is_refused_and_takes_little_memory(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delimited, "_FLOOR", 1 << 20)
    path = write(gzip.compress(b"1,2,3\n" * 2_000_000), "own.csv.gz")
    with pytest.raises(DataError, match=r"must hold at most [\d,]+ bytes of text; got more. Use fewer"):
        load(path)


def test_parquet_is_read_by_pyarrow(tmp_path: Path) -> None:
    import datetime

    table = {
        "n": [at * 7 % 11 for at in range(40)],
        "w": [None if at % 9 == 0 else "ab"[at % 2] for at in range(40)],
        "flag": [at % 3 == 0 for at in range(40)],
        "day": [datetime.date(2020, 1, 1 + at % 28) for at in range(40)],
        "gap": [None if at % 4 == 0 else at / 7 for at in range(40)],
        "y": ["no" if at % 2 else "yes" for at in range(40)],
    }
    pq.write_table(pa.table(table), tmp_path / "own.parquet")
    sheet = read_sheet(tmp_path / "own.parquet", "y")
    assert sheet.table.numbers == ("n", "day", "gap")
    assert sheet.table.words == ("w", "flag")
    assert sheet.table.frame["day"][0] == (datetime.date(2020, 1, 1) - datetime.date(1970, 1, 1)).days
    assert np.isnan(sheet.table.frame["gap"]).sum() == 10
    assert_array_equal(sheet.y, [1, 0] * 20)


def test_parquet_that_expands_enormously_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "own.parquet"
    pq.write_table(pa.table({"a": np.zeros(1_000_000), "y": np.arange(1_000_000) % 2}), path)
    assert path.stat().st_size < 2 << 20
    monkeypatch.setattr(parquet, "_MOST", 3 << 20)
    with pytest.raises(DataError, match="must take at most 3,145,728 bytes in memory; got more"):
        load(path)
    monkeypatch.setattr(parquet, "_CELLS", 1000)
    with pytest.raises(DataError, match="must hold at most 1,000 cells; got 1,000,000 rows of 2 columns"):
        load(path)


def test_parquet_that_is_none_or_has_lists_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "own.parquet"
    path.write_bytes(b"PAR1" + b"\0" * 50)
    with pytest.raises(DataError, match="must be a whole Parquet file; got"):
        load(path)
    pq.write_table(pa.table({"a": [[1], [2]], "y": [0, 1]}), path)
    with pytest.raises(DataError, match="one value per cell in column 'a'; got list"):
        load(path)


@pytest.mark.parametrize(
    "cells",
    [
        ["1", "2.5", " -3e2 ", ".5", "7.", "1e-7", "0.1", "123456789012345678", "NA", "", "?", "Null"],
        ["1.7976931348623157e308", "4.9e-324", "inf", "-Infinity", "00012", "1E5"],
    ],
)
def test_the_fast_reading_of_numbers_is_the_slow_one(cells: list[str]) -> None:
    column = pa.array(cells)
    fast, (slow, remark) = plain_numbers(pa, column), numbers_in_words(pa, column)
    assert fast is not None
    assert_array_equal(fast, slow)
    assert remark == ""


def test_a_whole_table_is_one_data_set_whose_print_is_one_line(write: Write) -> None:
    data = whole_table(write(WAYS["commas"][1]), "y")
    assert len(data) == 60
    assert str(data) == "<Dataset own.csv, training part: 60 samples of 4 features, 2 classes: no (30), yes (30)>"
