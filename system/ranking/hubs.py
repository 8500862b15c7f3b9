"""Correct scores for hubs.

A hub is a clip that has high scores for many queries, and so is found too often. Reference queries, such as
training captions, show which clips are hubs.

Letters in this file: B reference queries, Q queries, C clips, and the score s(q, c) of query q and clip c.
"""

from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

import numpy as np

Kind = Literal["none", "inverted_softmax", "qb_norm", "csls"]


class Correction(NamedTuple):
    """A correction for hubs. strength: beta of inverted_softmax and qb_norm, neighbours of csls, 0 for none."""

    kind: Kind = "none"
    strength: float = 0.0

    def __str__(self) -> str:
        """Describe the correction, such as "inverted_softmax 20"."""
        return self.kind if self.kind == "none" else f"{self.kind} {self.strength:g}"


class Hubs(NamedTuple):
    """Measures of how much each clip of a pool is a hub, for one correction.

    closeness: (C,) float64, how close each clip is to the reference queries: for csls, the clip's mean score with its
    nearest reference queries; for other corrections, the number that is subtracted from the clip's scores.
    is_activated: (C,) whether a clip is the best clip for any reference query; None for csls.
    """

    closeness: np.ndarray
    is_activated: np.ndarray | None = None


def measure_hubs(reference: Iterable[np.ndarray], correction: Correction) -> Hubs:
    """Measure how much each clip is a hub, from its scores with the reference queries.

    reference: Scores of the reference queries (rows) against the C clips, in blocks (n, C). Raises ValueError without
    any row.
    """
    if correction.kind == "csls":
        return Hubs(_mean_of_nearest(reference, int(correction.strength)))
    total: np.ndarray | None = None
    best: set[int] = set()  # clips that are the best of a query
    for block in reference:
        logits = correction.strength * block.astype(np.float64)
        sums = np.logaddexp.reduce(logits, 0)
        total = sums if total is None else np.logaddexp(total, sums)
        best.update(block.argmax(1).tolist())
    if total is None:
        raise ValueError("the hub correction has no query; name data sources with captions in `bank` of the rank entry")
    return Hubs(total / correction.strength, np.isin(np.arange(len(total)), list(best)))


def _mean_of_nearest(reference: Iterable[np.ndarray], count: int) -> np.ndarray:
    """Return the mean score (C,) of each clip with the `count` reference queries that are nearest to the clip.

    reference: See `measure_hubs`. With fewer than `count` queries, the mean is that of all queries.
    """
    nearest: np.ndarray | None = None
    for block in reference:
        rows = block if nearest is None else np.concatenate([nearest, block])
        cut = max(0, len(rows) - count)
        nearest = np.partition(rows, cut, axis=0)[cut:]
    if nearest is None:
        raise ValueError("the hub correction has no query; name data sources with captions in `bank` of the rank entry")
    return np.asarray(nearest.astype(np.float64).mean(0))


def correct_scores(scores: Iterable[np.ndarray], correction: Correction, hubs: Hubs | None) -> Iterator[np.ndarray]:
    """Yield scores that are corrected for hubs, in the same blocks (n, C) as `scores`.

    inverted_softmax: s(q, c) - ln(sum_b e^{beta s(b, c)}) / beta. This equals ln(p) / beta for the published
    p = e^{beta s(q, c)} / sum_b e^{beta s(b, c)}. Both order the clips of a query in the same way.
    qb_norm: The score of inverted_softmax for queries whose best clip is also the best clip of any reference query.
    The scores of other queries do not change.

    csls: The score is 2 s(q, c) - r(q) - r(c). Here r(c) is the mean score of c with its nearest reference queries.
    r(q) is the mean score of q with its nearest clips.

    Sources: inverted_softmax: Smith et al., "Offline Bilingual Word Vectors, Orthogonal Transformations and the
    Inverted Softmax" (2017), equation 7. qb_norm: Bogolin et al., "Cross Modal Retrieval with Querybank Normalisation"
    (2022), equations 4 and 5 (the dynamic inverted softmax; its activation set consists of the best clip of each
    reference query). csls: Conneau et al., "Word Translation Without Parallel Data" (2018), equation 2.
    """
    for block in scores:
        if hubs is None:  # no correction
            yield block
            continue
        wide = block.astype(np.float64)
        if correction.kind == "csls":
            count = min(int(correction.strength), block.shape[1])
            of_query = np.partition(wide, block.shape[1] - count, axis=1)[:, block.shape[1] - count :].mean(1)
            found = 2 * wide - of_query[:, None] - hubs.closeness
        else:
            found = wide - hubs.closeness
        if correction.kind == "qb_norm":
            assert hubs.is_activated is not None
            found = np.where(hubs.is_activated[block.argmax(1)][:, None], found, wide)
        yield found.astype(np.float32)
