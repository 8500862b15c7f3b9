"""Parquet files and tars of the hub become audio files with a manifest."""

import io
import json
import tarfile
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from formats import stereo

from data_tools.__main__ import main
from data_tools.audio import encoded
from data_tools.datasets.hub import split_of
from data_tools.manifest import read_manifest

SOUNDS = [encoded(stereo(16_000, 0.2 + 0.1 * number)[:, 0], 16_000, "FLAC", "PCM_16") for number in range(5)]


def write_parquet(path: Path, rows: list[dict[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=2)


def write_tar(path: Path, files: dict[str, bytes]) -> None:
    with tarfile.open(path, "w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))


def test_parquet_rows_become_files_and_rows_of_a_clip_its_captions(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = []
    for number in range(4):
        audio = {"bytes": SOUNDS[number // 2], "path": f"{number // 2}.flac"}
        rows.append({"audio": audio, "text": f"noise {number}", "id": number // 2})
    rows.append({"audio": None, "text": "no audio", "id": 9})
    write_parquet(tmp_path / "set/data/test-00000-of-00001.parquet", rows)
    command = ["hub", str(tmp_path / "set"), "--audio", str(tmp_path / "audio"), "--out", str(tmp_path / "m.jsonl")]
    assert main(command) == 0
    clips = list(read_manifest(tmp_path / "m.jsonl"))
    assert [clip.id for clip in clips] == ["audio/test/0.flac", "audio/test/1.flac"]
    assert [clip.captions for clip in clips] == [["noise 0", "noise 1"], ["noise 2", "noise 3"]]
    assert [Path(clip.path).read_bytes() for clip in clips] == SOUNDS[:2]
    assert [clip.seconds for clip in clips] == pytest.approx([0.2, 0.3])
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "audio").rglob("*.flac")}
    assert main(command) == 0
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "audio").rglob("*.flac")} == before
    assert main([*command, "--name", "id", "--name", "text", "--source", "mine"]) == 0
    assert next(iter(read_manifest(tmp_path / "m.jsonl"))).id == "mine/test/0_noise 0.flac"


def test_two_sounds_of_one_name_are_refused_and_can_be_named_by_a_column(tmp_path: Path) -> None:
    rows = [{"audio": {"bytes": SOUNDS[n], "path": "audio.flac"}, "text": f"noise {n}", "id": n} for n in range(2)]
    write_parquet(tmp_path / "set/train.parquet", rows)
    command = ["hub", str(tmp_path / "set"), "--audio", str(tmp_path / "audio"), "--out", str(tmp_path / "m.jsonl")]
    assert main(command) == 1
    assert not (tmp_path / "m.jsonl").exists()
    write_tar(tmp_path / "folders.tar", {f"{n}/audio.{kind}": SOUNDS[n] for n in range(2) for kind in ("flac", "txt")})
    assert main([command[0], str(tmp_path / "folders.tar"), *command[2:]]) == 1
    assert main([*command, "--name", "id"]) == 0
    assert [Path(clip.path).read_bytes() for clip in read_manifest(tmp_path / "m.jsonl")] == SOUNDS[:2]


@pytest.mark.parametrize("caption", ["json", "txt"])
def test_tar_of_a_webdataset_becomes_files(tmp_path: Path, caption: str) -> None:
    files: dict[str, bytes] = {}
    for number in range(3):
        text = json.dumps({"caption": [f"a {number}", f"b {number}"]}) if caption == "json" else f"a {number}\n"
        files |= {f"sub/{number}.flac": SOUNDS[number], f"sub/{number}.{caption}": text.encode()}
    write_tar(tmp_path / "valid-000.tar", files)
    out = tmp_path / "m.jsonl"
    assert main(["hub", str(tmp_path / "valid-000.tar"), "--audio", str(tmp_path / "audio"), "--out", str(out)]) == 0
    clips = list(read_manifest(out))
    assert {clip.split for clip in clips} == {"validation"}
    assert [Path(clip.path).read_bytes() for clip in clips] == SOUNDS[:3]
    assert clips[2].captions == (["a 2", "b 2"] if caption == "json" else ["a 2"])


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("data/train-00000-of-00010.parquet", "train"),
        ("dev/000.tar", "validation"),
        ("Test_1.tar", "test"),
        ("latest/1.tar", "train"),
    ],
)
def test_split_is_in_the_name_of_a_file_or_its_folder(name: str, split: str) -> None:
    assert split_of(Path(name)) == split


def test_damaged_or_unsuitable_shards_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "s"
    command = ["hub", str(folder), "--audio", str(tmp_path / "a"), "--out", str(tmp_path / "m.jsonl")]
    row = {"audio": {"bytes": SOUNDS[0], "path": "0.flac"}, "odd": "a noise"}
    write_parquet(folder / "x.parquet", [row])
    assert main(command) == 1, "no column with captions"
    assert "odd" in capsys.readouterr().err
    write_parquet(folder / "x.parquet", [{"text": "a noise"}])
    assert main(command) == 1, "no column with audio"
    write_parquet(folder / "x.parquet", [row | {"text": " "}])
    assert main(command) == 1, "an empty caption"
    (folder / "x.parquet").write_bytes(b"PAR1 cut")
    assert main(command) == 1
    (folder / "x.parquet").unlink()
    assert main(command) == 1, "no shards"
    write_tar(folder / "x.tar", {"0.flac": SOUNDS[0], "0.json": b"{"})
    assert main(command) == 1
    content = (folder / "x.tar").read_bytes()
    (folder / "x.tar").write_bytes(content[:700])
    assert main(command) == 1
    assert not (tmp_path / "m.jsonl").exists()
