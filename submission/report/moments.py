"""What the page of a run that finds moments shows."""

from pathlib import Path, PurePath
from typing import Any

from data_tools.manifest import read_manifest
from submission.formats.moments import Answer
from submission.metrics.moments import LENGTHS
from submission.report.audio import AudioStore
from submission.runs.entry import Entry
from submission.runs.record import FrameScores, read_frame_scores

WORST = 10  # queries that are shown
LONGEST = 300.0  # embedded seconds of a recording
FAINT = 0.1  # share of the best window's score; windows below it are not drawn


def content(run: Entry, store: AudioStore) -> dict[str, Any]:
    """Return what page.html shows of a run that finds moments."""
    answers, paths = {answer.qid: answer for answer in run.answers}, _recording_paths(run)
    frames = read_frame_scores(run.folder / f"scores/{run.name}.frames.npz")
    precision = dict(zip(run.summary.queries.texts, run.summary.per_query["mAP"].tolist(), strict=True))
    worst = sorted(precision, key=precision.__getitem__)[:WORST]
    axes = [make_axis(run, answers[qid], frames[qid], paths, store) | {"precision": precision[qid]} for qid in worst]
    return {"lengths": LENGTHS, "axes": axes, "longest": store.seconds}


def make_axis(
    run: Entry, answer: Answer, frames: FrameScores, paths: dict[str, Path], store: AudioStore
) -> dict[str, Any]:
    """Return the time axis of one query; windows are (start, end, opacity)."""
    query = run.truth.queries[answer.qid]
    best = max(answer.windows[0][2], 1e-9)
    found = [(start, end, score / best) for start, end, score in answer.windows]
    audio, why = store.add(paths[query.vid]) if query.vid in paths else (None, "no audio: the manifest is missing")
    return {
        "query": query,
        "seconds": query.seconds or max(end for _, end, *_ in (*found, *(query.windows or ()))),
        "found": [window for number, window in enumerate(found) if number == 0 or window[2] >= FAINT],
        "outline": outline(frames),
        "audio": audio,
        "why": why,
    }


def outline(frames: FrameScores) -> str:
    """Return the probabilities of frames as an SVG path, 100 high."""
    steps = zip(frames.edges[:-1], frames.edges[1:], 100 - 100 * frames.frames, strict=True)
    tops = " ".join(f"L{start:.2f} {y:.1f} L{end:.2f} {y:.1f}" for start, end, y in steps)
    return f"M0 100 {tops} L{frames.edges[-1]:.2f} 100"


def _recording_paths(run: Entry) -> dict[str, Path]:
    """Return the path of each recording, by its stem."""
    manifest = run.recipe["data"].get(run.ranked.data, {}).get("manifest")
    clips = read_manifest(Path(manifest)) if manifest and Path(manifest).is_file() else ()
    return {PurePath(clip.file_name).stem: Path(clip.path) for clip in clips}
