"""The verb transcode: formats, resumption, and broken audio."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import soundfile
from data_files import failure

from data_tools.__main__ import main
from data_tools.audio.read import read_audio
from data_tools.datasets.transcode import new_file_names
from data_tools.manifest import Clip, read_manifest, write_manifest

RATES = (16_000, 44_100, 48_000)


def source(folder: Path, count: int, seconds: float = 0.5) -> Path:
    """A manifest of stereo WAV files of noise at three rates."""
    draw, clips = np.random.default_rng(0), []
    (folder / "in").mkdir(parents=True)
    for number in range(count):
        path, rate = folder / "in" / f"clip {number}.wav", RATES[number % 3]
        soundfile.write(path, 0.2 * draw.uniform(-1, 1, (round(seconds * rate), 2)), rate)
        clips.append(
            Clip(
                id=f"mine/train/clip {number}.wav",
                file_name=path.name,
                path=str(path),
                captions=[f"noise {number}"],
                source="mine",
                split="train",
                freesound_id=str(number),
                licence="CC0",
                uploader="me",
            )
        )
    write_manifest(folder / "in.jsonl", clips)
    return folder / "in.jsonl"


def files(folder: Path) -> dict[str, bytes]:
    """The content of all files below a folder by path."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("format", "kbits"), [("flac", None), ("mp3", 64), ("mp3", 128), ("ogg", None)])
