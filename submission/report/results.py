"""Sections on results.

Make the sections on the quality of a run: metrics of this run and of others, ranks, scores, experts, and lengths.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from data_tools.cli import counted
from submission.arrays import Ints, Values
from submission.editions import Edition, format_metric
from submission.errors import SubmissionError
from submission.metrics.compare import Comparable, compare
from submission.metrics.summary import Summary
from submission.report import figures, statistics
from submission.report.elements import NONE, Drawing, Section, Table, figure4, interval_text, percent
from submission.report.statistics import Bar, ScoreGaps
from submission.runs.clips import Clips
from submission.runs.finished import FinishedRun

THIS_RUN = "this run"
PAIRED_TEST_NOTE = (
    "p is the result of a paired randomisation test. It swaps whole groups of queries that share clips or, for "
    "moments, a recording. Each comparison is a separate test."
)
INTERVALS = ("95 % jackknife", "95 % bootstrap")
CEILING = "mAP@10"  # metric of a run's ceiling
BINS = 30


def result_section(
    run: FinishedRun, this: Summary, others: Mapping[str, Summary], edition: Edition, path: Path
) -> Section:
    """Return the section with all metrics of this run, next to reference scores and other runs.

    Reference scores are chance, the untrained model, and the ceiling (the score of a perfect system, if known).

    Args:
        this: Metrics of this run.
        others: Dict from the name of each other run to its metrics.
        path: File to which the figure is drawn.
    """
    summaries = {THIS_RUN: this, **others}
    levels, notes = _reference_levels(run, this)
    figures.draw_systems(path, summaries, levels, this.primary)
    queries = this.queries
    constants = "; ".join(f"{name} {level:.4f}" for name, level in levels.items())
    systems = "; ".join(
        f"{name} {s.values[s.primary]:.4f} ({interval_text(s.bootstrap)})" for name, s in summaries.items()
    )
    drawing = Drawing(
        path,
        f"{this.primary} with its 95 % intervals",
        f"{this.primary}, with bootstrap intervals: {systems}; {constants}.",
        Table(
            this.primary,
            ("system", this.primary, *INTERVALS),
            [[name, figure4(s.values[s.primary]), *_format_intervals(s)] for name, s in summaries.items()]
            + [[name, figure4(level), NONE, NONE] for name, level in levels.items()],
        ),
    )
    return Section(
        anchor="result",
        title="Result",
        headline=(
            f"{this.primary} {this.values[this.primary]:.4f}",
            f"95 % {interval_text(this.interval)} by jackknife over queries, "
            f"{interval_text(this.bootstrap)} by bootstrap over groups of queries with a common clip; "
            f"{counted(len(queries.texts), 'query', ',')}, "
            f"{counted(queries.n_pool, 'clip', ',')}; {constants}. "
            f"Metrics are those of edition {edition.name}, shares from 0 to 1.",
        ),
        drawings=[drawing],
        tables=[_figures_table(summaries, levels), *([differences_table(this, others, "This run")] if others else [])],
        paragraphs=[*(f"{note}." for note in this.notes), *notes, *([PAIRED_TEST_NOTE] if others else [])],
    )


def _format_intervals(summary: Summary) -> list[str]:
    """Return the jackknife and the bootstrap interval of the primary metric as texts."""
    return [interval_text(summary.interval), interval_text(summary.bootstrap)]


def _figures_table(summaries: Mapping[str, Summary], levels: Mapping[str, float]) -> Table:
    """Return the table of all metrics: one row per system, then one row per reference score, such as chance."""
    this = summaries[THIS_RUN]
    n_queries, n_clips = f"{len(this.queries.texts):,}", f"{this.queries.n_pool:,}"
    rows = []
    for name, s in summaries.items():
        sizes = f"{len(s.queries.texts):,}", f"{s.queries.n_pool:,}"
        rows.append([name, *sizes, *map(figure4, s.values.values()), *_format_intervals(s), f"{s.median_rank:g}"])
    for name, level in levels.items():
        known = [figure4(level) if metric == this.primary else NONE for metric in this.values]
        rows.append([name, n_queries, n_clips, *known, NONE, NONE, NONE])
    header = ("system", "queries", "clips", *this.values, *INTERVALS, "median rank")
    return Table(f"All metrics (intervals of {this.primary}; median rank of the first relevant clip)", header, rows)


def _reference_levels(run: FinishedRun, this: Summary) -> tuple[dict[str, float], list[str]]:
    """Return a dict from reference score, such as `chance`, to its value, and sentences on missing reference scores."""
    ranked = run.ranked
    levels, notes = {"chance": this.chance}, []
    if ranked.untrained is None:
        notes.append("The run trained nothing, so it is not compared with an untrained model.")
    elif ranked.metric == this.primary:
        levels["untrained"] = ranked.untrained
    else:
        notes.append(f"{this.primary} of the untrained model is not known: the run has it only for another edition.")
    if ranked.ceiling is not None and this.primary == CEILING:
        levels["ceiling"] = ranked.ceiling
        notes.append("The ceiling is the score of a system that labels the composed scenes perfectly.")
    return levels, notes


def differences_table(this: Comparable, others: Mapping[str, Comparable], subject: str) -> Table:
    """Return a table of differences in the primary metric: this system (called `subject`) minus each other system.

    subject: Name of this system in the caption, such as `This run`.
    """
    rows = []
    for name, summary in others.items():
        try:
            difference = compare(this, [summary])
        except SubmissionError as error:
            rows.append([name, f"not comparable: {error}", NONE, NONE, NONE])
            continue
        counts = f"{difference.better:,} / {difference.equal:,} / {difference.worse:,}"
        rows.append(
            [
                name,
                format_metric(this.primary, difference.mean, "+"),
                interval_text(difference.interval, this.primary),
                f"{difference.p:.4f}",
                counts,
            ]
        )
    header = ("other", "difference", "95 % bootstrap", "p", "queries better / equal / worse")
    return Table(f"{subject} minus each of the other systems: {this.primary}, query by query", header, rows)


def ranks_section(summary: Summary, path: Path) -> Section:
    """Return the section with the distribution of the ranks of the first relevant clips."""
    queries = summary.queries
    bins = statistics.rank_bins(queries.n_pool)
    first = queries.ranks.min(axis=1)
    counts = statistics.count_ranks(first, bins)
    random = statistics.random_shares(bins, queries.n_pool, queries.n_relevant)
    labels = [str(low) if low == high else f"{low}–{high}" for low, high in bins]
    n = len(queries.texts)
    ten, beyond = (percent(float(np.mean(which))) for which in (first <= 10, first > 100))
    alt = (
        f"Of {counted(n, 'query', ',')}, {percent(counts[0] / n)} have a relevant clip at rank 1 ({percent(random[0])} "
        f"in a random order), {ten} within the first ten ranks, and {beyond} only beyond rank 100."
    )
    rows = [
        [label, f"{count:,}", percent(count / n), percent(share)]
        for label, count, share in zip(labels, counts, random, strict=True)
    ]
    table = Table("Ranks", ("rank", "queries", "share", "share in a random order"), rows)
    if len(bins) < 2:  # a single bar shows nothing
        return Section("ranks", "Ranks", paragraphs=[alt])
    figures.draw_ranks(path, labels, counts, random)
    drawing = Drawing(path, "Rank of the first relevant clip", alt, table)
    return Section("ranks", "Ranks", paragraphs=[alt], drawings=[drawing])


def scores_section(run: FinishedRun, gaps: ScoreGaps, folder: Path) -> Section:
    """Return the section with the scores of relevant clips and of hardest negatives, and their differences."""
    ranked = ~np.isnan(gaps.negative)
    if not ranked.any():
        return Section("scores", "Scores", paragraphs=["Every clip is relevant to every query; there is no negative."])
    positive, negative, margin = gaps.positive[ranked], gaps.negative[ranked], gaps.margin[ranked]
    n, wins = counted(len(margin), "query", ","), float(np.mean(margin > 0))
    unit = f"score ({run.recipe.model.score.kind})"
    marks = loss_margins(run)
    text = (
        f"For {percent(wins)} of {n} the best relevant clip scores higher than every clip that is "
        f"not relevant. The median score of the best relevant clips is {np.median(positive):.3f}, and that of the "
        f"hardest negatives {np.median(negative):.3f}."
    )
    shares_of_margins = [
        f"For {percent(float(np.mean(margin >= mark)))} of {n} the best relevant clip scores higher than the hardest "
        f"negative by at least {name}."
        for mark, name in marks.items()
    ]
    difference_text = (
        f"The median difference is {np.median(margin):.3f}; the difference is above 0 for {percent(wins)} of {n}."
    )
    if np.ptp(margin) == 0:  # a single bar shows nothing
        return Section("scores", "Scores", paragraphs=[" ".join([text, *shares_of_margins])])
    edges = np.histogram_bin_edges(np.concatenate([positive, negative]), BINS)
    both = {"best relevant clip": positive, "hardest negative": negative}
    counts = {name: np.histogram(values, edges)[0] for name, values in both.items()}
    steps = np.histogram_bin_edges(margin, BINS)
    margin_counts = np.histogram(margin, steps)[0]
    paths = [folder / f"{run.entry}.{name}.svg" for name in ("scores", "margins")]
    figures.draw_scores(paths[0], edges, counts, unit)
    figures.draw_score_differences(paths[1], steps, margin_counts, f"difference of {unit}", list(marks))
    tables = [_bins_table(unit, edges, counts), _bins_table(f"difference of {unit}", steps, {"queries": margin_counts})]
    return Section(
        anchor="scores",
        title="Scores",
        paragraphs=[" ".join([text, *shares_of_margins])],
        drawings=[
            Drawing(paths[0], "Best relevant clip and hardest negative", text, tables[0]),
            Drawing(
                paths[1],
                "Best relevant clip minus hardest negative",
                " ".join([difference_text, *shares_of_margins]),
                tables[1],
            ),
        ],
    )


def _bins_table(unit: str, edges: Values, counts: Mapping[str, Ints]) -> Table:
    """Return a histogram as a table: one row per bin, one column per name in `counts`."""
    rows = [
        [end, *map(str, cells)] for end, *cells in zip(statistics.edge_labels(edges), *counts.values(), strict=True)
    ]
    return Table(unit, (unit, *counts), rows)


def loss_margins(run: FinishedRun) -> dict[float, str]:
    """Return a dict from margin to its description, for all ranking losses that trained the ranked checkpoints."""
    margins: dict[float, str] = {}
    stages = [run.recipe.stages[member.stage] for member in run.members if member.stage is not None]
    for term in (term for stage in stages for term in stage.losses):
        if term.margin is not None:
            relaxed = ", which training relaxes by CIDEr-D" if term.relax == "cider" else ""
            margins.setdefault(term.margin, f"the margin {term.margin:g} of the {term.kind} loss{relaxed}")
    return dict(sorted(margins.items()))


def experts_section(run: FinishedRun, summary: Summary, clips: Clips, folder: Path) -> Section | None:
    """Return the section on the contribution of each expert to the clips' embeddings; None for fewer than two experts.

    A clip's embedding is the mean of its experts' embeddings. The share of an expert in a clip is the norm of the
    expert's embedding, divided by the sum of all experts' norms. For one figure, queries are grouped by the expert that
    has the largest mean share in their relevant clips.
    """
    title = "Shares of the experts"
    if len(run.result.experts) < 2:
        return None
    if len(clips.norms) < 2:
        entry, why = run.recipe.rank[run.entry], "the run has not stored the norms of its experts' embeddings"
        if entry.kind == "mean":
            why = f"{run.entry} is a mean of {', '.join(entry.of)}; write the report of one of these entries instead"
        return Section("experts", title, paragraphs=[f"The shares of the experts are left out: {why}."])
    norms = np.stack(list(clips.norms.values()))
    shares = norms / np.maximum(norms.sum(axis=0), np.finfo(np.float64).tiny)
    names, metric = list(clips.norms), summary.primary
    text = f"{'; '.join(_format_shares(names, shares))}."
    boxes = folder / f"{run.entry}.experts.svg"
    figures.draw_boxes(boxes, clips.norms, "norm of the embedding")
    drawings = [Drawing(boxes, "Norm of each expert's embedding", text, _norms_table(clips.norms, shares))]
    keys = [int(shares[:, columns].mean(axis=1).argmax()) for columns in run.matrix.relevant_columns()]
    if len(set(keys)) > 1:
        bars = statistics.mean_bars(summary.per_query[metric], keys, dict(enumerate(names)), summary.queries.groups)
        path, xlabel = folder / f"{run.entry}.largest.svg", "expert with the largest share in the relevant clip"
        drawings.append(
            _bars_drawing(
                path, bars, xlabel, metric, f"{metric} by expert with the largest share", summary.values[metric]
            )
        )
    return Section(
        "experts",
        title,
        paragraphs=[
            "A clip's embedding is the mean of its experts' embeddings; an expert with a larger norm contributes "
            f"more. {text}"
        ],
        drawings=drawings,
    )


def _format_shares(names: Sequence[str], shares: Values) -> Iterator[str]:
    """Yield a text for each expert about its share in the clips' embeddings. shares: (experts, C), for C clips."""
    largest = shares.argmax(axis=0)
    for number, (name, share) in enumerate(zip(names, shares, strict=True)):
        yield (
            f"{name} has on average {percent(float(share.mean()))} of the sum of the experts' norms, and the largest "
            f"norm in {np.count_nonzero(largest == number):,} of {counted(len(largest), 'clip', ',')}"
        )


