"""Data sets in parquet, tar and zip files: the verbs hub and export."""

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import packed
import pyarrow
import pyarrow.parquet
import pytest
import soundfile
from data_files import failure
from quick import first_quick

from data_tools.__main__ import main
from data_tools.audio.excerpts import read_excerpt, sound_of
from data_tools.audio.members import Member, Packed, decompressed, member_of, on_disk
from data_tools.audio.read import check_audio, content_key, peaks, read_audio
from data_tools.hub.archives import tar_members, zip_members
from data_tools.hub.pages import decode_hybrid, members_of_column, snappy_marks
from data_tools.manifest import Clip, read_manifest, write_manifest


def listed(*arguments: object) -> list[Clip]:
    """The clips that hub lists."""
    assert main(["hub", *map(str, arguments)]) == 0
    return list(read_manifest(Path(str(arguments[list(arguments).index("--out") + 1]))))


def content(clip: Clip) -> bytes:
    """The bytes of a clip's audio."""
    with on_disk(clip.path) as file:
        return file.read_bytes()


def column_of(path: Path) -> list[Member | None]:
    """The members of a parquet file's column of audio bytes."""
    with pyarrow.parquet.ParquetFile(path) as file:
        paths = [file.schema.column(index).path for index in range(len(file.schema))]
        return list(members_of_column(path, file, paths.index("audio.bytes")))


@pytest.mark.parametrize(
    "member",
    [
        Member(Path("/a/b.tar"), "dog.flac", 1536, 98304),
        Member(Path("c d/x.zip"), "a.b.wav", 0, 7, Packed("deflate", 20, 0, 20)),
        Member(Path("/x.PARQUET"), "é 1+2.mp3", 4, 5, Packed("snappy", 65_536, 3, 9)),
    ],
)
def test_written_path_of_an_archive_member_is_parsed_back_to_the_same_member(member: Member) -> None:
    assert member_of(member.path) == member


@pytest.mark.parametrize("path", ["/a/b.tar", "/a/b.tar/dog.flac", "/a/1+2/dog.flac", "b.tar/1+x/dog.flac", "a+b.wav"])
def test_path_without_archive_member_is_treated_as_a_plain_file(path: str) -> None:
    assert member_of(path) is None


def test_members_of_tar_and_zip_archives_have_the_content_of_the_packed_files(tmp_path: Path) -> None:
    files = packed.webdataset(range(8)) | {"empty.txt": b"", "sub/folder/" + "n" * 120 + ".txt": b"long name"}
    packed.write_tar(tmp_path / "a.tar", files)
    packed.write_zip(tmp_path / "stored.zip", files, zipfile.ZIP_STORED)
    packed.write_zip(tmp_path / "deflated.zip", files)
    for found in (
        tar_members(tmp_path / "a.tar"),
        zip_members(tmp_path / "stored.zip"),
        zip_members(tmp_path / "deflated.zip"),
    ):
        assert {member.name: member.read() for member in found} == files


@pytest.mark.parametrize("size", [1000, 4096, 30_000])
def test_zip_archive_split_into_parts_is_read_without_joining_the_parts(tmp_path: Path, size: int) -> None:
    files = packed.webdataset(range(6))
    packed.write_zip(tmp_path / "x.zip", files, zipfile.ZIP_STORED)
    parts = packed.split_zip(tmp_path / "x.zip", size)
    assert len(parts) > 2
    assert {member.name: member.read() for member in zip_members(tmp_path / "x.zip")} == files
    parts[1].unlink()
    failure_text = error_of(lambda: list(zip_members(tmp_path / "x.zip")))
    assert failure_text.endswith("x.zip: its parts x.z02 are missing; copy them into its folder")


