"""Queries and their relevant clips.

Read the truth that a submitted file is compared with: file names of the pool, queries, and their relevant clips.

A submitted file identifies a query only by its text. Two queries with the same text cannot be distinguished, so every
function here refuses them. The official 2022 scorer would use only the last of them, without a message.
"""

import ast
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from data_tools.cli import counted
from data_tools.datasets.nearest import NAME_WAYS, TEXT_WAYS, Nearest
from data_tools.documents.problems import shown
from data_tools.files import require_folder
from data_tools.names import audio_tree
from submission.errors import SubmissionError
from submission.formats.csv_table import Row, parse_table
from submission.formats.score_matrix import Labels, ScoreMatrix, first_repeat

# Maximum number of places in one message; Clotho's development split has 16.
MAX_SHOWN_LINES = 20


class TruthQuery(NamedTuple):
    """A query of the truth.

    Attributes:
        where: Place of the query in its source, such as a line of a file, for messages.
        relevant: File names of the relevant clips; None if they are not known.
        id: Id of the query in its source; None if the source has no ids.
    """

    where: str
    relevant: frozenset[str] | None
    id: str | None = None


@dataclass(frozen=True)
class Truth:
    """Queries with their relevant clips, and the pool, from one source: a captions file, a score matrix or a blind set.

    Attributes:
        queries: Dict from a query's text to its TruthQuery, in the order of the source.
        file_names: File names of all clips in the pool.
        clip_ids: Dict from file name to the id of the clip in the source; empty if the source has no ids.
    """

    queries: Mapping[str, TruthQuery]
    file_names: frozenset[str]
    clip_ids: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def similar_queries(self) -> Nearest:
        """Search index of the queries, used to suggest the known query that is most similar to an unknown query."""
        return Nearest(self.queries, TEXT_WAYS)

    @cached_property
    def similar_file_names(self) -> Nearest:
        """Search index of the file names, used to suggest the known name that is most similar to an unknown name."""
        return Nearest(sorted(self.file_names), NAME_WAYS)


def read_clotho_truth(path: Path) -> Truth:
    """Read the truth from a captions file in Clotho's format: file_name,caption_1,...,caption_n, one row per clip.

    Every caption is a query, and the file of its row is the relevant clip. The files of all rows are the pool. Texts
    are unchanged. The same caption twice in one row is one query, as in the official 2022 script.

    A caption of several files is refused, with its lines; Clotho has 16 of them, all in the development split. The
    official script scores such a caption against the last of its files, without a message. Any other choice would
    change the published figures. Score such a split from its score matrix, where each caption is a separate query.

    Raises SubmissionError, with file and line, for such a caption, and for a file in another format.
    """
    header, *clips = _read_rows(path)
    n_captions = max(1, len(header.cells) - 1)
    expected = ["file_name", *(f"caption_{number}" for number in range(1, n_captions + 1))]
    if header.cells != expected:
        raise _header_error(
            path, header, "the header must be file_name,caption_1,caption_2,... as in Clotho's caption files"
        )
    if not clips:
        raise SubmissionError(f"{path}: line 1: no clip follows the header; add one row per clip")
    line_of_name: dict[str, int] = {}
    rows_of_caption: dict[str, list[Row]] = {}
    for row in clips:
        for column, cell in zip(header.cells, row.cells, strict=True):
            if not cell.strip():
                raise SubmissionError(f"{path}: line {row.line}: {column} is empty; fill it in or remove the row")
        name, *captions = row.cells
        _refuse_repeated(path, row.line, "file name", name, line_of_name)
        for caption in dict.fromkeys(captions):
            rows_of_caption.setdefault(caption, []).append(row)
    _refuse_shared_captions(path, rows_of_caption)
    queries = {
        caption: TruthQuery(f"line {row.line} of {path.name}", frozenset([row.cells[0]]))
        for caption, (row,) in rows_of_caption.items()
    }
    return Truth(queries, frozenset(line_of_name))


