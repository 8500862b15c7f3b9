"""Speed of fingerprints as ratios measured in one run: `python -m pytest -m benchmark -s`. Nothing here fails."""

import json
import os
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import soundfile

from data_tools.audio.read import check_audio
from data_tools.leakage import fingerprint as module
from data_tools.leakage.fingerprint import Fingerprint, fingerprint, near_duplicates

pytestmark = pytest.mark.benchmark

TRAINING, TEST = 15_000, 2_000  # clips
PEAKS = 45  # a second, as ESC-10's
# Peaks lie so low that two sounds of T and U seconds have 0.023 T U pairs in common by chance, as ESC-10's have.
MEAN_BIN = 160


def invented(rng: np.random.Generator, seconds: float) -> Fingerprint:
    frames = np.sort(rng.integers(0, int(seconds * 50), int(PEAKS * seconds)))
    bins = np.minimum(module.LOWEST + rng.exponential(MEAN_BIN, len(frames)), module.HIGHEST - 1).astype(np.int64)
    return paired(*np.unique([frames, bins], axis=1))


def paired(frames: np.ndarray, bins: np.ndarray) -> Fingerprint:
    """Return fingerprints of random peaks. Their heights depend on bin and frame, so that a copy has the same pairs."""
    outstanding = ((bins * 7919 + frames * 104_729) % 1009).astype(float)
    return module._from_peaks(frames, bins, 1 + outstanding, outstanding)


def copied(rng: np.random.Generator, source: Fingerprint) -> Fingerprint:
    """Without its first fifth and one peak in five."""
    kept = (source.frames >= source.frames[-1] // 5) & (rng.random(len(source.frames)) < 0.8)
    return paired(source.frames[kept].astype(np.int64), source.bins[kept].astype(np.int64))


@pytest.mark.parametrize("seconds", [(5.0, 30.0)])
def test_speed_of_fingerprint_comparison_with_a_test_split_is_measured(seconds: tuple[float, float]) -> None:
    rng = np.random.default_rng(0)
    training, test = ([invented(rng, length) for length in rng.uniform(*seconds, n)] for n in (TRAINING, TEST))
    for number in range(100):
        test[3 * number] = copied(rng, training[7 * number])
    began = time.perf_counter()
    found = near_duplicates(test, training)
    taken = time.perf_counter() - began
    tracemalloc.start()
    near_duplicates(test, training[:3000])
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    sizes = [one.frames.nbytes + one.bins.nbytes + one.levels.nbytes + one.codes.nbytes for one in training + test]
    sample = test[:3]
    began = time.perf_counter()
    for one in sample:
        for other in training[:50]:
            near_duplicates([one], [other])
    pairwise = (time.perf_counter() - began) / (len(sample) * 50) * TRAINING * TEST
    hours = sum(int(one.frames[-1]) for one in training) / 50 / 3600
    print(
        f"\n{TRAINING} clips of {seconds[0]:.0f} to {seconds[1]:.0f} s ({hours:.0f} h) x {TEST}: {taken:.0f} s, "
        f"{most / 2**30:.2f} GiB in addition to {sum(sizes) / 2**30:.2f} GiB of fingerprints; "
        f"pair by pair {pairwise / 3600:.1f} h, ratio {pairwise / taken:.0f}; {len(found)} of 100 copies found"
    )
    assert {(match.first, match.second) for match in found} == {(3 * n, 7 * n) for n in range(100)}


def test_fingerprint_time_is_compared_with_decoding_time(tmp_path: Path) -> None:
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


_AUDIT = """
import json, sys, time
import numpy as np
from test_fingerprint_speed import copied, invented
from data_tools.leakage.audit import Fingerprints, audit
from data_tools.leakage.prints import StoredPrints
from data_tools.manifest import Clip
training, test = int(sys.argv[1]), int(sys.argv[2])
def peak():
    return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) / 2**20
def clip(split, number):
    name = f"{split}{number}.wav"
    settings = {"id": f"s/{split}/{name}", "file_name": name, "path": name, "source": "s", "split": split}
    return Clip(captions=[f"a sound, {'often' if number % 3 else number}"], seconds=10.0, **settings)
draws = np.random.default_rng(0)
clips, against = ([clip(split, n) for n in range(count)] for split, count in (("train", training), ("test", test)))
before, stored = peak(), StoredPrints()
for number, one in enumerate(clips):
    stored.store(one.id, invented(draws, 10.0))
for number, one in enumerate(against):
    source = stored[clips[7 * number].id] if number < 50 else None
    stored.store(one.id, copied(draws, source) if source else invented(draws, 10.0))
began, found = time.perf_counter(), audit(clips, against, None, Fingerprints(stored, {}))
sounds = [one for one in found if one.finding.startswith("near-duplicate")]
taken = time.perf_counter() - began
sizes = {"before": before, "peak": peak(), "disk": stored._file.seek(0, 2) / 2**30}
print(json.dumps({**sizes, "seconds": taken, "found": len(sounds)}))
"""


def test_memory_and_time_of_an_audit_of_100000_clips_are_measured(root: Path) -> None:
    """Memory of the records, and of a comparison; the fingerprints are on disk."""
    training, test = 100_000, 1_000
    paths = f"{root}:{root / 'tests/benchmarks'}"
    environment = os.environ | {"PYTHONPATH": paths}
    command = [sys.executable, "-c", _AUDIT, str(training), str(test)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    print(
        f"\n{training:,} clips of 10 s x {test:,}: {found['before']:.2f} GiB with their records, at most "
        f"{found['peak']:.2f} GiB; {found['disk']:.2f} GiB of fingerprints on the disk; compared in "
        f"{found['seconds']:.0f} s; {found['found']} of 50 copies found"
    )
    assert found["found"] == 50
