"""Metrics of a file.

Compute the metrics of a ranked CSV or a score matrix.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from data_tools.cli import counted
from submission.arrays import sizes
from submission.blocks import transposed_blocks
from submission.editions import Edition
from submission.errors import SubmissionError
from submission.formats.ranked_csv import read_ranked_csv
from submission.formats.score_matrix import ScoreMatrix
from submission.formats.truth import Truth
from submission.metrics.hubness import hubness_of
from submission.metrics.intervals import group_numbers
from submission.metrics.summary import RelevantRanks, Summary, summarise
from submission.ordering import concatenate_ranks, ranks_from_lists, relevant_ranks


def ranks_in_csv(path: Path, truth: Truth, edition: Edition, annotations: Truth | None = None) -> RelevantRanks:
    """Return the ranks of every query's relevant clips in a ranked CSV of an edition.

    truth: The queries that the file must contain, and the pool. annotations: If given, only the queries in
    `annotations` are scored, with the relevant clips given there.
    Source: DCASE 2022 eval_script.py. Deviations: none in the metrics. A file with a problem is refused (see
    ranked_csv.check_ranked_csv and truth.read_clotho_truth), while the script scores it or fails. Cells are read as
    text, while the script's pandas reads a caption such as NA as a missing value.
    Raises SubmissionError for a refused file, and OSError for a file that cannot be opened.
    """
    ranked = read_ranked_csv(path, edition, truth)
    scored = annotations or truth
    answers = [answer for answer in ranked if answer.query in scored.queries]
    relevant = [scored.queries[answer.query].relevant or frozenset() for answer in answers]
    _require_relevance([answer.query for answer in answers], relevant)
    lists = [
        [rank for rank, name in enumerate(answer.file_names, start=1) if name in names]
        for answer, names in zip(answers, relevant, strict=True)
    ]
    return RelevantRanks(
        ranks=ranks_from_lists(lists),
        n_relevant=sizes(relevant),
        groups=group_numbers(relevant),
        texts=[answer.query for answer in answers],
        n_pool=len(truth.file_names),
        depth=edition.ranking_length,
    )


def ranks_in_matrix(matrix: ScoreMatrix) -> RelevantRanks:
    """Return the ranks of every query's relevant clips in a score matrix.

    Every row is a separate query, even if two rows have the same text, as in the 2023 baseline. The official 2022
    script uses only one of such rows; Clotho's validation and evaluation splits have none.
    Raises SubmissionError if the relevant clips are not known.
    """
    _require_relevance(matrix.query_ids, matrix.relevant)
    relevant = matrix.relevant_columns()
    return RelevantRanks(
        ranks=relevant_ranks(matrix.values, relevant, matrix.file_names),
        n_relevant=sizes(relevant),
        groups=group_numbers(map(tuple, relevant)),
        texts=matrix.query_texts,
        n_pool=len(matrix.clip_ids),
    )


def ranks_from_audio(matrix: ScoreMatrix) -> RelevantRanks:
    """Return the ranks of each clip's captions among all captions (audio to text); clips without captions are omitted.

    Captions with equal scores are sorted by their texts, because only texts identify queries in all file formats.
    Raises SubmissionError if the relevant clips are not known.
    """
    _require_relevance(matrix.query_ids, matrix.relevant)
    rows_of: Mapping[str, list[int]] = {clip_id: [] for clip_id in matrix.clip_ids}
    for row, clips in enumerate(matrix.relevant):
        for clip in clips or ():
            rows_of[clip].append(row)
    captioned = [column for column, clip in enumerate(matrix.clip_ids) if rows_of[clip]]
    relevant = [rows_of[matrix.clip_ids[column]] for column in captioned]
    ranks, done = [], 0
    for values in transposed_blocks(matrix.values, np.array(captioned, dtype=np.int64)):
        ranks.append(relevant_ranks(values, relevant[done : done + len(values)], matrix.query_texts))
        done += len(values)
    return RelevantRanks(
        ranks=concatenate_ranks(ranks),
        n_relevant=sizes(relevant),
        groups=np.arange(len(captioned)),
        texts=[matrix.file_names[column] for column in captioned],
        n_pool=len(matrix.query_ids),
    )


def summarise_matrix(matrix: ScoreMatrix, edition: Edition) -> Summary:
    """Return an edition's metrics of a score matrix. Raises SubmissionError if the relevant clips are not known."""
    summary = summarise(ranks_in_matrix(matrix), edition.recall_ks, edition.map_ks)
    return replace(summary, hubness=hubness_of(matrix))


def with_annotations(matrix: ScoreMatrix, annotations: Truth) -> ScoreMatrix:
    """Return the score matrix with only the queries in `annotations`, and with the relevant clips given there.

    A query is identified by its text and a clip by its file name, as in the 2025 baseline's retrieval_module.py.
    """
    rows = [row for row, text in enumerate(matrix.query_texts) if text in annotations.queries]
    clip_of = dict(zip(matrix.file_names, matrix.clip_ids, strict=True))
    texts = [matrix.query_texts[row] for row in rows]
    return replace(
        matrix,
        values=matrix.values[rows],
        query_ids=[matrix.query_ids[row] for row in rows],
        query_texts=texts,
        relevant=[[clip_of[name] for name in sorted(annotations.queries[text].relevant or ())] for text in texts],
    )


def _require_relevance(queries: Sequence[str], relevant: Sequence[Collection[str] | None]) -> None:
    """Raises SubmissionError if the relevant clips of any query are unknown, because it then cannot be scored."""
    if blind := [query for query, clips in zip(queries, relevant, strict=True) if not clips]:
        raise SubmissionError(
            f"no relevant clip is known for {len(blind)} of {counted(len(queries), 'query')} (first {blind[0]!r}), so "
            "they cannot be scored (only the organisers can score a blind set)"
        )
