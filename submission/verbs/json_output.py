"""Reports for --json.

Build the JSON output of the verbs that have the option --json. This is a separate module, because it imports pydantic,
which the verbs do not need without --json.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from data_tools.documents.problems import Problem
from data_tools.documents.strict import Report, number
from submission.metrics.intervals import Difference, Interval
from submission.metrics.moments_summary import MomentSummary
from submission.metrics.summary import Summary


class HubsReport(Report):
    skewness: float
    never: float


class ScoreReport(Report):
    """Metrics of a system.

    Attributes:
        pool: Number of clips in the pool.
        values: Values by metric, in [0, 1].
        primary: Primary metric. Both intervals and chance belong to it.
        interval: Jackknife interval (95 %) over queries; null for a single query.
        bootstrap: Bootstrap interval (95 %) over groups of queries that share clips; null for a single group.
        median_rank: Median rank of the first relevant clip; null if it is beyond the end of ranked lists.
        chance: Primary metric of clips in random order.
        hubs: Skewness of the number of queries that have a clip in their top 10, and the share of clips in no top
            10; null if the system is no score matrix.

    For moments, pool is the number of recordings, queries of a group share a recording, and median_rank is null. Then
    chance is the primary metric if each answer is the whole recording; null if the length of a recording is missing.
    """

    system: str
    queries: int
    pool: int
    values: dict[str, float]
    primary: str
    interval: Interval | None
    bootstrap: Interval | None
    median_rank: float | None
    chance: float | None
    hubs: HubsReport | None
    notes: list[str]


class CompareReport(Report):
    """Comparison of the first system with the mean of the other systems.

    Attributes:
        difference: Difference in the primary metric: the first system minus the mean of the other systems.
        interval: 95 % interval of the difference.
        p: Result of a paired randomisation test.
        groups: Number of groups of queries in this test.
        better, equal, worse: Numbers of queries for which the first system is better, equal or worse.
    """

    systems: list[ScoreReport]
    primary: str
    difference: float
    interval: Interval | None
    p: float
    groups: int
    better: int
    equal: int
    worse: int


class FileProblem(Report):
    """A problem or an oddity of a file. line: Line number, from 1; null for the whole file. kind: Kind of problem."""

    line: int | None
    sentence: str
    kind: str


class CheckReport(Report):
    """Result of the check of a file.

    queries, columns: Numbers of queries and columns; null if the file could not be read. Columns are the file names per
    row of a ranked CSV, the clips of a matrix CSV, or the maximum number of windows per query of moments.
    compared: Whether the queries and file names were compared with a given truth, score matrix or blind set.
    notes: Oddities of moments, which do not prevent scoring.
    """

    file: str
    edition: str
    ok: bool
    queries: int | None
    columns: int | None
    compared: bool
    problems: list[FileProblem]
    notes: list[FileProblem]


def score_report(
    system: str, summary: Summary | MomentSummary, further: Mapping[str, float] = MappingProxyType({})
) -> ScoreReport:
    """Return the JSON report on the metrics of a system. further: Dict of additional metrics."""
    hubness = summary.hubness if isinstance(summary, Summary) else None
    return ScoreReport(
        system=system,
        queries=len(summary.queries.texts),
        pool=summary.queries.n_pool,
        values={**summary.values, **further},
        primary=summary.primary,
        interval=_interval_or_none(summary.interval),
        bootstrap=_interval_or_none(summary.bootstrap),
        median_rank=number(summary.median_rank),
        chance=None if summary.chance is None else float(summary.chance),
        hubs=HubsReport(**hubness._asdict()) if hubness else None,
        notes=summary.notes,
    )


def compare_report(systems: list[ScoreReport], difference: Difference) -> CompareReport:
    """Return the JSON report on a comparison of the first of `systems` with the mean of the other systems."""
    return CompareReport(
        systems=systems,
        primary=systems[0].primary,
        difference=difference.mean,
        interval=_interval_or_none(difference.interval),
        p=difference.p,
        groups=difference.n_groups,
        better=difference.better,
        equal=difference.equal,
        worse=difference.worse,
    )


def file_problems(problems: Sequence[Problem]) -> list[FileProblem]:
    """Convert the problems of a file to the form of the JSON report."""
    return [FileProblem(**problem._asdict()) for problem in problems]


def _interval_or_none(bounds: Interval) -> Interval | None:
    """Return a confidence interval for the JSON report; None if a bound is NaN or infinite."""
    low, high = map(number, bounds)
    return None if low is None or high is None else (low, high)
