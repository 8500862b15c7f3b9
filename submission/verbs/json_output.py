"""Reports for --json.

The --json output of the reporting verbs. A separate module, because scoring a CSV does not need pydantic.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from data_tools.documents.problems import Problem
from data_tools.documents.strict import Report, number
from submission.editions import Edition, MomentsEdition
from submission.metrics.intervals import Difference, Interval
from submission.metrics.moments_summary import MomentSummary
from submission.metrics.summary import Summary


class Fact(Report):
    """A fact of an edition.

    sure: `confirmed`, `secondary`, `inferred` or `remembered`. source: Where it is published.
    """

    value: object
    sure: str
    source: str


class EditionReport(Report):
    """An edition. output: `ranked`, `matrix` or `windows`. metric: Primary one. facts: By name; empty for several."""

    edition: str
    task: str
    output: str
    metric: str
    facts: dict[str, Fact]


class FactsReport(Report):
    editions: list[EditionReport]


class HubsReport(Report):
    skewness: float
    never: float


class ScoreReport(Report):
    """Figures of a system.

    values: By metric, in [0, 1].
    primary: Metric of chance and of both intervals.
    interval: 95 %, by the jackknife over queries; null for a single query.
    bootstrap: 95 %, by the bootstrap over groups that share clips; null for a single group.
    median_rank: Of the first relevant one; null beyond a ranked list.
    hubs: Skewness of the numbers of queries that have a clip in their top 10, and the share of clips that are in none;
    null if it is not a score matrix.

    For moments, pool is the number of recordings, groups share a recording, and median_rank is null. Then chance is
    the figure of whole recordings as the answers, null if a length is missing.
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
    """Comparison of the first system with the mean of the others.

    difference: Of the primary metric, the first minus the mean of the others.
    interval: 95 % interval of the difference.
    p: Of a paired randomisation test of `groups` groups of queries.
    better, equal, worse: Numbers of queries where the first is better, equal or worse.
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
    """A problem or note. line: From 1; null for the whole file. kind: The same words for every problem of its kind."""

    line: int | None
    sentence: str
    kind: str


class CheckReport(Report):
    """Result of a check.

    queries, columns: Of the file; null if it could not be read. Columns are names of a ranked CSV, clips of a matrix,
    or windows of the longest answer of moments.
    compared: Whether its texts and names were compared with the given truth, scores or blind set.
    notes: Oddities of moments, which are scored.
    """

    file: str
    edition: str
    ok: bool
    queries: int | None
    columns: int | None
    compared: bool
    problems: list[FileProblem]
    notes: list[FileProblem]


def edition_report(edition: Edition | MomentsEdition, whole: bool) -> EditionReport:
    """Return the JSON report of an edition. whole: Whether to include all facts and their sources."""
    facts = {
        name: Fact(value=_json_value(getattr(edition, name)), sure=sure, source=where)
        for name, (sure, where) in edition.sources.items()
    }
    return EditionReport(
        edition=edition.name,
        task=edition.task,
        output=edition.output,
        metric=edition.metric,
        facts=facts if whole else {},
    )


def _json_value(value: object) -> object:
    """Convert tuples to lists, also those that a mapping holds; return any other value unchanged."""
    if isinstance(value, tuple):
        return list(value)
    return {key: list(names) for key, names in value.items()} if hasattr(value, "items") else value


def score_report(
    system: str, summary: Summary | MomentSummary, further: Mapping[str, float] = MappingProxyType({})
) -> ScoreReport:
    """Return the JSON report of a system's summary. further: Additional metrics."""
    hubness = summary.hubness if isinstance(summary, Summary) else None
    return ScoreReport(
        system=system,
        queries=len(summary.queries.texts),
        pool=summary.queries.n_pool,
        values={**summary.values, **further},
        primary=summary.primary,
        interval=_interval(summary.interval),
        bootstrap=_interval(summary.bootstrap),
        median_rank=number(summary.median_rank),
        chance=None if summary.chance is None else float(summary.chance),
        hubs=HubsReport(**hubness._asdict()) if hubness else None,
        notes=summary.notes,
    )


def compare_report(systems: list[ScoreReport], difference: Difference) -> CompareReport:
    """Return the JSON report of a comparison of the first of `systems` with the mean of the others."""
    return CompareReport(
        systems=systems,
        primary=systems[0].primary,
        difference=difference.mean,
        interval=_interval(difference.interval),
        p=difference.p,
        groups=difference.n_groups,
        better=difference.better,
        equal=difference.equal,
        worse=difference.worse,
    )


def file_problems(problems: Sequence[Problem]) -> list[FileProblem]:
    """Return the problems of a file in the form of a JSON report."""
    return [FileProblem(**problem._asdict()) for problem in problems]


def _interval(bounds: Interval) -> Interval | None:
    """Return a confidence interval for JSON; None if a bound is NaN or infinite."""
    low, high = map(number, bounds)
    return None if low is None or high is None else (low, high)
