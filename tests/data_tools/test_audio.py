"""Audio files: any format, rate and channel count; excerpts; broken files are refused."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import soundfile
from errors_of import largest
from formats import FORMATS, stereo, write_format

from data_tools.audio import (
    Sound,
    audio_seconds,
    encoded,
    read_audio,
    read_excerpt,
    readable_seconds,
    sound_of,
    sound_problem,
)
from data_tools.errors import AudioError

RATE = 16_000
TONE = (0.5 * np.sin(2 * np.pi * 440 * np.arange(RATE) / RATE)).astype(np.float32)


def excerpt_error(path: Path, draws: int) -> float:
    """Largest difference of random excerpts from the same parts of the whole file."""
    draw, sound, worst = np.random.default_rng(0), sound_of(path), 0.0
    for rate in (16_000, 32_000, 44_100):
        whole = read_audio(path, rate)
        assert len(whole) == sound.samples_at(rate, "soxr_hq")
        for _ in range(-(-draws // 3)):
            count = int(draw.integers(1, len(whole) // 3))
            first = int(draw.integers(0, len(whole) - count + 1))
            worst = max(worst, largest(read_excerpt(path, sound, rate, first, count), whole[first : first + count]))
        end = read_excerpt(path, sound, rate, len(whole) - 100, 100)
        worst = max(worst, largest(end, whole[-100:]))
    return worst


@pytest.mark.parametrize(
    ("rate", "seconds", "draws"), [(44_100, 6, 8), pytest.param(32_000, 30, 60, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", FORMATS)
def test_excerpts_equal_the_same_parts_of_the_whole_file(name, rate, seconds, draws, tmp_path):
    rate = 48_000 if name == "x.opus" else rate
    path = write_format(tmp_path / name, stereo(rate, seconds), rate)
    assert excerpt_error(path, draws) < 1e-6
    assert audio_seconds(path) == pytest.approx(seconds, abs=0.07 if seconds == 30 else 0.05)


def test_excerpts_of_real_recordings_equal_the_same_parts(shared):
    paths = sorted((shared / "data/esc10").rglob("*.flac"))[:4]
    assert len(paths) == 4
    assert max(excerpt_error(path, 9) for path in paths) < 1e-6


@pytest.mark.parametrize("resampling", ["kaiser_best", "kaiser_best_0.2"])
def test_excerpts_by_kaiser_filters_equal_the_same_parts(resampling, tmp_path):
    path = write_format(tmp_path / "x.flac", stereo(44_100, 4), 44_100)
    whole, sound = read_audio(path, 32_000, resampling), sound_of(path)
    assert len(whole) == sound.samples_at(32_000, resampling)
    for first in (0, 1, 20_001, 90_000):
        part = read_excerpt(path, sound, 32_000, first, 20_000, resampling)
        assert largest(part, whole[first : first + 20_000]) < 1e-6


def test_excerpts_read_in_several_threads_are_the_same(tmp_path):
    path = write_format(tmp_path / "variable.mp3", stereo(44_100, 10), 44_100)
    sound, firsts = sound_of(path), range(0, 140_000, 10_000)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda first: read_excerpt(path, sound, RATE, first, RATE), firsts))
    assert all(
        np.array_equal(one, read_excerpt(path, sound, RATE, at, RATE)) for one, at in zip(found, firsts, strict=True)
    )


def test_excerpt_of_a_file_that_became_shorter_is_refused(tmp_path):
    path = tmp_path / "x.wav"
    soundfile.write(path, TONE, RATE)
    sound = sound_of(path)
    soundfile.write(path, TONE[:8_000], RATE)
    with pytest.raises(AudioError):
        read_excerpt(path, sound, RATE, 0, RATE)


def test_excerpt_of_a_recording_of_18_hours_is_read(tmp_path):
    path, samples = tmp_path / "long.wav", 67_109 * 8_000
    soundfile.write(path, np.zeros(8), 8_000, subtype="PCM_U8")
    head = bytearray(path.read_bytes()[:44])
    head[4:8], head[40:44] = (36 + samples).to_bytes(4, "little"), samples.to_bytes(4, "little")
    with path.open("wb") as file:  # sparse: the disk holds little of it
        file.write(head)
        file.seek(44 + 60_000 * 8_000)
        file.write(bytes([255]) * 8_000)  # full scale for the second from 60,000 s on
        file.truncate(44 + samples)
    sound = sound_of(path)
    assert sound == Sound(samples, 8_000)
    part = read_excerpt(path, sound, 16_000, 60_000 * 16_000 + 4_000, 8_000)
    assert part.mean() == pytest.approx(127 / 128, abs=0.01)


@pytest.mark.parametrize(
    ("samples", "rate", "how", "expected"),
    [(3, 2, "soxr_hq", 2), (3, 2, "kaiser_best", 1), (5, 1, "soxr_hq", 1), (1, 3, "soxr_hq", 1), (7, 4, "soxr_hq", 7)],
)
def test_number_of_resampled_samples_matches_hand_values(samples, rate, how, expected):
    assert Sound(samples, 4).samples_at(rate, how) == expected


def test_file_is_read_unchanged_at_its_rate_and_as_mono_without_too_high_frequencies(tmp_path):
    soundfile.write(tmp_path / "x.wav", TONE, RATE, subtype="FLOAT")
    samples = read_audio(tmp_path / "x.wav", RATE)
    assert samples.dtype == np.float32
    np.testing.assert_array_equal(samples, TONE)
    assert audio_seconds(tmp_path / "x.wav") == 1.0
    assert sound_problem(tmp_path / "x.wav") is None
    np.testing.assert_array_equal(read_audio(tmp_path / "x.wav", RATE, seconds=0.25), TONE[:4_000])
    channels = np.stack([TONE, -TONE, TONE, TONE, *4 * [0 * TONE]], axis=1)
    soundfile.write(tmp_path / "eight.wav", channels, RATE, subtype="FLOAT")
    np.testing.assert_allclose(read_audio(tmp_path / "eight.wav", RATE), TONE / 4, atol=1e-7)
    soundfile.write(tmp_path / "high.wav", np.sin(2 * np.pi * 10_000 * np.arange(48_000) / 48_000), 48_000)
    assert np.abs(read_audio(tmp_path / "high.wav", RATE)[1000:-1000]).max() < 1e-3


@pytest.mark.parametrize("name", FORMATS)
def test_all_formats_are_read_as_mono_at_their_length(name, tmp_path):
    wave = stereo(48_000, 3)
    found = read_audio(write_format(tmp_path / name, wave, 48_000), 48_000)
    assert abs(len(found) - len(wave)) < 3_000, "AAC has no exact end"
    offset = {"x.m4a": 1024, "untagged.mp3": 1105}.get(name, 0)  # the delay of an encoder that no tag states
    expected = wave.mean(axis=1)[10_000:20_000]
    errors = [np.abs(found[10_000 + at : 20_000 + at] - expected).mean() for at in (0, offset)]
    assert min(errors) < 0.05, "lossy, but at its place"


@pytest.mark.parametrize("rate", [16_000, 32_000, 48_000])
def test_resampled_waves_match_those_of_librosa_and_resampy(goldens, tmp_path, rate):
    golden = np.load(goldens / "resample.npz")
    soundfile.write(tmp_path / "wave.wav", golden["wave_int16_44100"], 44_100, subtype="PCM_16")
    found = read_audio(tmp_path / "wave.wav", rate)
    expected = golden[f"librosa_soxr_hq_{rate}"]
    assert 0 <= len(expected) - len(found) <= 1  # librosa rounds the length up
    assert largest(found, expected[: len(found)]) < 1e-6
    kaiser = golden[f"resampy_kaiser_best_f64_{rate}"]
    assert largest(read_audio(tmp_path / "wave.wav", rate, "kaiser_best"), kaiser) < 1.2e-7, "float32 rounding"
    assert 4e-3 < largest(found, kaiser) < 1.7e-2
    assert 4e-3 < largest(read_audio(tmp_path / "wave.wav", rate, "kaiser_best_0.2"), kaiser) < 1.7e-2


@pytest.mark.parametrize("how", ["soxr_hq", "kaiser_best", "kaiser_best_0.2"])
def test_single_sample_is_read_at_any_rate(tmp_path, how):
    soundfile.write(tmp_path / "one.wav", np.array([0.5]), 44_100, subtype="FLOAT")
    assert read_audio(tmp_path / "one.wav", 16_000, how).tolist() == [0.5]
    assert read_audio(tmp_path / "one.wav", 44_100, how).tolist() == [0.5]


def broken(path: Path, kind: str) -> Path:
    """Make `path` a broken audio file of a kind."""
    if kind in ("nan", "inf", "1e30"):
        wave = TONE.copy()
        wave[9_999] = float(kind)
        soundfile.write(path, wave, RATE, subtype="FLOAT", format="WAV")
    elif kind == "no samples":
        soundfile.write(path, TONE[:0], RATE, format="WAV")
    elif kind == "page":
        path.write_text("<html>404 Not Found</html>" * 50)
    elif kind == "header":
        path.write_bytes(b"RIFF\x24\x7d\x00\x00WAVEfmt ")
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "folder":
        path.mkdir()
    return path


BROKEN = ("nan", "inf", "1e30", "no samples", "page", "header", "empty", "folder", "missing")


@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize("suffix", ["wav", "mp3"])
def test_broken_file_is_an_error_that_names_it(tmp_path, kind, suffix):
    path = broken(tmp_path / f"x.{suffix}", kind)
    for read in (lambda: read_audio(path, RATE), lambda: sound_problem(path)):
        with pytest.raises(AudioError, match=f"^{path}: "):
            read()
    if kind not in ("nan", "inf", "1e30"):
        assert readable_seconds(path) is None


@pytest.mark.parametrize("name", [name for name in FORMATS if name not in ("x.ogg", "x.opus", "untagged.mp3")])
@pytest.mark.parametrize("share", [0.1, 0.6, 0.97])
def test_cut_file_is_refused(name, share, tmp_path):
    path = write_format(tmp_path / name, stereo(48_000, 4), 48_000)
    os.truncate(path, round(share * path.stat().st_size))
    with pytest.raises(AudioError):
        read_audio(path, RATE)


@pytest.mark.parametrize("size", [0xFFFFFFFF, 0x7FFFFFFF, 0x7FFFF000])
def test_wav_of_a_program_that_writes_to_a_pipe_is_read_to_its_end(size, tmp_path):
    path = tmp_path / "x.wav"
    soundfile.write(path, TONE, RATE)
    data = bytearray(path.read_bytes())
    data[4:8] = data[40:44] = size.to_bytes(4, "little")
    path.write_bytes(data)
    assert len(read_audio(path, RATE)) == RATE


@pytest.mark.parametrize(
    ("wave", "word"),
    [
        (np.zeros(RATE), "silent"),
        (np.full(RATE, 0.25), "silent"),
        (np.stack([TONE, -TONE], 1), "silent"),
        (TONE[:100], "short"),
        (TONE / 1000, None),
    ],
)
def test_files_without_sound_are_told_apart(wave, word, tmp_path):
    soundfile.write(tmp_path / "x.wav", wave, RATE, subtype="FLOAT")
    found = sound_problem(tmp_path / "x.wav")
    assert found is None if word is None else word in str(found)


@pytest.mark.parametrize(("format", "subtype"), [("FLAC", "PCM_16"), ("OGG", "VORBIS"), ("MP3", "MPEG_LAYER_III")])
def test_encoded_wave_of_minutes_is_read_back(format, subtype, tmp_path):
    path = tmp_path / f"x.{format.lower()}"
    path.write_bytes(encoded(np.tile(TONE, 120), RATE, format, subtype))
    assert largest(read_audio(path, RATE)[:RATE], TONE) < (1e-4 if format == "FLAC" else 0.05)


def test_cut_wav_file_with_long_tags_is_refused(tmp_path):
    """libsndfile's note on what is in a file is full before it comes to the missing bytes."""
    path = tmp_path / "a.wav"
    soundfile.write(path, np.sin(np.arange(80_000) / 9), 16_000)
    head, rest = path.read_bytes()[:12], path.read_bytes()[12:]
    tags = b"INFO" + b"".join(b"ICMT" + (400).to_bytes(4, "little") + b"x" * 400 for _ in range(8))
    chunk = b"LIST" + len(tags).to_bytes(4, "little") + tags
    size = int.from_bytes(head[4:8], "little") + len(chunk)
    whole = b"RIFF" + size.to_bytes(4, "little") + b"WAVE" + chunk + rest
    path.write_bytes(whole)
    assert audio_seconds(path) == pytest.approx(5)
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(AudioError, match="cut"):
        audio_seconds(path)
