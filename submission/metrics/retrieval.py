"""mAP@k, R@k, median rank.

Compute retrieval metrics from the ranks of relevant clips. Q: number of queries; C: number of clips in the pool; R:
number of relevant clips of a query.

`ranks` are the ranks of a query's relevant clips, increasing and from 1, as ordering.relevant_ranks returns them. Their
shape is (R,) for one query, or (Q, R) for several queries, with rows padded by ordering.NEVER, a very large number.
"""

import math
from typing import overload

import numpy as np
import numpy.typing as npt

from data_tools.cli import counted
from submission.errors import SubmissionError
from submission.ordering import NEVER

Values = npt.NDArray[np.float64]


@overload
def average_precision(ranks: list[int], n_relevant: int, k: int | None = 10) -> float: ...


@overload
def average_precision(ranks: npt.ArrayLike, n_relevant: npt.ArrayLike, k: int | None = 10) -> Values: ...


def average_precision(ranks: npt.ArrayLike, n_relevant: npt.ArrayLike, k: int | None = 10) -> Values | float:
    """Return AP@k of one query, or of each of several queries; the mean over queries is mAP@k.

    ranks: Ranks of the relevant clips; ranks beyond k may be left out.
    n_relevant: Number of relevant clips in the pool, also of those without a rank; the divisor. k: Largest rank that
    counts; None: all ranks count.
    Returns sum_i i / ranks[i] over ranks[i] <= k, divided by n_relevant; in [0, 1]. With more than k relevant clips it
    is below 1: with 12 relevant clips and k = 10, at most 10 / 12.
    Raises SubmissionError for ranks that do not increase or start below 1, and for n_relevant below 1 or below the
    number of ranks.
    Source: DCASE 2022 eval_script.py (one relevant clip), DCASE 2023 postprocessing/xmodal_retrieval.py and DCASE 2025
    retrieval_module.py (several; the divisor is the number of all relevant clips, not min(k, R)). Deviations: none for
    clips listed once. The 2022 script counts a clip again each time a row repeats it, so its AP can exceed 1. Here such
    a row is refused when the file is read, and clips with equal scores are ordered by file name.

    >>> average_precision([2], 1)
    0.5
    """
    array, totals = _require_ranks(ranks, n_relevant)
    positions = np.arange(1, array.shape[-1] + 1)
    counted = array <= (NEVER - 1 if k is None else k)
    return _number_or_array(np.where(counted, positions / array, 0.0).sum(axis=-1) / totals)


@overload
def recall(ranks: list[int], n_relevant: int, k: int) -> float: ...


@overload
def recall(ranks: npt.ArrayLike, n_relevant: npt.ArrayLike, k: int) -> Values: ...


def recall(ranks: npt.ArrayLike, n_relevant: npt.ArrayLike, k: int) -> Values | float:
    """Return R@k of one query, or of each of several: relevant clips among the first k, divided by n_relevant.

    ranks: Ranks of the relevant clips; ranks beyond k may be left out. n_relevant: Number of relevant clips in the
    pool. Raises the same SubmissionError as average_precision.
    Source: DCASE 2022 eval_script.py (one relevant clip: 0 or 1), DCASE 2023 and "On Negative Sampling for Contrastive
    Audio-Text Retrieval", github.com/xieh97 (several). From audio to text, with five captions per clip, this R@1 is
    at most 0.2. Other papers call the hit rate R@k: see hit_rate. Deviations: none.

    >>> recall([1, 7], 2, 5)
    0.5
    """
    array, totals = _require_ranks(ranks, n_relevant)
    return _number_or_array(np.count_nonzero(array <= k, axis=-1) / totals)


def hit_rate(ranks: npt.ArrayLike, k: int) -> Values:
    """Return the hit rate HR@k of each query, (Q,): 1.0 if any relevant clip is among the first k, else 0.0.

    The hit rate is at least R@k (see recall), and at most R times R@k for R relevant clips.
    Source: the metric called R@k from audio to text in "On Metric Learning for Audio-Text Retrieval"
    (github.com/XinhaoMei/audio-text_retrieval), WavCaps and LAION-CLAP, where the best rank of a clip's five captions
    counts. Deviations: none.
    """
    result: Values = np.any(np.asarray(ranks) <= k, axis=-1).astype(np.float64)
    return result


