"""Score matrices on disk.

Read and write score matrices: one score for every pair of a query and a clip, stored as two files.

NAME.npy contains the scores, float32 of shape (Q, C) for Q queries and C clips; higher is better. NAME.json describes
the rows and columns: `queries` (id, text, ids of the relevant clips or null), `clips` (id, file name), and any `facts`
about the origin of the scores. It also contains the sha256 of NAME.npy and a checksum of itself. Files without these
checksums, from an earlier release or another program, are also read.
"""

import hashlib
import io
import json
import math
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from data_tools.cli import counted
from data_tools.errors import DataError
from data_tools.files import checksum, writing
from submission.arrays import Scores
from submission.blocks import row_blocks
from submission.errors import SubmissionError
from submission.ordering import require_finite

MAX_IN_MEMORY = 1 << 28  # number of scores: 1 GiB
MAKE_AGAIN = "write the file again with the command that wrote it"


@dataclass(frozen=True, eq=False)
class Labels:
    """Description of the rows (Q queries) and columns (C clips) of a score matrix.

    Attributes:
        query_ids, query_texts: (Q,) id and text of each query; the ids are unique.
        clip_ids, file_names: (C,) id and file name of each clip; the ids are unique.
        relevant: (Q,) for each query, a list of the ids of its relevant clips; None if these are not known, as in a
            blind set.
        facts: Any JSON values about the origin of the scores (model, commit, ...).

    The constructor raises SubmissionError for repeated ids, wrong lengths, or a relevant clip outside the pool.
    """

    query_ids: list[str]
    query_texts: list[str]
    clip_ids: list[str]
    file_names: list[str]
    relevant: list[list[str] | None]
    facts: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise SubmissionError for repeated ids, lists of unequal lengths, or a relevant clip outside the pool."""
        n_queries, n_clips = shape = self.shape
        if 0 in shape:
            raise SubmissionError(f"scores of shape {shape} have no query or no clip; give at least one of each")
        for name, expected in (("query_texts", n_queries), ("relevant", n_queries), ("file_names", n_clips)):
            if (length := len(getattr(self, name))) != expected:
                raise SubmissionError(f"scores of shape {shape} need {expected} {name}; got {length}")
        _require_unique("query id", self.query_ids)
        _require_unique("clip id", self.clip_ids)
        pool = frozenset(self.clip_ids)
        for query_id, clips in zip(self.query_ids, self.relevant, strict=True):
            if clips is None:
                continue
            where = f"query {query_id!r}"
            if not clips:
                raise SubmissionError(
                    f"{where} has an empty list of relevant clips; use None (in JSON null) if its clips are unknown"
                )
            _require_unique(f"{where}: relevant clip", clips)
            for clip_id in clips:
                if clip_id not in pool:
                    raise SubmissionError(
                        f"{where}: its relevant clip {clip_id!r} is not among the pool's {counted(n_clips, 'clip')}; "
                        "correct the query's list of relevant clips"
                    )

    @property
    def shape(self) -> tuple[int, int]:
        """Shape (Q, C) of the score matrix: number of queries and number of clips."""
        return len(self.query_ids), len(self.clip_ids)

    def document(self, sha256: str) -> bytes:
        """Return the content of the file NAME.json that describes a score matrix. sha256: Checksum of NAME.npy.

        Raises TypeError or ValueError for values that JSON in UTF-8 cannot represent.
        """
        queries = zip(self.query_ids, self.query_texts, self.relevant, strict=True)
        clips = zip(self.clip_ids, self.file_names, strict=True)
        document = {
            "facts": self.facts,
            "sha256": sha256,
            "queries": [{"id": id_, "text": text, "relevant": relevant} for id_, text, relevant in queries],
            "clips": [{"id": id_, "file_name": name} for id_, name in clips],
        }
        return json.dumps(document, ensure_ascii=False, allow_nan=False, indent=1).encode()


@dataclass(frozen=True, eq=False)
class ScoreMatrix:
    """Scores of Q queries against C clips, with a description of the queries and clips (see Labels).

    values: (Q, C) float32, finite, higher is better; memory-mapped if read from a file. The constructor raises
    SubmissionError for other values, and for everything that Labels refuses.
    """

    values: Scores
    query_ids: list[str]
    query_texts: list[str]
    clip_ids: list[str]
    file_names: list[str]
    relevant: list[list[str] | None]
    facts: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise SubmissionError for scores of a wrong type, shape or value, and for invalid labels."""
        if self.values.ndim != 2 or self.values.dtype != np.float32:
            raise SubmissionError(
                f"scores must be a float32 matrix, queries x clips; got {self.values.dtype} of shape "
                f"{self.values.shape}"
            )
        if 0 in self.values.shape:
            shape = self.values.shape
            raise SubmissionError(f"scores of shape {shape} have no query or no clip; give at least one of each")
        for name, expected in zip(("query_ids", "clip_ids"), self.values.shape, strict=True):
            if (length := len(getattr(self, name))) != expected:
                raise SubmissionError(f"scores of shape {self.values.shape} need {expected} {name}; got {length}")
        assert self.labels.shape == self.values.shape  # the constructor of Labels checks them
        require_finite(self.values)

    def __len__(self) -> int:
        """Return the number of queries."""
        return len(self.query_ids)

    @property
    def labels(self) -> Labels:
        """All data of the score matrix except the scores: ids, texts, file names, relevant clips, and metadata."""
        names = (self.query_ids, self.query_texts, self.clip_ids, self.file_names)
        return Labels(*names, self.relevant, self.facts)

    def relevant_columns(self) -> list[list[int]]:
        """Return the columns of each query's relevant clips in increasing order; [] if these clips are not known."""
        column_of = {clip_id: column for column, clip_id in enumerate(self.clip_ids)}
        return [sorted(column_of[clip] for clip in clips or ()) for clips in self.relevant]


