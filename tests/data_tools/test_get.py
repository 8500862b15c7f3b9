"""The verb get: archives of the published names from a local server, interrupted, damaged and missing."""

import hashlib
import json
import shutil
import subprocess
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path

import numpy as np
import pytest
import soundfile
from data_files import failure, write_rows, write_wav
from sites import Quiet, serving

from data_tools.__main__ import main
from data_tools.datasets import get as module
from data_tools.datasets.get import SETS, PublishedFile, seven_zip
from data_tools.manifest import read_manifest

SPLITS = ("development", "validation", "evaluation")
METADATA = ["file_name", "keywords", "sound_id", "sound_link", "start_end_samples", "manufacturer", "license"]
HAS_7Z = any(shutil.which(name) for name in ("7z", "7zz", "7za"))
needs_7z = pytest.mark.skipif(not HAS_7Z, reason="needs the program 7z")


@pytest.fixture
def published(tmp_path, monkeypatch):
    """A folder with small files of Clotho's published names; their checksums are the expected ones."""
    folder = tmp_path / "server"
    folder.mkdir()
    for number, split in enumerate(SPLITS):
        names = [f"{split} {n}.wav" for n in range(3)]
        captions = [[name, *[f"caption {k} of {name}" for k in range(5)]] for name in names]
        header = ["file_name", *[f"caption_{k}" for k in range(1, 6)]]
        write_rows(folder / f"clotho_captions_{split}.csv", header, captions)
        rows = [[name, "", str(100 * number + n), "", "", "someone", "CC0"] for n, name in enumerate(names)]
        write_rows(folder / f"clotho_metadata_{split}.csv", METADATA, rows, "iso-8859-1")
        for n, name in enumerate(names):
            write_wav(tmp_path / "made" / split / name, 10 * number + n)
        if HAS_7Z:
            archive = folder / f"clotho_audio_{split}.7z"
            subprocess.run(
                [seven_zip(), "a", "-bd", archive, split], cwd=tmp_path / "made", check=True, capture_output=True
            )
    files = tuple(
        file._replace(md5=hashlib.md5((folder / file.name).read_bytes()).hexdigest())
        for file in SETS["clotho"].files
        if (folder / file.name).exists()
    )
    monkeypatch.setitem(SETS, "clotho", SETS["clotho"]._replace(files=files))
    return folder


class Folder(Quiet, SimpleHTTPRequestHandler):
    """Serves the files in a folder."""


@pytest.fixture
def mirror(published):
    """The address of a local server of these files."""
    with serving(partial(Folder, directory=published)) as address:
        yield address


def command(tmp_path: Path, mirror: str, *more: str) -> list[str]:
    folder, manifest = tmp_path / "data/clotho", tmp_path / "data/clotho.jsonl"
    return ["get", "clotho", "--folder", str(folder), "--out", str(manifest), "--mirror", mirror, *more]


@needs_7z
def test_get_clotho_makes_a_checked_manifest(mirror, tmp_path, capsys):
    assert main(command(tmp_path, mirror)) == 0
    shown = capsys.readouterr().out
    assert "Clotho v2.1: audio under each file's Freesound licence" in shown
    assert "an existing copy" in shown
    clips = read_manifest(tmp_path / "data/clotho.jsonl")
    assert [clip.split for clip in clips] == [split for split in SPLITS for _ in range(3)]
    assert all(Path(clip.path).is_file() and clip.freesound_id for clip in clips)
    assert main(["check", str(tmp_path / "data/clotho.jsonl")]) == 0
    assert main(command(tmp_path, mirror)) == 0
    shown = capsys.readouterr().out
    assert shown.count("is already present") == 6
    assert ": unpacked" not in shown
    (tmp_path / "data/clotho/clotho_audio_development.7z").unlink()
    assert main(command(tmp_path, mirror)) == 0
    assert not (tmp_path / "data/clotho/clotho_audio_development.7z").exists(), "it is not needed again"
    (tmp_path / "data/clotho/clotho_audio_validation.7z.unpacked").unlink()
    shutil.rmtree(tmp_path / "data/clotho/validation")
    assert main(command(tmp_path, mirror)) == 0
    assert len(list((tmp_path / "data/clotho/validation").iterdir())) == 3, "it was unpacked again"


@needs_7z
def test_interrupted_get_is_resumed(mirror, tmp_path, monkeypatch, capsys):
    finish, calls = module.write_text, []

    def killed(path: Path, text: str) -> None:
        """Stop after the second archive is unpacked, before this is noted."""
        calls.append(path.name)
        if len(calls) == 2:
            raise KeyboardInterrupt
        finish(path, text)

    monkeypatch.setattr(module, "write_text", killed)
    assert main(command(tmp_path, mirror)) == 130
    assert not (tmp_path / "data/clotho.jsonl").exists()
    monkeypatch.setattr(module, "write_text", finish)
    capsys.readouterr()
    assert main(command(tmp_path, mirror)) == 0
    assert capsys.readouterr().out.count(": unpacked") == 2
    assert len(read_manifest(tmp_path / "data/clotho.jsonl")) == 9


