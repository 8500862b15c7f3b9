"""Excerpts of audio files: equal to the same part of the whole file, in all formats that data sets have."""

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import soundfile
from test_ffmpeg import needs_ffmpeg

from data_tools.audio.excerpts import Sound, read_excerpt, sound_of
from data_tools.audio.read import AudioError, audio_seconds, content_key, read_audio
from data_tools.audio.resampling import resampled_samples
from data_tools.documents.json_text import quick_sha256

RATE = 32_000
PLACES = 20
FORMATS = {
    "cbr.mp3": ["-c:a", "libmp3lame", "-b:a", "64k"],
    "cbr320.mp3": ["-c:a", "libmp3lame", "-b:a", "320k"],
    "joint.mp3": ["-c:a", "libmp3lame", "-b:a", "96k", "-joint_stereo", "1"],
    "few_bits.mp3": ["-c:a", "libmp3lame", "-b:a", "32k", "-ac", "1"],
    "vbr.mp3": ["-c:a", "libmp3lame", "-q:a", "5"],
    "no_table.mp3": ["-c:a", "libmp3lame", "-q:a", "4", "-write_xing", "0"],
    "vorbis.ogg": ["-c:a", "libvorbis", "-q:a", "2"],
    "opus.opus": ["-c:a", "libopus", "-b:a", "64k"],
    "speech.opus": ["-c:a", "libopus", "-b:a", "8k", "-ac", "1", "-application", "voip"],
    "aac.m4a": ["-c:a", "aac", "-b:a", "64k"],
}


def stereo(rate: int, seconds: float) -> np.ndarray:
    """A gliding tone and noise of changing level in two different channels."""
    draw, time = np.random.default_rng(rate), np.arange(int(rate * seconds)) / rate
    left = 0.2 * np.sin(2 * np.pi * (200 + 100 * np.sin(0.7 * time)) * time)
    left = left + 0.1 * draw.standard_normal(len(time)) * (0.5 + 0.5 * np.sin(3 * time))
    return np.stack([left, 0.7 * left + 0.03 * draw.standard_normal(len(time))], axis=1).astype(np.float32)


def largest_difference(path: Path, resampling: str = "soxr_hq", seconds: float = 2.0) -> float:
    """Between excerpts at PLACES places, with both ends, and the whole file read at once."""
    whole, sound = read_audio(path, RATE, resampling), sound_of(path)  # type: ignore[arg-type]
    assert sound.samples_at(RATE, resampling) == len(whole)  # type: ignore[arg-type]
    count = round(seconds * RATE)
    spare = len(whole) - count
    drawn = np.random.default_rng(1).integers(0, spare, PLACES - 5).tolist()
    worst = 0.0
    for first in (0, 1, 1152, spare - 1, spare, *drawn):
        part = read_excerpt(path, sound, RATE, first, count, resampling)  # type: ignore[arg-type]
        assert part.dtype == np.float32
        assert part.shape == (count,)
        worst = max(worst, float(np.abs(part - whole[first : first + count]).max()))
    return worst


ALL = [(name, rate) for name in FORMATS for rate in (22_050, 32_000, 44_100, 48_000)]
FEW = {
    ("speech.opus", 48_000),
    ("few_bits.mp3", 48_000),
    ("vbr.mp3", 44_100),
    ("no_table.mp3", 22_050),
    ("vorbis.ogg", 44_100),
}


@needs_ffmpeg
@pytest.mark.parametrize(
    ("name", "rate"), [one if one in FEW else pytest.param(*one, marks=pytest.mark.slow) for one in ALL]
)
def test_excerpts_of_lossy_files_match_the_same_sections_of_whole_files(name: str, rate: int, tmp_path: Path) -> None:
    wav, path = tmp_path / "sound.wav", tmp_path / name
    soundfile.write(wav, stereo(rate, 23.1), rate)
    subprocess.run(["ffmpeg", "-v", "error", "-i", wav, *FORMATS[name], path], check=True)
    assert largest_difference(path) < 1e-5


@pytest.mark.parametrize("rate", [22_050, 44_056, 96_000])
@pytest.mark.parametrize("suffix", [".wav", ".flac", ".aiff"])
def test_excerpts_of_lossless_files_match_the_same_sections_of_whole_files(
    suffix: str, rate: int, tmp_path: Path
) -> None:
    path = tmp_path / f"sound{suffix}"
    soundfile.write(path, stereo(rate, 6.1), rate)
    assert largest_difference(path) < 1e-5


@pytest.mark.parametrize("resampling", ["kaiser_best", "kaiser_best_0.2"])
def test_excerpts_resampled_with_resampy_filters_match_the_same_sections_of_whole_files(
    resampling: str, tmp_path: Path
) -> None:
    path = tmp_path / "sound.flac"
    soundfile.write(path, stereo(44_100, 12), 44_100)
    assert largest_difference(path, resampling) == 0, "even the clock of resampy 0.2 is continued"


def test_excerpts_of_real_recordings_match_the_same_sections_of_whole_files(shared: Path) -> None:
    paths = sorted((shared / "data/esc10/audio").glob("*.flac"))[:5]
    assert len(paths) == 5
    assert max(largest_difference(path, seconds=1.0) for path in paths) < 1e-5