def error_of(work: Any) -> str:
    """The text of the error that a function raises."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011  the caller checks the text
        work()
    return str(caught.value)


@pytest.mark.skipif(not shutil.which("zip"), reason="needs the program zip")
def test_split_zip64_archive_written_by_the_program_zip_is_read(tmp_path: Path) -> None:
    files = packed.webdataset(range(24))
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    command = ["zip", "-q", "-0", "-fz", "-s", "64k", "x.zip", *files]
    subprocess.run(command, cwd=tmp_path, check=True)
    assert (tmp_path / "x.z02").exists()
    assert {member.name: member.read() for member in zip_members(tmp_path / "x.zip")} == files


def test_bit_packed_and_repeated_numbers_of_parquet_are_decoded() -> None:
    assert decode_hybrid(bytes([4 << 1, 1]), 1, 4).tolist() == [1, 1, 1, 1]
    assert decode_hybrid(bytes([1 << 1 | 1, 0b10001000, 0b11000110, 0b11111010]), 3, 8).tolist() == [
        0,
        1,
        2,
        3,
        4,
        5,
        6,
        7,
    ]
    assert decode_hybrid(bytes([3 << 1, 2, 1 << 1 | 1, 0b00011011, 0]), 2, 6).tolist() == [2, 2, 2, 3, 2, 1]
    with pytest.raises(IndexError):
        decode_hybrid(bytes([2 << 1, 1]), 1, 4)


def test_blocks_found_in_snappy_data_unpack_to_65536_bytes_each() -> None:
    draw = np.random.default_rng(0)
    text = (b"to be or not to be " * 20_000) + draw.bytes(200_000)
    whole = pyarrow.compress(text, "snappy", asbytes=True)
    data = whole[next(index for index, byte in enumerate(whole) if byte < 128) + 1 :]
    marks = snappy_marks(data)
    assert marks is not None
    assert len(marks) == -(-len(text) // 65_536) + 1
    for number, (begin, end) in enumerate(pairwise(marks)):
        part = text[number * 65_536 : (number + 1) * 65_536]
        assert decompressed(data[begin:end], "snappy", len(part)) == part
    literal = bytes([63 << 2]) + (200_000 - 1).to_bytes(4, "little") + draw.bytes(200_000)
    assert snappy_marks(literal) is None, "an element longer than a block"


SETTINGS: list[dict[str, Any]] = [
    {},
    {"compression": "none"},
    {"compression": "zstd"},
    {"compression": "gzip"},
    {"compression": "brotli"},
    {"row_group_size": 7},
    {"use_dictionary": False},
    {"data_page_version": "2.0"},
    {"data_page_version": "2.0", "compression": "none", "use_dictionary": False},
    {"write_page_index": True, "data_page_size": 2000},
    {"dictionary_pagesize_limit": 1 << 30},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_audio_bytes_read_from_a_parquet_column_equal_the_written_ones(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    rows = [packed.row(number % 9, text=str(number)) for number in range(40)]
    rows[3]["audio"] = None
    rows[4]["audio"] = {"bytes": None, "path": "x.wav"}
    rows[5]["audio"] = {"bytes": b"", "path": "y.wav"}
    packed.write_parquet(tmp_path / "a.parquet", rows, **settings)
    found = [member and member.read() for member in column_of(tmp_path / "a.parquet")]
    assert found == [one["audio"] and one["audio"]["bytes"] for one in rows]


def test_clip_in_a_large_snappy_page_is_read_without_unpacking_the_whole_page(tmp_path: Path) -> None:
    packed.write_parquet(tmp_path / "a.parquet", [packed.row(4 * number, text="a") for number in range(60)])
    sizes = [member.length for member in column_of(tmp_path / "a.parquet") if member]
    assert max(sizes) < 4 * 65_536 < (tmp_path / "a.parquet").stat().st_size


@pytest.mark.parametrize("form", ["tar", "zip", "parquet"])
def test_verb_hub_lists_the_clips_of_all_shards(tmp_path: Path, form: str) -> None:
    folder = tmp_path / "noises" / "data"
    for shard, numbers in (("train-00000-of-00002", range(3)), ("train-00001-of-00002", range(3, 5))):
        if form == "parquet":
            packed.write_parquet(
                folder / f"{shard}.parquet", [packed.row(number, caption=f"noise {number}") for number in numbers]
            )
        else:
            write = packed.write_tar if form == "tar" else packed.write_zip
            write(folder / f"{shard}.{form}", packed.webdataset(numbers))
    clips = listed(tmp_path / "noises", "--out", tmp_path / "m.jsonl")
    assert [clip.file_name for clip in clips] == ["clip0.wav", "clip1.flac", "clip2.mp3", "clip3.ogg", "clip4.wav"]
    assert [clip.captions for clip in clips] == [[f"noise {number}"] for number in range(5)]
    assert {clip.split for clip in clips} == {"train"}
    assert clips[1].id == "noises/train/clip1.flac"
    assert [content(clip) for clip in clips] == [packed.sound(number)[1] for number in range(5)]
    assert all(clip.seconds == pytest.approx(0.5, abs=0.05) for clip in clips)
    assert main(["check", str(tmp_path / "m.jsonl")]) == 0
    shutil.move(tmp_path, tmp_path.with_name("moved"))
    moved = read_manifest(tmp_path.with_name("moved") / "m.jsonl")
    assert [content(clip) for clip in moved] == [packed.sound(number)[1] for number in range(5)]


def test_audio_in_an_archive_is_read_like_a_plain_audio_file(tmp_path: Path) -> None:
    packed.write_tar(tmp_path / "a.tar", packed.webdataset(range(4)))
    packed.write_parquet(tmp_path / "b.parquet", [packed.row(number, caption="noise") for number in range(4)])
    tar = listed(tmp_path / "a.tar", "--out", tmp_path / "a.jsonl")
    parquet = listed(tmp_path / "b.parquet", "--out", tmp_path / "b.jsonl")
    for number, (one, other) in enumerate(zip(tar, parquet, strict=True)):
        suffix, data = packed.sound(number)
        path = tmp_path / f"plain.{suffix}"
        path.write_bytes(data)
        for member in (one.path, other.path):
            assert np.array_equal(read_audio(member, 22_050), read_audio(path, 22_050))
            assert sound_of(member) == sound_of(path)
            part = [read_excerpt(source, sound_of(path), 22_050, 3000, 4000) for source in (path, member)]
            assert np.array_equal(*part)
            assert np.array_equal(peaks(member, 10), peaks(path, 10))
            assert content_key(member) == content_key(path)
            assert check_audio(member) is None


def test_verb_hub_finds_caption_columns_by_usual_names_or_by_a_preset_or_by_options(tmp_path: Path) -> None:
    out = tmp_path / "m.jsonl"
    rows = [packed.row(number, text="A dog barks.It rains. .", index=number) for number in range(2)]
    packed.write_parquet(tmp_path / "mteb" / "test-00000-of-00001.parquet", rows)
    clips = listed(tmp_path / "mteb", "--preset", "mteb/Clotho", "--out", out)
    assert [clip.captions for clip in clips] == [["A dog barks", "It rains"]] * 2
    assert [clip.id for clip in clips] == ["clotho/test/0.wav", "clotho/test/1.flac"]
    caps = [packed.row(0, caption=f"c{number}", youtube_id="-a_b", start_time=30) for number in range(3)]
    packed.write_parquet(tmp_path / "caps.parquet", caps)
    (clip,) = listed(tmp_path / "caps.parquet", "--preset", "OpenSound/AudioCaps", "--split", "val", "--out", out)
    assert (clip.id, clip.captions) == ("audiocaps/val/-a_b_30.wav", ["c0", "c1", "c2"])
    mine = [{"snd": packed.sound(0)[1], "a": ["x", "y"], "b": "z", "n": "one"}]
    packed.write_parquet(tmp_path / "mine" / "mine.parquet", mine)
    options = ["--audio", "snd", "--caption", "a", "b", "--id", "n", "--name", "own"]
    (clip,) = listed(tmp_path / "mine", *options, "--out", out)
    assert (clip.id, clip.captions) == ("own/train/one.wav", ["x", "y", "z"])
    numbered = [packed.row(1, **{f"caption_{number}": f"c{number}" for number in (1, 2, 10)})]
    packed.write_parquet(tmp_path / "numbered.parquet", numbered)
    assert listed(tmp_path / "numbered.parquet", "--out", out)[0].captions == ["c1", "c2", "c10"]


def test_verb_hub_uses_the_texts_of_relevant_queries_as_captions_of_a_clip(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "caps_t2a"
    corpus = [{"id": f"d{number}", "audio": packed.row(number)["audio"]} for number in range(3)]
    packed.write_parquet(folder / "corpus" / "test-00000-of-00001.parquet", corpus)
    queries = [{"id": f"q{number}", "text": f"text {number}"} for number in range(4)]
    packed.write_parquet(folder / "queries" / "test-00000-of-00001.parquet", queries)
    relevant = [("q0", "d0", 1), ("q1", "d0", 1), ("q2", "d2", 1), ("q3", "d1", 0)]
    qrels = [{"query-id": query, "corpus-id": clip, "score": score} for query, clip, score in relevant]
    packed.write_parquet(folder / "qrels" / "test-00000-of-00001.parquet", qrels)
    clips = listed(folder, "--id", "id", "--out", tmp_path / "m.jsonl")
    assert {clip.file_name: clip.captions for clip in clips} == {
        "d0.wav": ["text 0", "text 1"],
        "d1.flac": [],
        "d2.mp3": ["text 2"],
    }
    packed.write_parquet(folder / "queries" / "test-00000-of-00001.parquet", queries[1:])
    assert "no query has the id q0" in failure(capsys, "hub", folder, "--out", tmp_path / "m.jsonl")


def test_wavcaps_is_read_from_its_zip_files(tmp_path: Path) -> None:
    folder = tmp_path / "WavCaps"
    sounds = {f"mnt/fast/BBC_flac/{number}.flac": packed.sound(4 * number + 1)[1] for number in range(5)}
    packed.write_zip(folder / "Zip_files/BBC_Sound_Effects/BBC_Sound_Effects.zip", sounds)
    packed.split_zip(folder / "Zip_files/BBC_Sound_Effects/BBC_Sound_Effects.zip", 20_000)
    items = [{"id": str(number), "caption": f"noise {number}", "duration": 0.5} for number in range(5)]
    (folder / "json_files/BBC_Sound_Effects").mkdir(parents=True)
    document = json.dumps({"num_captions_per_audio": 1, "data": items})
    (folder / "json_files/BBC_Sound_Effects/bbc_final.json").write_text(document)
    clips = listed(folder, "--preset", "cvssp/WavCaps", "--out", tmp_path / "m.jsonl")
    assert [clip.id for clip in clips] == [f"bbc_final/train/{number}.flac" for number in range(5)]
    assert [content(clip) for clip in clips] == list(sounds.values())
    assert [clip.seconds for clip in clips] == [0.5] * 5
    assert main(["check", str(tmp_path / "m.jsonl")]) == 0


def test_verb_hub_reads_one_json_file_per_wavcaps_source_and_reports_sources_without_zip(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    folder, out = tmp_path / "WavCaps", tmp_path / "m.jsonl"
    packed.write_zip(folder / "Zip_files/FreeSound/FreeSound.zip", {f"{n}.flac": packed.sound(1)[1] for n in "12"})
    items = [{"id": n, "caption": f"noise {n}", "duration": 0.5} for n in "12"]
    for name, chosen in (("FreeSound/fsd_final", items), ("FreeSound/fsd_final_2s", items[1:]), ("BBC/b_final", items)):
        path = folder / f"json_files/{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"num_captions_per_audio": 1, "data": chosen}))
    (folder / "json_files/blacklist").mkdir()
    (folder / "json_files/blacklist/blacklist_exclude_all_ac.json").write_text('{"AudioSet": [], "FreeSound": []}')
    assert main(["hub", str(folder), "--preset", "cvssp/WavCaps", "--out", str(out)]) == 1
    output = capsys.readouterr().out
    assert "left out: " + f"{folder}/json_files/BBC/b_final.json: has no Zip_files/BBC/; fetch the zip" in output
    assert output.count("left out: ") == 1
    assert [clip.id for clip in read_manifest(out)] == ["fsd_final/train/1.flac", "fsd_final/train/2.flac"]
    assert (
        "fsd_final_2s.json: skipped, because only the largest file of this folder, fsd_final.json, is read; to read"
        in caplog.text
    )


def tar_of_four(folder: Path) -> Path:
    """Two tars with two clips each."""
    packed.write_tar(folder / "set" / "train-00000.tar", packed.webdataset(range(2)))
    packed.write_tar(folder / "set" / "train-00001.tar", packed.webdataset(range(2, 4)))
    return folder / "set"


def test_verb_hub_refuses_a_missing_shard_without_option_partial(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = tar_of_four(tmp_path), tmp_path / "m.jsonl"
    (folder / "train-00001.tar").rename(folder / "train-00002.tar")
    packed.write_tar(folder / "train-00003.tar", packed.webdataset([4]))
    assert "shards of this name are missing, with the numbers 1" in failure(capsys, "hub", folder, "--out", out)
    assert len(listed(folder, "--partial", "--out", out)) == 5
    for year in ("2023", "2026"):
        packed.write_tar(
            tmp_path / "years" / f"set_{year}.tar", {f"{year}.wav": packed.sound(0)[1], f"{year}.txt": b"a"}
        )
    assert len(listed(tmp_path / "years", "--out", out)) == 2, "numbers without a count that are no series"
    packed.write_parquet(tmp_path / "test-00000-of-00002.parquet", [packed.row(0, text="a")])
    text = failure(capsys, "hub", tmp_path / "test-00000-of-00002.parquet", "--out", out)
    assert "missing, with the numbers 1; fetch them, or use --partial" in text


@pytest.mark.parametrize("cut", [0.3, 0.9])
def test_verb_hub_refuses_a_truncated_archive(tmp_path: Path, cut: float, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = tar_of_four(tmp_path), tmp_path / "m.jsonl"
    shard = folder / "train-00001.tar"
    data = shard.read_bytes()
    used = max(member.start + member.length for member in tar_members(shard))
    shard.write_bytes(data[: round(cut * used)])
    assert "train-00001.tar: " in failure(capsys, "hub", folder, "--out", out)
    shard.write_bytes(data[: -(-used // 512) * 512])
    assert "damaged or cut after" in failure(capsys, "hub", folder, "--out", out)
    assert not out.exists()
    for name in ("a.zip", "a.parquet"):
        rows = [packed.row(number, text="a") for number in range(4)]
        packed.write_parquet(tmp_path / "a.parquet", rows)
        packed.write_zip(tmp_path / "a.zip", packed.webdataset(range(4)))
        whole = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(whole[: round(cut * len(whole))])
        assert f"{name}: " in failure(capsys, "hub", tmp_path / name, "--out", out)


def test_verb_hub_refuses_a_tar_with_a_damaged_member_header(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tar_of_four(tmp_path)
    data = bytearray((folder / "train-00000.tar").read_bytes())
    second = list(tar_members(folder / "train-00000.tar"))[1]
    data[second.start - 512 + 150] ^= 0xFF
    (folder / "train-00000.tar").write_bytes(data)
    text = failure(capsys, "hub", folder, "--out", tmp_path / "m.jsonl")
    assert "train-00000.tar: damaged or cut after" in text


@pytest.mark.parametrize("form", ["tar", "parquet"])
def test_damaged_archive_member_is_left_out_and_reported_with_status_1(
    tmp_path: Path, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / f"a.{form}", tmp_path / "m.jsonl"
    if form == "tar":
        packed.write_tar(path, packed.webdataset(range(4)))
    else:
        packed.write_parquet(path, [packed.row(number, text="a") for number in range(4)], compression="none")
    data = bytearray(path.read_bytes())
    at = data.index(packed.sound(1)[1])
    data[at : at + 4] = b"none"
    path.write_bytes(data)
    assert main(["hub", str(path), "--out", str(out)]) == 1
    output = capsys.readouterr().out
    assert output.count("left out: ") == 1
    assert "clip1.flac: cannot be decoded" in output
    assert [clip.file_name for clip in read_manifest(out)] == ["clip0.wav", "clip2.mp3", "clip3.ogg"]


def test_verb_hub_reports_missing_or_wrong_columns_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = tmp_path / "a.parquet", tmp_path / "m.jsonl"
    packed.write_parquet(path, [packed.row(0, words="a", index=3)])
    for options, expected in (
        ([], "no column of captions; choose some of words, index by --caption"),
        (["--caption", "text"], "row 1: no column text; choose among words, index by --caption"),
        (["--caption", "words", "--id", "key"], "row 1: no column key"),
        (["--caption", "words", "--audio", "sound"], "no column sound; choose one of audio, words, index"),
        (
            ["--caption", "words", "--audio", "index"],
            "the column index has no embedded audio (binary",
        ),
        (["--caption", "index", "--split", "traim"], "invalid choice"),
    ):
        if options[-1:] == ["traim"]:
            assert main(["hub", str(path), *options, "--out", str(out)]) == 2
        else:
            assert expected in failure(capsys, "hub", path, *options, "--out", out)
    packed.write_parquet(path, [packed.row(0, text="?"), packed.row(1, text="b")])
    assert main(["hub", str(path), "--out", str(out)]) == 1
    assert "left out: " + f"{path}, row 1, caption 1: the caption '?' has no letter or digit" in capsys.readouterr().out
    assert [clip.captions for clip in read_manifest(out)] == [["b"]]
    packed.write_parquet(path, [packed.row(0, text="a", id="x"), packed.row(4, text="b", id="x")])
    assert "row 2: another audio file has the same name x.wav" in failure(
        capsys, "hub", path, "--id", "id", "--out", out
    )
    path.write_bytes(b"PAR1 no")
    assert "not a parquet file, damaged or cut" in failure(capsys, "hub", path, "--out", out)
    (tmp_path / "none").mkdir()
    assert "no file that ends in .tar or .zip or .parquet" in failure(capsys, "hub", tmp_path / "none", "--out", out)
    assert "no such file or folder" in failure(capsys, "hub", tmp_path / "absent", "--out", out)


def test_samples_of_an_archive_without_captions_are_left_out_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "a.tar", tmp_path / "m.jsonl"
    files = packed.webdataset(range(4))
    del files["clip0.json"]
    files["clip2.json"] = b'{"title": "noise"}'
    packed.write_tar(path, files)
    for options in ([], ["--caption", "caption"]):
        assert main(["hub", str(path), *options, "--out", str(out)]) == 1
        output = capsys.readouterr().out
        assert f"left out: {path}, clip0: has no captions, only audio; add captions" in output
        assert f"left out: {path}, clip2: no column " in output
        assert output.count("left out: ") == 2
        assert [clip.captions for clip in read_manifest(out)] == [["noise 1"], ["noise 3"]]
    packed.write_tar(path, {name: content for name, content in files.items() if not name.endswith("json")})
    message = failure(capsys, "hub", path, "--out", out)
    assert (
        "clip0: has no captions, only audio; add captions, or leave the sample out; no clip is left (4 samples left"
        in message
    )


def test_verb_blind_refuses_a_folder_of_archives_and_suggests_verb_hub(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = failure(capsys, "blind", tar_of_four(tmp_path), "--out", tmp_path / "m.jsonl")
    assert "no audio files in this folder; it contains train-00000.tar, train-00001.tar; make a manifest of" in text


def test_member_names_of_a_tar_in_another_encoding_than_utf_8_are_read(tmp_path: Path) -> None:
    """Old programs write names in the code page of their system."""
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w", encoding="latin-1", format=tarfile.GNU_FORMAT) as tar:
        for name, written in (("naïve.wav", packed.sound(0)[1]), ("naïve.txt", b"a")):
            entry = tarfile.TarInfo(name)
            entry.size = len(written)
            tar.addfile(entry, io.BytesIO(written))
    (clip,) = listed(path, "--out", tmp_path / "m.jsonl")
    assert clip.file_name == "na∩ve.wav"
    assert content(clip) == packed.sound(0)[1]


def test_member_of_a_missing_or_cut_container_is_an_error(tmp_path: Path) -> None:
    folder = tar_of_four(tmp_path)
    clips = listed(folder, "--out", tmp_path / "m.jsonl")
    data = (folder / "train-00001.tar").read_bytes()
    (folder / "train-00001.tar").write_bytes(data[:2000])
    text = error_of(lambda: read_audio(clips[2].path, 16_000))
    assert "train-00001.tar: ends too early" in text
    (folder / "train-00001.tar").unlink()
    assert "no such file" in error_of(lambda: read_audio(clips[2].path, 16_000))
    assert main(["check", str(tmp_path / "m.jsonl")]) == 1


def exported(folder: Path, count: int = 12) -> Path:
    """A manifest of clips of three splits in four formats, in mixed order, with all fields."""
    clips = []
    for number in range(count):
        suffix, data = packed.sound(number)
        path = folder / "in" / f"sound.{number} ä.{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        clips.append(
            Clip(
                id=f"mine/{(split := ('validation', 'development', 'evaluation')[number % 3])}/{path.name}",
                file_name=path.name,
                path=str(path),
                seconds=None if number == 5 else 0.123456789 + number,
                captions=[f"noise {number}", "a hiss"][: number % 3],
                source="mine",
                split=split,  # type: ignore[arg-type]
                freesound_id=str(number) if number % 2 else None,
                licence="CC0" if number % 3 else None,
                uploader="me" if number % 4 else None,
            )
        )
    write_manifest(folder / "in.jsonl", clips)
    return folder / "in.jsonl"


@pytest.mark.parametrize("form", ["parquet", "webdataset"])
def test_exported_clips_read_back_by_verb_hub_are_unchanged(tmp_path: Path, form: str) -> None:
    manifest = exported(tmp_path)
    assert main(["export", str(manifest), "--format", form, "--out", str(tmp_path / "out")]) == 0
    clips = listed(tmp_path / "out", "--out", tmp_path / "new.jsonl")
    before = read_manifest(manifest)
    seconds = [clip.seconds for clip in clips]
    assert seconds[5] == pytest.approx(0.5, abs=0.01), "read from the audio"
    same = {"path": "", "seconds": None}
    assert [clip.model_copy(update=same) for clip in clips] == [clip.model_copy(update=same) for clip in before]
    assert [one for one in seconds if one != seconds[5]] == [clip.seconds for clip in before if clip.seconds]
    assert [content(clip) for clip in clips] == [Path(clip.path).read_bytes() for clip in before]
    assert main(["export", str(tmp_path / "new.jsonl"), "--format", form, "--out", str(tmp_path / "again")]) == 0
    again = listed(tmp_path / "again", "--out", tmp_path / "again.jsonl")
    assert [content(clip) for clip in again] == [content(clip) for clip in clips], "exported from members"


def test_exported_parquet_is_read_by_pyarrow_as_a_table_with_audio(tmp_path: Path) -> None:
    manifest = exported(tmp_path)
    assert main(["export", str(manifest), "--format", "parquet", "--out", str(tmp_path / "out")]) == 0
    table = pyarrow.parquet.read_table(tmp_path / "out/validation-00000-of-00001.parquet")
    rows = table.to_pylist()
    assert [row["row"] for row in rows] == [0, 3, 6, 9]
    assert rows[0]["audio"] == {"bytes": packed.sound(0)[1], "path": "sound.0 ä.wav"}
    assert json.loads(table.schema.metadata[b"huggingface"])["info"]["features"]["audio"] == {"_type": "Audio"}


def test_verb_hub_refuses_column_options_for_shards_written_by_export(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest, out = exported(tmp_path), tmp_path / "m.jsonl"
    assert main(["export", str(manifest), "--format", "webdataset", "--out", str(tmp_path / "out")]) == 0
    for option in (["--caption", "text"], ["--id", "x"], ["--preset", "mteb/Clotho"], ["--split", "test"]):
        text = failure(capsys, "hub", tmp_path / "out", *option, "--out", out)
        assert f"{option[0]}: {tmp_path}/out/" in text
        assert "which `export` wrote" in text
        assert text.endswith("states this already; leave the option out\n")
    assert "which `export` wrote" in failure(capsys, "hub", tmp_path / "out", "--name", "x", "--out", out)
    assert not out.exists()


def test_clip_with_an_invalid_field_in_an_exported_shard_is_skipped_and_its_key_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = exported(tmp_path)
    assert main(["export", str(manifest), "--format", "webdataset", "--out", str(tmp_path / "out")]) == 0
    path = tmp_path / "out/validation-00000-of-00001.tar"
    files = {member.name: member.read() for member in tar_members(path)}
    first = next(name for name in files if name.endswith(".json"))
    files[first] = json.dumps(json.loads(files[first]) | {"file_name": None}).encode()
    packed.write_tar(path, files)
    assert main(["hub", str(tmp_path / "out"), "--out", str(tmp_path / "m.jsonl")]) == 1
    output = capsys.readouterr().out
    assert output.count("left out: ") == 1
    assert f"{path}, {first.removesuffix('.json')}: file_name: " in output
    assert "export the data set again" in output


def test_export_divides_shards_by_split_and_size_and_refuses_a_folder_with_other_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest, out = exported(tmp_path), tmp_path / "out"
    big = tmp_path / "in" / "sound.0 ä.wav"
    big.write_bytes(packed.sound(0, 40.0)[1])
    command = ["export", manifest, "--format", "webdataset", "--out", out, "--shard-size", "1"]
    assert main([*map(str, command)]) == 0
    names = sorted(path.name for path in out.glob("*.tar"))
    assert names == [
        "development-00000-of-00001.tar",
        "evaluation-00000-of-00001.tar",
        "validation-00000-of-00002.tar",
        "validation-00001-of-00002.tar",
    ]
    assert "contains files of another export" in failure(capsys, *command[:-1], "2")
    assert "add --format parquet" in failure(capsys, "export", manifest, "--out", tmp_path / "x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine.txt").write_text("a")
    assert "is not empty (it has mine.txt)" in failure(capsys, *command[:5], tmp_path / "full")
    big.unlink()
    assert "sound.0 ä.wav: no such file" in failure(capsys, *command[:5], tmp_path / "new")


@pytest.mark.slow
@pytest.mark.parametrize("form", ["parquet", "webdataset"])
def test_killed_and_resumed_export_writes_the_same_shards_as_an_uninterrupted_one(tmp_path: Path, form: str) -> None:
    manifest = exported(tmp_path, 60)
    for path in (tmp_path / "in").iterdir():
        path.write_bytes(path.read_bytes() + bytes(60_000))  # all shards take long enough to be killed
    command = [sys.executable, "-m", "data_tools", "export", manifest, "--format", form, "--shard-size", "1"]
    subprocess.run([*command, "--out", tmp_path / "whole"], check=True, capture_output=True)
    process = subprocess.Popen([*command, "--out", tmp_path / "cut"], stdout=subprocess.DEVNULL)
    limit = time.monotonic() + 60
    while not list((tmp_path / "cut").glob("*-00000-*")) and time.monotonic() < limit and process.poll() is None:
        time.sleep(0.002)
    process.kill()
    process.wait()
    begun = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "cut").iterdir() if "-of-" in path.name}
    assert begun
    subprocess.run([*command, "--out", tmp_path / "cut"], check=True, capture_output=True)
    files = [{path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("whole", "cut")]
    assert files[0] == files[1]
    kept = [name for name in begun if not name.startswith(".")]
    assert all((tmp_path / "cut" / name).stat().st_mtime_ns == begun[name] for name in kept)


def test_no_clip_of_an_unusual_archive_is_lost_without_a_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "m.jsonl"
    packed.write_tar(
        tmp_path / "a.tar", {"a.wav": packed.sound(0)[1], "a.txt": b"\xef\xbb\xbfone\r\n", "README.md": b"x"}
    )
    packed.write_tar(tmp_path / "b.tar", {"b.wav": packed.sound(4)[1], "b.txt": b"two"})
    assert listed(tmp_path / "a.tar", "--out", out)[0].captions == ["one"]
    (tmp_path / "mixed").mkdir()
    shutil.copy(tmp_path / "a.tar", tmp_path / "mixed")
    (tmp_path / "mixed/b.tar.gz").write_bytes(b"gz")
    assert "b.tar.gz: cannot be read in place; unpack it" in failure(capsys, "hub", tmp_path / "mixed", "--out", out)
    both = (tmp_path / "a.tar").read_bytes() + (tmp_path / "b.tar").read_bytes()
    (tmp_path / "joined.tar").write_bytes(both)
    assert "or followed by another archive" in failure(capsys, "hub", tmp_path / "joined.tar", "--out", out)
    packed.write_tar(tmp_path / "twice.tar", {"a.wav": packed.sound(0)[1], "a.WAV": packed.sound(4)[1], "a.txt": b"x"})
    assert "the name a.WAV occurs twice" in failure(capsys, "hub", tmp_path / "twice.tar", "--out", out)
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.wav").write_bytes(packed.sound(0)[1])
    (tmp_path / "in/a.txt").write_bytes(b"x")
    (tmp_path / "in/b.txt").write_bytes(b"y")
    os.link(tmp_path / "in/a.wav", tmp_path / "in/b.wav")
    subprocess.run(
        ["tar", "-cf", "links.tar", "-C", "in", "a.wav", "a.txt", "b.wav", "b.txt"], cwd=tmp_path, check=True
    )
    assert [content(clip) for clip in listed(tmp_path / "links.tar", "--out", out)] == [packed.sound(0)[1]] * 2


def test_clip_names_repeated_in_several_shards_are_made_unique_by_the_shard_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = tmp_path / "set", tmp_path / "m.jsonl"
    for shard in range(2):
        rows = [{"audio": {"bytes": packed.sound(4 * shard + n)[1], "path": None}, "caption": "a"} for n in range(2)]
        packed.write_parquet(folder / f"train-{shard:05}-of-00002-0123456789abcde{shard}.parquet", rows)
    names = [clip.file_name for clip in listed(folder, "--out", out)]
    assert len(set(names)) == 4
    (folder / "train-00001-of-00002-0123456789abcde1.parquet").unlink()
    assert "missing, with the numbers 1" in failure(capsys, "hub", folder, "--out", out)
    for shard in range(2):
        packed.write_tar(tmp_path / "tars" / f"{shard:06}.tar", {"0.wav": packed.sound(4 * shard)[1], "0.txt": b"a"})
    assert "--id __shard__ __key__" in failure(capsys, "hub", tmp_path / "tars", "--out", out)
    clips = listed(tmp_path / "tars", "--id", "__shard__", "__key__", "--out", out)
    assert [clip.file_name for clip in clips] == ["000000_0.wav", "000001_0.wav"]


@pytest.mark.parametrize("settings", first_quick([{}, {"compression": "none"}, {"compression": "zstd"}], 1), ids=str)
def test_randomly_damaged_parquet_files_are_read_or_refused_without_a_traceback(
    tmp_path: Path, settings: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    path, draw = tmp_path / "a.parquet", np.random.default_rng(0)
    packed.write_parquet(path, [packed.row(number % 4, text="a", index=number) for number in range(12)], **settings)
    whole = path.read_bytes()
    for _ in range(40):
        data = bytearray(whole)
        at = int(draw.integers(4, len(data) - 4))
        data[at : at + 16] = draw.bytes(min(16, len(data) - at))
        path.write_bytes(data)
        capsys.readouterr()
        status = main(["hub", str(path), "--id", "index", "--out", str(tmp_path / "m.jsonl")])
        output = capsys.readouterr()
        assert status in (0, 1)
        assert "Traceback" not in output.err
        assert status == 0 or f"{path}" in output.err + output.out


@pytest.mark.parametrize("form", ["parquet", "webdataset"])
def test_files_of_frames_and_audio_with_unusual_suffixes_are_exported(tmp_path: Path, form: str) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    np.savez(folder / "frames.npz", features=np.ones((3, 4), np.float32))
    wave = 0.1 * np.random.default_rng(0).standard_normal(8000)
    soundfile.write(folder / "a.caf", wave, 16_000, format="CAF")
    soundfile.write(folder / "no suffix", wave, 16_000, format="WAV")
    names = ["frames.npz", "a.caf", "no suffix"]
    clips = [Clip(id=name, file_name=name, path=str(folder / name), captions=["a"]) for name in names]
    write_manifest(tmp_path / "in.jsonl", clips)
    assert main(["export", str(tmp_path / "in.jsonl"), "--format", form, "--out", str(tmp_path / "out")]) == 0
    found = listed(tmp_path / "out", "--out", tmp_path / "m.jsonl")
    assert [clip.id for clip in found] == names
    assert [content(clip) for clip in found] == [(folder / name).read_bytes() for name in names]
