"""Composed moments: windows match events, recordings do not depend on each other, files are reproducible."""

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile
from data_files import failure, wordings

from data_tools.__main__ import main
from data_tools.manifest import read_manifest
from data_tools.moments import read_moments
from data_tools.scenes.build import Settings, draw_queries
from data_tools.scenes.captions import SOUNDS, describe_event, phrasings
from data_tools.scenes.mix import (
    AGAIN_SECONDS,
    EVENT_SECONDS,
    GAP_SECONDS,
    Recording,
    TimedEvent,
    draw_timeline,
    read_recordings,
    without_silent_ends,
)
from data_tools.scenes.synth import CLASSES

RATE = 16_000
SPLITS = ("development", "validation", "evaluation")
SYNTHETIC = {name: [] for name in CLASSES}


def make(out: Path, *argv: object, counts: tuple[int, int, int] = (6, 3, 3)) -> Path:
    sizes = [part for split, count in zip(SPLITS, counts, strict=True) for part in (f"--{split}", count)]
    assert main([str(value) for value in ("scenes", out, "--seed", 7, "--moments", *sizes, *argv)]) == 0
    return out


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def released(out: Path, split: str) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in (out / "moments.jsonl").read_text().splitlines()]
    return [line for line in lines if f"_{split}_" in line["vid"]]


def drawn(number: int, split: str) -> list[TimedEvent]:
    """Events of a recording that `make` has composed of synthetic sounds."""
    settings = Settings(name="m", seed=7, counts={})
    return draw_timeline(settings.rng(split, number, 0), SYNTHETIC, 60 * RATE)


def extra_wordings(name: str) -> set[str]:
    return {text.lower() for pair in phrasings(name, "validation") for text in pair}


def test_queries_have_all_windows_of_a_class_and_every_recording_has_one():
    event = TimedEvent("dog", None, round(9.1239 * RATE), np.zeros(round(2.5 * RATE)))
    for seed in range(20):
        both = [event, event._replace(start=20 * RATE)]
        ((_, windows),) = draw_queries(np.random.default_rng(seed), 0.0, "development", both)
        assert windows == [(9.12, 11.62), (20.0, 22.5)]
    assert draw_queries(np.random.default_rng(0), 0.0, "development", []) == []


@pytest.mark.slow
def test_gaps_and_lengths_of_drawn_events_are_within_the_given_ranges():
    gaps, repeats = [], 0
    for seed in range(5):
        end, before = 0, None
        timeline = draw_timeline(np.random.default_rng(seed), SYNTHETIC, 1200 * RATE)
        for event in timeline:
            gap = (event.start - end) / RATE
            assert gap >= 0
            assert event.end <= 1200 * RATE
            assert before != event.name or gap >= AGAIN_SECONDS
            assert EVENT_SECONDS[0] <= len(event.sound) / RATE <= EVENT_SECONDS[1]
            gaps.append(gap)
            end, before = event.end, event.name
        repeats += len(timeline) > len({event.name for event in timeline})
    assert np.mean(gaps) == pytest.approx(GAP_SECONDS, rel=0.3)
    assert repeats > 0


