"""Audio files: any rate and channel count is read, broken files are refused."""

import struct
from pathlib import Path

import numpy as np
import pytest
import soundfile

from data_tools.audio.read import PEAK_SAMPLES, AudioError, audio_seconds, check_audio, content_key, peaks, read_audio

RATE = 16_000
TONE = (0.5 * np.sin(2 * np.pi * 440 * np.arange(RATE) / RATE)).astype(np.float32)


@pytest.fixture
def wav(tmp_path: Path) -> Path:
    path = tmp_path / "tone.wav"
    soundfile.write(path, TONE, RATE, subtype="FLOAT")
    return path


def test_mono_file_at_the_requested_rate_is_read_unchanged(wav: Path) -> None:
    samples = read_audio(wav, RATE)
    assert samples.dtype == np.float32
    np.testing.assert_array_equal(samples, TONE)
    assert audio_seconds(wav) == 1.0
    check_audio(wav)


def test_peaks_of_equal_time_spans_of_a_waveform_are_the_maxima_over_all_channels(tmp_path: Path) -> None:
    """The peak is the maximum over channels; of a long part only the beginning is read, in any format."""
    short = np.stack([[0, 0.5, 0, 0, 0.1], [-0.25, 0, 0, -1, 0]], axis=1)
    soundfile.write(tmp_path / "a.wav", short, RATE, subtype="FLOAT")
    assert peaks(tmp_path / "a.wav", 2).tolist() == pytest.approx([0.5, 1])
    assert peaks(tmp_path / "a.wav", 7).tolist() == pytest.approx([0, 0.25, 0.5, 0, 0, 1, 0.1])
    length = 3 * PEAK_SAMPLES
    wave = np.zeros(4 * length, np.float32)
    wave[length + PEAK_SAMPLES - 1], wave[2 * length + PEAK_SAMPLES] = 0.5, 0.9
    for name in ("b.wav", "b.flac"):
        soundfile.write(tmp_path / name, wave, RATE)
        assert peaks(tmp_path / name, 4).tolist() == pytest.approx([0, 0.5, 0, 0], abs=1e-3)
    soundfile.write(tmp_path / "nan.wav", np.array([0, np.nan]), RATE, subtype="FLOAT")
    with pytest.raises(AudioError, match="NaN or infinite samples"):
        peaks(tmp_path / "nan.wav", 2)


def test_stereo_channels_are_averaged_to_mono(tmp_path: Path) -> None:
    channels = np.stack([TONE, -TONE, TONE, TONE, 0 * TONE, 0 * TONE, 0 * TONE, 0 * TONE], axis=1)
    soundfile.write(tmp_path / "eight.wav", channels, RATE, subtype="FLOAT")
    np.testing.assert_allclose(read_audio(tmp_path / "eight.wav", RATE), TONE / 4, atol=1e-7)


@pytest.mark.parametrize("rate", [8_000, 22_050, 44_100, 192_000])
def test_file_of_another_rate_is_resampled_to_the_requested_rate(tmp_path: Path, rate: int) -> None:
    tone = 0.5 * np.sin(2 * np.pi * 440 * np.arange(rate) / rate)
    soundfile.write(tmp_path / "x.wav", tone, rate, subtype="FLOAT")
    samples = read_audio(tmp_path / "x.wav", RATE)
    assert samples.shape == (RATE,)
    assert samples.dtype == np.float32
    np.testing.assert_allclose(samples[2000:-2000], TONE[2000:-2000], atol=2e-3)


def test_frequencies_above_the_new_nyquist_rate_are_removed(tmp_path: Path) -> None:
    tone = np.sin(2 * np.pi * 10_000 * np.arange(48_000) / 48_000)
    soundfile.write(tmp_path / "x.wav", tone, 48_000, subtype="FLOAT")
    assert np.abs(read_audio(tmp_path / "x.wav", RATE)[1000:-1000]).max() < 1e-3


