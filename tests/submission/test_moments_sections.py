"""The report of a run of moments: its figures, and queries on a time axis."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from submission.editions import MOMENTS
from submission.formats.frame_scores import FrameScores
from submission.formats.moments_jsonl import Moments
from submission.formats.moments_truth import MomentQuery, MomentTruth
from submission.report.elements import Axis
from submission.report.listening import TITLES, AudioStore
from submission.report.moments_sections import summarise_entry, timelines_section

Answers = dict[str, list[list[float]]]
FRAMES = FrameScores(np.array([0.0, 1.0, 60.0]), np.array([0.25, 0.75]))


def run_of(answers: Answers, seconds: float | None = 60.0) -> Any:
    """An entry whose queries are all true from 0 to 10 s."""
    queries = {
        qid: MomentQuery(line, qid, f"{qid}?", f"{qid}.wav", seconds, [[0, 10]]) for line, qid in enumerate(answers, 1)
    }
    found = [Moments(line, qid, f"{qid}?", f"{qid}.wav", each) for line, (qid, each) in enumerate(answers.items(), 1)]
    return SimpleNamespace(
        answers=found,
        truth=MomentTruth(queries, "truth.jsonl", []),
        edition=MOMENTS["2026"],
        frames=dict.fromkeys(answers, FRAMES),
        recipe=SimpleNamespace(data={}),
        ranked=SimpleNamespace(data="evaluation"),
    )


def axes_of(run: Any) -> dict[str, list[Axis]]:
    return timelines_section(run, summarise_entry(run), AudioStore()).axes


def axis_of(windows: list[list[float]], seconds: float | None = 60.0) -> Axis:
    ((axis,),) = axes_of(run_of({"a": windows}, seconds)).values()
    return axis


def test_verb_report_treats_the_first_listed_window_as_the_answer() -> None:
    summary = summarise_entry(run_of({"a": [[0, 10, 0.9], [20, 30, 0.5]]}))
    assert summary.values["R1@0.7"] == 1
    assert summary.values["mAP"] == 1


def test_report_draws_windows_with_opacity_relative_to_the_best_score() -> None:
    axis = axis_of([[0, 10, 0.5], [20, 30, 0.25], [40, 50, 0.0625], [51, 60, 0.04]])
    assert [(span.start, span.end, span.weight) for span in axis.predicted] == [
        (0, 10, 1),
        (20, 30, 0.5),
        (40, 50, 0.125),
    ]
    assert [(span.start, span.end) for span in axis.true] == [(0, 10)]
    assert axis.iou == 1
    assert axis.frames is FRAMES


def test_report_always_draws_the_first_window_of_an_answer() -> None:
    """Its mean inside is below the mean outside."""
    axis = axis_of([[0, 10, -0.2], [20, 30, -0.3]])
    assert [(span.start, span.end, span.weight) for span in axis.predicted] == [(0, 10, 0)]


@pytest.mark.parametrize(("seconds", "expected"), [(60.0, 60.0), (None, 30.0)])
def test_time_axis_in_the_report_has_the_length_of_its_recording(seconds: float | None, expected: float) -> None:
    """If the length is not known, the axis ends with the last window."""
    assert axis_of([[20, 30, 0.5]], seconds).seconds == expected


def test_report_sorts_queries_with_equal_iou_by_average_precision() -> None:
    """Queries a, b and c begin with a window of IoU 0.5. Queries b and c also find the right one, c after a
    wrong one.
    """
    half, whole, other = [0, 5, 0.9], [0, 10, 0.5], [20, 30, 0.6]
    run = run_of({"right": [whole], "b": [half, whole], "a": [half], "c": [half, other, whole], "none": [other]})
    assert {title: [axis.name for axis in found] for title, found in axes_of(run).items()} == {
        TITLES["worst"]: ["none.wav"],
        TITLES["median"]: ["c.wav"],
        TITLES["best"]: ["right.wav"],
    }


def test_report_has_no_audio_for_a_recording_without_a_manifest(tmp_path: Path) -> None:
    run = run_of({"a": [[0, 10, 0.5]]})
    run.recipe.data["evaluation"] = SimpleNamespace(manifest=str(tmp_path / "gone.jsonl"))
    ((axis,),) = axes_of(run).values()
    assert (axis.audio, axis.why) == (None, "no audio: the manifest of the ranked set is missing")