def test_events_end_with_the_recording_and_with_an_audible_sample(tmp_path):
    timeline = draw_timeline(np.random.default_rng(1), SYNTHETIC, 60 * RATE)
    for n, count in ((timeline[-1].end, len(timeline)), (timeline[-1].end - 1, len(timeline) - 1)):
        assert len(draw_timeline(np.random.default_rng(1), SYNTHETIC, n)) == count
    # A beep that is repeated with pauses; in some draws its time ends within a pause.
    soundfile.write(tmp_path / "a.wav", 0.5 * np.sin(np.arange(RATE // 4)), RATE)
    pool = {name: [Recording(tmp_path / "a.wav", "", "", "")] for name in ("cat", "dog")}
    timeline = draw_timeline(np.random.default_rng(1), pool, 300 * RATE)
    assert len(timeline) > 10
    assert all(len(without_silent_ends(event.sound)) == len(event.sound) for event in timeline)


@pytest.mark.slow
def test_scenes_with_moments_contain_all_windows_of_each_query(tmp_path):
    out = make(tmp_path / "m", "--heldout-phrasings", 0.2, counts=(12, 9, 12))
    clips = {clip.id: clip for clip in read_manifest(out / "manifest.jsonl")}
    moments = read_moments(out / "moments.jsonl", list(clips.values()))
    assert len(clips) == 33
    assert [moment.id for moment in moments] == [line["qid"] for split in SPLITS for line in released(out, split)]
    phrases = {split: {text.lower() for name in CLASSES for text in wordings(name, 0.2)} for split in SPLITS}
    unread, asked = set(), {}
    for moment in moments:
        clip = clips[moment.clip]
        timeline = drawn(int(Path(clip.path).stem[-5:]), clip.split)
        classes = {event.name: [] for event in timeline}
        for event in timeline:
            classes[event.name].append((round(event.start / RATE, 2), round(event.end / RATE, 2)))
        (name,) = [name for name, windows in classes.items() if windows == moment.windows]
        assert moment.text.lower() in {text.lower() for text in wordings(name)} | extra_wordings(name)
        asked.setdefault(clip.id, set(classes)).remove(name)
        wave, rate = soundfile.read(clip.path)
        assert (rate, len(wave)) == (RATE, 60 * RATE)
        quiet = np.ones(len(wave), bool)
        for event in timeline:
            quiet[event.start : event.end] = False
        for start, end in moment.windows or []:
            power = np.mean(wave[int(start * rate) : int(end * rate)] ** 2)
            assert power > 10 * np.mean(wave[quiet] ** 2)
        if moment.text.lower() not in phrases[clip.split]:
            unread.add(clip.split)
    assert unread == {"validation", "evaluation"}
    assert 0 < sum(map(len, asked.values())) < len(moments) / 2, "some classes get no query, and none gets two"


@pytest.mark.slow
def test_synthetic_recording_stays_the_same_if_more_recordings_are_made(tmp_path):
    few, many = make(tmp_path / "a" / "m"), make(tmp_path / "b" / "m", counts=(8, 3, 4))
    before, after = files(few), files(many)
    audio = {name for name in before if name.endswith(".wav")}
    assert len(audio) == 12
    assert all(before[name] == after[name] for name in audio)
    old = released(few, "development")
    assert released(many, "development")[: len(old)] == old


@pytest.mark.slow
def test_missing_files_of_synthetic_recordings_are_made_again(tmp_path, capsys):
    out = make(tmp_path / "m")
    whole = files(out)
    for name in ("evaluation/m_evaluation_00002.wav", "moments.jsonl"):
        (out / name).unlink()
        make(out)
        assert files(out) == whole
    assert "choose another folder" in failure(capsys, "scenes", out, "--seed", 7)


@pytest.mark.parametrize("argv", [("--heldout-phrasings", 1), ("--captions", 1)])
def test_inconsistent_moment_settings_are_refused(tmp_path, capsys, argv):
    assert main([str(word) for word in ("scenes", tmp_path / "m", "--seed", 1, "--moments", *argv)]) in (1, 2)
    assert str(argv[0]) in capsys.readouterr().err
    assert not (tmp_path / "m").exists()


@pytest.mark.slow
def test_real_recordings_are_used_in_one_split_only(shared, tmp_path):
    out = make(tmp_path / "m", "--recordings", shared / "data" / "esc10", counts=(9, 9, 9))
    clips = read_manifest(out / "manifest.jsonl")
    assert {clip.seconds for clip in clips} == {60.0}
    assert all(licence.startswith("CC") for clip in clips for licence in (clip.licence or "CC0").split("; "))
    pool = read_recordings(shared / "data" / "esc10", ["4"])
    timeline = draw_timeline(np.random.default_rng(1), pool, 300 * RATE)
    assert {event.recording.path.name[0] for event in timeline if event.recording} == {"4"}
    assert all(event.name in SOUNDS for event in timeline)


def test_validation_queries_include_a_phrasing_that_no_other_split_uses():
    """Only if phrasings are held out. Training and the test draw the same texts as without it."""
    assert all(not {*phrasings(name, "validation")} & {*phrasings(name)} for name in [*CLASSES, "can_opening"])
    for name in ("dog", "can_opening"):
        texts = {
            (split, share): {describe_event(np.random.default_rng(n), name, split, share).lower() for n in range(200)}
            for split in ("development", "validation", "evaluation")
            for share in (0.0, 0.2)
        }
        extra = {text.lower() for phrasing in phrasings(name, "validation") for text in phrasing}
        assert texts["development", 0.2] == set(wordings(name, 0.2))
        assert texts["validation", 0.2] == set(wordings(name, 0.2)) | extra
        assert texts["evaluation", 0.2] == set(wordings(name))
        assert texts["validation", 0.0] == texts["development", 0.0] == set(wordings(name))