def test_transcode_converts_audio_and_keeps_captions_and_other_fields(
    format: str, kbits: int | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest, out = source(tmp_path, 6, 2.0), tmp_path / "out"
    bits = [] if kbits is None else ["--bitrate", str(kbits)]
    assert main(["transcode", str(manifest), "--rate", "32000", "--format", format, *bits, "--out", str(out)]) == 0
    assert "size of the audio before: 1.7 MB, after: 0." in capsys.readouterr().out
    before, after = read_manifest(manifest), read_manifest(out / "manifest.jsonl")
    changing = {"path", "seconds"}
    assert [clip.model_dump(exclude=changing) for clip in after] == [
        clip.model_dump(exclude=changing) for clip in before
    ]
    for old, new in zip(before, after, strict=True):
        facts = soundfile.info(new.path)
        assert (facts.samplerate, facts.channels, new.path.endswith(f".{format}")) == (32_000, 1, True)
        assert new.seconds == pytest.approx(2.0, abs=1e-4)
        if kbits:
            assert Path(new.path).stat().st_size * 8 / 2000 == pytest.approx(kbits, rel=0.05)
        if format == "flac":
            assert np.abs(read_audio(new.path, 32_000) - read_audio(old.path, 32_000)).max() <= 0.8 / 32_768


def test_resumed_transcode_writes_only_missing_files(tmp_path: Path) -> None:
    manifest, out = source(tmp_path, 6), tmp_path / "out"
    command = ["transcode", str(manifest), "--format", "flac", "--out", str(out)]
    assert main(command) == 0
    whole = files(out)
    kept, lost, stale = (out / f"audio/mine/train/clip {n}.flac" for n in range(3))
    lost.unlink()
    (out / "manifest.jsonl").unlink()
    changed = kept.stat().st_ctime_ns
    with (out / "finished.jsonl").open("a") as file:
        file.write('{"new": "cut by a k')
    soundfile.write(tmp_path / "in/clip 2.wav", np.zeros(9000), 48_000)
    assert main(command) == 0
    assert kept.stat().st_ctime_ns == changed, "not written again"
    assert lost.read_bytes() == whole["audio/mine/train/clip 1.flac"]
    assert soundfile.info(stale).frames == 6000, "its audio file has changed"
    assert main(command) == 0, "the record is whole again"


@pytest.mark.slow
def test_killed_and_resumed_transcode_writes_the_same_files_as_an_uninterrupted_one(tmp_path: Path, root: Path) -> None:
    manifest = source(tmp_path, 1000, 0.1)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert main(["transcode", str(manifest), "--out", str(whole)]) == 0
    command = [sys.executable, "-m", "data_tools", "transcode", str(manifest), "--out", str(killed)]
    process = subprocess.Popen(command, cwd=root)
    while process.poll() is None and len(list(killed.rglob("*.mp3"))) < 300:
        time.sleep(0.01)
    process.kill()
    process.wait()
    dead = next(killed.rglob("*.mp3")).with_name(f".clip 59.mp3.{process.pid}.part")
    dead.write_bytes(b"half")
    assert not (killed / "manifest.jsonl").exists()
    assert subprocess.run(command, cwd=root, check=True).returncode == 0
    one, two = files(whole), files(killed)
    assert sorted(one) == sorted(two), "no temporary file is left"
    audio = [name for name in one if name.startswith("audio/")]
    assert len(audio) == 1000
    assert all(one[name] == two[name] for name in audio)


def test_transcode_names_broken_audio_and_leaves_it_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest, out = source(tmp_path, 4), tmp_path / "out"
    (tmp_path / "in/clip 1.wav").unlink()
    (tmp_path / "in/clip 2.wav").write_bytes(b"RIFF")
    assert main(["transcode", str(manifest), "--out", str(out)]) == 1
    shown = capsys.readouterr().out
    assert "clip 1.wav: no such file" in shown
    assert "clip 2.wav" in shown
    assert "2 clips, 2 left out" in shown
    assert [clip.captions for clip in read_manifest(out / "manifest.jsonl")] == [["noise 0"], ["noise 3"]]
    shutil.rmtree(tmp_path / "in")
    shutil.rmtree(out)
    assert "no audio of" in failure(capsys, "transcode", manifest, "--out", out)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rate", "30000"], "--rate 30000: MP3 supports only 8000, 11025"),
        (["--rate", "10", "--format", "flac"], "--rate 10: give 1,000 to 192,000 Hz"),
        (["--bitrate", "400"], "--bitrate 400: must be above 32 and at most 320 for MP3 at 32000 Hz"),
        (["--bitrate", "64", "--format", "flac"], "--bitrate 64: flac has no bit rate to set"),
        (
            ["--rate", "44100", "--bitrate", "40"],
            "--bitrate 40: at this bit rate, MP3 files of 44100 Hz are longer or shorter than the audio",
        ),
        (["--workers", "0"], "--workers 0: give at least 1"),
    ],
)
def test_transcode_refuses_rates_that_a_format_does_not_have(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = source(tmp_path, 1)
    assert message in failure(capsys, "transcode", manifest, *options, "--out", tmp_path / "out")
    assert not list(tmp_path.rglob("*.mp3"))


def test_transcode_refuses_a_folder_made_with_other_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest, out = source(tmp_path, 1), tmp_path / "out"
    assert main(["transcode", str(manifest), "--out", str(out)]) == 0
    assert json.loads((out / "transcode.json").read_text())["kbits"] == 64
    message = failure(capsys, "transcode", manifest, "--rate", 16000, "--out", out)
    assert (
        "contains files of an earlier call with other settings (rate was 32000, but now is 16000); use another --out"
        in message
    )
    (out / "transcode.json").write_text("{bad")
    assert "transcode.json" in failure(capsys, "transcode", manifest, "--out", out)
    (out / "transcode.json").unlink()
    assert "is not empty, and was not written by this command (no transcode.json)" in failure(
        capsys, "transcode", manifest, "--out", out
    )


def test_transcoded_clips_with_the_same_file_name_get_different_files() -> None:
    clips = [
        Clip(id=f"own/train/{folder}/{name}", path=f"/{folder}/{name}", file_name=name, captions=[], split="train")
        for folder, name in (("a", "rain.wav"), ("b", "Rain.mp3"), ("c", "sun.wav"))
    ]
    names = new_file_names(clips, "ogg")
    assert len(set(names)) == 3
    assert names[2] == "own/train/sun.ogg"
    assert all(name.startswith(("own/train/rain.", "own/train/Rain.")) for name in names[:2])


def test_transcode_notices_replaced_audio_with_an_unchanged_modification_time(tmp_path: Path) -> None:
    manifest, out = source(tmp_path, 3), tmp_path / "out"
    command = ["transcode", str(manifest), "--format", "flac", "--out", str(out)]
    assert main(command) == 0
    before = files(out)
    path = tmp_path / "in/clip 0.wav"
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    soundfile.write(path, np.full((16_000, 2), 0.1), 16_000)
    os.utime(path, ns=times)
    (tmp_path / "other").mkdir()
    shutil.copy2(tmp_path / "in/clip 2.wav", tmp_path / "other/clip 1.wav")
    clips = read_manifest(manifest)
    moved = clips[1].model_copy(update={"path": str(tmp_path / "other/clip 1.wav")})
    write_manifest(manifest, [clips[0], moved, clips[2]])
    assert main(command) == 0
    after = files(out)
    changed = [name for name in before if name.endswith(".flac") and before[name] != after[name]]
    assert sorted(changed) == ["audio/mine/train/clip 0.flac", "audio/mine/train/clip 1.flac"]
    assert read_manifest(out / "manifest.jsonl")[0].seconds == 1.0


def test_transcoding_a_file_with_one_sample_keeps_one_sample(tmp_path: Path) -> None:
    manifest, out = source(tmp_path, 2), tmp_path / "out"
    soundfile.write(tmp_path / "in/clip 0.wav", np.full(1, 0.25), 96_000)
    assert main(["transcode", str(manifest), "--rate", "8000", "--format", "flac", "--out", str(out)]) == 0
    assert read_audio(out / "audio/mine/train/clip 0.flac", 8000) == pytest.approx([0.25], abs=1e-4)


def test_transcode_refuses_an_invalid_bit_rate_without_creating_the_folder(tmp_path: Path) -> None:
    manifest, out = source(tmp_path, 1), tmp_path / "out"
    command = ["transcode", str(manifest), "--rate", "44100", "--out", str(out), "--bitrate"]
    assert main([*command, "40"]) == 1
    assert not out.exists()
    assert main([*command, "64"]) == 0


def test_transcode_on_a_full_disk_names_the_file(tmp_path: Path, root: Path) -> None:
    manifest = source(tmp_path, 2, 3.0)
    command = (
        f"ulimit -f 8; exec {sys.executable} -m data_tools transcode {manifest} --format flac --out {tmp_path}/out"
    )
    done = subprocess.run(["bash", "-c", command], cwd=root, capture_output=True, text=True)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "clip 0.flac" in done.stderr
