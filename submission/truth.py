"""The truth that a ranked CSV is held against: the pool's file names, the queries, and what is relevant to each.

A ranked CSV names a query by its text alone. A text that stands for two queries therefore cannot be told apart in
it, and every reader here refuses it: the official 2022 scorer would keep the last one and drop the others unseen.
"""

import html
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from submission.errors import SubmissionError
from submission.scores import ScoreMatrix
from submission.table import Row, parse_table

# Places named in one message; Clotho's development split has 16.
SHOWN_PLACES = 20


@dataclass(frozen=True)
class TruthQuery:
    """One query. where: its place in the source, for messages. relevant: file names, or None when not known."""

    where: str
    relevant: frozenset[str] | None


@dataclass(frozen=True)
class Truth:
    """queries: text -> TruthQuery, in the source's order. file_names: those of the pool."""

    queries: Mapping[str, TruthQuery]
    file_names: frozenset[str]

    def similar_query(self, text: str) -> str | None:
        """The query that differs from text only as _loose forgives, for a hint in a message; None if there is none."""
        return self._loose_queries.get(_loose(text))

    def similar_file_name(self, name: str) -> str | None:
        """The pool's file name that differs from name only as _loose forgives; None if there is none."""
        return self._loose_file_names.get(_loose(name))

    @cached_property
    def _loose_queries(self) -> dict[str, str]:
        return {_loose(text): text for text in self.queries}

    @cached_property
    def _loose_file_names(self) -> dict[str, str]:
        return {_loose(name): name for name in self.file_names}


def read_clotho_truth(path: Path) -> Truth:
    """Truth from a captions file as Clotho publishes it: file_name,caption_1,...,caption_n, one row per clip.

    Every caption is a query and its row's file the relevant clip; all rows are the pool. Texts are kept verbatim.
    The same caption twice in one row is one query, as in the official 2022 script. A caption that different files
    share (16 in Clotho's development split, none in validation and evaluation) is refused, with its lines: the
    official script silently scores it against the last of its files, and another choice would give other figures
    than published ones. Such a split is scored from its score matrix, where each caption stays a query of its own.
    Raises SubmissionError, naming file and line, for this and for anything that is not such a table.
    """
    rows, problems = parse_table(path.read_bytes())
    if problems:
        raise SubmissionError(f"{path}: {problems[0]}")
    header, *clips = rows
    _check_header(path, header)
    if not clips:
        raise SubmissionError(f"{path}: line 1: no clip follows the header")
    line_of_name: dict[str, int] = {}
    rows_of_caption: dict[str, list[Row]] = {}
    for row in clips:
        where = f"{path}: line {row.line}"
        if len(row.cells) != len(header.cells):
            raise SubmissionError(f"{where}: found {len(row.cells)} of {len(header.cells)} columns")
        for column, cell in zip(header.cells, row.cells, strict=True):
            if not cell.strip():
                raise SubmissionError(f"{where}: {column} is empty")
        name, *captions = row.cells
        if name in line_of_name:
            raise SubmissionError(f"{where}: file name {name!r} stands on line {line_of_name[name]} already")
        line_of_name[name] = row.line
        for caption in dict.fromkeys(captions):
            rows_of_caption.setdefault(caption, []).append(row)
    _refuse_shared(path, rows_of_caption)
    queries = {
        caption: TruthQuery(f"line {row.line} of {path.name}", frozenset([row.cells[0]]))
        for caption, (row,) in rows_of_caption.items()
    }
    return Truth(queries, frozenset(line_of_name))


def matrix_truth(matrix: ScoreMatrix) -> Truth:
    """Truth as a score matrix holds it; relevant is None where the matrix knows of none.

    Raises SubmissionError when a ranked CSV could not tell two of its clips (by file name) or queries (by text) apart.
    """
    same_name = _first_repeat(matrix.file_names)
    if same_name:
        one, other = (matrix.clip_ids[index] for index in same_name)
        raise SubmissionError(
            f"clips {one!r} and {other!r} have the same file name {matrix.file_names[same_name[0]]!r}, and a ranked "
            "CSV could not tell them apart; rank a pool in which every file name is unique"
        )
    same_text = _first_repeat(matrix.query_texts)
    if same_text:
        one, other = (matrix.query_ids[index] for index in same_text)
        raise SubmissionError(
            f"queries {one!r} and {other!r} have the same text {matrix.query_texts[same_text[0]]!r}, and the official "
            "scorer, which knows a query by its text, would drop one of them; keep one of them, or score the matrix "
            "itself"
        )
    name_of = dict(zip(matrix.clip_ids, matrix.file_names, strict=True))
    queries = {
        text: TruthQuery(f"query {id_!r}", None if clips is None else frozenset(name_of[clip] for clip in clips))
        for id_, text, clips in zip(matrix.query_ids, matrix.query_texts, matrix.relevant, strict=True)
    }
    return Truth(queries, frozenset(matrix.file_names))


def _check_header(path: Path, header: Row) -> None:
    n_captions = max(1, len(header.cells) - 1)
    expected = ["file_name", *(f"caption_{number}" for number in range(1, n_captions + 1))]
    if header.line != 1 or header.cells != expected:
        raise SubmissionError(
            f"{path}: line 1: the header must be file_name,caption_1,caption_2,... as in Clotho's caption files; "
            f"found {','.join(header.cells)!r}"
        )


def _refuse_shared(path: Path, rows_of_caption: Mapping[str, list[Row]]) -> None:
    shared = {caption: rows for caption, rows in rows_of_caption.items() if len(rows) > 1}
    if shared:
        places = [" and ".join(str(row.line) for row in rows) for rows in shared.values()]
        lines = "; ".join(places[:SHOWN_PLACES]) + "; ..." * (len(places) > SHOWN_PLACES)
        raise SubmissionError(
            f"{path}: captions shared by several files make {len(shared)} queries of a ranked CSV ambiguous (lines "
            f"{lines}; the first is {next(iter(shared))!r}); score the score matrix of this split instead"
        )


def _first_repeat(texts: Iterable[str]) -> tuple[int, int] | None:
    first_index: dict[str, int] = {}
    for index, text in enumerate(texts):
        if first_index.setdefault(text, index) != index:
            return first_index[text], index
    return None


def _loose(text: str) -> str:
    """Text without the differences that tools bring in unseen: HTML entities, Unicode forms, surrounding blanks."""
    return unicodedata.normalize("NFC", html.unescape(text)).strip()