def write_scores(path: Path, matrix: ScoreMatrix) -> None:
    """Write a score matrix to the files NAME.npy (`path`) and NAME.json; see write_blocks."""
    write_blocks(path, matrix.labels, (matrix.values[block] for block in row_blocks(matrix.values)))


def write_blocks(path: Path, labels: Labels, blocks: Iterable[Scores]) -> None:
    """Write a score matrix block by block to the files NAME.npy (`path`) and NAME.json.

    blocks: Arrays of finite scores, each (n, C) for the next n queries and all C clips. Only one block is in memory
    at a time. Each file is written completely or not at all. An older NAME.json is removed before the new scores
    replace the old ones. After an interruption, one of the files is therefore missing, which read_scores refuses; new
    scores never have old labels.
    Raises SubmissionError for a path that does not end in .npy, for facts that JSON cannot represent, for text that
    UTF-8 cannot encode, and for scores that are not finite. Raises OSError, with the file, when writing fails. Raises
    ValueError for blocks of another type, or with other rows and columns than the labels.
    """
    sidecar = _sidecar_path(path)
    try:
        labels.document("")
    except (TypeError, ValueError) as error:
        raise SubmissionError(
            f"{sidecar}: ids, texts, file names and facts must be plain JSON values in valid Unicode ({error})"
        ) from None
    header = io.BytesIO()
    facts = {"descr": "<f4", "fortran_order": False, "shape": labels.shape}
    np.lib.format.write_array_header_1_0(header, facts)
    checksum, rows = hashlib.sha256(header.getbuffer()), 0
    with writing(path) as file:
        # Not np.save: it uses C's stdio and does not notice if the last write fails on a full disk.
        file.write(header.getbuffer())
        for block in blocks:
            if block.dtype != np.float32 or block.ndim != 2 or block.shape[1] != labels.shape[1]:
                raise ValueError(
                    f"a block of scores is {block.dtype} of shape {block.shape}; it needs {labels.shape[1]} "
                    "columns of float32"
                )
            require_finite(block, rows)
            contiguous = np.ascontiguousarray(block).astype("<f4", copy=False)
            file.write(contiguous.data)
            checksum.update(contiguous.data)
            rows += len(block)
        if rows != labels.shape[0]:
            raise ValueError(f"the blocks have {rows} rows in total; they need {labels.shape[0]}, one per query")
        sidecar.unlink(missing_ok=True)
    with writing(sidecar) as file:
        file.write(labels.document(checksum.hexdigest()))


