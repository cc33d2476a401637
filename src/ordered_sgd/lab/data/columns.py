"""What each column of a table is: numbers, words, or something that no model should see."""

import datetime
import re
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from ordered_sgd.errors import require
from ordered_sgd.lab.data.delimited import MISSING

Kind = Literal["number", "word", "left out"]
GAP = "(missing)"  # the category of a word that is missing
MOST_WORDS = 25  # categories of one column: rarer ones are merged
_ENOUGH = 10  # rows from which on numbers that are all different can be told from an accident
_POINT = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$|^[+-]?(inf|infinity|INF|Inf|Infinity)$"
_COMMA = r"^[+-]?(\d+,\d+|\d+)([eE][+-]?\d+)?$"
_CLOCK = r"([T ]\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?Z?)?$"
_DATE = r"^\d{4}[-/.]\d{1,2}[-/.]\d{1,2}" + _CLOCK
_DAY_FIRST = r"^(0?[1-9]|[12]\d|3[01])[-/.](0?[1-9]|1[0-2])[-/.]\d{4}" + _CLOCK
_MONTH_FIRST = r"^(0?[1-9]|1[0-2])[-/.](0?[1-9]|[12]\d|3[01])[-/.]\d{4}" + _CLOCK
_PATTERNS = (
    (_POINT, ""),
    (_COMMA, "decimal commas"),
    (_DATE, "dates, as days"),
    (_MONTH_FIRST, "dates with the month first, as days"),  # where both fit, as pandas reads them
    (_DAY_FIRST, "dates with the day first, as days"),
)
_NAMED_LIKE_ONE = re.compile(
    r"(row_?)?(id|index|names?|no|number|key|code)|.*[_ ](id|key|code)|unnamed: ?\d+|\.\.\.\d+", re.IGNORECASE
)


class TypedColumn(NamedTuple):
    """A column as a pandas Series of floats or categories, its kind, and a remark about it."""

    values: Any
    kind: Kind
    remark: str = ""


def typed(cells: Any, name: str) -> TypedColumn:
    """What a pyarrow column is.

    Numbers have NaN where one is missing. A column is left out if it tells nothing of a sample: it is constant, empty,
    numbers the rows, or has another word in each.
    """
    pa, pd = (require(package, extra="lab", where="load") for package in ("pyarrow", "pandas"))
    if isinstance(cells, pa.ChunkedArray):
        cells = cells.combine_chunks()
    values, remark = numbers_of(pa, cells)
    if values is None:
        words = words_of(pa, cells)
        return _judged_words(pd, words)
    known = values[np.isfinite(values)]
    if not len(known):
        return TypedColumn(None, "left out", "empty")
    if len(known) == len(values) and (known == known[0]).all():
        return TypedColumn(None, "left out", "constant")
    if why := _row_numbers(values, name):
        return TypedColumn(None, "left out", why)
    return TypedColumn(pd.Series(np.where(np.isfinite(values), values, np.nan)), "number", remark)


def words_of(pa: Any, cells: Any) -> Any:
    """A column as a dictionary of trimmed words, null where one is missing."""
    compute = require("pyarrow.compute", extra="lab", where="load")
    if pa.types.is_dictionary(cells.type):
        cells = cells.cast(cells.type.value_type) if not pa.types.is_string(cells.type.value_type) else cells
    if not pa.types.is_dictionary(cells.type):
        cells = cells.cast(pa.string()).dictionary_encode()
    distinct = compute.utf8_trim_whitespace(cells.dictionary.cast(pa.string()))
    absent = compute.is_in(compute.utf8_lower(distinct), pa.array(MISSING))
    distinct = compute.if_else(absent, pa.scalar(None, pa.string()), distinct)
    return distinct.take(cells.indices).dictionary_encode()


def numbers_of(pa: Any, cells: Any) -> tuple[Any, str]:
    """The column as float64 with NaN for gaps, if it holds numbers or times; a remark where they are not plain ones."""
    compute, kind = require("pyarrow.compute", extra="lab", where="load"), cells.type
    if pa.types.is_boolean(kind) or pa.types.is_null(kind):
        return (None, "") if pa.types.is_boolean(kind) else (np.full(len(cells), np.nan), "")
    if pa.types.is_temporal(kind):
        return _days(pa, cells), "as days"
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return compute.cast(cells, pa.float64(), safe=False).to_numpy(zero_copy_only=False), ""
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_dictionary(kind)):
        return None, ""
    if (plain := plain_numbers(pa, cells)) is not None:
        return plain, ""
    return numbers_in_words(pa, cells)


