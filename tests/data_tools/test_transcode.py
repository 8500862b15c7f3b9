"""Smaller copies of a data set's audio."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
import tiny

from data_tools.__main__ import main
from data_tools.audio import read_audio
from data_tools.manifest import read_manifest, write_manifest


@pytest.fixture
def manifest(tmp_path):
    return tiny.make_world(tmp_path / "world", {"development": 3, "evaluation": 2})


def transcode(manifest: Path, *options: object) -> int:
    return main(["transcode", str(manifest), "--out", str(manifest.parent / "new"), *map(str, options)])


@pytest.mark.parametrize("format", ["flac", "mp3", "ogg"])
def test_audio_gets_a_new_rate_and_format_and_all_else_stays(manifest, format):
    assert transcode(manifest, "--rate", 32_000, "--format", format) == 0
    before, after = read_manifest(manifest), read_manifest(manifest.parent / "new/manifest.jsonl")
    for old, new in zip(before, after, strict=True):
        assert replace(old, path="x", seconds=None) == replace(new, path="x", seconds=None)
        assert soundfile.info(new.path).samplerate == 32_000
        assert new.seconds == pytest.approx(old.seconds, abs=1e-3)
        assert np.abs(read_audio(new.path, 32_000) - read_audio(old.path, 32_000)).mean() < 0.02


def test_finished_files_are_kept_missing_ones_written_and_names_of_clips_kept_apart(manifest):
    assert transcode(manifest) == 0
    files = sorted((manifest.parent / "new").rglob("*.flac"))
    assert len(files) == 5
    files[1].unlink()
    before = [path.stat().st_mtime_ns for path in files if path.exists()]
    assert transcode(manifest) == 0
    assert [path.stat().st_mtime_ns for path in files if path != files[1]] == before
    assert files[1].exists()
    clips = read_manifest(manifest)
    write_manifest(manifest, [replace(clip, file_name=f"{number}/a.wav") for number, clip in enumerate(clips)])
    assert transcode(manifest) == 0
    found = read_manifest(manifest.parent / "new/manifest.jsonl")
    assert len({clip.path for clip in found}) == len(clips)


def test_broken_audio_is_named_and_left_out(manifest, capsys):
    broken = Path(read_manifest(manifest)[0].path)
    broken.write_bytes(broken.read_bytes()[:1000])
    assert transcode(manifest) == 1
    assert str(broken) in capsys.readouterr().out
    assert len(read_manifest(manifest.parent / "new/manifest.jsonl")) == 4


def test_impossible_rates_are_refused_and_files_of_another_rate_not_taken(manifest):
    assert transcode(manifest, "--format", "mp3", "--rate", 12_345) == 1
    assert not (manifest.parent / "new").exists()
    assert transcode(manifest, "--rate", 16_000) == 0
    assert transcode(manifest, "--rate", 32_000) == 0
    found = read_manifest(manifest.parent / "new/manifest.jsonl")
    assert {soundfile.info(clip.path).samplerate for clip in found} == {32_000}, "no file of the other rate is taken"
