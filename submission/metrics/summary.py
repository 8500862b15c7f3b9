"""Metrics of a system over many queries, with intervals.

Q: queries, R: maximum number of relevant clips of a query.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from data_tools.cli import counted
from data_tools.errors import KitError
from submission.editions import Edition, format_metric
from submission.formats.score_matrix import ScoreMatrix
from submission.formats.truth import Relevant
from submission.metrics.intervals import (
    Difference,
    Groups,
    Interval,
    bootstrap_intervals,
    group_numbers,
    jackknife_interval,
    paired_difference,
)
from submission.metrics.moments import LENGTHS, THRESHOLDS, MomentScores, Windows, score_moments
from submission.metrics.retrieval import average_precision, chance, hit_rate, median_rank, pooled_recall, recall
from submission.ordering import NEVER, relevant_ranks, sizes

if TYPE_CHECKING:
    from submission.formats.moments import MomentTruth

CLIPS = ("R@1", "R@5", "R@10", "mAP@10")
PRECISIONS = [f"mAP@{threshold:g}" for threshold in THRESHOLDS]


@dataclass(frozen=True)
class RelevantRanks:
    """Ranks of the relevant clips of every query.

    From audio to text, a clip is the query and its captions are ranked.

    Attributes:
        ranks: (Q, R) from 1, increasing, padded with NEVER; (Q, 0) for moments, which have none.
        n_relevant: (Q,) numbers of relevant clips or windows, with or without a known rank.
        groups: (Q,) group of each query: queries with the same relevant clips, or of one recording.
        texts: (Q,) texts or ids of the queries.
        n_pool: Number of clips in the pool, or of recordings.
        depth: Length of the ranked lists; None if all ranks are known.
    """

    ranks: np.ndarray
    n_relevant: np.ndarray
    groups: Groups
    texts: list[str]
    n_pool: int
    depth: int | None = None


@dataclass(frozen=True)
class Summary:
    """Metrics of a system: means over queries.

    Attributes:
        values: Mean of each metric, in [0, 1].
        primary: Name of the primary metric.
        per_query: (Q,) values of each metric.
        chance: Primary metric of a random order or, for moments, if each answer is the whole recording; None if the
            lengths of the recordings are not known.
        by_length: For moments, metrics of true windows of some length, such as `mAP short`.
        notes: Sentences for the reader.
    """

    values: dict[str, float]
    primary: str
    per_query: dict[str, np.ndarray]
    queries: RelevantRanks
    chance: float | None
    by_length: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def __repr__(self) -> str:
        """Name the metrics and the number of queries."""
        return f"Summary({self.values}, {len(self.queries.texts)} queries)"

    @property
    def of_moments(self) -> bool:
        """Whether the system finds moments."""
        return bool(self.by_length)

    @property
    def median_rank(self) -> float:
        """Median rank of the first relevant clip, or inf."""
        return median_rank(self.queries.ranks)

    @property
    def interval(self) -> Interval:
        """Official jackknife interval (95 %) of the primary metric."""
        return jackknife_interval(self.per_query[self.primary])

    @cached_property
    def bootstraps(self) -> dict[str, Interval]:
        """95 % bootstrap interval of each metric, over groups."""
        found = bootstrap_intervals(self.per_query.values(), self.queries.groups)
        return dict(zip(self.per_query, found, strict=True))

    @property
    def bootstrap(self) -> Interval:
        """95 % bootstrap interval of the primary metric, over groups."""
        return self.bootstraps[self.primary]

    def format(self, value: float, sign: str = "") -> str:
        """Format a metric: per cent for moments, else a share."""
        return format_metric(self.primary, value, sign)

    def format_interval(self, interval: Interval, sign: str = "") -> str:
        """Format an interval of a metric."""
        return format_interval(interval, self.primary, sign)

    def describe(self, found: Difference) -> list[str]:
        """Format a difference of the primary metric, its interval, and p."""
        return [self.format(found.mean, "+"), self.format_interval(found.interval, "+"), f"{found.p:.4f}"]

    def lines(self) -> list[str]:
        """Return the summary as lines of text."""
        unit = "recordings" if self.of_moments else "pool"
        table = [("queries", str(len(self.queries.texts))), (unit, str(self.queries.n_pool))]
        for name, value in self.values.items():
            known = f"  95 % {self.format_interval(self.bootstraps[name])}" if name in self.bootstraps else ""
            table.append((name, self.format(value) + known))
        table += [(name, self.format(value)) for name, value in self.by_length.items()]
        table.append(("jackknife", f"{self.primary} {self.format_interval(self.interval)} (official: over queries)"))
        if not self.of_moments:
            shown = f"{self.median_rank:g}" if math.isfinite(self.median_rank) else f"above {self.queries.depth}"
            table.append(("median", f"rank {shown} of the first relevant clip"))
        if self.chance is not None:
            what = "if each answer is the whole recording" if self.of_moments else "of a random order"
            table.append(("chance", f"{self.primary} {self.format(self.chance)} {what}"))
        table += [("note", note) for note in self.notes]
        width = max(len(name) for name, _ in table) + 2
        return [f"{name:{width}}{text}" for name, text in table]

    def document(self) -> dict[str, Any]:
        """Return the summary for JSON."""
        return {
            "queries": len(self.queries.texts),
            "pool": self.queries.n_pool,
            "primary": self.primary,
            "values": self.values,
            "by_length": self.by_length,
            "jackknife": bounds_or_none(self.interval),
            "bootstrap": {name: bounds_or_none(interval) for name, interval in self.bootstraps.items()},
            "median_rank": None if math.isinf(self.median_rank) else self.median_rank,
            "chance": self.chance,
            "notes": self.notes,
        }


def ranks_in_matrix(matrix: ScoreMatrix) -> RelevantRanks:
    """Return the ranks in a score matrix, or in a ranked CSV.

    Every row is a query, even if two rows have the same text.
    """
    found = _ranks(matrix.values, matrix.relevant_columns(), matrix.query_texts, matrix.file_names)
    ranks = np.where(found.ranks > (matrix.depth or NEVER), NEVER, found.ranks)
    return replace(found, ranks=ranks, depth=matrix.depth)


def ranks_from_audio(matrix: ScoreMatrix) -> RelevantRanks:
    """Return the ranks of each clip's captions among all captions.

    Clips without captions are left out. Captions with equal scores are sorted by their texts.
    """
    if matrix.depth is not None:
        raise KitError("a ranked CSV ranks only clips; give its score matrix to rank captions")
    captions: dict[int, list[int]] = {}
    for row, columns in enumerate(matrix.relevant_columns()):
        for column in columns:
            captions.setdefault(column, []).append(row)
    clips = sorted(captions)
    names = [matrix.file_names[clip] for clip in clips]
    return _ranks(matrix.values[:, clips].T, [captions[clip] for clip in clips], names, matrix.query_texts)


def _ranks(values: np.ndarray, relevant: list[list[int]], queries: list[str], pool: list[str]) -> RelevantRanks:
    """Return the ranks of relevant columns.

    Args:
        values: (Q, C) scores.
        relevant: (Q,) columns of each query's relevant clips.
        queries: (Q,) texts.
        pool: (C,) names, which order equal scores.
    """
    if not relevant or not all(relevant):
        raise KitError("the relevant clips of a query are not known, so it cannot be scored")
    groups = group_numbers(map(frozenset, relevant))
    return RelevantRanks(relevant_ranks(values, relevant, pool), sizes(relevant), groups, queries, len(pool))


def summarise(queries: RelevantRanks, metrics: Iterable[str] = CLIPS, primary: str = "mAP@10") -> Summary:
    """Return the metrics of ranks: mAP@k, mAP, R@k or HR@k."""
    per_query = {metric: _per_query(metric, queries) for metric in metrics}
    k = int(primary.partition("@")[2])
    known = min(queries.depth or queries.n_pool, queries.n_pool)
    beyond = [metric for metric in per_query if int(metric.partition("@")[2] or 0) > known]
    notes = [f"{', '.join(beyond)}: only {known} clips are ranked, so a lower bound if the pool is larger"]
    return Summary(
        values={name: float(values.mean()) for name, values in per_query.items()},
        primary=primary,
        per_query=per_query,
        queries=queries,
        chance=chance(queries.n_pool, k, float(queries.n_relevant.mean())),
        notes=notes if beyond else [],
    )


def _per_query(metric: str, queries: RelevantRanks) -> np.ndarray:
    name, _, k = metric.partition("@")
    if name == "HR":
        return hit_rate(queries.ranks, int(k))
    if name == "R":
        return recall(queries.ranks, queries.n_relevant, int(k))
    return average_precision(queries.ranks, queries.n_relevant, int(k) if k else None)


def summarise_audio_to_text(queries: RelevantRanks) -> Summary:
    """Return HR@k, R@k, pooled R@k, mAP@10 and mAP of ranks_from_audio."""
    summary = summarise(queries, ["HR@1", "HR@5", "HR@10", "R@1", "R@5", "R@10", "mAP@10", "mAP"])
    pooled = {f"pooled R@{k}": pooled_recall(queries.ranks, queries.n_relevant, k) for k in (1, 5, 10)}
    return replace(summary, values=summary.values | pooled)


def summarise_matrix(matrix: ScoreMatrix, edition: Edition) -> Summary:
    """Return an edition's metrics of a score matrix."""
    return summarise(ranks_in_matrix(matrix), edition.metrics, edition.metric)


