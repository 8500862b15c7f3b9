"""Metrics of many queries.

Compute the metrics of each query, their means over queries, and confidence intervals, and format them as text.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from data_tools.cli import counted
from submission.arrays import Ints, Values
from submission.editions import format_metric
from submission.errors import SubmissionError
from submission.metrics.hubness import Hubness
from submission.metrics.intervals import Groups, Interval, bootstrap_interval, jackknife_interval
from submission.metrics.retrieval import average_precision, chance, hit_rate, median_rank, pooled_recall, recall
from submission.ordering import Ranks


@dataclass(frozen=True)
class RelevantRanks:
    """Ranks of the relevant clips of every query; from audio to text, a clip is the query and its captions are ranked.

    Attributes:
        ranks: (Q, R) ranks of up to R relevant clips of each of Q queries, from ordering.relevant_ranks.
        n_relevant: (Q,) number of relevant clips in the pool, with or without a known rank.
        groups: (Q,) group number of each query; queries with the same relevant clips are in the same group.
        texts: (Q,) texts of the queries.
        n_pool: Number of clips in the pool.
        depth: Largest known rank, such as the length of the lists in a ranked CSV; None: all ranks are known.
    """

    ranks: Ranks
    n_relevant: Ints
    groups: Groups
    texts: list[str]
    n_pool: int
    depth: int | None = None

    def __post_init__(self) -> None:
        """Raise SubmissionError if there is no query."""
        if not len(self.texts):
            raise SubmissionError("no query to score; give at least one")


@dataclass(frozen=True)
class Summary:
    """Metrics of a system that ranks clips: means over queries, with confidence intervals.

    Attributes:
        values: Dict from metric ("R@1", ..., "mAP@10") to its mean in [0, 1], in the order of a results table.
        primary: Primary metric. Both intervals and chance belong to it.
        per_query: Dict from metric to its value for each query, (Q,). The key of AP@k is mAP@k, like that of its mean.
        interval: Jackknife interval (95 %) of the primary metric, like the official interval.
        bootstrap: Bootstrap interval (95 %) of the primary metric, over groups of queries that share clips.
        median_rank: Median over queries of the rank of the first relevant clip; inf if it is beyond the known ranks.
        chance: Primary metric of clips in random order.
        queries: Ranks that the metrics were computed from.
        notes: Sentences for the reader, such as on metrics that are lower bounds.
        hubness: Hubness of a score matrix; None for other files.
        sharing: Text for messages, which names the common property of the queries of a group: their clips.
    """

    values: dict[str, float]
    primary: str
    per_query: dict[str, Values]
    interval: Interval
    bootstrap: Interval
    median_rank: float
    chance: float
    queries: RelevantRanks
    notes: list[str] = field(default_factory=list)
    hubness: Hubness | None = None
    sharing: ClassVar[str] = "their clips"

    @property
    def compared_metrics(self) -> tuple[str, ...]:
        """Metrics that a comparison of systems prints: only the primary metric."""
        return (self.primary,)

    def lines(self) -> list[str]:
        """Return the summary as lines of text, one metric per line."""
        table = [("queries", str(len(self.queries.texts))), ("pool", str(self.queries.n_pool))]
        table += [(name, f"{value:.4f}") for name, value in self.values.items()]
        table.append(
            ("95 %", f"{format_interval(self.interval, self.primary)} ({self.primary}, jackknife over queries)")
        )
        table.append(
            (
                "95 %",
                f"{format_interval(self.bootstrap, self.primary)} ({self.primary}, bootstrap over groups of queries "
                "with a common clip)",
            )
        )
        middle = f"{self.median_rank:g}" if math.isfinite(self.median_rank) else f"above {self.queries.depth}"
        table.append(("median", f"{middle} (rank of the first relevant clip)"))
        table.append(("chance", f"{self.chance:.4f} ({self.primary} of a random order)"))
        if self.hubness:
            table.append(
                (
                    "hubs",
                    f"{self.hubness.skewness:.2f} (skewness of the number of queries with a clip in the top 10); "
                    f"{100 * self.hubness.never:.1f} % of clips are in no query's top 10",
                )
            )
        table += [("note", note) for note in self.notes]
        width = max(8, *(len(name) + 1 for name, _ in table))
        return [f"{name:{width}}{text}" for name, text in table]

    def rows(self) -> list[list[str]]:
        """Return a table, one row per query: its text, its number of relevant clips, their known ranks, its metrics."""
        queries = self.queries
        depth = queries.depth or queries.n_pool
        header = ["query", "relevant", "ranks", *(name.removeprefix("m") for name in self.per_query)]
        columns = (queries.texts, queries.n_relevant, queries.ranks.tolist(), *self.per_query.values())
        rows = [header]
        for text, total, ranks, *values in zip(*columns, strict=True):
            known = " ".join(str(rank) for rank in ranks if rank <= depth)
            rows.append([text, str(total), known, *(f"{value:.6g}" for value in values)])
        return rows


def summarise(queries: RelevantRanks, recall_ks: Sequence[int] = (1, 5, 10), map_ks: Sequence[int] = (10,)) -> Summary:
    """Return a summary with R@k for every k in recall_ks, mAP@k for every k in map_ks, intervals, and median rank.

    The primary metric is mAP@k for the first k in map_ks. If k is larger than the length of the ranked lists, the
    metric is a lower bound. If k is larger than the pool, all clips are used. Notes report both cases.
    """
    per_query = {f"R@{k}": recall(queries.ranks, queries.n_relevant, k) for k in recall_ks}
    per_query |= {f"mAP@{k}": average_precision(queries.ranks, queries.n_relevant, k) for k in map_ks}

    depth = queries.n_pool if queries.depth is None else min(queries.depth, queries.n_pool)
    why = f"over the whole pool, which has {counted(depth, 'clip')}"
    if depth < queries.n_pool:
        why = f"a lower bound, because the ranked lists have only {counted(depth, 'file name')}"
    names = ", ".join(name for name in per_query if int(name.partition("@")[2]) > depth)
    notes = [f"{names}: {why}"] if names else []
    return _build_summary(queries, per_query, map_ks[0], notes)


def summarise_audio_to_text(queries: RelevantRanks, ks: Sequence[int] = (1, 5, 10)) -> Summary:
    """Return the metrics from audio to text, where each clip searches for its captions: three recalls, and mAP.

    The recalls are HR@k (see hit_rate), R@k (see recall), and pooled R@k (see pooled_recall). Mei et al., WavCaps and
    LAION-CLAP call HR@k R@k. mAP@10 divides by the number of all captions of a clip; mAP uses all ranks.
    """
    per_query = {f"HR@{k}": hit_rate(queries.ranks, k) for k in ks}
    per_query |= {f"R@{k}": recall(queries.ranks, queries.n_relevant, k) for k in ks}
    per_query["mAP@10"] = average_precision(queries.ranks, queries.n_relevant, 10)
    per_query["mAP"] = average_precision(queries.ranks, queries.n_relevant, None)
    summary = _build_summary(queries, per_query, 10, [])
    for k in ks:
        summary.values[f"pooled R@{k}"] = pooled_recall(queries.ranks, queries.n_relevant, k)
    return summary


def _build_summary(queries: RelevantRanks, per_query: dict[str, Values], k: int, notes: list[str]) -> Summary:
    """Return a summary with the means of the metrics of each query. k: The k of the primary metric mAP@k."""
    primary = f"mAP@{k}"
    return Summary(
        values={name: float(values.mean()) for name, values in per_query.items()},
        primary=primary,
        per_query=per_query,
        interval=jackknife_interval(per_query[primary]),
        bootstrap=bootstrap_interval(per_query[primary], queries.groups),
        median_rank=median_rank(queries.ranks),
        chance=chance(queries.n_pool, k, queries.n_relevant.mean()),
        queries=queries,
        notes=notes,
    )


def format_interval(interval: Interval, metric: str, sign: str = "") -> str:
    """Format the bounds of a metric's interval, or why it is missing. sign: "+" marks positive bounds too."""
    low, high = (format_metric(metric, bound, sign) for bound in interval)
    return (
        "no interval, because there is only one group of queries"
        if math.isnan(interval[0])
        else f"{low.removesuffix(' %')} to {high}"
    )
