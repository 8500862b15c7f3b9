"""Audio files that would take hours or all memory are refused; real long ones are read."""

import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from data_tools.audio import read as audio
from data_tools.audio.read import AudioError, audio_seconds, check_audio, read_audio

RATE = 16_000


def claims(path: Path, samples: int, rate: int = RATE) -> Path:
    """Return a short FLAC file whose header states that many samples."""
    soundfile.write(path, np.zeros(4096), rate, format="FLAC")
    data = bytearray(path.read_bytes())
    data[21] = (data[21] & 0xF0) | samples >> 32  # STREAMINFO's 36-bit number of samples
    data[22:26] = struct.pack(">I", samples & 0xFFFFFFFF)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("head", [b"RIFF", b"RIFF\xff\xff\xff\xffWAVE", b"FORM\x7f\xff\xff\xffAIFF"])
@pytest.mark.parametrize("read", [check_audio, audio_seconds, lambda path: read_audio(path, RATE)])
def test_wav_or_aiff_without_a_sound_chunk_is_refused_after_1000_chunks(
    tmp_path: Path, head: bytes, read: object
) -> None:
    path = tmp_path / "x.wav"
    with path.open("wb") as file:
        file.write(head)
        file.truncate(2**34)  # a sparse file, which takes no disk space
    with pytest.raises(
        AudioError, match=r"x\.wav: no sound data in its first 1,000 chunks; copy or download the file again$"
    ):
        read(path)  # type: ignore[operator]


def test_wav_sound_after_many_chunks_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.wav"
    soundfile.write(path, np.full(100, 0.5), RATE, subtype="PCM_16")
    data = path.read_bytes()
    at = data.index(b"data")
    path.write_bytes(data[:at] + b"JUNK\x02\x00\x00\x00ab" * 500 + data[at:])
    assert read_audio(path, RATE).tolist() == [0.5] * 100
    path.write_bytes(data[:at] + b"JUNK\x02\x00\x00\x00ab" * 1000 + data[at:])
    with pytest.raises(AudioError, match="no sound data"):
        read_audio(path, RATE)


def test_short_file_whose_header_claims_gigabytes_is_refused(tmp_path: Path) -> None:
    words = (
        r"x\.flac: has 1,600,000,000 samples of 1 channel at 16,000 Hz, but "
        "at most 268,435,456 samples at 16,000 Hz can be read; cut the file into shorter ones$"
    )
    with pytest.raises(AudioError, match=words):
        read_audio(claims(tmp_path / "x.flac", 1_600_000_000), RATE)
    words = r"x\.flac: has 2,147,483,649 samples of 1 channel .*, more than 2,147,483,648 values"
    with pytest.raises(AudioError, match=words):
        read_audio(claims(tmp_path / "x.flac", 2**31 + 1), RATE)
    assert audio_seconds(claims(tmp_path / "x.flac", 2**31 + 1)) == (2**31 + 1) / RATE, "its excerpts can be read"
    with pytest.raises(AudioError, match="truncated, only 4096 of 2147483649 samples"):
        check_audio(claims(tmp_path / "x.flac", 2**31 + 1))
    with pytest.raises(AudioError, match=r"truncated|cannot be decoded"):  # the most, but it lies
        read_audio(claims(tmp_path / "x.flac", 2**28), RATE)
    with pytest.raises(AudioError, match="at most 268,435,456 samples at 32,000 Hz"):
        read_audio(claims(tmp_path / "x.flac", 2**28), 2 * RATE)


def test_audio_size_limit_counts_the_samples_of_all_channels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audio, "MAX_VALUES", 100)
    soundfile.write(tmp_path / "x.wav", np.ones((50, 2)), RATE, subtype="FLOAT")
    assert read_audio(tmp_path / "x.wav", RATE).tolist() == [1] * 50
    soundfile.write(tmp_path / "x.wav", np.ones((51, 2)), RATE, subtype="FLOAT")
    with pytest.raises(AudioError, match="51 samples of 2 channels at 16,000 Hz, more than 100 values"):
        read_audio(tmp_path / "x.wav", RATE)


def test_many_channels_are_averaged(tmp_path: Path) -> None:
    channels = np.linspace(-1, 1, 1024)
    soundfile.write(tmp_path / "x.wav", np.outer([0, 1, 0.5], channels**2), RATE, subtype="FLOAT")
    expected = np.array([0, 1, 0.5]) * (channels**2).mean()
    assert read_audio(tmp_path / "x.wav", RATE) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("rate", [1, 999, 768_001, 2_000_000_000])
