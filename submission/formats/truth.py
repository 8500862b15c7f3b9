"""The truth that a submitted file is held against: the pool's file names, the queries, and what is relevant to each.

Such a file names a query by its text alone. A text that stands for two queries therefore cannot be told apart in
it, and every reader here refuses it: the official 2022 scorer would keep the last one and drop the others unseen.
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

# Places named in one message; Clotho's development split has 16.
MAX_SHOWN_LINES = 20


class TruthQuery(NamedTuple):
    """One query. where: its place in the source, for messages. relevant: file names, or None when not known.

    id: the source's own id of it; None where the source has none.
    """

    where: str
    relevant: frozenset[str] | None
    id: str | None = None


@dataclass(frozen=True)
class Truth:
    """queries: text -> TruthQuery, in the source's order. file_names: those of the pool.

    clip_ids: file name -> the source's own id of the clip; empty where the source has none.
    """

    queries: Mapping[str, TruthQuery]
    file_names: frozenset[str]
    clip_ids: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def similar_queries(self) -> Nearest:
        return Nearest(self.queries, TEXT_WAYS)

    @cached_property
    def similar_file_names(self) -> Nearest:
        return Nearest(sorted(self.file_names), NAME_WAYS)


def read_clotho_truth(path: Path) -> Truth:
    """Truth from a captions file as Clotho publishes it: file_name,caption_1,...,caption_n, one row per clip.

    Every caption is a query and its row's file the relevant clip; all rows are the pool. Texts are kept verbatim.
    The same caption twice in one row is one query, as in the official 2022 script. A caption that different files
    share (16 in Clotho's development split, none in validation and evaluation) is refused, with its lines: the
    official script silently scores it against the last of its files, and another choice would give other figures
    than published ones. Such a split is scored from its score matrix, where each caption stays a query of its own.
    Raises SubmissionError, naming file and line, for this and for anything that is not such a table.
    """
    header, *clips = _rows(path)
    n_captions = max(1, len(header.cells) - 1)
    expected = ["file_name", *(f"caption_{number}" for number in range(1, n_captions + 1))]
    if header.cells != expected:
        raise _header_error(path, header, "be file_name,caption_1,caption_2,... as in Clotho's caption files")
    if not clips:
        raise SubmissionError(f"{path}: line 1: no clip follows the header")
    line_of_name: dict[str, int] = {}
    rows_of_caption: dict[str, list[Row]] = {}
    for row in clips:
        for column, cell in zip(header.cells, row.cells, strict=True):
            if not cell.strip():
                raise SubmissionError(f"{path}: line {row.line}: {column} is empty")
        name, *captions = row.cells
        _refuse_repeated(path, row.line, "file name", name, line_of_name)
        for caption in dict.fromkeys(captions):
            rows_of_caption.setdefault(caption, []).append(row)
    _refuse_shared(path, rows_of_caption)
    queries = {
        caption: TruthQuery(f"line {row.line} of {path.name}", frozenset([row.cells[0]]))
        for caption, (row,) in rows_of_caption.items()
    }
    return Truth(queries, frozenset(line_of_name))


def matrix_truth(matrix: ScoreMatrix | Labels) -> Truth:
    """Truth as a score matrix holds it, ids included; relevant is None where the matrix knows of none.

    Raises SubmissionError when a ranked CSV could not tell two of its clips (by file name) or queries (by text) apart.
    """
    if same_name := first_repeat(matrix.file_names):
        one, other = (matrix.clip_ids[index] for index in same_name)
        raise SubmissionError(
            f"clips {one!r} and {other!r} have the same file name {matrix.file_names[same_name[0]]!r}, and a ranked "
            "CSV could not tell them apart; rank a pool in which every file name is unique"
        )
    if same_text := first_repeat(matrix.query_texts):
        one, other = (matrix.query_ids[index] for index in same_text)
        raise SubmissionError(
            f"queries {one!r} and {other!r} have the same text {matrix.query_texts[same_text[0]]!r}, and the official "
            "scorer, which knows a query by its text, would drop one of them; keep one of them, or score the matrix "
            "itself"
        )
    name_of = dict(zip(matrix.clip_ids, matrix.file_names, strict=True))
    queries = {
        text: TruthQuery(f"query {id_!r}", None if clips is None else frozenset(name_of[clip] for clip in clips), id_)
        for id_, text, clips in zip(matrix.query_ids, matrix.query_texts, matrix.relevant, strict=True)
    }
    return Truth(queries, frozenset(matrix.file_names), dict(zip(matrix.file_names, matrix.clip_ids, strict=True)))


def read_blind_truth(queries: Path, audio: Path) -> Truth:
    """Truth of a blind set: its queries from a CSV file, its pool from the folder of its audio; nothing is relevant.

    queries: a file with a column `caption`, one query a row; other columns do not matter. audio: the pool is every
    file in it and its subfolders with the ending of an audio file (hidden files are none), under the name it has on
    disk. Three clips of the 2022 set are called otherwise in retrieval_audio_metadata.csv (`:` where the disk has
    `_`): the names on disk count, since the organisers' own code lists the folder.
    Raises SubmissionError for a table without that column, an empty query, a query that stands twice, a folder
    without audio, and a name on disk that is not UTF-8; OSError for what cannot be read.
    """
    header, *rows = _rows(queries)
    if header.cells.count("caption") != 1:
        raise _header_error(queries, header, "have one column caption, as in retrieval_captions.csv")
    column = header.cells.index("caption")
    line_of_query: dict[str, int] = {}
    for row in rows:
        if not row.cells[column].strip():
            raise SubmissionError(f"{queries}: line {row.line}: caption is empty")
        _refuse_repeated(queries, row.line, "query", row.cells[column], line_of_query)
    if not line_of_query:
        raise SubmissionError(f"{queries}: line 1: no query follows the header")
    require_folder(audio)
    names, _ = audio_tree(audio)
    if not names:
        raise SubmissionError(f"{audio}: no audio file is in this folder; give the one that holds them")
    blind = {text: TruthQuery(f"line {line} of {queries.name}", None) for text, line in line_of_query.items()}
    return Truth(blind, frozenset(names))


def read_annotations(path: Path, pool: Truth) -> Truth:
    """The queries of the 2025 annotations, each with its several relevant clips, over another truth's pool.

    path: a file query,audio_filenames, the second column a Python list of file names. pool: has every query and every
    file name of it, byte for byte; what is relevant in it does not count (46 of the 1,037 queries of the real file do
    not list the clip that they were written for). Returns the queries of the file, in its order, and the whole pool.
    Source: DCASE 2025 baseline, resources/metadata_eval.csv and retrieval_module.py. Deviations: none for that file;
    a query or a name that stands twice, which the baseline takes, is refused.
    Raises SubmissionError, naming file and line, for this and for anything that is not such a table.
    """
    header, *rows = _rows(path)
    if header.cells != ["query", "audio_filenames"]:
        raise _header_error(path, header, "be query,audio_filenames as in metadata_eval.csv")
    if not rows:
        raise SubmissionError(f"{path}: line 1: no query follows the header")
    line_of_query: dict[str, int] = {}
    queries: dict[str, TruthQuery] = {}
    for row in rows:
        text, listed = row.cells
        if text not in pool.queries:
            hint = instead(pool.similar_queries, text)
            raise SubmissionError(f"{path}: line {row.line}: unknown query {text!r}{hint}")
        _refuse_repeated(path, row.line, "query", text, line_of_query)
        names = _listed_names(f"{path}: line {row.line}", listed, pool)
        queries[text] = TruthQuery(f"line {row.line} of {path.name}", names, pool.queries[text].id)
    return Truth(queries, pool.file_names, pool.clip_ids)


def instead(known: Nearest, text: str) -> str:
    """The end of a sentence about an unknown text: which of the known ones it was meant to be."""
    if not (similar := known.to(text)):
        return ""
    return f"; there is {similar[0]!r}, which differs in {similar[1]}: they must agree byte for byte"


def _rows(path: Path) -> list[Row]:
    """The rows of a table of equal width, its header first; SubmissionError for any other file."""
    rows, problems = parse_table(path.read_bytes())
    if problems:
        raise SubmissionError(f"{path}: {problems[0]}")
    width = len(rows[0].cells)
    for row in rows:
        if len(row.cells) != width:
            raise SubmissionError(f"{path}: line {row.line}: found {len(row.cells)} of {width} columns")
    return rows


def _refuse_repeated(path: Path, line: int, what: str, text: str, line_of_text: dict[str, int]) -> None:
    if line_of_text.setdefault(text, line) != line:
        raise SubmissionError(f"{path}: line {line}: {what} {text!r} stands on line {line_of_text[text]} already")


def _listed_names(where: str, listed: str, pool: Truth) -> frozenset[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a backslash that means nothing: no list that Python wrote
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
            raise SubmissionError(f"{where}: unknown file name {name!r}{instead(pool.similar_file_names, name)}")
    if repeated := first_repeat(names):
        raise SubmissionError(f"{where}: the file {names[repeated[0]]!r} is listed twice")
    return frozenset(names)


def _header_error(path: Path, header: Row, must: str) -> SubmissionError:
    return SubmissionError(f"{path}: line 1: the header must {must}; found {shown(','.join(header.cells))}")


def _refuse_shared(path: Path, rows_of_caption: Mapping[str, list[Row]]) -> None:
    if shared := {caption: rows for caption, rows in rows_of_caption.items() if len(rows) > 1}:
        line_lists = [" and ".join(str(row.line) for row in rows) for rows in shared.values()]
        lines = "; ".join(line_lists[:MAX_SHOWN_LINES]) + "; ..." * (len(line_lists) > MAX_SHOWN_LINES)
        raise SubmissionError(
            f"{path}: captions shared by several files make {counted(len(shared), 'query')} of a ranked CSV ambiguous "
            f"(lines {lines}; the first is {next(iter(shared))!r}); score the score matrix of this split instead"
        )
