"""Parquet files, read with pyarrow within bounds: a small file can expand to almost anything."""

from pathlib import Path
from typing import Any

from ordered_sgd.errors import require
from ordered_sgd.lab.data.delimited import Cells
from ordered_sgd.lab.data.files import fault, opened, reason

_MOST = 1 << 30  # bytes in memory
_CELLS = 1 << 28
_AT_ONCE = 1 << 14  # rows decoded before their size is looked at
_FLAT = "Save numbers, text, truth values and times, one to a column."


def read_parquet(path: Path) -> Cells:
    """All cells of a Parquet file, with text as dictionaries of its distinct words."""
    pa = require("pyarrow", extra="lab", where="load")
    from pyarrow import parquet

    with opened(path, _MOST):
        pass  # it is there, and a file
    try:
        with parquet.ParquetFile(path) as whole:
            return _within(path, pa, whole)
    except (pa.ArrowException, OSError, MemoryError) as error:  # OSError: a wrong or damaged Parquet file
        raise fault(path, "be a whole Parquet file", reason(error), "Save it again.") from error


def _within(path: Path, pa: Any, whole: Any) -> Cells:
    from pyarrow import parquet

    schema, rows = whole.schema_arrow, whole.metadata.num_rows
    for field in schema:
        if pa.types.is_nested(field.type):
            raise fault(path, f"hold one value per cell in column {field.name[:40]!r}", str(field.type)[:60], _FLAT)
    smaller = "Use fewer rows or columns."
    if rows * len(schema) > _CELLS:
        raise fault(path, f"hold at most {_CELLS:,} cells", f"{rows:,} rows of {len(schema):,} columns", smaller)
    text = [field.name for field in schema if pa.types.is_string(field.type) or pa.types.is_large_string(field.type)]
    pieces, size = [], 0
    with parquet.ParquetFile(path, read_dictionary=text) as again:
        for piece in again.iter_batches(_AT_ONCE, use_threads=False):
            size += piece.nbytes
            if size > _MOST:
                raise fault(path, f"take at most {_MOST:,} bytes in memory", "more", smaller)
            pieces.append(piece)
    table = pa.Table.from_batches(pieces, again.schema_arrow).unify_dictionaries()
    index = [name.startswith("__index_level_") for name in schema.names]
    names = ["" if unnamed else name for name, unnamed in zip(schema.names, index, strict=True)]
    return Cells(table.rename_columns([str(at) for at in range(len(names))]), names, [])
