"""The verb get: archives of the published names from a local server, interrupted, damaged and missing."""

import hashlib
import json
import shutil
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import soundfile
from data_files import failure, write_rows, write_wav

from data_tools.__main__ import main
from data_tools.datasets import get as module
from data_tools.datasets.get import seven_zip
from data_tools.datasets.published import SETS, PublishedFile, PublishedSet
from data_tools.errors import DataError
from data_tools.locks import lock_of
from data_tools.manifest import read_manifest

SPLITS = ("development", "validation", "evaluation")
METADATA = ["file_name", "keywords", "sound_id", "sound_link", "start_end_samples", "manufacturer", "license"]
HAS_7Z = any(shutil.which(name) for name in module.SEVEN_ZIP)
needs_7z = pytest.mark.skipif(not HAS_7Z, reason="needs the program 7z")


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
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
        PublishedFile(file.address, hashlib.md5((folder / file.name).read_bytes()).hexdigest())
        for file in SETS["clotho"].files
        if (folder / file.name).exists()
    )
    monkeypatch.setitem(SETS, "clotho", SETS["clotho"]._replace(files=files))
    return folder


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The address of a local server of the files in a folder."""

    class Handler(SimpleHTTPRequestHandler):
        """Serves the folder without a log."""

        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments, directory=str(folder))  # type: ignore[arg-type]

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    class Server(ThreadingHTTPServer):
        """Accepts all connections of a test: one that does not fit into the queue is tried again after a second."""

        request_queue_size = 64

    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def mirror(published: Path) -> Iterator[str]:
    """The address of a local server of these files."""
    with serving(published) as address:
        yield address


def command(tmp_path: Path, mirror: str, *more: str) -> list[str]:
    folder, manifest = tmp_path / "data/clotho", tmp_path / "data/clotho.jsonl"
    return ["get", "clotho", "--folder", str(folder), "--out", str(manifest), "--mirror", mirror, *more]


@needs_7z
def test_get_clotho_makes_a_checked_manifest(mirror: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(tmp_path, mirror)) == 0
    shown = capsys.readouterr().out
    assert "Clotho v2.1: audio under each file's Freesound licence" in shown
    assert "clotho_audio_validation.7z  0.0 MB, md5 " in shown
    clips = read_manifest(tmp_path / "data/clotho.jsonl")
    assert [clip.split for clip in clips] == [split for split in SPLITS for _ in range(3)]
    assert all(Path(clip.path).is_file() and clip.freesound_id for clip in clips)
    assert main(["check", str(tmp_path / "data/clotho.jsonl")]) == 0
    assert main(command(tmp_path, mirror)) == 0
    shown = capsys.readouterr().out
    assert shown.count("is already present") == 6
    assert shown.count("is unpacked already") == 3
    (tmp_path / "data/clotho/clotho_audio_development.7z").unlink()
    assert main(command(tmp_path, mirror)) == 0
    assert not (tmp_path / "data/clotho/clotho_audio_development.7z").exists(), "it is not needed again"
    shutil.rmtree(tmp_path / "data/clotho/development")
    assert main(command(tmp_path, mirror)) == 0
    assert len(list((tmp_path / "data/clotho/development").iterdir())) == 3, "it was unpacked again"


@pytest.mark.slow
@needs_7z
def test_interrupted_get_is_resumed(
    mirror: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    extract, calls = module._extract, []

    def killed(archive: Path, temporary: Path) -> None:
        """Stop after the extraction of the second archive."""
        extract(archive, temporary)
        calls.append(archive.name)
        if len(calls) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(module, "_extract", killed)
    assert main(command(tmp_path, mirror)) == 130
    assert not (tmp_path / "data/clotho.jsonl").exists()
    monkeypatch.setattr(module, "_extract", extract)
    capsys.readouterr()
    assert main(command(tmp_path, mirror)) == 0
    assert capsys.readouterr().out.count(": unpacked") == 2
    assert len(read_manifest(tmp_path / "data/clotho.jsonl")) == 9
    assert not list((tmp_path / "data/clotho").glob(".*"))


@needs_7z
def test_get_killed_while_moving_unpacked_files_is_resumed(
    mirror: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(command(tmp_path, mirror)) == 0
    folder = tmp_path / "data/clotho"
    hidden = folder / ".clotho_audio_validation.7z.part"
    hidden.mkdir()
    (folder / "validation").replace(hidden / "validation")
    (folder / "clotho_audio_validation.7z.unpacked").replace(folder / "clotho_audio_validation.7z.moving")
    monkeypatch.setattr(module, "_extract", lambda *_: pytest.fail("it was extracted"))
    assert main(command(tmp_path, mirror)) == 0
    assert len(list((folder / "validation").iterdir())) == 3
    assert not list(folder.glob(".*"))


@needs_7z
def test_get_refuses_and_never_changes_folders_of_the_user(
    mirror: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "data/clotho/validation/MY OWN.txt"
    own.parent.mkdir(parents=True)
    own.write_text("mine")
    message = failure(capsys, *command(tmp_path, mirror))
    assert "validation exists, but was not unpacked by this command; move it away; or, if all of validation" in message
    assert own.read_text() == "mine"
    (tmp_path / "data/clotho/clotho_audio_validation.7z.unpacked").write_text("validation\n")
    assert main(command(tmp_path, mirror)) == 0
    assert own.read_text() == "mine"


@needs_7z
@pytest.mark.parametrize("change", ["cut", "other", "missing"])
def test_error_of_verb_get_names_a_damaged_or_missing_archive(
    change: str, published: Path, mirror: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = published / "clotho_audio_validation.7z"
    whole = archive.read_bytes()
    changed = {"cut": whole[:-50], "other": (published / "clotho_audio_evaluation.7z").read_bytes()}
    archive.unlink() if change == "missing" else archive.write_bytes(changed[change])
    message = failure(capsys, *command(tmp_path, mirror))
    expected = {
        "cut": "the md5 of this file begins with",
        "other": "the md5 of this file begins with",
        "missing": "the server answered 404",
    }
    assert "clotho_audio_validation.7z" in message
    assert expected[change] in message
    archive.write_bytes(whole)
    assert main(command(tmp_path, mirror)) == 0, "it goes on where it stopped"


@needs_7z
def test_error_of_verb_get_names_an_archive_that_cannot_be_unpacked(
    published: Path, mirror: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = published / "clotho_audio_validation.7z"
    archive.write_bytes(archive.read_bytes()[:-50])
    files = [
        file._replace(md5=hashlib.md5((published / file.name).read_bytes()).hexdigest())
        for file in SETS["clotho"].files
    ]
    monkeypatch.setitem(SETS, "clotho", SETS["clotho"]._replace(files=tuple(files)))
    message = failure(capsys, *command(tmp_path, mirror))
    assert "clotho_audio_validation.7z cannot be unpacked (" in message
    assert not list((tmp_path / "data/clotho").glob(".*"))


@needs_7z
def test_get_reports_too_little_disk_space_before_the_download(
    mirror: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "free_bytes", lambda folder: 5e4)
    monkeypatch.setitem(SETS, "clotho", SETS["clotho"]._replace(content=1000))
    assert "/data/clotho/ has 0.1 MB free, and about " in failure(capsys, *command(tmp_path, mirror))
    assert not (tmp_path / "data/clotho").exists()


def test_disk_space_needed_by_get_excludes_bytes_already_downloaded(tmp_path: Path) -> None:
    files = (PublishedFile("https://a.org/a.csv"), PublishedFile("https://a.org/a.7z"))
    published = PublishedSet("free", "small", files, content=1.5)

    def needed() -> float:
        return module._bytes_needed(published, [100, 1000], tmp_path)

    assert needed() == 100 + 1000 + 1500
    (tmp_path / "a.7z.part").write_bytes(bytes(400))
    assert needed() == 100 + 600 + 1500
    (tmp_path / "a.7z.part").rename(tmp_path / "a.7z")
    (tmp_path / "a.7z").write_bytes(bytes(1000))
    assert needed() == 100 + 1500
    (tmp_path / ".a.7z.part/audio").mkdir(parents=True)
    (tmp_path / ".a.7z.part/audio/a.wav").write_bytes(bytes(300))
    assert needed() == 100 + 1500 - 300, "it is deleted before the archive is unpacked again"
    (tmp_path / "a.7z.moving").write_text("audio\n")
    assert needed() == 100
    (tmp_path / "a.7z.moving").rename(tmp_path / "a.7z.unpacked")
    (tmp_path / ".a.7z.part/audio").rename(tmp_path / "audio")
    (tmp_path / "a.csv").write_bytes(bytes(100))
    assert needed() == 0
    assert module._bytes_needed(published, [None, None], tmp_path) == 0


@needs_7z
def test_get_refuses_to_unpack_an_archive_that_another_process_has_locked(
    mirror: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "data/clotho"
    assert main(command(tmp_path, mirror)) == 0
    shutil.rmtree(folder / "validation")
    with lock_of(folder / "clotho_audio_validation.7z"):
        text = failure(capsys, *command(tmp_path, mirror))
    assert "clotho_audio_validation.7z: another process is writing to it; wait" in text
    assert not (folder / "validation").exists()
    assert main(command(tmp_path, mirror)) == 0
    assert len(list((folder / "validation").iterdir())) == 3


def test_python_without_safe_unpacking_is_reported_before_the_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(module.tarfile, "data_filter")
    with pytest.raises(DataError, match=r"clap\.tar\.gz needs Python 3\.11\.4 or newer"):
        module.get(SETS["castella"], tmp_path / "castella", "http://127.0.0.1:9")
    assert not (tmp_path / "castella").exists()


def test_get_reports_a_missing_7z_program_before_the_download(
    mirror: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = (*SETS["clotho"].files[:6], PublishedFile("https://example.org/clotho_audio_validation.7z"))
    monkeypatch.setitem(SETS, "clotho", SETS["clotho"]._replace(files=files))
    monkeypatch.setattr(module, "SEVEN_ZIP", ("no_such_program",))
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


@needs_7z
@pytest.mark.parametrize("name", MADE)
def test_get_makes_the_manifests_of_every_data_set(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    publish, counts = MADE[name]
    server, made = tmp_path / "server", tmp_path / "made"
    server.mkdir()
    made.mkdir()
    publish(server, made)
    shutil.rmtree(made)
    files = [
        file._replace(md5=file.md5 and hashlib.md5((server / file.name).read_bytes()).hexdigest())
        for file in SETS[name].files
        if (server / file.name).exists()
    ]
    assert {Path(file.name).name for file in files} == {path.name for path in server.rglob("*") if path.is_file()}
    monkeypatch.setitem(SETS, name, SETS[name]._replace(files=tuple(files)))
    monkeypatch.chdir(tmp_path)
    with serving(server) as address:
        assert main(["get", name, "--mirror", address]) == 0
        found = {
            path.stem: len(read_manifest(path)) for path in Path("data").glob("*.jsonl") if "_moments" not in path.name
        }
        assert found == counts
        assert "size as published: " in capsys.readouterr().out
        archives = [file for file in files if file.archive]
        for file in archives:
            Path("data", name, file.name).unlink()
        assert main(["get", name, "--mirror", address]) == 0
        assert capsys.readouterr().out.count("is unpacked already") == len(archives)


@needs_7z
@pytest.mark.parametrize("name", ["castella", "wavcaps"])
def test_get_refuses_a_damaged_castella_or_wavcaps_archive(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server, made = tmp_path / "server", tmp_path / "made"
    server.mkdir()
    made.mkdir()
    MADE[name][0](server, made)
    archive = server / ("clap.tar.gz" if name == "castella" else "WavCaps_mp3.7z.002")
    whole = archive.read_bytes()
    archive.write_bytes(whole[:-200])
    files = [file._replace(md5="") for file in SETS[name].files if (server / file.name).exists()]
    monkeypatch.setitem(SETS, name, SETS[name]._replace(files=tuple(files)))
    monkeypatch.chdir(tmp_path)
    with serving(server) as address:
        text = failure(capsys, "get", name, "--mirror", address)
        assert "cannot be unpacked (" in text
        files_to_delete = {"castella": "delete it,", "wavcaps": "delete all files data/wavcaps/WavCaps_mp3.7z.*,"}
        assert f"{files_to_delete[name]} and the same command fetches" in text
        assert not list(Path("data", name).glob(".*"))
        archive.write_bytes(whole)
        for path in Path("data", name).glob(f"{archive.name.removesuffix('.002')}*"):
            path.unlink()
        assert main(["get", name, "--mirror", address]) == 0


@pytest.mark.parametrize("name", SETS)
def test_dry_run_of_get_prints_sizes_and_commands_without_a_network(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def no_answers(addresses: Sequence[str]) -> list[None]:
        return [None] * len(addresses)

    monkeypatch.setattr(module, "_file_sizes", no_answers)
    monkeypatch.chdir(tmp_path)
    assert main(["get", name, "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert f"size as published: {SETS[name].size}" in shown
    assert shown.count("lbar data ") >= len(SETS[name].make)
    assert not list(tmp_path.iterdir())


def test_dry_run_of_get_fetches_nothing(mirror: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(tmp_path, mirror, "--dry-run")) == 0
    assert "lbar data clotho" in capsys.readouterr().out
    assert not (tmp_path / "data").exists()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
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
def test_get_reports_a_full_disk_and_is_resumed_after_space_is_freed(
    mirror: str,
    small_disk: Path,
    tmp_path: Path,
    room: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (small_disk / "other").write_bytes(bytes(2 * 2**20 - room))
    monkeypatch.setattr(module, "free_bytes", lambda folder: 2**40)  # another program fills the disk afterwards
    text = failure(capsys, *command(tmp_path, mirror))
    assert text.startswith(f"error: {small_disk}/clotho/clotho_")
    assert "No space left on device; free disk space, then run the command again" in text
    (small_disk / "other").unlink()
    assert main(command(tmp_path, mirror)) == 0
    assert len(read_manifest(small_disk / "clotho.jsonl")) == 9
    assert main(["check", str(small_disk / "clotho.jsonl")]) == 0