@pytest.mark.parametrize(
    ("samples", "rate", "wanted", "how", "expected"),
    [
        (3, 44_100, 22_050, "soxr_hq", 2),
        (3, 44_100, 22_050, "kaiser_best", 1),
        (1, 96_000, 16_000, "soxr_hq", 1),
        (7, 32_000, 32_000, "soxr_hq", 7),
        (10, 44_100, 32_000, "soxr_hq", 7),
        (11, 44_100, 32_000, "soxr_hq", 8),
    ],
)
def test_stated_length_after_resampling_matches_hand_values(
    samples: int, rate: int, wanted: int, how: str, expected: int, tmp_path: Path
) -> None:
    assert resampled_samples(samples, rate, wanted, how) == expected  # type: ignore[arg-type]
    soundfile.write(tmp_path / "short.wav", np.full(samples, 0.1), rate)
    assert len(read_audio(tmp_path / "short.wav", wanted, how)) == expected  # type: ignore[arg-type]


def test_audio_file_changed_before_its_excerpt_is_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "sound.wav"
    soundfile.write(path, stereo(32_000, 2), 32_000)
    sound = sound_of(path)
    assert sound == Sound(64_000, 32_000, True)
    soundfile.write(path, stereo(32_000, 3), 32_000)
    with pytest.raises(AudioError, match=r"sound\.wav: changed while it was in use"):
        read_excerpt(path, sound, RATE, 0, 100)


@needs_ffmpeg
def test_cut_mp3_is_refused_when_opened_or_when_its_missing_end_is_read(tmp_path: Path) -> None:
    wav, path = tmp_path / "sound.wav", tmp_path / "sound.mp3"
    soundfile.write(wav, stereo(44_100, 20), 44_100)
    subprocess.run(["ffmpeg", "-v", "error", "-i", wav, "-b:a", "64k", path], check=True)
    sound, whole = sound_of(path), path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(AudioError, match=r"truncated, the header states .* frames"):
        sound_of(path)
    assert len(read_excerpt(path, sound, RATE, RATE, RATE)) == RATE, "the beginning is undamaged"
    with pytest.raises(AudioError, match="truncated"):
        read_excerpt(path, sound, RATE, 15 * RATE, RATE)


def test_excerpts_read_in_several_threads_are_the_same(tmp_path: Path) -> None:
    path = tmp_path / "sound.flac"
    soundfile.write(path, stereo(44_100, 20), 44_100)
    sound, places = sound_of(path), range(0, 15 * RATE, 9_999)
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda first: read_excerpt(path, sound, RATE, first, RATE), places))
    for first, part in zip(places, together, strict=True):
        assert np.array_equal(part, read_excerpt(path, sound, RATE, first, RATE))


def test_function_quick_sha256_hashes_the_start_and_the_end_and_the_size_of_a_file(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    content = draw.integers(0, 256, 300_000, np.uint8).tobytes()
    paths = {name: tmp_path / name for name in ("one", "same", "start", "end", "longer", "middle")}
    for path, data in zip(
        paths.values(),
        (
            content,
            content,
            b"x" + content[1:],
            content[:-1] + b"x",
            content + b"x",
            content[:150_000] + b"x" + content[150_001:],
        ),
        strict=True,
    ):
        path.write_bytes(data)
    found = {name: quick_sha256(path) for name, path in paths.items()}
    assert found["one"] == found["same"] == found["middle"] != content_key(paths["one"])
    assert len({found[name] for name in ("one", "start", "end", "longer")}) == 4


def test_function_quick_sha256_hashes_the_whole_file_if_the_start_and_the_end_are_silent(tmp_path: Path) -> None:
    for name, level in (("one", 1), ("other", 2)):
        wave = np.zeros(200_000, np.int16)
        wave[100_000] = level
        soundfile.write(tmp_path / f"{name}.wav", wave, 44_100)
    one, other = tmp_path / "one.wav", tmp_path / "other.wav"
    assert quick_sha256(one) == content_key(one)
    assert quick_sha256(one) != quick_sha256(other)


def test_excerpt_of_a_recording_of_18_hours_is_read(tmp_path: Path) -> None:
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
    assert sound.samples == samples
    assert audio_seconds(path) == 67_109
    part = read_excerpt(path, sound, 16_000, 60_000 * 16_000 + 4_000, 8_000)
    assert part == pytest.approx(np.full(8_000, 127 / 128), abs=1e-3)
    with pytest.raises(AudioError, match="but at most 268,435,456 samples"):
        read_audio(path, 16_000)


@needs_ffmpeg
def test_excerpts_of_mp3_files_of_low_bit_rate_print_no_decoder_errors(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    wav, path = tmp_path / "sound.wav", tmp_path / "sound.mp3"
    soundfile.write(wav, stereo(44_100, 20), 44_100)
    command = ["ffmpeg", "-v", "error", "-i", wav, *FORMATS["few_bits.mp3"], path]
    subprocess.run(command, check=True)
    path.write_bytes(b"ID3\x03\0\0" + bytes([0, 127, 127, 0]) + bytes(127 * 2**14 + 127 * 2**7) + path.read_bytes())
    sound = sound_of(path)
    assert sound.lead == sound.samples, "an ID3 tag is no audio"
    capfd.readouterr()
    for first in range(0, 15 * RATE, 40_000):
        read_excerpt(path, sound, RATE, first, RATE)
    assert capfd.readouterr().err == ""


def test_excerpt_of_a_file_shorter_than_one_resampled_sample_has_one_sample(tmp_path: Path) -> None:
    path = tmp_path / "click.wav"
    soundfile.write(path, np.full(1, 0.25), 96_000)
    assert read_excerpt(path, sound_of(path), 8_000, 0, 1) == pytest.approx(read_audio(path, 8_000))
