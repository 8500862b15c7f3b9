"""Read corpora with queries.

A corpus has audio files, queries, and pairs of a query and an audio file that belong together.

The layout is that of BEIR and MTEB: parquet files with the columns (id, audio), (id, text) and (query-id, corpus-id).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from data_tools.errors import DataError
from data_tools.hub.samples import AUDIO_COLUMNS, Sample, opened_parquet, parquet_errors

RELEVANT = {"query-id", "corpus-id"}
IDS = ("id", "_id")


class Texts(NamedTuple):
    """Queries of a corpus. corpus: The shards with audio. texts: Dict from the id of an audio file to its queries."""

    corpus: list[Path]
    texts: dict[str, list[str]]

    def of(self, sample: Sample) -> list[str]:
        """Return the queries of a sample of the corpus. Raises DataError for a sample without id."""
        return self.texts.get(_row_id(sample.fields, sample.where), [])


def relevant_texts(shards: Sequence[Path]) -> Texts | None:
    """Return the queries of each audio file of a corpus; None if no parquet file has the columns RELEVANT."""
    columns = {path: _column_names(path) for path in shards if path.suffix.lower() == ".parquet"}
    relevant = [path for path, names in columns.items() if names >= RELEVANT]
    if not relevant:
        return None
    queries = [path for path, names in columns.items() if "text" in names and not names & {*RELEVANT, *AUDIO_COLUMNS}]
    texts = {_row_id(row, str(path)): str(row["text"]) for path in queries for row in _read_rows(path) if row["text"]}
    found: dict[str, list[str]] = {}
    for path in relevant:
        for row in _read_rows(path):
            if row.get("score", 1):
                query = str(row["query-id"])
                if query not in texts:
                    raise DataError(f"{path}: no query has the id {query}; fetch the queries of the same data set")
                found.setdefault(str(row["corpus-id"]), []).append(texts[query])
    return Texts([path for path in shards if path not in (*relevant, *queries)], found)


def _column_names(path: Path) -> set[str]:
    """Return the names of the columns of a parquet file."""
    with opened_parquet(path) as file:
        return set(file.schema_arrow.names)


def _read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a parquet file as dicts."""
    with opened_parquet(path) as file, parquet_errors(path):
        rows: list[dict[str, Any]] = file.read().to_pylist()
        return rows


def _row_id(fields: dict[str, Any], where: str) -> str:
    """Return the id in a row. Raises DataError for a row without id."""
    for name in IDS:
        if fields.get(name) is not None:
            return str(fields[name])
    raise DataError(f"{where}: no column {' or '.join(IDS)}; give a data set with ids")