def _norms_table(norms: Mapping[str, Values], shares: Values) -> Table:
    """Return a table, one row per expert: percentiles of its embeddings' norms, and mean share of the norms' sum."""
    rows = [
        [name, *(f"{value:.3f}" for value in np.percentile(norm, (5, 25, 50, 75, 95))), percent(float(share.mean()))]
        for (name, norm), share in zip(norms.items(), shares, strict=True)
    ]
    return Table("Norms", ("expert", "5 %", "25 %", "median", "75 %", "95 %", "mean share of the sum"), rows)


def lengths_section(run: FinishedRun, summary: Summary, clips: Clips, folder: Path) -> Section:
    """Return the section with recall by length of the caption and of the relevant clip."""
    metric = max((name for name in summary.values if name.startswith("R@")), key=lambda name: int(name[2:]))
    values, groups, level = summary.per_query[metric], summary.queries.groups, summary.values[metric]
    words = [statistics.bin_number(len(text.split()), statistics.WORDS) for text in summary.queries.texts]
    means = (float(clips.seconds[columns].mean()) for columns in run.matrix.relevant_columns())
    seconds = [statistics.bin_number(mean, statistics.SECONDS) for mean in means]
    drawings, missing = [], []
    for name, keys, labels, long_name, short_name in (
        ("words", words, statistics.bin_labels(statistics.WORDS, whole=True), "caption", "caption"),
        ("seconds", seconds, statistics.bin_labels(statistics.SECONDS, whole=False), "relevant clip", "clip"),
    ):
        xlabel, title = f"{name} of the {long_name}", f"{metric} by length of the {short_name}"
        bars = statistics.mean_bars(values, keys, labels, groups)
        if len(bars) == 1:
            missing.append(f"{title} is left out: all queries are in the bin of {bars[0].label} {name}.")
        elif bars:
            path = folder / f"{run.entry}.{name}.svg"
            drawings.append(_bars_drawing(path, bars, xlabel, metric, title, level))
        else:
            missing.append(f"{title} is left out: the run has not stored the {xlabel}.")
    explanation = (
        "The 95 % intervals are Wilson's. Queries that share their clips are counted as one trial; if such groups "
        "differ in size, the number of trials is Kish's effective number of groups."
    )
    return Section("lengths", "Lengths of captions and clips", paragraphs=[explanation, *missing], drawings=drawings)


def _bars_drawing(path: Path, bars: Sequence[Bar], xlabel: str, metric: str, title: str, level: float) -> Drawing:
    """Draw the mean of a metric for each group of queries; return the drawing with a table and a description."""
    figures.draw_bars(path, bars, xlabel, metric, level)
    best, worst = (choose(bars, key=lambda bar: bar.mean) for choose in (max, min))
    alt = (
        f"{metric} by {xlabel}: highest for {best.label} ({best.mean:.3f}, n {best.n:,}), lowest for {worst.label} "
        f"({worst.mean:.3f}, n {worst.n:,}); {level:.3f} over all queries."
    )
    rows = [[bar.label, f"{bar.n:,}", figure4(bar.mean), interval_text(bar.interval)] for bar in bars]
    return Drawing(path, title, alt, Table(title, (xlabel, "queries", metric, "95 %"), rows))
