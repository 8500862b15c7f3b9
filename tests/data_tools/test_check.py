"""The verb check: bad audio, overlaps of splits, forbidden ids."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import soundfile
from data_files import rows, write_wav

from data_tools.__main__ import main
from data_tools.check import Finding, check_clips
from data_tools.exclusion import read_exclusions
from data_tools.manifest import Clip, Split, write_manifest

LISTS = (
    "dcase2025/dcase2025_task6_excluded_freesound_ids.csv",
    "exclusion/blacklist_clotho.full.v2.csv",
    "exclusion/blacklist_exclude_test_ac.json",
)


def clip(
    folder: Path, name: str, split: Split, freesound_id: str | None = None, caption: str = "", source: str = "x"
) -> Clip:
    """A clip whose file has sound of its own."""
    path = folder / source / split / name
    write_wav(path, hash((source, split, name)) % 2**200)
    return Clip(
        id=f"{source}/{split}/{name}",
        file_name=name,
        path=str(path),
        captions=[caption or f"{source} {split} {name}"],
        source=source,
        split=split,
        freesound_id=freesound_id,
    )


def brief(findings: list[Finding]) -> set[tuple[str, str, str, bool]]:
    return {(one.kind, one.clip, one.other, one.fatal) for one in findings}


def test_every_kind_of_overlap_is_found_and_leaks_of_other_sources_are_fatal(tmp_path):
    (tmp_path / "never.csv").write_text("sound_id\n1\n3\nNot found\n")
    clips = [
        clip(tmp_path, "e1.wav", "evaluation", "007"),
        clip(tmp_path, "v1.wav", "validation", "3"),
        clip(tmp_path, "v2.wav", "validation", "7", "a dog"),
        clip(tmp_path, "d1.wav", "development", "7"),
        clip(tmp_path, "d2.wav", "development", "01", "a dog"),
        clip(tmp_path, "d3.wav", "development", "9", "a cat"),
        clip(tmp_path, "d4.wav", "development", "9", "a cat"),
        clip(tmp_path, "e1.wav", "train", "70", source="y"),
        clip(tmp_path, "t2.wav", "train", "0007", source="y"),
    ]
    Path(clips[7].path).write_bytes(Path(clips[0].path).read_bytes())
    number, content = "same Freesound id", "same audio file"
    assert brief(check_clips(clips, read_exclusions([tmp_path / "never.csv"]))) == {
        ("Freesound id on an exclusion list", "x/development/d2.wav", "never.csv", True),
        (number, "x/development/d1.wav", "x/validation/v2.wav", False),
        (number, "x/development/d1.wav", "x/evaluation/e1.wav", False),
        (number, "x/validation/v2.wav", "x/evaluation/e1.wav", False),
        (number, "x/development/d1.wav", "y/train/t2.wav", False),
        (number, "y/train/t2.wav", "x/validation/v2.wav", False),
        (number, "y/train/t2.wav", "x/evaluation/e1.wav", True),
        (content, "y/train/e1.wav", "x/evaluation/e1.wav", True),
    }


def test_recording_of_youtube_in_training_and_test_is_fatal_whatever_its_name(tmp_path):
    train = [
        clip(tmp_path, "YabCdefghijk.wav", "train", source="audioset"),
        clip(tmp_path, "abCdefghijk_30.wav", "train", source="audiocaps"),
        clip(tmp_path, "abCdefghijk.wav", "train", source="mine"),
        clip(tmp_path, "dog_barking.wav", "train", source="mine"),
        clip(tmp_path, "zbCdefghijk.wav", "train", "5", source="freesound"),
    ]
    test = [
        clip(tmp_path, name, "test", source="castella")
        for name in ("abCdefghijk.wav", "zbCdefghijk.wav", "dog_barking.wav")
    ]
    found = {one.clip for one in check_clips([*train, *test]) if one.kind == "same YouTube id"}
    assert found == {train[0].id, train[1].id, train[2].id}


def test_bad_audio_is_named_and_fatal_and_silence_is_not(tmp_path, capsys):
    clips = [clip(tmp_path, f"{number}.wav", "train") for number in range(6)]
    Path(clips[1].path).unlink()
    Path(clips[2].path).write_bytes(Path(clips[2].path).read_bytes()[:300])
    wave = np.sin(np.arange(8_000) / 9)
    wave[7_000] = np.nan
    soundfile.write(clips[3].path, wave, 8_000, subtype="FLOAT")
    soundfile.write(clips[4].path, np.zeros(8_000), 8_000)
    found = check_clips(clips)
    assert [one.clip for one in found if one.kind == "bad audio"] == [one.id for one in clips[1:4]]
    assert [one.clip for one in found if one.kind == "audio without sound"] == [clips[4].id]
    quick = check_clips(clips, quick=True)
    assert [one.clip for one in quick] == [clips[1].id, clips[2].id], "headers do not show NaN and silence"
    write_manifest(tmp_path / "m.jsonl", clips)
    assert main(["check", str(tmp_path / "m.jsonl"), "--list", str(tmp_path / "f.csv")]) == 1
    assert clips[3].id in capsys.readouterr().out
    assert [row["clip"] for row in rows(tmp_path / "f.csv") if row["fatal"] == "True"] == [one.id for one in clips[1:4]]
    write_manifest(tmp_path / "m.jsonl", [clips[0], *clips[4:]])
    assert main(["check", str(tmp_path / "m.jsonl")]) == 0


def test_clotho_has_three_forbidden_clips_and_five_freesound_ids_in_several_splits(shared, clotho_manifest, tmp_path):
    lists, found_in = str(shared / "data" / LISTS[0]), tmp_path / "found.csv"
    assert main(["check", str(clotho_manifest), "--quick", "--exclude", lists, "--list", str(found_in)]) == 1
    found = rows(found_in)
    fatal = Counter(row["kind"] for row in found if row["fatal"] == "True")  # the others are as published
    assert fatal == {"Freesound id on an exclusion list": 3}
    assert {
        (row["evidence"], row["clip"].split("/")[1], row["other"].split("/")[1])
        for row in found
        if row["kind"] == "same Freesound id"
    } == {
        ("86163", "development", "validation"),
        ("130603", "development", "validation"),
        ("137692", "development", "evaluation"),
        ("66304", "validation", "evaluation"),
        ("86161", "validation", "evaluation"),
    }


def test_published_lists_forbid_their_esc10_recordings(shared, tmp_path):
    table = rows(shared / "data/esc10/esc10.csv")
    clips = [clip(tmp_path, row["file_name"], "train", row["freesound_id"], source="esc10") for row in table]
    for name, count, ids in zip(LISTS, (20, 60, 21), (14, 42, 10), strict=True):
        found = [one for one in check_clips(clips, read_exclusions([shared / "data" / name]), quick=True) if one.fatal]
        assert [one.other for one in found] == [Path(name).name] * count
        assert len({clip.freesound_id for clip in clips if clip.id in {one.clip for one in found}}) == ids


@pytest.mark.parametrize(
    ("argv", "word"),
    [
        (["check", "gone.jsonl"], "gone.jsonl"),
        (["check", "m.jsonl", "--exclude", "gone.csv"], "gone.csv"),
        (["check", "m.jsonl", "--exclude", "bad.csv"], "line 2"),
    ],
)
def test_wrong_files_are_refused(argv, word, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.csv").write_text("sound_id\nx\n")
    write_manifest(tmp_path / "m.jsonl", [clip(tmp_path, "a.wav", "train")])
    assert main(argv) == 1
    error = capsys.readouterr().err
    assert word in error
    assert error.count("\n") == 1