@pytest.mark.parametrize("rate", [8_000, 16_000, 192_000])
def test_audio_file_with_a_single_sample_is_read(tmp_path: Path, rate: int) -> None:
    soundfile.write(tmp_path / "x.wav", np.array([0.5], np.float32), rate, subtype="FLOAT")
    samples = read_audio(tmp_path / "x.wav", RATE)
    assert len(samples) == max(1, RATE // rate)
    assert samples.dtype == np.float32
    assert audio_seconds(tmp_path / "x.wav") == 1 / rate


@pytest.mark.parametrize("suffix", ["flac", "ogg", "mp3", "aiff"])
def test_flac_ogg_and_other_formats_are_read(tmp_path: Path, suffix: str) -> None:
    soundfile.write(tmp_path / f"x.{suffix}", TONE, RATE)
    assert read_audio(tmp_path / f"x.{suffix}", RATE).shape == TONE.shape
    assert audio_seconds(tmp_path / f"x.{suffix}") == 1.0


def broken(path: Path, kind: str) -> None:
    """Make path a broken audio file of a kind."""
    with_nan = TONE.copy()
    with_nan[99] = np.inf if kind == "infinite" else np.nan
    if kind in ("nan", "infinite"):
        soundfile.write(path, with_nan, RATE, subtype="FLOAT", format="WAV")
    elif kind == "no samples":
        soundfile.write(path, TONE[:0], RATE, format="WAV")
    elif kind == "zero bytes":
        path.write_bytes(b"")
    elif kind == "text":
        path.write_text("<html>404 Not Found</html>" * 50)
    elif kind == "header only":
        path.write_bytes(b"RIFF\x24\x7d\x00\x00WAVEfmt ")
    else:
        container = kind.removeprefix("half of a ")
        soundfile.write(path, TONE, RATE, format=container)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("zero bytes", r"the file is empty \(0 bytes\)"),
        ("no samples", "contains no samples"),
        ("text", "cannot be decoded"),
        ("header only", "cannot be decoded"),
        ("half of a WAV", "truncated, the header states 32000 bytes of sound, but only 15978 are present"),
        ("half of a AIFF", "truncated, the header states"),
        ("half of a FLAC", "truncated|cannot be decoded"),
        ("half of a MP3", "truncated"),
        ("nan", "has NaN or infinite samples"),
        ("infinite", "has NaN or infinite samples"),
    ],
)
def test_broken_audio_is_refused(tmp_path: Path, kind: str, message: str) -> None:
    path = tmp_path / "x.audio"
    broken(path, kind)
    for read in (lambda: read_audio(path, RATE), lambda: check_audio(path)):
        with pytest.raises(AudioError, match=message) as caught:
            read()
        assert str(caught.value).startswith(f"{path}: ")
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["zero bytes", "no samples", "text", "header only", "half of a WAV"])
def test_broken_audio_file_is_refused_when_its_duration_is_read(tmp_path: Path, kind: str) -> None:
    broken(tmp_path / "x.wav", kind)
    with pytest.raises(AudioError):
        audio_seconds(tmp_path / "x.wav")


def test_missing_audio_files_and_folders_are_refused(tmp_path: Path) -> None:
    for read in (lambda path: read_audio(path, RATE), audio_seconds, check_audio, content_key):
        with pytest.raises(AudioError, match="no such file"):
            read(tmp_path / "none.wav")
        with pytest.raises(AudioError, match="no such file"):
            read(tmp_path)


@pytest.mark.parametrize("size", [0x7FFFFFFF, 0xFFFFFFFF])
def test_streamed_wav_without_size_is_read_to_its_end(wav: Path, size: int) -> None:
    data = bytearray(wav.read_bytes())
    at = data.index(b"data") + 4
    data[at : at + 4] = struct.pack("<I", size)
    wav.write_bytes(data)
    np.testing.assert_array_equal(read_audio(wav, RATE), TONE)


def test_wav_with_unusual_chunks_around_the_sound_is_read(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "x.wav", TONE, RATE, subtype="PCM_16")
    data = (tmp_path / "x.wav").read_bytes()
    at = data.index(b"data")
    odd = b"note" + struct.pack("<I", 3) + b"abc\0"
    (tmp_path / "y.wav").write_bytes(data[:at] + odd + data[at:] + odd)
    np.testing.assert_array_equal(read_audio(tmp_path / "y.wav", RATE), read_audio(tmp_path / "x.wav", RATE))
    (tmp_path / "y.wav").write_bytes(data[:at] + odd + data[at:-100])
    with pytest.raises(AudioError, match="truncated"):
        read_audio(tmp_path / "y.wav", RATE)


def test_content_key_is_the_sha256_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert content_key(tmp_path / "a") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
