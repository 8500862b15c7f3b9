"""Readers of published data sets, on real captions and generated audio."""

import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import soundfile
from data_files import COUNTS, failure, rows, small_clotho, write_wav

from data_tools.__main__ import main
from data_tools.manifest import read_manifest
from data_tools.names import audio_tree, match_names, tree_files


def test_clotho_manifest_has_published_texts_byte_for_byte(shared, published_clotho, clotho_manifest):
    clips = read_manifest(clotho_manifest)
    assert len(clips) == 5929
    for split, count in COUNTS.items():
        ours = [clip for clip in clips if clip.split == split]
        captions = rows(shared / "data" / "clotho" / f"clotho_captions_{split}.csv")
        metadata = {row["file_name"]: row for row in rows(shared / "data" / "clotho" / f"{split}_audio_metadata.csv")}
        assert len(ours) == count
        assert [clip.file_name for clip in ours] == [row["file_name"] for row in captions]
        assert [clip.captions for clip in ours] == [[row[f"caption_{n}"] for n in range(1, 6)] for row in captions]
        assert sorted(clip.file_name for clip in ours) == sorted(
            path.name for path in (published_clotho / split).iterdir()
        )
        for clip in ours:
            facts = metadata[clip.file_name]
            assert clip.id == f"clotho/{split}/{clip.file_name}"
            assert clip.freesound_id == (None if facts["sound_id"] == "Not found" else facts["sound_id"])
            assert clip.licence == facts["license"]
            assert clip.seconds == 0.01
            assert Path(clip.path).is_file()
            assert clip.uploader == facts["manufacturer"].replace("\ufffd", "Á")
    without = [sum(clip.freesound_id is None for clip in clips if clip.split == split) for split in COUNTS]
    assert without == [8, 6, 5]
    assert {" typical neighborhood in Porto.wav", " Ambience Birds.wav"} <= {clip.file_name for clip in clips}
    assert "Oscar de Ávila" in {clip.uploader for clip in clips}


def test_clotho_metadata_in_utf8_with_more_columns_is_read(shared, published_clotho, clotho_manifest, tmp_path):
    (tmp_path / "clotho_csv_files").mkdir()
    names = {"clotho_captions_evaluation": "clotho_captions_evaluation"}
    names |= {"evaluation_audio_metadata": "clotho_metadata_evaluation"}
    for name, target in names.items():
        shutil.copy(shared / f"data/clotho/{name}.csv", tmp_path / f"clotho_csv_files/{target}.csv")
    (tmp_path / "clotho_audio_files").symlink_to(published_clotho)
    assert main(["clotho", str(tmp_path), "--splits", "evaluation", "--out", str(tmp_path / "m.jsonl")]) == 0
    theirs = {clip.id: clip for clip in read_manifest(clotho_manifest)}
    ours = read_manifest(tmp_path / "m.jsonl")
    assert len(ours) == 1045
    assert all(clip.seconds == 0.01 and clip.freesound_id == theirs[clip.id].freesound_id for clip in ours)


def test_clotho_file_names_are_matched_despite_blanks_colons_and_unicode_forms(tmp_path, capsys):
    names = [" a.wav", "b .wav", "c.wav", "w : x.wav", "y_z.wav", "gone.wav"]
    root = small_clotho(tmp_path, names, ["a.wav", "b.wav", " c.wav", "w_x.wav", "y_z.wav"])
    assert main(["clotho", str(root), "--out", str(root / "m.jsonl"), "--splits", "development"]) == 0
    clips = read_manifest(root / "m.jsonl")
    assert [clip.file_name for clip in clips] == ["a.wav", "b.wav", " c.wav", "w_x.wav", "y_z.wav", "gone.wav"]
    assert [clip.seconds for clip in clips] == [0.01] * 5 + [None]
    assert [clip.captions[0] for clip in clips] == [f"sound {n}" for n in range(6)]
    assert clips[0].freesound_id is None
    assert "6 clips, 12 captions; 1 without" in capsys.readouterr().out
    assert match_names(["a.wav", " a.wav"], ["a.wav", "  a.wav"]) == {"a.wav": "a.wav", " a.wav": "  a.wav"}
    assert match_names([" a.wav", "b.wav"], ["a.wav"]) == {" a.wav": "a.wav"}
    blind = {
        "raindrops on metal: police background.wav": "raindrops on metal_police background.wav",
        "Intersection Wet : Metro Pass.wav": "Intersection Wet_Metro Pass.wav",
        "Kitchen Roomtone w: Dripping Faucet_1-2.wav": "Kitchen Roomtone w_Dripping Faucet_1-2.wav",
    }
    assert match_names(blind, blind.values()) == blind


