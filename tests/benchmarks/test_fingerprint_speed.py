"""Speed of fingerprints as ratios measured in one run: `python -m pytest -m benchmark -s`. Nothing here fails."""

import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import soundfile

from data_tools.audio import check_audio
from data_tools.leakage.fingerprint import Fingerprint, fingerprint, near_duplicates

pytestmark = pytest.mark.benchmark

TRAINING, TEST = 15_000, 2_000  # clips
COMMON = 0.72  # how often a bit has its usual value: two frames then agree by chance as often as ESC-10's do


def prints(rng: np.random.Generator, clips: int, seconds: tuple[float, float]) -> list[Fingerprint]:
    made = []
    for length in rng.uniform(*seconds, clips):
        frames = int(length * 50)
        bits = np.packbits(rng.random((frames, 32), np.float32) < COMMON, axis=1).view(np.uint32)[:, 0]
        places = rng.integers(0, 8, (4, frames), dtype=np.uint32) + np.uint32([[0], [8], [16], [24]])
        made.append(Fingerprint(bits, np.bitwise_or.reduce(np.uint32(1) << places, axis=0)))
    return made


@pytest.mark.parametrize("seconds", [(5.0, 30.0), (1.0, 120.0)])
def test_training_data_against_a_test_split(seconds: tuple[float, float]) -> None:
    rng = np.random.default_rng(0)
    training, test = prints(rng, TRAINING, seconds), prints(rng, TEST, seconds)
    for number in range(100):  # one in ten bits wrong, without the first fifth
        source = training[7 * number]
        start = len(source.bits) // 5
        wrong = np.packbits(rng.random((len(source.bits) - start, 32)) < 0.1, axis=1).view(np.uint32)[:, 0]
        test[3 * number] = Fingerprint(source.bits[start:] ^ wrong, source.weak[start:])
    tracemalloc.start()
    began = time.perf_counter()
    found = near_duplicates(test, training)
    taken, most = time.perf_counter() - began, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    held = sum(one.bits.nbytes + one.weak.nbytes for one in training + test)
    sample = test[:3]
    began = time.perf_counter()
    for one in sample:
        for other in training[:300]:
            near_duplicates([one], [other])
    pairwise = (time.perf_counter() - began) / (len(sample) * 300) * TRAINING * TEST
    hours = sum(len(one.bits) for one in training) / 50 / 3600
    print(
        f"\n{TRAINING} clips of {seconds[0]:.0f} to {seconds[1]:.0f} s ({hours:.0f} h) x {TEST}: {taken:.0f} s, "
        f"{most / 2**30:.2f} GiB beside {held / 2**30:.2f} GiB of fingerprints; pair by pair {pairwise / 3600:.1f} h, "
        f"ratio {pairwise / taken:.0f}; {len(found)} of 100 copies found"
    )
    assert {(match.first, match.second) for match in found} == {(3 * n, 7 * n) for n in range(100)}


def test_a_fingerprint_against_decoding(tmp_path: Path) -> None:
    wave = np.random.default_rng(0).normal(0, 0.1, (44_100 * 30, 2)).astype(np.float32)
    for name in ("x.wav", "x.flac", "x.mp3"):
        soundfile.write(tmp_path / name, wave, 44_100)
        taken = []
        for work in (fingerprint, check_audio):
            work(tmp_path / name)
            began = time.perf_counter()
            work(tmp_path / name)
            taken.append(time.perf_counter() - began)
        print(f"\n30 s of 44.1 kHz stereo, {name}: {taken[0]:.3f} s, decoding alone {taken[1]:.3f} s")
