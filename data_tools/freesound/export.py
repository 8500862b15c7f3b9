"""Write a store as a table.

Writes the sounds of a store for other tools, as CSV or Parquet.
"""

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from data_tools.errors import DataError
from data_tools.files import replacing
from data_tools.freesound.store import COLUMNS, Store, open_store

if TYPE_CHECKING:
    import pandas

_ROWS = 20_000  # per chunk
_FORMULA = re.compile("\\A[=+\\-@\t\r\uff1d\uff0b\uff0d\uff20]")  # the last four are full-width forms of the first four
_TYPES = {"channels": "Int64", "filesize": "Int64", "duration": "float64", "samplerate": "float64"}


def _read_chunks(store: Store) -> "Iterator[pandas.DataFrame]":
    """Yield a store's sounds by rising id, as data frames of _ROWS rows; the column `created` is a time in UTC."""
    import pandas

    query = f"SELECT {', '.join(COLUMNS)} FROM sounds WHERE NOT gone ORDER BY id"
    created = {"created": {"unit": "ms", "utc": True}}
    return pandas.read_sql_query(query, store.database, parse_dates=created, dtype=_TYPES, chunksize=_ROWS)


def _write_csv(chunks: "Iterator[pandas.DataFrame]", path: Path) -> None:
    """Write the sounds as a CSV table, with a ' before each text that a spreadsheet would run as a formula.

    Source: OWASP, CSV Injection. No spreadsheet runs formulas in Parquet, so Parquet files contain all texts verbatim.
    """
    with path.open("w", encoding="utf-8", newline="") as file:
        for number, chunk in enumerate(chunks):
            for name in chunk.select_dtypes(["object", "string"]):
                chunk[name] = chunk[name].str.replace(_FORMULA, r"'\g<0>", regex=True)
            chunk.to_csv(file, header=number == 0, index=False, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)


def _write_parquet(chunks: "Iterator[pandas.DataFrame]", path: Path) -> None:
    """Write the sounds as a Parquet file, one data frame at a time."""
    import pyarrow
    import pyarrow.parquet

    first = pyarrow.Table.from_pandas(next(chunks), preserve_index=False)
    text = [pyarrow.string() if pyarrow.types.is_null(kind) else kind for kind in first.schema.types]
    schema = pyarrow.schema(list(zip(first.schema.names, text, strict=True)))
    with pyarrow.parquet.ParquetWriter(path, schema) as writer:
        writer.write_table(first.cast(schema))
        for chunk in chunks:
            writer.write_table(pyarrow.Table.from_pandas(chunk, schema, preserve_index=False))


def write_store(path: Path, out: Path) -> int:
    """Write the sounds of a store to a table, .csv or .parquet; return their number.

    Raises DataError for another suffix, and for a store without sounds.
    """
    writers = {".csv": _write_csv, ".parquet": _write_parquet}
    if out.suffix not in writers:
        raise DataError(f"{out}: the format of the table is unknown; give a file name that ends in .csv or .parquet")
    with open_store(path, read_only=True) as store:
        count = store.count()
        if not count:
            raise DataError(f"{path}: the store has no sounds yet; run lbar data crawl {path}")
        with replacing(out) as temporary:
            writers[out.suffix](_read_chunks(store), temporary)
    return count
