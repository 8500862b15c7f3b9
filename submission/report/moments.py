"""Sections of a run that finds moments.

Lengths of windows, and queries on a time axis.
"""

from pathlib import Path, PurePath

from data_tools.manifest import read_manifest
from submission.editions import Edition
from submission.formats.moments import Moments
from submission.metrics.moments import LENGTHS
from submission.metrics.summary import Summary
from submission.report.audio import AudioStore
from submission.report.parts import NONE, Axis, Section, Span, Table
from submission.runs.entry import Entry

WORST = 10  # queries that are shown
LONGEST = 300.0  # embedded seconds of a recording
FAINT = 0.1  # share of the best window's score; windows below it are not drawn


def windows_section(summary: Summary, edition: Edition) -> Section:
    """Return the metrics by length of the true windows."""
    rows = []
    for name, (low, high) in LENGTHS.items():
        values = (summary.by_length.get(f"{metric} {name}") for metric in edition.metrics)
        shown = (NONE if value is None else summary.format(value) for value in values)
        rows.append([f"{name}, over {low:g} to {high:g} s", *shown])
    text = (
        "For each range, only true windows of such a length are used; a window that matches another one is wrong, so "
        "these metrics do not average to the metric of all."
    )
    table = Table("Metrics by length of the true windows", ("true windows", *edition.metrics), rows)
    return Section("lengths", "Lengths of windows", paragraphs=[text], tables=[table])


def timelines_section(run: Entry, summary: Summary, store: AudioStore) -> Section:
    """Return the time axes of the worst queries."""
    answers, paths = {answer.qid: answer for answer in run.answers}, _recording_paths(run)
    precision = dict(zip(summary.queries.texts, summary.per_query["mAP"].tolist(), strict=True))
    worst = sorted(precision, key=precision.__getitem__)[:WORST]
    text = (
        f"The {len(worst)} queries with the lowest average precision. Green, above: the true windows. Middle: the "
        "probability that each frame is in a moment. Orange, below: the windows found, paler if less probable. A click "
        f"plays from there. Players contain at most the first {LONGEST:g} s."
    )
    axes = [make_axis(run, answers[qid], precision[qid], paths, store) for qid in worst]
    return Section("listening", "Queries on a time axis", paragraphs=[text], axes=axes)


def make_axis(run: Entry, answer: Moments, precision: float, paths: dict[str, Path], store: AudioStore) -> Axis:
    """Return the time axis of one query."""
    query = run.truth.queries[answer.qid]
    best = max(answer.windows[0][2], 1e-9)
    shares = [max(0.0, min(1.0, window[2] / best)) for window in answer.windows]
    found = [
        Span(window[0], window[1], share)
        for number, (window, share) in enumerate(zip(answer.windows, shares, strict=True))
        if number == 0 or share >= FAINT
    ]
    true = [Span(start, end, 1.0) for start, end in query.windows or []]
    end = query.seconds or max(span.end for span in (*found, *true))
    audio, why = store.add(paths[query.vid]) if query.vid in paths else (None, "no audio: the manifest is missing")
    return Axis(query.query, query.vid, end, precision, true, found, audio, why, run.frames[answer.qid])


def _recording_paths(run: Entry) -> dict[str, Path]:
    """Return the path of each recording, by its stem."""
    manifest = run.recipe["data"].get(run.ranked.data, {}).get("manifest")
    clips = read_manifest(Path(manifest)) if manifest and Path(manifest).is_file() else ()
    return {PurePath(clip.file_name).stem: Path(clip.path) for clip in clips}