def test_decomposed_unicode_file_names_are_matched(tmp_path):
    root = small_clotho(tmp_path, ["Caf\u00e9.wav"], ["Cafe\u0301.wav"])
    assert main(["clotho", str(root), "--out", str(root / "m.jsonl"), "--splits", "development"]) == 0
    assert [clip.file_name for clip in read_manifest(root / "m.jsonl")] == ["Cafe\u0301.wav"]


CAPTIONS, METADATA = "clotho_captions_development.csv", "clotho_metadata_development.csv"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (CAPTIONS, b"", "the file is empty"),
        (CAPTIONS, b"file_name,caption_1\n", "no rows"),
        (CAPTIONS, b"name,caption_1\na.wav,dog\n", "file_name"),
        (CAPTIONS, b"file_name,caption_1,caption_3\na.wav,dog,cat\n", "without a gap"),
        (CAPTIONS, b"file_name,caption_1\na.wav,\n", "line 2, caption_1"),
        (CAPTIONS, b"file_name,caption_1\na.wav,ch\xe8vre\n", "line 2: not UTF-8"),
        (CAPTIONS, b"file_name,caption_1\na.wav,dog\na.wav,cat\n", "line 3"),
        (CAPTIONS, b"file_name,caption_1\n ,dog\n", "line 2"),
        (CAPTIONS, b"file_name,caption_1\na.wav,dog,cat\n", "line 2: not 2 cells"),
        (METADATA, b"file_name,sound_id\na.wav,7\n", "license"),
    ],
)
def test_invalid_clotho_tables_are_refused(tmp_path, capsys, name, content, message):
    small_clotho(tmp_path, ["a.wav"], ["a.wav"])
    (tmp_path / name).write_bytes(content)
    output = failure(capsys, "clotho", tmp_path, "--out", tmp_path / "m.jsonl", "--splits", "development")
    assert re.search(message, output)
    assert name in output
    assert not (tmp_path / "m.jsonl").exists()


def test_missing_clotho_split_or_folder_is_reported(tmp_path, capsys):
    small_clotho(tmp_path, ["a.wav"], ["a.wav"])
    assert "clotho_captions_validation.csv: no such file" in failure(capsys, "clotho", tmp_path, "--out", "m.jsonl")
    assert "no such folder" in failure(capsys, "clotho", tmp_path / "none", "--out", "m.jsonl")


# Blind sets and queries


@pytest.mark.parametrize("unpacked", ["development", "clotho_audio_files/development"])
def test_clotho_without_audio_is_refused(tmp_path, capsys, unpacked):
    root, out = small_clotho(tmp_path, ["a.wav", "b.wav"], []), tmp_path / "m.jsonl"
    argv = ["clotho", str(root), "--splits", "development", "--out", str(out)]
    assert "unpack" in failure(capsys, *argv)
    assert not out.exists()
    write_wav(root / unpacked / "a.wav", 1)
    assert main(argv) == 0
    assert [clip.seconds for clip in read_manifest(out)] == [0.01, None]


def test_verb_blind_lists_audio_files_by_their_names_on_disk(tmp_path, capsys):
    names = [" b.wav", "a: b.WAV", "c&#39;d.aiff", "zz.wav"]
    for number, name in enumerate(names):
        write_wav(tmp_path / "test" / name, number)
    (tmp_path / "test" / "zz.wav").write_bytes(b"junk")
    (tmp_path / "test" / "._a.wav").write_bytes(b"junk")
    (tmp_path / "test" / "readme.txt").write_text("hello")
    (tmp_path / "test" / "folder.wav").mkdir()
    assert main(["blind", str(tmp_path / "test"), "--out", str(tmp_path / "b.jsonl")]) == 0
    clips = read_manifest(tmp_path / "b.jsonl")
    assert [clip.file_name for clip in clips] == names
    assert [clip.seconds for clip in clips] == [0.01, 0.01, 0.01, None]
    assert {(clip.split, clip.source, tuple(clip.captions)) for clip in clips} == {("blind", "blind", ())}
    assert clips[0].id == "blind/blind/ b.wav"
    assert "4 clips, 1 with unreadable audio" in capsys.readouterr().out