@needs_7z
@pytest.mark.parametrize("change", ["cut", "other", "missing"])
def test_error_of_verb_get_names_a_damaged_or_missing_archive(change, published, mirror, tmp_path, capsys):
    archive = published / "clotho_audio_validation.7z"
    whole = archive.read_bytes()
    changed = {"cut": whole[:-50], "other": (published / "clotho_audio_evaluation.7z").read_bytes()}
    archive.unlink() if change == "missing" else archive.write_bytes(changed[change])
    message = failure(capsys, *command(tmp_path, mirror))
    expected = {"cut": "published", "other": "published", "missing": "404"}
    assert "clotho_audio_validation.7z" in message
    assert expected[change] in message
    archive.write_bytes(whole)
    assert main(command(tmp_path, mirror)) == 0, "it goes on where it stopped"


def test_get_reports_a_missing_7z_program_before_the_download(mirror, tmp_path, monkeypatch, capsys):
    archive = "clotho_audio_validation.7z"
    files = (*SETS["clotho"].files[:6], PublishedFile(f"https://example.org/{archive}", archive))
    monkeypatch.setitem(SETS, "clotho", SETS["clotho"]._replace(files=files))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert "install 7-Zip" in failure(capsys, *command(tmp_path, mirror))
    assert not (tmp_path / "data/clotho").exists()


def published_wavcaps(folder: Path, made: Path) -> None:
    """The lists of the four parts, two sounds each, and their MP3 files in a 7z archive of several parts."""
    wave = np.random.default_rng(1).normal(0, 0.1, 3200)
    for number, (part, name) in enumerate(WAVCAPS.items()):
        items = [
            {"id": f"{number}{n}", "caption": f"sound {number} {n}", "duration": 0.1, "href": f"/people/a/sounds/{n}/"}
            for n in range(2)
        ]
        (folder / "json_files" / part).mkdir(parents=True)
        content = {"num_captions_per_audio": 1, "data": items}
        (folder / "json_files" / part / f"{name}_final.json").write_text(json.dumps(content))
        for n, item in enumerate(items):
            path = made / "WavCaps_mp3/Audio" / part / f"{item['id']}.mp3"
            path.parent.mkdir(parents=True, exist_ok=True)
            soundfile.write(path, wave * (0.5 + 0.1 * number + 0.05 * n), 32_000)
    (folder / LIST_2025).write_text("sound_id\n01\n")
    pack = [seven_zip(), "a", "-bd", "-mx0", "-v2k", folder / "WavCaps_mp3.7z", "WavCaps_mp3"]
    subprocess.run(pack, cwd=made, check=True, capture_output=True)


def published_audiocaps(folder: Path, made: Path) -> None:
    """The three tables, one clip each, and a zip file with the audio in the folders of aac-datasets."""
    header = ["audiocap_id", "youtube_id", "start_time", "caption"]
    for number, split in enumerate(("train", "val", "test")):
        write_rows(folder / f"{split}.csv", header, [[str(number), f"video{number}", "30", "a dog barks"]])
        write_wav(made / "AUDIOCAPS/audio_32000Hz" / split / f"video{number}_30.wav", number)
    shutil.make_archive(str(folder / "AUDIOCAPS"), "zip", made)


def published_moments(folder: Path, made: Path, name: str) -> None:
    """Queries of three splits, one recording each, and a .tar.gz file with their frames."""
    (made / "clap").mkdir()
    for split in ("train", "val", "test"):
        query = {"qid": f"{split}_1", "query": "a dog barks", "duration": 5, "vid": split, "relevant_windows": [[1, 3]]}
        (folder / f"{name}_{split}_release.jsonl").write_text(json.dumps(query) + "\n")
        np.savez(made / f"clap/{split}.npz", features=np.ones((5, 768), np.float32))
    shutil.make_archive(str(folder / "clap"), "gztar", made)


WAVCAPS = {"FreeSound": "fsd", "BBC_Sound_Effects": "bbc", "SoundBible": "sb", "AudioSet_SL": "as"}
LIST_2025 = "dcase2025_task6_excluded_freesound_ids.csv"
MADE = {
    "wavcaps": (
        published_wavcaps,
        {"wavcaps_freesound": 1, "wavcaps_bbc": 2, "wavcaps_soundbible": 2, "wavcaps_audioset": 2},
    ),
    "audiocaps": (published_audiocaps, {"audiocaps": 3}),
    "castella": (partial(published_moments, name="castella"), {"castella": 3}),
    "clotho_moment": (partial(published_moments, name="clotho_moment"), {"clotho_moment": 3}),
}  # function that makes the published files, and the clips in each manifest


