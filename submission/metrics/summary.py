"""Figures of many queries.

Figures of many queries: one value per query and metric, their means and intervals, and their printed form.
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
    """Ranks of the relevant clips (or captions) of every query.

    Attributes:
        ranks: (Q, R), as from ordering.relevant_ranks.
        n_relevant: (Q,) number of relevant ones in the pool, found or not.
        groups: (Q,) equal for queries that share their relevant ones (intervals.grouped).
        texts: (Q,) the queries.
        n_pool: Size of the pool.
        depth: Ranks beyond it are not known, as in a ranked CSV; None: all are known.
    """

    ranks: Ranks
    n_relevant: Ints
    groups: Groups
    texts: list[str]
    n_pool: int
    depth: int | None = None

    def __post_init__(self) -> None:
        if not len(self.texts):
            raise SubmissionError("no query to score; give at least one")


@dataclass(frozen=True)
class Summary:
    """Means over queries.

    Attributes:
        values: Metric as published ("R@1", ..., "mAP@10") -> mean in [0, 1], in the order of a results table.
        primary: Metric of the intervals.
        per_query: Metric -> (Q,) values; AP@k has the name of its mean, mAP@k.
        interval: 95 % jackknife interval of the primary metric, as the official one.
        bootstrap: Its 95 % bootstrap interval over groups.
        median_rank: Of the first relevant one; inf beyond the depth.
        chance: Primary metric of a random order.
        hubness: Of a score matrix; None for other files.
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
        """Metrics that a comparison shows."""
        return (self.primary,)

    def lines(self) -> list[str]:
        """Return the summary as text, one figure per line."""
        table = [("queries", str(len(self.queries.texts))), ("pool", str(self.queries.n_pool))]
        table += [(name, f"{value:.4f}") for name, value in self.values.items()]
        table.append(
            ("95 %", f"{format_interval(self.interval, self.primary)} ({self.primary}, jackknife over queries)")
        )
        sharing = f"{self.primary}, bootstrap over queries that share clips"
        table.append(("95 %", f"{format_interval(self.bootstrap, self.primary)} ({sharing})"))
        middle = f"{self.median_rank:g}" if math.isfinite(self.median_rank) else f"above {self.queries.depth}"
        table.append(("median", f"{middle} (rank of the first relevant one)"))
        table.append(("chance", f"{self.chance:.4f} ({self.primary} of a random order)"))
        if self.hubness:
            never = f"{100 * self.hubness.never:.1f} % of clips are never in a top 10"
            table.append(("hubs", f"{self.hubness.skewness:.2f} (skewness of the top-10 counts); {never}"))
        table += [("note", note) for note in self.notes]
        width = max(8, *(len(name) + 1 for name, _ in table))
        return [f"{name:{width}}{text}" for name, text in table]

    def rows(self) -> list[list[str]]:
        """Return a table with a row per query: text, number of relevant clips, their known ranks, and metrics."""
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
    """Return the means over queries of R@k and AP@k, for every k of recall_ks and of map_ks.

    The primary metric is AP@k for the first k of map_ks.

    A k beyond the depth of ranked lists gives a lower bound, a k beyond the pool means all clips; notes report both.
    """
    per_query = {f"R@{k}": recall(queries.ranks, queries.n_relevant, k) for k in recall_ks}
    per_query |= {f"mAP@{k}": average_precision(queries.ranks, queries.n_relevant, k) for k in map_ks}

    depth = queries.n_pool if queries.depth is None else min(queries.depth, queries.n_pool)
    why = f"over the whole pool, which has {counted(depth, 'clip')}"
    if depth < queries.n_pool:
        why = f"a lower bound, because the lists have {counted(depth, 'name')}"
    names = ", ".join(name for name in per_query if int(name.partition("@")[2]) > depth)
    notes = [f"{names}: {why}"] if names else []
    return _summary(queries, per_query, map_ks[0], notes)


def summarise_audio_to_text(queries: RelevantRanks, ks: Sequence[int] = (1, 5, 10)) -> Summary:
    """Return the means, over clips that search for their captions, of three kinds of recall and of mAP.

    HR@k: see hit_rate (called R@k by Mei et al., WavCaps, LAION-CLAP). R@k: see recall. pooled R@k: see pooled_recall.
    mAP@10 divides by the number of all captions of a clip; mAP has no cut.
    """
    per_query = {f"HR@{k}": hit_rate(queries.ranks, k) for k in ks}
    per_query |= {f"R@{k}": recall(queries.ranks, queries.n_relevant, k) for k in ks}
    per_query["mAP@10"] = average_precision(queries.ranks, queries.n_relevant, 10)
    per_query["mAP"] = average_precision(queries.ranks, queries.n_relevant, None)
    summary = _summary(queries, per_query, 10, [])
    for k in ks:
        summary.values[f"pooled R@{k}"] = pooled_recall(queries.ranks, queries.n_relevant, k)
    return summary


def _summary(queries: RelevantRanks, per_query: dict[str, Values], k: int, notes: list[str]) -> Summary:
    """Build a summary from the metrics of each query. k: The k of the primary metric, mAP@k."""
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
    """Format both bounds of an interval in the metric's unit, or the reason why they are missing."""
    low, high = (format_metric(metric, bound, sign) for bound in interval)
    return (
        "none, one group of queries shows no spread"
        if math.isnan(interval[0])
        else f"{low.removesuffix(' %')} to {high}"
    )