def test_linked_folders_are_read_once_despite_cycles(tmp_path):
    pool, storage = tmp_path / "pool", tmp_path / "storage"
    for number, name in enumerate(["storage/part/a.wav", "storage/b.wav", "pool/c.wav", "pool/real/d.wav"]):
        write_wav(tmp_path / name, number)
    (pool / "a_link").symlink_to(pool / "real")
    (pool / "part").symlink_to(storage / "part")
    (pool / "storage").symlink_to(storage)
    (storage / "back").symlink_to(pool)
    (pool / "real" / "up").symlink_to("..")
    (pool / "real" / "self").symlink_to("self")
    (pool / "linked.wav").symlink_to(pool / "c.wav")
    (pool / ".hidden").symlink_to(storage)
    assert audio_tree(pool) == (["a_link/d.wav", "c.wav", "linked.wav", "part/a.wav", "storage/b.wav"], [])
    # A link to a parent folder is not followed.
    write_wav(storage / "part/deep/e.wav", 1)
    (storage / "part/deep/up").symlink_to(storage)
    assert tree_files(storage / "part/deep") == ["e.wav"]


def test_invalid_blind_folders_are_refused(tmp_path, capsys):
    assert "no such folder" in failure(capsys, "blind", tmp_path / "none", "--out", tmp_path / "b.jsonl")
    assert "no audio files in this folder" in failure(capsys, "blind", tmp_path, "--out", tmp_path / "b.jsonl")
    write_wav(tmp_path / "a.wav", 1)
    assert "may only have letters" in failure(capsys, "blind", tmp_path, "--name", "a/b", "--out", tmp_path / "b.jsonl")
    (tmp_path / os.fsdecode(b"caf\xe9.wav")).write_bytes(b"x")
    assert r"caf\udce9.wav" in failure(capsys, "blind", tmp_path, "--out", tmp_path / "b.jsonl")


# AudioCaps