@pytest.fixture
def site(name, tmp_path, monkeypatch):
    """A folder with the published files of a data set, and the address of its server."""
    server, made = tmp_path / "server", tmp_path / "made"
    server.mkdir()
    made.mkdir()
    MADE[name][0](server, made)
    shutil.rmtree(made)
    files = [
        file._replace(md5=file.md5 and hashlib.md5((server / file.name).read_bytes()).hexdigest())
        for file in SETS[name].files
        if (server / file.name).exists()
    ]
    assert {Path(file.name).name for file in files} == {path.name for path in server.rglob("*") if path.is_file()}
    monkeypatch.setitem(SETS, name, SETS[name]._replace(files=tuple(files)))
    monkeypatch.chdir(tmp_path)
    with serving(partial(Folder, directory=server)) as address:
        yield server, address


@needs_7z
@pytest.mark.parametrize("name", MADE)
def test_get_makes_the_manifests_of_every_data_set(name, site, capsys):
    _, address = site
    assert main(["get", name, "--mirror", address]) == 0
    found = {
        path.stem: len(read_manifest(path)) for path in Path("data").glob("*.jsonl") if "_moments" not in path.name
    }
    assert found == MADE[name][1]
    capsys.readouterr()
    for file in SETS[name].files:
        if file.archive:
            Path("data", name, file.name).unlink()
    assert main(["get", name, "--mirror", address]) == 0
    assert ": unpacked" not in capsys.readouterr().out


@needs_7z
@pytest.mark.parametrize("name", ["castella", "wavcaps"])
def test_get_refuses_a_damaged_castella_or_wavcaps_archive(name, site, monkeypatch, capsys):
    server, address = site
    files = tuple(file._replace(md5="") for file in SETS[name].files)
    monkeypatch.setitem(SETS, name, SETS[name]._replace(files=files))
    archive = server / ("clap.tar.gz" if name == "castella" else "WavCaps_mp3.7z.002")
    whole = archive.read_bytes()
    archive.write_bytes(whole[:-200])
    assert "cannot be unpacked" in failure(capsys, "get", name, "--mirror", address)
    archive.write_bytes(whole)
    for path in Path("data", name).glob(f"{archive.name.removesuffix('.002')}*"):
        path.unlink()
    assert main(["get", name, "--mirror", address]) == 0


@pytest.mark.parametrize("name", SETS)
def test_dry_run_of_get_prints_commands_without_a_network(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["get", name, "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert SETS[name].size in shown
    assert shown.count("lbar data ") >= len(SETS[name].make)
    assert not list(tmp_path.iterdir())


def test_files_of_a_zenodo_record_are_fetched_and_verified(tmp_path, monkeypatch, capsys):
    server, folder = tmp_path / "server", tmp_path / "data/castella_features"
    (server / "records").mkdir(parents=True)
    (server / "content").write_bytes(b"frames")
    with serving(partial(Folder, directory=server)) as address:
        file = {"key": "m2d.bin", "checksum": f"md5:{hashlib.md5(b'frames').hexdigest()}"}
        content = {"metadata": {"title": "Features"}, "files": [file | {"links": {"self": f"{address}/content"}}]}
        (server / "records/20772071").write_text(json.dumps(content))
        monkeypatch.setattr(module, "RECORDS", f"{address}/records")
        monkeypatch.chdir(tmp_path)
        assert main(["get", "castella_features"]) == 0
        assert "Features" in capsys.readouterr().out
        assert (folder / "m2d.bin").read_bytes() == b"frames"
        (folder / "m2d.bin").write_bytes(b"others")
        assert "m2d.bin" in failure(capsys, "get", "castella_features")


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 2 MB."""
    folder = tmp_path / "data"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("needs the right to mount a disk")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.slow
@needs_7z
@pytest.mark.parametrize("room", [16_384, 65_536])
def test_get_reports_a_full_disk_and_is_resumed_after_space_is_freed(mirror, small_disk, tmp_path, room, capsys):
    (small_disk / "other").write_bytes(bytes(2 * 2**20 - room))
    text = failure(capsys, *command(tmp_path, mirror))
    assert text.startswith(f"error: {small_disk}/clotho/clotho_")
    assert "free disk space" in text
    (small_disk / "other").unlink()
    assert main(command(tmp_path, mirror)) == 0
    assert len(read_manifest(small_disk / "clotho.jsonl")) == 9
    assert main(["check", str(small_disk / "clotho.jsonl")]) == 0
