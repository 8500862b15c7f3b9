"""Decoding in one and in two processes, and in threads: `python -m pytest -m benchmark -s`. The ratio is that of a
whole `build_features`, start of the processes included, for long FLAC files that are brought from 48 to 16 kHz."""

import time
from pathlib import Path

import numpy as np
import pytest
import soundfile

from data_tools.manifest import Clip, audio_clip
from system.experts.waveform import Waveform
from system.features.build import build_features

pytestmark = pytest.mark.benchmark

RATE, SECONDS, CLIPS = 48_000, 120, 40


def _clips(folder: Path) -> list[Clip]:
    random = np.random.default_rng(0)
    sound = random.normal(0, 0.1, (SECONDS * RATE, 2))
    names = [f"{number}.flac" for number in range(CLIPS)]
    for number, name in enumerate(names):
        soundfile.write(folder / name, np.roll(sound, number), RATE)
    return [audio_clip(folder, name, "noise", "development", [], SECONDS) for name in names]


def test_two_decoding_processes_are_1_7_times_as_fast_as_one(tmp_path: Path) -> None:
    clips, expert = _clips(tmp_path), Waveform(kind="waveform", sample_rate=16_000, resampling="kaiser_best")

    def seconds(workers: int | None, number: int) -> float:
        began = time.perf_counter()
        build_features(clips, {"wave": expert}, tmp_path / f"banks {workers} {number}", workers=workers)
        return time.perf_counter() - began

    taken = [[seconds(workers, number) for workers in (None, 1, 2)] for number in range(2)]  # in turn
    threads, one, two = map(min, zip(*taken, strict=True))
    hours = CLIPS * SECONDS / 3600
    print(f"\n{hours:.1f} h of FLAC: 1 worker {one:.1f} s, 2 workers {two:.1f} s, ratio {one / two:.2f}", end="")
    print(f"; threads {threads:.1f} s, ratio {one / threads:.2f}")
    assert one / two > 1.7
