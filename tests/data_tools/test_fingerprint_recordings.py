"""Fingerprints of real recordings: ESC-10, altered, under noise, and each against all others.

The constants in fingerprint.py were chosen on recordings with even Freesound ids; the others are held out.
"""

import io
from collections.abc import Callable, Sequence
from multiprocessing.pool import ThreadPool
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr
from data_files import rows
from sounds import RATE, Wave, with_noise

from data_tools.audio import read_audio
from data_tools.leakage.fingerprint import Fingerprint, Match, fingerprint, near_duplicates

HALF = 10 ** (-6 / 20)
UPLOADED_TWICE = {
    ("2-28314-A-12.flac", "2-30322-A-12.flac"),  # FireBurning.wav and FireBurning_v2.wav of one uploader
    ("2-28314-B-12.flac", "2-30322-B-12.flac"),
    ("3-151080-A-20.flac", "5-151085-A-20.flac"),  # 01 baby crying hard and long.wav, 01 baby crying hard.wav
}
FEW = range(0, 400, 40)
UPLOADED_TWICE_OF_FEW = {("3-151080-A-20.flac", "5-151085-A-20.flac")}


def coded(wave: Wave, rate: int = RATE, kind: str = "MP3") -> tuple[Wave, int]:
    """Return the wave after encoding and decoding."""
    data = io.BytesIO()
    soundfile.write(data, wave, rate, format=kind)
    data.seek(0)
    return soundfile.read(data, dtype="float32")


def resampled(wave: Wave, rate: int, channels: int = 1) -> tuple[Wave, int]:
    stereo = np.stack([wave, 0.5 * wave], axis=1)[:, :channels]
    return coded(soxr.resample(stereo, RATE, rate), rate)


# Each of a number, which seeds its noise, and a wave.
CHANGES: dict[str, Callable[[int, Wave], tuple[Wave, int]]] = {
    "MP3, 1 s off the end, -6 dB": lambda n, x: coded(HALF * x[:-RATE]),
    "MP3, 1 s off the start, -6 dB": lambda n, x: coded(HALF * x[RATE:]),
    "MP3, 0.37 s off the start": lambda n, x: coded(x[int(0.37 * RATE) :]),
    "Ogg, 1 s off the end, +3 dB": lambda n, x: coded(1.41 * x[:-RATE] / 2, kind="OGG"),
    "44.1 kHz stereo MP3": lambda n, x: resampled(HALF * x[:-RATE], 44_100, 2),
    "48 kHz MP3": lambda n, x: resampled(HALF * x[:-RATE], 48_000),
    "MP3 of an MP3": lambda n, x: coded(coded(HALF * x[:-RATE])[0][1000:]),
    "upside down": lambda n, x: (-x, RATE),
    "white noise, 20 dB": lambda n, x: (with_noise(x, 20, n), RATE),
    "white noise, 10 dB": lambda n, x: (with_noise(x, 10, n), RATE),
    "pink noise, 10 dB": lambda n, x: (with_noise(x, 10, n, 3.0), RATE),
    "white noise, 20 dB, 0.37 s off the start, MP3": lambda n, x: coded(with_noise(x, 20, n)[int(0.37 * RATE) :]),
    "white noise, 10 dB, 0.37 s off the start, MP3": lambda n, x: coded(with_noise(x, 10, n)[int(0.37 * RATE) :]),
}
# Minimum number found of 400; 398 for all other changes. Many barks and sneezes end in the first second. The rest is
# hardly louder than silence, with few chosen peaks in the original.
LEAST = {
    "MP3, 1 s off the start, -6 dB": 380,
    "white noise, 20 dB, 0.37 s off the start, MP3": 394,
    "white noise, 10 dB, 0.37 s off the start, MP3": 385,
}


class Recordings:
    """Recordings of ESC-10 and their fingerprints."""

    def __init__(self, shared: Path, numbers: Sequence[int]) -> None:
        table = rows(shared / "data/esc10/esc10.csv")
        self.names = [table[number]["file_name"] for number in numbers]
        self.ids = [int(table[number]["freesound_id"]) for number in numbers]
        self.paths = [shared / "data/esc10/audio" / name for name in self.names]
        with ThreadPool(2) as pool:
            self.prints = {n: one for n, one in enumerate(pool.map(fingerprint, self.paths)) if one is not None}

    def matches(self, others: dict[int, Fingerprint]) -> list[Match]:
        """Return the matches, by position of the recording here and number of the other."""
        found = near_duplicates(list(self.prints.values()), list(others.values()))
        positions, numbers = list(self.prints), list(others)
        return [match._replace(first=positions[match.first], second=numbers[match.second]) for match in found]

    def found(self, folder: Path, change: str) -> tuple[set[int], set[tuple[str, str]]]:
        """Return the recordings whose altered copies are found, and copies matched with other Freesound ids."""

        def copy(number: int) -> Fingerprint | None:
            path = folder / f"{number}.wav"
            soundfile.write(path, *CHANGES[change](number, soundfile.read(self.paths[number], dtype="float32")[0]))
            return fingerprint(path)

        numbers = range(len(self.paths))
        with ThreadPool(2) as pool:
            copies = {n: one for n, one in zip(numbers, pool.map(copy, numbers), strict=True) if one is not None}
        matches = self.matches(copies)
        wrong = {self.named(m) for m in matches if self.ids[m.first] != self.ids[m.second]}
        return {m.first for m in matches if m.first == m.second}, wrong

    def named(self, match: Match) -> tuple[str, str]:
        first, second = sorted((self.names[match.first], self.names[match.second]))
        return first, second