@pytest.mark.slow
def test_audiocaps_has_published_counts(shared, tmp_path, capsys):
    source, out = shared / "data" / "audiocaps", tmp_path / "m.jsonl"
    tables = [rows(source / f"{split}.csv") for split in ("train", "val", "test")]
    there = [*tables[0][:300], *tables[1], *tables[2]]
    for name in {f"{row['youtube_id']}_{row['start_time']}.wav" for row in there}:
        (tmp_path / name).touch()
    assert "--audio" in failure(capsys, "audiocaps", source, "--out", out)
    assert main(["audiocaps", str(source), "--audio", str(tmp_path), "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "train: 49838 clips, 49838 captions published; 49538 without" in printed
    assert "val: 495 clips, 2475 captions published" in printed
    assert "test: 975 clips, 4875 captions published" in printed
    clips = read_manifest(out)
    assert {(clip.split, len(clip.captions)) for clip in clips} == {("train", 1), ("val", 5), ("test", 5)}
    captions = sorted(row["caption"] for row in there)
    assert sorted(caption for clip in clips for caption in clip.captions) == captions
    assert clips[0].id == "audiocaps/train/r1nicOVtvkQ_130.wav"


AUDIOCAPS = "audiocap_id,youtube_id,start_time,caption\n"


@pytest.fixture
def audiocaps(tmp_path):
    (tmp_path / "test.csv").write_text(
        AUDIOCAPS + "1,-aB,30,one\n2,Yx_,0,uno\n3,-aB,30,two\n4,gone,5,x\n5,-aB,90,late\n"
    )
    return tmp_path


def test_audiocaps_finds_audio_by_youtube_id_and_start_time_and_groups_captions_by_clip(audiocaps, capsys):
    soundfile.write(audiocaps / "a.flac", np.zeros(160), 16_000)
    (audiocaps / "test").mkdir()
    (audiocaps / "a.flac").rename(audiocaps / "test" / "-aB_30.flac")
    write_wav(audiocaps / "YYx_.wav", 1)
    assert main(["audiocaps", str(audiocaps), "--splits", "test", "--out", str(audiocaps / "m.jsonl")]) == 0
    assert "test: 4 clips, 5 captions published; 2 without" in capsys.readouterr().out
    clips = read_manifest(audiocaps / "m.jsonl")
    assert [(clip.id, clip.captions, clip.seconds) for clip in clips] == [
        ("audiocaps/test/-aB_30.flac", ["one", "two"], 0.01),
        ("audiocaps/test/YYx_.wav", ["uno"], 0.01),
    ]
    assert [Path(clip.path).is_file() for clip in clips] == [True, True]
    (audiocaps / "elsewhere" / "test").mkdir(parents=True)
    write_wav(audiocaps / "elsewhere" / "test" / "gone_5.mp3.wav", 1)
    write_wav(audiocaps / "elsewhere" / "test" / "gone_5.wav", 1)
    argv = ["audiocaps", str(audiocaps), "--audio", str(audiocaps / "elsewhere"), "--splits", "test"]
    assert main([*argv, "--out", str(audiocaps / "m.jsonl")]) == 0
    assert [clip.captions for clip in read_manifest(audiocaps / "m.jsonl")] == [["x"]]


NAMES = [
    "{id}.wav", "Y{id}.wav", "{id}_{start}.wav", "Y{id}_{start}.flac", "{id}_{start}_{end}.wav", "{id}_{start}.opus",
    "{id}_{start}.000_{end}.000.m4a", "Y{id}_{start}.000_{end}.000.wav", "{id}_{start}-{end}.ogg", "{id}_{padded}.WAV",
    "{number}.mp3", "{id}_{ms}_{end_ms}.flac",
]  # fmt: skip


@pytest.mark.parametrize("folder", ["test", ""])
@pytest.mark.parametrize("name", NAMES)
def test_audiocaps_finds_audio_files_named_by_common_download_programs(tmp_path, name, folder):
    rows = [(101, "-bCdEfGhIjK", 30), (102, "_bCdEfGh_12", 0), (103, "YbCdEfGhIjK", 300), (104, "gone_efghij", 5)]
    (tmp_path / "test.csv").write_text(AUDIOCAPS + "".join(f"{n},{id},{start},sound {n}\n" for n, id, start in rows))
    (tmp_path / folder).mkdir(exist_ok=True)
    for number, id, start in rows[:3]:
        times = {"start": start, "end": start + 10, "ms": 1000 * start, "end_ms": 1000 * (start + 10)}
        path = tmp_path / folder / name.format(number=number, id=id, padded=f"{start:06d}", **times)
        path.write_bytes(b"found by its name")
    assert main(["audiocaps", str(tmp_path), "--splits", "test", "--out", str(tmp_path / "m.jsonl")]) == 0
    clips = read_manifest(tmp_path / "m.jsonl")
    assert [clip.captions for clip in clips] == [["sound 101"], ["sound 102"], ["sound 103"]]
    assert all(Path(clip.path).is_file() for clip in clips)


def test_audiocaps_files_of_one_video_are_matched_by_start_time(tmp_path):
    rows = [(1, "ab", 1), (2, "ab", 1000), (3, "ab", 30), (4, "cd", 0), (5, "ab", 2)]
    (tmp_path / "test.csv").write_text(AUDIOCAPS + "".join(f"{n},{id},{start},sound {n}\n" for n, id, start in rows))
    for name in ("ab_1000_11000.wav", "ab_1000_1010.wav", "ab_30.wav", "ab.wav", "Ycd.wav", "5.wav"):
        (tmp_path / name).write_bytes(b"found by its name")
    assert main(["audiocaps", str(tmp_path), "--splits", "test", "--out", str(tmp_path / "m.jsonl")]) == 0
    clips = read_manifest(tmp_path / "m.jsonl")
    assert [(clip.captions[0][-1], clip.file_name) for clip in clips] == [
        ("1", "ab_1000_11000.wav"), ("2", "ab_1000_1010.wav"), ("3", "ab_30.wav"), ("4", "Ycd.wav"), ("5", "5.wav")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "the file is empty"),
        (AUDIOCAPS, "no rows"),
        ("youtube_id,caption\na,b\n", "start_time"),
        (AUDIOCAPS + "1,a,1.5,dog\n", "line 2: "),
        (AUDIOCAPS + "1,a,²,dog\n", "line 2: "),
        (AUDIOCAPS + f"1,a,{'7' * 5000},dog\n", "line 2: "),
        (AUDIOCAPS + "1,,1,dog\n", "line 2: "),
        (AUDIOCAPS + "1,a,1,\n", "line 2: "),
        (AUDIOCAPS + "1,a,1,dog\n2,b,1,cat\n1,c,1,rain\n", "val.csv, line 4: "),
    ],
)
def test_invalid_audiocaps_tables_are_refused(tmp_path, capsys, content, message):
    (tmp_path / "val.csv").write_text(content)
    output = failure(capsys, "audiocaps", tmp_path, "--splits", "val", "--out", tmp_path / "m.jsonl")
    assert message in output


