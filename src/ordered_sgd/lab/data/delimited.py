"""Tables in text files: separator, header and encoding are found in the file, and every cell comes back as text."""

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ordered_sgd.errors import require
from ordered_sgd.lab.data.files import CHUNK, fault, opened, reason

FIX = "Correct the file."
SEPARATORS = {
    "\t": "tabs",
    ";": "semicolons",
    "|": "vertical bars",
    ",": "commas",
    " ": "blanks",
    "  ": "two blanks or more",
}  # by preference
MISSING = ("", "?", "na", "n/a", "nan", "null", "none", "nil", "<na>", "#n/a")
_NUMBER = re.compile(r"[+-]?(\d+([.,]\d*)?|[.,]\d+)([eE][+-]?\d+)?|[+-]?inf(inity)?", re.IGNORECASE)
_MOST = 1 << 30  # bytes of text
_RATIO, _FLOOR = 200, 1 << 26  # a .gz file may be that many times as large unpacked, or that many bytes: no bombs
_LONGEST = 1 << 24  # bytes of a line: a table has rows, not one endless one
_WIDEST = 100_000  # columns
_SAMPLE = 200  # rows, and
_SAMPLED = 1 << 20  # characters, in which separator and header are looked for


class Cells(NamedTuple):
    """A table as it is in a file: a pyarrow table with columns ``"0"``, ``"1"``, ..., their names, and what was found.

    `names` has an empty name where the file has none; `remarks` say how the file was read.
    """

    table: Any
    names: list[str]
    remarks: list[str]


def read_delimited(path: Path) -> Cells:
    """All cells of a text file, packed with gzip or not."""
    text, encoding = _decoded(path, _bytes(path))
    text, found, separator, remark = _from_first_row(path, text)
    rows = _rows(path, _sample(text), separator)
    head, body = [cell.strip() for cell in rows[0]], rows[1:]
    width = _width(path, head, body)
    header = len(head) < width or _is_header(head, body)
    table = _parsed(path, text.encode(), separator, width, skip_first=len(head) < width)
    remarks = [f"separated by {SEPARATORS[found]}"] if found != "," else []
    remarks += remark
    remarks += [] if header else ["without a header"]
    remarks += [f"read as {encoding}"] if encoding != "UTF-8" else []
    names = head if header else [""] * width
    if len(head) < width:  # as R writes row names, or with a separator at the end of each row
        trailing = not any(row[-1].strip() for row in body if len(row) == width)
        names = [*head, ""] if trailing else ["", *head]
    elif header:
        table = table.slice(1)
    return Cells(table, names, remarks)


def _from_first_row(path: Path, text: str) -> tuple[str, str, str, list[str]]:
    """The text from its first row on, the separator in the file and in that text, and a remark on a line left out."""
    lines = _sample(text)
    if not lines:
        raise fault(path, "hold a table", "an empty file", FIX)
    found = separator = _separator(lines)
    if found.isspace() and found != "\t":
        text, separator = _with_tabs(path, text, found), "\t"
        lines = _sample(text)
    first, *others = _rows(path, lines, separator)
    counts = {len(row) for row in others[:-1]}
    if len(counts) == 1 and len(others) > 5 and not counts & {len(first), len(first) + 1}:
        return text.partition("\n")[2], found, separator, [f"the first line left out, as it has {len(first):,} cells"]
    return text, found, separator, []


def _rows(path: Path, lines: Sequence[str], separator: str) -> list[list[str]]:
    try:
        return [row for row in csv.reader(lines, delimiter=separator, skipinitialspace=True) if row]
    except csv.Error as error:
        raise fault(path, "be a table of text", reason(error), FIX) from error


def is_number(cell: str) -> bool:
    """Whether a cell is written as a number, with a point or a comma."""
    return _NUMBER.fullmatch(cell.strip()) is not None


def _bytes(path: Path) -> bytes:
    """What the file holds, unpacked, within bounds."""
    with opened(path, _MOST, unpack=True) as handle:
        most = min(_MOST, max(_FLOOR, _RATIO * path.stat().st_size))
        pieces, size = [], 0
        while piece := handle.read(CHUNK):
            size += len(piece)
            if size > most:
                raise fault(path, f"hold at most {most:,} bytes of text", "more", "Use fewer rows or columns.")
            pieces.append(piece)
    return b"".join(pieces)


def _decoded(path: Path, raw: bytes) -> tuple[str, str]:
    """The text and the name of its encoding: what its mark says, UTF-8, or else Latin-1."""
    marks = (
        (b"\xef\xbb\xbf", "utf-8-sig", "UTF-8"),
        (b"\xff\xfe", "utf-16", "UTF-16"),
        (b"\xfe\xff", "utf-16", "UTF-16"),
    )
    codec, name = next(((codec, name) for mark, codec, name in marks if raw.startswith(mark)), ("utf-8", "UTF-8"))
    for magic, what in (
        (b"PAR1", "a Parquet file"),
        (b"PK\x03\x04", "an archive, such as .xlsx"),
        (b"\x93NUM", ".npy"),
    ):
        if raw.startswith(magic):
            raise fault(path, "hold text", what, "Save it as .csv, or as .parquet with that ending.")
    try:
        text = raw.decode(codec)
    except UnicodeError as error:
        if codec == "utf-16":
            raise fault(path, "hold text in UTF-16, as its first bytes say", reason(error), FIX) from error
        text, name = raw.decode("latin-1"), "Latin-1, as it is not UTF-8"
    if "\0" in text:
        row = text.count("\n", 0, text.index("\0")) + 1
        raise fault(path, "hold text", f"a NUL byte in line {row:,}", "Save the table as .csv in UTF-8.")
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    at, end = 0, len(text)
    while at < end:
        stop = text.find("\n", at, at + _LONGEST)
        if stop < 0 and end - at > _LONGEST:
            line = text.count("\n", 0, at) + 1
            raise fault(path, f"have lines of at most {_LONGEST:,} characters", f"a longer line {line:,}", FIX)
        at = stop + 1 if stop >= 0 else end
    return text.lstrip("\n"), name


