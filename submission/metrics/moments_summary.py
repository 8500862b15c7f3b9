"""Figures of moments with intervals.

Compute the published metrics of moments over many queries, each with a confidence interval over recordings.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, NamedTuple

from data_tools.cli import counted
from data_tools.documents.problems import Problem
from data_tools.files import require_file
from submission.arrays import Ints, Values
from submission.editions import MomentsEdition, format_metric
from submission.errors import SubmissionError
from submission.formats.columns import raise_first_problem
from submission.formats.moments_jsonl import check_moments, windows_by_query
from submission.formats.moments_truth import MomentTruth
from submission.metrics.intervals import Groups, Interval, bootstrap_interval, group_numbers, jackknife_interval
from submission.metrics.moment_metrics import MomentScores, Windows, published_percent, score_moments
from submission.metrics.summary import format_interval


class MomentQueries(NamedTuple):
    """Queries with scores, and their recordings.

    Attributes:
        texts: (Q,) ids of the queries; for moments, ids and not texts identify queries.
        n_relevant: (Q,) number of true windows of each query that the metrics use.
        groups: (Q,) number of each query's recording.
        n_pool: Number of recordings.
    """

    texts: list[str]
    n_relevant: Ints
    groups: Groups
    n_pool: int


@dataclass(frozen=True)
class MomentSummary:
    """Metrics of a system that finds moments: means over queries, with confidence intervals.

    Attributes:
        values: Dict from metric, named as published, to its mean in [0, 1].
        primary: Metric that decides the ranking of systems in the challenge.
        per_query: Dict from metric to its value for each query, (Q,).
        interval: 95 % jackknife interval of the primary metric over queries.
        bootstraps: Dict from metric to its 95 % bootstrap interval over recordings, because queries of a recording are
            not independent.
        chance: Primary metric of predictions that are whole recordings; None if the truth lacks their lengths.
        queries: Queries with scores.
        scores: Scores of each query.
        by_length: Dict from a range of window lengths, such as `short`, to the scores for true windows in this range;
            None if no query has such a window.
        notes: Sentences for the reader, such as on true windows that were left out.
        sharing: Text for messages, which names the common property of the queries of a group: their recording.
    """

    values: dict[str, float]
    primary: str
    per_query: dict[str, Values]
    interval: Interval
    bootstraps: dict[str, Interval]
    chance: float | None
    queries: MomentQueries
    scores: MomentScores
    by_length: Mapping[str, MomentScores | None]
    notes: list[str] = field(default_factory=list)
    median_rank: ClassVar[float] = float("inf")  # moments have no rank
    sharing: ClassVar[str] = "their recording"

    @property
    def bootstrap(self) -> Interval:
        """Bootstrap interval of the primary metric."""
        return self.bootstraps[self.primary]

    @property
    def compared_metrics(self) -> tuple[str, ...]:
        """Metrics that a comparison of systems prints, the primary metric first."""
        return (self.primary, *(metric for metric in self.values if metric != self.primary))

    def lines(self, by_length: bool = False) -> list[str]:
        """Return the summary as lines, one metric each, in per cent. by_length: Also by length of the windows."""
        table = [("queries", str(len(self.queries.texts))), ("recordings", str(self.queries.n_pool))]
        for metric, value in self.values.items():
            interval = format_interval(self.bootstraps[metric], metric)
            table.append((metric, f"{published_percent(value):6.2f} %  95 % {interval}"))
        table.append(("", "95 % intervals by the bootstrap over recordings"))
        if by_length:
            table += self._length_rows()
        if self.chance is not None:
            table.append(
                (
                    "trivial",
                    f"{published_percent(self.chance):6.2f} %  {self.primary} if each answer is the whole recording",
                )
            )
        table += [("note", note) for note in self.notes]
        return [f"{name:12}{text}" for name, text in table]

    def figures_by_length(self) -> dict[str, float]:
        """Return the metrics for each range of window lengths: a dict from e.g. `mAP short` to a value in [0, 1]."""
        return {
            f"{metric} {name}": value
            for name, scores in self.by_length.items()
            if scores is not None
            for metric, value in metric_values(scores, self.values).items()
        }

    def rows(self) -> list[list[str]]:
        """Return a table, one row per query: id, number of true windows, IoU of its first window, and metrics."""
        names = (name.removeprefix("m") for name in self.per_query)
        header = ["query", "true windows", "IoU", *names]
        queries = zip(
            self.queries.texts, self.queries.n_relevant, self.scores.ious, *self.per_query.values(), strict=True
        )
        return [
            header,
            *([qid, str(total), *(f"{value:.6g}" for value in values)] for qid, total, *values in queries),
        ]

    def _length_rows(self) -> list[tuple[str, str]]:
        """Return a row for each range of window lengths: the name of the range, and its metrics as text."""
        rows = []
        for name, scores in self.by_length.items():
            if scores is None:
                rows.append((name, "no query has a true window of this length"))
                continue
            figures = metric_values(scores, self.values).items()
            shown = "  ".join(f"{metric} {format_metric(metric, value)}" for metric, value in figures)
            rows.append((name, f"{shown}  ({counted(len(scores.qids), 'query')})"))
        return rows


def metric_values(scores: MomentScores, metrics: Sequence[str] | Mapping[str, float]) -> dict[str, float]:
    """Return a dict from each of `metrics` (`R1@0.7`, `mAP`, `mAP@0.75`) to its mean over queries, in [0, 1]."""
    return {metric: metric_value(scores, metric) for metric in metrics}


def metric_value(scores: MomentScores, metric: str) -> float:
    """Return the mean over queries of a metric, such as `R1@0.7` or `mAP`, in [0, 1]."""
    name, threshold = _split_metric(metric)
    return scores.recall(threshold) if name == "R1" and threshold else scores.mean_precision(threshold)


def summarise_moments(
    predictions: Mapping[str, Windows], truth: MomentTruth, edition: MomentsEdition, notes: Sequence[str] = ()
) -> MomentSummary:
    """Return metrics with confidence intervals of predicted windows, given by query id. notes: Texts for the summary.

    The bootstrap draws whole recordings, not queries, because queries of a recording are not independent.
    Raises the same errors as score_moments, and SubmissionError for a blind list.
    """
    true_windows = truth.windows()
    scores = score_moments(predictions, true_windows, (0.0, edition.max_seconds))
    vids = [truth.queries[qid].vid for qid in scores.qids]
    per_query = {}
    for metric in edition.metrics:
        name, threshold = _split_metric(metric)
        per_query[metric] = scores.hits(threshold) if name == "R1" and threshold else scores.precisions_at(threshold)
    groups = group_numbers(vids)
    by_length: dict[str, MomentScores | None] = {}
    for name, lengths in edition.lengths.items():
        try:
            by_length[name] = score_moments(predictions, true_windows, lengths)
        except SubmissionError:
            by_length[name] = None
    return MomentSummary(
        values=metric_values(scores, edition.metrics),
        primary=edition.metric,
        per_query=per_query,
        interval=jackknife_interval(per_query[edition.metric]),
        bootstraps={metric: bootstrap_interval(values, groups) for metric, values in per_query.items()},
        chance=_whole_recording_score(truth, edition),
        queries=MomentQueries(scores.qids, scores.n_true, groups, len(set(vids))),
        scores=scores,
        by_length=by_length,
        notes=[*_omission_notes(scores, edition), *notes],
    )


def summarise_moments_file(path: Path, truth: MomentTruth, edition: MomentsEdition) -> MomentSummary:
    """Return the metrics of a file of moments. Raises SubmissionError if check_moments finds a problem in the file.

    The notes of the result count the oddities of the file and of the truth.
    """
    require_file(path)
    answers, problems, oddities = check_moments(path.read_bytes(), edition, truth)
    raise_first_problem(str(path), problems)
    of_lines = [problem for problem in oddities if problem.line is not None]
    return summarise_moments(
        windows_by_query(answers), truth, edition, [*_count_kinds(of_lines, path.name), *truth_notes(truth)]
    )


def truth_notes(truth: MomentTruth) -> list[str]:
    """Return notes on unusual true windows and queries: one line per kind of oddity, with the number of oddities."""
    return _count_kinds(truth.notes, truth.name)


def _split_metric(metric: str) -> tuple[str, float | None]:
    """Split a metric into its name and its threshold: ("R1", 0.7) for `R1@0.7`, ("mAP", None) for `mAP`."""
    name, _, threshold = metric.partition("@")
    return name, float(threshold) if threshold else None


def _whole_recording_score(truth: MomentTruth, edition: MomentsEdition) -> float | None:
    """Return the primary metric of a system that answers each query with the whole recording; None without lengths."""
    lengths = {qid: query.seconds for qid, query in truth.queries.items()}
    whole = {qid: [[0.0, seconds]] for qid, seconds in lengths.items() if seconds is not None}
    if len(whole) < len(lengths):
        return None
    return metric_value(score_moments(whole, truth.windows(), (0.0, edition.max_seconds)), edition.metric)


def _omission_notes(scores: MomentScores, edition: MomentsEdition) -> list[str]:
    """Return notes on the true windows and the queries that were left out of the scores."""
    notes = []
    if scores.n_dropped:
        windows_text = counted(scores.n_dropped, "true window")
        notes.append(f"left out: {windows_text} of no length or longer than {edition.max_seconds:g} s")
    if scores.left_out:
        more = f" and {counted(len(scores.left_out) - 1, 'more query')}" if len(scores.left_out) > 1 else ""
        notes.append(f"left out, because they have no true window: query {scores.left_out[0]}{more}")
    return notes


def _count_kinds(notes: Sequence[Problem], name: str) -> list[str]:
    """Return one line per kind of note, with the number of notes of this kind. name: File name, for the lines."""
    return [f"{name}: {count} x {kind} (`check` lists each)" for kind, count in Counter(n.kind for n in notes).items()]