def matrix_truth(matrix: ScoreMatrix | Labels) -> Truth:
    """Return the queries, clips and relevant clips of a score matrix as a Truth; relevant clips may be unknown.

    Raises SubmissionError if two clips have the same file name, or two queries the same text, since a CSV identifies
    clips and queries by these.
    """
    if same_name := first_repeat(matrix.file_names):
        first, second = (matrix.clip_ids[index] for index in same_name)
        raise SubmissionError(
            f"clips {first!r} and {second!r} have the same file name {matrix.file_names[same_name[0]]!r}, so a CSV "
            "could not distinguish them; rank a pool with unique file names"
        )
    if same_text := first_repeat(matrix.query_texts):
        first, second = (matrix.query_ids[index] for index in same_text)
        raise SubmissionError(
            f"queries {first!r} and {second!r} have the same text {matrix.query_texts[same_text[0]]!r}; the official "
            "scorer identifies queries by text and would drop one of them; remove one, or score the score matrix itself"
        )
    name_of = dict(zip(matrix.clip_ids, matrix.file_names, strict=True))
    queries = {
        text: TruthQuery(f"query {id_!r}", None if clips is None else frozenset(name_of[clip] for clip in clips), id_)
        for id_, text, clips in zip(matrix.query_ids, matrix.query_texts, matrix.relevant, strict=True)
    }
    return Truth(queries, frozenset(matrix.file_names), dict(zip(matrix.file_names, matrix.clip_ids, strict=True)))


def read_blind_truth(queries: Path, audio: Path) -> Truth:
    """Read the truth of a blind set: queries from a CSV file, the pool from the folder of its audio.

    The relevant clips are unknown.

    queries: A file with a column `caption`, one query per row; other columns are ignored. audio: The pool is every file
    in this folder and its subfolders with the suffix of an audio file, except hidden files. Names are those on disk,
    because the organisers' code lists the folder; three clips of the 2022 set have other names in
    retrieval_audio_metadata.csv (`:` for `_`).
    Raises SubmissionError for a table without the column `caption`, an empty or repeated query, a folder without audio,
    and a file name that is not UTF-8. Raises OSError for files that cannot be read.
    """
    header, *rows = _read_rows(queries)
    if header.cells.count("caption") != 1:
        raise _header_error(queries, header, "the header must have one column caption, as in retrieval_captions.csv")
    column = header.cells.index("caption")
    line_of_query: dict[str, int] = {}
    for row in rows:
        if not row.cells[column].strip():
            raise SubmissionError(f"{queries}: line {row.line}: caption is empty; fill it in or remove the row")
        _refuse_repeated(queries, row.line, "query", row.cells[column], line_of_query)
    if not line_of_query:
        raise SubmissionError(f"{queries}: line 1: no query follows the header; add one row per query")
    require_folder(audio)
    names, _ = audio_tree(audio)
    if not names:
        raise SubmissionError(f"{audio}: this folder has no audio file; give the folder with the audio files")
    blind = {text: TruthQuery(f"line {line} of {queries.name}", None) for text, line in line_of_query.items()}
    return Truth(blind, frozenset(names))


def read_annotations(path: Path, pool: Truth) -> Truth:
    """Read the organisers' annotations of 2025: queries of `pool` with several relevant clips each.

    Args:
        path: A CSV file with the columns query and audio_filenames; the latter is a Python list of file names.
        pool: Truth with all queries and file names of the CSV file, byte for byte. Its relevant clips are ignored: 46
            of the 1,037 queries of the official file do not list the clip for which they were written.
    Returns: the queries of the CSV file, in its order, with all file names of `pool`.

    Source: DCASE 2025 baseline, resources/metadata_eval.csv and retrieval_module.py. Deviations: none for that file; a
    repeated query or file name, which the baseline accepts, is refused.
    Raises SubmissionError, with file and line, for unknown or repeated queries and names, and for another format.
    """
    header, *rows = _read_rows(path)
    if header.cells != ["query", "audio_filenames"]:
        raise _header_error(path, header, "the header must be query,audio_filenames as in metadata_eval.csv")
    if not rows:
        raise SubmissionError(f"{path}: line 1: no query follows the header; add one row per query")
    line_of_query: dict[str, int] = {}
    queries: dict[str, TruthQuery] = {}
    for row in rows:
        text, listed = row.cells
        if text not in pool.queries:
            similar = suggestion(pool.similar_queries, text) or "; correct it, or remove the row"
            raise SubmissionError(f"{path}: line {row.line}: unknown query {text!r}{similar}")
        _refuse_repeated(path, row.line, "query", text, line_of_query)
        names = _parse_names(f"{path}: line {row.line}", listed, pool)
        queries[text] = TruthQuery(f"line {row.line} of {path.name}", names, pool.queries[text].id)
    return Truth(queries, pool.file_names, pool.clip_ids)


