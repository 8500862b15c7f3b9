"""Queries with their relevant clips.

Captions files, blind sets, and the annotations of 2025.

A submitted file identifies a query only by its text, so two queries with the same text are refused here. The official
2022 scorer would use only the last of them, without a message.
"""

import ast
import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import mode

from data_tools.files import require_folder
from data_tools.names import audio_tree
from submission.errors import SubmissionError
from submission.formats.problems import Problem
from submission.formats.score_matrix import Labels

Row = tuple[int, list[str]]  # line number and cells


@dataclass(frozen=True)
class Truth:
    """Queries and the pool that a submitted file must have.

    Attributes:
        relevant: Relevant file names of each query, by its text; None if they are not known.
        pool: File names of all clips.
    """

    relevant: Mapping[str, frozenset[str] | None]
    pool: frozenset[str]


def read_rows(path: Path, columns: list[str]) -> tuple[list[str], list[Row]]:
    """Read a CSV file; return its header, which has some columns, and its rows."""
    try:
        rows = parse_rows(path.read_bytes().removeprefix(b"\xef\xbb\xbf"))
    except (UnicodeDecodeError, csv.Error) as error:
        raise SubmissionError(f"{path}: no CSV in UTF-8 with commas and double quotes ({error})") from None
    header = rows[0][1] if rows else []
    if missing := [name for name in columns if name not in header]:
        raise SubmissionError(f"{path}: no column {missing[0]}; the header is {','.join(header)!r}")
    if len(rows) < 2:
        raise SubmissionError(f"{path}: no row follows the header")
    for line, cells in rows[1:]:
        if len(cells) != len(header) or not all(cell.strip() for cell in cells) or any("\n" in cell for cell in cells):
            raise SubmissionError(f"{path}: line {line}: an empty cell, a cell over several lines, or other columns")
    return header, rows[1:]


def parse_rows(data: bytes) -> list[Row]:
    """Return the rows of a CSV.

    Raises csv.Error, or UnicodeDecodeError, for other files.
    """
    reader = csv.reader(io.StringIO(data.decode(), newline=""), strict=True)
    return [(reader.line_num, cells) for cells in reader]


def read_captions(path: Path) -> Truth:
    """Read a captions file in Clotho's format.

    Every caption is a query, the file of its row is relevant. Raises SubmissionError for a caption of several files: a
    CSV could not distinguish these queries. Clotho has 16, all in the development split; the official script scores the
    last file only.
    """
    header, rows = read_rows(path, ["file_name", "caption_1"])
    if header[0] != "file_name" or not all(name.startswith("caption_") for name in header[1:]):
        raise SubmissionError(f"{path}: the header must be file_name,caption_1,..., not {','.join(header)!r}")
    relevant: dict[str, frozenset[str]] = {}
    pool: set[str] = set()
    for line, (name, *texts) in rows:
        if name in pool:
            raise SubmissionError(f"{path}: {Problem(line, 'a file name is repeated', name)}")
        pool.add(name)
        for text in texts:
            if relevant.setdefault(text, frozenset([name])) != {name}:
                problem = Problem(line, "another file has the same caption", text)
                raise SubmissionError(f"{path}: {problem}; score the score matrix")
    return Truth(relevant, frozenset(pool))


def read_blind_set(queries: Path, audio: Path) -> Truth:
    """Read a blind set.

    Queries from the column `caption`, the pool from a folder of audio files.

    Names are those on disk: three clips of 2022 have other names in retrieval_audio_metadata.csv.
    """
    require_folder(audio)
    names, _ = audio_tree(audio)
    if not names:
        raise SubmissionError(f"{audio}: no audio file")
    relevant: dict[str, None] = {}
    header, rows = read_rows(queries, ["caption"])
    for line, cells in rows:
        if (text := cells[header.index("caption")]) in relevant:
            raise SubmissionError(f"{queries}: {Problem(line, 'the query is repeated', text)}")
        relevant[text] = None
    return Truth(relevant, frozenset(names))


def read_annotations(path: Path, pool: Truth) -> Truth:
    """Read the organisers' annotations of 2025.

    Several relevant file names for some queries of `pool`.

    Source: DCASE 2025 baseline, resources/metadata_eval.csv.
    """
    relevant: dict[str, frozenset[str]] = {}
    header, rows = read_rows(path, ["query", "audio_filenames"])
    for line, cells in rows:
        text, listed = (cells[header.index(name)] for name in ("query", "audio_filenames"))
        if text not in pool.relevant or text in relevant:
            raise SubmissionError(f"{path}: {Problem(line, 'unknown or repeated query', text, pool.relevant)}")
        try:
            names = frozenset(ast.literal_eval(listed))
        except (ValueError, SyntaxError, TypeError):
            names = frozenset()
        if not names or (strange := names - pool.pool):
            problem = Problem(
                line, "no list of known file names", min(map(str, strange)) if names else listed, pool.pool
            )
            raise SubmissionError(f"{path}: {problem}")
        relevant[text] = names
    return Truth(relevant, pool.pool)


def matrix_truth(matrix: Labels) -> Truth:
    """Return the queries and clips of a score matrix.

    Raises SubmissionError for equal texts or equal file names.
    """
    name_of = dict(zip(matrix.clip_ids, matrix.file_names, strict=True))
    names = [clips and frozenset(name_of[clip] for clip in clips) for clips in matrix.relevant]
    relevant = dict(zip(matrix.query_texts, (each or None for each in names), strict=True))
    for what, texts in (
        ("queries have the same text", matrix.query_texts),
        ("clips have the same file name", matrix.file_names),
    ):
        if len(set(texts)) < len(texts):
            raise SubmissionError(f"two {what} {mode(texts)!r}, which a CSV cannot tell apart")
    return Truth(relevant, frozenset(matrix.file_names))
