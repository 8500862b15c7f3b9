"""Crops of long files against reading whole files, in one run: `python -m pytest -m benchmark -s`."""

import os
import resource
import subprocess
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import soundfile
from timing import best_seconds

from data_tools.audio.excerpts import read_excerpt, sound_of

pytestmark = pytest.mark.benchmark

RATE, SECONDS = 32_000, 30
PLACES = 16


def long_file(folder: Path, channels: int) -> Path:
    """An MP3 of 120 s at 44.1 kHz and about 56 kbit/s per channel."""
    draw, time_ = np.random.default_rng(0), np.arange(120 * 44_100) / 44_100
    wave = 0.2 * np.sin(2 * np.pi * (300 + 100 * np.sin(time_)) * time_) + 0.05 * draw.standard_normal(len(time_))
    soundfile.write(folder / "long.wav", np.stack([wave] * channels, axis=1), 44_100)
    path = folder / f"long{channels}.mp3"
    bits = f"{56 * channels}k"
    subprocess.run(["ffmpeg", "-v", "error", "-i", folder / "long.wav", "-b:a", bits, path], check=True)
    return path


def crops(path: Path, pool: ThreadPoolExecutor | None = None) -> Callable[[], object]:
    """Return a function that reads PLACES crops from random places."""
    sound = sound_of(path)
    spare = sound.samples_at(RATE, "soxr_hq") - SECONDS * RATE
    places = np.random.default_rng(1).integers(0, spare, PLACES).tolist()

    def read(first: int) -> np.ndarray:
        """Read one crop."""
        return read_excerpt(path, sound, RATE, first, SECONDS * RATE)

    return lambda: list((pool.map if pool else map)(read, places))


@pytest.mark.parametrize("channels", [1, 2])
def test_excerpts_of_audio_files_are_read_faster_than_whole_files(channels: int, tmp_path: Path) -> None:
    warnings.simplefilter("ignore", DeprecationWarning)  # of librosa's imports
    librosa = pytest.importorskip("librosa")
    path = long_file(tmp_path, channels)
    command = ["ffmpeg", "-v", "error", "-i", path, "-ac", "1", "-ar", str(RATE), "-f", "f32le", "-"]
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        works = [
            crops(path),
            lambda: librosa.load(path, sr=RATE),
            lambda: librosa.load(path, sr=RATE, res_type="kaiser_best"),
            lambda: subprocess.run(command, capture_output=True, check=True),
        ]
        here, soxr, resampy, ffmpeg = best_seconds(works, 5)
    finally:
        os.sched_setaffinity(0, cores)
    each = here / PLACES
    with ThreadPoolExecutor(2) as pool:
        one, two = best_seconds([crops(path), crops(path, pool)], 5)
    print(
        f"\n{channels} channels: {1 / each:.0f} crops per second on one core; as many times as librosa.load "
        f"{soxr / each:.1f} (soxr_hq), {resampy / each:.1f} (kaiser_best), as ffmpeg {ffmpeg / each:.1f}; "
        f"two threads {one / two:.2f} times one"
    )


def test_memory_does_not_grow_while_ten_thousand_excerpts_of_a_file_are_read(tmp_path: Path) -> None:
    path = long_file(tmp_path, 1)
    sound = sound_of(path)
    draw, began, peaks = np.random.default_rng(2), time.perf_counter(), []
    for number in range(10_000):
        read_excerpt(path, sound, RATE, int(draw.integers(0, 110 * RATE)), RATE)
        if number in (499, 9_999):
            peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    print(f"\n10,000 crops in {time.perf_counter() - began:.0f} s, peak memory {peaks[0]:.0f} and {peaks[1]:.0f} MiB")
    assert peaks[1] < peaks[0] + 20
