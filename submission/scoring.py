"""From a ranked CSV or a score matrix to its figures."""

from pathlib import Path

import numpy as np

from submission.editions import Edition
from submission.errors import SubmissionError
from submission.metrics import Summary, relevant_ranks, summarise
from submission.ranking import read_ranked_csv
from submission.scores import ScoreMatrix
from submission.truth import read_clotho_truth


def score_ranked_csv(path: Path, truth_path: Path, edition: Edition) -> Summary:
    """Figures of a ranked CSV against a captions file in Clotho's format.

    Source: DCASE 2022 eval_script.py. Deviations: none in the figures; files with a problem are refused (see
    ranking.check_ranked_csv and truth.read_clotho_truth) where the script scores them or fails, and cells are read
    as text, where pandas turns a caption such as NA into no value.
    Raises SubmissionError for a file or a truth that is refused, OSError for one that cannot be opened.
    """
    truth = read_clotho_truth(truth_path)
    ranked = read_ranked_csv(path, edition, truth)
    relevant = [truth.queries[answer.query].relevant or frozenset() for answer in ranked]
    ranks = [
        np.array([rank for rank, name in enumerate(answer.file_names, start=1) if name in names], dtype=np.int64)
        for answer, names in zip(ranked, relevant, strict=True)
    ]
    n_relevant = [len(names) for names in relevant]
    return summarise(ranks, n_relevant, edition.recall_ks, edition.map_k, len(truth.file_names))


def score_matrix(matrix: ScoreMatrix, edition: Edition) -> Summary:
    """Figures of a score matrix from the relevance it holds.

    Every row is a query of its own, two rows with one text included (as in the 2023 baseline; the official 2022
    script keeps only one of them. Clotho's validation and evaluation splits have no such text).
    Raises SubmissionError where relevance is not known.
    """
    blind = [query_id for query_id, clips in zip(matrix.query_ids, matrix.relevant, strict=True) if clips is None]
    if blind:
        raise SubmissionError(
            f"no relevant clip is known for {len(blind)} of {len(matrix.query_ids)} queries (first {blind[0]!r}), so "
            "there is nothing to score; a blind set is scored by the organisers"
        )
    column_of = {clip_id: column for column, clip_id in enumerate(matrix.clip_ids)}
    relevant = [[column_of[clip] for clip in clips or ()] for clips in matrix.relevant]
    ranks = relevant_ranks(matrix.values, relevant, matrix.file_names)
    n_relevant = [len(columns) for columns in relevant]
    return summarise(ranks, n_relevant, edition.recall_ks, edition.map_k, len(matrix.clip_ids))