def plain_numbers(pa: Any, cells: Any) -> Any:
    """Text as float64 if arrow reads all of it as numbers; `numbers_in_words` is the slow twin, which reads more."""
    compute = require("pyarrow.compute", extra="lab", where="load")
    if pa.types.is_dictionary(cells.type):
        return None
    trimmed = compute.utf8_trim_whitespace(cells)
    absent = compute.is_in(compute.utf8_lower(trimmed), pa.array(MISSING, trimmed.type))
    try:
        numbers = compute.cast(compute.if_else(absent, pa.scalar(None, trimmed.type), trimmed), pa.float64())
    except pa.ArrowInvalid:
        return None
    return numbers.to_numpy(zero_copy_only=False)


def numbers_in_words(pa: Any, cells: Any) -> tuple[Any, str]:
    """Text as float64 by its distinct words: numbers with a point or a comma, or dates; a remark on which."""
    compute = require("pyarrow.compute", extra="lab", where="load")
    words = words_of(pa, cells)
    distinct = words.dictionary
    for pattern, remark in _PATTERNS:
        if not compute.all(compute.match_substring_regex(distinct, pattern)).as_py():
            if len(distinct):
                continue
            return np.full(len(cells), np.nan), ""  # no word at all
        try:
            return _taken(_read(distinct.to_pylist(), remark), words), remark
        except ValueError:  # the 31st of February
            continue
    return None, ""


def _read(words: Sequence[str], remark: str) -> Any:
    if remark.startswith("dates"):
        order = (1, 0, 2) if "month" in remark else (0, 1, 2) if "day first" in remark else (2, 1, 0)
        return np.array([_day(word, order) for word in words])
    return np.array([float(word.replace(",", ".")) for word in words], np.float64)


def _day(word: str, order: tuple[int, int, int]) -> float:
    """Days since 1970; `order` has the places of day, month and year.

    >>> _day("2.1.1970 12:00", (0, 1, 2)), _day("1970-01-03", (2, 1, 0))
    (1.5, 2)
    """
    parts = re.split(r"[-/. T:Z]", word, maxsplit=5)
    day, month, year = (int(parts[at]) for at in order)
    clock = [float(part.rstrip("Z")) for part in parts[3:] if part]
    whole = (datetime.date(year, month, day) - datetime.date(1970, 1, 1)).days
    return whole + sum(value / unit for value, unit in zip(clock, (24, 1440, 86400), strict=False))


def _taken(values: Any, words: Any) -> Any:
    """The number of every row from those of the distinct words."""
    places = words.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    return np.append(np.asarray(values, np.float64), np.nan)[places]


def _days(pa: Any, cells: Any) -> Any:
    if pa.types.is_timestamp(cells.type) or pa.types.is_date(cells.type):
        found = cells.cast(pa.timestamp("us", getattr(cells.type, "tz", None)), safe=False).cast(pa.int64())
    else:
        found = cells.cast(pa.int64(), safe=False) if not pa.types.is_time32(cells.type) else cells.cast(pa.int32())
    return found.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False) / 86_400e6


def _judged_words(pd: Any, words: Any) -> TypedColumn:
    distinct, n = len(words.dictionary), len(words)
    known = n - words.null_count
    if not distinct:
        return TypedColumn(None, "left out", "empty")
    if distinct == 1 and known == n:
        return TypedColumn(None, "left out", "constant")
    if distinct == known and n >= _ENOUGH:
        return TypedColumn(None, "left out", "text that is different in every row")
    found = words.to_pandas()
    found = found.cat.add_categories(GAP).fillna(GAP) if words.null_count else found
    return TypedColumn(found.astype(object), "word", "")


def _row_numbers(values: Any, name: str) -> str:
    """Why these numbers are no feature: they count the rows, in any order, or are keys by their name; else nothing."""
    n = len(values)
    if not np.isfinite(values).all() or not (values == np.floor(values)).all():
        return ""
    ordered = np.sort(values)
    if abs(ordered[[0, -1]]).max() > 2**53:  # not every whole number is one of float64
        return ""
    if n > 1 and (np.diff(ordered) == 0).any():
        return ""
    counts = bool((np.diff(ordered) == 1).all())
    unnamed = not name.strip()
    if counts and ordered[0] in (0, 1) and (unnamed or n >= _ENOUGH):
        return "it numbers the rows"
    if n >= _ENOUGH and (unnamed or _NAMED_LIKE_ONE.fullmatch(name.strip())):
        return "a different whole number in every row, and its name" if not unnamed else "it numbers the rows"
    return ""