def _sample(text: str) -> list[str]:
    """The first lines that are not blank, whole rows of a file whose quoted cells may hold line breaks."""
    lines: list[str] = []
    at = 0
    while at < len(text) and len(lines) < _SAMPLE and (at < _SAMPLED or len(lines) < 2):
        stop = text.find("\n", at)
        stop = len(text) if stop < 0 else stop
        if text[at:stop].strip():
            lines.append(text[at : stop + 1])
        at = stop + 1
    return lines


def _separator(lines: Sequence[str]) -> str:
    """The first separator that cuts all lines alike, else the one that cuts most of them alike."""
    best, most = ",", 0.0
    for separator in SEPARATORS:
        try:
            counts = [len(row) for row in _cut(lines, separator) if row]
        except csv.Error:
            continue
        first, others = counts[0], counts[1:] or counts
        usual, times = Counter(others).most_common(1)[0]
        alike = times / len(others) * (1.0 if first in (usual, usual - 1) else 0.9)
        if usual > 1 and first > 1 and alike > most:
            best, most = separator, alike
    return best


def _cut(lines: Iterable[str], separator: str) -> Iterator[list[str]]:
    """Lines in cells; blanks that surround a line do not count where blanks divide it."""
    if separator == "  ":
        return (re.split(r"\t| {2,}", line.strip()) for line in lines)
    if separator == " ":
        lines = (" ".join(line.split()) for line in lines)
    return csv.reader(lines, delimiter=separator, skipinitialspace=True)


def _with_tabs(path: Path, text: str, separator: str) -> str:
    """Cells that blanks divide, with one tab between them instead."""
    out = io.StringIO()
    try:
        rows = (row for row in _cut(text.split("\n"), separator) if any(row))
        csv.writer(out, delimiter="\t", lineterminator="\n").writerows(rows)
    except csv.Error as error:
        raise fault(path, "be a table of text", reason(error), FIX) from error
    return out.getvalue()


def _width(path: Path, head: Sequence[str], body: Sequence[Sequence[str]]) -> int:
    """The number of columns: that of the first row, or one more if all other rows agree on it."""
    counts = {len(row) for row in body[:-1] or body if row}  # the sample may end within a row
    width = len(head) + 1 if counts == {len(head) + 1} else len(head)
    if width > _WIDEST:
        raise fault(path, f"have at most {_WIDEST:,} columns", f"{width:,}", "Use a table with samples in its rows.")
    return width


def _is_header(head: Sequence[str], body: Sequence[Sequence[str]]) -> bool:
    """Whether the first row names the columns: a word above numbers, a number above words, or nothing like it below."""
    if not body:
        return not any(is_number(cell) for cell in head)
    columns = [[row[at].strip() for row in body if at < len(row)] for at in range(len(head))]
    known = [[cell for cell in column if cell.lower() not in MISSING] for column in columns]
    for cell, column in zip(head, known, strict=True):
        numbers = sum(map(is_number, column))
        if column and cell.lower() not in MISSING and numbers == (0 if is_number(cell) else len(column)):
            return True
    if all(map(is_number, filter(None, head))):
        return _counts_up(head) and not any(map(_counts_up, body))
    if len(set(head)) < len(head):
        return False
    # words above words: a header's words do not come back below it
    return not any(cell in column for cell, column in zip(head, known, strict=True) if cell and not is_number(cell))


def _counts_up(row: Sequence[str]) -> bool:
    """Whether the cells are 0, 1, 2, ..., or years in a row; a first one may be empty."""
    cells = [cell.strip() for cell in row[1:] if row] if row and not row[0].strip() else [cell.strip() for cell in row]
    if len(cells) < 2 or not all(cell.isdecimal() and len(cell) < 9 for cell in cells):
        return False
    numbers = [int(cell) for cell in cells]
    long = len(numbers) > 3 or not row[0].strip()
    return long and numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def _parsed(path: Path, raw: bytes, separator: str, width: int, *, skip_first: bool) -> Any:
    """The cells as a pyarrow table of trimmed text; rows of another length are an error that names the first."""
    pa = require("pyarrow", extra="lab", where="load")
    from pyarrow import csv as arrow

    odd: list[Any] = []

    def on_odd(row: Any) -> str:
        if skip_first and not odd and row.actual_columns == width - 1:
            odd.append(None)  # the header, which has one cell less
            return "skip"
        return "error"

    names = [str(at) for at in range(width)]
    try:
        return arrow.read_csv(
            io.BytesIO(raw),
            read_options=arrow.ReadOptions(use_threads=False, block_size=len(raw) + 1, column_names=names),
            parse_options=arrow.ParseOptions(
                delimiter=separator, newlines_in_values=True, ignore_empty_lines=True, invalid_row_handler=on_odd
            ),
            convert_options=arrow.ConvertOptions(
                column_types={name: pa.string() for name in names}, strings_can_be_null=False
            ),
        )
    except (pa.ArrowException, MemoryError) as error:
        match = re.search(r"Row #(\d+): Expected (\d+) columns, got (\d+)", str(error))
        if match:
            rule, got = f"hold {int(match[2]):,} cells in row {int(match[1]):,}", f"{int(match[3]):,}"
            raise fault(path, rule, got, FIX) from error
        raise fault(path, "be a table of text", reason(error), FIX) from error
