"""Queries and their relevant clips.

The truth that a submitted file is compared with: the file names of the pool, the queries, and their relevant clips.

A submitted file identifies a query by its text only. Two queries with the same text therefore cannot be distinguished
in it, and every reader here refuses them: the official 2022 scorer would silently keep only the last one.
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
    """One query.

    where: Its place in the source, for messages. relevant: File names; None if not known. id: Its id in the source;
    None if the source has none.
    """

    where: str
    relevant: frozenset[str] | None
    id: str | None = None


@dataclass(frozen=True)
class Truth:
    """Queries and pool of a source.

    queries: Text -> TruthQuery, in the order of the source. file_names: Those of the pool.
    clip_ids: File name -> id of the clip in the source; empty if the source has none.
    """

    queries: Mapping[str, TruthQuery]
    file_names: frozenset[str]
    clip_ids: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def similar_queries(self) -> Nearest:
        """Search index of the queries, to suggest the most similar one for an unknown query."""
        return Nearest(self.queries, TEXT_WAYS)

    @cached_property
    def similar_file_names(self) -> Nearest:
        """Search index of the file names, to suggest the most similar one for an unknown name."""
        return Nearest(sorted(self.file_names), NAME_WAYS)


def read_clotho_truth(path: Path) -> Truth:
    """Read the truth from a captions file in Clotho's format: file_name,caption_1,...,caption_n, one row per clip.

    Every caption is a query, and its row's file is the relevant clip; all rows are the pool. Texts are verbatim. The
    same caption twice in one row is one query, as in the official 2022 script. A caption of several files (16 in
    Clotho's development split, none in validation and evaluation) is refused, with its lines. The official script
    silently scores it against the last of its files, and any other choice would give figures that differ from published
    ones. Score such a split from its score matrix, where each caption is a separate query.
    Raises SubmissionError, with file and line, for this and for anything that is not such a table.
    """
    header, *clips = _read_rows(path)
    n_captions = max(1, len(header.cells) - 1)
    expected = ["file_name", *(f"caption_{number}" for number in range(1, n_captions + 1))]
    if header.cells != expected:
        raise _header_error(path, header, "be file_name,caption_1,caption_2,... as in Clotho's caption files")
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
    """Return a score matrix's queries, clips and relevant clips as a Truth; relevance may be unknown.

    Raises SubmissionError if a ranked CSV could not distinguish two clips (by file name) or two queries (by text).
    """
    if same_name := first_repeat(matrix.file_names):
        first, second = (matrix.clip_ids[index] for index in same_name)
        raise SubmissionError(
            f"clips {first!r} and {second!r} have the same file name {matrix.file_names[same_name[0]]!r}, and a ranked "
            "CSV could not distinguish them; rank a pool with unique file names"
        )
    if same_text := first_repeat(matrix.query_texts):
        first, second = (matrix.query_ids[index] for index in same_text)
        raise SubmissionError(
            f"queries {first!r} and {second!r} have the same text {matrix.query_texts[same_text[0]]!r}, and the "
            "official scorer, which identifies a query by its text, would drop one of them; keep one of them, or score "
            "the matrix itself"
        )
    name_of = dict(zip(matrix.clip_ids, matrix.file_names, strict=True))
    queries = {
        text: TruthQuery(f"query {id_!r}", None if clips is None else frozenset(name_of[clip] for clip in clips), id_)
        for id_, text, clips in zip(matrix.query_ids, matrix.query_texts, matrix.relevant, strict=True)
    }
    return Truth(queries, frozenset(matrix.file_names), dict(zip(matrix.file_names, matrix.clip_ids, strict=True)))


def read_blind_truth(queries: Path, audio: Path) -> Truth:
    """Read the truth of a blind set: queries from a CSV file, the pool from the folder of its audio.

    No clip is relevant.

    queries: A file with a column `caption`, one query per row; other columns are ignored. audio: The pool is every file
    in this folder and its subfolders with the suffix of an audio file, except hidden ones, by its name on disk. Three
    clips of the 2022 set have other names in retrieval_audio_metadata.csv (`:` for `_`): the names on disk count,
    because the organisers' code lists the folder.
    Raises SubmissionError for a table without that column, an empty or repeated query, a folder without audio, and a
    name on disk that is not UTF-8. Raises OSError for files that cannot be read.
    """
    header, *rows = _read_rows(queries)
    if header.cells.count("caption") != 1:
        raise _header_error(queries, header, "have one column caption, as in retrieval_captions.csv")
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
    """Read the queries of the 2025 annotations, with several relevant clips each. pool: The truth with all clips.

    path: A CSV file with the columns query and audio_filenames, which is a Python list of file names. The pool must
    have every query and every file name of this file, byte for byte. The pool's relevant clips are ignored (46 of the
    1,037 queries of the real file do not list the clip that they were written for). Returns the queries of the file, in
    its order, and the whole pool.
    Source: DCASE 2025 baseline, resources/metadata_eval.csv and retrieval_module.py. Deviations: none for that file; a
    repeated query or name, which the baseline accepts, is refused.
    Raises SubmissionError, with file and line, for this and for anything that is not such a table.
    """
    header, *rows = _read_rows(path)
    if header.cells != ["query", "audio_filenames"]:
        raise _header_error(path, header, "be query,audio_filenames as in metadata_eval.csv")
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
    """Return the end of a message about an unknown text: the most similar known text, or "" if none is similar."""
    if not (similar := known.to(text)):
        return ""
    return f"; the most similar is {similar[0]!r}, which differs in {similar[1]}: they must match byte for byte"


def _read_rows(path: Path) -> list[Row]:
    """Read a table whose rows have equal width, its header first. Raises SubmissionError for any other file."""
    rows, problems = parse_table(path.read_bytes())
    if problems:
        raise SubmissionError(f"{path}: {problems[0]}")
    width = len(rows[0].cells)
    for row in rows:
        if len(row.cells) != width:
            raise SubmissionError(f"{path}: line {row.line}: found {len(row.cells)} of {width} columns; complete it")
    return rows


def _refuse_repeated(path: Path, line: int, kind: str, text: str, line_of_text: dict[str, int]) -> None:
    """Raises SubmissionError if `text` is in line_of_text, from an earlier line; otherwise adds it with this line."""
    if line_of_text.setdefault(text, line) != line:
        first = f"is already on line {line_of_text[text]}"
        raise SubmissionError(f"{path}: line {line}: {kind} {text!r} {first}; keep one of them")


def _parse_names(where: str, listed: str, pool: Truth) -> frozenset[str]:
    """Return the file names in the Python list `listed`, a text.

    Raises SubmissionError for a name that is repeated or unknown.
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


def _header_error(path: Path, header: Row, must: str) -> SubmissionError:
    """Return the error for a wrong header. must: The requirement, such as `begin with file_name`."""
    return SubmissionError(f"{path}: line 1: the header must {must}; found {shown(','.join(header.cells))}")


def _refuse_shared_captions(path: Path, rows_of_caption: Mapping[str, list[Row]]) -> None:
    """Raises SubmissionError if several clips share a caption: a ranked CSV names queries by caption."""
    if shared := {caption: rows for caption, rows in rows_of_caption.items() if len(rows) > 1}:
        line_lists = [" and ".join(str(row.line) for row in rows) for rows in shared.values()]
        lines = "; ".join(line_lists[:MAX_SHOWN_LINES]) + "; ..." * (len(line_lists) > MAX_SHOWN_LINES)
        raise SubmissionError(
            f"{path}: captions shared by several files make {counted(len(shared), 'query')} of a ranked CSV ambiguous "
            f"(lines {lines}; the first is {next(iter(shared))!r}); score the score matrix of this split instead"
        )