def with_truth(matrix: ScoreMatrix, relevant: Relevant) -> ScoreMatrix:
    """Return the queries that a truth has, with its relevant clips.

    A query is identified by its text and a clip by its file name, as in the 2025 baseline's retrieval_module.py.
    """
    rows = [row for row, text in enumerate(matrix.query_texts) if text in relevant]
    texts = [matrix.query_texts[row] for row in rows]
    id_of = dict(zip(matrix.file_names, matrix.clip_ids, strict=True))
    return replace(
        matrix,
        values=matrix.values[rows],
        query_ids=[matrix.query_ids[row] for row in rows],
        query_texts=texts,
        relevant=[[id_of[name] for name in relevant[text] or () if name in id_of] or None for text in texts],
    )


def summarise_moments_file(path: Path, truth: "MomentTruth", edition: Edition) -> Summary:
    """Return the metrics of a file of moments."""
    from submission.formats.moments import read_answers, windows_by_query

    return summarise_moments(windows_by_query(read_answers(path, truth)), truth, edition)


def summarise_moments(predictions: Mapping[str, Windows], truth: "MomentTruth", edition: Edition) -> Summary:
    """Return the metrics of found windows, by query id."""
    windows, metrics, primary = truth.windows(), edition.metrics, edition.metric
    scores = score_moments(predictions, windows)
    qids = list(scores[primary])
    if not qids:
        raise KitError(f"{truth.name}: no true window that counts, so no query can be scored")
    vids = [truth.queries[qid].vid for qid in qids]
    n_true = sizes(windows[qid] for qid in qids)
    by_length: dict[str, float] = {}
    for name, lengths in LENGTHS.items():
        if (found := score_moments(predictions, windows, lengths))[primary]:
            by_length |= {f"{metric} {name}": value for metric, value in metric_values(found, metrics).items()}
    whole = {qid: [[0.0, one.seconds]] for qid, one in truth.queries.items() if one.seconds is not None}
    has_lengths = len(whole) == len(truth.queries)
    left_out = len(predictions) - len(qids)
    return Summary(
        values=metric_values(scores, metrics),
        primary=primary,
        per_query={name: _table(scores, PRECISIONS if name == "mAP" else [name]).mean(axis=1) for name in metrics},
        queries=RelevantRanks(np.empty((len(qids), 0)), n_true, group_numbers(vids), qids, len(set(vids))),
        chance=metric_values(score_moments(whole, windows), metrics)[primary] if has_lengths else None,
        by_length=by_length,
        notes=[f"left out: {counted(left_out, 'query')} without a true window"] if left_out else [],
    )


