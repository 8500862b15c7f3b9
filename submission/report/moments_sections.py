"""Sections of moments.

Make the sections for a run that finds moments: metrics, metrics by length of the true windows, queries on a time axis.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath

import numpy as np

from data_tools.cli import counted
from data_tools.errors import DataError
from data_tools.manifest import read_manifest
from submission.formats.moments_jsonl import Moments, windows_by_query
from submission.metrics.moments_summary import MomentSummary, metric_values, summarise_moments
from submission.report import figures
from submission.report.elements import NONE, Axis, Drawing, Section, Span, Table, figure, interval_text
from submission.report.listening import TITLES, AudioStore
from submission.report.results import PAIRED_TEST_NOTE, THIS_RUN, differences_table
from submission.report.statistics import choose_queries
from submission.runs.finished import FinishedMoments

LONGEST = 300.0  # maximum embedded seconds of a recording
FAINT = 0.1  # share of the best window's score; windows below it are not drawn


def summarise_entry(run: FinishedMoments) -> MomentSummary:
    """Return the metrics of an entry that finds moments. Raises SubmissionError for a blind list, which has none."""
    return summarise_moments(windows_by_query(run.answers), run.truth, run.edition)


def result_section(
    run: FinishedMoments, this: MomentSummary, others: Mapping[str, MomentSummary], path: Path
) -> Section:
    """Return the section with all metrics, reference scores such as chance, and a comparison with other entries.

    Args:
        this: Metrics of this entry.
        others: Metrics of the other entries, by name.
        path: File of the drawn figure.
    """
    ranked, summaries = run.ranked, {THIS_RUN: this, **others}
    levels = {"random windows": ranked.random or {}, "true frames (ceiling)": ranked.ceiling or {}}
    if this.chance is not None:
        levels["whole recordings"] = {this.primary: this.chance}
    primary = {name: values[this.primary] for name, values in levels.items() if this.primary in values}
    figures.draw_systems(path, summaries, primary, this.primary)
    rows = [[name, *(f"{figure(m, s.values[m])} ({interval_text(s.bootstraps[m], m)})" for m in this.values)]
            for name, s in summaries.items()]  # fmt: skip
    rows += [[name, *(figure(m, values.get(m, np.nan)) for m in this.values)] for name, values in levels.items()]
    caption = "All metrics, with 95 % intervals by bootstrap over recordings"
    table = Table(caption, ("system", *this.values), rows)
    constants = "; ".join(f"{name} {figure(this.primary, value)}" for name, value in primary.items())
    tables = [table]
    if others:
        title, header, compared = differences_table(this, others, "This entry")
        tables.append(Table(title, header[:4], [row[:4] for row in compared]))
    drawn = Table(
        this.primary,
        ("system", this.primary, "95 % bootstrap"),
        [
            [name, figure(this.primary, s.values[this.primary]), interval_text(s.bootstrap, this.primary)]
            for name, s in summaries.items()
        ]
        + [[name, figure(this.primary, value), NONE] for name, value in primary.items()],
    )
    shown = {name: (figure(this.primary, s.values[this.primary]), s.bootstrap) for name, s in summaries.items()}
    alt = "; ".join(
        f"{name} {value} ({interval_text(interval, this.primary)})" for name, (value, interval) in shown.items()
    )
    return Section(
        anchor="result",
        title="Result",
        headline=(
            f"{this.primary} {figure(this.primary, this.values[this.primary])}",
            f"95 % {interval_text(this.bootstrap, this.primary)} by bootstrap over recordings; "
            f"{counted(len(this.queries.texts), 'query', ',')}, {counted(this.queries.n_pool, 'recording', ',')}; "
            f"{constants}. Metrics are those of edition {run.edition.name}, in per cent.",
        ),
        drawings=[Drawing(path, f"{this.primary} with its 95 % intervals", f"{this.primary}: {alt}.", drawn)],
        tables=tables,
        paragraphs=[*(f"{note}." for note in this.notes), *([PAIRED_TEST_NOTE] if others else [])],
    )


def lengths_section(run: FinishedMoments, this: MomentSummary) -> Section:
    """Return the section with the metrics by length of the true windows."""
    rows = []
    for name, (low, high) in run.edition.lengths.items():
        scores, label = this.by_length[name], f"{name}, over {low:g} to {high:g} s"
        values = [NONE for _ in this.values] if scores is None else [
            figure(metric, value) for metric, value in metric_values(scores, this.values).items()
        ]  # fmt: skip
        rows.append([label, str(len(scores.qids)) if scores else "0", *values])
    text = (
        "For each range, only true windows of such a length are used. A found window that matches a true window of "
        "another length counts as wrong in this range, so these metrics do not average to the metric of all windows."
    )
    table = Table("Metrics by length of the true windows", ("true windows", "queries", *this.values), rows)
    return Section("lengths", "Lengths of windows", paragraphs=[text], tables=[table])


def timelines_section(run: FinishedMoments, this: MomentSummary, store: AudioStore) -> Section:
    """Return the section with time axes of the worst, middle and best queries; add their recordings to `store`."""
    answers, paths = {answer.qid: answer for answer in run.answers}, dict(_recording_paths(run))
    chosen = choose_queries(np.ones(len(this.scores.qids), np.int64), this.scores.ious + this.scores.precisions_at())
    axes = {}
    for name in ("worst", "median", "best"):
        rows = chosen[name]
        drawn = [
            _make_axis(run, answers[this.scores.qids[row]], float(this.scores.ious[row]), paths, store) for row in rows
        ]
        if drawn:
            axes[TITLES[name]] = drawn
    return Section(
        anchor="listening",
        title="Queries on a time axis",
        paragraphs=[
            "Green, above: the true windows. Middle: the probability that each frame is in a moment. Orange, below: "
            "the windows found; paler ones are less probable, and those below "
            f"{FAINT:g} of the best score are left out. "
            "Queries are sorted by the sum of two values: the IoU of the first window, and the average precision. A "
            "click on the axis, or on the button of a window, plays from there.",
            f"Players contain at most the first {LONGEST:g} s of a recording, as mono MP3.",
        ],
        axes=axes,
    )


def _make_axis(run: FinishedMoments, answer: Moments, iou: float, paths: Mapping[str, Path], store: AudioStore) -> Axis:
    """Return the time axis of one query with its true windows, its found windows (`answer`), and its audio.

    Args:
        iou: IoU of the first found window with the true window that fits best.
        paths: Dict from the id of a recording to its audio file.
        store: Collects the audio that the page embeds.
    """
    query = run.truth.queries[answer.qid]
    best = max(answer.windows[0][2], 1e-9)
    shares = [max(0.0, min(1.0, window[2] / best)) for window in answer.windows]
    shown = [Span(w[0], w[1], s) for n, (w, s) in enumerate(zip(answer.windows, shares, strict=True))
             if n == 0 or s >= FAINT]  # fmt: skip
    true = [Span(start, end, 1.0) for start, end in query.windows or []]
    end = query.seconds or max(span.end for span in (*shown, *true))
    path = paths.get(query.vid)
    audio, why = store.add(path) if path else (None, "no audio: the manifest of the ranked set is missing")
    return Axis(query.query, query.vid, end, iou, true, shown, audio, why, run.frames[answer.qid])


def _recording_paths(run: FinishedMoments) -> Iterator[tuple[str, Path]]:
    """Yield (file name without suffix, path) of each ranked recording; nothing if its manifest is missing."""
    source = run.recipe.data.get(run.ranked.data)
    if source is None or source.manifest is None or not Path(source.manifest).is_file():
        return
    try:
        clips = read_manifest(Path(source.manifest))
    except DataError:
        return
    for clip in clips:
        yield PurePath(clip.file_name).stem, Path(clip.path)