# WavCaps

ITEMS = [
    {"id": "Yab.wav", "caption": "AudioSet.", "audio": "wav_path", "duration": 10.0},
    {"id": "180913", "caption": "Freesound.", "author": "ann", "href": "/people/ann/sounds/180913/", "duration": 2.0},
    {"id": "2219", "caption": "SoundBible.", "author": "", "href": "2219-Airplane.html", "duration": 14.1},
    {"id": "7", "caption": "By its path.", "audio": "some/where/Own name.wav"},
]


def wavcaps(folder: Path, content: object) -> Path:
    path = folder / "fsd_final.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    (folder / "audio").mkdir(exist_ok=True)
    return path


def test_audiocaps_and_wavcaps_folders_made_by_the_package_aac_datasets_are_read(tmp_path):
    folder, out = tmp_path / "AUDIOCAPS", tmp_path / "m.jsonl"
    for split in ("train", "val", "test"):
        (folder / "audio_32000Hz" / split).mkdir(parents=True)
        soundfile.write(folder / f"audio_32000Hz/{split}/-{split}_30.flac", np.zeros(160), 32_000)
        (folder / "csv_files_v1").mkdir(exist_ok=True)
        rows = f"audiocap_id,youtube_id,start_time,caption\n1,-{split},30,A dog barks\n"
        (folder / f"csv_files_v1/{split}.csv").write_text(rows)
    for root in (tmp_path, folder):
        assert main(["audiocaps", str(root), "--out", str(out)]) == 0
        assert [clip.file_name for clip in read_manifest(out)] == ["-train_30.flac", "-val_30.flac", "-test_30.flac"]
    root = tmp_path / "WavCaps"
    for name in ("json_files/SoundBible", "Audio/SoundBible"):
        (root / name).mkdir(parents=True)
    items = {"num_captions_per_audio": 1, "data": [{"id": "7", "caption": "A dog barks"}]}
    (root / "json_files/SoundBible/sb_final.json").write_text(json.dumps(items))
    soundfile.write(root / "Audio/SoundBible/7.flac", np.zeros(160), 32_000)
    assert main(["wavcaps", str(root / "json_files/SoundBible/sb_final.json"), "--out", str(out)]) == 0
    assert [clip.id for clip in read_manifest(out)] == ["sb_final/train/7.flac"]


def test_clotho_is_found_inside_the_root_folder_made_by_the_package_aac_datasets(tmp_path):
    inner = small_clotho(tmp_path / "CLOTHO_v2.1", ["a.wav", "b.wav"], ["a.wav", "b.wav"])
    found = []
    for number, root in enumerate((inner, tmp_path)):
        out = tmp_path / f"{number}.jsonl"
        assert main(["clotho", str(root), "--splits", "development", "--out", str(out)]) == 0
        found.append(read_manifest(out))
    assert list(found[0]) == list(found[1])
    assert len(found[0]) == 2