def pooled_recall(ranks: npt.ArrayLike, n_relevant: npt.ArrayLike, k: int) -> float:
    """Return pooled R@k: the relevant clips among the first k of each query, divided by all relevant clips.

    Both numbers are sums over all queries. The result equals the mean of recall if all queries have the same number of
    relevant clips, as in Clotho; otherwise queries are weighted by that number.
    Source: github.com/xieh97/text-audio-retrieval, from audio to text. Deviations: none.
    """
    array, totals = _require_ranks(ranks, n_relevant)
    return float(np.count_nonzero(array <= k) / totals.sum())


def median_rank(ranks: npt.ArrayLike) -> float:
    """Return the median over queries of the rank of the first relevant clip; inf if it is not known.

    ranks: (Q, R), ranks of the R relevant clips of each of Q queries; ordering.NEVER for a clip outside a ranked list,
    and for padding. Source: the metric medR of the image-text and audio-text literature (Oncescu et al., "Audio
    Retrieval with Natural Language Queries", 2021). Deviations: they average the ranks of clips with equal scores;
    here, file names order such clips.
    """
    first = np.sort(np.min(np.asarray(ranks), axis=1, initial=NEVER))
    low, high = first[(len(first) - 1) // 2], first[len(first) // 2]
    return math.inf if high == NEVER else (int(low) + int(high)) / 2


def chance(n_clips: int, k: int = 10, n_relevant: float = 1) -> float:
    """Return the expected mAP@k of clips in random order.

    n_clips: Number of clips in the pool, C. n_relevant: Number of relevant clips per query, R. It may be a mean over
    queries, because the expectation is linear in R.
    Returns (H_k + (k - H_k) (R - 1) / (C - 1)) / C with H_k = 1 + 1/2 + ... + 1/k, where k is at most C. For R = 1, it
    is H_k / C. Raises SubmissionError unless 1 <= n_relevant <= n_clips.
    Source: derived here from the definition. The clip at rank p is relevant with probability R / C. On average,
    (p - 1)(R - 1) / (C - 1) further relevant clips precede it.

    >>> chance(2, k=10)
    0.75
    """
    if not 1 <= n_relevant <= n_clips:
        raise SubmissionError(
            f"a pool of {counted(n_clips, 'clip')} cannot have {n_relevant} relevant clips; give 1 to {n_clips}"
        )
    depth = min(k, n_clips)
    harmonic = sum(1 / rank for rank in range(1, depth + 1))
    further = (n_relevant - 1) / (n_clips - 1) if n_clips > 1 else 0.0
    return (harmonic + (depth - harmonic) * further) / n_clips


def _require_ranks(
    ranks: npt.ArrayLike, n_relevant: npt.ArrayLike
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return ranks and numbers of relevant clips as arrays. Raises SubmissionError for impossible values."""
    array, totals = np.asarray(ranks), np.asarray(n_relevant)
    if array.size == 0:
        array = array.reshape(*array.shape[:-1], 0).astype(np.int64)
    rising = (array[..., 1:] > array[..., :-1]) | (array[..., 1:] == NEVER)
    if array.dtype.kind not in "iu" or np.any(array < 1) or not rising.all():
        raise SubmissionError(f"ranks must be whole numbers from 1 that increase strictly; got {array.tolist()}")
    listed = np.count_nonzero(array < NEVER, axis=-1)
    if np.any(totals < np.maximum(1, listed)):
        wrong = np.argmax(totals < np.maximum(1, listed))
        raise SubmissionError(
            f"{listed.flat[wrong]} ranks are given for {totals.flat[wrong]} relevant clips; give 1 or more "
            "relevant clips per query, and not more ranks than relevant clips"
        )
    return array, totals


def _number_or_array(values: npt.NDArray[np.float64]) -> Values | float:
    """Convert an array without dimensions to a number; return any other array unchanged."""
    return float(values) if values.ndim == 0 else values
