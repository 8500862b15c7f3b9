"""Correct scores for hubs.

Hubs are clips that have high scores for many queries, and so are found too often. The scores of a bank of queries, such
as training captions, show which clips are hubs.

Letters in this file: B queries of the bank, Q queries, C clips, and the score s(q, c) of query q and clip c.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np

from submission.metrics.retrieval import average_precision
from submission.ordering import relevant_ranks

Kind = Literal["none", "inverted_softmax", "qb_norm", "csls"]
BETAS, NEIGHBOURS = (5.0, 10.0, 20.0, 40.0), (5.0, 10.0, 20.0)  # strengths to choose from


class Correction(NamedTuple):
    """A correction of scores."""

    kind: Kind = "none"
    strength: float = 0.0  # beta of inverted_softmax and qb_norm, neighbours of csls

    def __str__(self) -> str:
        """Describe the correction, such as "inverted_softmax 20"."""
        return self.kind if self.kind == "none" else f"{self.kind} {self.strength:g}"


def candidates_of(kinds: Sequence[Kind]) -> list[Correction]:
    """Return the corrections to choose from, `none` first."""
    strengths = {"none": (0.0,), "csls": NEIGHBOURS}
    known: tuple[Kind, ...] = get_args(Kind)
    return [Correction(kind, one) for kind in known if kind in kinds for one in strengths.get(kind, BETAS)]


def correct_for_hubs(scores: np.ndarray, bank: np.ndarray, correction: Correction) -> np.ndarray:
    """Correct scores (Q, C) by a bank's scores (B, C).

    inverted_softmax: s(q, c) - ln(sum_b e^{beta s(b, c)}) / beta. This equals ln(p) / beta for the published
    p = e^{beta s(q, c)} / sum_b e^{beta s(b, c)}. Both order the clips of a query in the same way.
    qb_norm: The score of inverted_softmax for queries whose best clip is also the best clip of any query of the bank.
    The scores of other queries do not change.
    csls: 2 s(q, c) - r(q) - r(c). Here r(c) is the mean score of c with its nearest queries of the bank, and r(q) that
    of q with its nearest clips.

    Sources: inverted_softmax: Smith et al., "Offline Bilingual Word Vectors, Orthogonal Transformations and the
    Inverted Softmax" (2017), equation 7. qb_norm: Bogolin et al., "Cross Modal Retrieval with Querybank Normalisation"
    (2022), equations 4 and 5 (the dynamic inverted softmax; its activation set consists of the best clip of each query
    of the bank). csls: Conneau et al., "Word Translation Without Parallel Data" (2018), equation 2.
    """
    if correction.kind == "none":
        return scores
    wide = scores.astype(np.float64)
    if correction.kind == "csls":
        of_query = _mean_of_highest(wide, int(correction.strength))
        of_clip = _mean_of_highest(bank.astype(np.float64).T, int(correction.strength))
        found = 2 * wide - of_query[:, None] - of_clip
    else:
        beta = correction.strength
        found = wide - np.logaddexp.reduce(beta * bank.astype(np.float64), axis=0) / beta
    if correction.kind == "qb_norm":
        is_activated = np.isin(scores.argmax(1), bank.argmax(1))
        found = np.where(is_activated[:, None], found, wide)
    return found.astype(np.float32)


def _mean_of_highest(rows: np.ndarray, count: int) -> np.ndarray:
    """Return the mean of each row's `count` highest values."""
    cut = max(0, rows.shape[1] - count)
    return np.partition(rows, cut, axis=1)[:, cut:].mean(1)


def precision_by_correction(
    scores: np.ndarray,
    bank: np.ndarray,
    relevant: Sequence[Sequence[int]],
    names: Sequence[str],
    corrections: Sequence[Correction],
) -> dict[str, float]:
    """Return the mAP@10 of scores (Q, C) after each correction.

    Args:
        bank: (B, C) scores.
        relevant: (Q,) columns of the relevant clips of each query.
        names: (C,) file names, which order equal scores.
    """
    found = {}
    for one in corrections:
        ranks = relevant_ranks(correct_for_hubs(scores, bank, one), relevant, names)
        found[str(one)] = round(float(average_precision(ranks, [len(row) for row in relevant]).mean()), 6)
    return found
