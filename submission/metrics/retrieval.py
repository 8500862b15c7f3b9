"""Metrics of ranked clips, and their values by chance.

Arrays: `ranks` (Q, R), ranks of the relevant clips of each query, from 1, increasing, padded with NEVER, as
ordering.relevant_ranks returns them; `n_relevant` (Q,), numbers of relevant clips, with or without a known rank.
Results: (Q,), one value per query; the published metric is the mean.

Differences from the official scorers:
- 2022 eval_script.py counts a file again if a row repeats it, so its AP can exceed 1. Such files are refused here.
- All years: the order of equal scores, see ordering.py.
"""

import math
import statistics

import numpy as np
import numpy.typing as npt

from submission.ordering import NEVER


def average_precision(ranks: np.ndarray, n_relevant: npt.ArrayLike, k: int | None = 10) -> np.ndarray:
    """Return AP@k of each query, with all ranks for None.

    It is the sum of i / ranks[i] over ranks[i] <= k, divided by n_relevant.

    Source: DCASE 2022 eval_script.py, 2023 xmodal_retrieval.py, 2025 retrieval_module.py. The divisor is the number of
    all relevant clips, not min(k, R): with 12 relevant clips and k = 10, AP is at most 10 / 12.
    """
    found = ranks <= (NEVER - 1 if k is None else k)
    return np.asarray(
        np.where(found, np.arange(1, ranks.shape[1] + 1) / ranks, 0.0).sum(axis=1) / np.asarray(n_relevant)
    )


def recall(ranks: np.ndarray, n_relevant: npt.ArrayLike, k: int) -> np.ndarray:
    """Return R@k of each query.

    It is the share of its relevant clips that are among the first k.

    Source: DCASE 2022 eval_script.py; "On Negative Sampling for Contrastive Audio-Text Retrieval" (several captions).
    """
    return np.asarray((ranks <= k).sum(axis=1) / np.asarray(n_relevant))


def hit_rate(ranks: np.ndarray, k: int) -> np.ndarray:
    """Return HR@k of each query.

    It is 1 if any relevant clip is among the first k, else 0.

    Source: called R@k from audio to text in "On Metric Learning for Audio-Text Retrieval", WavCaps and LAION-CLAP.
    """
    return np.asarray((ranks <= k).any(axis=1), float)


def pooled_recall(ranks: np.ndarray, n_relevant: np.ndarray, k: int) -> float:
    """Return pooled R@k of all queries.

    It is the number of relevant clips among the first k of all queries, divided by that of all relevant clips.

    Source: github.com/xieh97/text-audio-retrieval, from audio to text.
    """
    return float((ranks <= k).sum() / n_relevant.sum())


def median_rank(ranks: np.ndarray) -> float:
    """Return the median rank of the first relevant clip.

    It is inf if that rank is unknown.
    """
    median = statistics.median(ranks.min(axis=1, initial=NEVER).tolist())
    return float(median) if median < NEVER // 2 else math.inf


def chance(n_clips: int, k: int = 10, n_relevant: float = 1) -> float:
    """Return the expected mAP@k of clips in random order.

    It is (H + (k - H) (n_relevant - 1) / (n_clips - 1)) / n_clips with H = 1 + 1/2 + ... + 1/k: the clip at rank p is
    relevant with probability n_relevant / n_clips, and (p - 1) (n_relevant - 1) / (n_clips - 1) relevant ones precede.

    >>> chance(2, k=10)
    0.75
    """
    depth = min(k, n_clips)
    harmonic = sum(1 / rank for rank in range(1, depth + 1))
    return (harmonic + (depth - harmonic) * (n_relevant - 1) / max(1, n_clips - 1)) / n_clips
