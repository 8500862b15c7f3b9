"""Blend files of moments.

Blend several files of moments into one: the score of a window is computed from the windows and scores in all files.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Literal, NamedTuple

import numpy as np

from data_tools.documents.json_lines import Window
from submission.arrays import Values
from submission.editions import MomentsEdition
from submission.errors import SubmissionError
from submission.formats.moments_jsonl import Moments, best_windows, is_scored, windows_by_query
from submission.formats.moments_truth import MomentQuery, MomentTruth
from submission.metrics.blend import ensemble_selection, refuse_overlap, weight_factors
from submission.metrics.moment_metrics import ious_of, padded, score_moments
from submission.metrics.moments_summary import metric_value

# Q queries, M candidates of a query (the windows of all files), W windows of one file

How = Literal["raw", "rank"]
SCALES: tuple[How, ...] = ("raw", "rank")
MAX_IOU = 0.6  # a window that overlaps a better one by a higher IoU is left out

Parts = Mapping[str, Sequence[Moments]]


def blend_moments(
    parts: Parts, how: How, edition: MomentsEdition, weights: Sequence[float] | None = None
) -> list[Moments]:
    """Blend the windows in several files of moments; return each query's best windows with their blended scores.

    parts: Dict from the name of a file to its queries with windows. The result has the order of the first file.

    Candidates are the windows in all files whose weight is not 0; each file contributes only the best windows, as many
    as the edition counts. Each file gives each candidate a vote. For each window of the file, its score is multiplied
    by its IoU with the candidate; the vote is the highest of these products. A file thus also supports candidates that
    differ slightly from its own windows. The score of a candidate is the weighted mean of the votes. Candidates are
    chosen by descending score; a candidate whose IoU with a better one is above MAX_IOU is left out. With equal scores,
    the earlier window comes first, then the shorter one, so that the order of the files does not matter.

    how: `raw`: scores unchanged; they should have the same meaning in all files. `rank`: 1 for a file's best window,
    1/2 for the second window and so on; this also works for windows without scores.
    weights: One weight per file, 0 or more; None: equal weights.
    Source: designed here; score x IoU is the vote of boxes in object detection (Gidaris and Komodakis, ICCV 2015,
    section 4).
    Raises SubmissionError if the files differ in queries or recordings, and for invalid weights. Also for raw scores
    that are missing, below 0, or so large that their sum is not finite.
    """
    candidates = _collect_candidates(parts, how, edition)
    return candidates.blended(weight_factors(weights, len(parts)), edition)


def search_moment_weights(
    parts: Parts, how: How, truth: MomentTruth, edition: MomentsEdition
) -> tuple[list[float], float]:
    """Find the weights with the best primary metric of the blended files `parts`; return weights and metric in [0, 1].

    Args:
        parts: Dict from the name of a file to its queries with windows, which should be of a validation split.
        truth: True windows of these queries.
    The search adds one file after another to a blend: each time the one that gives the blend the best metric. A file
    may be added several times. The best of these blends is used. The weight of a file is the number of times that it
    was added to the best blend, divided by the number of all additions.
    Raises the same errors as blend_moments.
    """
    candidates, true_windows = _collect_candidates(parts, how, edition), truth.windows()

    def score(answers: Sequence[Moments]) -> float:
        """Return the primary metric of blended windows, in [0, 1]."""
        scores = score_moments(windows_by_query(answers), true_windows, (0.0, edition.max_seconds))
        return metric_value(scores, edition.metric)

    with np.errstate(over="ignore"):  # candidates.best refuses such sums
        weights, _ = ensemble_selection(candidates.votes, lambda total: score(candidates.best(total, edition)))
    return weights, score(candidates.blended(weight_factors(weights, len(parts)), edition))


def require_disjoint(tested: Parts, validation: Parts, truth: MomentTruth) -> None:
    """Raises SubmissionError if the tested files have queries or recordings in common with the validation data.

    The validation data are the files of the weight search and their truth.
    """
    searched: list[tuple[str, Iterable[Moments | MomentQuery]]] = [*validation.items()]
    searched.append((truth.name, truth.queries.values()))
    for (name, test), (other, weighted) in product(tested.items(), searched):
        qids, vids = ({getattr(answer, key) for answer in weighted} for key in ("qid", "vid"))
        refuse_overlap(f"{name} and {other}", "query", {answer.qid for answer in test} & qids)
        refuse_overlap(f"{name} and {other}", "recording", {answer.vid for answer in test if answer.vid} & vids)


class _Candidates(NamedTuple):
    """Candidate windows of all queries for a blend, and the votes of each file for these windows.

    Attributes:
        names: Names of the files.
        answers: (Q,) queries of the first file, with the windows in that file.
        windows: (Q, M, 2) up to M candidate windows per query, sorted by start, then by end; padded by NaN.
        ious: (Q, M, M) IoU of each pair of candidates.
        votes: One array (2, Q, M) per file. The first part has the votes of the file for each candidate. The second
            part has 1 for a candidate that is a window of the file, otherwise 0.
    """

    names: Sequence[str]
    answers: Sequence[Moments]
    windows: Values
    ious: Values
    votes: list[Values]

    def blended(self, factors: Values, edition: MomentsEdition) -> list[Moments]:
        """Return each query's best windows by the weighted mean of the files' votes; a vote is IoU times score.

        factors: Weight of each file. The votes are sorted before they are added, so that the sum is the same in any
        order of the files.
        """
        with np.errstate(over="ignore"):  # `best` refuses such sums
            weighted = factors[:, None, None, None] * np.stack(self.votes)
            return self.best(np.sort(weighted, axis=0).sum(axis=0) / np.sort(factors).sum(), edition)

    def best(self, total: Values, edition: MomentsEdition) -> list[Moments]:
        """Return each query's candidate windows with the highest scores in `total`, without nearly equal ones.

        total: (2, Q, M), for M candidates of each of Q queries. The first part has the scores, such as the sum of the
        votes. The second part has a number above 0 for candidates that may be chosen, otherwise 0. Raises
        SubmissionError if a number is not finite.
        """
        if not np.isfinite(total).all():
            largest = self.names[int(np.argmax([votes.max() for votes in self.votes]))]
            raise SubmissionError(
                f"{largest}: the scores of this file are too large to be added; add --how rank, or scale them down"
            )
        scores, is_offered = total
        remaining = np.where(is_offered > 0, scores, -np.inf)
        rows, chosen = np.arange(len(remaining)), np.full((len(remaining), edition.max_windows), -1)
        for rank in range(edition.max_windows):
            column = remaining.argmax(1)
            has_candidate = remaining[rows, column] > -np.inf
            chosen[has_candidate, rank] = column[has_candidate]
            remaining[self.ious[rows, column] > MAX_IOU] = -np.inf
            remaining[rows, column] = -np.inf
        windows = np.dstack([self.windows, scores])
        return [
            replace(answer, windows=each[columns[columns >= 0]].tolist())
            for answer, each, columns in zip(self.answers, windows, chosen, strict=True)
        ]


def _collect_candidates(parts: Parts, how: How, edition: MomentsEdition) -> _Candidates:
    """Collect every query's windows of all files, and each file's vote on each window: the highest IoU times score."""
    answers = _merge_queries(parts)
    by_part: list[list[list[Window]]] = []
    for name, part in parts.items():
        of_query = {answer.qid: _scaled_windows(name, answer, how, edition) for answer in part}
        by_part.append([of_query[answer.qid] for answer in answers])
    each = [sorted({(start, end) for part in by_part for start, end, _ in part[row]}) for row in range(len(answers))]
    windows = padded(each, 2)
    votes = []
    for of_queries in by_part:
        of_file = padded(of_queries, 3)
        offered = ious_of(windows, of_file[:, :, :2]) * of_file[:, None, :, 2]
        given = np.max(np.where(np.isnan(offered), 0.0, offered), axis=2)
        offers = (windows[:, :, None] == of_file[:, None, :, :2]).all(axis=3).any(axis=2)
        votes.append(np.stack([given, offers]))
    return _Candidates(list(parts), answers, windows, ious_of(windows, windows), votes)


def _merge_queries(parts: Parts) -> list[Moments]:
    """Return the queries of the first file, each with its text and recording, which may come from another file.

    Raises SubmissionError if another file has other queries, or another recording for a query.
    """
    (first_name, first), *others = parts.items()
    known = {answer.qid: answer for answer in first}
    for name, part in others:
        files = f"{name} and {first_name}"
        if unshared := known.keys() ^ {answer.qid for answer in part}:
            raise SubmissionError(
                f"only one of {files} has the query {min(unshared)!r}; blend files with the same queries"
            )
        for answer in part:
            first_answer = known[answer.qid]
            if None not in (first_answer.vid, answer.vid) and first_answer.vid != answer.vid:
                raise SubmissionError(
                    f"{files} have different recordings for the query {answer.qid!r} (vid {answer.vid!r} and "
                    f"{first_answer.vid!r}); blend files with the same queries"
                )
            known[answer.qid] = replace(
                first_answer, query=first_answer.query or answer.query, vid=first_answer.vid or answer.vid
            )
    return list(known.values())


def _scaled_windows(name: str, answer: Moments, how: How, edition: MomentsEdition) -> list[Window]:
    """Return a query's best windows, as many as the edition counts, with scores scaled by the method `how`.

    how: "rank" replaces the scores by 1 / rank; other values keep them. name: Name of the file, for messages.
    Raises SubmissionError for raw scores that are missing or below 0.
    """
    if how == "raw" and not is_scored([answer]):
        raise SubmissionError(f"{name}: the windows have no scores; add --how rank, or give the file with scores")
    best = best_windows(answer, edition)
    if how == "rank":
        return [[start, end, 1 / rank] for rank, (start, end, *_) in enumerate(best, start=1)]
    if (lowest := best[-1][2]) < 0:
        raise SubmissionError(
            f"{name}: line {answer.line} has a window with the score {lowest:g}, but raw scores must be 0 or more; add "
            "--how rank"
        )
    return [list(map(float, window)) for window in best]