@pytest.fixture(scope="module")
def few(shared: Path) -> Recordings:
    return Recordings(shared, FEW)


@pytest.fixture(scope="module")
def esc10(shared: Path) -> Recordings:
    return Recordings(shared, range(400))


@pytest.mark.parametrize("change", ["MP3, 1 s off the end, -6 dB", "white noise, 10 dB, 0.37 s off the start, MP3"])
def test_ten_altered_copies_of_recordings_match_their_originals(few: Recordings, tmp_path: Path, change: str) -> None:
    assert few.found(tmp_path, change) == (set(range(10)), UPLOADED_TWICE_OF_FEW)


def test_fingerprint_matches_are_the_same_in_either_order_of_two_recordings(few: Recordings) -> None:
    assert all(one.sure for one in few.prints.values())
    prints = list(few.prints.values())
    there, back = near_duplicates(prints[:6], prints), near_duplicates(prints, prints[:6])
    assert [(m.first, m.second) for m in there] == [*((n, n) for n in range(6)), (5, 8)]
    turned = sorted((m.second, m.first, -m.offset, m.score) for m in back)
    assert turned == [(m.first, m.second, m.offset, pytest.approx(m.score)) for m in there]


@pytest.mark.slow
def test_recordings_with_different_freesound_ids_do_not_match(esc10: Recordings) -> None:
    matches = [match for match in esc10.matches(esc10.prints) if match.first < match.second]
    same_id = [match for match in matches if esc10.ids[match.first] == esc10.ids[match.second]]
    others = {esc10.named(match): match for match in matches if match not in same_id}
    unsure = [esc10.names[n] for n, one in esc10.prints.items() if not one.sure]
    print(f"\n{len(esc10.prints)} of 400 have a fingerprint, unsure {unsure}; found alike: {sorted(others)}")
    assert len(esc10.prints) >= 398
    assert len(unsure) <= 4
    assert same_id == []  # takes of one recording are cut from different parts of it: none of the 149 pairs overlaps
    # The samples themselves say that these are one recording; any other match would be a false alarm.
    assert {names for names, match in others.items() if correlation(esc10, match) > 0.5} == UPLOADED_TWICE
    assert others.keys() == UPLOADED_TWICE


def correlation(esc10: Recordings, match: Match) -> float:
    """Return the highest normalised correlation of one second of samples, within 0.05 s of the offset of the match."""
    one, other = (read_audio(esc10.paths[number], RATE) for number in (match.first, match.second))
    best = 0.0
    for begin in range(0, len(one) - RATE + 1, RATE // 2):
        left = one[begin : begin + RATE]
        first = begin + int((match.offset - 0.05) * RATE)
        around = other[max(0, first) : first + RATE + RATE // 10]
        if len(around) < RATE:
            continue
        sizes = np.sqrt(np.convolve(around**2, np.ones(RATE, np.float32), "valid") * (left @ left))
        best = max(best, float((np.correlate(around, left, "valid") / sizes).max()))
    return best


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_all_altered_copies_of_recordings_match_their_originals(esc10: Recordings, tmp_path: Path, change: str) -> None:
    found, wrong = esc10.found(tmp_path, change)
    odd = {number for number, freesound_id in enumerate(esc10.ids) if freesound_id % 2}
    drawn = set(np.random.default_rng(0).permutation(400)[:300].tolist())
    missed = [esc10.names[number] for number in range(400) if number not in found]
    print(
        f"\n{change}: {len(found)} of 400; held out {len(found & odd)} of {len(odd)}; {len(found & drawn)} of 300; "
        f"wrong {sorted(wrong - UPLOADED_TWICE)}; missed {missed}"
    )
    assert wrong <= UPLOADED_TWICE
    assert len(found) >= LEAST.get(change, 398)
    assert len(found & odd) >= LEAST.get(change, 398) - 400 + len(odd)
    if change.startswith("white noise"):
        assert len(found & drawn) >= (295 if "20 dB" in change else 250)