def test_wavcaps_with_an_unknown_audio_folder_asks_for_option_audio(tmp_path, capsys):
    (tmp_path / "sb_final.json").write_text('{"data": []}')
    text = failure(capsys, "wavcaps", tmp_path / "sb_final.json", "--out", tmp_path / "m.jsonl")
    assert "the folder with the audio of this file is unknown; name it by --audio" in text


def test_wavcaps_skips_excluded_clips(tmp_path, capsys):
    path, out = wavcaps(tmp_path, {"data": ITEMS}), tmp_path / "m.jsonl"
    for name in ("Yab.wav", "180913.wav", "2219.wav"):
        write_wav(tmp_path / "audio" / name, 1)
    (tmp_path / "list.csv").write_text("sound_id\n180913\n2219\n5\n")
    argv = ["wavcaps", str(path), "--audio", str(tmp_path / "audio"), "--out", str(out)]
    assert main([*argv, "--exclude", str(tmp_path / "list.csv")]) == 0
    assert "left out: 1 without audio, 1 on" in capsys.readouterr().out
    assert [clip.captions[0] for clip in read_manifest(out)] == ["AudioSet.", "SoundBible."], (
        "a number of another part is no id of Freesound"
    )
    path.write_text(json.dumps({"data": ITEMS[1:2]}))
    assert "allowed" in failure(capsys, *argv, "--exclude", tmp_path / "list.csv")


def test_wavcaps_items_with_audio_become_clips_and_missing_audio_is_counted(tmp_path, capsys):
    path, out = wavcaps(tmp_path, {"num_captions_per_audio": 1, "data": ITEMS}), tmp_path / "m.jsonl"
    for name in ("Yab.flac", "180913.flac"):
        soundfile.write(tmp_path / "audio" / name, np.zeros(160), 16_000)
    write_wav(tmp_path / "audio" / "Own name.wav", 1)
    assert main(["wavcaps", str(path), "--audio", str(tmp_path / "audio"), "--out", str(out)]) == 0
    assert "left out: 1 without audio" in capsys.readouterr().out
    clips = read_manifest(out)
    assert [(clip.id, clip.freesound_id, clip.uploader, clip.licence) for clip in clips] == [
        ("fsd_final/train/Yab.flac", None, None, None),
        ("fsd_final/train/180913.flac", "180913", "ann", None),
        ("fsd_final/train/Own name.wav", None, None, None),
    ]
    assert (clips[0].captions, clips[0].split, clips[0].seconds) == (["AudioSet."], "train", 0.01)


LINK = "https://freesound.org/people/a/sounds/8"


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ([], "WavCaps"),
        ({"data": []}, "data"),
        ({"data": [1]}, "data.0"),
        ({"data": [{"caption": "x"}]}, "data.0.id"),
        ({"data": [ITEMS[0], {"id": "8"}]}, "data.1.caption"),
        ({"data": [{"id": "8", "caption": ["a", "b"]}]}, "data.0.caption"),
        ({"data": [{"id": "8", "caption": ""}]}, "item 1: "),
        ({"data": [{"id": "9" * 19, "caption": "dog", "href": LINK, "audio": "8.wav"}]}, "freesound_id"),
        ({"data": [ITEMS[0], {**ITEMS[0], "id": "Yab"}]}, "item 2: "),
    ],
)
def test_invalid_wavcaps_items_are_refused(tmp_path, capsys, content, word):
    path = wavcaps(tmp_path, content)
    for name in ("Yab.wav", "8.wav"):
        write_wav(tmp_path / "audio" / name, 1)
    argv = ("wavcaps", path, "--audio", tmp_path / "audio", "--out", tmp_path / "m.jsonl")
    assert word in failure(capsys, *argv)


def test_invalid_wavcaps_files_are_refused(tmp_path, capsys):
    path = wavcaps(tmp_path, {"data": ITEMS})
    argv = ("wavcaps", path, "--audio", tmp_path / "audio", "--out", tmp_path / "m.jsonl")
    assert "fsd_final.json" in failure(capsys, *argv)
    path.write_text("{")
    assert "not JSON" in failure(capsys, *argv)
    path.write_bytes(b"\xff")
    assert "not UTF-8" in failure(capsys, *argv)
    assert "no such folder" in failure(capsys, "wavcaps", path, "--audio", tmp_path / "none", "--out", "m.jsonl")