def matrix_from_blocks(labels: Labels, blocks: Iterable[Scores]) -> ScoreMatrix:
    """Build a score matrix from blocks of its rows: in memory, or in a temporary file if it is large.

    A matrix of more than MAX_IN_MEMORY scores is mapped from a temporary file, which is deleted when no array uses it
    any more. Raises the same errors as write_blocks.
    """
    if math.prod(labels.shape) > MAX_IN_MEMORY:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            path = Path(folder) / "scores.npy"
            write_blocks(path, labels, blocks)
            return read_scores(path)
    values, done = np.empty(labels.shape, dtype=np.float32), 0
    for block in blocks:
        values[done : done + len(block)] = block
        done += len(block)
    return ScoreMatrix(values, **{field.name: getattr(labels, field.name) for field in fields(labels)})


def read_scores(path: Path) -> ScoreMatrix:
    """Read a score matrix: NAME.npy (memory-mapped, read only) and its NAME.json.

    Raises SubmissionError, with the file, if one of the files is missing, damaged or of another kind, if the two do not
    belong together, or if ScoreMatrix refuses the content.
    """
    sidecar = _sidecar_path(path)
    for half in (path, sidecar):
        if not half.is_file():
            raise SubmissionError(f"{half} is missing; a score matrix needs both {path.name} and {sidecar.name}")
    try:
        values = np.lib.format.open_memmap(path, mode="r")
    except OSError:
        raise
    except Exception as error:  # for a damaged header, numpy raises ValueError, SyntaxError, TokenError, and more
        raise SubmissionError(f"{path} is not a complete .npy file of numbers ({error}); {MAKE_AGAIN}") from None
    if (size := path.stat().st_size) != (expected_size := values.offset + values.nbytes):
        raise SubmissionError(f"{path} has {size} bytes, but its header states {expected_size}; {MAKE_AGAIN}")
    from data_tools.documents.strict import read_shaped
    from submission.formats.sidecar import Sidecar  # pydantic, which scoring a ranked CSV does not need

    try:
        document = read_shaped(sidecar, Sidecar, MAKE_AGAIN)
    except DataError as error:
        raise SubmissionError(str(error)) from None
    if document.sha256 not in (None, checksum(path)):
        raise SubmissionError(f"{path} is damaged: its checksum differs from that in {sidecar.name}; {MAKE_AGAIN}")
    try:
        return ScoreMatrix(
            values=values,
            query_ids=[query.id for query in document.queries],
            query_texts=[query.text for query in document.queries],
            clip_ids=[clip.id for clip in document.clips],
            file_names=[clip.file_name for clip in document.clips],
            relevant=[query.relevant for query in document.queries],
            facts=document.facts,
        )
    except SubmissionError as error:
        raise SubmissionError(f"{path}: {error}") from None


def _sidecar_path(path: Path) -> Path:
    """Return the path of the .json file that belongs to a .npy file. Raises SubmissionError for another suffix."""
    if path.suffix != ".npy":
        raise SubmissionError(f"{path}: a score matrix is a file NAME.npy with NAME.json; give the name NAME.npy")
    return path.with_suffix(".json")


def _require_unique(kind: str, ids: Sequence[str]) -> None:
    """Raise SubmissionError if an id occurs twice in `ids`. kind: Word for an id in the message, such as `clip id`."""
    if repeated := first_repeat(ids):
        raise SubmissionError(f"{kind} {ids[repeated[0]]!r} occurs twice; each must be unique")


def first_repeat(texts: Iterable[str]) -> tuple[int, int] | None:
    """Return the positions of the first two equal texts in a list; None if all texts are different."""
    first_index: dict[str, int] = {}
    for index, text in enumerate(texts):
        if first_index.setdefault(text, index) != index:
            return first_index[text], index
    return None
