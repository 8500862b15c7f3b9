"""Crops per second by format: libsndfile, PyAV, and librosa reading the whole file, in one run.

`python -m pytest -m benchmark -s tests/benchmarks/test_excerpt_speed.py`
"""

import warnings

import numpy as np
import pytest
from formats import FORMATS, stereo, write_format
from timing import best_seconds

from data_tools import audio

pytestmark = pytest.mark.benchmark

RATE, SECONDS, LENGTH, CROPS = 32_000, 10, 120, 8


@pytest.mark.parametrize("name", FORMATS)
def test_the_chosen_reader_is_not_much_slower_than_the_other(name, tmp_path, monkeypatch):
    warnings.simplefilter("ignore", DeprecationWarning)  # of librosa's imports
    librosa = pytest.importorskip("librosa")
    path = write_format(tmp_path / name, stereo(48_000, LENGTH), 48_000)
    sound, chosen = audio.sound_of(path), audio._by_soundfile(path)
    firsts = np.random.default_rng(1).integers(0, (LENGTH - SECONDS - 1) * RATE, CROPS).tolist()

    def by(is_soundfile: bool) -> float:
        """Crops per second."""
        monkeypatch.setattr(audio, "_by_soundfile", lambda _: is_soundfile)
        crops = [lambda: [audio.read_excerpt(path, sound, RATE, first, SECONDS * RATE) for first in firsts]]
        return CROPS / best_seconds(crops, 3)[0]

    reads = name not in ("x.m4a", "untagged.mp3")  # it has no AAC, and no length of MP3 that states none
    speed = {"libsndfile": by(True) if reads else 0.0, "PyAV": by(False)}
    if reads:  # librosa reads by it
        speed["librosa, whole file"] = 2 / best_seconds([lambda: [librosa.load(path, sr=RATE) for _ in "ab"]], 3)[0]
    print(f"\n{name}: crops of {SECONDS} s per second:", *(f"{key} {value:.1f}" for key, value in speed.items()))
    mine = speed["libsndfile" if chosen else "PyAV"]
    assert mine > 2 * speed.get("librosa, whole file", 0.0)
    if not name.endswith(".mp3"):  # libsndfile's positions in MP3 are not exact
        assert mine > 0.7 * max(speed["libsndfile"], speed["PyAV"])