def metric_values(scores: MomentScores, metrics: Iterable[str]) -> dict[str, float]:
    """Return means of metrics such as `R1@0.7` or `mAP`.

    `mAP` without a threshold is the mean over all of them.
    """
    means = _table(scores, list(scores)).mean(axis=0)  # numpy sums along this axis as the official script does
    values: dict[str, float] = dict(zip(scores, means.tolist(), strict=True))
    values["mAP"] = float(np.mean([values[name] for name in PRECISIONS]))
    return {metric: values[metric] for metric in metrics}


def _table(scores: MomentScores, metrics: Sequence[str]) -> np.ndarray:
    """Return metrics of queries, (Q, metrics)."""
    return np.array(list(zip(*(scores[name].values() for name in metrics), strict=True)))


def compare(system: Summary, others: Sequence[Summary]) -> Difference:
    """Test a system against the mean of others, by its primary metric.

    The queries may be in another order.
    """
    values = [_values_of(system, other) for other in others]
    return paired_difference(np.mean(values, axis=0), system.per_query[system.primary], system.queries.groups)


def _values_of(system: Summary, other: Summary) -> np.ndarray:
    """Return the other system's primary metric of each of this one's queries."""
    own, theirs = system.queries, other.queries
    if system.primary not in other.per_query:
        raise KitError(f"only one of the systems has {system.primary}; compare systems of one edition")
    row_of = {text: row for row, text in enumerate(theirs.texts)}
    are_unique = len(row_of) == len(theirs.texts) == len(own.texts) and row_of.keys() == set(own.texts)
    if own.texts != theirs.texts and not are_unique:
        raise KitError("the systems have different queries, or one twice in another order; compare the same")
    rows = [row_of[text] for text in own.texts] if are_unique else [*range(len(own.texts))]
    if own.n_pool != theirs.n_pool or (own.n_relevant != theirs.n_relevant[rows]).any():
        raise KitError("the systems have different pools or relevant clips; compare the same data")
    return np.asarray(other.per_query[system.primary][rows])


def format_interval(interval: Interval, metric: str, sign: str = "") -> str:
    """Format an interval of a metric, or the reason for none."""
    low, high = (format_metric(metric, bound, sign) for bound in interval)
    return "no interval: one group of queries" if math.isnan(interval[0]) else f"{low.removesuffix(' %')} to {high}"


def bounds_or_none(interval: Interval) -> list[float] | None:
    """Return an interval for JSON; None without one."""
    return None if math.isnan(interval[0]) else list(interval)
