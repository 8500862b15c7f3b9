"""Formats that libsndfile does not know: decoded by ffmpeg if it is installed, else refused."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import soundfile

from data_tools.audio.read import FFMPEG_SUFFIXES, AudioError, audio_seconds, read_audio
from data_tools.datasets.blind import read_blind

needs_ffmpeg = pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="needs the program ffmpeg")


def encoded(folder: Path, name: str, seconds: float = 2.0) -> tuple[Path, np.ndarray]:
    wave = 0.3 * np.sin(2 * np.pi * 440 * np.arange(round(seconds * 44_100)) / 44_100)
    soundfile.write(folder / "tone.flac", wave, 44_100)
    path = folder / name
    subprocess.run(["ffmpeg", "-v", "error", "-y", "-i", str(folder / "tone.flac"), str(path)], check=True)
    return path, wave


@needs_ffmpeg
@pytest.mark.parametrize("name", ["t.m4a", "T.M4A", "t.wma", "t.mp4", "t.mka", "-t.m4a"])
def test_tone_is_decoded_by_ffmpeg(tmp_path: Path, name: str) -> None:
    path, wave = encoded(tmp_path, name) if not name.startswith("-") else encoded(tmp_path, "x.m4a")
    if name.startswith("-"):
        path = path.rename(tmp_path / name)
    found = read_audio(path, 44_100)
    assert found.dtype == np.float32
    assert abs(len(found) - len(wave)) < 5_000, "an encoder's delay"
    middle = found[20_000:60_000]
    spectrum = np.abs(np.fft.rfft(middle * np.hanning(len(middle))))
    assert spectrum.argmax() * 44_100 / len(middle) == pytest.approx(440, abs=2)
    assert middle.std() == pytest.approx(0.3 / 2**0.5, rel=0.05)
    assert audio_seconds(path) == pytest.approx(2.0, abs=0.12)


@needs_ffmpeg
def test_damaged_file_for_ffmpeg_is_refused(tmp_path: Path) -> None:
    path, _ = encoded(tmp_path, "t.m4a")
    data = path.read_bytes()
    for damaged in (data[: len(data) // 2], b"x" * 1000):
        path.write_bytes(damaged)
        with pytest.raises(AudioError, match=r"t\.m4a: cannot be decoded by ffmpeg \(.+\); copy it again, or convert"):
            read_audio(path, 16_000)


@needs_ffmpeg
def test_playlist_given_as_audio_opens_no_other_files(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "secret.wav", np.zeros(1000), 16_000)
    playlist = f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{tmp_path / 'secret.wav'}\n#EXT-X-ENDLIST\n"
    (tmp_path / "t.m4a").write_text(playlist)
    with pytest.raises(AudioError, match="cannot be decoded by ffmpeg"):
        read_audio(tmp_path / "t.m4a", 16_000)


def test_missing_ffmpeg_is_reported_with_install_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for suffix in FFMPEG_SUFFIXES:
        (tmp_path / f"t{suffix}").write_bytes(b"x")
        with pytest.raises(AudioError, match=r"this format needs the program ffmpeg, which is not installed; install"):
            audio_seconds(tmp_path / f"t{suffix}")
    clips, unreadable = read_blind(tmp_path, "x")
    assert len(clips) == unreadable == len(FFMPEG_SUFFIXES), "they are counted"
