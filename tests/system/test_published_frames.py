"""Times found by PE-A-Frame without training: windows, fits, and the search page."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hub_models import hub_folder
from outcomes import refused
from served import ask, serving
from test_published_joint import QUERIES, frame_logits, write_sound, write_sounds
from threads import one_thread  # noqa: F401  a fixture

from data_tools.manifest import Clip, write_manifest
from data_tools.moments import Moment, write_moments
from system.__main__ import main
from system.moments.windows import runs_of_true

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def long_recording(tmp_path: Path) -> Path:
    """A manifest of a recording of 34.13 s, and moments.jsonl with three queries."""
    path = write_sound(tmp_path / "long.wav", 4, 34.13)
    clip = Clip(id="long", file_name=path.name, path=str(path), source="s", split="test", seconds=34.13, captions=[])
    write_manifest(tmp_path / "m.jsonl", [clip])
    write_moments(
        tmp_path / "moments.jsonl",
        [Moment(id=f"q{n}", text=text, clip="long", windows=[(1.0, 2.0)]) for n, text in enumerate(QUERIES)],
        [clip],
    )
    return path


def ranked_windows(folder: Path, out: Path, *options: str) -> list[list[list[float]]]:
    named = [folder / "m.jsonl", folder / "moments.jsonl", "--cache", folder / "cache"]
    command = ["locate", str(hub_folder("pe_audio_frame")), *map(str, named), "--out", str(out), *options]
    assert main(command) == 0
    return [json.loads(line)["pred_relevant_windows"] for line in out.read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("threshold", [None, "0.2"])
def test_moment_windows_are_runs_of_frames_above_the_threshold(
    long_recording: Path, tmp_path: Path, threshold: str | None
) -> None:
    options = [] if threshold is None else ["--decode", f"threshold={threshold}"]
    found = ranked_windows(tmp_path, tmp_path / "w.jsonl", *options)
    total = 0
    for text, windows in zip(QUERIES, found, strict=True):
        probability = 1 / (1 + np.exp(-frame_logits(long_recording, text)))
        assert len(probability) == 854, "25 per second"
        runs = [
            (0.04 * first, min(0.04 * (last + 1), 34.13))
            for first, last in runs_of_true(probability >= float(threshold or 0.3))
        ]
        runs = runs or [(0.04 * probability.argmax(), 0.04 * (probability.argmax() + 1))]
        assert len(windows) == min(10, len(runs))
        for start, end, _ in windows:
            assert min(abs(start - a) + abs(end - b) for a, b in runs) < 1e-3
        total += len(runs)
    assert total > 5


@pytest.mark.slow
def test_model_fitted_to_known_windows_finds_windows_by_expected_overlap(
    long_recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("system.ranking.windows.FIT_STEPS", 3)
    lines = [json.loads(line) for line in (tmp_path / "m.jsonl").read_text().splitlines()]
    other = shutil.copy(long_recording, tmp_path / "other.wav")
    lines.append(lines[0] | {"id": "other", "split": "validation", "path": str(other), "file_name": "other.wav"})
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    moments = [json.loads(line) for line in (tmp_path / "moments.jsonl").read_text().splitlines()]
    moments.append(moments[0] | {"qid": "q9", "vid": "other"})
    (tmp_path / "moments.jsonl").write_text("".join(json.dumps(line) + "\n" for line in moments))
    options = ["--split", "test", "--fit", "validation"]
    assert all(len(windows) > 0 for windows in ranked_windows(tmp_path, tmp_path / "w.jsonl", *options))
    named = [tmp_path / "m.jsonl", tmp_path / "moments.jsonl", "--out", tmp_path / "x.jsonl"]
    text = refused(capsys, "locate", hub_folder("pe_audio_frame"), *named, "--decode", "by=overlap", "--split", "test")
    assert "--fit SPLIT" in text


@pytest.mark.slow
def test_search_with_a_published_frame_model_returns_moment_windows(root: Path, tmp_path: Path) -> None:
    write_sounds(tmp_path / "sounds", 6, 8)
    (tmp_path / "sounds/broken.wav").write_bytes(b"RIFF but no sound")
    options = [tmp_path / "sounds", "--cache", tmp_path / "cache"]
    with serving(root, hub_folder("pe_audio_frame"), *options) as (_, port):
        (first, *_) = ask(port, "/api/search?query=a%20dog%20barks").json["results"]
        assert first["windows"]
        about = ask(port, "/api/about").json
    assert about["checkpoint"] == "published weights"
    assert about["clips"] == 8
    assert about["skipped"] == 1
    assert about["score"].startswith("the logit of the clip's best frame")


def test_option_threshold_is_refused_with_windows_found_by_overlap(
    long_recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = [tmp_path / "m.jsonl", tmp_path / "moments.jsonl", "--out", tmp_path / "w.jsonl"]
    options = [*named, "--decode", "threshold=0.5", "--decode", "by=overlap"]
    said = refused(capsys, "locate", hub_folder("pe_audio_frame"), *options)
    assert "threshold" in said
