"""Score matrices on disk.

NAME.npy: float32 of Q queries x C clips, higher is better. NAME.json: the rows and columns.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from data_tools.errors import KitError
from data_tools.files import read_json, require_file, write_json, writing
from submission.ordering import require_finite


@dataclass(frozen=True, eq=False)
class Labels:
    """The rows and columns of a score matrix.

    Attributes:
        query_ids, query_texts: (Q,) of each query; the ids are unique, the texts perhaps not.
        clip_ids, file_names: (C,) of each clip; the ids are unique.
        relevant: (Q,) ids of the relevant clips of each query; None if they are not known, as in a blind set.
        facts: Origin of the scores: model, commit, edition.
    """

    query_ids: list[str]
    query_texts: list[str]
    clip_ids: list[str]
    file_names: list[str]
    relevant: list[list[str] | None]
    facts: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise KitError for labels that contradict each other."""
        rows, columns = self.shape
        texts = [self.query_ids, self.query_texts, self.clip_ids, self.file_names]
        if 0 in self.shape or [*map(len, texts), len(self.relevant)] != [rows, rows, columns, columns, rows]:
            raise KitError(f"scores of shape {self.shape} need as many texts, names and lists of relevant clips")
        if not all(isinstance(text, str) for names in texts for text in names):
            raise KitError("an id, text or file name is no text; write it in quotes")
        pool = set(self.clip_ids)
        if len(pool) < columns or len(set(self.query_ids)) < rows:
            raise KitError("the ids of clips or queries are not unique")
        for query, clips in zip(self.query_ids, self.relevant, strict=True):
            if clips is not None and not 0 < len(clips) == len(pool.intersection(clips)):
                raise KitError(f"query {query!r}: its relevant clips are none, repeated, or not in the pool")

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of queries and clips."""
        return len(self.query_ids), len(self.clip_ids)


@dataclass(frozen=True, eq=False)
class ScoreMatrix(Labels):
    """Scores with their labels.

    Attributes:
        values: (Q, C) float32, memory-mapped if read from a file.
        depth: Number of ranks that are known, of a ranked CSV; None if all are.
    """

    values: np.ndarray = field(kw_only=True)
    depth: int | None = None

    def __post_init__(self) -> None:
        """Raise KitError for scores of another shape, NaN or infinity."""
        super().__post_init__()
        if self.values.dtype != np.float32 or self.values.shape != self.shape:
            found = f"{self.values.dtype} of shape {self.values.shape}"
            raise KitError(f"scores must be float32 of shape {self.shape}, not {found}")
        require_finite(self.values)

    def __len__(self) -> int:
        """Return the number of queries."""
        return len(self.query_ids)

    def relevant_columns(self) -> list[list[int]]:
        """Return the columns of each query's relevant clips, increasing."""
        column_of = {clip: column for column, clip in enumerate(self.clip_ids)}
        return [sorted(column_of[clip] for clip in clips or ()) for clips in self.relevant]


def matrix_from_blocks(labels: Labels, blocks: Iterable[np.ndarray]) -> ScoreMatrix:
    """Build a score matrix from blocks of its rows."""
    return ScoreMatrix(**vars(labels), values=np.concatenate(list(blocks)))


def write_scores(path: Path, matrix: ScoreMatrix) -> None:
    """Write NAME.npy (`path`) and NAME.json."""
    write_blocks(path, matrix, [matrix.values])


def write_blocks(path: Path, labels: Labels, blocks: Iterable[np.ndarray]) -> None:
    """Write NAME.npy (`path`) and NAME.json, block by block."""
    sidecar = _sidecar(path)
    queries = zip(labels.query_ids, labels.query_texts, labels.relevant, strict=True)
    clips = zip(labels.clip_ids, labels.file_names, strict=True)
    description = {
        "facts": labels.facts,
        "queries": [{"id": id_, "text": text, "relevant": relevant} for id_, text, relevant in queries],
        "clips": [{"id": id_, "file_name": name} for id_, name in clips],
    }
    with writing(path) as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": labels.shape}
        np.lib.format.write_array_header_1_0(file, header)
        for block in blocks:
            require_finite(block)
            file.write(np.ascontiguousarray(block, "<f4").data)
        sidecar.unlink(missing_ok=True)  # new scores never have old labels
    write_json(sidecar, description)


def read_scores(path: Path) -> ScoreMatrix:
    """Read a score matrix.

    Raises KitError if NAME.npy or NAME.json is missing or damaged.
    """
    sidecar = _sidecar(path)
    for half in (path, sidecar):
        require_file(half, "a score matrix is NAME.npy and NAME.json")
    described = read_json(sidecar)
    try:
        values = np.lib.format.open_memmap(path, mode="r")
        queries, clips = described["queries"], described["clips"]
        return ScoreMatrix(
            [query["id"] for query in queries],
            [query["text"] for query in queries],
            [clip["id"] for clip in clips],
            [clip["file_name"] for clip in clips],
            [query["relevant"] for query in queries],
            dict(described.get("facts", {})),
            values=values,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise KitError(f"{path}: no score matrix ({error}); write it again") from None


def _sidecar(path: Path) -> Path:
    if path.suffix != ".npy":
        raise KitError(f"{path}: no score matrix; give the name NAME.npy")
    return path.with_suffix(".json")