def suggestion(known: Nearest, text: str) -> str:
    """Return the end of a message about an unknown text: the most similar known text, or "" without a similar one."""
    if not (similar := known.to(text)):
        return ""
    return f"; the most similar known one is {similar[0]!r}, which differs in {similar[1]}; both must be equal"


def _read_rows(path: Path) -> list[Row]:
    """Read the rows of a CSV file, the header first. Raises SubmissionError unless all rows have the same width."""
    rows, problems = parse_table(path.read_bytes())
    if problems:
        raise SubmissionError(f"{path}: {problems[0]}")
    width = len(rows[0].cells)
    for row in rows:
        if end := sum(cell.count("\n") for cell in row.cells):
            raise SubmissionError(f"{path}: line {row.line}: a cell extends to line {row.line + end}; close its quote")
        if len(row.cells) != width:
            raise SubmissionError(f"{path}: line {row.line}: found {len(row.cells)} of {width} columns; correct it")
    return rows


def _refuse_repeated(path: Path, line: int, kind: str, text: str, line_of_text: dict[str, int]) -> None:
    """Add `text` with its line number to `line_of_text`. Raises SubmissionError if an earlier line has the text."""
    if line_of_text.setdefault(text, line) != line:
        first = line_of_text[text]
        raise SubmissionError(f"{path}: line {line}: {kind} {text!r} is already on line {first}; keep one of them")


def _parse_names(where: str, listed: str, pool: Truth) -> frozenset[str]:
    """Parse the text `listed`, a Python list of file names; return the names, which must be in the pool.

    Raises SubmissionError for a text that is no such list, and for a repeated or unknown name.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # an invalid backslash escape: Python did not write this list
            names = ast.literal_eval(listed)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        names = None
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise SubmissionError(
            f"{where}: audio_filenames must be a Python list of one or more file names, such as "
            f"['rain.wav', 'a door.wav']; found {shown(listed)}"
        )
    for name in names:
        if name not in pool.file_names:
            similar = suggestion(pool.similar_file_names, name) or "; correct it, or remove it from the list"
            raise SubmissionError(f"{where}: unknown file name {name!r}{similar}")
    if repeated := first_repeat(names):
        raise SubmissionError(f"{where}: the file {names[repeated[0]]!r} is listed twice; list it once")
    return frozenset(names)


def _header_error(path: Path, header: Row, requirement: str) -> SubmissionError:
    """Return an error for a wrong header. requirement: Sentence `the header must ...` for the message."""
    return SubmissionError(f"{path}: line 1: {requirement}; found {shown(','.join(header.cells))}")


def _refuse_shared_captions(path: Path, rows_of_caption: Mapping[str, list[Row]]) -> None:
    """Raises SubmissionError if several clips have the same caption, since captions identify the queries of a CSV."""
    if shared := {caption: rows for caption, rows in rows_of_caption.items() if len(rows) > 1}:
        line_lists = [" and ".join(str(row.line) for row in rows) for rows in shared.values()]
        lines = "; ".join(line_lists[:MAX_SHOWN_LINES]) + "; ..." * (len(line_lists) > MAX_SHOWN_LINES)
        raise SubmissionError(
            f"{path}: captions shared by several files make {counted(len(shared), 'query')} of a ranked CSV ambiguous "
            f"(lines {lines}; the first is {next(iter(shared))!r}); score the score matrix of this split instead"
        )