def test_implausible_sample_rates_are_refused(tmp_path: Path, rate: int) -> None:
    soundfile.write(tmp_path / "x.wav", np.zeros(1000), rate)
    for read in (lambda path: read_audio(path, RATE), check_audio, audio_seconds):
        with pytest.raises(
            AudioError, match=rf"x\.wav: its sample rate is {rate:,} Hz, not 1,000 to 768,000 Hz; export"
        ):
            read(tmp_path / "x.wav")


@pytest.mark.parametrize("rate", [1_000, 768_000])
def test_lowest_and_highest_sample_rates_are_read(tmp_path: Path, rate: int) -> None:
    soundfile.write(tmp_path / "x.wav", np.zeros(rate), rate)
    assert read_audio(tmp_path / "x.wav", RATE).shape == (RATE,)


def test_implausible_sample_values_are_refused(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "x.wav", np.array([0, -(2.0**32), 0]), RATE, subtype="DOUBLE")
    assert read_audio(tmp_path / "x.wav", RATE).tolist() == [0, -(2.0**32), 0]
    soundfile.write(tmp_path / "x.wav", np.array([0, -1e30, 0]), RATE, subtype="DOUBLE")
    with pytest.raises(
        AudioError, match=r"x\.wav: has samples of 1e\+30 times full scale, too large; export the file again$"
    ):
        read_audio(tmp_path / "x.wav", RATE)


@pytest.mark.parametrize("block", [1, 6, 7, 1000])
def test_audio_read_in_blocks_has_the_same_samples_for_every_block_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    wave = np.random.default_rng(0).normal(0, 0.1, (500, 3)).astype(np.float32)
    soundfile.write(tmp_path / "x.wav", wave, RATE, subtype="FLOAT")
    whole = read_audio(tmp_path / "x.wav", 22_050)
    monkeypatch.setattr(audio, "_BLOCK", block)
    assert np.array_equal(read_audio(tmp_path / "x.wav", RATE), wave.mean(1))
    assert np.array_equal(read_audio(tmp_path / "x.wav", 22_050), whole)
    wave[499, 2] = np.nan
    soundfile.write(tmp_path / "x.wav", wave, RATE, subtype="FLOAT")
    for read in (check_audio, lambda path: read_audio(path, RATE)):
        with pytest.raises(AudioError, match="has NaN or infinite samples"):
            read(tmp_path / "x.wav")


def test_audio_after_the_requested_seconds_is_not_read(tmp_path: Path) -> None:
    """The rest of the file is not read."""
    wave = np.arange(3 * RATE, dtype=np.float32) / 1e5
    wave[-1] = np.nan
    soundfile.write(tmp_path / "x.wav", wave, RATE, subtype="FLOAT")
    assert np.array_equal(read_audio(tmp_path / "x.wav", RATE, seconds=2), wave[: 2 * RATE])
    assert read_audio(tmp_path / "x.wav", 8_000, seconds=2).shape == (RATE,)
    with pytest.raises(AudioError, match="has NaN"):
        read_audio(tmp_path / "x.wav", RATE, seconds=9)
    assert read_audio(claims(tmp_path / "x.flac", 2**30), RATE, seconds=0.25).shape == (4000,)


@pytest.mark.slow
@pytest.mark.parametrize("resampling", ["soxr_hq", "kaiser_best"])
def test_hour_of_stereo_is_read_in_little_memory(tmp_path: Path, resampling: str) -> None:
    """48 kHz to 16 kHz: 220 MiB of samples; all of it, stereo at once, took 2.2 GiB."""
    minute = np.zeros((60 * 48_000, 2), np.float32)
    minute[:48_000] = 0.1 * np.sin(np.arange(48_000) * 0.05)[:, None]
    with soundfile.SoundFile(tmp_path / "hour.flac", "w", 48_000, 2, "PCM_16") as file:
        for _ in range(60):
            file.write(minute)
    code = f"""
import re
from data_tools.audio.read import read_audio
wave = read_audio({str(tmp_path / "hour.flac")!r}, 16_000, {resampling!r})
assert wave.shape == (3600 * 16_000,) and abs(wave[100:15_000]).max() > 0.09 and not wave[20_000:900_000].any()
print(re.search(r"VmHWM:\\s+([0-9]+) kB", open("/proc/self/status").read())[1])  # ru_maxrss would count the parent
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 600 * 1024
